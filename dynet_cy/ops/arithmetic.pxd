"""Elementwise functions of two arguments, for use by other families."""

from dynet_cy.kernels.kernels cimport DY_BINARY_COUNT
from dynet_cy.ops.registry cimport Op

cdef Op* BINARY[DY_BINARY_COUNT]

cdef float number(object value, str op, str argument) except? -1

# The other operand of an expression's operator: an expression, or a number as a float; an array becomes an input.
cdef object operand(object value, str op, str argument)
