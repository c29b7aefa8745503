"""Norms, normalization and clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Union

import numpy as np

from dynet_cy.functions.arguments import along, axis_in, expression, known_arguments, positive, shape_of
from dynet_cy.graph.expressions import Expression
from dynet_cy.model import Parameters
from dynet_cy.ops import elementwise
from dynet_cy.ops.norm import batch_moments, channel_norm
from dynet_cy.ops.reduce import norm
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.select import pick
from dynet_cy.ops.shape import reshape

__all__ = ["batch_norm", "clip_norm", "cosine_similarity", "group_norm", "normalize", "rms_norm"]

Axis = Union[int, Sequence[int], None]


@known_arguments
def normalize(x: Expression, p: float = 2, axis: Axis = 0, eps: float = 1e-12) -> Expression:
    """Divide x by its p-norm along some axes, at least by eps.

    Args:
        x: any expression.
        p: see `norm`.
        axis: one or several axes; by default each column is normalized.
        eps: the least number to divide by (default: 1e-12).

    Returns:
        An expression of the shape of x.

    Raises:
        DimensionError: there is no such axis.
        ValueError: p is less than 1, or eps is not above 0.

    Example:
        >>> dy.normalize(dy.inputVector([3, 4])).npvalue()
        array([0.60000002, 0.80000001])
    """
    return elementwise.cdiv(x, elementwise.bmax(norm(x, p, axis, True), positive(eps, "normalize", "eps")))


@known_arguments
def clip_norm(x: Expression, max_norm: float, axis: Axis = None) -> Expression:
    """Scale x down to a given norm if its norm is greater (Pascanu et al. 2013).

    Args:
        x: any expression.
        max_norm: the greatest L2 norm, above 0.
        axis: along which the norms are taken; all axes together when None.

    Returns:
        An expression of the shape of x.

    Raises:
        DimensionError: there is no such axis.
        ValueError: max_norm is not above 0.

    Example:
        >>> dy.clip_norm(dy.inputVector([3, 4]), 1).npvalue()
        array([0.60000002, 0.80000001])
    """
    limit = positive(max_norm, "clip_norm", "max_norm")
    length = norm(expression(x, "clip_norm"), 2, axis, axis is not None)
    return elementwise.cmult(x, limit / elementwise.bmax(length, limit))


@known_arguments
def cosine_similarity(x: Expression, y: Expression, axis: Axis = 0, eps: float = 1e-8) -> Expression:
    """Cosine of the angle between x and y: their product divided by their norms.

    Args:
        x, y: expressions of one shape, or of shapes that broadcast.
        axis: the axis of the vectors, which is removed; by default columns are compared.
        eps: the least number to divide each by (default: 1e-8).

    Raises:
        DimensionError: the shapes do not fit, or there is no such axis.

    Example:
        >>> round(dy.cosine_similarity(dy.inputVector([1, 0]), dy.inputVector([1, 1])).value(), 3)
        0.707
    """
    over = axis if axis is None or isinstance(axis, int) else tuple(axis)
    a = normalize(expression(x, "cosine_similarity"), 2, axis, eps)
    b = normalize(expression(y, "cosine_similarity", "y"), 2, axis, eps)
    return elementwise.cmult(a, b).sum(over)


@known_arguments
def rms_norm(x: Expression, g: Expression | None = None, axis: int = 0, eps: float = 1e-5) -> Expression:
    """x divided by its root mean square along an axis, times g (Zhang and Sennrich 2019).

    Args:
        x: any expression.
        g: factors ``{n}`` for the n positions along the axis; none when None.
        axis: the axis that is normalized; by default each column.
        eps: added to the mean of the squares (default: 1e-5).

    Returns:
        An expression of the shape of x.

    Raises:
        DimensionError: there is no such axis, or g does not have its length.

    Example:
        >>> dy.rms_norm(dy.inputVector([3, 4, 0, 0])).npvalue().round(3)
        array([1.2, 1.6, 0. , 0. ])
    """
    k = axis_in(expression(x, "rms_norm"), axis, "rms_norm")
    scale = elementwise.pow(elementwise.square(x).mean(k, True) + positive(eps, "rms_norm", "eps"), -0.5)
    places = tuple(1 if i == k else n for i, n in enumerate(shape_of(x)))
    y = elementwise.cmult(x, scale if shape_of(scale) == places else reshape(scale, places))
    return y if g is None else elementwise.cmult(y, for_axis(g, x, k, "rms_norm", "g"))


@known_arguments
def group_norm(
    x: Expression,
    groups: int,
    g: Expression | None = None,
    b: Expression | None = None,
    axis: int = -1,
    eps: float = 1e-5,
) -> Expression:
    """Normalize groups of channels to mean 0 and deviation 1, then scale by g and add b (Wu and He 2018).

    Args:
        x: channels and any other axes, such as an image ``{height,width,channels}``.
        groups: how many; channels that follow each other are a group.
        g, b: factors and summands ``{channels}``; none when None.
        axis: the axis of the channels (default: -1).
        eps: added to the variance (default: 1e-5).

    Returns:
        An expression of the shape of x.

    Raises:
        DimensionError: there is no such axis, or the channels cannot be divided into so many groups.

    Example:
        >>> dy.group_norm(dy.inputVector([1, 3, 10, 30]), 2).npvalue().round(3)
        array([-1.,  1., -1.,  1.])
    """
    k = axis_in(expression(x, "group_norm"), axis, "group_norm")
    shape = shape_of(x)
    if not hasattr(groups, "__index__") or groups < 1 or shape[k] % groups:
        raise DimensionError(f"group_norm: {shape[k]} channels cannot be divided into {groups!r} groups")
    parts = reshape(x, (math.prod(shape[:k]), shape[k] // groups, groups, math.prod(shape[k + 1 :])))
    centered = parts - parts.mean((0, 1, 3), True)
    variance = elementwise.square(centered).mean((0, 1, 3), True)
    scale = elementwise.pow(variance + positive(eps, "group_norm", "eps"), -0.5)
    y = reshape(elementwise.cmult(centered, reshape(scale, (1, 1, groups, 1))), shape)
    if g is not None:
        y = elementwise.cmult(y, for_axis(g, x, k, "group_norm", "g"))
    return y if b is None else y + for_axis(b, x, k, "group_norm", "b")


@known_arguments
def batch_norm(
    x: Expression,
    g: Expression | Parameters,
    b: Expression | Parameters,
    mean: Parameters,
    var: Parameters,
    training: bool = True,
    momentum: float = 0.1,
    axis: int = 0,
    eps: float = 1e-5,
) -> Expression:
    """Normalize each channel over a minibatch to mean 0 and variance 1, times g plus b (Ioffe and Szegedy 2015).

    In training the statistics are those of x, of all its batch elements and places. They are computed at once, with all
    that x needs, and move the running ones: r becomes (1 - momentum) r + momentum s, with the unbiased variance. Else
    the running statistics are used, and nothing is computed yet.

    Args:
        x: channels and any other axes, with a batch or without.
        g, b: factors and summands ``{channels}``.
        mean, var: the running statistics ``{channels}``: parameters that trainers do not change (`set_updated(False)`).
        training: whether the statistics are those of x (default: True).
        momentum: how much a minibatch counts in the running statistics, from 0 to 1 (default: 0.1).
        axis: the axis of the channels, which may count from the end (default: 0).
        eps: added to the variance (default: 1e-5).

    Returns:
        An expression of the shape of x.

    Raises:
        DimensionError: there is no such axis, or the vectors do not have its length.
        ValueError: in training, a channel has one element only; momentum or eps is out of its range.

    Example:
        >>> g, b, mean, var = (model.add_parameters(1, init=i) for i in (1, 0, 0, 1))
        >>> x = dy.inputTensor([[1, 2, 3]], batched=True)
        >>> dy.batch_norm(x, g, b, mean, var).npvalue().round(3)
        array([[-1.225,  0.   ,  1.225]])
        >>> mean.as_array().round(3), var.as_array().round(3)
        (array([0.2], dtype=float32), array([1.], dtype=float32))
    """
    k = axis_in(expression(x, "batch_norm"), axis, "batch_norm")
    positive(eps, "batch_norm", "eps")
    if not 0 <= momentum <= 1:
        raise ValueError(f"batch_norm: momentum must be a number from 0 to 1, not {momentum!r}")
    if not training:
        return channel_norm(x, mean.expr(False), var.expr(False), g, b, k, eps)
    shape = shape_of(x)
    count = math.prod(shape) // max(shape[k], 1) * x.dim()[1]
    if count < 2:
        raise ValueError("batch_norm: in training a channel of x needs more than one element")
    moments = batch_moments(x, k)
    found_mean, found_var = pick(moments, 0, 1), pick(moments, 1, 1)
    y = channel_norm(x, found_mean, found_var, g, b, k, eps)  # before the statistics change: it checks the shapes
    for running, found, factor in ((mean, found_mean, 1.0), (var, found_var, count / (count - 1))):
        now = found.npvalue().reshape(shape[k]) * factor
        running.set_value(((1 - momentum) * running.as_array() + momentum * now).astype(np.float32))
    return y


def for_axis(g: Expression, x: Expression, axis: int, function: str, name: str) -> Expression:
    """A vector with an element for each position of x along an axis, so that it broadcasts."""
    shape = shape_of(x)
    if math.prod(shape_of(expression(g, function, name))) != shape[axis]:
        raise DimensionError(f"{function}: {name} has shape {shape_of(g)}, but x has {shape[axis]} along axis {axis}")
    if axis == 0 and len(shape_of(g)) == 1:
        return g
    return along(reshape(g, (shape[axis],)), [axis], len(shape))
