"""Forward on a device."""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.graphs cimport There
from dynet_cy.graph.graph cimport Graph

cdef int run_planned(Graph* g, There* t, uint32_t n_batches) except -1
