"""Gradients of parameters that are products, collected and multiplied together."""

from dynet_cy.execute.journal cimport Journal, Waiting
from dynet_cy.graph.structs cimport Graph
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors

cdef bint collect(Graph* g, Journal* journal, Param* p, const Factors* f) noexcept nogil
cdef void add_collected(Waiting* w, Journal* journal) noexcept nogil
cdef void add_collected_of(Journal* journal, Param* p) noexcept nogil
