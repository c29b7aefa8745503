"""Losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import (
    Operand,
    are_floats,
    axis_in,
    expression,
    integers,
    known_arguments,
    log_probabilities,
    shape_of,
    tensor,
)
from dynet_cy.functions.shapes import Integers, gather
from dynet_cy.graph.expressions import Expression
from dynet_cy.graph.structs import operators
from dynet_cy.ops import elementwise
from dynet_cy.ops.inputs import inputTensor
from dynet_cy.ops.reduce import norm
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape
from dynet_cy.ops.softmax import log_softmax, pickneglogsoftmax

REDUCTIONS = ("mean", "sum", "none")

__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "focal_loss",
    "gaussian_nll",
    "kl_divergence",
    "triplet_loss",
]


def reduced(x: Expression, reduction: str, count: float | npt.NDArray[Any] | None, function: str) -> Expression:
    """The losses of all positions, reduced by "mean", "sum" or "none"."""
    if reduction == "none":
        return x
    if reduction not in REDUCTIONS:
        raise ValueError(f'{function}: reduction must be "mean", "sum" or "none", not {reduction!r}')
    total = x.sum()
    if reduction == "sum":
        return total
    count = math.prod(shape_of(x)) if count is None else count
    if not np.all(count):
        raise ValueError(f"{function}: there are no positions, so there is no mean")
    return total / count


def classes(
    x: Expression, targets: Integers | int, axis: int, ignored: int | None, function: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], bool]:
    """The class of each position, 0 if it is ignored; whether it counts; and whether the last axis is the batch."""
    own = shape_of(x)
    array = integers(targets, function, "targets")
    left = (*own[:axis], *own[axis + 1 :])
    batched = array.ndim == len(left) + 1 and array.shape[:-1] == left
    if batched and x.batch_size not in (1, array.shape[-1]):
        raise DimensionError(f"{function}: targets are for {array.shape[-1]} batch elements, x has {x.batch_size}")
    if not batched and array.shape != left:
        raise DimensionError(f"{function}: targets have shape {array.shape}, but x without axis {axis} has {left}")
    counts = np.ones(array.shape, bool) if ignored is None else array != ignored
    wrong = array[counts & ((array < 0) | (array >= own[axis]))]
    if wrong.size:
        raise IndexError(f"{function}: class {wrong[0]} is not from 0 to {own[axis] - 1}")
    return np.where(counts, array, 0).astype(np.int64), counts, batched


def as_input(array: npt.NDArray[Any], batched: bool) -> Expression:
    """A number for each position, in the shape of a result of `gather`."""
    if not array.ndim:
        array = array[None]
    if batched and array.ndim == 1:
        array = array[None]
    return inputTensor(array.astype(np.float32), batched)


def picked(log_p: Expression, target: npt.NDArray[np.int64], axis: int) -> Expression:
    """The log-probability of the class at each position, without the axis of the classes."""
    y = gather(log_p, np.expand_dims(target, axis), axis)
    own = shape_of(y)
    return reshape(y, (*own[:axis], *own[axis + 1 :]) or (1,), 1)


@known_arguments
def cross_entropy(
    x: Expression,
    targets: Integers | int | Expression,
    axis: int = 0,
    label_smoothing: float = 0.0,
    weights: npt.ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Expression:
    """Cross-entropy of the softmax of scores: -log p(target) at each position.

    Args:
        x: scores, with the classes along `axis`: a vector, a matrix with a column for each word, or more.
        targets: the class of each position, in the shape of x without `axis`, perhaps with the batch as a further
            axis; or probabilities, an expression or floats of the shape of x.
        axis: the axis of the classes (default: 0).
        label_smoothing: the share of each target that is spread evenly over all classes (Szegedy et al. 2016). Default:
            0.
        weights: a factor for each class.
        ignore_index: positions with this target do not count.
        reduction: "mean" over the positions that count, each with the weight of its class; "sum"; or "none". Batch
            elements are reduced separately.

    Returns:
        An expression of one element, or with "none" of the shape of x without `axis`.

    Raises:
        DimensionError: there is no such axis, or the shapes do not fit.
        IndexError: a class does not exist.
        ValueError: label_smoothing is not from 0 to 1, or there is no such reduction.

    Example:
        >>> scores = dy.inputTensor([[5, 0, 0], [0, 5, 0]])            # {tags,n}
        >>> round(dy.cross_entropy(scores, [0, 1, 0], label_smoothing=0.1).value(), 3)
        0.402
    """
    k = axis_in(expression(x, "cross_entropy"), axis, "cross_entropy")
    n = shape_of(x)[k]
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing must be from 0 to 1, not {label_smoothing!r}")
    if n == 0:
        raise DimensionError("cross_entropy: x has no classes")
    factors = np.ones(n) if weights is None else np.asarray(weights, np.float64)
    if factors.shape != (n,):
        raise DimensionError(f"cross_entropy: weights have shape {factors.shape}, but there are {n} classes")
    plain = weights is None and ignore_index is None and not label_smoothing and reduction in REDUCTIONS
    if (
        plain
        and shape_of(x) == (n,)
        and x.batch_size == 1
        and isinstance(targets, (int, np.integer))
        and 0 <= targets < n
    ):
        return pickneglogsoftmax(x, targets)  # one node, whatever the reduction
    log_p = log_softmax(x, d=k)
    own_factor = factors.reshape([n if i == k else 1 for i in range(len(shape_of(x)))])
    if isinstance(targets, Expression) or are_floats(targets):
        if ignore_index is not None:
            raise ValueError("cross_entropy: ignore_index is for targets that are classes, not probabilities")
        p = tensor(targets, "cross_entropy", "targets")
        if shape_of(p) != shape_of(x):
            raise DimensionError(f"cross_entropy: targets have shape {shape_of(p)}, x has {shape_of(x)}")
        p = p * (1 - label_smoothing) + label_smoothing / n
        p = p if weights is None else elementwise.cmult(p, tensor(own_factor, "cross_entropy", "weights"))
        return reduced(-elementwise.cmult(p, log_p).sum(k), reduction, None, "cross_entropy")
    target, counts, batched = classes(x, targets, k, ignore_index, "cross_entropy")
    loss = -picked(log_p, target, k)
    if weights is not None:
        loss = elementwise.cmult(loss, as_input(factors[target], batched))
    if label_smoothing:
        every = log_p if weights is None else elementwise.cmult(log_p, tensor(own_factor, "cross_entropy", "weights"))
        loss = loss * (1 - label_smoothing) - every.sum(k) * (label_smoothing / n)
    if not counts.all():
        loss = elementwise.where(as_input(counts, batched), loss, 0)
    shares = factors[target] * counts
    if reduction != "mean":
        return reduced(loss, reduction, None, "cross_entropy")
    total = shares.reshape(-1, shares.shape[-1]).sum(0) if batched else shares.sum()
    if (np.asarray(total) == 0).any():
        raise ValueError("cross_entropy: no position counts, so there is no mean")
    if batched:
        return elementwise.cdiv(loss.sum(), as_input(total, True))
    return loss.sum() / float(total)


@known_arguments
def binary_cross_entropy_with_logits(
    x: Expression, y: Expression | npt.ArrayLike, reduction: str = "mean"
) -> Expression:
    """Binary cross-entropy of scores: -y log p - (1 - y) log(1 - p), where p is ``logistic(x)``.

    For one class against the rest, and for several labels of one item. It is computed from the scores: in
    max(x, 0) - x y + log(1 + e^-abs(x)) nothing overflows or cancels, and a score that is certain and wrong keeps its
    gradient, logistic(x) - y, while a logarithm of `logistic` has none from 17 on.

    Args:
        x: scores, of any shape.
        y: the right decisions, 0 or 1, or probabilities: an expression of the same shape, or labels: one number for all
            elements, an array of the shape of x (its last axis the batch), or a list with one number for each element
            or, where elements are scalars, for each batch element.
        reduction: "mean" over all elements, "sum", or "none". Batch elements are reduced separately.

    Returns:
        An expression of one element, or with "none" of the shape of x; its elements may then have weights, such as
        ``1 + (weight - 1) * y``.

    Raises:
        DimensionError: y has another shape.
        TypeError: x is no expression, or y neither an expression nor numbers.
        ValueError: there is no such reduction, or no element for a mean.

    Example:
        >>> scores = dy.inputVector([2, -1, 30])                        # three labels of one text
        >>> round(dy.binary_cross_entropy_with_logits(scores, [1, 0, 0], reduction="sum").value(), 3)
        30.44
    """
    name = "binary_cross_entropy_with_logits"
    labels = operators["labels"](expression(x, name), y, name)
    if shape_of(labels) != shape_of(x):
        raise DimensionError(f"{name}: y has shape {shape_of(labels)}, x has {shape_of(x)}")
    return reduced(operators["logit_loss"](x, labels), reduction, None, name)


@known_arguments
def focal_loss(
    x: Expression, targets: Integers | int, gamma: float = 2.0, axis: int = 0, reduction: str = "mean"
) -> Expression:
    """Cross-entropy in which well-classified positions count less: -(1 - p)^gamma log p (Lin et al. 2017).

    Args:
        x: scores, with the classes along `axis`.
        targets: see `cross_entropy`.
        gamma: at least 0; 0 is cross-entropy. Default: 2.
        axis: the axis of the classes (default: 0).
        reduction: "mean", "sum" or "none".

    Raises:
        DimensionError: there is no such axis, or the shapes do not fit.
        IndexError: a class does not exist.
        ValueError: gamma is negative, or there is no such reduction.

    Example:
        >>> round(dy.focal_loss(dy.inputVector([2, 0]), 0).value(), 5)
        0.0018
    """
    k = axis_in(expression(x, "focal_loss"), axis, "focal_loss")
    if not gamma >= 0:
        raise ValueError(f"focal_loss: gamma must be at least 0, not {gamma!r}")
    target, _, _ = classes(x, targets, k, None, "focal_loss")
    log_p = picked(log_softmax(x, d=k), target, k)
    missing = elementwise.rectify(-elementwise.expm1(log_p))  # 1 - p
    share = elementwise.where(
        missing, elementwise.pow(elementwise.where(missing, missing, 1), gamma), 0 if gamma else 1
    )
    return reduced(-elementwise.cmult(reshape(share, shape_of(log_p)), log_p), reduction, None, "focal_loss")


@known_arguments
def triplet_loss(
    anchor: Expression, positive: Expression, negative: Expression, margin: float = 1.0, p: float = 2
) -> Expression:
    """Triplet loss: max(d(anchor, positive) - d(anchor, negative) + margin, 0) (Schroff et al. 2015).

    Shapes: ``{d}`` each -> ``{1}``; ``{d,n}`` each -> ``{n}``, a loss for each column.

    Args:
        anchor, positive, negative: vectors, or matrices of them as columns.
        margin: the amount by which the distances must differ (default: 1).
        p: the p of the norm that measures distance; see `norm`. Default: 2.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> a, b, c = (dy.inputVector([x, 0]) for x in (0, 1, 1.5))
        >>> dy.triplet_loss(a, b, c).value()
        0.5
    """
    expression(anchor, "triplet_loss", "anchor")
    near = norm(anchor - expression(positive, "triplet_loss", "positive"), p, 0)
    far = norm(anchor - expression(negative, "triplet_loss", "negative"), p, 0)
    return elementwise.rectify(near - far + margin)


@known_arguments
def kl_divergence(log_p: Expression, log_q: Expression, axis: int | None = None) -> Expression:
    """Kullback-Leibler divergence KL(p || q): sum p (log p - log q).

    Args:
        log_p, log_q: log-probabilities, as from `log_softmax`; terms with -inf in log_p are 0. A softmax, or a matrix
            product, is not one: a warning says so once.
        axis: the axis of the classes, which is removed; None: all elements are one distribution.

    Raises:
        DimensionError: the shapes do not fit, or there is no such axis.

    Example:
        >>> log_p, log_q = (dy.log_softmax(dy.inputVector(x)) for x in ([0, 0], [0, 1]))
        >>> round(dy.kl_divergence(log_p, log_q).value(), 4)
        0.1201
    """
    log_probabilities(log_p, "kl_divergence", "log_p")
    there = elementwise.not_equal(log_p, -math.inf)
    safe = elementwise.where(there, log_p, 0)
    terms = elementwise.cmult(
        elementwise.exp(safe), safe - elementwise.where(there, log_probabilities(log_q, "kl_divergence", "log_q"), 0)
    )
    return elementwise.where(there, terms, 0).sum(axis)


@known_arguments
def gaussian_nll(
    mean: Expression, target: Operand, variance: Operand, full: bool = False, eps: float = 1e-6
) -> Expression:
    """Negative log-likelihood of independent normal distributions, summed (Nix and Weigend 1994).

    Args:
        mean: the expected values.
        target: the observations, of the same shape.
        variance: of each element, or one for all; smaller values than eps count as eps.
        full: whether to include the constant 1/2 log(2 pi) of each element (default: False).
        eps: the least variance (default: 1e-6).

    Returns:
        An expression of one element.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> round(dy.gaussian_nll(dy.inputVector([1, 2]), dy.inputVector([1, 3]), dy.inputVector([1, 4])).value(), 4)
        0.8181
    """
    spread = elementwise.bmax(tensor(variance, "gaussian_nll", "variance"), eps)
    error = expression(mean, "gaussian_nll", "mean") - tensor(target, "gaussian_nll", "target")
    terms = (elementwise.log(spread) + elementwise.cdiv(elementwise.square(error), spread)) * 0.5
    constant = 0.5 * math.log(2 * math.pi) if full else 0.0
    return (terms + constant).sum() if full else terms.sum()
