"""The device side of a graph: memory that mirrors the arenas of the graph, and passes that are replayed."""

import os

from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.threads cimport Number
from dynet_cy.gpu.driver cimport (
    FORKED, MOST_GPUS, Address, Counts, Records, enter, failed, fetch_now, gpu_at, leave, play, set_error, wait_for,
    wait_with,
)
from dynet_cy.gpu.memory cimport (
    address_in, begin_use, check_updates, close_mirror, extend_mirror, mirror_bytes, open_mirror, was_short,
)
from dynet_cy.graph.expressions cimport ComputationGraph
from dynet_cy.memory.arena cimport arena_close, arena_open, array_close, array_open, limit_memory, process_memory
from dynet_cy.schedule.plan cimport dy_hash


# ==== replay ======================================================================================
#
# CUDA graphs of passes that repeat: a single launch for a whole pass.
#
# The launches, products and fills of a pass are first listed as records: the
# kernel, its grid and its arguments, byte by byte.  When the same records are seen
# again, the stream is captured while they are issued.  From then on, the resulting
# CUDA graph is launched instead whenever the records of a pass are equal to its
# own.  A hash only finds the candidate; the records are compared.  So everything
# that a launch depends on is compared.  Only what kernels read on the device may
# change: inputs and tables, which are sent before, and parameters.
#
# Each computation graph keeps its most recently used CUDA graphs, up to a limit on
# their number and on their nodes.  If many structures alternated, they would evict
# each other all the time, and a capture costs more than a single replay saves.  So
# each CUDA graph that is evicted before it has paid for its capture doubles the
# number of times that records must be seen before they are captured.
#
# If a capture fails on a device, it runs without captures from then on, and `failed_captures` counts the failure.
# Devices without memory for the cuBLAS workspace run without captures too.
#
# `DYNET_CY_CUDA_GRAPHS=0` in the environment switches captures off.

cdef enum:
    LEAST_NODES = 4                 # shorter passes are not captured
    SETS = 64                       # sets of the table of seen records, which is indexed by hash
    WAYS = 4                        # entries of a set
    FIRST_SIGHTS = 2
    MOST_SIGHTS = 64
    PAYS = 4                        # number of replays that pay for a capture
    THREAD_LOCAL = 1                # capture mode: does not restrict other threads

# Of each computation graph.
cdef Number most_graphs = 32        # 0 switches them off
cdef Number most_nodes = 1 << 16    # launches, products and fills in them
if os.environ.get("DYNET_CY_CUDA_GRAPHS", "1") in ("", "0"):
    most_graphs = 0
add_tunable("gpu.graphs.most_graphs", &most_graphs, UINT32_MAX)
add_tunable("gpu.graphs.most_nodes", &most_nodes)

# For each device, the records of the current pass.
cdef Records[MOST_GPUS] lists
memset(lists, 0, sizeof(lists))


# The records of the sequence follow the struct in memory.
cdef struct Replay:
    Replay* next                    # the next less recently used one
    void* exec
    uint64_t hash
    size_t n_bytes
    uint32_t n_nodes
    uint32_t uses

# Records that were seen, and how often.
cdef struct Sight:
    uint64_t hash
    uint64_t times

cdef struct Replays:
    Replay* first
    uint32_t n
    uint32_t sights                 # how often records are seen before they are captured
    uint64_t n_nodes
    Sight[SETS][WAYS] seen          # in each set, the most recently seen entry is first


cdef void begin_listing(Gpu* gpu) noexcept nogil:
    cdef Records* r = &lists[gpu.number]
    r.bytes = r.last = 0
    r.count = 0
    gpu.records = r


