"""Batches on a device whose results are copies of their arguments, made by moves."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Mark the batches among the next n planned ones whose results are copies, and let them run right before their users.
cdef void find_copies(Graph* g, uint32_t n) noexcept nogil
