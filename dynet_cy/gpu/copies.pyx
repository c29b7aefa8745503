"""Batches on a device whose results are copies of their arguments, made by moves.

A concatenation of vectors is its arguments, one after the other; so is a reshaped value (`laid` of an op's needs).
Such a batch has no launch of its own: forward, copies are added to the group of moves that is being collected, which
runs before the next command that reads one of them.  Backward, the parts of its gradient are added to those of the
arguments likewise.  So many such batches, and the copies that other batches need, are one launch.
"""

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.gradients cimport contribute
from dynet_cy.execute.walk cimport Walk, clear_call, place_of, settle, settle_gradients
from dynet_cy.gpu.commands cimport Pass, copy_later, device_forms
from dynet_cy.graph.structs cimport (
    COPIES, LIVE, NEEDS_GRAD, Batch, Node, args_of, batches_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport GPU, op_at


cdef void find_copies(Graph* g, uint32_t n) noexcept nogil:
    cdef Batch* batch
    cdef uint32_t b
    for b in range(g.n_batches, g.n_batches + n):
        batch = &batches_of(g)[b]
        if op_at(nodes_of(g)[order_of(g)[batch.first]].op).needs[GPU].laid != NULL and are_copies(g, batch):
            batch.form = COPIES


cdef bint are_copies(const Graph* g, const Batch* batch) noexcept nogil:
    cdef const Node* x
    cdef uint32_t j
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        if not op_at(x.op).needs[GPU].laid(&x.dim, x.attrs):
            return False
    return True


cdef int copies_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef const Node* x
    cdef const Node* a
    cdef float* y = batch.y
    cdef uint32_t i, j
    cdef size_t size
    clear_call(batch)
    if w.device.send_arguments(w, batch) or settle(w):
        return -1
    for j in range(batch.count):
        x = &nodes_of(w.g)[order_of(w.g)[batch.first + j]]
        for i in range(x.nargs):
            a = &nodes_of(w.g)[args_of(w.g, x)[i]]
            size = total_of(&a.dim)
            if copy_later(<Pass*>w, y, place_of(w, a.val) if a.val != NULL else (<Param*>a.object).device_value, size):
                return -1
            y += size
    return 0


cdef int copies_backward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef const Node* x
    cdef const Node* a
    cdef const float* dy
    cdef uint32_t i, j, id
    cdef size_t size
    if batch.dy == NULL:                        # the loss depends on none of them
        return 0
    if settle_gradients(w, w.number):
        return -1
    dy = place_of(w, batch.dy)
    w.n_live = 0
    for j in range(batch.count):
        id = order_of(w.g)[batch.first + j]
        x = &nodes_of(w.g)[id]
        if (state_of(w.g)[id] & (LIVE | NEEDS_GRAD)) != (LIVE | NEEDS_GRAD):
            dy += total_of(&x.dim)
            continue
        w.n_live += 1
        for i in range(x.nargs):
            a = &nodes_of(w.g)[args_of(w.g, x)[i]]
            size = total_of(&a.dim)
            if contribute(w, args_of(w.g, x)[i], dy, size, 1):
                return -1
            dy += size
    w.n_live_in_batch += w.n_live
    return settle(w)


device_forms()[COPIES].forward = copies_forward
device_forms()[COPIES].backward = copies_backward
