"""Selections: elements, ranges, rows, columns, batch elements, indexing; and sorting."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.expressions cimport Expression

# How `take` and `put` mean positions that are values of the graph, their attribute 1.
cdef enum:
    SHARED_POSITIONS                # a vector of positions, the same for all lines along the axis
    ONE_POSITION                    # one position: the axis is removed
    OWN_POSITIONS                   # positions of the shape of y: each element has its own

# The parts of x at positions, or zeros with the parts of x at positions; `name`: the public function, for errors.
cdef Expression taken(object x, object indices, Py_ssize_t axis, uint32_t mode, str name, str barred=*)
cdef Expression put(object x, object indices, Py_ssize_t axis, object n, uint32_t mode, str name)
# Indices of which each batch element has one: a vector of n numbers becomes n batch elements.
cdef Expression one_each(Expression indices, str name)
