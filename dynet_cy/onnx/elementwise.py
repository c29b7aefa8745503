"""Converters of elementwise functions, of one argument and of two."""

from __future__ import annotations

import numpy as np

from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE, converts
from dynet_cy.onnx.formulas import FORMULAS, can_write, write
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer

# Formulas that ONNX needs fewer operators for, or that its operators get right. It rounds halves to even numbers.
_ROUND = "SIGN(x) * (FLOOR(ABS(x)) + SEL(ABS(x) - FLOOR(ABS(x)) >= 0.5, 1, 0))"
_OWN = {
    "negate": "NEG(x)",
    "rectify": "RELU(x)",
    "softsign": "SOFTSIGN(x)",
    "selu": "SELU(x)",
    "hard_tanh": "MIN(MAX(x, -1), 1)",
    "round": _ROUND,
    "round_straight_through": _ROUND,
    "floor_straight_through": "FLOOR(x)",
    "ceil_straight_through": "CEIL(x)",
    "min_const": "MIN(x, p0)",
    "max_const": "MAX(x, p0)",
    "clip": "MIN(MAX(x, p0), p1)",
    "huber": "MIN(ABS(x), p0) * (2 * ABS(x) - MIN(ABS(x), p0))",
    "min": "MIN(a, b)",
    "max": "MAX(a, b)",
    "logit_loss": "RELU(a) - a * b + SOFTPLUS(0 - ABS(a))",
    "pairwise_rank_loss": "RELU(b - a + p0)",
    "gru_h": "a + b * (c - a)",
}
ROWS = {**FORMULAS, **_OWN}


def fitted(w: Writer, step: Step, x: Value) -> Value:
    """A value in the shape of the step, which may have fewer trailing axes of size 1."""
    return x._replace(dims=step.dims) if len(x.dims) == len(step.dims) else w.with_axes(x, step.dims)


@converts("nobackprop", "scale_gradient", "to_device")
def identity(w: Writer, step: Step, args: list[Value]) -> str:
    return args[0].name


@converts("elu", "leaky_relu")
def with_alpha(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Elu" if step.op == "elu" else "LeakyRelu", args[0].name, alpha=w.number(0))


@converts("where_true", "where_false")
def where(w: Writer, step: Step, args: list[Value]) -> Value:
    a, b = args
    zero = Value(w.constant(0, np.int32 if step.integers else np.float32), (), w.one, False)
    chosen = (zero, a) if step.op == "where_true" else (a, zero)
    return fitted(w, step, w.combine("Where", write(w, "b == 0", b=b), *chosen))


def of_row(w: Writer, step: Step, args: list[Value]) -> Value:
    """An operation by its row."""
    return by_formula(w, step, args, ROWS[step.op])


def by_formula(w: Writer, step: Step, args: list[Value], formula: str) -> Value:
    """An operation by a formula of one argument x, or of several, a, b and c, and the constants of the node."""
    values: dict[str, Value | float] = dict(zip("x" if len(args) == 1 else "abc", args))
    values.update((f"p{k}", w.number(k)) for k in (0, 1) if f"p{k}" in formula)
    return fitted(w, step, write(w, formula, **values))


converts(*[op for op in ROWS if op not in {*CONVERTERS, *NOT_EXPORTABLE} and can_write(ROWS[op])])(of_row)


# ---- integers: int32 in files too


@converts("to_float", "to_int")
def cast(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Cast", args[0].name, to=w.helper.TensorProto.INT32 if step.integers else w.helper.TensorProto.FLOAT)


_OF_INTEGERS = {
    "int_add": "a + b",
    "int_sub": "a - b",
    "int_mul": "a * b",
    "int_min": "MIN(a, b)",
    "int_max": "MAX(a, b)",
    "int_less": "a < b",
    "int_less_equal": "a <= b",
    "int_equal": "a == b",
    "int_not_equal": "a != b",
}


def integers(w: Writer, step: Step, args: list[Value]) -> dict[str, Value]:
    """The two arguments, of which one may be a constant: attribute 0 says which."""
    if len(args) == 1:
        args = [*args, Value(w.constant(w.whole(1), np.int32), (), w.one, False)]
        args = args[::-1] if w.whole(0) == 1 else args
    return {"a": args[0], "b": args[1]}


@converts(*_OF_INTEGERS)
def of_integers(w: Writer, step: Step, args: list[Value]) -> Value:
    found = write(w, _OF_INTEGERS[step.op], **integers(w, step, args))
    if not step.integers:
        found = found._replace(name=w.add("Cast", found.name, to=w.helper.TensorProto.FLOAT))
    return fitted(w, step, found)


@converts("int_remainder", "int_floor_divide")
def divided(w: Writer, step: Step, args: list[Value]) -> Value:
    """Where the divisor is 0, runtimes cannot divide, and the result is 0. ONNX drops the fraction of a quotient;
    without the remainder, it has none."""
    values = integers(w, step, args)
    zero, one = (Value(w.constant(n, np.int32), (), w.one, False) for n in (0, 1))
    by_zero = w.combine("Equal", values["b"], zero)
    values["b"] = w.combine("Where", by_zero, one, values["b"])
    remainder = w.combine("Mod", values["a"], values["b"])
    if step.op == "int_remainder":
        return fitted(w, step, remainder)
    found = write(w, "(a - r) / b", **values, r=remainder)
    return fitted(w, step, w.combine("Where", by_zero, zero, found))


_MANY = {"esum": "Sum", "average": "Mean", "emax": "Max"}


@converts(*_MANY)
def many(w: Writer, step: Step, args: list[Value]) -> Value:
    return w.combine(_MANY[step.op], *[w.with_axes(x, step.dims) for x in args])
