"""Elementwise functions as ONNX operations, from the formulas of their kernels.

The formulas come from the rows of `unary.def` and `binary.def` in `include/dynet_cy`, with numbers instead of
``C(1.f)``. They consist of arithmetic, comparisons joined by ``&`` and ``|``, ``SEL(condition, a, b)`` and functions in
upper case, applied to x, or a and b, and the constants p0 and p1.
"""

from __future__ import annotations

import ast

from dynet_cy.onnx.writer import Value, Writer
from dynet_cy.ops.formulas import called, interpret

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
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "div": "a / b",
    "min": "SEL((a < b) | (a != a), a, b)",
    "max": "SEL((a > b) | (a != a), a, b)",
    "pow": "POW(a, b)",
    "prelu": "SEL(a > 0, a, b * a)",
    "less": "SEL(a < b, 1, 0)",
    "less_equal": "SEL(a <= b, 1, 0)",
    "equal": "SEL(a == b, 1, 0)",
    "not_equal": "SEL(a != b, 1, 0)",
    "where_true": "SEL(b != 0, a, 0)",
    "where_false": "SEL(b != 0, 0, a)",
    "logit_loss": "SEL(a > 0, SEL(b == 1, 0, (1 - b) * a), SEL(b == 0, 0, 0 - b * a)) + LOG1P(EXP(0 - ABS(a)))",
    # end of formulas
}

# The ONNX operators for functions: most have the same names. And those for Python's operators.
_SAME = "Abs Sqrt Exp Log Pow Tanh Softplus Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Floor Ceil Neg "
_SAME += "Sign Softsign Selu Relu Min Max"
_FUNCTIONS = {"SEL": "Where", "LOGISTIC": "Sigmoid", **{name.upper(): name for name in _SAME.split()}}
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

# The operators for functions that combine all elements into one.
_SUMS = {"SUM": "ReduceSum", "SUM_SQUARE": "ReduceSumSquare", "L1": "ReduceL1", "L2": "ReduceL2"}

# Functions without an ONNX operator of their own. e^x - 1 = tanh(x/2) (e^x + 1) is exact near 0 too.
_COMPOSED = {"EXPM1": "TANH(0.5 * x) * (EXP(x) + 1)", "LOG1P": "LOG(1 + x)"}


def can_write(formula: str) -> bool:
    """Whether ONNX has all functions of a formula."""
    return called(formula) <= {*_FUNCTIONS, *_SUMS, *_COMPOSED}


def write(w: Writer, formula: str, **values: Value | float) -> Value:
    """Add the operations of a formula.

    Args:
        w: the graph under construction.
        formula: a formula for which `can_write` is true.
        values: the variables of the formula, whose shapes broadcast.
    """

    def number(x: float) -> Value:
        return Value(w.constant(x), (), w.one, False)

    def call(name: str, args: list[Value]) -> Value:
        if name in _SUMS:
            x = w.flat(args[0])
            return x._replace(name=w.add(_SUMS[name], x.name, w.ints(-1), keepdims=1), dims=(w.one,))
        return write(w, _COMPOSED[name], x=args[0]) if name in _COMPOSED else w.combine(_FUNCTIONS[name], *args)

    def operate(kind: type, a: Value, b: Value) -> Value:
        return w.combine("Not", operate(ast.Eq, a, b)) if kind is ast.NotEq else w.combine(_OPERATORS[kind], a, b)

    names = {name: x if isinstance(x, Value) else number(x) for name, x in values.items()}
    result: Value = interpret(formula, names, number, call, operate)
    return result
