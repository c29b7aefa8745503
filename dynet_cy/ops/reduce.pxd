"""Reductions: the axes that an op reduces, for use by other families."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.ops.registry cimport Op, Shapes

cdef Op* SUM

# The shape rule of ops whose attrs[0] is the axes that they reduce.
cdef int reduced_dim(const Shapes* s, Dim* y) except -1
cdef uint32_t mask_of(object x, object d, object b, str op) except? 0xFFFFFFFF
cdef Expression reduced(const Op* op, object x, uint32_t mask, int n, int r)
cdef list axes_of(Expression x, object axis, str op)
cdef Expression with_axes(Expression x, Expression y, list axes, object keepdims)
