"""Scaled dot-product attention beyond the table: blocks, infinities, dropout, sentences of many lengths."""

from __future__ import annotations

import numpy as np
import pytest
from cases_attention import attention

import dynet_cy as dy
from dynet_cy import config, profiling
from dynet_cy.ops.registry import describe

LENGTHS = (3, 9, 1, 33, 9, 50)


@pytest.fixture(autouse=True)
def graph():
    before = config.get()["autobatch"]
    dy.renew_cg()
    yield
    config.set(autobatch=before)
    dy.renew_cg()


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def gradients(xs, weights, **options):
    """The value, and the gradients of all arguments for the weighted sum of the value."""
    collection = dy.ParameterCollection()
    parameters = [collection.add_parameters(x.shape, init=x) for x in xs]
    dy.renew_cg()
    bias = parameters[3] if len(parameters) > 3 else None
    y = dy.scaled_dot_product_attention(*parameters[:3], bias=bias, **options)
    loss = dy.sum_elems(dy.cmult(y, dy.inputTensor(weights)))
    loss.backward()
    return y.npvalue(), [p.grad_as_array() for p in parameters]


def slopes(xs, weights, every=1, **options):
    """The same gradients by differences of the formula in float64; NaN but for one in `every` elements."""
    wide, found = [x.astype(np.float64) for x in xs], []
    for i, x in enumerate(wide):
        slope = np.full_like(x, np.nan)
        # Queries, and columns of a matrix of bias, have one column of the value each: a whole row is changed at once.
        by_column = i == 0 or (i == 3 and x.ndim == 2)
        for at in range(len(x)) if by_column else [*np.ndindex(*x.shape)][::every]:
            ends = []
            for step in (1e-6, -1e-6):
                old = np.copy(x[at])
                x[at] += step
                ends.append((attention(*wide, **options) * weights).sum(axis=0 if by_column else None))
                x[at] = old
            slope[at] = (ends[0] - ends[1]) / 2e-6
        found.append(slope)
    return found


@pytest.mark.parametrize("bias", [None, (70, 45), (70, 1, 2)])
@pytest.mark.parametrize("first", [None, 0, 25])
@pytest.mark.parametrize("window", [None, 0, 7, 1000])
def test_blocks_of_queries(first: int | None, bias: tuple[int, ...] | None, window: int | None) -> None:
    """More queries than fit in one block, with a partly filled last block."""
    options = {"heads": 2, "causal": first is not None, "first": first or 0, "window": window}
    xs = arrays((4, 45), (4, 70), (2, 70), *([bias] if bias else []))
    (weights,) = arrays((2, 45), seed=1)
    value, found = gradients(xs, weights, **options)
    np.testing.assert_allclose(value, attention(*(x.astype(np.float64) for x in xs), **options), atol=2e-6)
    for got, want in zip(found, slopes(xs, weights, every=17, **options)):
        looked_at = ~np.isnan(want)
        np.testing.assert_allclose(got[looked_at], want[looked_at], atol=2e-5)


def test_blocks_of_keys() -> None:
    """More keys than fit in one block: values and gradients equal those of separate ops."""
    xs = arrays((6, 12), (6, 700), (4, 700))
    (weights,) = arrays((4, 12), seed=1)
    value, found = gradients(xs, weights)
    collection = dy.ParameterCollection()
    q, k, v = (collection.add_parameters(x.shape, init=x) for x in xs)
    y = v * dy.softmax(dy.transpose(k) * (q * 6**-0.5))
    dy.sum_elems(dy.cmult(y, dy.inputTensor(weights))).backward()
    np.testing.assert_allclose(value, y.npvalue(), atol=1e-6)
    for got, want in zip(found, (q, k, v)):
        np.testing.assert_allclose(got, want.grad_as_array(), atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("m", "n", "window"), [(700, 700, 5), (9, 700, 300), (600, 40, 3), (1, 500, 64)])
