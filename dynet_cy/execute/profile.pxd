"""How many nodes ran in how many calls, and for how long, by operation."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.structs cimport Graph

cdef enum:
    WEIGHT_GRADIENTS = 0xFFFFFFFF   # in the place of an op: what execute.collect does

# 0: nothing is measured.
cdef int profiling

cdef uint64_t now() noexcept nogil
cdef void note(uint32_t op, bint backward, uint32_t nodes, uint64_t since) noexcept nogil
# The same for a call of the nodes order[first], order[first + 1]... of a graph, of which so many ran; by line too.
cdef void note_call(const Graph* g, uint32_t first, uint32_t count, bint backward, uint32_t nodes,
                    uint64_t since) noexcept nogil

# Write what has run since a batch, a batch a line, to stderr.
cdef int list_batches(Graph* g, uint32_t first) except -1
