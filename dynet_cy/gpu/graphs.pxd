"""The device side of a graph: memory on the device that mirrors the arenas of the graph."""

from dynet_cy.core.interrupts cimport Interrupts
from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.gpu.mirrored cimport Mirror
from dynet_cy.graph.structs cimport Graph
from dynet_cy.memory.arena cimport Arena, Array


# In `graph.device_graphs`: one for each device that the graph has run on.
cdef struct DeviceGraph:
    DeviceGraph* next
    Gpu* gpu
    Mirror values
    Mirror grads
    Mirror scratch
    Mirror tables
    Arena commands                  # on the host: the commands of the current pass
    void* replays                   # CUDA graphs of earlier passes
    Array ranges                    # on the host: the Ranges of the current pass's upload

cdef float* device_ptr(const Graph* g, DeviceGraph* d, const void* p) noexcept nogil
cdef DeviceGraph* device_graph(Graph* g, int device) except NULL
cdef int fetch(Graph* g, int device, float* v, size_t n) except -1
# The same within a pass that must not be interrupted: exceptions of signal handlers are kept in `s`.
cdef int fetch_within(Graph* g, int device, float* v, size_t n, Interrupts* s) except -1
cdef void close(Graph* g) noexcept
