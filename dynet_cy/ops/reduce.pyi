# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]
_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

def sum_elems(x: Expression) -> Expression:
    """Sum of all elements: a scalar for each batch element."""

def sum_dim(x: Expression, d: Sequence[int], b: bool = False, n: int = 0) -> Expression:
    """Sum along some axes."""

def sum_batches(x: Expression) -> Expression:
    """Sum of all batch elements: one batch element of the same shape."""

def mean_elems(x: Expression) -> Expression:
    """Mean of all elements: a scalar for each batch element."""

def mean_dim(x: Expression, d: Sequence[int], b: bool = False, n: int = 0) -> Expression:
    """Mean along some axes."""

def mean_batches(x: Expression) -> Expression:
    """Mean of all batch elements: one batch element of the same shape."""

def max_dim(x: Expression, d: int = 0) -> Expression:
    """Greatest element along axis d, which is removed; if several are equal, the first gets the gradient."""

def min_dim(x: Expression, d: int = 0) -> Expression:
    """Least element along axis d; see `max_dim`."""

def cumsum(x: Expression, d: int = 0) -> Expression:
    """Cumulative sums of the elements along axis d; the result has the shape of x."""

def argmax(x: Expression, gradient_mode: str | None = None, d: int = 0) -> Expression:
    """The index of the greatest element along an axis, which is removed, as a value of the graph, an integer; the first if several are equal."""

def argmin(x: Expression, d: int = 0) -> Expression:
    """The index of the least element along an axis, which is removed, as a value of the graph; see `argmax`."""

def squared_norm(x: Expression) -> Expression:
    """Sum of the squares of all elements."""

def l2_norm(x: Expression) -> Expression:
    """Square root of the sum of the squares of all elements; its gradient at zero is zero."""

def norm(x: Expression, p: float = 2, axis: _Int | _Ints | None = None, keepdims: bool = False) -> Expression:
    """The p-norm ``(sum abs(x)^p)^(1/p)`` along some axes."""

def moment_elems(x: Expression, r: int) -> Expression:
    """Mean of the r-th powers of all elements: a scalar for each batch element."""

def moment_dim(x: Expression, d: Sequence[int], r: int, b: bool = False, n: int = 0) -> Expression:
    """Mean of the r-th powers along some axes; see `mean_dim`."""

def moment_batches(x: Expression, r: int) -> Expression:
    """Mean of the r-th powers of all batch elements: one batch element of the same shape."""

def std_elems(x: Expression) -> Expression:
    """Standard deviation of all elements: a scalar for each batch element."""

def std_dim(x: Expression, d: Sequence[int], b: bool = False, n: int = 0) -> Expression:
    """Population standard deviation along some axes."""

def std_batches(x: Expression) -> Expression:
    """Standard deviation over the batch elements; see `std_dim`."""
