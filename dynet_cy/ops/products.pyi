# Written by tools/derive.py

import numpy.typing as npt

from dynet_cy.graph.expressions import Expression

def contract3d_1d(x: Expression, y: Expression) -> Expression:
    """A tensor of three axes times a vector, over the last axis: z_ij = sum_k x_ijk y_k."""

def contract3d_1d_bias(x: Expression, y: Expression, b: Expression) -> Expression:
    """`contract3d_1d` plus a matrix b."""

def contract3d_1d_1d(x: Expression, y: Expression, z: Expression) -> Expression:
    """A tensor of three axes times two vectors: t_i = sum_jk x_ijk y_k z_j."""

def contract3d_1d_1d_bias(x: Expression, y: Expression, z: Expression, b: Expression) -> Expression:
    """`contract3d_1d_1d` plus a vector b."""

def circ_conv(u: Expression, v: Expression) -> Expression:
    """Circular convolution of two vectors of n elements: y_k = sum_i u_i v_(k-i mod n)."""

def circ_corr(u: Expression, v: Expression) -> Expression:
    """Circular correlation of two vectors of n elements: y_k = sum_i u_i v_(i+k mod n)."""

def matmul(
    x: Expression | npt.ArrayLike, y: Expression | npt.ArrayLike, transpose_x: bool = False, transpose_y: bool = False
) -> Expression:
    """Product of matrices, along the first two axes; also written ``x @ y``."""

def inverse(x: Expression) -> Expression:
    """Inverse of a square matrix."""

def logdet(x: Expression) -> Expression:
    """Natural logarithm of the determinant of a square matrix."""
