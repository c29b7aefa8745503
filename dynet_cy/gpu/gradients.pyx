# Used from Cython only.
"""Backward on a device, as one pass."""

from libc.stdint cimport uint64_t

from dynet_cy.execute.accumulation cimport begin_journal, end_journal, note_before, take_back
from dynet_cy.execute.anomaly cimport check_before, checking
from dynet_cy.execute.gradients cimport begin_at, multiply_collected, open_backward, run_backward
from dynet_cy.gpu.commands cimport begin_pass
from dynet_cy.gpu.driver cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.gpu.graphs cimport DeviceGraph, device_graph
from dynet_cy.gpu.passes cimport load_moves, raise_pass_failure, run_pass
from dynet_cy.graph.computing cimport parameter_here
from dynet_cy.graph.structs cimport COMPUTED, Node, nodes_of, state_of
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.graph.timeline cimport BACKWARD_PASS, begin_pass_span, end_span
from dynet_cy.memory.arena cimport arena_rewind
from dynet_cy.memory.mirror cimport mirrors
from dynet_cy.memory.storage cimport Param


cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """Add the gradient of target to the gradients of parameters: all of it, or nothing after an anomaly.

    No signal handler runs once the first gradient is recorded.  Kernels, which Python code loads, are all loaded by
    then: forward has loaded the modules of the ops.
    """
    cdef DeviceGraph* d = device_graph(g, g.device)
    cdef Pass s
    cdef Journal journal
    cdef int error
    cdef uint64_t span = begin_pass_span(g)
    cdef size_t scratch_top = g.scratch.top, tables_top = g.tables.top
    if checking:
        check_before(g, target)
    load_moves(d.gpu)
    lock_graph(g)
    begin_journal(&journal, True)
    try:
        keep_gradients(g, target, &journal)
        begin_pass(&s, g, d)
        with nogil:
            error = walk_back(&s, target, full)
        if error:
            raise_pass_failure(&s, "the gradients of the graph")
        run_pass(&s, "the gradients of the graph")
        note_after(&journal)
    except BaseException:
        put_gradients_back(&journal)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, scratch_top)
        arena_rewind(&g.tables, tables_top)     # later uploads run after this pass, so the memory can be reused
        unlock_graph(g)
    end_span(BACKWARD_PASS, span)
    return 0


cdef int walk_back(Pass* s, uint32_t target, bint full) noexcept nogil:
    """List the commands of backward."""
    cdef Graph* g = s.walk.g
    cdef const Node* node = &nodes_of(g)[target]
    if open_backward(&s.walk, target, full) or begin_at(&s.walk, target):
        return -1
    if node.val == NULL or not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    return walk_batches_back(s, 0, node.batch)


cdef int walk_batches_back(Pass* s, uint32_t first, uint32_t last) noexcept nogil:
    """List the commands of backward over batches, the last one first."""
    return -1 if run_backward(&s.walk, first, last) else multiply_collected(&s.walk)


# ---- undoing a pass --------------------------------------------------------------------

cdef int keep_gradients(const Graph* g, uint32_t target, Journal* journal) except -1:
    """While checks are on: copy the gradients of all parameters that backward from target may add to."""
    cdef const Node* x = nodes_of(g)
    cdef Param* p
    cdef uint32_t i
    for i in range(target + 1 if checking else 0):
        if x[i].nargs == 0 and x[i].object != NULL:
            p = <Param*>x[i].object
            if p.pass_number != journal.number and p.has_gradient:
                parameter_here(p, True)
            note_of(journal, p)
    return 0


cdef void note_of(Journal* journal, Param* p) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    note_before(journal, p)
    pthread_mutex_unlock(&p.lock)


cdef void note_after(Journal* journal) noexcept nogil:
    """Record that the pass has added to the gradients, so that a pass that began meanwhile does not restore them."""
    cdef uint32_t i
    for i in range(journal.n):
        note_of(journal, journal.before[i].p)


cdef int put_gradients_back(Journal* journal) except -1:
    """Restore the copied gradients, unless another pass has added to them."""
    cdef Param* p
    cdef uint32_t i
    if not take_back(journal):
        return 0
    for i in range(journal.n):
        p = journal.before[i].p
        if p.device and p.has_gradient:
            mirrors().send(p.device, p.grad, p.device_grad, p.size)
        elif p.device:
            mirrors().clear(p.device, p.device_grad, p.size)
    return 0
