"""What higher layers fill in, so that graphs need none of them: executors, the scheduler, the profiler."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.atomic cimport Flag
from dynet_cy.graph.structs cimport Graph

# How values are computed: filled by executors, so that graphs need none.
cdef struct Engine:
    int (*forward)(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1
    int (*backward)(Graph* g, uint32_t target, bint full) except -1
    # For graphs with nodes on a device: n floats at v, in an arena of the graph, as they are there.
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

# Which values are computed together with the requested one: filled in by schedule/beside, which says how.
cdef struct Beside:
    # The targets of a pass for one value that is not computed; it is the first of them.
    uint32_t (*ask)(Graph* g, const uint32_t* target, const uint32_t** targets) noexcept nogil
    # A value that is computed was asked for, where g.early is not 0.
    void (*asked)(Graph* g, uint32_t node) noexcept nogil
    # A pass for several values has failed, and the first one will be computed alone.
    void (*failed)(Graph* g) noexcept nogil
    # Nodes from this number on, or their values, were dropped; on request, what was learned is dropped too.
    void (*cut)(Graph* g, uint32_t n_nodes, bint forget) noexcept nogil
    # Nodes have new numbers, or 0xFFFFFFFF.
    void (*renumber)(Graph* g, const uint32_t* numbers) noexcept nogil

cdef Beside* beside_hooks() noexcept

# Called around each pass while profiling is on: filled by execute/profile.
cdef struct PassHooks:
    Flag on
    uint64_t (*begin)() noexcept nogil
    # A pass ran for n values, perhaps of the items of a batched map, and computed a number of nodes.
    void (*end)(Graph* g, uint32_t targets, uint32_t nodes, bint of_map, uint64_t begun) noexcept

cdef PassHooks* pass_hooks() noexcept
