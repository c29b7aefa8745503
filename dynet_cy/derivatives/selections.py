"""Derivatives of shapes and selections."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dynet_cy.derivatives.reductions import hot, log_sum_of_list
from dynet_cy.derivatives.steps import Contribution, Step, flat, kept
from dynet_cy.derivatives.table import composed, each, rule
from dynet_cy.functions.arguments import along
from dynet_cy.functions.shapes import pad
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.elementwise import cmult
from dynet_cy.ops.reduce import sum_dim
from dynet_cy.ops.select import pick_batch_elems, pick_range, scatter_rows, select_rows
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


@each("pick")
def picked(step: Step, i: int) -> Contribution:
    shape, axis = step.x(0).dim()[0], step.word(0)
    return cmult(kept(step.dy, shape, [axis]), along(hot(step, shape[axis]), [axis], len(shape)))


@each("pick_range")
def range_of(step: Step, i: int) -> Contribution:
    shape, axis, n, start = step.x(0).dim()[0], step.word(0), step.word(1), step.node.items[0]
    widths = [(start, size - start - n) if a == axis else (0, 0) for a, size in enumerate(shape)]
    return pad(step.dy, widths)


@each("pick_batch_elems")
def batch_elements(step: Step, i: int) -> Contribution:
    dim = step.x(0).dim()
    n = math.prod(dim[0])
    places = step.items * n + np.arange(n)
    return reshape(scatter_rows(reshape(step.dy, (places.size,)), places.ravel(), n * dim[1]), *dim)


def at_places(e: Expression, places: npt.NDArray[np.int64], shape: Sequence[int]) -> Expression:
    """An expression of a shape with the elements of e added at places, which are counted from 0, and 0 elsewhere."""
    found = scatter_rows(flat(e), places.ravel(order="F"), math.prod(shape))
    return reshape(found, shape, found.batch_size)


@each("select_rows", "select_cols")
def selected(step: Step, i: int) -> Contribution:
    shape = step.x(0).dim()[0]
    places = np.arange(math.prod(shape)).reshape(shape, order="F").take(step.items[0], step.word(0))
    return at_places(step.dy, places, shape)


@each("strided_select")
def strided(step: Step, i: int) -> Contribution:
    """The items are the start, the step and the number of elements along each axis."""
    shape = step.x(0).dim()[0]
    places = np.arange(math.prod(shape)).reshape(shape, order="F")
    for axis, (start, by, n) in enumerate(step.items[0].astype(np.uint32).view(np.int32).reshape(-1, 3).tolist()):
        places = places.take(start + by * np.arange(n), axis)
    return at_places(step.dy, places, shape)


@each("scatter_rows")
def scattered_rows(step: Step, i: int) -> Contribution:
    return select_rows(flat(step.dy), step.items[0])


@composed("cumprod", "logcumsumexp")
def cumulative(step: Step, xs: list[Expression]) -> Expression:
    """Element by element, so that zeros, and numbers far apart, are as exact as any."""
    axis = step.word(0)
    parts = [pick_range(xs[0], i, i + 1, axis) for i in range(step.node.shape[axis])]
    found = parts[:1]
    for part in parts[1:]:
        found.append(cmult(found[-1], part) if step.node.op == "cumprod" else log_sum_of_list(step, [found[-1], part]))
    return concatenate(found, axis)
