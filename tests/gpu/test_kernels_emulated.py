"""Single kernels on the CPU, compared with float64, with several orders of threads and blocks; needs only g++."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from arrays import all_equal
from emu_kernels import EmuModule, KernelError

from dynet_cy.kernels import kernels

ROOT = Path(__file__).resolve().parents[2]
ORDERS = ["", "reverse", "random:1", "random:2"]
GRIDS = [(1, 1, 32), (1000, 3, 64), (5000, 40, 128)]

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


def axes(*given: tuple[int, int, int, int]) -> bytes:
    """The struct dy_axes, from tuples of a size and the strides in three arrays."""
    padded = list(given) + [(0, 0, 0, 0)] * (8 - len(given))
    return struct.pack("I4x32Q", len(given), *(axis[k] for k in range(4) for axis in padded))


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


@each_order
@pytest.mark.parametrize(("n", "grid", "block"), GRIDS)
def test_scale_and_sum(base: EmuModule, order: str, n: int, grid: int, block: int) -> None:
    rng = np.random.default_rng(n)
    xs = [rng.standard_normal(n).astype(np.float32) for _ in range(3)]
    for acc in (0, 1):
        y = xs[1].copy() if acc else poisoned(n)
        base.launch("scale_floats", grid, block, [size(n), np.float32(2), xs[0], y, np.int32(acc)], order=order)
        np.testing.assert_array_equal(y, 2 * xs[0] + (xs[1] if acc else 0))
        y = xs[2].copy() if acc else poisoned(n)
        pointers = struct.pack("256Q", *[x.ctypes.data for x in xs], *[0] * 253)
        arguments = [size(n), pointers, np.uint32(3), np.float32(0.5), y, np.int32(acc)]
        base.launch("sum_pointers", grid, block, arguments, order=order)
        desired = 0.5 * np.sum(xs, axis=0, dtype=np.float64) + (xs[2] if acc else 0)
        np.testing.assert_allclose(y, desired, rtol=1e-5, atol=1e-6)


@each_order
@pytest.mark.parametrize("name", ["contract_by_threads", "contract_by_blocks"])
def test_expand_and_contract(base: EmuModule, order: str, name: str) -> None:
    """Sums over the middle axis of three, and back."""
    x = np.random.default_rng(1).standard_normal((5, 70, 3)).astype(np.float32)  # slowest axis first
    y = poisoned(5, 3)
    kept, reduced = axes((3, 1, 0, 0), (5, 210, 0, 0)), axes((70, 3, 0, 0))
    arguments = [size(15), size(70), kept, reduced, np.float32(2), x, y, np.int32(0)]
    base.launch(name, 4, 64, arguments, order=order)
    np.testing.assert_allclose(y, 2 * x.sum(1, dtype=np.float64), rtol=1e-5, atol=1e-5)
    back = x.copy()
    all_axes = axes((3, 1, 0, 0), (70, 0, 0, 0), (5, 3, 0, 0))
    base.launch("expand", 4, 64, [size(x.size), all_axes, np.float32(3), y, back, np.int32(1)], order=order)
    np.testing.assert_allclose(back, x + 3 * y[:, None, :], rtol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "exp", "logistic", "lgamma", "elu"])
@pytest.mark.parametrize(("n", "grid", "block"), GRIDS)
def test_unary(name: str, n: int, grid: int, block: int) -> None:
    functions = {
        "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
        "exp": (np.exp, np.exp),
        "logistic": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
        "elu": (lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), lambda x: np.where(x > 0, 1, 0.5 * np.exp(x))),
        "lgamma": (None, None),
    }
    value, slope = functions[name]
    if value is None:
        special = pytest.importorskip("scipy.special")
        value, slope = special.gammaln, special.digamma
    unary = module("unary")
    rng = np.random.default_rng(n)
    x, dy, dx = (rng.uniform(0.2, 3, n).astype(np.float32) for _ in range(3))
    y = poisoned(n)
    p0, p1 = np.float32(0.5), np.float32(0)
    for order in ORDERS[:2]:
        unary.launch(f"unary_forward_{name}", grid, block, [size(n), x, p0, p1, y], order=order)
        np.testing.assert_allclose(y, value(x.astype(np.float64)), rtol=2e-5, atol=2e-6)
        for acc in (0, 1):
            out = dx.copy()
            arguments = [size(n), x, y, dy, p0, p1, out, np.int32(acc)]
            unary.launch(f"unary_backward_{name}", grid, block, arguments, order=order)
            desired = dy * slope(x.astype(np.float64)) + (dx if acc else 0)
            np.testing.assert_allclose(out, desired, rtol=2e-4, atol=2e-5)


@each_order
def test_lookup(order: str) -> None:
    """Repeated rows are added in double precision: in order, or in parts in any order."""
    lookup = module("lookup")
    rng = np.random.default_rng(0)
    table = rng.standard_normal((11, 37)).astype(np.float32)
    items = rng.integers(0, 11, 50).astype(np.uint32)
    y = poisoned(50, 37)
    lookup.launch("lookup_forward", 3, 64, [size(50), size(37), table, items, y], order=order)
    np.testing.assert_array_equal(y, table[items])
    dy = rng.standard_normal((50, 37)).astype(np.float32)
    desired = table.astype(np.float64)
    np.add.at(desired, items, dy)
    grad = table.copy()
    lookup.launch("lookup_backward", 7, 32, [size(50), size(37), items, dy, grad], order=order)
    np.testing.assert_array_equal(grad, desired.astype(np.float32))
    grad = table.copy()
    lookup.launch("lookup_backward_unordered", 7, 32, [size(50), size(37), items, dy, grad], order=order)
    np.testing.assert_allclose(grad, desired, rtol=1e-5, atol=1e-5)


@each_order
@pytest.mark.parametrize(("batch", "n", "block"), [(1, 1, 32), (3, 7, 32), (5, 1000, 128)])
def test_pickneglogsoftmax(order: str, batch: int, n: int, block: int) -> None:
    softmax = module("softmax")
    rng = np.random.default_rng(n)
    x = (5 * rng.standard_normal((batch, n))).astype(np.float32)
    items = rng.integers(0, n, batch).astype(np.uint32)
    kept, y = poisoned(batch, 2), poisoned(batch)
    arguments = [size(batch), size(n), x, size(n), items, kept, y]
    softmax.launch("pickneglogsoftmax_forward", 2, block, arguments, order=order)
    wide = x.astype(np.float64)
    z = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    np.testing.assert_allclose(y, z - wide[np.arange(batch), items], rtol=1e-5, atol=1e-5)
    dy, dx = rng.standard_normal(batch).astype(np.float32), poisoned(batch, n)
    arguments = [size(batch), size(n), x, size(n), items, kept, dy, size(batch), dx, np.int32(0)]
    softmax.launch("pickneglogsoftmax_backward", 2, block, arguments, order=order)
    desired = np.exp(wide - z[:, None])
    desired[np.arange(batch), items] -= 1
    np.testing.assert_allclose(dx, desired * dy[:, None], rtol=1e-4, atol=1e-5)


CLIP = np.dtype(
    [("norm", "f8"), *((name, "u4") for name in ("done", "dropped", "clips", "skipped", "drops", "unused"))]
)
GROUP = np.dtype([("threshold", "f8"), ("first_sum", "u4"), ("sums", "u4"), ("own_norm", "u4"), ("unused", "u4", 3)])
CHOSEN = np.dtype([("scale", "f4"), ("lr", "f4"), ("eps_scale", "f4"), ("decoupled", "f4")])
SEGMENTS = np.array([[3, 5], [100, 300], [500, 1]], np.uint64)


@each_order
def test_updates(order: str) -> None:
    """The rule updates only the given segments, zeroes their gradients and applies decay after the step."""
    optim = module("optim")
    rng = np.random.default_rng(0)
    v, g, s = (rng.standard_normal(600).astype(np.float32) for _ in range(3))
    inside = np.zeros(600, bool)
    for at, n in SEGMENTS.astype(int):
        inside[at : at + n] = True
    hyper = struct.pack("8f", 0.1, 0.5, 0.9, 0.0, 1e-8, 1.0, 0.0, 0.01)
    v1, g1, s1 = v.copy(), g.copy(), s.copy()
    nothing = np.uint64(0)
    arguments = [SEGMENTS, np.uint32(3), hyper, v1, g1, s1, nothing, nothing, nothing, nothing]
    optim.launch("optim_momentum", (2, 2), 64, arguments, order=order)
    step = 0.9 * s.astype(np.float64) - 0.1 * 0.5 * g
    np.testing.assert_allclose(s1, np.where(inside, step, s), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(v1, np.where(inside, (v + step) * 0.99, v), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(g1, np.where(inside, 0, g))
    sums = np.full(4, np.nan)
    optim.launch("squares", (2, 2), 64, [SEGMENTS, np.uint32(3), g, sums], order=order)
    norm = np.linalg.norm(g[inside].astype(np.float64))
    assert sums.sum() == pytest.approx(norm**2, rel=1e-12)

    # With clipping, the device computes the factor of gradients.
    clip, chosen, group, totals = np.zeros((), CLIP), np.zeros(1, CHOSEN), np.zeros(1, GROUP), np.zeros(1)
    rates = np.array([[0.1, 1.0, 0.0]], np.float32)
    limits = struct.pack("d4I", 0.5, 1, 1, 0, 0)

    def choose(sums: np.ndarray) -> None:
        group["sums"] = len(sums)
        optim.launch("clip_groups", (1, 1), 64, [sums, group, rates, limits, totals, chosen, clip], order=order)

    for done, (threshold, factor, clips) in enumerate(((2 * norm, 0.5, 0), (norm / 4, 0.25, 1)), start=1):
        group["threshold"] = threshold
        choose(sums)
        assert chosen["scale"][0] == pytest.approx(factor, rel=1e-6)
        assert clip.item()[1:5] == (done, 0, clips, 0)
    v2, g2, s2 = v.copy(), g.copy(), s.copy()
    arguments = [SEGMENTS, np.uint32(3), hyper, v2, g2, s2, nothing, nothing, chosen, clip]
    optim.launch("optim_momentum", (2, 2), 64, arguments, order=order)
    np.testing.assert_allclose(s2, np.where(inside, 0.9 * s - 0.1 * 0.25 * g, s), rtol=1e-5, atol=1e-6)

    # A gradient that is not finite stops this update and all later ones.
    for skipped, sums in ((1, np.array([1.0, np.inf])), (2, np.array([1.0, 2.0])), (3, np.array([np.nan, 0]))):
        choose(sums)
        assert clip.item()[3:5] == (1, skipped)
        assert not np.isfinite(clip["norm"])
    v3, g3, s3 = v2.copy(), g.copy(), s2.copy()
    arguments = [SEGMENTS, np.uint32(3), hyper, v3, g3, s3, nothing, nothing, chosen, clip]
    optim.launch("optim_momentum", (2, 2), 64, arguments, order=order)
    optim.launch("decay_values", (2, 2), 64, [SEGMENTS, np.uint32(3), np.float32(0.5), v3, nothing, clip], order=order)
    optim.launch("axpby", (2, 2), 64, [SEGMENTS, np.uint32(3), np.float32(1), np.float32(1), g, v3, clip], order=order)
    for a, b in ((v3, v2), (g3, g), (s3, s2)):
        np.testing.assert_array_equal(a, b)
    arguments = [SEGMENTS, np.uint32(3), np.float32(0.5), v3, nothing, nothing]
    optim.launch("decay_values", (2, 2), 64, arguments, order=order)
    np.testing.assert_array_equal(v3, np.where(inside, v2 * np.float32(0.5), v2))


# Updates without a gradient: (state, rate, b1, b2, eps) -> step; the state is changed in place.
def idle_momentum(s: np.ndarray, lr: float, b1: float, b2: float, eps: float) -> np.ndarray:
    s[0] *= b1
    return s[0]


def idle_decay(s: np.ndarray, lr: float, b1: float, b2: float, eps: float) -> np.ndarray:
    s *= b1
    return 0 * s[0]


def idle_adam(s: np.ndarray, lr: float, b1: float, b2: float, eps: float) -> np.ndarray:
    s[0] *= b1
    s[1] *= b2
    return -lr * s[0] / (np.sqrt(s[1]) + eps)


def idle_amsgrad(s: np.ndarray, lr: float, b1: float, b2: float, eps: float) -> np.ndarray:
    s[0] *= b1
    s[1] *= b2
    s[2] = np.maximum(s[2], s[1])
    return -lr * s[0] / (np.sqrt(s[2]) + eps)


IDLE = {
    "momentum": (1, idle_momentum, 0.0),
    "adadelta": (2, idle_decay, 0.0),
    "rmsprop": (1, idle_decay, 0.0),
    "adam": (2, idle_adam, 0.999),
    "adam, a term for each update": (2, idle_adam, 0.8),
    "amsgrad": (3, idle_amsgrad, 0.9),
}


@each_order
@pytest.mark.parametrize("case", IDLE)
def test_lazy_rows(order: str, case: str) -> None:
    """Rows get all late updates, with the weight decay and rates that the device chose, except updates that it skipped;
    some rows are updated in between. Reading changes nothing."""
    states, idle, b2 = IDLE[case]
    rule = list(kernels.optim_states()).index(case.partition(",")[0])
    b1, eps, rows, n = 0.9, 1e-3, 9, 50
    lazy = module("lazy")
    rng = np.random.default_rng(1)
    table = rng.standard_normal((rows, n)).astype(np.float32)
    state = np.abs(rng.standard_normal((3, rows, n))).astype(np.float32)
    wanted, wanted_state = table.astype(np.float64), state.astype(np.float64)
    record, had = np.full(5000, np.nan), np.full(rows, 7, np.uint32)
    nothing = np.uint64(0)
    pointers = [state[k] if k < states else nothing for k in range(3)]
    constants = [np.int32(rule), np.float32(b1), np.float32(b2), np.float32(eps)]
    lazy.launch("lazy_begin", 2, 32, [record, had, size(rows), *constants, *pointers], order=order)
    assert not had.any()
    clip, chosen = np.zeros((), CLIP), np.zeros(1, CHOSEN)
    items = np.array([4, 1], np.uint32)

    def check() -> None:
        before = [x.copy() for x in (table, state, had)]
        y = poisoned(5, n)
        some = np.array([3, 4, 8, 1, 4], np.uint32)
        lazy.launch("lazy_read", 3, 64, [record, size(5), size(n), some, size(0), table, y], order=order)
        np.testing.assert_allclose(y, wanted[some], rtol=1e-5, atol=1e-6)
        lazy.launch("lazy_read", 3, 64, [record, size(5), size(n), nothing, size(2), table, y], order=order)
        np.testing.assert_allclose(y, wanted[2:7], rtol=1e-5, atol=1e-6)
        all_equal((table, state, had), before)

    check()
    for k in range(12):
        # In turn: constants of the host, constants chosen by the device, and an update that it skips.
        lr, decoupled, decay = 0.01 * (1 + k % 4), 0.02 * (k % 2), 0.01 * (k % 5)
        clip["drops"] = k % 3 == 2
        eps_scale = 0.5 + 0.1 * (k % 4) if case in ("adam, a term for each update", "amsgrad") else 1.0
        chosen[0] = (1, lr, eps_scale, decoupled)
        hyper = struct.pack("8f", *(x if k % 3 == 0 else 9 for x in (lr, 1, 9, 9, 9, eps_scale)), decoupled, decay)
        outcome = [nothing, nothing] if k % 3 == 0 else [chosen, clip]
        arguments = [record, size(2), size(n), items, size(0), table, np.int32(1), outcome[1]]
        lazy.launch("lazy_catch_up", 1, 64, arguments, order=order)
        for row in items:
            np.testing.assert_allclose(table[row], wanted[row], rtol=1e-5, atol=1e-6)
        lazy.launch("lazy_defer", (1, 1), 64, [record, hyper, *outcome], order=order)
        if k % 3 != 2:
            others = np.setdiff1d(np.arange(rows), items)
            s = wanted_state[:, others]
            step = idle(s, lr, np.float32(b1), np.float32(b2), np.float32(eps * eps_scale))
            wanted_state[:, others] = s
            wanted[others] = (wanted[others] * (1 - decoupled) + step) * (1 - decay)
        if k % 5 == 1:
            check()
    for first, end in ((0, 4), (4, rows)):
        arguments = [record, size(end - first), size(n), nothing, size(first), table, np.int32(0), nothing]
        lazy.launch("lazy_catch_up", 2, 32, arguments, order=order)
    np.testing.assert_allclose(table, wanted, rtol=1e-5, atol=1e-6)
    for k in range(states):
        np.testing.assert_allclose(state[k], wanted_state[k], rtol=1e-5, atol=1e-7)
    check()
    lazy.launch("lazy_begin", 2, 32, [record, had, size(rows), *constants, *pointers], order=order)
    check()


@each_order
def test_axpby(order: str) -> None:
    optim = module("optim")
    rng = np.random.default_rng(0)
    source, target = (rng.standard_normal(600).astype(np.float32) for _ in range(2))
    target[4] = np.nan
    inside = np.zeros(600, bool)
    for at, n in SEGMENTS.astype(int):
        inside[at : at + n] = True
    for a, b in ((0, 0.5), (0.75, 0.25)):
        found = target.copy()
        arguments = [SEGMENTS, np.uint32(3), np.float32(a), np.float32(b), source, found, np.uint64(0)]
        optim.launch("axpby", (2, 2), 64, arguments, order=order)
        desired = b * source if a == 0 else a * target + b * source
        np.testing.assert_allclose(found, np.where(inside, desired, target), rtol=1e-6, atol=1e-6)


@each_order
def test_gather_and_scatter_ranges(order: str) -> None:
    """Segments of a plane are gathered side by side, and scattered back."""
    optim = module("optim")
    plane = np.arange(600, dtype=np.float32)
    segments = np.array([[3, 5, 10], [100, 300, 15], [500, 1, 0]], np.uint64)
    buffer = poisoned(320)
    optim.launch("gather_ranges", (2, 2), 64, [segments, np.uint32(3), plane, buffer], order=order)
    desired, back = poisoned(320), poisoned(600)
    for at, n, to in segments.astype(int):
        desired[to : to + n] = plane[at : at + n]
    np.testing.assert_array_equal(buffer, desired)
    optim.launch("scatter_ranges", (2, 2), 64, [segments, np.uint32(3), buffer, back], order=order)
    inside = ~np.isnan(back)
    assert inside.sum() == 306
    np.testing.assert_array_equal(back[inside], plane[inside])


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
