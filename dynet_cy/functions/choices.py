"""Soft and hard choices."""

from __future__ import annotations

from dynet_cy.functions.arguments import axis_in, expression, known_arguments, positive, shape_of
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops import elementwise
from dynet_cy.ops.random import random_gumbel
from dynet_cy.ops.shape import nobackprop
from dynet_cy.ops.softmax import softmax

__all__ = ["gumbel_softmax", "straight_through"]


@known_arguments
def straight_through(hard: Expression, soft: Expression) -> Expression:
    """Take the value of one expression and the gradient of another (Bengio et al. 2013).

    Args:
        hard: the expression for the value, such as a choice that has no gradient.
        soft: the expression for the gradient, of the same shape.

    Example:
        >>> probabilities = dy.softmax(dy.inputVector([1, 2]))
        >>> dy.straight_through(probabilities > 0.5, probabilities).npvalue()    # its gradient is the softmax's
        array([0., 1.])
    """
    return nobackprop(expression(hard, "straight_through", "hard")) + (
        expression(soft, "straight_through", "soft") - nobackprop(soft)
    )


@known_arguments
def gumbel_softmax(x: Expression, temperature: float = 1.0, hard: bool = False, d: int = 0) -> Expression:
    """Draw a class along an axis, with a gradient (Jang et al. 2017; Maddison et al. 2017).

    Args:
        x: scores, such as logarithms of probabilities.
        temperature: above 0; the lower, the nearer the result is to one class alone. Default: 1.
        hard: whether the value is 1 for the class that was drawn and 0 for others; the gradient is still that of the
            soft one. Default: False.
        d: the axis (default: 0).

    Returns:
        An expression of the shape of x that sums to 1 along the axis; other numbers in each graph.

    Raises:
        DimensionError: there is no such axis.
        ValueError: the temperature is not above 0.

    Example:
        >>> float(dy.gumbel_softmax(dy.inputVector([1, 2, 3]), hard=True).npvalue().sum())     # one of the three is 1
        1.0
    """
    k = axis_in(expression(x, "gumbel_softmax"), d, "gumbel_softmax", "d")
    scale = 1 / positive(temperature, "gumbel_softmax", "temperature")
    soft = softmax((x + random_gumbel(shape_of(x), batch_size=x.batch_size)) * scale, k)
    if not hard:
        return soft
    return straight_through(elementwise.equal(soft, soft.max(k, True)), soft)
