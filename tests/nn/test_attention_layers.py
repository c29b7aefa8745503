"""Multi-head attention, pointers, biaffine scores, positions."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from layer_checks import arrays, check_layer, check_minibatch, randomized, sentences

import dynet_cy as dy
from dynet_cy import nn, profiling

D, HEADS = 8, 2


def softmax(x):
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def turned(x, rates):
    """Rotary positions: pairs (i, i + half) as complex numbers, times e^(i angle)."""
    half = len(x) // 2
    numbers = (x[:half] + 1j * x[half:]) * np.exp(1j * np.outer(rates, np.arange(x.shape[1])))
    return np.concatenate([numbers.real, numbers.imag])


def attention(p, x, memory=None, causal=False, mask=None, added=None, name="", heads=HEADS, **options):
    """The formula, head by head; `added` to the scores."""
    memory = x if memory is None else memory
    kv, size = options.get("kv_heads", heads), options.get("head_dim", D // heads)
    q, k, v = (
        p[f"{name}W{c}"] @ y + p.get(f"{name}b{c}", np.zeros(1))[:, None] for c, y in zip("qkv", (x, memory, memory))
    )
    (n, m), base, half = (memory.shape[1], x.shape[1]), options.get("base", 10000.0), size // 2
    rates = np.array(base) if isinstance(base, tuple) else base ** (-np.arange(half) / max(half, 1))
    away = np.arange(n)[:, None] - np.arange(m)
    allowed = np.broadcast_to(True if mask is None else mask, (n, m)) & (np.abs(away) <= options.get("window", n + m))
    if causal:
        allowed = allowed & (away <= 0)
    found = []
    for h in range(heads):
        rows, shared = (slice(i * size, (i + 1) * size) for i in (h, h // (heads // kv)))
        qh, kh = q[rows], k[shared]
        if options.get("positions") == "rotary":
            qh, kh = turned(qh, rates), turned(kh, rates)
        scores = kh.T @ qh * options.get("scale", size**-0.5)
        if options.get("positions") == "relative":
            scores = scores + p[f"{name}distances"][np.clip(away, -2, 2) + 2, h]
        if added is not None:
            scores = scores + added[:, :, h]
        found.append(v[shared] @ softmax(np.where(allowed, scores, -np.inf)))
    return p[f"{name}Wo"] @ np.concatenate(found) + p.get(f"{name}bo", np.zeros(1))[:, None]


def made(positions=None, seed=0):
    return randomized(nn.MultiHeadAttention(D, HEADS, dy.ParameterCollection(), 0.0, True, positions, 2), seed)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [None, "rotary", "relative"])
def test_self_attention(positions: str | None, causal: bool) -> None:
    layer = made(positions)
    check_layer(
        layer,
        lambda p, x: attention(p, x, None, causal, positions=positions),
        sentences(D, (5, 1, 3)),
        lambda x: layer(x, causal=causal),
    )


@pytest.mark.parametrize("bias", [False, True])
def test_cross_attention(bias: bool) -> None:
    pairs = [(x, m) for (x,), (m,) in zip(sentences(D, (3, 1, 4)), sentences(D, (2, 4, 1), seed=2))]
    layer = nn.MultiHeadAttention(D, HEADS, dy.ParameterCollection(), 0.0, bias, window=1)  # of self-attention only
    check_layer(randomized(layer), attention, pairs)


def test_masks() -> None:
    layer = made()
    ((x,),) = sentences(D, (4,))
    mask = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]], bool)
    for kept in (mask, mask[:, 1:2]):
        for given in (kept, dy.inputTensor(kept) > 0):
            found = layer(dy.inputTensor(x), mask=given).npvalue()
            np.testing.assert_allclose(found, attention(arrays(layer), x, mask=kept), rtol=1e-5, atol=1e-5)
    with pytest.raises(dy.DimensionError, match=r"mask: expected shape \(4, 4\) or \(4, 1\), got \(3, 3\)"):
        layer(dy.inputTensor(x), mask=dy.ones((3, 3)))
    both = np.stack([x, x], -1)
    masks = np.stack([mask, mask.T], -1)
    found = layer(dy.inputTensor(both, batched=True), mask=masks).npvalue()
    for b in range(2):
        want = attention(arrays(layer), x, mask=masks[..., b])
        np.testing.assert_allclose(found[..., b], want, rtol=1e-5, atol=1e-5)


def test_padded_batch_is_each_alone() -> None:
    layer = made()
    short, long = (x for (x,) in sentences(D, (2, 5)))
    padded = np.zeros((D, 5, 2), np.float32)
    padded[:, :2, 0], padded[..., 1] = short, long
    mask = np.ones((5, 1, 2), bool)
    mask[2:, :, 0] = False
    found = layer(dy.inputTensor(padded, batched=True), mask=mask).npvalue()
    np.testing.assert_allclose(found[:, :2, 0], layer(dy.inputTensor(short)).npvalue(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[..., 1], layer(dy.inputTensor(long)).npvalue(), rtol=1e-5, atol=1e-5)


def test_weights() -> None:
    layer = made()
    x, memory = (x for (x,) in sentences(D, (3, 4)))
    found = layer.weights(dy.inputTensor(x), dy.inputTensor(memory), causal=True)
    assert found.dim() == ((4, 3), HEADS)
    np.testing.assert_allclose(found.npvalue().sum(0), 1, rtol=1e-5)
    assert (found.npvalue()[3] == 0).all()
    assert (found.npvalue()[1:, 0] == 0).all()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("positions", [None, "rotary", "relative"])
def test_steps(positions: str | None, batch: int) -> None:
    layer = made(positions)
    x = np.random.default_rng(4).normal(size=(D, 6, batch)).astype(np.float32)
    want = layer(dy.inputTensor(x, batched=True), causal=True).npvalue().reshape(D, 6, batch)
    past, found = None, []
    for first, last in [(0, 1), (1, 2), (2, 5), (5, 6)]:
        columns = x[:, first:last] if last - first > 1 else x[:, first]
        y, past = layer.step(dy.inputTensor(columns, batched=True), past)
        found.append(y.npvalue().reshape(D, -1, batch))
    assert past.columns == 6
    np.testing.assert_allclose(np.concatenate(found, 1), want, rtol=1e-5, atol=1e-5)


def test_steps_can_branch() -> None:
    layer = made("rotary")
    a, b, c = (dy.inputVector(np.random.default_rng(i).normal(size=D)) for i in range(3))
    _, past = layer.step(a)
    one, _ = layer.step(b, past)
    other, _ = layer.step(c, past)
    again, _ = layer.step(b, past)
    np.testing.assert_array_equal(one.npvalue(), again.npvalue())
    assert not np.allclose(one.npvalue(), other.npvalue())


def test_one_memory_for_a_batch() -> None:
    layer = made()
    x, memory = (x for (x,) in sentences(D, (3, 4)))
    queries = np.stack([x, -x], -1)
    past = layer.keys_values(dy.inputTensor(memory))
    found = layer(dy.inputTensor(queries, batched=True), past).npvalue()
    for b in range(2):
        want = layer(dy.inputTensor(queries[..., b]), dy.inputTensor(memory)).npvalue()
        np.testing.assert_allclose(found[..., b], want, rtol=1e-5, atol=1e-5)
    with pytest.raises(dy.DimensionError, match="batch"):
        layer(dy.inputTensor(queries, batched=True), dy.zeros((D, 4), 3))


def test_errors() -> None:
    model = dy.ParameterCollection()
    for arguments, message in [
        ((8, 3, model), "3 heads do not divide a dim of 8"),
        ((6, 2, model, 0.0, True, "rotary"), "need an even dim / heads"),
        ((8, 2, model, 0.0, True, "sines"), "expected None, 'rotary' or 'relative'"),
        ((8, 2, model, 2.0), "expected a probability"),
    ]:
        with pytest.raises(ValueError, match=message):
            nn.MultiHeadAttention(*arguments)
    assert model.parameter_count() == 0
    layer = made()
    with pytest.raises(dy.DimensionError, match=r"argument x: expected 8 rows, got \(5,\)"):
        layer(dy.zeros(5), dy.zeros((D, 2)))
    with pytest.raises(dy.DimensionError, match="argument memory: expected 8 rows"):
        layer(dy.zeros(D), dy.zeros((5, 2)))
    with pytest.raises(dy.DimensionError, match=r"argument mask: expected shape \(3, 3\)"):
        layer(dy.zeros((D, 3)), mask=np.ones((2, 2)))


def test_frozen_files_and_copies(tmp_path) -> None:
    layer = made("relative", seed=5)
    x = dy.inputTensor(sentences(D)[0][0])
    dy.save(tmp_path / "m", [layer])
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    for other in (loaded, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.spec == layer.spec
        np.testing.assert_array_equal(other(x).npvalue(), layer(x).npvalue())
    layer.set_updated(False)
    below = layer.param_collection()
    assert not any(p.is_updated() for p in [*below.parameters_list(), *below.lookup_parameters_list()])


def test_calls_of_sentences_of_all_lengths_are_shared() -> None:
    layer = made()
    examples = sentences(D, (2, 5, 3, 7, 4))

    def calls(examples):
        dy.renew_cg()
        with profiling.measure() as profile:
            dy.esum([dy.sum_elems(layer(dy.inputTensor(x))) for (x,) in examples]).value()
        shared = ("affine_transform", "scaled_dot_product_attention")
        return {row.op: row.calls for row in profile if row.op in shared}

    few, many = calls(examples[:1]), calls(examples)
    assert many == few


# ---- positions


def test_sinusoids() -> None:
    layer = nn.SinusoidalPositions(6)
    t, i = np.arange(5), np.arange(3)
    angles = t / 10000.0 ** (2 * i[:, None] / 6)
    want = np.empty((6, 5))
    want[0::2], want[1::2] = np.sin(angles), np.cos(angles)
    np.testing.assert_allclose(layer(dy.zeros((6, 5))).npvalue(), want, atol=1e-6)
    np.testing.assert_allclose(layer(dy.zeros((6, 2)), 3).npvalue(), want[:, 3:], atol=1e-6)
    np.testing.assert_allclose(layer(dy.zeros(6), first=4).npvalue(), want[:, 4], atol=1e-6)
    check_minibatch(layer, sentences(6, (4, 4)), 1e-6)
    with pytest.raises(ValueError, match="expected an even number"):
        nn.SinusoidalPositions(3)
    with pytest.raises(ValueError, match="argument first"):
        layer(dy.zeros(6), -1)


# ---- pointers and pairs


@pytest.mark.usefixtures("on_each_device")
def test_pointer() -> None:
    def reference(p, memory, query):
        return (p["v"] @ np.tanh(p["W"] @ memory + p["U"] @ query[:, None] + p["b"][:, None]))[0]

    layer = randomized(nn.PointerAttention(3, 4, 5, dy.ParameterCollection()))
    rng = np.random.default_rng(0)
    pairs = [(x, rng.normal(size=4).astype(np.float32)) for (x,) in sentences(3)]
    check_layer(layer, reference, pairs, minibatch=False)
    check_minibatch(layer, [pairs[0], (pairs[0][0] + 1, pairs[0][1] - 1)], 1e-5)
    memory, query = dy.inputTensor(pairs[0][0]), dy.inputVector(pairs[0][1])
    once = layer(memory, query, layer.keys(memory))
    np.testing.assert_array_equal(once.npvalue(), layer(memory, query).npvalue())
    with pytest.raises(dy.DimensionError, match="argument query: expected a vector"):
        layer(memory, dy.zeros((4, 2)))


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("classes", [1, 3])
def test_biaffine(classes: int, bias: bool) -> None:
    def reference(p, x, y):
        if bias:
            x, y = (np.concatenate([z, np.ones((1, z.shape[1]))]) for z in (x, y))
        u = p["U"].reshape(classes, len(x), len(y))
        scores = np.einsum("in,cij,jm->nmc", x, u, y)
        return scores[..., 0] if classes == 1 else scores

    layer = randomized(nn.BiaffineAttention(3, 2, dy.ParameterCollection(), classes, bias))
    pairs = [(x, y) for (x,), (y,) in zip(sentences(3), sentences(2, (2, 4, 1), seed=3))]
    check_layer(layer, reference, pairs)


# ---- grouped heads, head sizes, windows, scales, biases of scores

GROUPED = [
    {"kv_heads": 1},
    {"kv_heads": 2, "head_dim": 3, "bias": False},
    {"kv_heads": 2, "head_dim": 6, "positions": "rotary", "base": 100.0},
    {"head_dim": 6, "positions": "rotary", "base": (1.0, 0.3, 0.01)},
    {"window": 1},
    {"kv_heads": 2, "window": 2, "positions": "relative", "scale": 1.0},
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", GROUPED)
def test_options_of_heads(options: dict, causal: bool, tmp_path) -> None:
    layer = randomized(nn.MultiHeadAttention(D, 4, dy.ParameterCollection(), max_distance=2, **options))
    bias = np.random.default_rng(3).normal(size=(5, 5, 4))
    for (x,) in sentences(D, (5, 2, 1)):
        for given in (None, bias[: x.shape[1], : x.shape[1]]):
            want = attention(arrays(layer), x, None, causal, added=given, heads=4, **options)
            bias_of_scores = None if given is None else dy.inputTensor(given)
            found = layer(dy.inputTensor(x), causal=causal, bias=bias_of_scores).npvalue()
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    ((x,),) = sentences(D, (5,))
    dy.renew_cg()
    dy.save(tmp_path / "m", [layer])
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    x = dy.inputTensor(x)
    np.testing.assert_array_equal(loaded(x).npvalue(), layer(x).npvalue())
    weights = layer.weights(x, causal=causal)
    assert weights.dim() == ((5, 5), 4)
    np.testing.assert_allclose(weights.npvalue().sum(0), 1, rtol=1e-5)
    if causal:
        whole, past = layer(x, causal=True, bias=dy.inputTensor(bias)).npvalue(), None
        for i in range(5):
            y, past = layer.step(x[:, i], past, bias=dy.inputTensor(bias[: i + 1, i : i + 1]))
            np.testing.assert_allclose(y.npvalue(), whole[:, i], rtol=1e-5, atol=1e-5)
        assert past.keys.dim()[0][0] == options.get("kv_heads", 4) * options.get("head_dim", 2)


@pytest.mark.usefixtures("on_each_device")
def test_gradients_with_grouped_heads() -> None:
    options = {"kv_heads": 2, "head_dim": 4, "positions": "rotary", "base": 100.0, "window": 2}
    layer = randomized(nn.MultiHeadAttention(D, 4, dy.ParameterCollection(), **options))
    check_layer(layer, lambda p, x: attention(p, x, heads=4, **options), sentences(D, (4, 1, 3)))


def test_errors_of_options() -> None:
    model = dy.ParameterCollection()
    for options, message in [
        ({"kv_heads": 3}, "3 kv_heads do not divide 4 heads"),
        ({"kv_heads": 0}, "argument kv_heads: expected at least 1"),
        ({"head_dim": 0}, "argument head_dim: expected at least 1"),
        ({"head_dim": 3, "positions": "rotary"}, "need an even dim / heads, got 3"),
        ({"window": 0}, "argument window: expected at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            nn.MultiHeadAttention(D, 4, model, **options)
    layer = nn.MultiHeadAttention(D, 4, model, kv_heads=2)
    with pytest.raises(NotImplementedError, match="PyTorch has no kv_heads"):
        layer.load_pytorch({})
    with pytest.raises(dy.DimensionError, match="bias"):
        layer(dy.zeros((D, 3)), bias=dy.zeros((2, 2)))
    assert layer(dy.zeros((D, 3))).dim() == ((D, 3), 1)
    with pytest.raises(dy.DimensionError, match="3 rows of 1 heads"):
        nn.rotate(dy.zeros((3, 2)), 1)
    with pytest.raises(dy.DimensionError, match="do not have 3 angles each"):
        nn.rotate(dy.zeros((8, 2)), 2, base=(1.0, 2.0, 3.0))


def test_rotations_of_distances() -> None:
    """The product of two columns depends on their distance."""
    x = np.random.default_rng(0).normal(size=(8, 1)).astype(np.float32)
    here, there = (nn.rotate(dy.inputTensor(np.tile(x, 6)), 2, first, 50.0).npvalue() for first in (0, 7))
    np.testing.assert_allclose(here.T @ here, there.T @ there, atol=1e-4)
    np.testing.assert_allclose(nn.rotate(dy.inputVector(x[:, 0]), 2, 5, 50.0).npvalue(), here[:, 5], atol=1e-6)


@pytest.mark.parametrize(("heads", "factors"), [(2, [1 / 16, 1 / 256]), (3, [1 / 16, 1 / 256, 1 / 4]), (1, [1 / 256])])
def test_linear_biases(heads: int, factors: list) -> None:
    found = nn.alibi(heads, 6, 2, first=3).npvalue()
    away = np.abs(np.arange(6)[:, None] - (3 + np.arange(2)))
    np.testing.assert_allclose(found, -away[:, :, None] * np.array(factors), rtol=1e-6)
    assert nn.alibi(heads, 4).dim() == ((4, 4, heads), 1)


@pytest.mark.parametrize("both", [True, False])
def test_buckets_of_distances(both: bool) -> None:
    layer = randomized(nn.RelativeBias(3, dy.ParameterCollection(), 8, 20, both))

    def bucket(distance):
        buckets, begin = (4, 4 if distance > 0 else 0) if both else (8, 0)
        far, single = abs(distance) if both else max(-distance, 0), buckets // 2
        if far >= single:
            far = min(single + int(math.log(far / single) / math.log(20 / single) * (buckets - single)), buckets - 1)
        return begin + far

    table = layer.table.as_array()
    whole = np.array([[table[bucket(key - query)] for query in range(30)] for key in range(30)])
    np.testing.assert_allclose(layer(30).npvalue(), whole, rtol=1e-6)
    np.testing.assert_allclose(layer(9, 2, 7).npvalue(), whole[:9, 7:9], rtol=1e-6)
    dy.sum_elems(layer(5)).backward()
    rows, counts = np.unique([bucket(i - j) for i in range(5) for j in range(5)], return_counts=True)
    np.testing.assert_allclose(layer.table.grad_as_array()[rows], np.tile(counts[:, None], 3))
    assert nn.RelativeBias.from_spec(layer.spec, dy.ParameterCollection()).both_directions == both


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.RelativeBias(2, dy.ParameterCollection(), 2), "argument buckets: expected at least 4"),
        (lambda: nn.RelativeBias(2, dy.ParameterCollection(), 32, 8), "at most farthest=8"),
        (lambda: nn.RelativeBias(2, dy.ParameterCollection())(0), "argument keys"),
        (lambda: nn.RelativeBias(2, dy.ParameterCollection())(3, 2, -1), "argument first"),
        (lambda: nn.alibi(0, 3), "argument heads"),
        (lambda: nn.alibi(1, 3, 0), "argument queries"),
        (lambda: nn.alibi(1, 3, first=-1), "argument first"),
    ],
)
def test_errors_of_biases(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
