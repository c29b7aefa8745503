"""The formulas of elementwise functions: the derivatives of the rows of `unary.def` and `binary.def`, and what reads
such formulas.

Formulas consist of arithmetic, comparisons joined by ``&`` and ``|``, ``SEL(condition, a, b)`` and functions in upper
case, applied to the arguments (x, or a and b), the result y and the constants p0 and p1.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["DERIVATIVES", "PARTS", "UNARY", "called", "interpret"]

# By the name of the row: the derivative by each argument.
DERIVATIVES = {
    # derived: derivatives, by tools/derive.py
    "negate": ("-1",),
    "tanh": ("1 - y * y",),
    "exp": ("y",),
    "expm1": ("y + 1",),
    "log": ("1 / x",),
    "log1p": ("1 / (1 + x)",),
    "logistic": ("y * (1 - y)",),
    "log_sigmoid": ("LOGISTIC(0 - x)",),
    "softplus": ("LOGISTIC(x)",),
    "rectify": ("SEL(y > 0, 1, 0)",),
    "square": ("x + x",),
    "cube": ("3 * x * x",),
    "sqrt": ("0.5 / y",),
    "abs": ("SEL(x > 0, 1, SEL(x < 0, -1, 0))",),
    "softsign": ("1 / ((1 + ABS(x)) * (1 + ABS(x)))",),
    "erf": ("1.12837917 * EXP(0 - x * x)",),
    "gelu": ("0.5 * (1 + ERF(0.707106781 * x)) + 0.398942280 * x * EXP(-0.5 * x * x)",),
    "gelu_tanh": (
        "SEL(ABS(x) > 10, SEL(x > 0, 1, 0), LOGISTIC(x * (1.59576912 + 0.0713548163 * x * x)) * (1 + x * (1.59576912 "
        "+ 0.214064449 * x * x) * (1 - LOGISTIC(x * (1.59576912 + 0.0713548163 * x * x)))))",
    ),
    "lgamma": ("DIGAMMA(x)",),
    "sin": ("COS(x)",),
    "cos": ("0 - SIN(x)",),
    "tan": ("1 + y * y",),
    "asin": ("1 / SQRT((1 - x) * (1 + x))",),
    "acos": ("-1 / SQRT((1 - x) * (1 + x))",),
    "atan": ("1 / (1 + x * x)",),
    "sinh": ("COSH(x)",),
    "cosh": ("SINH(x)",),
    "asinh": ("1 / SQRT(1 + x * x)",),
    "acosh": ("1 / SQRT((x - 1) * (x + 1))",),
    "atanh": ("1 / ((1 - x) * (1 + x))",),
    "floor": ("0",),
    "ceil": ("0",),
    "round": ("0",),
    "elu": ("SEL(x > 0, 1, y + p0)",),
    "selu": ("SEL(y > 0, 1.0507009873554805, y + 1.7580993408473766)",),
    "silu": ("LOGISTIC(p0 * x) * (1 + p0 * x * LOGISTIC(0 - p0 * x))",),
    "scale": ("p0",),
    "shift": ("1",),
    "reciprocal_scale": ("0 - p0 / (x * x)",),
    "pow_const": ("SEL(p0 == 0, 0, p0 * POW(x, p0 - 1))",),
    "min_const": ("SEL(x > p0, 0, 1)",),
    "max_const": ("SEL(x < p0, 0, 1)",),
    "clip": ("SEL((x < p0) | (x > p1), 0, 1)",),
    "huber": ("2 * SEL(x > p0, p0, SEL(x < 0 - p0, 0 - p0, x))",),
    "leaky_relu": ("SEL(x > 0, 1, p0)",),
    "mish": ("TANH(SOFTPLUS(x)) + x * LOGISTIC(x) * (1 - TANH(SOFTPLUS(x)) * TANH(SOFTPLUS(x)))",),
    "hard_tanh": ("SEL((x < -1) | (x > 1), 0, 1)",),
    "hard_swish": ("SEL(x < -3, 0, SEL(x > 3, 1, (x + x + 3) / 6))",),
    "safe_sqrt": ("SEL(y == 0, 0, 0.5 / y)",),
    "less_const": ("0",),
    "less_equal_const": ("0",),
    "greater_const": ("0",),
    "greater_equal_const": ("0",),
    "equal_const": ("0",),
    "not_equal_const": ("0",),
    "add": ("1", "1"),
    "sub": ("1", "-1"),
    "mul": ("b", "a"),
    "div": ("1 / b", "0 - y / b"),
    "min": ("SEL(a < b, 1, 0)", "SEL(a < b, 0, 1)"),
    "max": ("SEL(a > b, 1, 0)", "SEL(a > b, 0, 1)"),
    "pow": ("SEL(b == 0, 0, b * POW(a, b - 1))", "SEL((a == 0) & (b >= 0), 0, y * LOG(a))"),
    "prelu": ("SEL(a > 0, 1, b)", "SEL(a > 0, 0, a)"),
    "less": ("0", "0"),
    "less_equal": ("0", "0"),
    "equal": ("0", "0"),
    "not_equal": ("0", "0"),
    "where_true": ("SEL(b != 0, 1, 0)", "0"),
    "where_false": ("SEL(b != 0, 0, 1)", "0"),
    # end of derivatives
}

# The same of functions that only other operations use.
PARTS = {
    # derived: parts, by tools/derive.py
    "squared_difference": ("2 * (a - b)", "2 * (b - a)"),
    "abs_difference": ("SEL(a > b, 1, SEL(a < b, -1, 0))", "SEL(a > b, -1, SEL(a < b, 1, 0))"),
    "binary_log_loss": (
        "(a - b) / (SEL(a < FLT_MIN, FLT_MIN, a) * SEL(1 - a < FLT_EPSILON, FLT_EPSILON, 1 - a))",
        "LOG(SEL(1 - a < FLT_MIN, FLT_MIN, 1 - a)) - LOG(SEL(a < FLT_MIN, FLT_MIN, a))",
    ),
    # end of parts
}

# The rows of unary.def, in their order, which numbers activations.
UNARY = [name for name, formulas in DERIVATIVES.items() if len(formulas) == 1]


_parsed_before: dict[str, ast.expr] = {}


def _parsed(formula: str) -> ast.expr:
    found = _parsed_before.get(formula)
    if found is None:
        found = _parsed_before[formula] = ast.parse(formula, mode="eval").body
    return found


def called(formula: str) -> set[str]:
    """The functions that a formula calls."""
    calls = [node.func for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Call)]
    return {f.id for f in calls if isinstance(f, ast.Name)}


def interpret(
    formula: str,
    names: Mapping[str, Any],
    number: Callable[[float], Any],
    call: Callable[[str, list[Any]], Any],
    operate: Callable[[type, Any, Any], Any],
) -> Any:
    """The value of a formula, of whatever kind the functions make.

    Args:
        formula: in Python's syntax.
        names: the values of variables.
        number: makes the value of a number.
        call: the value of a function, from its name and arguments.
        operate: the value of an operator of two operands, from its class in `ast`.
    """

    def value(part: ast.expr) -> Any:
        if isinstance(part, ast.Name):
            return names[part.id]
        if isinstance(part, ast.Call):
            assert isinstance(part.func, ast.Name)
            return call(part.func.id, [value(arg) for arg in part.args])
        if isinstance(part, ast.BinOp):
            return operate(type(part.op), value(part.left), value(part.right))
        if isinstance(part, ast.Compare):
            return operate(type(part.ops[0]), value(part.left), value(part.comparators[0]))
        return number(float(ast.literal_eval(part)))

    return value(_parsed(formula))
