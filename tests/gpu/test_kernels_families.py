"""Kernels of single families on the CPU, compared with float64: cases that the table of ops does not cover."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from test_kernels_emulated import each_order, module, poisoned, pytestmark, size  # noqa: F401 - pytestmark is used

NOWHERE = np.uint64(0)


def some(arrays: list[np.ndarray], first: int) -> bytes:
    """Some arguments of an op, those from number `first` on (dy_some)."""
    places = [x.ctypes.data for x in arrays] + [0] * (32 - len(arrays))
    once = sum((len(x) == 1) << k for k, x in enumerate(arrays))
    return struct.pack("32Q4I", *places, first, len(arrays), once, 0)


def listed(places: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The addresses of rows of an array."""
    return (places.ctypes.data + places.strides[0] * which).astype(np.uint64)


PLAIN, STARTS, LISTED, TURNED, STEPPED = range(5)


def places(kind: int, batch: int, words: int, axes: list[tuple[int, int, int]], offset: int = 0, pre: int = 0) -> bytes:
    """The struct dy_places: size, extent and stride of each axis."""
    columns = [[axis[k] for axis in axes] + [0] * (8 - len(axes)) for k in range(3)]
    return struct.pack("4I30Q", kind, len(axes), 1, words, batch, offset, pre, 0, 0, 0, *sum(columns, []))


@each_order
@pytest.mark.parametrize("grid", [(3, 2), (40, 1)])
@pytest.mark.parametrize("how", ["apart", "one", "listed"])
@pytest.mark.parametrize("kind", [STARTS, LISTED, STEPPED])
def test_select(kind: int, how: str, grid: tuple[int, int], order: str) -> None:
    """Selection along the middle axis of 3 x 7 x 5; gradients of shared arguments and of equal items are added."""
    rng = np.random.default_rng(0)
    pre, length, post, batch, count = 3, 7, 5, 12, 4
    which = {"apart": np.arange(batch), "one": np.zeros(batch, int), "listed": rng.integers(0, 4, batch)}[how]
    x = rng.standard_normal((which.max() + 1, post, length, pre)).astype(np.float32)  # slowest axis first
    dx = rng.standard_normal(x.shape).astype(np.float32)
    dy = rng.standard_normal((batch, post, count, pre)).astype(np.float32)
    axes = [(pre, pre, 1), (count, length, pre), (post, post, pre * length)]
    if kind == STARTS:
        items = rng.integers(0, length - count + 1, (batch, 1))
        chosen = items + np.arange(count)
        axes = [(pre * count, pre * length, 1), axes[2]]
    elif kind == LISTED:
        chosen = items = rng.integers(0, length, (batch, count))
    else:
        step = np.where(np.arange(batch) % 2, -2, 1)
        start = np.where(step < 0, 6, rng.integers(0, length - count + 1, batch))
        chosen = start[:, None] + step[:, None] * np.arange(count)
        full = [np.broadcast_to(np.array([0, 1, n]), (batch, 3)) for n in (pre, post)]
        items = np.concatenate([full[0], np.stack([start, step, np.full(batch, count)], 1), full[1]], 1)
    items = np.ascontiguousarray(items, np.int64).astype(np.uint32)
    n, stride = pre * count * post, size(0 if how == "one" else pre * length * post)
    start = [size(n), places(kind, batch, items.shape[1], axes, pre=pre), items]
    at = [stride, listed(x, which) if how == "listed" else NOWHERE]
    y = poisoned(*dy.shape)
    module("select").launch("select_read", grid[0], 64, [*start, x, *at, y], order=order)
    desired = dx.astype(np.float64)
    for b in range(batch):
        np.testing.assert_array_equal(y[b], x[which[b]][:, chosen[b]])
        for k in range(count):
            desired[which[b]][:, chosen[b, k]] += dy[b][:, k]
    at = [stride, listed(dx, which) if how == "listed" else NOWHERE]
    module("select").launch("select_add", grid, 32, [*start, dy, size(n), dx, *at], order=order)
    np.testing.assert_allclose(dx, desired, rtol=1e-5, atol=1e-5)


