"""Single kernels on the CPU, with several orders of threads and blocks; needs only g++.

These are kernels with uses that no op of the table has, or not alone. The others are compared with the CPU by the table
of ops, on a device or on the emulated driver: test_ops_gpu.py.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from emu_kernels import EmuModule, KernelError

ROOT = Path(__file__).resolve().parents[2]
ORDERS = ["", "reverse", "random:1", "random:2"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(
        "libasan" in os.environ.get("LD_PRELOAD", ""), reason="threads of kernels have their own stacks"
    ),
]
each_order = pytest.mark.parametrize("order", ORDERS)


def module(name: str) -> EmuModule:
    return EmuModule(ROOT / "cuda" / f"{name}.cu")


def poisoned(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def size(n: int) -> np.uint64:
    return np.uint64(n)


@pytest.fixture(scope="module")
def base() -> EmuModule:
    return module("base")


MOVE = np.dtype(
    [
        ("source", "u8"),
        ("to", "u8"),
        ("n", "u8"),
        ("next", "u4"),
        ("scale", "f4"),
        ("acc", "u1"),
        ("follower", "u1"),
        ("unused", "u2"),
        ("more", "u4"),
    ]
)


@each_order
def test_moves(base: EmuModule, order: str) -> None:
    """Copying, adding, zeroing, and several additions to one place."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(n).astype(np.float32) for n in (1, 300, 77, 77, 77)]
    ys = [poisoned(1), rng.standard_normal(300).astype(np.float32), poisoned(77), poisoned(9)]
    before = ys[1].copy()
    moves = np.zeros(6, MOVE)
    for k, (x, y, n, follows, acc, follower) in enumerate(
        [(0, 0, 1, 0, 0, 0), (1, 1, 300, 0, 1, 0), (2, 2, 77, 4, 0, 0), (3, 2, 77, 5, 1, 1), (4, 2, 77, 0, 1, 1)]
    ):
        moves[k] = (xs[x].ctypes.data, ys[y].ctypes.data, n, follows, k + 1, acc, follower, 0, 0)
    moves[5] = (0, ys[3].ctypes.data, 9, 0, 1, 0, 0, 0, 0)
    base.launch("move_floats", (2, 3), 64, [moves, np.uint32(6)], order=order)
    np.testing.assert_array_equal(ys[0], xs[0])
    np.testing.assert_array_equal(ys[1], before + 2 * xs[1])
    np.testing.assert_allclose(ys[2], 3.0 * xs[2] + 4.0 * xs[3] + 5.0 * xs[4], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ys[3], np.zeros(9))


# Updates without a gradient: (state, rate, b1, b2, eps) -> step; the state is changed in place.


NOWHERE = np.uint64(0)


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


@each_order
@pytest.mark.parametrize(
    ("inner", "length", "k", "block"),
    [(1, 5, 5, 32), (3, 100, 7, 32), (2, 70, 1, 128), (1, 700, 350, 128), (1, 33, 32, 32)],
)
@pytest.mark.parametrize("ignores", [0, 1])
def test_k_greatest(ignores: int, order: str, inner: int, length: int, k: int, block: int) -> None:
    """The k greatest keep their order; the first of equals wins, NaN is greatest or least; gradients of two results add
    up."""
    kernels, outer = module("order"), 2
    x = np.round(2 * np.random.default_rng(0).standard_normal((2, outer, length, inner))).astype(np.float32)
    x[0, 1, 3:5, 0] = np.nan
    x[1, 0, ::2] = -0.0
    x[1, 1, :, 0] = np.where(np.arange(length) % 3, -np.inf, np.inf)
    y = poisoned(2, outer, k, inner)
    where = np.zeros(y.shape, np.uint32)
    order_of = np.lexsort((-x, np.isnan(x) if ignores else ~np.isnan(x)), axis=2)  # stable
    desired = np.sort(order_of[:, :, :k], axis=2)
    arguments = [size(2 * outer * inner), size(inner), size(length), size(outer), size(k), np.int32(ignores)]
    arguments += [x, size(x[0].size), where, y]
    kernels.launch("kmax_forward", 3, block, arguments, order=order)
    np.testing.assert_array_equal(where, desired)
    np.testing.assert_array_equal(y, np.take_along_axis(x, desired, 2))
    dy, dx = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32), np.zeros(x[0].shape, np.float32)
    gradient = np.zeros(x.shape)
    np.put_along_axis(gradient, desired, dy, 2)
    arguments = [size(outer * inner), size(inner), size(length), size(outer), size(k), size(2), where, dy, dx]
    kernels.launch("sort_backward", 3, 32, arguments, order=order)
    np.testing.assert_allclose(dx, gradient.sum(0), rtol=1e-6)


@each_order
def test_axpby(order: str) -> None:
    """A target that is not read, as a is 0, may be NaN."""
    optim = module("optim")
    rng = np.random.default_rng(0)
    source, target = (rng.standard_normal(600).astype(np.float32) for _ in range(2))
    target[4] = np.nan
    segments, inside = np.array([[3, 5], [100, 300], [500, 1]], np.uint64), np.zeros(600, bool)
    for at, n in segments.astype(int):
        inside[at : at + n] = True
    for a, b in ((0, 0.5), (0.75, 0.25)):
        found = target.copy()
        arguments = [segments, np.uint32(3), np.float32(a), np.float32(b), source, found, np.uint64(0)]
        optim.launch("axpby", (2, 2), 64, arguments, order=order)
        desired = b * source if a == 0 else a * target + b * source
        np.testing.assert_allclose(found, np.where(inside, desired, target), rtol=1e-6, atol=1e-6)


BAD = """
#include "common.cuh"
extern "C" __global__ void early_return(float* x, int n) {
    __shared__ float s[64];
    if ((int)threadIdx.x >= n) return;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[n - 1 - threadIdx.x];
}
extern "C" __global__ void missing_barrier(float* x, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[n - 1 - threadIdx.x];
}
extern "C" __global__ void wrong_mask(float* x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xffff0000u, x[threadIdx.x], 1);
}
"""


def test_the_emulation_sees_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "bad.cu"
    path.write_text(BAD)
    shutil.copy(ROOT / "cuda" / "common.cuh", tmp_path)
    bad = EmuModule(path)
    x = np.arange(64, dtype=np.float32)
    with pytest.raises(KernelError, match="returned"):
        bad.launch("early_return", 1, 64, [x, np.int32(40)])
    with pytest.raises(KernelError, match="mask"):
        bad.launch("wrong_mask", 1, 32, [x])
    bad.launch("missing_barrier", 1, 64, [x, np.int32(64)])
    assert np.isnan(x).any(), "unwritten shared memory is NaN"
