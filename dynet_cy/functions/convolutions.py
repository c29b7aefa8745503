"""Convolutions along the columns of a matrix."""

from __future__ import annotations

from dynet_cy.functions.arguments import expression, shape_of
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.conv import conv_transpose2d
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape, transpose

__all__ = ["conv_transpose1d"]


def conv_transpose1d(x: Expression, f: Expression, stride: int = 1, dilation: int = 1, groups: int = 1) -> Expression:
    """Transposed convolution along columns: `conv_transpose2d` in one direction.

    Each column of x puts the columns of the filters, times its elements, into the result.

    Shapes: ``x {ci,n}``, ``f {co,k,ci}`` -> ``{co,m}`` with m = (n - 1) stride + dilation (k - 1) + 1; with groups
    ``f {co/groups,k,ci}``.

    Args:
        x: a sequence of columns.
        f: filters: a matrix of k columns for each row of x.
        stride: how many columns of the result are from one column of x to the next.
        dilation: how many columns on the next column of a filter is.
        groups: into how many groups rows are divided, each of which is worked on by itself.

    Raises:
        DimensionError: the shapes do not fit, or the rows cannot be divided into so many groups.
        ValueError: a number is below 1.

    Example:
        >>> dy.conv_transpose1d(dy.inputTensor([[1, 2]]), dy.inputTensor([[[1], [10]]]), stride=2).npvalue()
        array([[ 1., 10.,  2., 20.]])
    """
    rows, columns = [*shape_of(expression(x, "conv_transpose1d")), 1, 1][:2]
    outputs, width, inputs = [*shape_of(expression(f, "conv_transpose1d", "f")), 1, 1, 1][:3]
    if len(shape_of(x)) > 2 or len(shape_of(f)) > 3 or rows != inputs:
        raise DimensionError(
            f"conv_transpose1d: x {shape_of(x)} must be a matrix with as many rows as f {shape_of(f)} has matrices"
        )
    image = reshape(transpose(reshape(x, (rows, columns), x.dim()[1])), (columns, 1, rows), x.dim()[1])
    by_width = transpose(reshape(f, (outputs, width, inputs), f.dim()[1]), [1, 0, 2])
    filters = reshape(by_width, (width, 1, outputs, inputs), f.dim()[1])
    y = conv_transpose2d(image, filters, (stride, 1), True, (dilation, 1), groups)
    (length, _, channels), batch = y.dim()
    return transpose(reshape(y, (length, channels), batch))
