"""Values computed early, in the same pass as the requested one; see speculation.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.structs cimport Graph

# Whether the last requested value was in the group of a value that was requested before it.
cdef bint was_waiting(const Graph* g) noexcept nogil
# Find groups, for `was_waiting`, even if computing values early is switched off.
cdef void track_requests(bint is_to_be) noexcept
cdef void drop_speculation(Graph* g) noexcept nogil
