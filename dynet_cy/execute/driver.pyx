"""Passes over a graph, forward and backward: what is the same on the CPU, on a device and on several ones."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.execute.gradients cimport begin_at, open_backward, run_backward, run_backward_joined
from dynet_cy.execute.rematerialize cimport (
    bring_back, may_drop, open_donation, prepare_backward, run_backward_in_stretches, run_plan,
)
from dynet_cy.execute.walk cimport Walk, walk_on
from dynet_cy.graph.structs cimport COMPUTED, NO_BATCH, Graph, Node, device_of, engine, nodes_of, state_of
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.ops.registry cimport CPU, GPU
from dynet_cy.schedule.plan cimport drop_plan, drop_plan_cache, plan
from dynet_cy.schedule.speculation cimport drop_speculation
from dynet_cy.watch.instruments cimport check_before, checking, end_pass, list_batches, profiling
from dynet_cy.watch.lifetimes cimport note_backward_pass, note_forward_pass, recording
from dynet_cy.watch.timeline cimport BACKWARD_PASS, FORWARD_PASS, begin_pass_span

cdef Backend[2] backends                   # by kind of device


cdef Backend* backend(int kind) noexcept:
    return &backends[kind]


cdef inline const Backend* backend_of(const Graph* g) noexcept:
    return &backends[GPU if g.device or g.multi_device else CPU]


# ---- forward ---------------------------------------------------------------------------

cdef extern from *:
    "static _Thread_local uint64_t dy_pass_end = 0;"
    uint64_t pass_end "dy_pass_end"


cdef void end_passes_at(uint64_t nanoseconds) noexcept:
    global pass_end
    pass_end = nanoseconds


cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    cdef uint32_t ran = g.n_batches
    cdef uint64_t span = begin_pass_span(g)
    lock_graph(g)
    try:
        backend_of(g).forward(g, targets, n, strategy)
    finally:
        unlock_graph(g)
        end_pass(g, FORWARD_PASS, span)
        if profiling > 1:
            list_batches(g, ran)
    if recording:
        note_forward_pass(g, ran)
    return 0


cdef int walk_forward(Walk* w, const uint32_t* targets, uint32_t n, int strategy) noexcept nogil:
    cdef Graph* g = w.g
    cdef uint32_t n_batches = 0
    cdef int ended
    if may_drop(g) and (bring_back(w, targets, n) or flush(w)):
        return -1
    ended = plan_anew(w, targets, n, strategy, &n_batches)
    if ended == 1:
        if bring_back(w, targets, n) or flush(w):
            return -1
        ended = plan_anew(w, targets, n, strategy, &n_batches)
    if ended:
        w.failure.needed = g.n_nodes * sizeof(uint32_t)
        return -1
    g.n_passes += n_batches != 0
    w.end = pass_end
    ended = run_plan(w, n_batches, targets, n)
    if ended >= 0 and flush(w):
        ended = -1
    if ended:
        drop_plan(g)
    return -1 if ended < 0 else 0


cdef int plan_anew(Walk* w, const uint32_t* targets, uint32_t n, int strategy, uint32_t* n_batches) noexcept nogil:
    """Plan the batches that the targets need, with the passes of the device over the plan; 1: values that they need
    were dropped."""
    cdef Graph* g = w.g
    cdef int ended
    g.finishes = g.device and not (g.multi_device or profiling or checking or g.check_validity)
    ended = plan(g, targets, n, strategy, checking, n_batches, &w.failure.interrupts)
    if not ended and w.device.finish_plan != NULL:
        w.device.finish_plan(w, n_batches[0])
    g.finishes = False
    return ended


cdef inline int flush(Walk* w) noexcept nogil:
    return w.device.flush(w) if w.device.flush != NULL else 0


# ---- backward --------------------------------------------------------------------------

cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """Add the gradient of target to the gradients of parameters: all of it, or nothing after an exception, unless the
    exception says otherwise."""
    cdef uint64_t span = begin_pass_span(g)
    if checking:
        check_before(g, target)
    lock_graph(g)
    try:
        backend_of(g).backward(g, target, full)
    finally:
        unlock_graph(g)
        end_pass(g, BACKWARD_PASS, span)
    if recording:
        note_backward_pass(g, target)
    return 0


cdef int walk_back(Walk* w, uint32_t target, bint full) noexcept nogil:
    cdef Graph* g = w.g
    cdef const Node* node = &nodes_of(g)[target]
    cdef Walk* opens
    cdef Walk* begins
    w.going_back = True
    if g.stretches.top and node.batch != NO_BATCH and prepare_backward(w, node.batch):
        return -1
    opens = walk_on(w, 0 if g.multi_device else g.device)       # of several devices, the CPU has all values
    if opens == NULL or open_donation(opens, target, full) or open_backward(opens, target, full):
        return failed_on(w, opens)
    begins = walk_on(w, device_of(g, target))
    if begins == NULL or begin_at(begins, target):
        return failed_on(w, begins)
    if node.val == NULL or not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    if w.device.announce != NULL and w.device.announce(w, target):
        return -1
    if g.stretches.top:
        return run_backward_in_stretches(w, node.batch)
    # Hooks must be called in the announced order of gradients, which joined batches would change.
    if w.at_once and (g.n_passes > 1 or g.may_raise) and g.strategy and w.hook.after == NULL:
        return run_backward_joined(w, node.batch)
    return run_backward(w, 0, node.batch)


cdef inline int failed_on(Walk* w, const Walk* of) noexcept nogil:
    """Let a walk end with the failure of the walk over one device; NULL: it is its own."""
    if of != NULL:
        w.failure = of.failure
    return -1


cdef void closed(Graph* g) noexcept nogil:
    drop_plan_cache(g)
    drop_speculation(g)


engine().forward = forward
engine().backward = backward
engine().closed = closed
