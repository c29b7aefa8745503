"""Elementwise functions as ONNX operations, from the formulas of their kernels.

The formulas come from the rows of `include/dynet_cy/unary.def`, with numbers instead of ``C(1.f)``. They consist of
arithmetic, comparisons joined by ``&`` and ``|``, ``SEL(condition, a, b)`` and functions in upper case, applied to x
and the constants p0 and p1.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from dynet_cy.onnx.writer import Writer
from dynet_cy.ops.formulas import called, interpret

__all__ = ["FORMULAS", "can_write", "write"]

FORMULAS = {
    # derived: formulas, by tools/derive.py
    "negate": "0 - x",
    "tanh": "TANH(x)",
    "exp": "EXP(x)",
    "expm1": "EXPM1(x)",
    "log": "LOG(x)",
    "log1p": "LOG1P(x)",
    "logistic": "LOGISTIC(x)",
    "log_sigmoid": "0 - SOFTPLUS(0 - x)",
    "softplus": "SOFTPLUS(x)",
    "rectify": "SEL(x < 0, 0, x)",
    "square": "x * x",
    "cube": "x * x * x",
    "sqrt": "SQRT(x)",
    "abs": "ABS(x)",
    "softsign": "x / (1 + ABS(x))",
    "erf": "ERF(x)",
    "gelu": "0.5 * x * (1 + ERF(0.707106781 * x))",
    "gelu_tanh": "x * LOGISTIC(x * (1.59576912 + 0.0713548163 * x * x))",
    "lgamma": "LGAMMA(x)",
    "sin": "SIN(x)",
    "cos": "COS(x)",
    "tan": "TAN(x)",
    "asin": "ASIN(x)",
    "acos": "ACOS(x)",
    "atan": "ATAN(x)",
    "sinh": "SINH(x)",
    "cosh": "COSH(x)",
    "asinh": "ASINH(x)",
    "acosh": "ACOSH(x)",
    "atanh": "ATANH(x)",
    "floor": "FLOOR(x)",
    "ceil": "CEIL(x)",
    "round": "ROUND(x)",
    "elu": "SEL(x > 0, x, p0 * EXPM1(x))",
    "selu": "SEL(x > 0, 1.0507009873554805 * x, 1.7580993408473766 * EXPM1(x))",
    "silu": "x * LOGISTIC(p0 * x)",
    "scale": "p0 * x",
    "shift": "x + p0",
    "reciprocal_scale": "p0 / x",
    "pow_const": "POW(x, p0)",
    "min_const": "SEL(x > p0, p0, x)",
    "max_const": "SEL(x < p0, p0, x)",
    "clip": "SEL(x < p0, p0, SEL(x > p1, p1, x))",
    "huber": "SEL(ABS(x) < p0, x * x, p0 * (2 * ABS(x) - p0))",
    "leaky_relu": "SEL(x > 0, x, p0 * x)",
    "mish": "x * TANH(SOFTPLUS(x))",
    "hard_tanh": "SEL(x < -1, -1, SEL(x > 1, 1, x))",
    "hard_swish": "SEL(x < -3, 0, SEL(x > 3, x, x * (x + 3) / 6))",
    "safe_sqrt": "SQRT(x)",
    "less_const": "SEL(x < p0, 1, 0)",
    "less_equal_const": "SEL(x <= p0, 1, 0)",
    "greater_const": "SEL(x > p0, 1, 0)",
    "greater_equal_const": "SEL(x >= p0, 1, 0)",
    "equal_const": "SEL(x == p0, 1, 0)",
    "not_equal_const": "SEL(x != p0, 1, 0)",
    # end of formulas
}

# The ONNX operators for functions, and for Python's operators.
_FUNCTIONS = {
    "SEL": "Where",
    "ABS": "Abs",
    "SQRT": "Sqrt",
    "EXP": "Exp",
    "LOG": "Log",
    "POW": "Pow",
    "TANH": "Tanh",
    "LOGISTIC": "Sigmoid",
    "SOFTPLUS": "Softplus",
    "ERF": "Erf",
    "SIN": "Sin",
    "COS": "Cos",
    "TAN": "Tan",
    "ASIN": "Asin",
    "ACOS": "Acos",
    "ATAN": "Atan",
    "SINH": "Sinh",
    "COSH": "Cosh",
    "ASINH": "Asinh",
    "ACOSH": "Acosh",
    "ATANH": "Atanh",
    "FLOOR": "Floor",
    "CEIL": "Ceil",
}
_OPERATORS: dict[type, str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.BitAnd: "And",
    ast.BitOr: "Or",
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.Eq: "Equal",
}


def expm1(w: Writer, x: str) -> str:
    """e^x - 1 = tanh(x/2) (e^x + 1), which is exact near 0 too."""
    half = w.add("Tanh", w.add("Mul", x, w.constant(0.5)))
    return w.add("Mul", half, w.add("Add", w.add("Exp", x), w.constant(1)))


def log1p(w: Writer, x: str) -> str:
    return w.add("Log", w.add("Add", x, w.constant(1)))


# Functions without an ONNX operator of their own, composed of others.
_COMPOSED = {"EXPM1": expm1, "LOG1P": log1p}


def can_write(formula: str) -> bool:
    """Whether ONNX has all functions of a formula."""
    return called(formula) <= {*_FUNCTIONS, *_COMPOSED}


def write(w: Writer, formula: str, tensors: Mapping[str, str]) -> str:
    """Add the operations of a formula.

    Args:
        w: the graph under construction.
        formula: a formula for which `can_write` is true.
        tensors: the tensors of x and of the constants of the formula, by name.

    Returns:
        The name of the result.
    """

    def call(name: str, args: list[str]) -> str:
        return _COMPOSED[name](w, *args) if name in _COMPOSED else w.add(_FUNCTIONS[name], *args)

    result: str = interpret(formula, tensors, w.constant, call, lambda kind, a, b: w.add(_OPERATORS[kind], a, b))
    return result
