"""What is kept for a graph that runs on a device: arenas there that its own stand for.

What lies somewhere in a segment of an arena of the graph lies at the same place of
what stands for the segment on the device.
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


cdef float* there(const Graph* g, There* t, const void* p) noexcept nogil:
    """Where on the device something lies that has a place in an arena of the graph.

    NULL where there is no room on the device for the segment that it is in; the pass fails then, see `run_pass`.
    """
    cdef Address at = address_in(&g.values, &t.values, p)
    if not at:
        at = address_in(&g.scratch, &t.scratch, p)
    if not at:
        at = address_in(&g.grads, &t.grads, p)
    if not at:
        at = address_in(&g.tables, &t.tables, p)
    return <float*><uintptr_t>at


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
        open_mirror(gpu, &t.values)
        open_mirror(gpu, &t.grads)
        open_mirror(gpu, &t.scratch)
        open_mirror(gpu, &t.tables)
        arena_open(&t.commands, False)
        array_open(&t.ranges, False)
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
    close_mirror(&t.values)
    close_mirror(&t.grads)
    close_mirror(&t.scratch)
    close_mirror(&t.tables)
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
