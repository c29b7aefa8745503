# Written by tools/derive.py
from collections.abc import Iterable, Sequence

from dynet_cy.graph.expressions import Expression

def reshape(x: Expression, d: float | Sequence[float], batch_size: float = 1, order: str = "F") -> Expression:
    """Change the shape; the elements keep their order, column by column."""

def transpose(x: Expression, dims: Sequence[int] = (1, 0)) -> Expression:
    """The axes in another order; for a matrix, its transpose."""

def concatenate(xs: Iterable[Expression], d: int = 0) -> Expression:
    """Expressions side by side along one axis."""

cat = concatenate

def concatenate_cols(xs: Iterable[Expression]) -> Expression:
    """Columns, and matrices column by column, side by side; see `concatenate`."""

def concatenate_to_batch(xs: Iterable[Expression]) -> Expression:
    """Expressions of one shape as the batch elements of one expression."""

def fold_rows(x: Expression, nrows: int = 2) -> Expression:
    """Sums of groups of nrows consecutive rows."""

def nobackprop(x: Expression) -> Expression:
    """x as a constant: no gradient passes through it."""

def flip_gradient(x: Expression) -> Expression:
    """x, whose gradient is negated in backward (Ganin & Lempitsky 2015)."""

def scale_gradient(x: Expression, lambd: float = 1.0) -> Expression:
    """x, whose gradient is multiplied by lambd in backward."""
