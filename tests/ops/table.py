"""Ops and what they compute: one row for each use of an op.

`test_ops.py` checks every row; the rows of an op family may also stand in a
file of their own, `cases_<family>.py`, as a list CASES.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Case:
    """One use of an op.

    Attributes:
        id: name of the op, then what is special about this use.
        shapes: shape of one batch element of each argument.
        build: makes the expression: ``build(dy, xs)`` with dy the package, xs expressions.
        reference: the same in numpy: ``reference(xs)`` with float64 arrays of one batch element.
        low, high: range of the arguments' elements; one number, or one for each argument.
        batches: batch sizes to run with, one tuple with a number for each argument;
            all 1, all 3, and each argument 1 while the others have 3, when None.
        whole_batch: whether reference takes all of the batch at once; then the last
            axis of each argument, and of the result, is the batch.
        grad: whether there is a gradient; False for ops that have none, a tuple of
            bools if only some arguments have one.
        tol: greatest difference from the reference, relative to the size of the values.
        leaves: the ops of graph leaves that this case covers besides inputs.
    """

    id: str
    shapes: Sequence[tuple[int, ...]]
    build: Callable
    reference: Callable
    low: float | Sequence[float] = -1.0
    high: float | Sequence[float] = 1.0
    batches: Sequence[tuple[int, ...]] | None = None
    whole_batch: bool = False
    grad: bool | tuple[bool, ...] = True
    tol: float = 1e-5
    leaves: tuple[str, ...] = ()

    def batch_sizes(self) -> list[tuple[int, ...]]:
        """The batch sizes to run with, without repetition."""
        if self.batches is not None:
            return list(dict.fromkeys(tuple(b) for b in self.batches))
        n = len(self.shapes)
        every = [(1,) * n, (3,) * n]
        every += [tuple(1 if k == i else 3 for k in range(n)) for i in range(n)] if n > 1 else []
        return list(dict.fromkeys(every))

    def has_gradient(self, i: int) -> bool:
        return self.grad if isinstance(self.grad, bool) else self.grad[i]

    def sample(self, rng: np.random.Generator, sizes: Sequence[int]) -> list[np.ndarray]:
        """Random arguments, with the batch as the last axis."""
        out = []
        for i, (shape, size) in enumerate(zip(self.shapes, sizes)):
            low = self.low if np.isscalar(self.low) else self.low[i]
            high = self.high if np.isscalar(self.high) else self.high[i]
            out.append(rng.uniform(low, high, (*shape, size)).astype(np.float32))
        return out

    def expected(self, xs: Sequence[np.ndarray]) -> np.ndarray:
        """The result in float64, with the batch as the last axis."""
        xs = [np.asarray(x, np.float64) for x in xs]
        if self.whole_batch:
            return np.asarray(self.reference(xs), np.float64)
        size = max((x.shape[-1] for x in xs), default=1)
        parts = [
            np.asarray(self.reference([x[..., min(b, x.shape[-1] - 1)] for x in xs]), np.float64) for b in range(size)
        ]
        return np.stack(parts, axis=-1)


def broadcast(f: Callable) -> Callable:
    """A numpy function of two arrays, with axes compared from the first on instead of the last."""

    def aligned(xs):
        a, b = xs
        n = max(a.ndim, b.ndim)
        return f(a.reshape(a.shape + (1,) * (n - a.ndim)), b.reshape(b.shape + (1,) * (n - b.ndim)))

    return aligned


def vectorized(f: Callable) -> Callable:
    """A function of one number as one of arrays."""
    return np.vectorize(f, otypes=[np.float64])


def logistic(x):
    return 1 / (1 + np.exp(-x))


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
    y = sum((product(w, x) for w, x in zip(xs[1::2], xs[2::2])), start=0.0)
    b = xs[0]
    return y + (b[:, None] if np.ndim(y) == 2 and b.ndim == 1 else b)


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

UNARY = [
    unary("tanh", np.tanh),
    unary("exp", np.exp),
    unary("log", np.log, 0.2, 4.0),
    unary("logistic", logistic, -4.0, 4.0),
    unary("rectify", lambda x: np.maximum(x, 0)),
    unary("square", np.square),
    unary("cube", lambda x: x**3),
    unary("sqrt", np.sqrt, 0.2, 4.0),
    unary("abs", np.abs),
    unary("erf", vectorized(math.erf)),
    unary("lgamma", vectorized(math.lgamma), 0.3, 6.0, tol=1e-4),
    unary("log_sigmoid", lambda x: -np.log1p(np.exp(-x)), -4.0, 4.0),
    unary("softsign", lambda x: x / (1 + np.abs(x))),
    unary("sin", np.sin, -4.0, 4.0),
    unary("cos", np.cos, -4.0, 4.0),
    unary("tan", np.tan, -1.2, 1.2),
    unary("asin", np.arcsin, -0.9, 0.9),
    unary("acos", np.arccos, -0.9, 0.9),
    unary("atan", np.arctan),
    unary("sinh", np.sinh),
    unary("cosh", np.cosh),
    unary("asinh", np.arcsinh),
    unary("acosh", np.arccosh, 1.2, 4.0),
    unary("atanh", np.arctanh, -0.9, 0.9),
    unary("selu", lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))),
    unary("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
    Case(
        "elu-alpha",
        [(5,)],
        lambda dy, xs: dy.elu(xs[0], 0.3),
        lambda xs: np.where(xs[0] > 0, xs[0], 0.3 * np.expm1(xs[0])),
    ),
    unary("silu", lambda x: x * logistic(x)),
    Case("silu-beta", [(5,)], lambda dy, xs: dy.silu(xs[0], beta=2.5), lambda xs: xs[0] * logistic(2.5 * xs[0])),
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
    Case("pow_const-0", [(4,)], lambda dy, xs: dy.pow(xs[0], 0), lambda xs: xs[0] ** 0),
]

TWO = [[(4, 3), (4, 3)], [(4, 3), (4,)], [(4,), (4, 3)], [(4, 3), (1, 3)], [(4, 1), (1, 3)], [(1,), (4, 3)]]
TWO += [[(4, 3), (1,)], [(2, 3, 4), (2, 1, 4)], [(1, 3), (2, 1, 4)], [(), (3,)], [(17, 5), (17,)], [(17, 5), (1, 5)]]


def shapes_id(shapes) -> str:
    return "-".join(["x".join(map(str, s)) or "scalar" for s in shapes])


BINARY = [
    *[binary(f"add-{shapes_id(s)}", s, lambda dy, a, b: a + b, np.add) for s in TWO],
    *[binary(f"sub-{shapes_id(s)}", s, lambda dy, a, b: a - b, np.subtract) for s in TWO],
    *[binary(f"mul-{shapes_id(s)}", s, lambda dy, a, b: dy.cmult(a, b), np.multiply) for s in TWO],
    *[binary(f"div-{shapes_id(s)}", s, lambda dy, a, b: dy.cdiv(a, b), np.divide, 0.4, 2.0) for s in TWO],
    *[binary(f"min-{shapes_id(s)}", s, lambda dy, a, b: dy.bmin(a, b), np.minimum) for s in TWO],
    *[binary(f"max-{shapes_id(s)}", s, lambda dy, a, b: dy.bmax(a, b), np.maximum) for s in TWO],
    *[binary(f"pow-{shapes_id(s)}", s, lambda dy, a, b: dy.pow(a, b), np.power, (0.3, -2.0), (2.0, 2.0)) for s in TWO],
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
        ]
    ],
    # Terms without a batch beside terms with one.
    *[
        Case(f"affine_transform-terms-{shapes_id(s)}", s, lambda dy, xs: dy.affine_transform(xs), affine, batches=sizes)
        for sizes in [[(1, 1, 1, 1, 3), (1, 1, 1, 3, 1), (1, 3, 1, 1, 1), (1, 1, 3, 1, 1), (3, 1, 1, 1, 1)]]
        for s in [[(4,), (4, 3), (3,), (4, 2), (2,)], [(4,), (4, 3), (3, 2), (4, 5), (5, 2)]]
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
