"""Elementwise functions of one argument, for use by other families."""

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.kernels.kernels cimport DY_UNARY_COUNT
from dynet_cy.ops.registry cimport Op

cdef Op* UNARY[DY_UNARY_COUNT]
# The same with a straight-through gradient; NULL if there is none.
cdef Op* THROUGH[DY_UNARY_COUNT]

cdef Expression apply_unary(int which, object x, float p0, float p1)
