"""Integer functions and conversions; their rows are in `include/dynet_cy/integers.def`."""

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.ops.registry cimport Op


cdef extern from "dynet_cy/integers.h" nogil:
    # The numbers of the rows.
    cdef enum:
        INT_ADD "DY_int_add"
        INT_SUB "DY_int_sub"
        INT_MUL "DY_int_mul"
        INT_FLOOR_DIVIDE "DY_int_floor_divide"
        INT_REMAINDER "DY_int_remainder"
        INT_MIN "DY_int_min"
        INT_MAX "DY_int_max"
        INT_LESS "DY_int_less"
        INT_LESS_EQUAL "DY_int_less_equal"
        INT_EQUAL "DY_int_equal"
        INT_NOT_EQUAL "DY_int_not_equal"
        DY_INTEGER_COUNT
        NO_CONSTANT "DY_NO_CONSTANT"
        CONSTANT_A "DY_CONSTANT_A"
        CONSTANT_B "DY_CONSTANT_B"

# The ops, by number of the row.
cdef Op* INTEGER[16]
cdef Op* TO_FLOAT
cdef Op* TO_INT

cdef bint is_integer(object x) except -1
# Whole numbers that int32 holds as an expression, but 0, and anything else, as it is.
cdef object as_integers(object x)
# Row `which` of a and b, of which one is integers, and the other too, or is a whole number or an array of such; None if
# it is anything else: then floats are computed with.
cdef Expression of_integers(int which, object a, object b)
