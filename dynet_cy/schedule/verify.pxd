"""Checks that each value is there when a batch of a plan reads it, forward and backward."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Check the next n planned batches, among which some values do not live as long as the graph.  Returns NULL, or an error
# that names the ops, a new reference.  `most_along` as in schedule/transient.
cdef void* verify(Graph* g, uint32_t n, size_t most_along) noexcept nogil
