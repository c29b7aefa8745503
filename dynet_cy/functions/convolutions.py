"""Convolutions along the columns of a matrix."""

from __future__ import annotations

from dynet_cy.functions.arguments import expression, known_arguments, shape_of
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.conv import conv2d, conv_transpose2d
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape, transpose

__all__ = ["conv1d", "conv_transpose1d"]


@known_arguments
def conv1d(x: Expression, f: Expression, stride: int = 1, dilation: int = 1, groups: int = 1) -> Expression:
    """Convolution along columns (without flipping the filters): `conv2d` in one direction, without padding.

    Each window of k columns of x is multiplied by the filters. `pad` adds columns at both ends.

    Shapes: ``x {ci,n}``, ``f {ci,k,co}`` -> ``{co,m}`` with m = (n - dilation (k - 1) - 1) // stride + 1; with groups
    ``f {ci/groups,k,co}``.

    Args:
        x: a sequence of columns.
        f: filters: a matrix of k columns for each row of the result.
        stride: the distance, in columns of x, from one window to the next.
        dilation: the distance, in columns of x, between neighbouring columns of a window.
        groups: the number of groups of rows, each of which is processed separately.

    Raises:
        DimensionError: the shapes do not fit, or the rows cannot be divided into so many groups.
        ValueError: a number is below 1.

    Example:
        >>> dy.conv1d(dy.inputTensor([[1, 2, 3]]), dy.inputTensor([[[1], [10]]])).npvalue()
        array([[21., 32.]])
    """
    rows, columns = _columns(x, "conv1d")
    inputs, width, outputs = _filters(x, f, "conv1d")
    image = reshape(transpose(reshape(x, (rows, columns), x.dim()[1])), (columns, 1, rows), x.dim()[1])
    by_width = transpose(reshape(f, (inputs, width, outputs), f.dim()[1]), [1, 0, 2])
    filters = reshape(by_width, (width, 1, inputs, outputs), f.dim()[1])
    return _rows(conv2d(image, filters, (stride, 1), True, (dilation, 1), groups))


@known_arguments
def conv_transpose1d(x: Expression, f: Expression, stride: int = 1, dilation: int = 1, groups: int = 1) -> Expression:
    """Transposed convolution along columns: `conv_transpose2d` in one direction.

    Each column of x adds the columns of the filters, times its elements, to the result.

    Shapes: ``x {ci,n}``, ``f {co,k,ci}`` -> ``{co,m}`` with m = (n - 1) stride + dilation (k - 1) + 1; with groups
    ``f {co/groups,k,ci}``.

    Args:
        x: a sequence of columns.
        f: filters: a matrix of k columns for each row of x.
        stride: the distance, in columns of the result, between the filters of neighbouring columns of x.
        dilation: the distance, in columns of the result, between neighbouring columns of a filter.
        groups: the number of groups of rows, each of which is processed separately.

    Raises:
        DimensionError: the shapes do not fit, or the rows cannot be divided into so many groups.
        ValueError: a number is below 1.

    Example:
        >>> dy.conv_transpose1d(dy.inputTensor([[1, 2]]), dy.inputTensor([[[1], [10]]]), stride=2).npvalue()
        array([[ 1., 10.,  2., 20.]])
    """
    rows, columns = _columns(x, "conv_transpose1d")
    outputs, width, inputs = _filters(x, f, "conv_transpose1d")
    if rows != inputs:
        raise DimensionError(
            f"conv_transpose1d: x {shape_of(x)} must have as many rows as f {shape_of(f)} has matrices"
        )
    image = reshape(transpose(reshape(x, (rows, columns), x.dim()[1])), (columns, 1, rows), x.dim()[1])
    by_width = transpose(reshape(f, (outputs, width, inputs), f.dim()[1]), [1, 0, 2])
    filters = reshape(by_width, (width, 1, outputs, inputs), f.dim()[1])
    return _rows(conv_transpose2d(image, filters, (stride, 1), True, (dilation, 1), groups))


def _columns(x: Expression, function: str) -> tuple[int, int]:
    """Rows and columns of a sequence."""
    shape = shape_of(expression(x, function))
    if len(shape) > 2:
        raise DimensionError(f"{function}: x {shape} must be a matrix")
    rows, columns = [*shape, 1, 1][:2]
    return rows, columns


def _filters(x: Expression, f: Expression, function: str) -> tuple[int, int, int]:
    """The three sizes of filters."""
    shape = shape_of(expression(f, function, "f"))
    if len(shape) > 3:
        raise DimensionError(f"{function}: f {shape} must have three axes, for x {shape_of(x)}")
    first, width, last = [*shape, 1, 1, 1][:3]
    return first, width, last


def _rows(y: Expression) -> Expression:
    """The channels of an image of one column as rows."""
    (length, _, channels), batch = y.dim()
    return transpose(reshape(y, (length, channels), batch))
