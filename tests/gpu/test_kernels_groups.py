"""Group kernels on the CPU: several calls as one launch, and products of different sizes; needs only g++."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from test_kernels_emulated import each_order, module, poisoned, pytestmark  # noqa: F401

GROUP_BYTES = 496 * 8


def group(*members: bytes) -> bytes:
    """The struct dy_group: what follows the parameters of the members is never read."""
    data = b"".join(members)
    return data + b"\xff" * (GROUP_BYTES - len(data))


def calls_of(*members: bytes) -> bytes:
    """A group of calls: where each begins, and their parameters."""
    starts = np.zeros(64, np.uint16)
    starts[: len(members)] = np.cumsum([16, *(len(m) // 8 for m in members[:-1])])
    return group(starts.tobytes(), *members)


def short_axes(*rows: tuple[int, int, int, int]) -> bytes:
    """Axes as a group has them: their number, then the size and the strides of each."""
    return struct.pack(f"{1 + 4 * len(rows)}Q", len(rows), *(x for row in rows for x in row))


def address(x: np.ndarray) -> int:
    return x.ctypes.data


@each_order
def test_softmax_of_several_lines(order: str) -> None:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(n).astype(np.float32) for n in (1, 70, 33, 128, 5)]
    ys = [poisoned(len(x)) for x in xs]
    calls = [struct.pack("8Q", 1, len(x), 1, address(x), 1, address(y), 0, 1) for x, y in zip(xs, ys)]
    module("groups").launch("grouped_softmax_forward", (2, 1, len(xs)), 64, [calls_of(*calls)], order=order)
    for x, y in zip(xs, ys):
        desired = np.exp(x.astype(np.float64) - x.max())
        np.testing.assert_allclose(y, desired / desired.sum(), rtol=1e-5)


@each_order
def test_sums_with_broadcasting(order: str) -> None:
    """A vector is added to the columns of matrices of different sizes: structs among the parameters."""
    rng = np.random.default_rng(1)
    shapes = [(3, 4), (1, 5), (5, 1), (2, 9)]  # columns, rows
    xs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    bs = [rng.standard_normal(s[1]).astype(np.float32) for s in shapes]
    ys = [poisoned(*s) for s in shapes]
    calls = [
        struct.pack("Q", x.size) + short_axes((x.shape[1], 1, 1, 1), (x.shape[0], x.shape[1], 0, x.shape[1]))
        + struct.pack("QQQ", address(x), address(b), address(y))
        for x, b, y in zip(xs, bs, ys)
    ]  # fmt: skip
    module("groups").launch("grouped_binary_forward_add", (3, 1, len(xs)), 32, [calls_of(*calls)], order=order)
    for x, b, y in zip(xs, bs, ys):
        np.testing.assert_array_equal(y, x + b)


@each_order
@pytest.mark.parametrize("block", [32, 96, 256, 512])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products_of_different_sizes(order: str, block: int, turned: tuple[int, int]) -> None:
    """Some results are written twice, and copies are among the members."""
    rng = np.random.default_rng(2)
    ta, tb = turned
    sizes = [(1, 1, 1), (40, 1, 70), (33, 5, 7), (3, 70, 2), (64, 64, 64), (5, 4, 100)]
    made, members = [], []
    for i, (m, n, k) in enumerate(sizes):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        beta, c = float(i % 2), rng.standard_normal((m, n)).astype(np.float32)
        stored = [np.asfortranarray(x) for x in (a.T if ta else a, b.T if tb else b)]
        y, also = (np.asfortranarray(x) for x in (c if beta else poisoned(m, n), poisoned(m, n)))
        lda, ldb = (x.shape[0] for x in stored)
        members.append(
            struct.pack(
                "QQQQ6I2f2I",
                *map(address, stored),
                address(y),
                address(also) if i % 3 else 0,
                m,
                n,
                k,
                lda,
                ldb,
                m,
                1.5,
                beta,
                ta,
                tb,
            )  # fmt: skip
        )
        made.append((stored, y, also if i % 3 else y, 1.5 * (a.astype(np.float64) @ b) + (c if beta else 0)))
    for n, twice in ((3, False), (700, True)):
        x, y, also = rng.standard_normal(n).astype(np.float32), poisoned(n), poisoned(n)
        to = (address(x), 0, address(y), address(also) if twice else 0)
        members.append(struct.pack("QQQQ6I2f2I", *to, n, 1, 0, n, 0, n, 1, 0, 0, 0))
        made.append((x, y, also if twice else y, x))
    module("groups").launch("multiply_group", (2, 1, len(members)), block, [group(*members)], order=order)
    for _, y, also, desired in made:
        np.testing.assert_allclose(y, desired, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(also, y)
