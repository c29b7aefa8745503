"""Integers: arithmetic and comparisons with broadcasting, conversions, and what moves them."""

from __future__ import annotations

import numpy as np
from case import beside_a_sum, name_of


def whole(x):
    """Whole numbers from -8 to 8."""
    return np.trunc(x * 9).astype(int)


def integers(dy, x):
    return dy.to_int(x * 9)


def quotient(a, b):
    return np.floor_divide(a, np.where(b == 0, 1, b)) * (b != 0)


def remainder(a, b):
    return np.remainder(a, np.where(b == 0, 1, b)) * (b != 0)


PAIRS = [((4, 3), (4, 3)), ((4, 3), (1, 3)), ((4, 1), (1, 3)), ((5,), (1,)), ((4,), (4, 3)), ((1, 3, 2), (4, 1, 2))]
OF_TWO = {
    "int_add": (lambda dy, a, b: a + b, np.add),
    "int_sub": (lambda dy, a, b: a - b, np.subtract),
    "int_mul": (lambda dy, a, b: dy.cmult(a, b), np.multiply),
    "int_floor_divide": (lambda dy, a, b: a // b, quotient),
    "int_remainder": (lambda dy, a, b: a % b, remainder),
    "int_min": (lambda dy, a, b: dy.bmin(a, b), np.minimum),
    "int_max": (lambda dy, a, b: dy.bmax(a, b), np.maximum),
    "int_less": (lambda dy, a, b: a < b, np.less),
    "int_less_equal": (lambda dy, a, b: a <= b, np.less_equal),
    "int_equal": (lambda dy, a, b: dy.equal(a, b), np.equal),
    "int_not_equal": (lambda dy, a, b: dy.not_equal(a, b), np.not_equal),
}


def aligned(a, b):
    """Shapes that broadcast from the first axis on."""
    n = max(a.ndim, b.ndim)
    return (x.reshape(x.shape + (1,) * (n - x.ndim)) for x in (a, b))


CASES = [
    *[
        beside_a_sum(
            name_of(name, *shapes),
            shapes,
            lambda dy, a, b, build=build: build(dy, integers(dy, a), integers(dy, b)),
            lambda a, b, f=f: f(*aligned(whole(a), whole(b))).astype(float),
        )
        for name, (build, f) in OF_TWO.items()
        for shapes in (PAIRS if name == "int_sub" else PAIRS[:2])
    ],
    *[
        beside_a_sum(
            name_of(name, "number", side),
            [(4, 3)],
            lambda dy, x, build=build, side=side: (
                build(dy, integers(dy, x), 3) if side == "right" else build(dy, 3, integers(dy, x))
            ),
            lambda x, f=f, side=side: (f(whole(x), 3) if side == "right" else f(3, whole(x))).astype(float),
        )
        for name, build, f in [
            ("int_add", lambda dy, a, b: a + b, np.add),
            ("int_sub", lambda dy, a, b: a - b, np.subtract),
            ("int_mul", lambda dy, a, b: a * b, np.multiply),
            ("int_floor_divide", lambda dy, a, b: a // b, quotient),
            ("int_remainder", lambda dy, a, b: a % b, remainder),
            ("int_less", lambda dy, a, b: a < b, np.less),
        ]
        for side in ("left", "right")
    ],
    beside_a_sum("int_sub-negative", [(4, 3)], lambda dy, x: -integers(dy, x), lambda x: -whole(x)),
    beside_a_sum("to_int", [(4, 3)], lambda dy, x: dy.to_int(x * 9), whole),
    beside_a_sum("to_float", [(4, 3)], lambda dy, x: dy.to_float(integers(dy, x)) / 2, lambda x: whole(x) / 2),
    beside_a_sum(
        "int-moved",
        [(4, 3), (4, 3)],
        lambda dy, a, b: dy.transpose(dy.concatenate([integers(dy, a), integers(dy, b)])[1:7])[::2],
        lambda a, b: np.concatenate([whole(a), whole(b)])[1:7].T[::2],
    ),
    beside_a_sum(
        "int-where",
        [(4, 3), (4, 3)],
        lambda dy, a, b: dy.where(a > b, integers(dy, a), integers(dy, b)),
        lambda a, b: np.where(a > b, whole(a), whole(b)),
    ),
    beside_a_sum(
        "int-where-number",
        [(4, 3)],
        lambda dy, x: dy.where(x > 0, integers(dy, x), 7) + dy.where(x > 0.5, 0, integers(dy, x)),
        lambda x: np.where(x > 0, whole(x), 7) + np.where(x > 0.5, 0, whole(x)),
    ),
    beside_a_sum(
        "int-picked",
        [(4, 3)],
        lambda dy, x: (
            dy.gather(integers(dy, x), dy.argsort(x)) + dy.reshape(dy.pick(integers(dy, x), dy.argmax(x[:, 0])), (1, 3))
        ),
        lambda x: np.take_along_axis(whole(x), x.argsort(0), 0) + whole(x)[x[:, 0].argmax()],
    ),
]
