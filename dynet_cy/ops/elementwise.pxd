"""Elementwise functions of one and two arguments, with rows in `include/dynet_cy/*.def`, and sums of many."""

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.kernels.kernels cimport DY_BINARY_COUNT, DY_UNARY_COUNT
from dynet_cy.ops.registry cimport Op


# ==== unary =======================================================================================
#
# Elementwise functions of one argument, for use by other families.

cdef Op* UNARY[DY_UNARY_COUNT]
# The same with a straight-through gradient; NULL if there is none.
cdef Op* THROUGH[DY_UNARY_COUNT]


# ==== arithmetic ==================================================================================
#
# Elementwise functions of two arguments, for use by other families.

cdef Op* BINARY[DY_BINARY_COUNT]

cdef float number(object value, str op, str argument) except? -1

# The other operand of an expression's operator: an expression, or a number as a float; an array becomes an input.
cdef object operand(object value, str op, str argument)
