"""Checks and conversions of arguments, shared by the functions of this package."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, cast

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import Expression
from dynet_cy.graph.nodes import expect
from dynet_cy.hints.equivalents import of_arguments
from dynet_cy.ops.inputs import inputTensor, zeros
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.select import pick
from dynet_cy.ops.shape import concatenate_cols, reshape

MOST_ALONG = 2**31 - 1  # elements along an axis, as in core/tensor.pxd
MOST_ELEMENTS = 2**44  # of an expression, as in graph/making.pyx

Number = Union[float, "np.floating[Any]", "np.integer[Any]"]
Tensor = Union[Expression, "npt.NDArray[Any]"]
Operand = Union[Tensor, Number]
Input = Union[Expression, "npt.NDArray[Any]", "Sequence[Any]"]
"""An input of layers and networks: an expression, an array, or a list of numbers."""


Function = TypeVar("Function", bound="Callable[..., Any]")


def known_arguments(function: Function, place: str = "argument") -> Function:
    """Add advice to errors about arguments of a function, as core/keywords does
    in C; `place`: the column of the tables of equivalents with such arguments."""

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        try:
            return function(*args, **settings)
        except TypeError:
            text = of_arguments(function, settings, place, len(args))
            if not text:
                raise
        raise TypeError(text)

    return cast(Function, call)


def tensor(x: object, function: str, name: str, device: str = "") -> Expression:
    """An expression as it is; an array, a list or a number as an input, on the device or where it is first used."""
    if isinstance(x, Expression):
        return x
    if x is None or isinstance(x, (str, bytes, complex)):
        raise TypeError(f"{function}: {name} must be an Expression, a number or an array, not {type(x).__name__}")
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{function}: {name} must be an Expression, a number or an array, not {type(x).__name__}")
    return inputTensor(array if array.ndim else array.reshape(1), device=device)


def as_input(x: Input, reader: str, argument: str = "x") -> Expression:
    """An expression as it is; an array or a list of numbers as an input.

    Args:
        reader: the layer or network that reads it, for errors
    """
    if isinstance(x, Expression):
        return x
    numbers = np.empty(0, object)
    if isinstance(x, np.ndarray) or isinstance(x, (list, tuple)) and not _holds_expressions(x):
        with contextlib.suppress(ValueError):  # lists of different lengths
            numbers = np.asarray(x)
    if numbers.dtype.kind not in "fiub" or numbers.size == 0:
        why = "; `output()` of a state before its first input is None" if x is None else _joined(x)
        expected = "expected an expression, an array or a list of numbers"
        raise TypeError(f"{reader}: argument {argument}: {expected}, got {x!r:.80}{why}")
    return inputTensor(numbers)


def matrix(xs: Any) -> Expression | None:
    """What a network reads by columns, as an expression: an expression, or an array of numbers with two axes; None for
    a list of inputs."""
    if isinstance(xs, np.ndarray) and xs.ndim == 2 and xs.dtype.kind in "fiub":
        return inputTensor(xs)
    return xs if isinstance(xs, Expression) else None


def columns(x: Expression, rows: int, reader: str) -> list[Expression]:
    """The inputs of a network, step by step: the columns of a matrix, or a single vector.

    Args:
        rows: how many rows columns have
        reader: the network, for errors
    """
    shape = shape_of(x)
    if len(shape) > 2 or shape[:1] != (rows,):
        hint = "; write x.T" if shape[1:] == (rows,) else ""
        raise DimensionError(f"{reader}: argument xs: expected columns of {rows} rows, got shape {shape}{hint}")
    return [x] if len(shape) == 1 else [pick(x, i, 1) for i in range(shape[1])]


def by_columns(
    read: Callable[[list[Expression]], list[Expression]], x: Expression, rows: int, outputs: int, reader: str
) -> Expression:
    """The outputs of a network for the columns of a matrix, as a matrix; for a vector, a vector."""
    found = read(columns(x, rows, reader))
    if len(shape_of(x)) == 1:
        return found[0]
    return concatenate_cols(found) if found else zeros((outputs, 0), x.dim()[1])


def _holds_expressions(x: Any) -> bool:
    """Whether a list has expressions, which NumPy would replace by their values."""
    return isinstance(x, Expression) or isinstance(x, (list, tuple)) and any(map(_holds_expressions, x))


def _joined(x: object) -> str:
    """Advice for a list of expressions in place of one."""
    return "; join them with dy.concatenate_cols" if isinstance(x, (list, tuple)) and _holds_expressions(x) else ""


def expression(x: object, function: str, name: str = "x") -> Expression:
    """An expression, or a clear error."""
    if not isinstance(x, Expression):
        raise TypeError(f"{function}: {name} must be an Expression, not {type(x).__name__}{_joined(x)}")
    return x


def log_probabilities(x: object, function: str, name: str) -> Expression:
    """An expression; a warning if it is one of scores or probabilities."""
    expect(x, "log-probabilities", function, name)
    return expression(x, function, name)


def shape_of(x: Expression) -> tuple[int, ...]:
    """The shape of the expression; for a lookup table the rows are last, unlike in its `shape`."""
    return x.dim()[0]


def axis_in(x: Expression, axis: Any, function: str, name: str = "axis") -> int:
    """The index of an axis of x; a negative one counts from the end."""
    n = len(shape_of(x))
    if not hasattr(axis, "__index__"):
        raise TypeError(f"{function}: {name} must be a whole number, not {axis!r}")
    if not -n <= int(axis) < n:
        raise DimensionError(f"{function}: {name} is {axis}, but x has {n} axes")
    return int(axis) % n


def size_in(value: Any, function: str, name: str) -> int:
    """A number of elements, checked."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{function}: {name} must be a whole number, not {value!r}")
    if not 0 <= value <= MOST_ALONG:
        raise ValueError(f"{function}: {name} must be from 0 to {MOST_ALONG} (2^31 - 1), not {value}")
    return int(value)


def are_floats(values: Any) -> bool:
    """Whether these are floats, and not whole numbers so large that NumPy makes floats of them."""
    array = np.asarray(values)
    if array.dtype.kind != "f" or not (np.abs(array) >= 2**63).any():
        return array.dtype.kind == "f"
    return any(isinstance(value, (float, np.floating)) for value in np.asarray(values, object).ravel())


def integers(values: Any, function: str, name: str) -> npt.NDArray[Any]:
    """An array of whole numbers, checked."""
    array = np.asarray(values)
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and array.max(initial=0) < 2**63):
        return array
    for value in np.asarray(values, object).ravel():  # NumPy has no type for large ones
        if isinstance(value, (int, np.integer)) and abs(int(value)) > MOST_ALONG:
            raise IndexError(f"{function}: {name} has {value}, but an axis can have {MOST_ALONG} elements (2^31 - 1)")
    kind = "texts" if array.dtype.kind in "US" else array.dtype
    raise TypeError(f"{function}: {name} must be whole numbers, not {kind}")


def positive(value: Any, function: str, name: str) -> float:
    """A number above 0, checked."""
    if isinstance(value, (str, bytes, Expression)) or not 0 < float(value) < math.inf:
        raise ValueError(f"{function}: {name} must be a number above 0, not {value!r}")
    return float(value)


def along(x: Expression, axes: Sequence[int], n: int) -> Expression:
    """x, whose axes become these of n; the others get size 1, so that it broadcasts."""
    shape = [1] * n
    for size, axis in zip(shape_of(x), axes):
        shape[axis] = size
    return reshape(x, shape)
