"""Backward on a device."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.journal cimport Journal
from dynet_cy.gpu.passes cimport Pass
from dynet_cy.graph.structs cimport Graph
from dynet_cy.memory.storage cimport Param

cdef int backward(Graph* g, uint32_t target, bint full) except -1

# Commands for a pass over a part of the graph. A pass with `add_gradient` calls `remember_moves` first.
cdef int list_batches_backward(Pass* s, uint32_t first, uint32_t last) noexcept nogil
cdef int remember_moves(Pass* s) noexcept nogil
cdef int add_gradient(Pass* s, uint32_t arg, float* source, size_t n, float scale) noexcept nogil
cdef int add_one(Pass* s, Param* p) noexcept nogil

# While checks are on, a pass that is not finished leaves the gradients of parameters as they were: keep them before it;
# note afterwards that it has added to them, or put them back.
cdef int keep_gradients(const Graph* g, uint32_t target, Journal* journal) except -1
cdef void note_after(Journal* journal) noexcept nogil
cdef int put_gradients_back(Journal* journal) except -1