@each_order
def test_parts(order: str) -> None:
    """Three arguments joined along the middle axis: one per batch element, one for all, and listed with repeats."""
    rng = np.random.default_rng(1)
    batch, post, pre, lengths = 6, 4, 2, (3, 1, 5)
    which = [np.arange(batch), np.zeros(batch, int), np.array([1, 0, 1, 1, 2, 0])]
    xs = [rng.standard_normal((w.max() + 1, post, n * pre)).astype(np.float32) for w, n in zip(which, lengths)]
    column, y = pre * sum(lengths), poisoned(batch, post, pre * sum(lengths))
    addresses = listed(xs[2], which[2])
    starts = [0, 6, 8]
    strides = [post * 6, 0, 0]
    table = b"".join(
        struct.pack("5Q", x.ctypes.data, stride, addresses.ctypes.data if k == 2 else 0, start, x.shape[2])
        for k, (x, stride, start) in enumerate(zip(xs, strides, starts))
    )
    table += bytes(29 * 40)
    arguments = [size(batch), size(post), size(column), table, np.uint32(3), y]
    module("shape").launch("parts_forward", (2, 2), 32, arguments, order=order)
    desired = np.concatenate([x[w] for x, w in zip(xs, which)], 2)
    np.testing.assert_array_equal(y, desired)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    for k, acc in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 1)):
        m = xs[k].shape[2]
        dx = rng.standard_normal(xs[k].shape).astype(np.float32)
        wanted = dx.astype(np.float64) if acc else np.zeros(dx.shape)
        np.add.at(wanted, which[k], dy[:, :, starts[k] : starts[k] + m])
        addresses = listed(dx, which[2])
        axes = [(m, column, 1), (post, post, column)]
        arguments = [size(m * post), places(PLAIN, batch, 0, axes, offset=starts[k]), NOWHERE, dy, size(post * column)]
        arguments += [dx, size(strides[k]), addresses if k == 2 else NOWHERE, np.int32(acc)]
        module("select").launch("select_read_back", (4, 2), 32, arguments, order=order)
        np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=1e-5)


@each_order
@pytest.mark.parametrize(("m", "n", "count"), [(1, 5, 2), (40, 70, 3), (64, 32, 1)])
def test_turn(m: int, n: int, count: int, order: str) -> None:
    rng = np.random.default_rng(m)
    x = rng.standard_normal((count, n, m)).astype(np.float32)
    y = rng.standard_normal((count, m, n)).astype(np.float32)
    desired = y + x.transpose(0, 2, 1)
    arguments = [size(m), size(n), size(count), x, size(m * n), y, np.int32(1)]
    module("shape").launch("turn_forward", 3, 64, arguments, order=order)
    np.testing.assert_array_equal(y, desired)
    arguments = [size(m), size(n), size(count), x, size(0), y, np.int32(0)]
    module("shape").launch("turn_forward", 3, 256, arguments, order=order)
    np.testing.assert_array_equal(y, np.broadcast_to(x[0].T, y.shape))


@each_order
@pytest.mark.parametrize(("n", "step", "outer", "shared"), [(5, 1, 4, 1), (300, 1, 2, 2), (9, 40, 2, 1), (6, 7, 2, 3)])
@pytest.mark.parametrize("blocks", [1, 0])
def test_softmax(blocks: int, n: int, step: int, outer: int, shared: int, order: str) -> None:
    """Softmax along the middle of three axes; `shared` batch elements share one x."""
    rng = np.random.default_rng(n)
    x = (20 * rng.standard_normal((outer, n, step))).astype(np.float32)
    dy = rng.standard_normal((shared, outer, n, step)).astype(np.float32)
    y, own = poisoned(*dy.shape), outer * step
    lines = [size(own * shared), size(n), size(step)]
    block = 64
    softmax = module("softmax")
    softmax.launch("softmax_forward", 3, block, [*lines, x, size(own), y, size(0), np.int32(blocks)], order=order)
    wide = x.astype(np.float64)
    wide = np.exp(wide - wide.max(1, keepdims=True))
    p = np.broadcast_to(wide / wide.sum(1, keepdims=True), dy.shape)
    np.testing.assert_allclose(y, p, rtol=2e-5, atol=1e-7)
    slope = (p * (dy - (p * dy).sum(2, keepdims=True))).sum(0)
    for acc in (0, 1):
        dx = rng.standard_normal(x.shape).astype(np.float32)
        desired = slope + (dx if acc else 0)
        arguments = [*lines, x, y, size(0), dy, size(own), dx, np.int32(acc), np.int32(blocks)]
        softmax.launch("softmax_backward", 3, block, arguments, order=order)
        np.testing.assert_allclose(dx, desired, rtol=1e-4, atol=1e-5)


def sparsemax(x: np.ndarray) -> np.ndarray:
    """Sparsemax by sorting, in float64."""
    z = -np.sort(-x.astype(np.float64))
    sums = np.cumsum(z) - 1
    k = np.nonzero(z * np.arange(1, len(z) + 1) > sums)[0][-1]
    return np.maximum(x - sums[k] / (k + 1), 0)


