"""Fusion of consecutive elementwise batches into one launch; see fusion.pyx."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Mark the batches among n planned ones, which run in one pass, that run as one launch.
cdef void find_fusions(Graph* g, uint32_t begin, uint32_t n) noexcept nogil
# Used from Cython only.
