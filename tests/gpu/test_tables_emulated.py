"""The emulated driver checks tables of addresses: right ones run, and each kind of mistake is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from emulated_device import FLOATS, WORDS, Device, found, fused_tanh, needs_driver, run_jobs

pytestmark = needs_driver

MOVE = np.dtype(
    [("source", "u8"), ("to", "u8"), ("n", "u8"), ("next", "u4"), ("scale", "f4"), ("acc", "u1"), ("follower", "u1"),
     ("unused", "u2"), ("period", "u4")]
)  # fmt: skip
CELL = np.dtype([(name, "u8") for name in ("gates", "bias", "before", "c", "y")])
STEP = np.dtype(
    [(name, "u8") for name in ("a", "b", "stride_a", "stride_b")]
    + [(name, "u4") for name in ("lda", "ldb", "k", "n", "count", "acc", "first", "second")]
)
PRODUCT = np.dtype(
    [(name, "u8") for name in ("a", "b", "c", "also")] + [(name, "u4") for name in ("m", "n", "k", "lda", "ldb", "ldc")]
    + [("alpha", "f4"), ("beta", "f4"), ("ta", "u4"), ("tb", "u4")]
)  # fmt: skip
FUSED = fused_tanh()


def moves(d: Device, *rows: tuple[int, int, int, int, int]) -> list[bytes]:
    """Parameters of a launch of moves (source, to, n, next, follower), as indices of floats."""
    table = np.zeros(len(rows), MOVE)
    for x, (source, to, n, following, follower) in zip(table, rows):
        x["source"], x["to"], x["n"] = d.at(source), d.at(to), n
        x["next"], x["follower"], x["scale"] = following, follower, 1
    return [np.uint32(len(rows)).tobytes(), table.tobytes().ljust(8 * WORDS, b"\0")]


def cells(d: Device, *rows: tuple[int, int, int, int, int]) -> list[bytes]:
    """Parameters of cells with four numbers: gates, bias, state before, state, output."""
    table = np.zeros(len(rows), CELL)
    for x, row in zip(table, rows):
        for name, i in zip(CELL.names or (), row):
            x[name] = d.at(i)
    return [np.uint64(4 * len(rows)).tobytes(), np.uint64(4).tobytes(), table.tobytes().ljust(8 * WORDS, b"\0")]


def steps(d: Device, *rows: tuple[int, int, int, int, int], a: int = 300, b: int = 400, n: int = 1) -> list[bytes]:
    """Parameters of such cells with a product of matrices of 16 x 2 and 2 x n numbers, for the first n of them."""
    product = np.zeros(1, STEP)
    product["a"], product["b"] = d.at(a), d.at(b)
    product["lda"], product["ldb"], product["k"], product["n"], product["count"] = 16, 2, 2, n, 1
    elements, h, table = cells(d, *rows)
    return [product.tobytes(), np.uint64(len(rows)).tobytes(), h, table]


def products(d: Device, *rows: tuple[int, int, int]) -> list[bytes]:
    """Parameters of products of matrices of 2 x 3 and 3 x 2 numbers."""
    table = np.zeros(len(rows), PRODUCT)
    for x, (a, b, c) in zip(table, rows):
        x["a"], x["b"], x["c"] = d.at(a), d.at(b), d.at(c)
        x["m"], x["n"], x["k"], x["lda"], x["ldb"], x["ldc"], x["alpha"] = 2, 2, 3, 2, 3, 2, 1
    return [table.tobytes().ljust(8 * WORDS, b"\0")]


def fused(d: Device, *rows: tuple[int, int, int], values: int = 0) -> list[bytes]:
    """Parameters of the backward kernel of a tanh of four numbers: argument, its gradient, that of the result."""
    table = [d.at(values), 0]
    for x, dx, dy in rows:
        table += [d.at(x), d.at(dx), d.at(dy) + 1]
    words = np.array(table, np.uint64).tobytes().ljust(8 * WORDS, b"\0")
    return [np.uint64(4 * len(rows)).tobytes(), np.uint64(4).tobytes(), words]


def update(d: Device, *rows: tuple[int, int]) -> list[bytes]:
    """Parameters of a step of a trainer over ranges (begin, length) of values and of gradients of 256 numbers each."""
    table = d.allocate(4 * len(rows))
    d.send(table, np.array(rows, np.uint64).tobytes())
    addresses = [np.uint64(x).tobytes() for x in (d.allocate(256), d.allocate(256), 0, 0, 0, 0, 0)]
    return [np.uint64(table).tobytes(), np.uint32(len(rows)).tobytes(), bytes(32), *addresses]


def gathered(d: Device, *rows: tuple[int, int, int]) -> list[bytes]:
    """Parameters of copies of ranges (begin, length, where in the buffer) to a buffer of 256 numbers."""
    table = d.allocate(6 * len(rows))
    d.send(table, np.array(rows, np.uint64).tobytes())
    addresses = [np.uint64(x).tobytes() for x in (d.base, d.allocate(256))]
    return [np.uint64(table).tobytes(), np.uint32(len(rows)).tobytes(), *addresses]


OUTSIDE = FLOATS - 2  # with more than two numbers
Job = tuple[str, str, Callable[[Device], list[bytes]], str]


def jobs(
    family: str, kernel: str, made: Callable[..., list[bytes]], cases: dict[str, tuple[Any, ...]]
) -> dict[str, Job]:
    """Jobs by name: the family, the kernel, its parameters, and what the error says.

    Args:
        made: makes the parameters of the rows of a table.
        cases: by name, the rows, what the error says, and what else `made` takes.
    """
    return {
        name: (family, kernel, partial(lambda d, rows, more: made(d, *rows, **more), rows=rows, more=dict(more)), error)
        for name, (rows, error, *more) in cases.items()
    }


CELL_OF_STEP = (0, 200, 64, 80, 90)
JOBS: dict[str, Job] = {
    **jobs("base", "move_few", moves, {
        "moves": ([(0, 100, 9, 0, 0), (0, 120, 9, 3, 0), (40, 120, 9, 0, 1)], ""),
        "moves_from_outside": ([(OUTSIDE, 100, 9, 0, 0)], "line 0 of its table reads"),
        "moves_to_outside": ([(0, OUTSIDE, 9, 0, 0)], "line 0 of its table writes"),
        "moves_to_one_place": ([(0, 100, 9, 0, 0), (50, 108, 9, 0, 0)], "write to the same memory"),
        "moves_of_moved": ([(0, 100, 9, 0, 0), (104, 200, 9, 0, 0)], "line 1 of its table reads what line 0 writes"),
        "moves_elsewhere": ([(0, 100, 9, 2, 0), (0, 120, 9, 0, 1)], "no memory"),
    }),
    "moves_without_table": (
        "base", "move_floats", lambda d: [np.uint64(8).tobytes(), np.uint32(3).tobytes()],
        "its table is not in device memory",
    ),
    **jobs("cells", "few_lstm_cells_forward", cells, {
        "cells": ([(0, 200, 64, 80, 90), (16, 200, 64, 84, 94)], ""),
        "cells_outside": ([(0, 200, OUTSIDE, 80, 90)], "line 0 of its table reads 4 floats"),
        "cells_in_turn": (
            [(0, 200, 64, 80, 90), (16, 200, 80, 84, 94)], "line 1 of its table reads what line 0 writes"
        ),
    }),
    **jobs(FUSED, "few_fused", fused, {
        "fused": ([(20, 40, 60), (24, 44, 60)], ""),
        "fused_outside": ([(20, OUTSIDE, 60)], "line 0 of its table writes 4 floats"),
        "fused_values_outside": ([(20, 40, 60)], "line 0 of its table reads 4 floats", ("values", OUTSIDE)),
        "fused_to_one_place": (
            [(20, 40, 60), (24, 42, 64)], "lines 0 and 1 of its table write to the same memory"
        ),
        "fused_in_turn": ([(20, 40, 60), (40, 48, 64)], "line 1 of its table reads what line 0 writes"),
    }),
    "fused_without_table": (
        FUSED, "fused", lambda d: [np.uint64(x).tobytes() for x in (4, 4, 8)], "its table is not in device memory"
    ),
    **jobs("steps", "few_lstm_steps_forward", steps, {
        "steps": ([CELL_OF_STEP], ""),
        "steps_outside": ([CELL_OF_STEP], "reads 32 floats", ("a", FLOATS - 30)),
        "steps_of_what_they_write": ([CELL_OF_STEP], "line 1 of its table reads what line 0 writes", ("b", 91)),
        "steps_of_too_few_cells": ([CELL_OF_STEP], "no memory", ("n", 2)),
    }),
    **jobs("groups", "multiply_group", products, {
        "products": ([(0, 10, 20), (0, 30, 40)], ""),
        "products_outside": ([(0, 10, OUTSIDE)], "writes 4 floats"),
        "products_in_turn": ([(0, 10, 20), (20, 30, 40)], "line 1 of its table reads what line 0 writes"),
    }),
    **jobs("optim", "optim_sgd", update, {
        "updates": ([(0, 100), (112, 144)], ""),
        "updates_outside": ([(0, 100), (112, 145)], "line 1 of its table writes 145"),
        "updates_of_one_place": ([(0, 100), (96, 100)], "lines 0 and 1"),
    }),
    **jobs("optim", "gather_ranges", gathered, {
        "gathered": ([(0, 100, 0), (90, 100, 100)], ""),
        "gathered_from_outside": ([(OUTSIDE, 3, 0)], "line 0 of its table reads 3"),
        "gathered_to_one_place": (
            [(0, 100, 0), (200, 100, 99)], "lines 0 and 1 of its table write to the same memory"
        ),
    }),
}  # fmt: skip


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    return found(__file__, EMU_ACCESSES="0")


@pytest.mark.parametrize("job", JOBS)
def test_a_table(errors: dict[str, str], job: str) -> None:
    expected = JOBS[job][3]
    assert expected in errors[job] if expected else errors[job] == ""


def launched(name: str, device: Device) -> str:
    family, kernel, parameters, _ = JOBS[name]
    layers = 2 if kernel == "multiply_group" and "outside" not in name else 1
    return device.launch(family, kernel, parameters(device), (1, 1, layers))


if __name__ == "__main__":
    run_jobs({name: partial(launched, name) for name in JOBS})
