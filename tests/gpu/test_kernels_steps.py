"""Kernels of steps of LSTMs on the CPU, products and cells in one launch, compared with float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from test_kernels_emulated import agree, each_order, module, numbers, poisoned, pytestmark, size  # noqa: F401 - skips too

PRODUCTS = np.dtype(
    [("a", "u8"), ("b", "u8"), ("stride_a", "i8"), ("stride_b", "i8")]
    + [(name, "u4") for name in ("lda", "ldb", "k", "n", "count", "acc", "first", "second")]
)
CELL = np.dtype([(name, "u8") for name in ("gates", "bias", "before", "c", "y")])
CELL_BACK = np.dtype(
    [(name, "u8") for name in ("gates", "before", "c", "dy", "dc", "dgates", "dbefore")]
    + [(name, "u1") for name in ("has_dc", "has_dgates", "acc")]
    + [("unused", "u1", 5)]
)
WORDS = 496  # of dy_group


class Case(NamedTuple):
    h: int
    k: int  # terms of the sums
    n: int  # columns of a product
    count: int  # products
    lines: int  # cells
    acc: bool
    few: bool  # the table is passed by value


CASES = [
    Case(5, 3, 1, 1, 1, False, True),
    Case(37, 41, 4, 1, 6, True, True),
    Case(16, 33, 7, 2, 14, False, False),
    Case(9, 100, 15, 2, 33, True, False),
    Case(24, 64, 40, 1, 40, False, False),
]
each_case = pytest.mark.parametrize("case", CASES, ids=[f"h{c.h}_n{c.n}" for c in CASES])


def addresses(x: np.ndarray, lines: int) -> np.ndarray:
    """Where each line of an array begins."""
    return x.ctypes.data + np.arange(lines, dtype=np.uint64) * np.uint64(x.strides[0])


def products(case: Case, a: np.ndarray, b: np.ndarray, first: list[int]) -> bytes:
    """The products of `count` matrices, each in Fortran's order, and as many columns of b."""
    x = np.zeros(1, PRODUCTS)
    x["a"], x["b"] = a.ctypes.data, b.ctypes.data
    x["stride_a"], x["stride_b"] = a[0].size, b[0].size
    x["lda"], x["ldb"], x["k"], x["n"] = a.shape[2], b.shape[2], case.k, case.n
    x["count"], x["acc"], x["first"], x["second"] = case.count, case.acc, first[0], first[-1]
    return x.tobytes()


def run(case: Case, kernel: str, made: bytes, table: np.ndarray, order: str) -> None:
    few = table.tobytes().ljust(8 * WORDS, b"\0")
    name = f"few_lstm_steps_{kernel}" if case.few else f"lstm_step_{kernel}"
    arguments = [made, size(case.lines), size(case.h), few if case.few else table]
    module("steps").launch(name, 3, 256, arguments, order=order)


def column_lines(case: Case) -> list[int]:
    """The first line of each product; the second product comes first, and some lines have no column."""
    return [case.lines - case.n] if case.count == 1 else [case.lines - case.n, 0]


@each_order
@each_case
def test_forward(order: str, case: Case) -> None:
    h, lines, first = case.h, case.lines, column_lines(case)
    W, x = numbers(case.count, case.k, 4 * h), numbers(case.count, case.n, case.k, seed=1)
    sums, bias, before = numbers(lines, 4, h, seed=2), numbers(4, h, seed=3), numbers(lines, h, seed=4)
    gates, c, y = sums.copy(), poisoned(lines, h), poisoned(lines, h)
    expected = sums.astype(np.float64)
    for z, line in enumerate(first):
        part = expected[line : line + case.n]
        product = (x[z].astype(np.float64) @ W[z]).reshape(case.n, 4, h)
        part[...] = part * case.acc + product
        if not case.acc:
            gates[line : line + case.n] = np.nan  # is not read
    table = np.zeros(lines, CELL)
    for name, array in (("gates", gates), ("before", before), ("c", c), ("y", y)):
        table[name] = addresses(array, lines)
    table["bias"] = bias.ctypes.data
    run(case, "forward", products(case, W, x, first), table, order)
    expected += bias
    expected[:, 1] += 1
    i, f, o = (1 / (1 + np.exp(-expected[:, k])) for k in range(3))
    g = np.tanh(expected[:, 3])
    agree(gates, np.stack([i, f, o, g], 1))
    agree(c, f * before + i * g)
    agree(y, o * np.tanh(f * before + i * g))


@each_order
@each_case
def test_backward(order: str, case: Case) -> None:
    h, lines, first = case.h, case.lines, column_lines(case)
    W, d = numbers(case.count, h, case.k), numbers(case.count, case.n, case.k, seed=1)
    gates, before = np.abs(numbers(lines, 4, h, seed=2)) % 1, numbers(lines, h, seed=3)
    c, dy, dc = numbers(lines, h, seed=4), numbers(lines, h, seed=5), numbers(lines, h, seed=6)
    dgates, dbefore = numbers(lines, 4, h, seed=7), numbers(lines, h, seed=8)
    dout, dstate, dgate = dy.astype(np.float64), dc.astype(np.float64), dgates.astype(np.float64)
    dprevious = dbefore.astype(np.float64)
    for z, line in enumerate(first):
        part = dout[line : line + case.n]
        part[...] = part * case.acc + d[z].astype(np.float64) @ W[z].T
        if not case.acc:
            dy[line : line + case.n] = np.nan
    covered = {line + j for line in first for j in range(case.n)}
    without = next((e for e in range(lines) if e not in covered), None)
    table = np.zeros(lines, CELL_BACK)
    whole = {"gates": gates, "before": before, "c": c, "dy": dy, "dc": dc, "dgates": dgates}
    for name, array in (*whole.items(), ("dbefore", dbefore)):
        table[name] = addresses(array, lines)
    table["has_dc"][::2], table["has_dgates"][::3], table["acc"][::2] = 1, 1, 1
    if without is not None:  # the output of this cell has no gradient
        table["dy"][without] = 0
        dout[without] = 0
    dstate[1::2] = 0
    dgate[[e for e in range(lines) if e % 3]] = 0
    dprevious[1::2] = 0
    run(case, "backward", products(case, W, d, first), table, order)
    i, f, o, g = gates.astype(np.float64).transpose(1, 0, 2)
    t = np.tanh(c.astype(np.float64))
    dstate += dout * o * (1 - t * t)
    dgate += np.stack([dstate * g, dstate * before, dout * t, dstate * i], 1)
    slopes = np.stack([i * (1 - i), f * (1 - f), o * (1 - o), 1 - g * g], 1)
    columns = sorted(covered)
    agree(dy[columns], dout[columns])
    agree(dc, dstate)
    agree(dgates, dgate * slopes)
    agree(dbefore, dprevious + dstate * f)
