"""Copies between devices: of the values of a batch, and of the gradients of such copies."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.walk cimport Walk
from dynet_cy.gpu.graphs cimport DeviceGraph
from dynet_cy.graph.structs cimport LIVE, NEEDS_GRAD, Batch, Graph, state_of


cdef inline bint has_gradient(const Graph* g, uint32_t node) noexcept nogil:
    return state_of(g)[node] & (LIVE | NEEDS_GRAD) == (LIVE | NEEDS_GRAD)


# Copy the values of a batch to its device.
cdef int copy_forward(Graph* g, Batch* batch, int device) except -1
# Add gradients of nodes, which are on the host, to those of their arguments, which are on `d` (NULL: the CPU).
cdef int hand_back(Walk* w, DeviceGraph* d, const Batch* batch) noexcept nogil
