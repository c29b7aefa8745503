"""Counts of nodes and calls, and the time they took, by operation."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.atomic cimport Setting
from dynet_cy.graph.structs cimport Graph

cdef enum:
    WEIGHT_GRADIENTS = 0xFFFFFFFF   # instead of an op: the products of execute/gradients

# The level; 0: nothing is measured.
cdef Setting profiling

cdef uint64_t now() noexcept nogil
cdef void note(uint32_t op, bint backward, uint32_t nodes, uint64_t since) noexcept nogil
# The same for a call of `count` nodes of a graph, from order[first] on, of which `nodes` ran; counted by line too.
cdef void note_call(const Graph* g, uint32_t first, uint32_t count, bint backward, uint32_t nodes,
                    uint64_t since) noexcept nogil

# Write the batches that have run, from number `first` on, to stderr, one per line.
cdef int list_batches(Graph* g, uint32_t first) except -1
