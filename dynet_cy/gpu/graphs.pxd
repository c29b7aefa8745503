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

# Number k mirrors arena k of the graph.
cdef enum:
    VALUES
    GRADS
    SCRATCH
    TABLES
    ARENAS

# In `graph.device_graphs`: one for each device that the graph has run on.
cdef struct DeviceGraph:
    DeviceGraph* next
    Gpu* gpu
    Mirror[ARENAS] mirrors
    Arena commands                  # on the host: the commands of the current pass
    void* replays                   # CUDA graphs of earlier passes
    size_t limit                    # of the graph, if it was set by `limit_by_device`
    Array ranges                    # on the host: the Ranges of the current pass's upload
    Array moves                     # on the host: those of the group that is being collected

# Once a device has had no memory for a pass (`note_shortage`), what it has left limits graphs: limit a graph by
# that until it is renewed, if it has none that is lower.
cdef void limit_by_device(Graph* g, DeviceGraph* d) noexcept nogil
# Raise an error of missing memory again; it says so if the limit is that of the device.
cdef int raise_of_device(const Graph* g, const DeviceGraph* d, object error) except -1

# A pass begins; see gpu/memory.
cdef void begin_uses(const Graph* g, DeviceGraph* d) noexcept nogil
# Map memory for what it has noted.  Returns 0 or the error of the driver, and in `arena` where that was.
cdef int extend_mirrors(DeviceGraph* d, int* arena) noexcept nogil
cdef float* device_ptr(const Graph* g, DeviceGraph* d, const void* p) noexcept nogil
cdef DeviceGraph* device_graph(Graph* g, int device) except NULL
cdef int fetch(Graph* g, int device, float* v, size_t n) except -1
# The same within a pass that must not be interrupted: exceptions of signal handlers are kept in `s`.
cdef int fetch_within(Graph* g, int device, float* v, size_t n, Interrupts* s) except -1
cdef void close(Graph* g) noexcept
