# Written by tools/derive.py
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Shape: TypeAlias = int | tuple[int, ...] | list[int]
_Number: TypeAlias = float | np.floating[Any] | np.integer[Any]

def constant(dim: _Shape, val: _Number, batch_size: int = 1) -> Expression:
    """A tensor with the same number everywhere."""

def zeros(dim: _Shape, batch_size: int = 1) -> Expression:
    """A tensor of zeros; see `constant`."""

zeroes = zeros

def ones(dim: _Shape, batch_size: int = 1) -> Expression:
    """A tensor of ones; see `constant`."""

class InputExpression(Expression):
    """An input whose value can be changed; values that depend on it are then computed again."""
    def set(self, values: npt.ArrayLike) -> None:
        """Set the value."""

def scalarInput(s: npt.ArrayLike, device: str = "") -> InputExpression:
    """One number as an input of shape ``{1}``; `set` changes it later."""

def inputVector(v: npt.ArrayLike, device: str = "") -> InputExpression:
    """A list of n numbers as an input of shape ``{n}``; `set` changes it later."""

def vecInput(dim: int, device: str = "") -> InputExpression:
    """An input of shape ``{dim}``, zeros until `set` is called."""

def inputTensor(
    arr: npt.ArrayLike, batched: bool = False, device: str = "", reusable_expr: bool = False
) -> InputExpression:
    """An array as an input."""

def inputTensorTranspose(
    arr: npt.ArrayLike, dim: _Shape | None = None, batch_size: int = 1, device: str = ""
) -> InputExpression:
    """A flat list of numbers as an input of any shape, column by column and then batch by batch."""

def sparse_inputTensor(
    idxs: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]],
    values: npt.ArrayLike,
    shape: _Shape,
    batched: bool = False,
    defval: _Number = 0,
    device: str = "",
) -> InputExpression:
    """An input that is constant except for a few elements."""

def inputMatrix(v: npt.ArrayLike, d: Iterable[int]) -> InputExpression:
    """A flat list of numbers as a matrix, column by column."""

def matInput(d1: int, d2: int) -> InputExpression:
    """An input of shape ``{d1,d2}``, zeros until `set` is called."""

def input_indices(indices: npt.ArrayLike, batched: bool = False, device: str = "") -> Expression:
    """Integers (int32) as an input, to be used as indices, labels or masks: values of the graph, which `set` changes."""

def one_hot(d: int, idx: Expression | int | Sequence[int], device: str = "") -> Expression:
    """Vectors with a single 1 and otherwise zeros."""
