"""Derivatives of products."""

from __future__ import annotations

from dynet_cy.derivatives.steps import Contribution, Outer, Step, as_matrix, columns, flat
from dynet_cy.derivatives.table import composed, each, rule
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.elementwise import cmult
from dynet_cy.ops.products import circ_conv, circ_corr, inverse, matmul
from dynet_cy.ops.reduce import sum_batches
from dynet_cy.ops.shape import reshape, transpose


def of_matrix(matrix: Expression, x: Expression, dy: Expression) -> Contribution:
    """The gradient of the matrix in a product with x, whose gradient is dy."""
    shape, batch = matrix.dim()
    if batch > 1:
        return matmul(as_matrix(dy), transpose(as_matrix(x)))
    if x.batch_size < dy.batch_size:
        dy = sum_batches(dy)
    return Outer(columns(dy, shape[0]), columns(x, x.dim()[0][0]))


def of_factor(transposed: Expression, axes: int, dy: Expression) -> Expression:
    """The gradient of x, which has so many axes, in a product of a matrix and x, whose gradient is dy."""
    return matmul(transposed, dy if axes == len(dy.dim()[0]) == 1 else as_matrix(dy))


def product(step: Step, i: int, first: int, dy: Expression) -> Contribution:
    """The gradient of argument i in the product of arguments number `first` and `first` + 1, whose gradient is dy."""
    x = step.x(first + 1)
    if i == first:
        return of_matrix(step.x(first), x, dy)
    return of_factor(step.transposed(first), len(x.dim()[0]), dy)


@each("matmul")
def times(step: Step, i: int) -> Contribution:
    return product(step, i, 0, step.dy)


def of_sum(step: Step, dy: Expression) -> list[Contribution]:
    """The gradients of the arguments b, W1, x1, W2, x2... of the sum b + W1 x1 + W2 x2..., whose gradient is dy."""
    return [product(step, i, i - 1 | 1, dy) if i else dy for i in step.node.live]


@rule("affine_transform")
def affine(step: Step) -> list[Contribution]:
    return of_sum(step, step.dy)


@each("batched_matmul")
def batched(step: Step, i: int) -> Contribution:
    """The attribute has a bit for each argument that is multiplied as its transpose."""
    flags = step.word(0)
    of_a, of_b = bool(flags & 1), bool(flags & 2)
    if i == 0:
        b = step.x(1)
        return matmul(b, step.dy, of_b, True) if of_a else matmul(step.dy, b, False, not of_b)
    a = step.x(0)
    return matmul(step.dy, a, True, of_a) if of_b else matmul(a, step.dy, not of_a, False)


@each("dot_product")
def dot_product(step: Step, i: int) -> Contribution:
    other = step.x(1 - i)
    return cmult(step.dy, reshape(other, step.x(i).dim()[0], other.batch_size))


@composed("contract3d_1d")
def contract(step: Step, xs: list[Expression]) -> Expression:
    """z_ij = sum_k x_ijk y_k: the product of x as a matrix and y."""
    x, y = xs
    shape, batch = x.dim()
    vector = flat(y)
    matrix = reshape(x, (step.node.shape[0] * step.node.shape[1], vector.dim()[0][0]), batch)
    product = matrix * vector
    return reshape(product, step.node.shape, product.batch_size)


@each("circ_conv")
def convolution(step: Step, i: int) -> Contribution:
    return circ_corr(step.x(1 - i), step.dy)


@each("circ_corr")
def correlation(step: Step, i: int) -> Contribution:
    return circ_conv(step.dy, step.x(0)) if i else circ_corr(step.dy, step.x(1))


@each("inverse")
def inverted(step: Step, i: int) -> Contribution:
    back = transpose(step.y)
    return -matmul(matmul(back, step.dy), back)


@each("logdet")
def logdet(step: Step, i: int) -> Contribution:
    return cmult(step.dy, transpose(inverse(step.x(0))))