@each_order
@pytest.mark.parametrize("scale", [0.001, 0.1, 1, 30])
@pytest.mark.parametrize("n", [1, 3, 1000])
def test_sparsemax(n: int, scale: float, order: str) -> None:
    """Supports from one element to all; equal elements; elements far from zero."""
    rng = np.random.default_rng(n)
    x = np.stack([scale * rng.standard_normal(n), np.full(n, scale), 100 + scale * rng.standard_normal(n)])
    x = x.astype(np.float32)
    y = poisoned(3, n)
    module("softmax").launch("sparsemax_forward", 2, 64, [size(3), size(n), x, size(3), y], order=order)
    np.testing.assert_allclose(y, np.stack([sparsemax(line) for line in x]), rtol=1e-4, atol=2e-5)


@each_order
def test_greatest_and_log_sum_of_many(order: str) -> None:
    """Two launches; some arguments are shared by the batch; infinities and NaN; the first of equals wins."""
    rng = np.random.default_rng(2)
    batch, n = 3, 50
    xs = [rng.integers(-3, 4, (1 if k % 3 == 0 else batch, n)).astype(np.float32) for k in range(5)]
    for x in xs:
        x[:, 0] = -np.inf
        x[:, 1] = -np.inf if x is not xs[4] else 2
    xs[1][1, 2] = np.inf
    special = [x.copy() for x in xs]
    special[2][1, 3] = np.nan
    special[1][1, 4] = np.nan
    best, total, winner = poisoned(batch, n), poisoned(batch, n), np.zeros((batch, n), np.uint32)
    saved = poisoned(2, batch, n)
    for first, part in ((0, slice(0, 3)), (3, slice(3, 5))):
        head = [size(batch * n), size(n), some(special[part], first)]
        module("many").launch("emax_forward", 2, 32, [*head, winner, best], order=order)
        module("softmax").launch("logsumexp_of_list_forward", 2, 32, [*head, saved, total], order=order)
    wide = np.stack([np.broadcast_to(x, (batch, n)) for x in special]).astype(np.float64)
    desired = wide.max(0)
    np.testing.assert_array_equal(best, desired)
    np.testing.assert_array_equal(winner, np.where(np.isnan(desired), 0xFFFFFFFF, wide.argmax(0)))
    with np.errstate(invalid="ignore"):
        desired = np.logaddexp.reduce(wide, 0)
    np.testing.assert_allclose(total, desired, rtol=1e-5, atol=1e-5)
    dy = rng.standard_normal((batch, n)).astype(np.float32)
    dx = rng.standard_normal((1, n)).astype(np.float32)
    desired = dx + np.where(winner == 3, dy, 0).sum(0)
    arguments = [size(batch * n), size(n), np.uint32(3), winner, dy, dx, np.int32(1)]
    module("many").launch("emax_backward", 2, 32, arguments, order=order)
    np.testing.assert_allclose(dx, desired, rtol=1e-5, atol=1e-5)


