"""The device side of a graph: memory that mirrors the arenas of the graph, and passes that are replayed."""

from dynet_cy.core.threads cimport Interrupts
from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.gpu.memory cimport Mirror
from dynet_cy.graph.structs cimport Graph
from dynet_cy.memory.arena cimport Arena, Array


# ==== replay ======================================================================================
#
# CUDA graphs of passes that repeat: a single launch for a whole pass.

# Between these two calls, launches, products and fills are listed; `run_listed` issues them.  `kept` points to the
# captured CUDA graphs of a computation graph, NULL at first.
cdef void begin_listing(Gpu* gpu) noexcept nogil
cdef int run_listed(Gpu* gpu, void** kept) noexcept nogil


# ==== graphs ======================================================================================
#
# The device side of a graph: memory on the device that mirrors the arenas of the graph.

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
    Array moves                     # on the host: those of the group that is being collected

cdef float* device_ptr(const Graph* g, DeviceGraph* d, const void* p) noexcept nogil
cdef DeviceGraph* device_graph(Graph* g, int device) except NULL
cdef int fetch(Graph* g, int device, float* v, size_t n) except -1
# The same within a pass that must not be interrupted: exceptions of signal handlers are kept in `s`.
cdef int fetch_within(Graph* g, int device, float* v, size_t n, Interrupts* s) except -1
cdef void close(Graph* g) noexcept
