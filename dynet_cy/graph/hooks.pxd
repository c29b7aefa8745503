"""Tables of functions that higher layers fill in, so that graphs need not import executors, scheduler or profiler."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.atomic cimport Flag
from dynet_cy.graph.structs cimport Graph

# How values are computed: filled in by executors.
cdef struct Engine:
    int (*forward)(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1
    int (*backward)(Graph* g, uint32_t target, bint full) except -1
    # For graphs with nodes on a device: copy n floats at v, in an arena of the graph, from the device.
    int (*fetch)(Graph* g, int device, float* v, size_t n) except -1
    void (*close)(Graph* g) noexcept
    void (*closed)(Graph* g) noexcept nogil     # frees the data kept for the graph

cdef enum:
    ENGINE_CPU
    ENGINE_GPU
    ENGINE_MULTI_DEVICE             # nodes on several devices
    ENGINE_COUNT

cdef Engine* engine(int kind) noexcept
cdef Engine* engine_of(const Graph* g) noexcept

# Which values are computed along with the requested one: filled in by schedule/siblings, which explains how.
cdef struct Siblings:
    # The targets of a pass for one requested value, which is the first of them.
    uint32_t (*ask)(Graph* g, const uint32_t* target, const uint32_t** targets) noexcept nogil
    # A computed value was requested; called if g.early is not 0.
    void (*asked)(Graph* g, uint32_t node) noexcept nogil
    # A pass for several values has failed, and the first one will be computed alone.
    void (*failed)(Graph* g) noexcept nogil
    # Nodes from this number on, or their values, were dropped; `forget`: drop what was learned from requests too.
    void (*cut)(Graph* g, uint32_t n_nodes, bint forget) noexcept nogil
    # Nodes have new numbers; 0xFFFFFFFF for a dropped one.
    void (*renumber)(Graph* g, const uint32_t* numbers) noexcept nogil

cdef Siblings* sibling_hooks() noexcept

# Called around each pass while profiling is on: filled in by execute/profile.
cdef struct PassHooks:
    Flag on
    uint64_t (*begin)() noexcept nogil
    # A pass for `targets` values, perhaps of the items of a batched map, computed this many nodes.
    void (*end)(Graph* g, uint32_t targets, uint32_t nodes, bint of_map, uint64_t begun) noexcept

cdef PassHooks* pass_hooks() noexcept
