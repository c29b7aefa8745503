"""Inputs, constants and indices from Python."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.ops.registry cimport Shapes


# ==== indices =====================================================================================
#
# Whole numbers given from Python, and indices as the unsigned words of a node.

cdef Py_ssize_t whole(object value, str op, str what=*) except? -1
cdef Py_ssize_t axis_in(object x, object axis, str op, str what=*) except -1
cdef object whole_where_possible(object array, str op)
cdef int set_index(Extra* extra, uint32_t* place, object value, str op) except -1
cdef bytes set_indices(Extra* extra, object values, str op)
cdef bytes set_shared_indices(Extra* extra, object values, str op, str what)
cdef bint is_list(object values)
cdef int check_count(const Shapes* s, uint32_t item_count) except -1


# The parameters of a node whose attributes are these.
cdef inline Extra of_words(uint32_t a, uint32_t b=0, uint32_t c=0, uint32_t d=0) noexcept:
    cdef Extra extra = no_extra()
    extra.attrs[0].u, extra.attrs[1].u, extra.attrs[2].u, extra.attrs[3].u = a, b, c, d
    return extra


cdef inline Extra of_numbers(float a, float b=0) noexcept:
    cdef Extra extra = no_extra()
    extra.attrs[0].f, extra.attrs[1].f = a, b
    return extra


cdef inline void set_item(Extra* extra, const uint32_t* item) noexcept:
    extra.items = item
    extra.n_items = extra.item_count = 1


# An axis as a word; 7 if no tensor has it.
cdef inline uint32_t axis_word(Py_ssize_t axis) noexcept:
    return <uint32_t>axis if 0 <= axis < 7 else 7


# ==== inputs ======================================================================================
#
# Shapes of leaves, for use by other families.

cdef int dim_with_batch(object shape, object batch_size, Dim* dim, str op) except -1
