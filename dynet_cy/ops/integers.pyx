"""Integer functions and conversions; their rows are in `include/dynet_cy/integers.def`."""

import numpy as np

from libc.stdint cimport int32_t, uint8_t, uint32_t

from dynet_cy.core.tensor cimport INTEGERS, Dim
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply1, apply1x, apply2, convert_by, expression
from dynet_cy.graph.structs cimport Extra, Graph, no_extra, nodes_of
from dynet_cy.graph.table cimport Table, graph_at, graph_table, hold, let_go
from dynet_cy.ops.registry cimport ALL, FLAT, Forward, Shapes, broadcast_dim, register, same_dim

from dynet_cy.ops.inputs import input_indices

cdef extern from "dynet_cy/integers.h" nogil:
    const Forward dy_integer_forwards[]
    # derived: variables of dy_integer_names, dy_integer_results
    const char* const dy_integer_names[]
    const uint8_t dy_integer_results[]
    # end of variables
    void dy_to_float_forward(const void* c) noexcept
    void dy_to_int_forward(const void* c) noexcept


cdef int integers_dim(const Shapes* s, Dim* y) except -1:
    """Shapes broadcast as those of floats do."""
    return same_dim(s, y) if s.n == 1 else broadcast_dim(s, y)


cdef int which
for which in range(DY_INTEGER_COUNT):
    INTEGER[which] = register(dy_integer_names[which], b"a b", integers_dim, dy_integer_forwards[which], NULL)
    INTEGER[which].batching = FLAT
    INTEGER[which].integers = ALL
    INTEGER[which].result = dy_integer_results[which]
    INTEGER[which].truth = dy_integer_results[which] != INTEGERS
    INTEGER[which].no_gradient_because = b"integers have no gradient"


# ---- conversions --------------------------------------------------------------------------------

TO_FLOAT = register(b"to_float", b"x", same_dim, <Forward>dy_to_float_forward, NULL)
TO_FLOAT.integers = ALL
TO_INT = register(b"to_int", b"x", same_dim, <Forward>dy_to_int_forward, NULL)
TO_INT.result = INTEGERS
TO_FLOAT.batching = TO_INT.batching = FLAT
TO_FLOAT.no_gradient_because = TO_INT.no_gradient_because = b"integers have no gradient"
convert_by(TO_FLOAT)


def to_float(x):
    """Convert integers to floats; numbers beyond 2^24 are rounded. Floats are returned unchanged.

    Operations on floats do this by themselves to arguments that are integers.

    Args:
        x: an expression of any shape.

    Example:
        >>> (dy.to_float(dy.argmax(dy.inputVector([1, 5, 3]))) / 2).value()
        0.5
    """
    return apply1(TO_FLOAT, x) if is_integer(x) else expression(x, "to_float", "x")


def to_int(x):
    """Convert floats to integers (int32) without fractions. Integers are returned unchanged.

    Numbers beyond the range become the least or the greatest integer, and NaN 0. There is no gradient.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.to_int(dy.inputVector([1.5, -2.5])).npvalue()
        array([ 1, -2], dtype=int32)
    """
    return expression(x, "to_int", "x") if is_integer(x) else apply1(TO_INT, x)


# ---- for operators --------------------------------------------------------------------------------

cdef Table* table = graph_table()


cdef bint is_integer(object x) except -1:
    return isinstance(x, Expression) and type_of(<Expression>x) == INTEGERS


cdef inline uint8_t type_of(Expression x) except? 255:
    """The type of an expression, as `dim_of` has it, but quicker for a node of a graph that has not changed."""
    cdef uint8_t found = 255
    cdef Graph* g
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    if g != NULL and x.version == g.version:
        found = nodes_of(g)[x.index].dim.type
    let_go(table, x.slot)
    return found if found != 255 else dim_of(x).type


cdef bint is_whole(object x) except -1:
    """Whether it is a whole number that int32 holds."""
    return isinstance(x, (int, np.integer)) and -0x80000000 <= x <= 0x7FFFFFFF


cdef object as_integers(object x):
    """Whole numbers that int32 holds as an expression, but 0, and anything else, as it is."""
    if isinstance(x, np.ndarray):
        return input_indices(x) if x.dtype.kind in "iub" else x
    return input_indices(int(x)) if is_whole(x) and x else x


cdef Expression of_integers(int which, object a, object b):
    cdef Extra extra
    if is_integer(a):
        b = as_integers(b) if isinstance(b, np.ndarray) and b.ndim else b
    elif is_integer(b):
        a = as_integers(a) if isinstance(a, np.ndarray) and a.ndim else a
    else:
        return None
    if is_integer(a) and is_integer(b):
        return apply2(INTEGER[which], a, b)
    extra = no_extra()
    if is_integer(a) and is_whole(b):
        extra.attrs[0].u = <uint32_t>CONSTANT_B
        extra.attrs[1].i = <int32_t>b
        return apply1x(INTEGER[which], a, &extra)
    if is_integer(b) and is_whole(a):
        extra.attrs[0].u = <uint32_t>CONSTANT_A
        extra.attrs[1].i = <int32_t>a
        return apply1x(INTEGER[which], b, &extra)
    return None