@each_order
@pytest.mark.parametrize("n", [1, 2, 5, 37])
def test_invert(n: int, order: str) -> None:
    """Zeros on the diagonal, negative determinants, singular matrices, and one x for several results."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((4, n, n)).astype(np.float32)
    x[0] = 3 * np.eye(n, dtype=np.float32)[::-1]
    x[3] = 0 if n == 1 else x[1][:, :1]
    y, work, logdet = poisoned(4, n, n), poisoned(8 * n), poisoned(4)
    inverse = module("inverse")
    inverse.launch("invert", 3, 64, [size(4), size(n), x, size(n * n), y, work, logdet], order=order)
    signs, logs = np.linalg.slogdet(x[:3].astype(np.float64))
    np.testing.assert_allclose(y[:3], np.linalg.inv(x[:3].astype(np.float64)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(logdet[:3], np.where(signs > 0, logs, np.nan), rtol=1e-4, atol=1e-4)
    if n <= 2:  # otherwise rounding may leave small pivots
        assert np.isnan(y[3]).all()
        assert logdet[3] == -np.inf
    dy = rng.standard_normal(3).astype(np.float32)
    grad = dy[:, None, None] * y[:3].transpose(0, 2, 1).astype(np.float64)
    for elements in (3, 1):
        dx = rng.standard_normal((elements, n, n)).astype(np.float32)
        desired = dx + (grad if elements == 3 else grad.sum(0))
        inverse.launch(
            "logdet_backward", 2, 32, [size(3), size(n), y, dy, size(elements), dx, np.int32(1)], order=order
        )
        np.testing.assert_allclose(dx, desired, rtol=1e-4, atol=1e-4)
    again = poisoned(2, n, n)
    inverse.launch("invert", 1, 32, [size(2), size(n), x, size(0), again, work, NOWHERE], order=order)
    np.testing.assert_allclose(again, np.linalg.inv(x[:1]).repeat(2, 0), rtol=1e-5, atol=1e-6)


def bounded_softmax(x: np.ndarray, bound: np.ndarray) -> np.ndarray:
    free = np.ones(len(x), bool)
    while True:
        e = np.where(free, np.exp(x - x[free].max()) if free.any() else 0, 0)
        p = np.where(free, (1 - bound[~free].sum()) * e / max(e.sum(), 1e-300), bound)
        if not (free & (p > bound)).any():
            return p
        free &= p <= bound


@each_order
def test_constrained_softmax(order: str) -> None:
    """Many iterations; bounds for each batch element or for all; bounds that are never reached or too small."""
    rng = np.random.default_rng(3)
    batch, n = 4, 70
    x = (3 * rng.standard_normal((batch, n))).astype(np.float32)
    bound = rng.uniform(0.01, 0.1, (batch, n)).astype(np.float32)
    bound[2], bound[3] = 1, 0.001
    for stride in (n, 0):
        used = bound if stride else bound[:1].repeat(batch, 0)
        p, kept = poisoned(batch, n), poisoned(batch, n)
        arguments = [size(batch), size(n), x, size(n), bound, size(stride), kept, p]
        module("constrained").launch("constrained_forward", 3, 32, arguments, order=order)
        for b in range(batch):
            desired = bounded_softmax(x[b].astype(np.float64), used[b].astype(np.float64))
            np.testing.assert_allclose(p[b], desired, rtol=1e-4, atol=1e-6)
        assert 0 < (kept == -1).sum() < kept.size
        dy = rng.standard_normal((batch, n)).astype(np.float32)
        at_bound = kept == -1
        mean = np.where(at_bound, 0, kept.astype(np.float64) * dy).sum(1, keepdims=True)
        wanted = [np.where(at_bound, 0, p * (dy - mean)), np.where(at_bound, dy - mean, 0)]
        for i in range(2):
            dx = rng.standard_normal((batch if stride else 1, n)).astype(np.float32)
            desired = dx + (wanted[i] if stride else wanted[i].sum(0))
            arguments = [size(batch), size(n), np.int32(i), kept, p, dy, size(len(dx)), dx]
            module("constrained").launch("constrained_backward", 3, 32, arguments, order=order)
            np.testing.assert_allclose(dx, desired, rtol=1e-4, atol=1e-5)


@each_order
def test_losses(order: str) -> None:
    """Sums of more numbers than a block has threads; for a stride of 0, the gradient is summed over the batch."""
    rng = np.random.default_rng(4)
    batch, n, c = 3, 300, 0.7
    a = rng.uniform(0.1, 0.9, (1, n)).astype(np.float32)
    b = rng.uniform(0.1, 0.9, (batch, n)).astype(np.float32)
    u, v = a.astype(np.float64), b.astype(np.float64)
    b[:, :2], v[:, :2] = 3, 3  # beyond c
    d = u - v
    rows = {
        "squared_difference": (d * d, 2 * d, -2 * d),
        "abs_difference": (abs(d), np.sign(d), -np.sign(d)),
        "binary_log_loss": (
            -v * np.log(u) - (1 - v) * np.log1p(-u),
            (u - v) / (u * (1 - u)),
            np.log1p(-u) - np.log(u) + 0 * v,
        ),
        "huber": (
            np.where(abs(d) < c, d * d / 2, c * (abs(d) - c / 2)),
            np.clip(d, -c, c),
            -np.clip(d, -c, c),
        ),
    }
    dy = rng.standard_normal(batch).astype(np.float32)
    losses = module("losses")
    for name, (value, by_a, by_b) in rows.items():
        y = poisoned(batch)
        head = [size(batch), size(n), np.float32(c), a, size(0), b, size(n)]
        losses.launch(f"pair_forward_{name}", 2, 64, [*head, y], order=order)
        np.testing.assert_allclose(y, value.sum(1), rtol=1e-4)
        for acc in (0, 1):
            for side, wanted in ((0, (dy[:, None] * by_a).sum(0, keepdims=True)), (1, dy[:, None] * by_b)):
                dx = rng.standard_normal(wanted.shape).astype(np.float32)
                desired = wanted + (dx if acc else 0)
                arguments = [*head, dy, dx, size(len(dx)), np.int32(acc)]
                losses.launch(f"pair_backward_{side}_{name}", 2, 64, arguments, order=order)
                np.testing.assert_allclose(dx, desired, rtol=1e-4, atol=1e-4)
