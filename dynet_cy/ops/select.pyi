# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]
_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

class PickedExpression(Expression):
    """The result of `pick` and `pick_batch`; its indices can be changed."""
    def set_index(self, index: _Int | _Ints) -> None:
        """Pick another index; what depends on it is then recomputed."""

def pick(e: Expression, index: Expression | _Int = 0, dim: int = 0) -> PickedExpression:
    """The part of e at one index along an axis, which is removed."""

def pick_batch(e: Expression, indices: Expression | _Ints, dim: int = 0) -> PickedExpression:
    """`pick` with a separate index for each batch element."""

def pick_range(
    x: Expression, s: Expression | int, e: int | None = None, d: int = 0, length: int | None = None
) -> Expression:
    """The part of x from index s up to, but not including, e along an axis."""

def pickrange(x: Expression, s: int, e: int) -> Expression:
    """DyNet's old name for `pick_range`, along axis 0."""

def pick_batch_elem(x: Expression, v: Expression | int) -> Expression:
    """Batch element v of x, as an expression of one batch element."""

def pick_batch_elems(x: Expression, vs: Expression | _Ints) -> Expression:
    """Batch elements of x, in the given order; each may occur several times."""

def select_rows(x: Expression, rs: Expression | _Ints) -> Expression:
    """Rows of x, in the given order; each may occur several times."""

def select_cols(x: Expression, cs: Expression | _Ints) -> Expression:
    """Columns of x, in the given order; each may occur several times."""

def scatter_rows(x: Expression, rs: Expression | _Ints, n: int) -> Expression:
    """Add the rows of x to n rows of zeros, at given positions: the reverse of `select_rows`."""

def scatter_cols(x: Expression, cs: Expression | _Ints, n: int) -> Expression:
    """Add the columns of x to n columns of zeros, at given positions: the reverse of `select_cols`."""

def strided_select(
    x: Expression, strides: Sequence[int], range_from: Sequence[int], range_to: Sequence[int]
) -> Expression:
    """A range of elements with a step along each axis: NumPy's ``x[from:to:stride, ...]``."""

def sort(x: Expression, d: int = 0, descending: bool = False) -> Expression:
    """The elements sorted along an axis; gradients go back to the original positions."""

def argsort(x: Expression, d: int = 0, descending: bool = False) -> Expression:
    """The positions of the elements along an axis, in the order of `sort`: integers, without gradient."""

def topk(x: Expression, k: int, d: int = 0, largest: bool = True) -> tuple[Expression, Expression]:
    """The k greatest elements along an axis, the greatest first, and their positions."""

def kmax_pooling(x: Expression, k: int, d: int = 1) -> Expression:
    """The k greatest elements along an axis, in the order of x; of equal elements the first."""

def cumprod(x: Expression, d: int = 0) -> Expression:
    """Cumulative products of the elements along axis d; the result has the shape of x."""

def logcumsumexp(x: Expression, d: int = 0) -> Expression:
    """Logarithms of cumulative sums of exp(x) along axis d; the result has the shape of x."""
