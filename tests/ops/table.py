"""Ops and what they compute: one row for each use of an op.

`test_ops.py` checks every row; the rows of an op family may also stand in a
file of their own, `cases_<family>.py`, as a list CASES.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from functools import reduce
from inspect import Parameter, signature
from pathlib import Path

import elementwise
import numpy as np
from case import Case

from dynet_cy.ops import api


def broadcast(f: Callable) -> Callable:
    """A numpy function of two arrays, with axes compared from the first on instead of the last."""

    def aligned(xs):
        a, b = xs
        n = max(a.ndim, b.ndim)
        return f(a.reshape(a.shape + (1,) * (n - a.ndim)), b.reshape(b.shape + (1,) * (n - b.ndim)))

    return aligned


def unary(
    name: str, f: Callable, low: float = -2.0, high: float = 2.0, shape: tuple[int, ...] = (4, 3), **more
) -> Case:
    return Case(name, [shape], lambda dy, xs: getattr(dy, name)(xs[0]), lambda xs: f(xs[0]), low, high, **more)


def binary(case: str, shapes, build: Callable, f: Callable, low=-1.0, high=1.0, **more) -> Case:
    return Case(case, shapes, lambda dy, xs: build(dy, *xs), broadcast(f), low, high, **more)


def number(case: str, build: Callable, low: float = -1.0, high: float = 1.0, shape: tuple[int, ...] = (3, 2)) -> Case:
    """An operator between an expression and a number: the same formula serves both."""
    return Case(case, [shape], lambda dy, xs: build(xs[0]), lambda xs: build(xs[0]), low, high)


def product(a, b):
    """Matrix product; a vector on the left is a matrix of one column."""
    return (
        (a if a.ndim == 2 else a[:, None]) @ b if b.ndim == 2 else np.atleast_1d((a if a.ndim == 2 else a[:, None]) @ b)
    )


def affine(xs):
    """b + W1 x1 + W2 x2 + ...; a vector b serves for all columns."""
    b, *rest = (x.reshape(x.shape[:2]) if x.ndim > 2 else x for x in xs)
    y = sum((product(w, x[:, 0] if x.shape[1:] == (1,) else x) for w, x in zip(rest[::2], rest[1::2])), start=0.0)
    b = b[:, 0] if np.ndim(y) == 1 and b.ndim == 2 else b
    return y + (b[:, None] if np.ndim(y) == 2 and b.ndim == 1 else b)


def of_rows() -> list[Case]:
    """The functions of the rows of elementwise.py, with the defaults of their parameters and with others."""
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
    # What is rounded off is added back, so that the value has the slope that passes straight through.
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
    # Every length of a vector loop's rest, and every number of axes.
    *[unary("tanh", np.tanh, shape=(n,), batches=[(1,), (3,)]) for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)],
    *[unary("square", np.square, shape=(2,) * n) for n in range(8)],
]

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


def shapes_id(shapes) -> str:
    return "-".join(["x".join(map(str, s)) or "scalar" for s in shapes])


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

PRODUCTS = [
    *[
        Case(f"matmul-{shapes_id(s)}", s, lambda dy, xs: xs[0] * xs[1], lambda xs: product(*xs))
        for s in [
            [(4, 3), (3,)],
            [(4, 3), (3, 2)],
            [(4,), (1, 3)],
            [(1, 4), (4,)],
            [(1, 1), (1,)],
            [(4,), (1,)],
            [(33, 17), (17, 9)],
            [(5, 64), (64,)],
        ]
    ],
    *[
        Case(f"affine_transform-{shapes_id(s)}", s, lambda dy, xs: dy.affine_transform(xs), affine)
        for s in [
            [(4,)],
            [(4,), (4, 3), (3,)],
            [(4,), (4, 3), (3,), (4, 2), (2,)],
            [(4,), (4, 3), (3, 2)],
            [(4, 2), (4, 3), (3, 2), (4, 5), (5, 2)],
            [(2,), (2, 3), (3,), (2, 3), (3,), (2, 3), (3,), (2, 3), (3,), (2, 3), (3,)],
            [(4,), (4, 3), (3, 1, 1)],
            [(4, 1, 1), (4, 3), (3,)],
            [(4, 2, 1), (4, 3), (3, 2, 1)],
        ]
    ],
    # Terms without a batch beside terms with one.
    *[
        Case(f"affine_transform-terms-{shapes_id(s)}", s, lambda dy, xs: dy.affine_transform(xs), affine, batches=sizes)
        for sizes in [[(1, 1, 1, 1, 3), (1, 1, 1, 3, 1), (1, 3, 1, 1, 1), (1, 1, 3, 1, 1), (3, 1, 1, 1, 1)]]
        for s in [[(4,), (4, 3), (3,), (4, 2), (2,)], [(4,), (4, 3), (3, 2), (4, 5), (5, 2)]]
    ],
    *[
        Case(
            f"trace_of_product-{shapes_id([s])}",
            [s, s],
            lambda dy, xs: dy.trace_of_product(*xs),
            lambda xs: np.trace(np.atleast_2d(xs[0].T).T @ np.atleast_2d(xs[1].T)),
        )
        for s in [(3, 3), (4, 2), (5,)]
    ],
    Case("dot_product", [(5,), (5,)], lambda dy, xs: dy.dot_product(*xs), lambda xs: xs[0] @ xs[1]),
    Case(
        "dot_product-matrices",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.dot_product(*xs),
        lambda xs: (xs[0] * xs[1]).sum(),
    ),
    Case(
        "dot_product-shapes",
        [(4, 3), (12,)],
        lambda dy, xs: dy.dot_product(*xs),
        lambda xs: xs[0].ravel(order="F") @ xs[1],
    ),
]


def inputs(case: str, make: Callable, value: Callable) -> Case:
    """A leaf: one more argument, so that there is something to differentiate."""
    return Case(f"input-{case}", [(3, 2)], lambda dy, xs: xs[0] + make(dy), lambda xs: xs[0] + value())


MATRIX = np.arange(6.0).reshape(3, 2) / 8

INPUTS = [
    inputs("zeros", lambda dy: dy.zeros((3, 2)), lambda: np.zeros((3, 2))),
    inputs("ones", lambda dy: dy.ones((3, 2)), lambda: np.ones((3, 2))),
    inputs("ones-batch", lambda dy: dy.ones((3, 2), batch_size=3), lambda: np.ones((3, 2))),
    inputs("constant", lambda dy: dy.constant((3, 2), 0.5), lambda: np.full((3, 2), 0.5)),
    inputs("constant-number", lambda dy: dy.constant(3, -0.5), lambda: np.full((3, 1), -0.5)),
    inputs("scalarInput", lambda dy: dy.scalarInput(1.25), lambda: 1.25),
    inputs("inputVector", lambda dy: dy.inputVector([1, 2, 3]), lambda: np.array([[1.0], [2.0], [3.0]])),
    inputs("vecInput", lambda dy: dy.vecInput(3), lambda: np.zeros((3, 1))),
    inputs("inputTensor", lambda dy: dy.inputTensor(MATRIX), lambda: MATRIX),
    inputs("inputTensor-rows", lambda dy: dy.inputTensor(MATRIX.tolist()), lambda: MATRIX),
    inputs("inputTensor-strided", lambda dy: dy.inputTensor(np.repeat(MATRIX, 2, 0)[::2]), lambda: MATRIX),
    inputs("inputMatrix", lambda dy: dy.inputMatrix(MATRIX.ravel(order="F"), (3, 2)), lambda: MATRIX),
    inputs(
        "inputTensorTranspose",
        lambda dy: dy.inputTensorTranspose(MATRIX.ravel(order="F"), (3, 2)),
        lambda: MATRIX,
    ),
    inputs(
        "sparse_inputTensor",
        lambda dy: dy.sparse_inputTensor(([0, 2], [1, 0]), [0.5, 2], (3, 2), defval=-1),
        lambda: np.array([[-1, 0.5], [-1, -1], [2, -1]]),
    ),
    inputs("matInput", lambda dy: dy.matInput(3, 2), lambda: np.zeros((3, 2))),
]
INPUTS[2] = Case(
    "input-ones-batch",
    [(3, 2)],
    lambda dy, xs: xs[0] + dy.ones((3, 2), batch_size=3),
    lambda xs: np.broadcast_to(xs[0] + 1, (3, 2, 3)),
    batches=[(1,), (3,)],
    whole_batch=True,
)

CASES: list[Case] = [*UNARY, *NUMBERS, *BINARY, *MANY, *PRODUCTS, *INPUTS]

for path in sorted(Path(__file__).parent.glob("cases_*.py")):
    CASES += importlib.import_module(path.stem).CASES


def unique(cases: list[Case]) -> list[Case]:
    """The cases with a number after the id where several have the same."""
    seen: dict[str, int] = {}
    for case in cases:
        seen[case.id] = seen.get(case.id, 0) + 1
        if seen[case.id] > 1:
            object.__setattr__(case, "id", f"{case.id}#{seen[case.id]}")
    return cases


CASES = unique(CASES)
