"""Elementwise functions of one and two arguments, with rows in `include/dynet_cy/*.def`, and sums of many."""

from dynet_cy.graph.expressions cimport Expression
from dynet_cy.kernels.kernels cimport DY_BINARY_COUNT, DY_UNARY_COUNT
from dynet_cy.ops.registry cimport Op


# ==== integers ====================================================================================
#
# Integer functions and conversions; their rows are in `include/dynet_cy/integers.def`.

cdef extern from "dynet_cy/integers.h" nogil:
    # The numbers of the rows.
    # derived: constants of INT_ADD = DY_int_add, INT_SUB = DY_int_sub, INT_MUL = DY_int_mul,
    #     INT_FLOOR_DIVIDE = DY_int_floor_divide, INT_REMAINDER = DY_int_remainder, INT_MIN = DY_int_min,
    #     INT_MAX = DY_int_max, INT_LESS = DY_int_less, INT_LESS_EQUAL = DY_int_less_equal, INT_EQUAL = DY_int_equal,
    #     INT_NOT_EQUAL = DY_int_not_equal, DY_INTEGER_COUNT, NO_CONSTANT, CONSTANT_A, CONSTANT_B
    int INT_ADD "DY_int_add"
    int INT_SUB "DY_int_sub"
    int INT_MUL "DY_int_mul"
    int INT_FLOOR_DIVIDE "DY_int_floor_divide"
    int INT_REMAINDER "DY_int_remainder"
    int INT_MIN "DY_int_min"
    int INT_MAX "DY_int_max"
    int INT_LESS "DY_int_less"
    int INT_LESS_EQUAL "DY_int_less_equal"
    int INT_EQUAL "DY_int_equal"
    int INT_NOT_EQUAL "DY_int_not_equal"
    int DY_INTEGER_COUNT
    int NO_CONSTANT "DY_NO_CONSTANT"
    int CONSTANT_A "DY_CONSTANT_A"
    int CONSTANT_B "DY_CONSTANT_B"
    # end of constants

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
