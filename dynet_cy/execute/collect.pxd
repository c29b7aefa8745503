"""Gradients of parameters that are products, collected and multiplied together."""

from dynet_cy.graph.graph cimport Graph
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors


# The factors of one parameter's gradient that wait, in the gradient arena.
cdef struct Waiting:
    Waiting* next
    Param* p
    Factors product

cdef bint collect(Graph* g, Waiting** all, Param* p, const Factors* f) noexcept nogil
cdef void add_collected(Waiting* all) noexcept nogil
cdef void add_collected_of(Waiting* all, Param* p) noexcept nogil
