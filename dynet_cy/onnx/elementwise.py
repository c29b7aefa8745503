"""Converters of elementwise functions, of one argument and of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE, Converter, converts
from dynet_cy.onnx.formulas import FORMULAS, can_write, write
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer

# ONNX operators that do the same.
_SAME = {
    "negate": "Neg",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "logistic": "Sigmoid",
    "softplus": "Softplus",
    "rectify": "Relu",
    "sqrt": "Sqrt",
    "safe_sqrt": "Sqrt",
    "abs": "Abs",
    "softsign": "Softsign",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "floor": "Floor",
    "ceil": "Ceil",
    "floor_straight_through": "Floor",
    "ceil_straight_through": "Ceil",
}


@converts(*_SAME)
def same(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add(_SAME[step.op], args[0].name)


@converts("nobackprop", "flip_gradient", "scale_gradient", "to_device")
def identity(w: Writer, step: Step, args: list[Value]) -> str:
    return args[0].name


F = TypeVar("F", bound=Callable[[Writer, str], str])


def formula(*names: str) -> Callable[[F], F]:
    """A function of a tensor that writes operations of these names."""

    def put(write: F) -> F:
        converts(*names)(lambda w, step, args: write(w, args[0].name))
        return write

    return put


@formula("hard_tanh")
def hard_tanh(w: Writer, x: str) -> str:
    return w.add("Clip", x, w.constant(-1), w.constant(1))


@formula("round", "round_straight_through")
def rounded(w: Writer, x: str) -> str:
    # Halves are rounded away from zero; ONNX rounds them to even numbers.
    size = w.add("Abs", x)
    whole = w.add("Floor", size)
    up = w.add("GreaterOrEqual", w.add("Sub", size, whole), w.constant(0.5))
    up = w.add("Cast", up, to=w.helper.TensorProto.FLOAT)
    return w.add("Mul", w.add("Sign", x), w.add("Add", whole, up))


@converts("elu", "leaky_relu")
def with_alpha(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Elu" if step.op == "elu" else "LeakyRelu", args[0].name, alpha=w.number(0))


@converts("selu")
def selu(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Selu", args[0].name, alpha=1.6732632423543772, gamma=1.0507009873554805)


def from_formula(text: str) -> Converter:
    """The converter of a function that is written as its kernel computes it."""

    def converter(w: Writer, step: Step, args: list[Value]) -> str:
        numbers = {name: w.constant(w.number(k)) for k, name in enumerate(("p0", "p1")) if name in text}
        return write(w, text, {"x": args[0].name, **numbers})

    return converter


# Operators whose second argument is the constant of the node.
_WITH_CONSTANT = {
    "scale": "Mul",
    "shift": "Add",
    "pow_const": "Pow",
    "min_const": "Min",
    "max_const": "Max",
}


@converts(*_WITH_CONSTANT)
def with_constant(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add(_WITH_CONSTANT[step.op], args[0].name, w.constant(w.number(0)))


@converts("reciprocal_scale")
def reciprocal_scale(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Div", w.constant(w.number(0)), args[0].name)


@converts("clip")
def clip(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Clip", args[0].name, w.constant(w.number(0)), w.constant(w.number(1)))


def huber_of(w: Writer, x: str, c: float) -> str:
    """x^2 up to c, c (2 |x| - c) beyond: with m = min(|x|, c), m (2 |x| - m)."""
    size = w.add("Abs", x)
    least = w.add("Min", size, w.constant(c))
    return w.add("Mul", least, w.add("Sub", w.add("Mul", size, w.constant(2)), least))


@converts("huber")
def huber(w: Writer, step: Step, args: list[Value]) -> str:
    return huber_of(w, args[0].name, w.number(0))


_COMPARISONS = {
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "equal": "Equal",
    "not_equal": "Equal",
}


def compared(w: Writer, name: str, a: str, b: str) -> str:
    found = w.add(_COMPARISONS[name], a, b)
    return w.add("Cast", w.add("Not", found) if name == "not_equal" else found, to=w.helper.TensorProto.FLOAT)


@converts(*(f"{name}_const" for name in _COMPARISONS))
def compared_const(w: Writer, step: Step, args: list[Value]) -> str:
    return compared(w, step.op[: -len("_const")], args[0].name, w.constant(w.number(0)))


# All other functions of one argument.
for _name, _formula in FORMULAS.items():
    if _name not in CONVERTERS and _name not in NOT_EXPORTABLE and can_write(_formula):
        converts(_name)(from_formula(_formula))

_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "min": "Min", "max": "Max", "pow": "Pow"}


def pair(w: Writer, step: Step, args: list[Value]) -> tuple[str, str]:
    """Two tensors that broadcast as the expressions do."""
    axes = max(len(x.dims) for x in args)
    has_batch = any(x.has_batch for x in args)
    a, b = (w.lifted(x, axes, has_batch) for x in args)
    return a, b


def broadcast(w: Writer, step: Step, args: list[Value], name: str) -> str:
    """A result of `pair` in the shape of the step, which may have fewer trailing axes of size 1."""
    axes = max(len(x.dims) for x in args)
    return name if len(step.dims) == axes else w.to(name, any(x.each for x in args), step.dims, step.batch)


@converts(*_BINARY)
def binary(w: Writer, step: Step, args: list[Value]) -> str:
    return broadcast(w, step, args, w.add(_BINARY[step.op], *pair(w, step, args)))


@converts("less", "less_equal", "equal", "not_equal")
def comparison(w: Writer, step: Step, args: list[Value]) -> str:
    return broadcast(w, step, args, compared(w, step.op, *pair(w, step, args)))


@converts("prelu")
def prelu(w: Writer, step: Step, args: list[Value]) -> str:
    a, b = pair(w, step, args)
    return broadcast(w, step, args, w.add("Where", w.add("Greater", a, w.constant(0)), a, w.add("Mul", b, a)))


@converts("logit_loss")
def logit_loss(w: Writer, step: Step, args: list[Value]) -> str:
    """max(a, 0) - a b + log(1 + e^-|a|)."""
    a, b = pair(w, step, args)
    linear = w.add("Sub", w.add("Relu", a), w.add("Mul", a, b))
    return broadcast(w, step, args, w.add("Add", linear, w.add("Softplus", w.add("Neg", w.add("Abs", a)))))


@converts("where_true", "where_false")
def where(w: Writer, step: Step, args: list[Value]) -> str:
    a, b = pair(w, step, args)
    is_zero, zero = w.add("Equal", b, w.constant(0)), w.constant(0, np.int32 if step.integers else np.float32)
    chosen = (zero, a) if step.op == "where_true" else (a, zero)
    return broadcast(w, step, args, w.add("Where", is_zero, *chosen))


# ---- integers: int32 in files too


@converts("to_float")
def to_float(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Cast", args[0].name, to=w.helper.TensorProto.FLOAT)


@converts("to_int")
def to_int(w: Writer, step: Step, args: list[Value]) -> str:
    return w.add("Cast", args[0].name, to=w.helper.TensorProto.INT32)


_OF_INTEGERS = {"int_add": "Add", "int_sub": "Sub", "int_mul": "Mul", "int_min": "Min", "int_max": "Max"}


def integers(w: Writer, step: Step, args: list[Value]) -> tuple[str, str]:
    """The two arguments, of which one may be a constant: attribute 0 says which."""
    if len(args) == 2:
        return pair(w, step, args)
    word = w.whole(1)
    constant = w.constant(word - (1 << 32) if word >= 1 << 31 else word, np.int32)
    return (constant, args[0].name) if w.whole(0) == 1 else (args[0].name, constant)


@converts(*_OF_INTEGERS)
def of_integers(w: Writer, step: Step, args: list[Value]) -> str:
    return broadcast(w, step, args, w.add(_OF_INTEGERS[step.op], *integers(w, step, args)))


def divided(w: Writer, step: Step, args: list[Value]) -> tuple[str, str, str]:
    """The quotient, the remainder, and where the divisor is 0: there runtimes cannot divide, and the remainder is 0."""
    a, b = integers(w, step, args)
    zero = w.add("Equal", b, w.constant(0, np.int32))
    b = w.add("Where", zero, w.constant(1, np.int32), b)
    remainder = w.add("Mod", a, b, fmod=0)
    return w.add("Div", w.add("Sub", a, remainder), b), remainder, zero


@converts("int_remainder")
def int_remainder(w: Writer, step: Step, args: list[Value]) -> str:
    _, found, _ = divided(w, step, args)
    return broadcast(w, step, args, found)


@converts("int_floor_divide")
def int_floor_divide(w: Writer, step: Step, args: list[Value]) -> str:
    """ONNX drops the fraction; without the remainder, the quotient has none."""
    found, _, zero = divided(w, step, args)
    return broadcast(w, step, args, w.add("Where", zero, w.constant(0, np.int32), found))


@converts("int_less", "int_less_equal", "int_equal", "int_not_equal")
def comparison_of_integers(w: Writer, step: Step, args: list[Value]) -> str:
    return broadcast(w, step, args, compared(w, step.op[len("int_") :], *integers(w, step, args)))


_MANY = {"esum": "Sum", "average": "Mean", "emax": "Max"}


@converts(*_MANY)
def many(w: Writer, step: Step, args: list[Value]) -> str:
    has_batch = any(x.has_batch for x in args)
    same_axes = [w.with_axes(x, step.dims) for x in args]
    return w.add(_MANY[step.op], *[w.lifted(x, len(step.dims), has_batch) for x in same_axes])
