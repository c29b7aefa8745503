"""Inputs, constants and indices from Python."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Extra
from dynet_cy.ops.registry cimport Shapes


# ==== indices =====================================================================================
#
# Whole numbers given from Python, and indices as the unsigned words of a node.

cdef Py_ssize_t whole(object value, str op, str what=*) except? -1
cdef Py_ssize_t axis_in(object x, object axis, str op, str what=*) except -1
cdef object whole_where_possible(object array, str op)
cdef int set_index(Extra* extra, uint32_t* place, object value, str op) except -1
cdef bytes set_indices(Extra* extra, object values, str op)
cdef bint is_list(object values)
cdef int check_count(const Shapes* s, uint32_t item_count) except -1


# ==== inputs ======================================================================================
#
# Shapes of leaves, for use by other families.

cdef int dim_with_batch(object shape, object batch_size, Dim* dim, str op) except -1
