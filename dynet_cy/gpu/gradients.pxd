"""Backward on a device."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.graph cimport Graph

cdef int backward(Graph* g, uint32_t target, bint full) except -1
