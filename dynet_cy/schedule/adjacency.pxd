"""Orders nodes within batches, so that a later batch finds its arguments side by side."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Order the nodes of the next `n` planned batches.  Without memory for that, their order stays.
cdef void order_nodes(Graph* g, uint32_t n) noexcept nogil
