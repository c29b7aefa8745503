"""Derivatives of convolutions, and of averages of windows.

A convolution, its transpose, and the gradient of its filters compute one of an image, filters and a result from the
two others. So the rules of each are the others, and all orders follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynet_cy.derivatives.steps import Contribution, Step
from dynet_cy.derivatives.table import composed, each
from dynet_cy.functions.shapes import pad, stack
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.conv import conv2d, conv_transpose2d
from dynet_cy.ops.elementwise import cdiv, esum
from dynet_cy.ops.inputs import inputTensor, ones
from dynet_cy.ops.products import matmul
from dynet_cy.ops.reduce import max_dim, sum_dim
from dynet_cy.ops.select import pick_batch_elem, pick_range
from dynet_cy.ops.shape import concatenate, concatenate_to_batch, reshape, transpose


def with_axes(x: Expression, n: int) -> Expression:
    """x with n axes; further ones have size 1."""
    shape, batch = x.dim()
    return x if len(shape) == n else reshape(x, (*shape, *[1] * (n - len(shape))), batch)


def window(x: Expression, starts: Sequence[int], sizes: Sequence[int], outside: float = 0) -> Expression:
    """Rows and columns of an image from the given ones on, and a number where these are outside."""
    for axis, (start, size) in enumerate(zip(starts, sizes)):
        n = x.dim()[0][axis]
        x = pick_range(x, max(start, 0), min(start + size, n), axis)
        more = (max(-start, 0), max(start + size - n, 0))
        x = pad(x, [more if a == axis else (0, 0) for a in range(len(x.dim()[0]))], outside)
    return x


class Geometry(NamedTuple):
    """The geometry of a convolution: strides, padding, dilation.

    Attributes:
        stride, dilation: along rows and columns.
        groups: of channels.
        before: rows and columns of zeros before the image.
        size: rows and columns of the image.
        covered: rows and columns that the filters reach, with the zeros before.
    """

    stride: list[int]
    dilation: list[int]
    groups: int
    before: Sequence[int]
    size: Sequence[int]
    covered: list[int]

    def padded(self, image: Expression) -> Expression:
        """The part of an image that filters reach."""
        return window(image, [-n for n in self.before], self.covered)

    def whole(self, part: Expression) -> Expression:
        """The image of such a part."""
        return window(part, self.before, self.size)

    def result(self, part: Expression, filters: Expression) -> Expression:
        return conv2d(part, filters, self.stride, True, self.dilation, self.groups)

    def part(self, result: Expression, filters: Expression) -> Expression:
        return conv_transpose2d(result, filters, self.stride, True, self.dilation, self.groups)

    def filters(self, part: Expression, result: Expression, dim: tuple[tuple[int, ...], int]) -> Expression:
        """The gradient of filters of a shape, from a part of the image and the gradient of the result."""
        shape, batch = dim
        if batch > 1:
            alone = [[x if x.batch_size == 1 else pick_batch_elem(x, b) for b in range(batch)] for x in (part, result)]
            return concatenate_to_batch([self.filters(x, y, (shape, 1)) for x, y in zip(*alone)])
        channels, outputs = (x.dim()[0][2] // self.groups for x in (part, result))
        found = []
        for g in range(self.groups):
            images = swapped(pick_range(part, g * channels, (g + 1) * channels, 2))
            # The result has a channel for each image of the batch: as a filter, it adds them up.
            as_filter = with_batch(pick_range(result, g * outputs, (g + 1) * outputs, 2))
            moved = conv2d(images, transpose(as_filter, (0, 1, 3, 2)), self.dilation, True, self.stride)
            found.append(transpose(with_batch(window(moved, (0, 0), shape[:2])), (0, 1, 3, 2)))
        return concatenate(found, 3)


def with_batch(images: Expression) -> Expression:
    """Images with the batch as a fourth axis."""
    shape, batch = images.dim()
    return reshape(images, (*shape, batch), 1)


def swapped(images: Expression) -> Expression:
    """Images with a batch element for each channel, and a channel for each batch element."""
    (rows, columns, channels), batch = images.dim()
    return reshape(transpose(with_batch(images), (0, 1, 3, 2)), (rows, columns, batch), channels)


def geometry(step: Step, image: Expression, filters: Expression, result: Expression) -> Geometry:
    """The geometry of a step with an image, filters and a result, of which one is its own result."""
    stride, dilation = ([max(half, 1) for half in halves] for halves in step.halves(0))
    size, count, reach = (x.dim()[0][:2] for x in (image, result, filters))
    covered = [(n - 1) * s + (r - 1) * d + 1 for n, s, r, d in zip(count, stride, reach, dilation)]
    around = step.word(2) - 1
    padding = None if around < 0 else (around & 0x7FFF, around >> 15)
    before = padding or [max(c - n, 0) // 2 for c, n in zip(covered, size)]
    return Geometry(stride, dilation, max(step.word(3), 1), before, size, covered)


@each("conv2d", "conv2d_bias")
def convolution(step: Step, i: int) -> Contribution:
    if i == 2:
        return sum_dim(step.dy, [0, 1])
    x, f = with_axes(step.x(0), 3), with_axes(step.x(1), 4)
    how = geometry(step, x, f, step.dy)
    return how.filters(how.padded(x), step.dy, f.dim()) if i else how.whole(how.part(step.dy, f))


@each("conv_transpose2d")
def transposed(step: Step, i: int) -> Contribution:
    x, f = with_axes(step.x(0), 3), with_axes(step.x(1), 4)
    how = geometry(step, step.dy, f, x)
    part = how.padded(step.dy)
    return how.filters(part, x, f.dim()) if i else how.result(part, f)


@composed("filter1d_narrow")
def filter1d(step: Step, xs: list[Expression]) -> Expression:
    """y[o, t] = sum_ij f[i, j, o] x[i, t + j]: a convolution whose filters have all rows."""
    x, f = with_axes(xs[0], 3), with_axes(xs[1], 3)
    (rows, columns, n), batch = f.dim()
    found = conv2d(x, reshape(f, (rows, columns, 1, n), batch), [1, 1])
    return transpose(reshape(found, found.dim()[0][1:], found.batch_size))


@composed("kmh_ngram")
def ngrams(step: Step, xs: list[Expression]) -> Expression:
    x, n = with_axes(xs[0], 2), step.word(0)
    return esum([pick_range(x, k, k + step.node.shape[1], 1) for k in range(n)])


@composed("avgpooling2d")
def averages(step: Step, xs: list[Expression]) -> Expression:
    """Sums of windows, by a filter of ones for each channel, divided by their elements inside the image."""
    x = with_axes(xs[0], 3)
    rows, columns = step.word(0), step.word(1)
    stride, padding = step.halves(2)
    channels = x.dim()[0][2]
    filters = ones((abs(rows), columns, 1, channels))

    def sums(images: Expression) -> Expression:
        return conv2d(images, filters, stride, rows > 0, groups=channels, padding=padding)

    return cdiv(sums(x), sums(ones(x.dim()[0])))


@composed("maxpooling2d")
def maxima(step: Step, xs: list[Expression]) -> Expression:
    """The greatest of the images that consist of the first elements of all windows, of the second ones, and so on."""
    size = [abs(step.word(k)) for k in range(2)]
    stride, padding = step.halves(2)
    count = step.node.shape[:2]
    covered = [(n - 1) * by + reach for n, by, reach in zip(count, stride, size)]
    same = [max(c - n, 0) // 2 for c, n in zip(covered, xs[0].dim()[0])]
    before = padding if step.word(0) > 0 else same
    x = window(with_axes(xs[0], 3), [-n for n in before], covered, -math.inf)
    places = [(row, column) for column in range(size[1]) for row in range(size[0])]
    parts = [x[row :: stride[0], column :: stride[1]][: count[0], : count[1]] for row, column in places]
    return max_dim(stack(parts, 3), 3)


@composed("adaptive_avgpooling2d")
def adaptive_averages(step: Step, xs: list[Expression]) -> Expression:
    """Products with a matrix for the rows, and one for the columns, whose rows have the weights of a window."""
    x = xs[0] if len(xs[0].dim()[0]) > 1 else with_axes(xs[0], 2)
    shape = x.dim()[0]
    rows, columns = (inputTensor(weights(shape[axis], step.word(axis))) for axis in range(2))
    return matmul(matmul(rows, x), columns, False, True)


def weights(n: int, windows: int) -> np.ndarray:
    """The share of each of n elements in each window."""
    found = np.zeros((windows, n), np.float32)
    for k in range(windows):
        first, end = k * n // windows, -(-(k + 1) * n // windows)
        found[k, first:end] = 1 / (end - first)
    return found
