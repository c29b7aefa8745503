"""Derivatives of sums, norms, softmax and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dynet_cy.derivatives.elementwise import derivative
from dynet_cy.derivatives.steps import ALL_AXES, BATCH, Contribution, Step, axes_of, flat, kept, reduced
from dynet_cy.derivatives.table import composed, each, rule
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.elementwise import abs as absolute
from dynet_cy.ops.elementwise import (
    bmax,
    cdiv,
    cmult,
    equal,
    exp,
    huber,
    pow,
    rectify,
    safe_sqrt,
    sqrt,
    square,
)
from dynet_cy.ops.formulas import PARTS
from dynet_cy.ops.inputs import inputTensor, one_hot
from dynet_cy.ops.linalg import dot_product
from dynet_cy.ops.reduce import (
    cumsum,
    l2_norm,
    max_dim,
    mean_batches,
    sum_dim,
    sum_elems,
)
from dynet_cy.ops.shape import concatenate, concatenate_cols, nobackprop, reshape
from dynet_cy.ops.softmax import log_softmax, logsumexp_dim, softmax

# ---- sums and means


def lost(mask: int, n: int) -> list[int]:
    """The axes, of n, that a reduction with this mask reduces."""
    return list(range(n)) if mask & ALL_AXES == ALL_AXES else axes_of(mask, n)


def with_axes(x: Expression, shape: Sequence[int], mask: int) -> Expression:
    """A reduction with the axes that it lost, with size 1."""
    return kept(x, shape, lost(mask, len(shape)))


@each("sum")
def total(step: Step, i: int) -> Contribution:
    return with_axes(step.dy, step.x(0).dim()[0], step.word(0))


def count(x: Expression, mask: int) -> int:
    """The number of elements that a reduction adds up."""
    shape, batch = x.dim()
    return math.prod(shape[a] for a in lost(mask, len(shape))) * (batch if mask & BATCH else 1)


@each("mean")
def average(step: Step, i: int) -> Contribution:
    mask, divisor = step.word(0), step.word(1)
    return with_axes(step.dy * (1 / (divisor or count(step.x(0), mask))), step.x(0).dim()[0], mask)


def mean(x: Expression, mask: int) -> Expression:
    return reduced(x, mask) * (1 / count(x, mask))


@each("cumsum")
def cumulative(step: Step, i: int) -> Contribution:
    """The sums of the elements from each one on."""
    shape, axis = step.x(0).dim()[0], step.word(0)
    if axis >= len(shape):
        return step.dy
    return kept(sum_dim(step.dy, [axis]), shape, [axis]) - cumsum(step.dy, axis) + step.dy


# ---- norms

_TINY = float(np.finfo(np.float32).tiny)
_LOWEST = float(np.finfo(np.float32).min)


@each("squared_norm")
def squared(step: Step, i: int) -> Contribution:
    return cmult(2 * step.dy, step.x(0))


@composed("norm")
def norm(step: Step, xs: list[Expression]) -> Expression:
    """Of x divided by its greatest element.  The result does not depend on what x is divided by, so that is a
    constant."""
    mask, p, x = step.word(0), step.number(1), xs[0]
    over = mean if step.word(2) else reduced
    size, shape = absolute(x), x.dim()[0]
    if p == 1:
        return over(size, mask)
    greatest = size
    for axis in lost(mask, len(shape)):
        greatest = kept(max_dim(greatest, axis), greatest.dim()[0], [axis])
    if p == math.inf:
        return reduced(greatest, mask)
    scale = nobackprop(bmax(mean_batches(greatest) if mask & BATCH else greatest, _TINY))
    relative = cdiv(size, scale)
    root = safe_sqrt(over(square(relative), mask)) if p == 2 else power(over(power(relative, p), mask), 1 / p)
    return cmult(root, reduced(scale, mask))


def power(x: Expression, p: float) -> Expression:
    """x to the power p, with all axes: `pow` drops the last ones of size 1."""
    return reshape(pow(x, p), *x.dim())


@composed("weight_norm")
def weight_norm(step: Step, xs: list[Expression]) -> Expression:
    w, g = xs
    return cmult(w, cdiv(flat(g), l2_norm(w)))


def normalized(x: Expression, axes: Sequence[int], eps: float) -> Expression:
    """x with mean 0 and deviation 1 along some axes; eps is added to the variance, or 1e-8 to the deviation if it is
    0."""
    shape = x.dim()[0]
    mask = sum(1 << a for a in axes)
    centered = x - with_axes(mean(x, mask), shape, mask)
    variance = with_axes(mean(square(centered), mask), shape, mask)
    return cdiv(centered, sqrt(variance + eps) if eps else safe_sqrt(variance) + 1e-8)


def scaled(x: Expression, g: Expression, b: Expression, first: int, n: int) -> Expression:
    """x g + b, for factors and summands in the shape of x or of n axes from the first one on."""

    def along(part: Expression) -> Expression:
        own = part.dim()[0]
        return part if not first or own == x.dim()[0] else reshape(part, (*[1] * first, *own), part.batch_size)

    return cmult(x, along(g)) + along(b)


@composed("layer_norm")
def layer_norm(step: Step, xs: list[Expression]) -> Expression:
    x, g, b = xs
    first, n = step.word(0), step.word(1)
    if n == 0:
        own, shape = g.dim()[0], x.dim()[0]
        while own and own[-1] == 1 and own != shape[: len(own)]:
            own = own[:-1]
        n = len(own)
    return scaled(normalized(x, range(first, first + n), step.number(2)), g, b, first, n)


@composed("residual_layer_norm")
def residual_layer_norm(step: Step, xs: list[Expression]) -> Expression:
    x, g, r, b = xs
    return scaled(normalized(x + r, [0], step.number(2)), flat(g), flat(b), 0, 1)


@composed("batch_moments")
def batch_moments(step: Step, xs: list[Expression]) -> Expression:
    """Two columns: the means of the channels, and their variances."""
    x, channels, shape = xs[0], step.word(0), xs[0].dim()[0]
    mask = sum(1 << a for a in range(len(shape)) if a != channels) | BATCH
    means = mean(x, mask)
    variances = mean(square(x - with_axes(means, shape, mask)), mask)
    return concatenate_cols([means, variances])


@composed("channel_norm")
def channel_norm(step: Step, xs: list[Expression]) -> Expression:
    x, *parts = xs
    axis, n = step.word(0), len(xs[0].dim()[0])
    means, variances, g, b = (
        reshape(part, [-1 if a == axis else 1 for a in range(n)], part.batch_size) for part in parts
    )
    return cmult(x - means, cdiv(g, sqrt(variances + step.number(1)))) + b


# ---- along an axis


@each("max_dim", "min_dim")
def extreme(step: Step, i: int) -> Contribution:
    """Of equal elements the first gets the gradient."""
    x, axis = step.x(0), step.word(0)
    shape = x.dim()[0]
    found = equal(x, kept(step.y, shape, [axis]))
    first = cmult(found, cumsum(found, axis) < 1.5)
    return cmult(kept(step.dy, shape, [axis]), first)


@each("logsumexp_dim")
def log_sum(step: Step, i: int) -> Contribution:
    """The gradient is 0 if all elements are -inf, as in a field with impossible transitions, where softmax is NaN."""
    x, axis = step.x(0), step.word(0)
    shares = cmult(softmax(bmax(x, _LOWEST), axis), x > -math.inf)
    return cmult(kept(step.dy, x.dim()[0], [axis]), shares)


@composed("logsumexp")
def log_sum_of_list(step: Step, xs: list[Expression]) -> Expression:
    shape = xs[0].dim()[0]
    side_by_side = concatenate([reshape(x, (*shape, 1), x.batch_size) for x in xs], len(shape))
    return logsumexp_dim(side_by_side, len(shape))


@each("softmax")
def soft_maximum(step: Step, i: int) -> Contribution:
    y, axis = step.y, step.word(0)
    shape = y.dim()[0]
    if not shape:
        return None
    weighted = cmult(y, step.dy)
    return weighted - cmult(y, kept(sum_dim(weighted, [axis]), shape, [axis]))


@each("log_softmax", "log_softmax_along")
def log_probabilities(step: Step, i: int) -> Contribution:
    shape, axis = step.y.dim()[0], step.word(0)
    if not shape:
        return None
    return step.dy - cmult(exp(step.y), kept(sum_dim(step.dy, [axis]), shape, [axis]))


@composed("restricted_log_softmax")
def restricted(step: Step, xs: list[Expression]) -> Expression:
    chosen = np.zeros(math.prod(step.node.shape), np.float32)
    chosen[step.items[0]] = 1
    return log_softmax(xs[0], mask=inputTensor(chosen.reshape(step.node.shape)))


@each("sparsemax")
def sparse(step: Step, i: int) -> Contribution:
    """The gradient minus its mean over the elements above zero, for these."""
    support, shape = step.y > 0, step.y.dim()[0]
    dy = cmult(support, step.dy)
    means = kept(cdiv(sum_dim(dy, [0]), sum_dim(support, [0])), shape, [0])
    return cmult(support, dy - means)


# ---- losses


@each("pickneglogsoftmax")
def pickneglogsoftmax(step: Step, i: int) -> Contribution:
    x = flat(step.x(0))
    return cmult(step.dy, softmax(x) - hot(step, x.dim()[0][0]))


@rule("pickneglogsoftmax_at")
def pickneglogsoftmax_at(step: Step) -> list[Contribution]:
    """The class gets no gradient."""
    x = flat(step.x(0))
    slope = cmult(step.dy, softmax(x) - one_hot(x.dim()[0][0], step.x(1)))
    return [slope if i == 0 else None for i in step.node.live]


def hot(step: Step, n: int) -> Expression:
    """Vectors of n elements that are 1 at the item of each batch element."""
    items = step.items[:, 0]
    return one_hot(n, int(items[0]) if (items == items[0]).all() else items.tolist())


@composed("hinge")
def hinge(step: Step, xs: list[Expression]) -> Expression:
    """sum_(j != v) max(m - x_v + x_j, 0)."""
    x = flat(xs[0])
    true = hot(step, x.dim()[0][0])
    return sum_dim(cmult(1 - true, rectify(x - dot_product(x, true) + step.number(0))), [0])


_SUMMED = {
    "squared_distance": "squared_difference",
    "l1_distance": "abs_difference",
    "binary_log_loss": "binary_log_loss",
}


@each(*_SUMMED)
def distance(step: Step, i: int) -> Contribution:
    names = {"a": step.x(0), "b": step.x(1)}
    return cmult(step.dy, derivative(PARTS[_SUMMED[step.node.op]][i], names))


@composed("huber_distance")
def huber_distance(step: Step, xs: list[Expression]) -> Expression:
    return 0.5 * sum_elems(huber(xs[0] - xs[1], step.number(0)))


@composed("pairwise_rank_loss")
def pairwise_rank_loss(step: Step, xs: list[Expression]) -> Expression:
    return rectify(xs[1] - xs[0] + step.number(0))


@each("poisson_loss")
def poisson_loss(step: Step, i: int) -> Contribution:
    counts = inputTensor(step.items.T.astype(np.float32), batched=True)
    return cmult(step.dy, exp(flat(step.x(0))) - counts)
