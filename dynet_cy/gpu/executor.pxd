"""Forward on a device."""

from libc.stdint cimport uint32_t

from dynet_cy.gpu.graphs cimport DeviceGraph
from dynet_cy.graph.graph cimport Graph

cdef int run_planned(Graph* g, DeviceGraph* d, uint32_t n_batches) except -1
