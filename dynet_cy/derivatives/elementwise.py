"""Derivatives of elementwise functions, from the formulas of their kernels."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from dynet_cy.core.devices import device_name
from dynet_cy.derivatives.steps import Contribution, Step
from dynet_cy.derivatives.table import composed, each, rule
from dynet_cy.graph.expressions import Expression
from dynet_cy.graph.making import to_device
from dynet_cy.graph.nodes import drawn_again
from dynet_cy.ops import elementwise
from dynet_cy.ops.elementwise import bmax, cdiv, cmult, equal, where
from dynet_cy.ops.formulas import DERIVATIVES, UNARY, called, interpret

_FLOAT = np.finfo(np.float32)
_CONSTANTS = {"FLT_MIN": float(_FLOAT.tiny), "FLT_EPSILON": float(_FLOAT.eps)}


def _select(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; each is a number or an expression."""
    if not isinstance(condition, Expression):
        return a if condition else b
    if isinstance(a, Expression) or isinstance(b, Expression):
        return where(condition, a, b)
    return condition * (a - b) + b if b else condition * a


def _call(name: str, args: list[Any]) -> Any:
    if name == "SEL":
        return _select(*args)
    return getattr(elementwise, name.lower())(*args)


def _subtract(a: Any, b: Any) -> Any:
    return a - b if isinstance(a, Expression) or a else -b


def _multiply(a: Any, b: Any) -> Any:
    return cmult(a, b) if isinstance(a, Expression) and isinstance(b, Expression) else a * b


def _divide(a: Any, b: Any) -> Any:
    return cdiv(a, b) if isinstance(a, Expression) and isinstance(b, Expression) else a / b


def _equal(a: Any, b: Any) -> Any:
    if isinstance(b, Expression):
        a, b = b, a
    return equal(a, b) if isinstance(a, Expression) else a == b


def _either(a: Any, b: Any) -> Any:
    return bmax(a, b) if isinstance(a, Expression) and isinstance(b, Expression) else a or b


# What Python's operators do to numbers and expressions.
_OPERATORS: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: _subtract,
    ast.Mult: _multiply,
    ast.Div: _divide,
    ast.BitAnd: _multiply,
    ast.BitOr: _either,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: _equal,
    ast.NotEq: lambda a, b: 1 - _equal(a, b),
}


def derivative(formula: str, names: dict[str, Any]) -> Any:
    """A formula of derivatives as an expression, or a number."""
    return interpret(formula, {**_CONSTANTS, **names}, float, _call, lambda kind, a, b: _OPERATORS[kind](a, b))


def times(dy: Expression, factor: Any) -> Contribution:
    """The gradient times a derivative, which is a number or an expression."""
    if isinstance(factor, Expression):
        return cmult(dy, factor)
    return None if factor == 0 else dy if factor == 1 else dy * factor


def by_formula(step: Step, name: str, i: int) -> Any:
    """The derivative of an elementwise function of a step's arguments by argument number i."""
    first, last = step.x(0), step.x(-1)
    names = {"x": first, "a": first, "b": last, "y": step.y, "p0": step.number(0), "p1": step.number(1)}
    return derivative(DERIVATIVES[name][i], names)


_APART = {"safe_sqrt"}  # with a rule of its own
_FUNCTIONS = {"SEL", *(name.upper() for name in elementwise.__dict__)}
_WRITTEN = [
    name
    for name, formulas in DERIVATIVES.items()
    if name not in _APART and all(called(formula) <= _FUNCTIONS for formula in formulas)
]


@each(*_WRITTEN)
def row(step: Step, i: int) -> Contribution:
    return times(step.dy, by_formula(step, step.node.op, i))


@each("safe_sqrt")
def safe_sqrt(step: Step, i: int) -> Contribution:
    """Zero at zero, and so are further derivatives: nothing is divided by zero there."""
    zero = equal(step.y, 0)
    return cmult(step.dy, cdiv(0.5 * (1 - zero), step.y + zero))


@each("floor_straight_through", "ceil_straight_through", "round_straight_through", "argmax_straight_through", "noise")
def unchanged(step: Step, i: int) -> Contribution:
    return step.dy


@each("scale_gradient")
def scale_gradient(step: Step, i: int) -> Contribution:
    return times(step.dy, step.number(0))


@each("to_device")
def move(step: Step, i: int) -> Contribution:
    return to_device(step.dy, device_name(step.word(0)))


@each("dropout", "dropout_dim", "dropout_batch", "block_dropout")
def masked(step: Step, i: int) -> Contribution:
    """Draws the mask of forward again."""
    return drawn_again(step.graph, step.node.number, step.dy)


# ---- many arguments


@rule("esum")
def esum(step: Step) -> list[Contribution]:
    return [step.dy for _ in step.node.live]


@rule("average")
def average(step: Step) -> list[Contribution]:
    part = step.dy * (1 / len(step.node.args))
    return [part for _ in step.node.live]


@composed("emax")
def emax(step: Step, xs: list[Expression]) -> Expression:
    """Of equal arguments the first is the greatest."""
    greatest = xs[-1]
    for x in reversed(xs[:-1]):
        greatest = bmax(greatest, x)
    return greatest


@composed("gates")
def gates(step: Step, xs: list[Expression]) -> Expression:
    """Sums of products of activations, which plans make of single operations."""
    odd = len(xs) % 2
    terms = xs[:odd]
    for k in range(odd, len(xs), 2):
        word = step.word((k - odd) // 2)
        both = [
            getattr(elementwise, UNARY[which - 1])(x) if which else x
            for x, which in zip(xs[k : k + 2], (word & 0xFF, word >> 8 & 0xFF))
        ]
        terms.append(cmult(*both))
    return elementwise.esum(terms)
