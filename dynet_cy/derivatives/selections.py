"""Derivatives of shapes and selections."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from dynet_cy.derivatives.reductions import log_sum_of_list
from dynet_cy.derivatives.steps import Contribution, Placed, Step
from dynet_cy.derivatives.table import composed, each, rule
from dynet_cy.functions.shapes import gather, pad, put
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.elementwise import cmult
from dynet_cy.ops.index import read_places, ways
from dynet_cy.ops.reduce import sum_dim
from dynet_cy.ops.select import pick_batch_elems, pick_range, select_cols, select_rows
from dynet_cy.ops.shape import concatenate, reshape, transpose


@each("reshape")
def reshaped(step: Step, i: int) -> Contribution:
    shape, batch = step.x(0).dim()
    return reshape(step.dy, shape, batch)


@each("transpose")
def transposed(step: Step, i: int) -> Contribution:
    axes = [step.word(0) >> 3 * k & 7 for k in range(step.word(1))]
    return transpose(step.dy, np.argsort(axes).tolist())


@rule("concatenate")
def concatenated(step: Step) -> list[Contribution]:
    axis = step.word(0)
    shapes = [x.dim()[0] for x in step.xs]
    ends = [0, *itertools.accumulate(s[axis] if axis < len(s) else 1 for s in shapes)]
    return [pick_range(step.dy, ends[i], ends[i + 1], axis) for i in step.node.live]


@rule("concatenate_to_batch")
def batched(step: Step) -> list[Contribution]:
    ends = [0, *itertools.accumulate(x.batch_size for x in step.xs)]
    return [pick_batch_elems(step.dy, list(range(ends[i], ends[i + 1]))) for i in step.node.live]


@composed("fold_rows")
def fold_rows(step: Step, xs: list[Expression]) -> Expression:
    rows, n = step.node.shape
    return sum_dim(reshape(xs[0], (step.word(0), rows, n), xs[0].batch_size), [0])


def read(step: Step, i: int) -> Placed:
    """The same places, read in the other direction."""
    node = step.node
    own = (node.shape, node.batch_size)
    return Placed(step.dy, lambda: read_places(node.op, step.x(0).dim(), own, node.attrs, step.items))


for name, way in ways.items():
    if way == "reads" and name not in ("take", "pick_range"):
        each(name)(read)


@each("pick_range")
def range_of(step: Step, i: int) -> Contribution:
    """If nothing else is added to x, dy between zeros."""
    shape, axis, start = step.x(0).dim()[0], step.word(0), step.node.items[0]
    end = start + step.node.shape[axis]
    widths = [(start, n - end) if a == axis else (0, 0) for a, n in enumerate(shape)]
    return read(step, i)._replace(alone=lambda: pad(step.dy, widths))


@each("scatter_rows", "scatter_cols")
def scattered_slices(step: Step, i: int) -> Contribution:
    return (select_cols if step.word(0) else select_rows)(step.dy, step.items[0])


@rule("take")
def taken(step: Step) -> list[Contribution]:
    """Indices get no gradient; attribute 1 says how they are meant: 1 is one index, 2 an index for each element."""
    shape, batch = step.x(0).dim()
    axis, mode = step.word(0), step.word(1)
    dy, indices = step.dy, step.x(1)
    if mode == 1:
        dy = reshape(dy, (*shape[:axis], 1, *shape[axis + 1 :]), dy.batch_size)
        indices = reshape(indices, (1,), indices.batch_size)
    return [put(dy, indices, axis, shape[axis], mode == 2, "take") if i == 0 else None for i in step.node.live]


@rule("put")
def put_at(step: Step) -> list[Contribution]:
    function = gather if step.word(1) == 2 else select_along
    return [function(step.dy, step.x(1), step.word(0)) if i == 0 else None for i in step.node.live]


@each("lookup_at")
def looked_up(step: Step, i: int) -> Contribution:
    """Indices get no gradient; `gradients` adds that of the rows to that of the table."""
    return None


def select_along(x: Expression, indices: Expression, axis: int) -> Expression:
    """Parts of x along an axis, at the indices of a vector."""
    shape, batch = x.dim()
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    found = select_cols(reshape(x, (before, shape[axis], after), batch), indices)
    return reshape(found, (*shape[:axis], found.dim()[0][1], *shape[axis + 1 :]), found.batch_size)


@composed("cumprod")
def cumprod(step: Step, xs: list[Expression]) -> Expression:
    return cumulative(step, xs[0], cmult)


@composed("logcumsumexp")
def logcumsumexp(step: Step, xs: list[Expression]) -> Expression:
    return cumulative(step, xs[0], lambda a, b: log_sum_of_list(step, [a, b]))


def cumulative(step: Step, x: Expression, join: Callable[[Expression, Expression], Expression]) -> Expression:
    """Element by element, so that zeros, and numbers far apart, are as exact as any."""
    axis = step.word(0)
    parts = [pick_range(x, i, i + 1, axis) for i in range(step.node.shape[axis])]
    return concatenate(list(itertools.accumulate(parts, join)), axis)
