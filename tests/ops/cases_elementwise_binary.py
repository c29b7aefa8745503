"""Operators with numbers, arrays and expressions; comparisons and choices; sums of many."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

import elementwise
import numpy as np
from case import Case, many, one, shapes_id


def broadcast(f: Callable) -> Callable:
    """A NumPy function of two arrays whose axes are aligned from the first one on, not from the last."""

    def aligned(xs):
        a, b = xs
        n = max(a.ndim, b.ndim)
        return f(a.reshape(a.shape + (1,) * (n - a.ndim)), b.reshape(b.shape + (1,) * (n - b.ndim)))

    return aligned


def binary(case: str, shapes, build: Callable, f: Callable, low=-1.0, high=1.0, **more) -> Case:
    return Case(case, shapes, lambda dy, xs: build(dy, *xs), broadcast(f), low, high, **more)


def number(case: str, build: Callable, low: float = -1.0, high: float = 1.0, shape: tuple[int, ...] = (3, 2)) -> Case:
    """An operator between an expression and a number; the formula is also the reference."""
    return Case(case, [shape], lambda dy, xs: build(xs[0]), lambda xs: build(xs[0]), low, high)


NUMBERS = [
    number("shift", lambda x: x + 1.5),
    number("shift-left", lambda x: 1.5 + x),
    number("shift-minus", lambda x: x - 0.25),
    number("scale", lambda x: x * 3),
    number("scale-left", lambda x: -2 * x),
    number("scale-divide", lambda x: x / 4),
    number("scale-numpy", lambda x: np.float32(0.5) * x),
    number("negate", operator.neg),
    number("negate-shift", lambda x: 1 - x),
    number("reciprocal_scale", lambda x: 2 / x, 0.3, 2.0),
    Case("pow_const", [(4,)], lambda dy, xs: dy.pow(xs[0], 2.5), lambda xs: xs[0] ** 2.5, 0.3, 2.0),
    Case("pow_const-whole", [(4,)], lambda dy, xs: dy.pow(xs[0], 3), lambda xs: xs[0] ** 3, -2.0, 2.0),
    number("pow-operator", lambda x: x**2.5, 0.3, 2.0),
    number("pow-operator-left", lambda x: 1.5**x),
    number("pow-operator-numpy", lambda x: np.float32(0.5) ** x),
    Case("pow-number-first", [(4,)], lambda dy, xs: dy.pow(3, xs[0]), lambda xs: 3 ** xs[0]),
    Case("min_const", [(5, 3)], lambda dy, xs: dy.bmin(xs[0], 0.25), lambda xs: np.minimum(xs[0], 0.25)),
    Case("max_const", [(5, 3)], lambda dy, xs: dy.bmax(xs[0], np.int64(0)), lambda xs: np.maximum(xs[0], 0)),
    Case("pow_const-0", [(4,)], lambda dy, xs: dy.pow(xs[0], 0), lambda xs: xs[0] ** 0),
]

TWO = [[(4, 3), (4, 3)], [(4, 3), (4,)], [(4,), (4, 3)], [(4, 3), (1, 3)], [(4, 1), (1, 3)], [(1,), (4, 3)]]

TWO += [[(4, 3), (1,)], [(2, 3, 4), (2, 1, 4)], [(1, 3), (2, 1, 4)], [(), (3,)], [(17, 5), (17,)], [(17, 5), (1, 5)]]

BINARY = [
    *[
        binary(f"{row.name}-{shapes_id(s)}", s, row.expression, row.f, row.low, row.high)
        for row in elementwise.BINARY
        if not row.is_part
        for s in TWO
    ],
    binary("pow-operator", [(4, 3), (4, 3)], lambda dy, a, b: a**b, np.power, (0.3, -2.0), (2.0, 2.0)),
    binary("div-operator", [(3, 2), (3, 2)], lambda dy, a, b: a / b, np.divide, 0.4, 2.0),
    binary("mul-operator-scalar-left", [(1,), (3, 2)], lambda dy, a, b: a * b, np.multiply),
    binary("mul-operator-scalar-right", [(3, 2), (1,)], lambda dy, a, b: a * b, np.multiply),
    binary("colwise_add", [(4, 3), (4,)], lambda dy, a, b: dy.colwise_add(a, b), np.add),
    binary("mul-self", [(4,), (4,)], lambda dy, a, b: dy.cmult(a, a) + b, lambda a, b: a * a + b),
]

MANY = [
    Case(
        f"{name}-{n}",
        [(3, 2)] * n,
        lambda dy, xs, name=name: getattr(dy, name)(xs),
        lambda xs, f=f: f(xs),
    )
    for name, f in [
        ("esum", sum),
        ("average", lambda xs: sum(xs) / len(xs)),
        ("emax", lambda xs: reduce(np.maximum, xs)),
    ]
    for n in (1, 2, 3, 11)
]

# 0 at even positions, for comparisons that are true for some elements.
STEPS = np.arange(12.0).reshape(4, 3) % 2

ODD = np.array([1.0, 0.0, 2.0, 0.0])

COMPARISONS = [
    one("less_const", (4, 3), lambda dy, x: x < 0.25, lambda x: x < 0.25),
    one("less_equal_const", (4, 3), lambda dy, x: x <= np.float32(0.25), lambda x: x <= 0.25),
    one("greater_const", (4, 3), lambda dy, x: x > 0.25, lambda x: x > 0.25),
    one("greater_equal_const", (4, 3), lambda dy, x: x >= 0.25, lambda x: x >= 0.25),
    one("equal_const", (4, 3), lambda dy, x: dy.equal((x > 0) * 2, 2), lambda x: x > 0),
    one("not_equal_const", (4, 3), lambda dy, x: dy.not_equal(x > 0, 1), lambda x: x <= 0),
    many("greater", [(4, 3), (4,)], lambda dy, a, b: a > b, lambda a, b: a > b[:, None]),
    many("greater_equal", [(4, 3), (4, 3)], lambda dy, a, b: dy.greater_equal(a, b), lambda a, b: a >= b),
    one("less-array", (4, 3), lambda dy, x: x < STEPS, lambda x: x < STEPS),
    one("greater-array-left", (4, 3), lambda dy, x: operator.gt(STEPS, x), lambda x: x < STEPS),
]

CHOICES = [
    Case(
        "where-all",
        [(4, 3), (4, 3), (4,)],
        lambda dy, xs: dy.where(xs[0] > 0, xs[1], xs[2]),
        lambda xs: np.where(xs[0] > 0, xs[1], xs[2][:, None]),
    ),
    many("where-number", [(4,), (4,)], lambda dy, a, b: dy.where(ODD, a, 2) + b, lambda a, b: np.where(ODD, a, 2) + b),
    many(
        "where-numbers",
        [(4,), (4,)],
        lambda dy, a, b: dy.where(a > 0, 3, -1) + b,
        lambda a, b: np.where(a > 0, 3, -1) + b,
    ),
    one("where-log", (4, 3), lambda dy, x: dy.where(x > 0, dy.log(x), x), lambda x: np.where(x > 0, np.log(abs(x)), x)),
    one("masked_fill", (4, 3), lambda dy, x: dy.masked_fill(x, ODD, 5), lambda x: np.where(ODD[:, None] != 0, 5, x)),
    one(
        "masked_fill-exp",
        (4, 3),
        lambda dy, x: dy.exp(dy.masked_fill(x, STEPS, -np.inf)),
        lambda x: np.where(STEPS != 0, 0, np.exp(x)),
    ),
]

ARRAYS = [
    one("add-array", (4, 3), lambda dy, x: STEPS + x, lambda x: STEPS + x),
    one("sub-array", (4, 3), lambda dy, x: x - STEPS, lambda x: x - STEPS),
    one("div-array", (4, 3), lambda dy, x: x / (STEPS + 1), lambda x: x / (STEPS + 1)),
    one("div-array-left", (4, 3), lambda dy, x: STEPS / x, lambda x: STEPS / x, low=0.5, high=2),
    one("pow-array", (4, 3), lambda dy, x: x ** (STEPS + 1), lambda x: x ** (STEPS + 1), low=0.5, high=2),
]

CASES = [*NUMBERS, *BINARY, *MANY, *COMPARISONS, *CHOICES, *ARRAYS]