def test_windows_of_keys(m: int, n: int, window: int, causal: bool) -> None:
    """Windows that begin and end within blocks of keys: values and gradients equal those with a bias of -inf."""
    xs, first = arrays((6, m), (6, n), (4, n)), max(0, n - m)
    (weights,) = arrays((4, m), seed=1)
    value, found = gradients(xs, weights, window=window, causal=causal, first=first, heads=2)
    ahead = np.arange(n)[:, None] - (first + np.arange(m))
    hidden = (abs(ahead) > window) | (causal & (ahead > 0))
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0))
    want, slopes = gradients([*xs, bias], weights, heads=2)
    np.testing.assert_allclose(value, want, atol=1e-6)
    for a, b in zip(found, slopes):
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.parametrize("autobatch", [0, 1, 2])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 4), (True, 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_sentences_of_all_lengths(autobatch: int, causal: bool, window: int | None, dropout: float) -> None:
    """Sentences of all lengths run in one batch, with the same bits as alone."""
    config.set(autobatch=autobatch)
    collection = dy.ParameterCollection()
    W = [collection.add_parameters((8, 8), init=x / 4) for x in arrays((8, 8), (8, 8), (8, 8))]
    inputs = arrays(*((8, n) for n in LENGTHS), seed=2)

    def loss(which):
        for w in W:
            w.scale_gradient(0)
        dy.reset_random_seed(5)
        dy.renew_cg()
        found = []
        for x in (inputs[i] for i in which):
            q, k, v = (w * dy.inputTensor(x) for w in W)
            found.append(dy.scaled_dot_product_attention(q, k, v, 2, None, causal, 0, dropout, window=window))
        total = dy.esum([dy.squared_norm(y) for y in found])
        with profiling.measure() as profile:
            total.backward()
        calls = [row.calls for row in profile if row.op.startswith("scaled_dot") and not row.backward]
        return [y.npvalue() for y in found], [w.grad_as_array() for w in W], calls

    together, summed, calls = loss(range(len(LENGTHS)))
    assert calls == [len(LENGTHS) if autobatch == 0 else 1]
    if dropout == 0:
        single = [loss([i]) for i in range(len(LENGTHS))]
        for i, (values, _, _) in enumerate(single):
            np.testing.assert_allclose(together[i], values[0], atol=1e-6)
        for got, parts in zip(summed, zip(*(gradient for _, gradient, _ in single))):
            np.testing.assert_allclose(got, sum(parts), rtol=1e-4, atol=1e-4)
    config.set(autobatch=0)
    plain, of_plain, _ = loss(range(len(LENGTHS)))
    for a, b in zip([*together, *summed], [*plain, *of_plain]):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_large_scores() -> None:
    q, k, v = arrays((4, 40), (4, 300), (4, 300))
    value, found = gradients([q * 1e4, k * 1e4, v], np.ones((4, 40), np.float32))
    best = (k.T.astype(np.float64) @ q).argmax(0)
    np.testing.assert_allclose(value, v[:, best], rtol=1e-6)
    assert all(np.isfinite(x).all() for x in found)


@pytest.mark.parametrize("m", [2, 20])
def test_what_must_not_be_seen(m: int) -> None:
    """Keys with a bias of -inf do not count; a query without keys gets 0 and passes no gradient."""
    xs = arrays((4, m), (4, 300), (4, 300), (300, m))
    xs[3][xs[3] < -0.5] = -np.inf
    xs[3][:290, 0] = -np.inf
    xs[3][:, 1] = -np.inf
    (weights,) = arrays((4, m), seed=3)
    value, found = gradients(xs, weights, heads=2)
    with np.errstate(invalid="ignore"):
        want = attention(*(x.astype(np.float64) for x in xs), heads=2)
    np.testing.assert_allclose(value, want, atol=1e-6)
    assert (value[:, 1] == 0).all()
    assert (found[0][:, 1] == 0).all()
    assert all(np.isfinite(x).all() for x in found)
    assert (found[3][np.isinf(xs[3])] == 0).all()


def test_nan_is_seen() -> None:
    q, k, v = arrays((4, 3), (4, 5), (4, 5))
    k[0, 2] = np.nan
    y = dy.scaled_dot_product_attention(*map(dy.inputTensor, (q, k, v)))
    assert np.isnan(y.npvalue()).all()


def test_dropout_of_weights() -> None:
    """Dropout keeps the mean, backward uses the same draw as forward, and the same seed repeats the draw."""
    q, k, v = arrays((4, 50), (4, 400), (4, 400))
    dy.reset_random_seed(3)
    value, found = gradients([q, k, np.ones_like(v)], np.ones((4, 50), np.float32), heads=2, dropout=0.3)
    assert value.std() > 0
    assert abs(value.mean() - 1) < 0.02
    dy.reset_random_seed(3)
    again, same = gradients([q, k, np.ones_like(v)], np.ones((4, 50), np.float32), heads=2, dropout=0.3)
    np.testing.assert_array_equal(value, again)
    for a, b in zip(found, same):
        np.testing.assert_array_equal(a, b)
    # The result is linear in the values: their gradient times them is the sum of the result.
    np.testing.assert_allclose(found[2].sum(), value.sum(), rtol=1e-5)
    # A step along the gradient of q changes the sum of the result by the square of its length.
    step = 1e-2 / np.abs(found[0]).max()
    dy.reset_random_seed(3)
    after, _ = gradients([q + step * found[0], k, np.ones_like(v)], np.ones((4, 50), np.float32), heads=2, dropout=0.3)
    rise = (after.astype(np.float64).sum() - value.astype(np.float64).sum()) / step
    np.testing.assert_allclose(rise, (found[0].astype(np.float64) ** 2).sum(), rtol=0.05)


def test_one_memory_for_a_minibatch() -> None:
    """Keys without a batch are used by all batch elements of the queries, and get the sum of their gradients."""
    q, k, v = arrays((4, 3, 5), (4, 7), (4, 7))
    collection = dy.ParameterCollection()
    of_keys, of_values = (collection.add_parameters(x.shape, init=x) for x in (k, v))
    y = dy.scaled_dot_product_attention(dy.inputTensor(q, batched=True), of_keys, of_values, heads=2)
    assert y.dim() == ((4, 3), 5)
    together = y.npvalue()
    dy.sum_batches(dy.sum_elems(y)).backward()
    found = [p.grad_as_array() for p in (of_keys, of_values)]
    want = [0, 0]
    for b in range(5):
        value, parts = gradients([q[..., b], k, v], np.ones((4, 3), np.float32), heads=2)
        np.testing.assert_allclose(together[..., b], value, atol=1e-6)
        want = [a + part for a, part in zip(want, parts[1:])]
    for a, b in zip(found, want):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_one_argument_for_all() -> None:
    """One expression as queries, keys and values: its gradient is the sum of all three."""
    (x,) = arrays((4, 20))
    (weights,) = arrays((4, 20), seed=1)
    p = dy.ParameterCollection().add_parameters(x.shape, init=x)
    dy.sum_elems(dy.cmult(dy.scaled_dot_product_attention(p, p, p, heads=2), dy.inputTensor(weights))).backward()
    np.testing.assert_allclose(p.grad_as_array(), sum(slopes([x] * 3, weights, heads=2)), atol=2e-5)


def test_no_keys() -> None:
    y = dy.scaled_dot_product_attention(dy.ones((4, 2)), dy.zeros((4, 0)), dy.zeros((2, 0)))
    np.testing.assert_array_equal(y.npvalue(), np.zeros((2, 2)))


def test_described() -> None:
    found = describe("scaled_dot_product_attention")
    assert found["ragged"] and found["gradient"] is True  # noqa: PT018


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (((4, 2), (4, 3), (4, 2)), {}, dy.DimensionError, "k has 3 columns but v has 2"),
        (((4, 2), (6, 3), (4, 3)), {}, dy.DimensionError, "q has 4 rows but k has 6"),
        (((4, 2), (4, 3), (5, 3)), {"heads": 2}, dy.DimensionError, "v has 5 rows, which 2 heads do not divide"),
        (((4, 2, 1), (4, 3), (4, 3)), {}, dy.DimensionError, "must be matrices"),
        (((4, 2), (4, 3), (4, 3), (2, 3)), {}, dy.DimensionError, "bias must have 3 rows, a column or 2"),
        (((4, 2), (4, 3), (4, 3)), {"heads": 0}, ValueError, "heads must be from 1 to 4095, not 0"),
        (((4, 2), (4, 3), (4, 3)), {"heads": 4096}, ValueError, "heads must be from 1 to 4095, not 4096"),
        (((4, 2), (4, 3), (4, 3)), {"window": -1}, ValueError, "window must be from 0 to 524286, not -1"),
        (((4, 2), (4, 3), (4, 3)), {"window": 524287}, ValueError, "window must be from 0 to 524286, not 524287"),
        (((4, 2), (4, 3), (4, 3)), {"window": 1.5}, TypeError, "window"),
        (((4, 2), (4, 3), (4, 3)), {"first": -1}, ValueError, "first must be from 0 to 1073741824, not -1"),
        (((4, 2), (4, 3), (4, 3)), {"dropout": 1.5}, ValueError, "dropout must be a probability, not 1.5"),
        (((4, 2), (4, 3), (4, 3)), {"scale": float("nan")}, ValueError, "scale must be a number"),
        (((4, 2), (4, 3), (4, 3)), {"heads": 1.5}, TypeError, "heads"),
        (((4, 2), (4, 3), (4, 3)), {"heads": 2**40}, ValueError, "heads is 1099511627776, but no axis"),
    ],
)
def test_errors(arguments, options, error, message: str) -> None:
    xs = [dy.ones(shape) for shape in arguments]
    with pytest.raises(error, match=message):
        dy.scaled_dot_product_attention(*xs[:3], bias=xs[3] if len(xs) > 3 else None, **options)
