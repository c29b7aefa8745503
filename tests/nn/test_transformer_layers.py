"""Transformers: values and gradients, decoding by steps, files, training."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from layer_checks import arrays, check_layer, check_minibatch, parameters, randomized, sentences
from layer_reference import layer_norm, linear
from test_attention_layers import HEADS, D, attention

import dynet_cy as dy
from dynet_cy import nn

HIDDEN = 5


def block(p, x, name, norm_first, eps, attentions):
    """Sublayers with residual connections."""
    p = {key[len(name) :]: value for key, value in p.items() if key.startswith(name)}

    def feed_forward(y):
        return linear(p, np.maximum(linear(p, y, "linear1/"), 0), "linear2/")

    for i, sublayer in enumerate([*(f(p) for f in attentions), feed_forward]):
        norm = f"norms/{i}/"
        x = x + sublayer(layer_norm(p, x, eps, norm)) if norm_first else layer_norm(p, x + sublayer(x), eps, norm)
    return x


def encoder_layer(p, x, name="", norm_first=False, eps=None, causal=False):
    def own(p):
        return lambda y: attention(p, y, None, causal, name="attention/")

    return block(p, x, name, norm_first, eps, [own])


def decoder_layer(p, x, memory, name="", norm_first=False, eps=None):
    def own(p):
        return lambda y: attention(p, y, None, True, name="attention/")

    def cross(p):
        return lambda y: attention(p, y, memory, name="cross/")

    return block(p, x, name, norm_first, eps, [own, cross])


def layer_made(cls, norm_first=False, eps=None, seed=0):
    return randomized(cls(D, HEADS, HIDDEN, dy.ParameterCollection(), 0.0, "rectify", norm_first, None, eps), seed, 0.4)


@pytest.mark.parametrize(("norm_first", "eps"), [(False, None), (True, 0.01)])
def test_encoder_layer(norm_first: bool, eps: float | None) -> None:
    check_layer(
        layer_made(nn.TransformerEncoderLayer, norm_first, eps),
        lambda p, x: encoder_layer(p, x, "", norm_first, eps),
        sentences(D, (4, 1, 3)),
        tolerance=3e-5,
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(norm_first: bool) -> None:
    pairs = [(x, m) for (x,), (m,) in zip(sentences(D, (3, 1, 4)), sentences(D, (2, 4, 1), seed=2))]
    check_layer(
        layer_made(nn.TransformerDecoderLayer, norm_first),
        lambda p, x, m: decoder_layer(p, x, m, "", norm_first),
        pairs,
        tolerance=3e-5,
    )


@pytest.mark.usefixtures("on_each_device")
def test_encoder_stack() -> None:
    layer = randomized(nn.TransformerEncoder(2, D, HEADS, HIDDEN, dy.ParameterCollection(), norm_first=True), 0, 0.4)

    def reference(p, x):
        for i in range(2):
            x = encoder_layer(p, x, f"layers/{i}/", True, None, True)
        return layer_norm(p, x, None, "norm/")

    examples = sentences(D, (4, 1, 3))
    for (x,) in examples:
        found = layer(dy.inputTensor(x), causal=True).npvalue().reshape(x.shape)
        held = {p.name()[len(layer.param_collection().name()) :]: p.as_array() for p in parameters(layer)}
        np.testing.assert_allclose(found, reference(held, x), rtol=3e-5, atol=3e-5)
    check_minibatch(layer, [examples[0], (-examples[0][0],)], 1e-5)


@pytest.mark.usefixtures("on_each_device")
def test_decoder_stack() -> None:
    layer = randomized(nn.TransformerDecoder(2, D, HEADS, HIDDEN, dy.ParameterCollection(), final_norm=True), 0, 0.4)
    x, memory = (x for (x,) in sentences(D, (4, 3)))
    held = {p.name()[len(layer.param_collection().name()) :]: p.as_array() for p in parameters(layer)}
    want = x
    for i in range(2):
        want = decoder_layer(held, want, memory, f"layers/{i}/")
    want = layer_norm(held, want, None, "norm/")
    found = layer(dy.inputTensor(x), dy.inputTensor(memory)).npvalue()
    np.testing.assert_allclose(found, want, rtol=3e-5, atol=3e-5)
    check_minibatch(layer, [(x, memory), (-x, memory + 1)], 2e-5)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("positions", [None, "rotary", "relative"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_steps_are_the_whole(kind: str, positions: str | None) -> None:
    cls = nn.TransformerEncoder if kind == "encoder" else nn.TransformerDecoder
    layer = randomized(cls(2, D, HEADS, HIDDEN, dy.ParameterCollection(), 0.0, "gelu", True, positions), 0, 0.4)
    x, memory = (dy.inputTensor(x) for (x,) in sentences(D, (5, 3)))
    if kind == "encoder":
        want, state = layer(x, causal=True).npvalue(), None
    else:
        want, state = layer(x, memory).npvalue(), layer.start(memory)
        assert state.position() == 0
    for i in range(5):
        y, state = layer.step(dy.pick(x, i, 1), state)
        np.testing.assert_allclose(y.npvalue(), want[:, i], rtol=3e-5, atol=3e-5)
    if kind == "decoder":
        assert state.position() == 5


def test_decoding_of_many_runs_together() -> None:
    """Sentences of different lengths are decoded word by word, in one pass per step."""
    layer = randomized(nn.TransformerDecoder(1, D, HEADS, HIDDEN, dy.ParameterCollection()), 0, 0.4)
    memories = [x for (x,) in sentences(D, (2, 5, 3))]

    def write(memory):
        state = layer.start(dy.inputTensor(memory))
        x, found = dy.zeros(D), []
        for _ in range(4):
            x, state = layer.step(x, state)
            found.append(x.npvalue())
        return np.stack(found)

    dy.renew_cg(forward_only=True)
    together = dy.batched_map(write, memories)
    for memory, found in zip(memories, together):
        dy.renew_cg()
        np.testing.assert_allclose(found, write(memory), rtol=2e-5, atol=2e-5)


def test_files_pickles_and_copies(tmp_path) -> None:
    model = dy.ParameterCollection()
    encoder = nn.TransformerEncoder(2, D, HEADS, HIDDEN, model, 0.1, "silu", True, "relative", 1e-5, 3, False).eval()
    decoder = nn.TransformerDecoder(1, D, HEADS, HIDDEN, model, 0.1).eval()
    x = dy.inputTensor(sentences(D)[0][0])
    want = decoder(x, encoder(x)).npvalue()
    dy.save(tmp_path / "m", [encoder, decoder])
    pairs = [
        dy.load(tmp_path / "m", dy.ParameterCollection()),
        pickle.loads(pickle.dumps((encoder, decoder))),
        copy.deepcopy((encoder, decoder)),
    ]
    for first, second in pairs:
        assert (first.spec, second.spec) == (encoder.spec, decoder.spec)
        np.testing.assert_array_equal(second.eval()(x, first.eval()(x)).npvalue(), want)


def test_errors() -> None:
    model = dy.ParameterCollection()
    with pytest.raises(ValueError, match="argument activation"):
        nn.TransformerEncoder(1, D, HEADS, HIDDEN, model, 0.0, "relu6")
    with pytest.raises(ValueError, match="argument layers: expected at least 1, got 0"):
        nn.TransformerEncoder(0, D, HEADS, HIDDEN, model)
    layer = nn.TransformerEncoder(2, D, HEADS, HIDDEN, dy.ParameterCollection())
    with pytest.raises(dy.DimensionError, match="argument x: expected 8 rows"):
        layer(dy.zeros((3, 2)))
    with pytest.raises(dy.DimensionError, match="expected one of 2 layers, got 1"):
        layer.step(dy.zeros(D), (None,))


def test_learns_to_copy() -> None:
    """A language model learns a task that needs attention to earlier words: a b c | a b c."""
    dy.reset_random_seed(1)
    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    words = nn.Embedding(6, 16, model)
    encoder = nn.TransformerEncoder(2, 16, 2, 32, model, norm_first=True, positions="rotary")
    out = nn.Linear(16, 6, model)
    trainer = dy.AdamTrainer(model, alpha=0.005)
    last = math.inf
    for _ in range(150):
        dy.renew_cg()
        losses = []
        for _ in range(16):
            part = rng.integers(1, 6, rng.integers(2, 5)).tolist()
            text = [0, *part, 0, *part]
            scores = out(encoder(words(text[:-1]), causal=True))
            first = len(part) + 1  # from here on, the words can be predicted
            losses += [dy.pickneglogsoftmax(scores[:, i], text[i + 1]) for i in range(first, len(text) - 1)]
        loss = dy.average(losses)
        last = loss.value()
        loss.backward()
        trainer.update()
    assert last < 0.3


# What each rate drops, and where it is seen: the weights of attention, the outputs of sublayers, and f(...).
RATES = [
    ({}, (0.0, 0.0, 0.0)),
    ({"dropout": 0.2}, (0.2, 0.2, 0.2)),
    ({"dropout": 0.2, "activation_dropout": 0.0}, (0.2, 0.2, 0.0)),
    ({"attention_dropout": 0.3, "hidden_dropout": 0.1}, (0.3, 0.1, 0.0)),
    ({"dropout": 0.2, "attention_dropout": 0.3}, (0.3, 0.2, 0.2)),
]


@pytest.mark.parametrize("cls", [nn.TransformerEncoder, nn.TransformerDecoder])
@pytest.mark.parametrize(("given", "want"), RATES)
def test_rates_of_dropout(cls: type, given: dict, want: tuple) -> None:
    stack = cls(2, D, HEADS, HIDDEN, dy.ParameterCollection(), **given)
    for layer in (*stack.layers, *cls.from_spec(stack.spec, dy.ParameterCollection()).layers):
        own = [layer.attention, layer.cross] if isinstance(layer, nn.TransformerDecoderLayer) else [layer.attention]
        assert {attention.dropout.rate for attention in own} == {want[0]}
        assert (layer.dropout.rate, layer.activation_dropout.rate) == want[1:]
        assert layer.from_spec(layer.spec, dy.ParameterCollection()).activation_dropout.rate == want[2]
    stack.set_dropout(0.5)
    assert stack.layers[0].activation_dropout.rate == stack.layers[0].attention.dropout.rate == 0.5


def test_one_rate_drops_one_thing() -> None:
    """With all of one kind dropped, what is left is known."""
    x = np.random.default_rng(0).normal(size=(D, 4))
    made = [
        randomized(
            nn.TransformerEncoderLayer(D, HEADS, HIDDEN, dy.ParameterCollection(), norm_first=True, **rates), 0, 0.4
        )
        for rates in ({}, {"hidden_dropout": 1.0}, {"activation_dropout": 1.0}, {"attention_dropout": 1.0})
    ]
    plain, hidden, inner, weights = (
        [e.npvalue() for e in (layer(x), layer.attention(layer.norms[0](x)))] for layer in made
    )
    np.testing.assert_allclose(hidden[0], x, rtol=1e-5)
    np.testing.assert_allclose(inner[0], x + plain[1] + made[0].linear2.b.npvalue()[:, None], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights[1], np.tile(made[0].attention._biases[3].npvalue()[:, None], 4), rtol=1e-5)


# ---- other norms, gates, layers without biases, grouped heads

OPTIONS = [
    {"norm": "rms", "norm_first": True, "gated": True, "bias": False, "activation": "silu", "kv_heads": 2},
    {"norm": "rms", "gated": True, "head_dim": 6, "positions": "rotary", "base": 100.0},
    {"bias": False, "norm_first": True, "window": 1},
    {"norm": "layer", "gated": True, "bias": False, "kv_heads": 1, "eps": 0.01},
]


def with_options(p, x, options, name=""):
    p = {key[len(name) :]: value for key, value in p.items() if key.startswith(name)}
    eps, act = options.get("eps", 1e-5), options.get("activation", "rectify")

    def norm(y, name):
        if options.get("norm") == "rms":
            return p[f"{name}g"][:, None] * y / np.sqrt((y**2).mean(0) + eps)
        return layer_norm(p, y, eps, name)

    def activation(y):
        return y / (1 + np.exp(-y)) if act == "silu" else np.maximum(y, 0)

    def feed_forward(y):
        if options.get("gated"):
            return linear(p, linear(p, y, "linear1/value/") * activation(linear(p, y, "linear1/gate/")), "linear2/")
        return linear(p, activation(linear(p, y, "linear1/")), "linear2/")

    def own(y):
        return attention(p, y, None, True, name="attention/", heads=4, **options)

    for i, sublayer in enumerate((own, feed_forward)):
        at = f"norms/{i}/"
        x = x + sublayer(norm(x, at)) if options.get("norm_first") else norm(x + sublayer(x), at)
    return x


@pytest.mark.parametrize("options", OPTIONS)
def test_options(options: dict, tmp_path) -> None:
    layer = randomized(nn.TransformerEncoderLayer(D, 4, HIDDEN, dy.ParameterCollection(), **options), 0, 0.4)
    assert any(name.endswith("b") for name, _ in layer.named_parameters()) == options.get("bias", True)
    if options is OPTIONS[0]:  # with gradients
        examples, call = sentences(D, (4, 1, 3)), lambda x: layer(x, causal=True)
        check_layer(layer, lambda p, x: with_options(p, x, options), examples, call, tolerance=3e-5)
        dy.renew_cg()
    for (x,) in sentences(D, (4, 1, 3)):
        found = layer(dy.inputTensor(x), causal=True).npvalue().reshape(x.shape)
        np.testing.assert_allclose(found, with_options(arrays(layer), x, options), rtol=3e-5, atol=3e-5)
    model = dy.ParameterCollection()
    encoder = randomized(nn.TransformerEncoder(2, D, 4, HIDDEN, model, final_norm=True, **options), 0, 0.4)
    decoder = randomized(nn.TransformerDecoder(2, D, 4, HIDDEN, model, **options), 1, 0.4)
    x = dy.inputTensor(sentences(D, (4,))[0][0])
    states = encoder(x, causal=True, all_layers=True)
    assert [y.dim() for y in states] == [((D, 4), 1)] * 3
    np.testing.assert_array_equal(states[0].npvalue(), x.npvalue())
    np.testing.assert_allclose(states[1].npvalue(), encoder.layers[0](x, causal=True).npvalue(), atol=1e-6)
    written = decoder(x, states[-1], all_layers=True)
    np.testing.assert_allclose(written[-1].npvalue(), decoder(x, encoder(x, causal=True)).npvalue(), atol=1e-5)
    past, state = None, decoder.start(states[-1])
    for i in range(4):
        y, past = encoder.step(x[:, i], past)
        np.testing.assert_allclose(y.npvalue(), states[-1].npvalue()[:, i], rtol=3e-5, atol=3e-5)
        y, state = decoder.step(x[:, i], state)
        np.testing.assert_allclose(y.npvalue(), written[-1].npvalue()[:, i], rtol=3e-5, atol=3e-5)
    dy.save(tmp_path / "m", [encoder, decoder])
    first, second = dy.load(tmp_path / "m", dy.ParameterCollection())
    np.testing.assert_allclose(second(x, first(x, causal=True)).npvalue(), written[-1].npvalue(), atol=1e-5)


def test_a_bias_of_scores_reaches_all_layers() -> None:
    model = dy.ParameterCollection()
    encoder, decoder = (cls(2, D, HEADS, HIDDEN, model) for cls in (nn.TransformerEncoder, nn.TransformerDecoder))
    bias = randomized(nn.RelativeBias(HEADS, model, 4, 8), 0, 3.0)
    x = dy.inputTensor(sentences(D, (5,))[0][0])
    whole = encoder(x, causal=True, bias=bias(5)).npvalue()
    assert np.abs(whole - encoder(x, causal=True).npvalue()).max() > 0.01
    written = decoder(x, x, bias=bias(5)).npvalue()
    past, state = None, decoder.start(x)
    for i in range(5):
        y, past = encoder.step(x[:, i], past, bias=bias(i + 1, 1, i))
        np.testing.assert_allclose(y.npvalue(), whole[:, i], rtol=3e-5, atol=3e-5)
        y, state = decoder.step(x[:, i], state, bias=bias(i + 1, 1, i))
        np.testing.assert_allclose(y.npvalue(), written[:, i], rtol=3e-5, atol=3e-5)


def test_norms_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="argument norm: expected one of layer, rms, got 'l2'"):
        nn.TransformerEncoderLayer(D, HEADS, HIDDEN, dy.ParameterCollection(), norm="l2")


@pytest.mark.parametrize("name", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_gates_by_name_of_other_libraries(name: str) -> None:
    message = 'argument gated: expected True or False, got .swiglu.; SwiGLU is gated=True, activation="silu"'
    gated: Any = "swiglu"
    with pytest.raises(TypeError, match=f"{name}: {message}"):
        getattr(nn, name)(D, HEADS, HIDDEN, dy.ParameterCollection(), gated=gated)
    with pytest.raises(TypeError, match=message):
        nn.TransformerEncoder(1, D, HEADS, HIDDEN, dy.ParameterCollection(), gated=gated)


@pytest.mark.parametrize("stack", [nn.TransformerEncoder, nn.TransformerDecoder])
def test_stacks_made_as_in_pytorch(stack) -> None:
    """From a layer and a number: the error shows the arguments here."""
    model = dy.ParameterCollection()
    layer = nn.TransformerEncoderLayer(4, 2, 8, model)
    for args, options in [((layer, 2), {}), ((layer, 2, model), {}), ((), {"encoder_layer": layer})]:
        with pytest.raises(TypeError, match=r"`nn\.TransformerEncoder\(2, n, heads, hidden, pc\)` \(a decoder alike\)"):
            stack(*args, **options)
