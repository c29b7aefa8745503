"""The device side of a graph: memory on the device that mirrors the arenas of the graph.

Each segment of an arena has a counterpart on the device with everything at the same offsets, so `device_ptr` translates
host pointers to device pointers.
"""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from dynet_cy.gpu.clips cimport check_updates
from dynet_cy.gpu.driver cimport (
    Address, enter, fetch_bytes, gpu_at, leave, raise_error, wait, wait_for, wait_with,
)
from dynet_cy.gpu.mirrored cimport address_in, close_mirror, open_mirror
from dynet_cy.gpu.replay cimport drop_replays
from dynet_cy.memory.arena cimport arena_close, arena_open, array_close, array_open


cdef float* device_ptr(const Graph* g, DeviceGraph* d, const void* p) noexcept nogil:
    """The device address for a host pointer into an arena of the graph.

    NULL if the device has no memory for the segment; the pass fails then, see `run_pass`.
    """
    cdef Address at = address_in(&g.values, &d.values, p)
    if not at:
        at = address_in(&g.scratch, &d.scratch, p)
    if not at:
        at = address_in(&g.grads, &d.grads, p)
    if not at:
        at = address_in(&g.tables, &d.tables, p)
    return <float*><uintptr_t>at


cdef DeviceGraph* device_graph(Graph* g, int device) except NULL:
    """The record of the graph on a device; made when the graph first runs there."""
    cdef DeviceGraph* d = <DeviceGraph*>g.device_graphs
    cdef Gpu* gpu = gpu_at(device - 1)
    while d != NULL and d.gpu != gpu:
        d = d.next
    if d == NULL:
        d = <DeviceGraph*>calloc(1, sizeof(DeviceGraph))
        if d == NULL:
            raise MemoryError("the record of a graph on a device")
        d.gpu = gpu
        open_mirror(gpu, &d.values)
        open_mirror(gpu, &d.grads)
        open_mirror(gpu, &d.scratch)
        open_mirror(gpu, &d.tables)
        arena_open(&d.commands, False)
        array_open(&d.ranges, False)
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
    drop_replays(d.gpu, &d.replays)
    close_mirror(&d.values)
    close_mirror(&d.grads)
    close_mirror(&d.scratch)
    close_mirror(&d.tables)
    arena_close(&d.commands)
    array_close(&d.ranges)
    free(d)


cdef int fetch(Graph* g, int device, float* v, size_t n) except -1:
    """Copy n floats from the device to v, which points into an arena of the graph."""
    cdef DeviceGraph* d = device_graph(g, device)
    wait_for(d.gpu)                             # nothing is copied if a signal handler raises
    copy_here(g, d, v, n)
    return check_updates(d.gpu)


cdef int fetch_within(Graph* g, int device, float* v, size_t n, Interrupts* s) except -1:
    cdef DeviceGraph* d = device_graph(g, device)
    with nogil:
        wait_with(d.gpu, s)
    return copy_here(g, d, v, n)


cdef int copy_here(Graph* g, DeviceGraph* d, float* v, size_t n) except -1:
    cdef Gpu* gpu = d.gpu
    cdef int error
    with nogil:
        if not enter(gpu):
            fetch_bytes(gpu, v, <Address><uintptr_t>device_ptr(g, d, v), n * sizeof(float))
            wait(gpu)
        error = leave(gpu)
    if error:
        raise_error(gpu, error)
    return 0
