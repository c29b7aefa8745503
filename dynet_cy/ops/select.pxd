"""Selections: elements, ranges, rows, columns, batch elements, indexing; and sorting."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.expressions cimport Expression

# A bit of the order of a sort: NaN comes first.
cdef enum:
    NAN_FIRST = 2

# The parts of x at positions, or zeros with the parts of x at positions; `name`: the public function, for errors.
cdef Expression taken(object x, object indices, Py_ssize_t axis, uint32_t mode, str name, str barred=*)
cdef Expression put(object x, object indices, Py_ssize_t axis, object n, uint32_t mode, str name)
# Indices of which each batch element has one: a vector of n numbers becomes n batch elements.
cdef Expression one_each(Expression indices, str name)
