"""Copies between devices: of the values of a batch, and of the gradients of such copies.

They go through the graph's arenas on the host. Each address in them has a counterpart on each device, so a value or a
gradient is at the same offset on every device. The host waits for copies from a device, but neither for copies to a
device nor for the batches that run there.
"""

from libc.stdint cimport uint32_t, uintptr_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.gradients cimport contribute
from dynet_cy.execute.walk cimport clear_call, settle
from dynet_cy.gpu.driver cimport Address, Gpu, enter, fetch_bytes, leave, raise_error, wait, wait_for
from dynet_cy.gpu.graphs cimport device_graph, device_ptr
from dynet_cy.gpu.memory cimport (
    Range, begin_use, check_updates, extend_mirror, note_uses, out_of_device_memory, send_ranges,
)
from dynet_cy.graph.making cimport source_of
from dynet_cy.graph.structs cimport NO_BATCH, Node, args_of, gradient_of_node, nodes_of, order_of, value_of
from dynet_cy.memory.arena cimport array_push
from dynet_cy.memory.storage cimport Param


# ---- values ----------------------------------------------------------------------

cdef int copy_forward(Graph* g, Batch* batch, int device) except -1:
    clear_call(batch)
    take_from(g, batch, source_of(&nodes_of(g)[order_of(g)[batch.first]]))
    if device:
        give_to(g, device_graph(g, device), batch.y, batch.bytes // sizeof(float))
    return 0


cdef int take_from(Graph* g, const Batch* batch, int device) except -1:
    """Copy the arguments of the nodes of a batch from a device to the host memory of their results."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef DeviceGraph* d = device_graph(g, device) if device else NULL
    cdef Gpu* gpu = d.gpu if device else NULL
    cdef float* y = batch.y
    # The pending copy; it is extended as long as arguments are adjacent.
    cdef float* source = NULL
    cdef size_t n = 0, size
    cdef const float* at
    cdef Node* a
    cdef uint32_t j
    cdef int error = 0
    if gpu != NULL:
        wait_for(gpu)
    with nogil:
        if gpu != NULL:
            enter(gpu)
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[0]]
            size = total_of(&a.dim)
            if gpu == NULL or (a.val != NULL and a.batch == NO_BATCH):      # inputs are on the host
                memcpy(y, value_of(a), size * sizeof(float))
            else:
                at = (<Param*>a.object).device_value if a.val == NULL else device_ptr(g, d, a.val)
                if n and at != source + n:
                    fetch_part(gpu, source, y - n, n)
                    n = 0
                if n == 0:
                    source = <float*>at
                n += size
                y += size
                continue
            if n:
                fetch_part(gpu, source, y - n, n)
                n = 0
            y += size
        if gpu != NULL:
            fetch_part(gpu, source, y - n, n)
            wait(gpu)
            error = leave(gpu)
    if gpu != NULL:
        if error:
            raise_error(gpu, error)
        check_updates(gpu)
    return 0


cdef int fetch_part(Gpu* gpu, const float* source, float* to, size_t n) noexcept nogil:
    if n == 0 or gpu.error:
        return gpu.error
    return fetch_bytes(gpu, to, <Address><uintptr_t>source, n * sizeof(float))


cdef int give_to(Graph* g, DeviceGraph* d, float* v, size_t n) except -1:
    """Send n values from an arena of the graph to the mirror of the arena on a device."""
    cdef Gpu* gpu = d.gpu
    cdef size_t needed = g.values.top
    cdef int error = 0, failure
    cdef Range r
    begin_use(&g.values, &d.values)
    begin_use(&g.grads, &d.grads)               # values that are dropped after the pass are there
    r.host_ptr = v
    r.device_ptr = <Address><uintptr_t>device_ptr(g, d, v)
    r.n = n * sizeof(float)
    with nogil:
        note_uses(&g.values, &d.values)
        note_uses(&g.grads, &d.grads)
        if not enter(gpu):
            error = extend_mirror(&d.values)
            if not error:
                error = extend_mirror(&d.grads)
            if not error:
                send_ranges(gpu, &r, 1)
        failure = leave(gpu)
    if error:
        out_of_device_memory(gpu, error, needed, "the values of the graph")
    if failure:
        raise_error(gpu, failure)
    return 0


# ---- gradients -------------------------------------------------------------------

cdef int hand_back(Walk* w, DeviceGraph* d, const Batch* batch) noexcept nogil:
    """Add gradients of nodes, which are on the host, to those of their arguments, which are on `d` (NULL: the CPU)."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef const Node* x
    cdef float* dy
    cdef Range* r
    cdef uint32_t j
    for j in range(batch.count):
        if not has_gradient(g, ids[j]):
            continue
        x = &nodes_of(g)[ids[j]]
        dy = gradient_of_node(g, x)
        if d != NULL:
            r = <Range*>array_push(&d.ranges, sizeof(Range))
            if r == NULL:
                w.failure.needed = sizeof(Range)
                return -1
            r.host_ptr = dy
            dy = device_ptr(g, d, dy)
            r.device_ptr = <Address><uintptr_t>dy
            r.n = total_of(&x.dim) * sizeof(float)
        if contribute(w, args_of(g, x)[0], dy, total_of(&x.dim), 1):
            return -1
    return settle(w)
