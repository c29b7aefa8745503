"""Values beside the one that is asked for: which of them are computed in the same pass."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.graph cimport Graph

# Whether the value that was asked for last had been waiting beside one that was asked for before it.
cdef bint was_waiting(const Graph* g) noexcept nogil
# Let that be known also where values beside others are not computed with them.
cdef void track_requests(bint is_to_be) noexcept
cdef void drop_beside(Graph* g) noexcept nogil