cdef int run_listed(Gpu* gpu, void** kept) noexcept nogil:
    cdef Records* r = gpu.records
    cdef Replays* replays = <Replays*>kept[0]
    cdef Replay* x
    cdef uint64_t hash
    gpu.records = NULL
    if gpu.error:
        return gpu.error
    if (r.count < LEAST_NODES or r.count > most_nodes or most_graphs == 0 or gpu.workspace == 0
            or gpu.counts.failed_captures):
        return play(gpu, r)
    if replays == NULL:
        replays = <Replays*>calloc(1, sizeof(Replays))
        if replays == NULL:
            return play(gpu, r)
        replays.sights = FIRST_SIGHTS
        kept[0] = replays
    hash = dy_hash(<const uint32_t*>r.p, r.bytes // sizeof(uint32_t))
    x = find(replays, r, hash)
    if x == NULL and is_due(replays, hash):
        x = capture(gpu, replays, r, hash)
    if x == NULL:
        return play(gpu, r)
    x.uses += 1
    gpu.counts.replays += 1
    gpu.counts.replayed += x.n_nodes
    return failed(gpu, gpu.driver.cuGraphLaunch(x.exec, gpu.stream), -1)


cdef Replay* find(Replays* replays, const Records* r, uint64_t hash) noexcept nogil:
    """Find the capture of equal records, and move it to the front of the list; NULL if there is none."""
    cdef Replay** link = &replays.first
    cdef Replay* x = link[0]
    while x != NULL:
        if x.hash == hash and x.n_bytes == r.bytes and memcmp(x + 1, r.p, r.bytes) == 0:
            link[0] = x.next
            x.next = replays.first
            replays.first = x
            return x
        link = &x.next
        x = link[0]
    return NULL


cdef bint is_due(Replays* replays, uint64_t hash) noexcept nogil:
    """Count that records without a capture were seen; True if they have been seen often enough."""
    cdef Sight* seen = replays.seen[hash % SETS]
    cdef uint64_t times = 1
    cdef int way = 0
    while way < WAYS - 1 and seen[way].hash != hash:
        way += 1
    if seen[way].hash == hash:
        times += seen[way].times
    memmove(seen + 1, seen, way * sizeof(Sight))
    seen[0].hash = hash
    seen[0].times = times if times < replays.sights else 0
    return times >= replays.sights


cdef Replay* capture(Gpu* gpu, Replays* replays, const Records* r, uint64_t hash) noexcept nogil:
    """Capture records as a CUDA graph, without running it; NULL if that fails, and nothing is captured from then on."""
    cdef Counts before = gpu.counts
    cdef void* graph = NULL
    cdef void* exec = NULL
    cdef Replay* x = <Replay*>malloc(sizeof(Replay) + r.bytes)
    cdef int error, ended
    if x == NULL:
        return NULL
    evict(gpu, replays, r.count)
    error = gpu.driver.cuStreamBeginCapture_v2(gpu.stream, THREAD_LOCAL)
    if not error:
        error = play(gpu, r)
        ended = gpu.driver.cuStreamEndCapture(gpu.stream, &graph)
        error = error if error else ended
    if not error:
        error = gpu.driver.cuGraphInstantiateWithFlags(&exec, graph, 0)
    if graph != NULL:
        gpu.driver.cuGraphDestroy(graph)
    gpu.counts = before
    if error:
        # Nothing has run.  Errors in the records themselves are reported when the records are issued.
        set_error(gpu, 0)
        gpu.error_kernel = -1
        gpu.counts.failed_captures += 1
        free(x)
        return NULL
    gpu.counts.captures += 1
    x.exec = exec
    x.hash = hash
    x.n_bytes = r.bytes
    x.n_nodes = r.count
    x.uses = 0
    memcpy(x + 1, r.p, r.bytes)
    x.next = replays.first
    replays.first = x
    replays.n += 1
    replays.n_nodes += x.n_nodes
    return x


cdef void evict(Gpu* gpu, Replays* replays, uint64_t nodes) noexcept nogil:
    """Drop the least recently used CUDA graphs until one more fits."""
    cdef Replay** link = &replays.first
    cdef Replay* x = replays.first
    cdef uint32_t n = 1
    while x != NULL and n < most_graphs and nodes + x.n_nodes <= most_nodes:
        nodes += x.n_nodes
        n += 1
        link = &x.next
        x = link[0]
    while link[0] != NULL:
        x = link[0]
        link[0] = x.next
        replays.n -= 1
        replays.n_nodes -= x.n_nodes
        if x.uses < PAYS:
            replays.sights = min(2 * replays.sights, <uint32_t>MOST_SIGHTS)
        # If it is still running, the driver frees it afterwards.
        gpu.driver.cuGraphExecDestroy(x.exec)
        free(x)


cdef void drop_replays(Gpu* gpu, void** kept) noexcept nogil:
    """Free all captures.  Errors are ignored: they mean that the driver has been shut down already."""
    cdef Replays* replays = <Replays*>kept[0]
    cdef Replay* x
    cdef int error
    if replays == NULL:
        return
    error = enter(gpu)
    while replays.first != NULL:
        x = replays.first
        replays.first = x.next
        if error != FORKED:                     # after a fork they are the parent's
            gpu.driver.cuGraphExecDestroy(x.exec)
        free(x)
    leave(gpu)
    free(replays)
    kept[0] = NULL


# ==== graphs ======================================================================================
#
# The device side of a graph: memory on the device that mirrors the arenas of the graph.
#
# Each segment of an arena has a counterpart on the device with everything at the same offsets, so `device_ptr`
# translates host pointers to device pointers.

cdef float* device_ptr(const Graph* g, DeviceGraph* d, const void* p) noexcept nogil:
    """The device address for a host pointer into an arena of the graph.

    NULL if the device has no memory for the segment; the pass fails then, see `run_pass`.
    """
    cdef Address at = 0
    cdef int k
    for k in range(ARENAS):
        if not at:
            at = address_in(&g.arenas[k], &d.mirrors[k], p)
    return <float*><uintptr_t>at


cdef void begin_uses(const Graph* g, DeviceGraph* d) noexcept nogil:
    cdef int k
    for k in range(ARENAS):
        begin_use(&g.arenas[k], &d.mirrors[k])


cdef int extend_mirrors(DeviceGraph* d, int* arena) noexcept nogil:
    cdef int k, error = 0
    for k in range(ARENAS):
        if not error:
            arena[0] = k
            error = extend_mirror(&d.mirrors[k])
    return error


cdef DeviceGraph* device_graph(Graph* g, int device) except NULL:
    """The record of the graph on a device; made when the graph first runs there."""
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    cdef Gpu* gpu = gpu_at(device - 1)
    cdef int k
    while d != NULL and d.gpu != gpu:
        d = d.next
    if d == NULL:
        d = <DeviceGraph*>calloc(1, sizeof(DeviceGraph))
        if d == NULL:
            raise MemoryError("the record of a graph on a device")
        d.gpu = gpu
        for k in range(ARENAS):
            open_mirror(gpu, &d.mirrors[k])
            # A pass lists all calls before the first one runs.  What is dropped on the host is dropped on the device.
            g.arenas[k].mirrored = True
        arena_open(&d.commands, False, process_memory())
        array_open(&d.ranges, False, process_memory())
        array_open(&d.moves, False, process_memory())
        d.next = <DeviceGraph*>g.device_graphs
        g.device_graphs = d
    return d


cdef void close(Graph* g) noexcept:
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    cdef DeviceGraph* following
    g.device_graphs = NULL
    while d != NULL:
        following = d.next
        close_one(d)
        d = following


cdef void close_one(DeviceGraph* d) noexcept:
    cdef int k
    drop_replays(d.gpu, &d.replays)
    for k in range(ARENAS):
        close_mirror(&d.mirrors[k])
    arena_close(&d.commands)
    array_close(&d.ranges)
    array_close(&d.moves)
    free(d)


cdef int fetch(Graph* g, int device, float* v, size_t n) except -1:
    """Copy n floats from the device to v, which points into an arena of the graph."""
    cdef DeviceGraph* d = device_graph(g, device)
    wait_for(d.gpu)                             # nothing is copied if a signal handler raises
    fetch_now(d.gpu, v, device_ptr(g, d, v), n * sizeof(float))
    return check_updates(d.gpu)


cdef int fetch_within(Graph* g, int device, float* v, size_t n, Interrupts* s) except -1:
    cdef DeviceGraph* d = device_graph(g, device)
    with nogil:
        wait_with(d.gpu, s)
    return fetch_now(d.gpu, v, device_ptr(g, d, v), n * sizeof(float))


# ---- shortages -------------------------------------------------------------------------
#
# The memory of a device is asked for only once it has not sufficed: that takes microseconds.

cdef enum:
    SPARE = 1 << 23                 # bytes that the limit leaves: mapped memory is a multiple of 2 MiB
    SHARE = 8                       # of the memory: at most an eighth is left


cdef void limit_by_device(Graph* g, DeviceGraph* d) noexcept nogil:
    cdef size_t unused = 0, total = 0, most
    if not was_short(d.gpu) or g.forward_only or g.immediate:
        return
    if not enter(d.gpu):
        d.gpu.driver.cuMemGetInfo_v2(&unused, &total)
    leave(d.gpu)
    most = unused + graph_bytes(d)
    most -= min(most // SHARE, <size_t>SPARE)
    if g.memory.limit == 0 or most < g.memory.limit:
        d.limit = max(most, <size_t>1)
        limit_memory(&g.memory, d.limit)


cdef int raise_of_device(const Graph* g, const DeviceGraph* d, object error) except -1:
    if g.memory.limit == 0 or g.memory.limit != d.limit or f"GPU:{d.gpu.number}" in str(error):
        raise error
    raise MemoryError(f"GPU:{d.gpu.number} has {d.limit:,} bytes left for this graph: {error}") from None


cdef size_t graph_bytes(const DeviceGraph* d) noexcept nogil:
    """The bytes of a device that a graph holds."""
    cdef size_t n = 0
    cdef int k
    for k in range(ARENAS):
        n += mirror_bytes(&d.mirrors[k])
    return n


def device_bytes(ComputationGraph graph not None, int device) -> dict[str, int]:
    """The memory of a device that a graph holds, and what its passes have needed.

    Args:
        graph: the graph.
        device: number of the GPU.

    Returns:
        Bytes: "held", and the most that a pass has used of "values", "gradients", "scratch" and "tables".
    """
    cdef DeviceGraph* d = device_graph(&graph.g, 1 + device)
    return {"held": graph_bytes(d), "values": d.mirrors[VALUES].most, "gradients": d.mirrors[GRADS].most,
            "scratch": d.mirrors[SCRATCH].most, "tables": d.mirrors[TABLES].most}
