"""Reductions composed of ops."""

from __future__ import annotations

from collections.abc import Sequence

from dynet_cy.functions.arguments import axis_in, expression, known_arguments, shape_of
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.select import cumprod, pick_range
from dynet_cy.ops.shape import reshape

__all__ = ["prod"]


@known_arguments
def prod(x: Expression, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Expression:
    """Products of the elements along some axes; the gradient is correct even where elements are 0.

    Args:
        x: any expression.
        axis: one axis, several, or None for all (default); negative ones count from the end.
        keepdims: whether these axes stay, with one element each (default: False).

    Returns:
        An expression with the remaining axes, ``{1}`` if there are none.

    Raises:
        DimensionError: there is no such axis.
        TypeError: x is not an expression, or an axis is not a whole number.

    Example:
        >>> dy.prod(dy.inputVector([2, 3, 4])).value()
        24.0
    """
    shape = shape_of(expression(x, "prod"))
    named = range(len(shape)) if axis is None else axis if isinstance(axis, (list, tuple)) else [axis]
    over = {axis_in(x, k, "prod") for k in named}
    for k in sorted(over):
        x = pick_range(cumprod(x, k), shape[k] - 1, shape[k], k)
    kept = [1 if k in over else n for k, n in enumerate(shape)]
    return reshape(x, tuple(kept if keepdims else (n for k, n in enumerate(kept) if k not in over)) or (1,))
