"""LSTM cells on a device: all elementwise steps of a cell as one launch."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

# Mark the batches among n planned ones, which run in one pass, that are steps of LSTM cells.
cdef void find_cells(Graph* g, uint32_t first, uint32_t n) noexcept nogil
