"""Elementwise functions of one argument, with lengths that leave a remainder in vector loops."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature

import elementwise
import numpy as np
from case import Case

from dynet_cy.ops import api


def unary(
    name: str, f: Callable, low: float = -2.0, high: float = 2.0, shape: tuple[int, ...] = (4, 3), **more
) -> Case:
    return Case(name, [shape], lambda dy, xs: getattr(dy, name)(xs[0]), lambda xs: f(xs[0]), low, high, **more)


def of_rows() -> list[Case]:
    """The functions of elementwise.py, with default and other parameters."""
    found = []
    for row in elementwise.UNARY:
        if row.name not in api.__all__:
            continue
        numbers = list(signature(getattr(api, row.name)).parameters.values())[1:][: len(row.parameters)]
        defaults = tuple(number.default for number in numbers)
        if all(default is not Parameter.empty for default in defaults):
            found.append(of_row(row, row.name, (), defaults))
        if numbers:
            has_default = defaults[0] is not Parameter.empty
            case = f"{row.name}-{numbers[0].name}" if has_default else row.name
            found.append(of_row(row, case, row.parameters, row.parameters))
    return found


def of_row(row: elementwise.Unary, case: str, given: tuple[float, ...], numbers: tuple[float, ...]) -> Case:
    return Case(
        case,
        [(4, 3)],
        lambda dy, xs: getattr(dy, row.name)(xs[0], *given),
        lambda xs: row.f(xs[0], *numbers),
        row.low,
        row.high,
        tol=row.tol,
    )


UNARY = [
    *of_rows(),
    # The rounding error is added back, so the value has the slope of the straight-through gradient.
    *[
        Case(
            f"{name}_straight_through",
            [(5, 3)],
            lambda dy, xs, f=name: (
                getattr(dy, f)(xs[0], "straight_through_gradient") + dy.nobackprop(xs[0] - getattr(dy, f)(xs[0]))
            ),
            lambda xs: xs[0],
            -4.0,
            4.0,
        )
        for name in ("floor", "ceil", "round")
    ],
    Case(
        "gelu-approximate",
        [(4, 3)],
        lambda dy, xs: dy.gelu(xs[0], approximate="tanh"),
        lambda xs: elementwise.gelu_tanh(xs[0]),
        -5.0,
        5.0,
    ),
    # Every length of the remainder of a vector loop, and every number of axes.
    *[unary("tanh", np.tanh, shape=(n,), batches=[(1,), (3,)]) for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)],
    *[unary("square", np.square, shape=(2,) * n) for n in range(8)],
]

CASES = UNARY
