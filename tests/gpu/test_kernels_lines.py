"""Kernels of reductions, norms and cells on the CPU, compared with float64, with a block or a thread per result."""

from __future__ import annotations

import numpy as np
import pytest
from test_kernels_emulated import axes, each_order, module, poisoned, pytestmark, size  # noqa: F401 - skips too

TEAMS = [(0, 3, 64), (1, 3, 32), (1, 7, 128)]
each_team = pytest.mark.parametrize(("blocks", "grid", "block"), TEAMS)
INNER, LENGTH, OUTER, BATCH = 2, 150, 3, 2
LINES = [size(INNER * OUTER * BATCH), size(INNER), size(LENGTH), size(OUTER)]
# The batch stride of an array of lines: the floats of one batch element.
STRIDE = size(INNER * LENGTH * OUTER)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lines(seed: int = 0) -> np.ndarray:
    """Random lines, slowest axis first: batch, outer, length, inner."""
    return numbers(BATCH, OUTER, LENGTH, INNER, seed=seed)


def agree(found: np.ndarray, desired: np.ndarray, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(found, desired, rtol=tol, atol=tol * (1 + np.abs(desired).max()))


@each_order
@each_team
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("weight", [1.0, 1 / LENGTH])
def test_norms_of_lines(weight: float, p: float, order: str, blocks: int, grid: int, block: int) -> None:
    """Norms of lines, and those with a mean in place of the sum."""
    norms, x, dy = module("vector_norm"), lines(), numbers(BATCH, OUTER, INNER, seed=1)
    wide = x.astype(np.float64)
    kept, reduced = axes((INNER, 1, 0, 0), (OUTER * BATCH, INNER * LENGTH, 0, 0)), axes((LENGTH, INNER, 0, 0))
    back = axes((INNER, 1, 0, 0), (LENGTH, 0, 0, 0), (OUTER * BATCH, INNER, 0, 0))
    y, dx, how = poisoned(*dy.shape), x.copy(), [np.float32(p), np.float32(weight), x, size(0)]
    arguments = [LINES[0], LINES[2], kept, reduced, *how, y, np.int32(blocks)]
    norms.launch("p_norm_forward", grid, block, arguments, order=order)
    desired = (weight * (abs(wide) ** p).sum(2)) ** (1 / p)
    agree(y, desired)
    arguments = [size(x.size), back, size(1), size(0), *how, y, dy, dx, np.int32(1)]
    norms.launch("p_norm_backward", grid, block, arguments, order=order)
    slopes = weight * np.sign(wide) * (abs(wide) / desired[:, :, None]) ** (p - 1)
    agree(dx, wide + dy[:, :, None] * slopes)


@each_order
@each_team
@pytest.mark.parametrize("ignores", [0, 1])
def test_extremes(ignores: int, order: str, blocks: int, grid: int, block: int) -> None:
    """The first of equal elements wins; a NaN is above all, or skipped."""
    along, x = module("along"), np.round(2 * lines())
    x[0, 1, 70:90, 1] = np.nan
    x[1, 2, :, 0] = -np.inf
    x[1, 1, :, 1] = np.nan
    for sign, best in ((1, np.argmax), (-1, np.argmin)):
        where, y, dx = np.zeros((BATCH, OUTER, INNER), np.uint32), poisoned(BATCH, OUTER, INNER), np.zeros_like(x)
        arguments = [*LINES, np.float32(sign), np.int32(ignores), x, STRIDE, where, y, np.int32(blocks)]
        along.launch("extreme_forward", grid, block, arguments, order=order)
        counted = np.where(np.isnan(x), -sign * np.inf, x) if ignores else x
        desired = best(counted, axis=2)
        np.testing.assert_array_equal(where, desired)
        np.testing.assert_array_equal(y, np.take_along_axis(counted, desired[:, :, None], 2)[:, :, 0])
        dy = numbers(BATCH, OUTER, INNER, seed=1)
        along.launch("extreme_backward", grid, block, [*LINES, size(1), where, dy, dx], order=order)
        gradient = np.zeros_like(x)
        np.put_along_axis(gradient, desired[:, :, None], dy[:, :, None], 2)
        np.testing.assert_array_equal(dx, gradient)


@each_order
@each_team
def test_sums_up_to_each(order: str, blocks: int, grid: int, block: int) -> None:
    along, x, y = module("along"), lines(), poisoned(BATCH, OUTER, LENGTH, INNER)
    one, none = size(1), size(0)
    arguments = [*LINES, one, none, np.int32(0), x, STRIDE, y, np.int32(0), np.int32(blocks)]
    along.launch("scan_lines", grid, block, arguments, order=order)
    agree(y, np.cumsum(x, 2, dtype=np.float64))
    # Backward, with one argument shared by two results.
    dx = lines(seed=2)[:1].copy()
    desired = dx[0] + np.cumsum(x[:, :, ::-1].sum(0, dtype=np.float64), 1)[:, ::-1]
    half = [size(INNER * OUTER), *LINES[1:], size(2), STRIDE, np.int32(1), x, STRIDE]
    along.launch("scan_lines", grid, block, [*half, dx, np.int32(1), np.int32(blocks)], order=order)
    agree(dx[0], desired)


@each_order
@pytest.mark.parametrize("how", [0, 1, 2, 3])
@pytest.mark.parametrize(("length", "count"), [(1, 1), (7, 7), (1024, 1024), (1025, 3), (2500, 2500), (5000, 40)])
def test_sort(length: int, count: int, how: int, order: str) -> None:
    """Equal elements keep their order, and NaN comes last, or first if `how` has the bit 2; the greatest comes first
    if it has the bit 1; from 1,025 elements on, with one launch for each merge."""
    tile, module_, rng = 1024, module("order"), np.random.default_rng(length)
    x = rng.integers(-50, 50, (2, length, 2)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    desired = np.argsort(np.where(np.isnan(x), np.inf if how < 2 else -np.inf, -x if how & 1 else x), 1, kind="stable")[
        :, :count
    ]
    where, y, places = np.zeros((2, count, 2), np.uint32), poisoned(2, count, 2), poisoned(2, count, 2)
    shape, chooser = [size(4), size(2), size(length), size(2), size(count)], [np.uint32(0), size(0)]
    for of_positions in (False, True):
        runs, others = poisoned(4, length, 2), poisoned(4, length, 2)
        to = [size(0), places] if of_positions else [where, y]
        arguments = [*shape, np.int32(how), *chooser, x, size(0), runs, *to]
        module_.launch("sort_tiles", 3, 64, arguments, order=order)
        width = tile
        while width < length:
            last = 2 * width >= length
            arguments = [*shape, np.int32(how), *chooser, size(width), runs, size(0) if last else others, *to]
            module_.launch("sort_merge", 3, 64, arguments, order=order)
            runs, others, width = others, runs, 2 * width
    np.testing.assert_array_equal(where, desired)
    np.testing.assert_array_equal(places.view(np.int32), desired)
    np.testing.assert_array_equal(y, np.take_along_axis(x, desired, 1))
    for uses in (1, 2):
        dx, dy = np.ones((2 // uses, length, 2), np.float32), numbers(2, count, 2)
        arguments = [size(4 // uses), *shape[1:3], size(2 // uses), *shape[4:], size(uses), where, dy, dx]
        module_.launch("sort_backward", 3, 64, arguments, order=order)
        slopes = np.zeros_like(x)
        np.put_along_axis(slopes, desired, dy, 1)
        agree(dx, 1 + slopes.reshape(uses, *dx.shape).sum(0))


MANY = 200_000


@pytest.mark.parametrize("kernel", ["softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "layer_norm"])
def test_sums_of_many_terms(kernel: str) -> None:
    """A thread that sums many terms is as exact as one that sums few: in float it is off by 1e-4."""
    x, one = np.zeros(MANY, np.float32), size(1)
    x[0] = 1
    wide = np.exp(x.astype(np.float64) - 1)
    p, log_p = wide / wide.sum(), x - 1 - np.log(wide.sum())
    line, y = [one, size(MANY), one], poisoned(MANY)
    softmax, by_threads = module("softmax"), np.int32(0)
    if kernel == "softmax":
        softmax.launch("softmax_forward", 1, 32, [*line, x, one, y, size(0), by_threads])
        desired = p
    elif kernel == "softmax_backward":
        share, dy = np.full(MANY, 1 / MANY, np.float32), np.full(MANY, 0.1, np.float32)
        dy[0] = 1
        arguments = [*line, x, share, size(0), dy, one, y, np.int32(0), by_threads]
        softmax.launch("softmax_backward", 1, 32, arguments)
        y, desired = y[1:] * MANY, np.full(MANY - 1, -0.9 / MANY)
        np.testing.assert_allclose(y, desired, atol=2e-8)  # the difference of two numbers near 0.1
        return
    elif kernel == "log_softmax":
        softmax.launch("log_softmax_forward", 1, 32, [*line, x, one, y, size(0), by_threads])
        desired = log_p
    elif kernel == "log_softmax_backward":
        dy = np.full(MANY, 0.1, np.float32)
        zeros = np.zeros(MANY, np.float32)
        arguments = [*line, x, zeros, size(0), dy, one, y, np.int32(0), by_threads]
        softmax.launch("log_softmax_backward", 1, 32, arguments)
        desired = np.full(MANY, dy[0] * (1.0 - MANY))
    else:
        x = np.tile(np.array([100, 100.1], np.float32), MANY // 2)
        saved, ones, zeros = poisoned(3), np.ones(1, np.float32), np.zeros(1, np.float32)
        arguments = [one, size(MANY), one, size(MANY), np.float32(1e-8), np.float32(0), x, size(MANY)]
        arguments += [ones, one, size(0), zeros, one, size(0), saved, y]
        module("norm").launch("layer_norm_forward", 1, 32, arguments)
        desired = normalized(x.astype(np.float64)[None])[0]
    np.testing.assert_allclose(y, desired, rtol=1e-4 if kernel == "layer_norm" else 2e-6)


@each_order
@each_team
def test_logsumexp_of_lines(order: str, blocks: int, grid: int, block: int) -> None:
    softmax, x, y = module("softmax"), 20 * lines(), poisoned(BATCH, OUTER, INNER)
    x[0, 0, 3:9, 0] = -np.inf
    x[0, 1, :, 0] = -np.inf
    x[1, 1, 5, 1] = np.inf
    saved = poisoned(BATCH, OUTER, INNER, 2)
    line, count = [LINES[0], LINES[2], LINES[1]], LINES[0]
    softmax.launch("logsumexp_forward", grid, block, [*line, x, count, y, saved, np.int32(blocks)], order=order)
    wide, dy, dx = x.astype(np.float64), numbers(BATCH, OUTER, INNER, seed=1), poisoned(*x.shape)
    top = np.where(np.isfinite(wide.max(2)), wide.max(2), 0)[:, :, None]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        desired = np.log(np.exp(wide - top).sum(2)) + top[:, :, 0]
        slopes = np.where(np.isfinite(wide), dy[:, :, None] * np.exp(wide - desired[:, :, None]), 0)
    np.testing.assert_allclose(y, desired, rtol=1e-5)
    arguments = [*line, x, y, saved, dy, count, dx, np.int32(0), np.int32(blocks)]
    softmax.launch("logsumexp_backward", grid, block, arguments, order=order)
    agree(dx, slopes)


@each_order
@pytest.mark.parametrize(("n", "block"), [(1, 32), (40, 32), (1000, 128)])
def test_squares_and_argmax(order: str, n: int, block: int) -> None:
    vector_norm, along, x = module("vector_norm"), module("along"), numbers(3, n)
    x[1] = 0
    wide, dy = x.astype(np.float64), numbers(3, seed=1)
    y, dx = poisoned(3), poisoned(3, n)
    vector_norm.launch("squared_norm_forward", 2, block, [size(3), size(n), x, size(n), y], order=order)
    agree(y, (wide**2).sum(1))
    arguments = [size(3), size(n), x, size(n), dy, size(3), dx, np.int32(0)]
    vector_norm.launch("squared_norm_backward", 2, block, arguments, order=order)
    agree(dx, 2 * wide * dy[:, None])
    y = poisoned(3, n)
    along.launch("argmax_forward", 2, block, [size(3), size(n), x, size(n), y], order=order)
    np.testing.assert_array_equal(y, np.eye(n, dtype=np.float32)[x.argmax(1)])


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-8)


@each_order
@pytest.mark.parametrize(("repeats", "m", "block"), [(1, 5, 32), (3, 70, 128)])
def test_layer_norm(order: str, repeats: int, m: int, block: int) -> None:
    """g has m elements that repeat, b has one for each element of x."""
    norm, batch, n = module("norm"), 4, repeats * m
    x, g, b, dy = numbers(batch, n), numbers(m, seed=1), numbers(n, seed=2), numbers(batch, n, seed=3)
    kept, y = poisoned(batch, 3), poisoned(batch, n)
    whole = [size(1), size(n)]  # one line
    arguments = [
        size(batch),
        size(n),
        *whole,
        np.float32(1e-8),
        np.float32(0),
        x,
        size(n),
        g,
        size(m),
        size(0),
        b,
        size(n),
        size(0),
        kept,
        y,
    ]
    norm.launch("layer_norm_forward", 3, block, arguments, order=order)
    wide = x.astype(np.float64)
    z, factors = normalized(wide), np.tile(g, repeats)
    agree(y, z * factors + b)
    dz = dy * factors.astype(np.float64)
    before, dx = numbers(batch, n, seed=4), numbers(batch, n, seed=4)
    arguments = [size(batch), size(n), *whole, x, size(n), g, size(m), size(0)]
    arguments += [*[size(0)] * 2, *[np.float32(1)] * 2, kept, dy, size(batch), dx, np.int32(1)]
    norm.launch("layer_norm_backward_x", 3, block, arguments, order=order)
    slope = dz - dz.mean(1, keepdims=True) - z * (dz * z).mean(1, keepdims=True)
    agree(dx, before + slope / wide.std(1, keepdims=True), 1e-4)
    for of, part, desired in ((x, m, (dy * z).reshape(batch, repeats, m).sum((0, 1))), (size(0), n, dy.sum(0))):
        dw = poisoned(part)
        arguments = [size(batch), size(n), *whole, size(part), of, size(n), kept, dy, size(1), dw, np.int32(0)]
        norm.launch("layer_norm_backward_weights", 3, block, arguments, order=order)
        agree(dw, desired)


@each_order
@pytest.mark.parametrize(("n", "block"), [(3, 32), (500, 128)])
def test_weight_norm(order: str, n: int, block: int) -> None:
    """Two g share one w, whose gradient is a sum."""
    norm, w, g, dy = module("norm"), numbers(n), numbers(2, seed=1), numbers(2, n, seed=2)
    y, dw, dg = poisoned(2, n), numbers(n, seed=3), poisoned(2)
    before, length = dw.copy(), np.linalg.norm(w.astype(np.float64))
    fixed = [w, size(0), g, size(1)]
    norm.launch("weight_norm_forward", 2, block, [size(2), size(n), *fixed, y], order=order)
    agree(y, g[:, None] * w / length)
    arguments = [size(2), size(n), np.int32(0), *fixed, dy, size(1), dw, np.int32(1)]
    norm.launch("weight_norm_backward", 2, block, arguments, order=order)
    along = dy @ w / length
    agree(dw, before + ((g / length)[:, None] * (dy - w * (along / length)[:, None])).sum(0))
    arguments = [size(2), size(n), np.int32(1), *fixed, dy, size(2), dg, np.int32(0)]
    norm.launch("weight_norm_backward", 2, block, arguments, order=order)
    agree(dg, along)


@each_order
def test_cells(order: str) -> None:
    """Three gates share one cell, whose gradient is a sum."""
    cells, batch, h = module("cells"), 3, 37
    sums, b, before = numbers(batch, 4, h), numbers(4, h, seed=1), numbers(h, seed=2)
    gates, c, y, tight = sums.copy(), poisoned(batch, h), poisoned(batch, h), [size(batch), size(h)]
    arguments = [size(batch), np.uint32(h), b, size(0), gates]
    cells.launch("lstm_gates_forward", 2, 64, arguments, order=order)
    i, f, o, g = (1 / (1 + np.exp(-(sums[:, k] + b[k] + int(k == 1)).astype(np.float64))) for k in range(4))
    g = np.tanh((sums[:, 3] + b[3]).astype(np.float64))
    agree(gates, np.stack([i, f, o, g], 1))
    wide, step = [before, size(0)], [gates, size(4 * h)]
    cells.launch("lstm_c_forward", 2, 64, [*tight, *wide, *step, c], order=order)
    agree(c, f * before + i * g)
    output = [np.uint64(gates.ctypes.data + 8 * h), size(4 * h)]  # skips two blocks of h floats
    cells.launch("lstm_h_forward", 2, 64, [*tight, c, size(h), *output, y], order=order)
    t = np.tanh(c.astype(np.float64))
    agree(y, o * t)
    d = numbers(batch, h, seed=3)
    dgates, dbefore, dc, dsums = poisoned(batch, 4, h), poisoned(h), poisoned(batch, h), poisoned(batch, 4, h)
    forgets = [np.uint64(gates.ctypes.data + 4 * h), size(4 * h)]
    cells.launch("forgotten_backward", 2, 64, [*tight, *forgets, d, size(1), dbefore, np.int32(0)], order=order)
    agree(dbefore, (d * f).sum(0))
    arguments = [*tight, *wide, *step, d, size(batch), dgates, np.int32(0)]
    cells.launch("lstm_c_backward_gates", 2, 64, arguments, order=order)
    zero = np.zeros((batch, h))
    agree(dgates, np.stack([d * g, d * before, zero, d * i], 1))
    arguments = [*tight, c, size(h), *output, d, size(batch), dc, np.int32(0)]
    cells.launch("lstm_h_backward_c", 2, 64, arguments, order=order)
    agree(dc, d * o * (1 - t * t))
    arguments = [*tight, size(4 * h), size(2 * h), c, size(h), d, size(batch), dgates, np.int32(1)]
    cells.launch("lstm_h_backward_gates", 2, 64, arguments, order=order)
    agree(dgates, np.stack([d * g, d * before, d * t, d * i], 1))
    dy = numbers(batch, 4, h, seed=4)
    arguments = [size(batch * 4 * h), size(4 * h), size(3 * h), size(h), gates, dy, dsums]
    cells.launch("gates_backward", 2, 64, arguments, order=order)
    agree(dsums, dy * np.stack([i * (1 - i), f * (1 - f), o * (1 - o), 1 - g * g], 1))


def test_draws() -> None:
    """Draws follow the test vectors of Philox for a counter and key of zeros."""
    random, y = module("random"), poisoned(4)
    seeds, items = np.zeros(2, np.uint64), np.zeros(3, np.uint32)
    one = [size(1), size(4), seeds, items, np.float32(0), np.float32(1), y]
    random.launch("random_uniform", 1, 32, one)
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint32)
    np.testing.assert_array_equal(y, (words >> 8).astype(np.float32) / 2**24)
    # The last two words that a batch element draws are mixed into the key.
    seeds[0], items[1:] = 0x0000000300000005, (5, 3)
    random.launch("random_uniform", 1, 32, one)
    np.testing.assert_array_equal(y, (words >> 8).astype(np.float32) / 2**24)
