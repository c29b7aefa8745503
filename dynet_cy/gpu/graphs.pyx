"""What is kept for a graph that runs on a device: arenas there that its own stand for.

What lies at an offset in an arena of the graph lies at the same offset in that of
the device.
"""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from dynet_cy.gpu.clips cimport check_updates
from dynet_cy.gpu.driver cimport (
    Address, DeviceArena, enter, fetch_bytes, gpu_at, leave, raise_error, wait, wait_for, wait_with,
)
from dynet_cy.gpu.memory cimport close_arena, open_arena
from dynet_cy.gpu.replay cimport drop_replays
from dynet_cy.memory.arena cimport Segment, arena_close, arena_open, array_close, array_open, segment_of


cdef float* there(const Graph* g, const There* t, const void* p) noexcept nogil:
    """Where on the device something lies that has a place in an arena of the graph."""
    cdef Address at
    if lies_in(&g.values, &t.values, p, &at) or lies_in(&g.scratch, &t.scratch, p, &at) or (
            lies_in(&g.grads, &t.grads, p, &at)) or lies_in(&g.tables, &t.tables, p, &at):
        return <float*><uintptr_t>at
    return NULL


cdef inline bint lies_in(const Arena* here, const DeviceArena* there, const void* p, Address* at) noexcept nogil:
    cdef const Segment* s = segment_of(here, p)
    if s == NULL:
        return False
    at[0] = there.base + s.begin + <size_t>(<const char*>p - s.p)
    return True


cdef There* there_for(Graph* g, int device) except NULL:
    """What is kept for the graph on a device; made when it first runs there."""
    cdef There* t = <There*>g.there
    cdef Gpu* gpu = gpu_at(device - 1)
    while t != NULL and t.gpu != gpu:
        t = t.next
    if t == NULL:
        t = <There*>calloc(1, sizeof(There))
        if t == NULL:
            raise MemoryError("the record of a graph on a device")
        t.gpu = gpu
        try:
            open_arena(gpu, &t.values)
            open_arena(gpu, &t.grads)
            open_arena(gpu, &t.scratch)
            open_arena(gpu, &t.tables)
            arena_open(&t.commands, False)
            array_open(&t.ranges, False)
        except BaseException:
            close_one(t)
            raise
        t.next = <There*>g.there
        g.there = t
    return t


cdef void close(Graph* g) noexcept:
    cdef There* t = <There*>g.there
    cdef There* following
    g.there = NULL
    while t != NULL:
        following = t.next
        close_one(t)
        t = following


cdef void close_one(There* t) noexcept:
    drop_replays(t.gpu, &t.replays)
    close_arena(&t.values)
    close_arena(&t.grads)
    close_arena(&t.scratch)
    close_arena(&t.tables)
    arena_close(&t.commands)
    array_close(&t.ranges)
    free(t)


cdef int fetch(Graph* g, int device, float* v, size_t n) except -1:
    """Copy n floats at v, a place in an arena of the graph, from the device to there."""
    cdef There* t = there_for(g, device)
    wait_for(t.gpu)                             # nothing comes here afterwards if a handler raises
    copy_here(g, t, v, n)
    return check_updates(t.gpu)


cdef int fetch_within(Graph* g, int device, float* v, size_t n, Interrupts* s) except -1:
    cdef There* t = there_for(g, device)
    with nogil:
        wait_with(t.gpu, s)
    return copy_here(g, t, v, n)


cdef int copy_here(Graph* g, There* t, float* v, size_t n) except -1:
    cdef Gpu* gpu = t.gpu
    cdef int error
    with nogil:
        if not enter(gpu):
            fetch_bytes(gpu, v, <Address><uintptr_t>there(g, t, v), n * sizeof(float))
            wait(gpu)
        error = leave(gpu)
    if error:
        raise_error(gpu, error)
    return 0
