"""Elementwise functions: a row here for each row of unary.def and binary.def.

The tests of kernels (`kernels/test_kernels.py`) and of ops (`ops/cases_elementwise_*.py`) use these
rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from dynet_cy.graph.structs import operators

Range = Union[float, "tuple[float, float]"]


@dataclass(frozen=True)
class Unary:
    """A function of one argument.

    Attributes:
        name: that of the row.
        f: the same in NumPy, a function of float64 arrays and the parameters.
        low, high: the range of the arguments.
        parameters: values for the parameters of the row that differ from the defaults of its Python function.
        tol: greatest difference of the op from `f`, relative to the magnitude of the values.
    """

    name: str
    f: Callable
    low: float = -2.0
    high: float = 2.0
    parameters: tuple[float, ...] = ()
    tol: float = 1e-5


@dataclass(frozen=True)
class Binary:
    """A function of two arguments.

    Attributes:
        name: that of the row.
        f: the same in NumPy.
        build: makes the expression, ``build(dy, a, b)``; if None, the Python function of that name.
        low, high: the range of the arguments, one for both or one for each.
        is_part: whether it is not an op, but part of others (BINARY_PART).
    """

    name: str
    f: Callable
    build: Callable[[Any, Any, Any], Any] | None = None
    low: Range = -1.0
    high: Range = 1.0
    is_part: bool = False

    def expression(self, dy: Any, a: Any, b: Any) -> Any:
        return self.build(dy, a, b) if self.build else getattr(dy, self.name)(a, b)


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def logistic(x):
    return 1 / (1 + np.exp(-x))


erf = np.vectorize(math.erf, otypes=[np.float64])
lgamma = np.vectorize(math.lgamma, otypes=[np.float64])
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

UNARY = [
    Unary("negate", lambda x: -x, -3, 3),
    Unary("tanh", np.tanh, -12, 12),
    Unary("exp", np.exp, -10, 3),
    Unary("expm1", np.expm1, -10, 3),
    Unary("log", np.log, 0.1, 9),
    Unary("log1p", np.log1p, -0.9, 9),
    Unary("logistic", logistic, -12, 12),
    Unary("log_sigmoid", lambda x: -np.logaddexp(0, -x), -12, 12),
    Unary("softplus", lambda x: np.logaddexp(0, x), -12, 12),
    Unary("rectify", lambda x: np.maximum(x, 0)),
    Unary("square", np.square),
    Unary("cube", lambda x: x**3),
    Unary("sqrt", np.sqrt, 0.1, 9),
    Unary("abs", np.abs),
    Unary("softsign", lambda x: x / (1 + np.abs(x))),
    Unary("erf", erf, -3, 3),
    Unary("gelu", lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, -3, 3),
    Unary("gelu_tanh", gelu_tanh, -3, 3),
    Unary("lgamma", lgamma, 0.3, 12, tol=1e-4),
    Unary("sin", np.sin, -9, 9),
    Unary("cos", np.cos, -9, 9),
    Unary("tan", np.tan, -1.2, 1.2),
    Unary("asin", np.arcsin, -0.9, 0.9),
    Unary("acos", np.arccos, -0.9, 0.9),
    Unary("atan", np.arctan, -3, 3),
    Unary("sinh", np.sinh, -3, 3),
    Unary("cosh", np.cosh, -3, 3),
    Unary("asinh", np.arcsinh, -3, 3),
    Unary("acosh", np.arccosh, 1.2, 9),
    Unary("atanh", np.arctanh, -0.9, 0.9),
    Unary("floor", np.floor, -4, 4),
    Unary("ceil", np.ceil, -4, 4),
    Unary("round", lambda x: np.trunc(x + np.copysign(0.5, x)), -4, 4),
    Unary("elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)), -3, 3, (0.3,)),
    Unary("selu", lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)), -3, 3),
    Unary("silu", lambda x, beta: x * logistic(beta * x), -5, 5, (2.5,)),
    Unary("leaky_relu", lambda x, alpha: np.where(x > 0, x, alpha * x), -3, 3, (0.3,)),
    Unary("mish", lambda x: x * np.tanh(np.logaddexp(0, x)), -9, 9),
    Unary("hard_tanh", lambda x: np.clip(x, -1, 1), -3, 3),
    Unary("hard_swish", lambda x: x * np.clip(x + 3, 0, 6) / 6, -5, 5),
    Unary("safe_sqrt", np.sqrt, 0.1, 9),
    Unary("less_const", lambda x, c: 1.0 * (x < c), -3, 3, (0.5,)),
    Unary("less_equal_const", lambda x, c: 1.0 * (x <= c), -3, 3, (0.5,)),
    Unary("greater_const", lambda x, c: 1.0 * (x > c), -3, 3, (0.5,)),
    Unary("greater_equal_const", lambda x, c: 1.0 * (x >= c), -3, 3, (0.5,)),
    Unary("equal_const", lambda x, c: 1.0 * (x == c), -3, 3, (0.5,)),
    Unary("not_equal_const", lambda x, c: 1.0 * (x != c), -3, 3, (0.5,)),
    Unary("scale", lambda x, c: c * x, -3, 3, (1.7,)),
    Unary("shift", lambda x, c: c + x, -3, 3, (1.7,)),
    Unary("reciprocal_scale", lambda x, c: c / x, 0.3, 3, (1.7,)),
    Unary("pow_const", lambda x, c: x**c, 0.3, 3, (1.7,)),
    Unary("min_const", np.minimum, -3, 3, (0.5,)),
    Unary("max_const", np.maximum, -3, 3, (0.5,)),
    Unary("clip", np.clip, -3, 3, (-0.5, 0.75)),
    Unary("huber", lambda x, c: np.where(np.abs(x) < c, x * x, c * (2 * np.abs(x) - c)), -3, 3, (0.25,)),
]

BINARY = [
    Binary("add", np.add, lambda dy, a, b: a + b),
    Binary("sub", np.subtract, lambda dy, a, b: a - b),
    Binary("mul", np.multiply, lambda dy, a, b: dy.cmult(a, b)),
    Binary("div", np.divide, lambda dy, a, b: dy.cdiv(a, b), 0.4, 2.0),
    Binary("min", np.minimum, lambda dy, a, b: dy.bmin(a, b)),
    Binary("max", np.maximum, lambda dy, a, b: dy.bmax(a, b)),
    Binary("pow", np.power, low=(0.3, -2.0), high=(2.0, 2.0)),
    Binary("prelu", lambda a, b: np.where(a > 0, a, b * a)),
    Binary("less", lambda a, b: 1.0 * (a < b)),
    Binary("less_equal", lambda a, b: 1.0 * (a <= b)),
    Binary("equal", lambda a, b: 1.0 * (a == b)),
    Binary("not_equal", lambda a, b: 1.0 * (a != b)),
    Binary("where_true", lambda a, b: np.where(b != 0, a, 0), lambda dy, a, b: dy.where(b, a, 0)),
    Binary("where_false", lambda a, b: np.where(b != 0, 0, a), lambda dy, a, b: dy.where(b, 0, a)),
    Binary("logit_loss", lambda a, b: np.logaddexp(0, a) - a * b, lambda dy, a, b: operators["logit_loss"](a, b)),
    Binary("squared_difference", lambda a, b: (a - b) ** 2, is_part=True),
    Binary("abs_difference", lambda a, b: np.abs(a - b), is_part=True),
    Binary("binary_log_loss", lambda a, b: -(b * np.log(a) + (1 - b) * np.log(1 - a)), is_part=True),
]
