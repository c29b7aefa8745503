"""Forward and backward on a device."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.threads cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.execute.accumulation cimport begin_journal, end_journal, note_before, roll_back
from dynet_cy.execute.gradients cimport (
    begin_at, multiply_collected, open_backward, run_backward,
)
from dynet_cy.execute.recompute cimport may_drop, prepare_backward, run_backward_in_stretches
from dynet_cy.execute.rematerialize cimport bring_back, run_plan
from dynet_cy.execute.walk cimport Walk, run_planned_at_once
from dynet_cy.gpu.cells cimport find_cells, take_cells_apart
from dynet_cy.gpu.commands cimport Pass, begin_pass, device_of_graphs
from dynet_cy.gpu.copies cimport find_copies
from dynet_cy.gpu.driver cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.gpu.fusion cimport find_fusions, take_fusions_apart
from dynet_cy.gpu.graphs cimport DeviceGraph, close, device_graph, fetch, limit_by_device, raise_of_device
from dynet_cy.gpu.passes cimport load_moves, raise_pass_failure, run_pass
from dynet_cy.graph.expressions cimport parameter_here, value_here
from dynet_cy.graph.structs cimport (
    COMPUTED, ENGINE_GPU, NO_BATCH, SENT, Batch, Engine, Graph, Node, args_of, batches_of, cut_stretches, engine,
    nodes_of, release_arguments, state_of,
)
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.memory.arena cimport arena_rewind, out_of_memory
from dynet_cy.memory.storage cimport Param, mirrors
from dynet_cy.schedule.adjacency cimport order_nodes
from dynet_cy.schedule.budget cimport ENOUGH, is_limited
from dynet_cy.schedule.plan cimport drop_plan, is_finished, keep_finished, plan
from dynet_cy.watch.instruments cimport (
    Finding, bad_values, check_before, checking, end_pass, list_batches, profiling, raise_anomaly,
)
from dynet_cy.watch.timeline cimport BACKWARD_PASS, FORWARD_PASS, begin_pass_span


# ==== gradients ===================================================================================
#
# Backward on a device, as one pass.

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
        with nogil:
            note_after(&journal)
    except BaseException as e:
        put_gradients_back(&journal)
        if isinstance(e, MemoryError):
            if not is_limited(g):
                g.assumed.kept = ENOUGH
            limit_by_device(g, d)
        raise
    finally:
        end_journal(&journal)
        arena_rewind(&g.scratch, min(g.scratch.top, scratch_top))
        arena_rewind(&g.tables, tables_top)     # later uploads run after this pass, so the memory can be reused
        unlock_graph(g)
    end_pass(g, BACKWARD_PASS, span)
    return 0


cdef int walk_back(Pass* s, uint32_t target, bint full) noexcept nogil:
    """List the commands of backward."""
    cdef Graph* g = s.walk.g
    cdef const Node* node = &nodes_of(g)[target]
    if g.stretches.top and node.batch != NO_BATCH and prepare_backward(&s.walk, node.batch):
        return -1
    if open_backward(&s.walk, target, full) or begin_at(&s.walk, target):
        return -1
    if node.val == NULL or not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    if g.stretches.top:
        return -1 if run_backward_in_stretches(&s.walk, node.batch) else multiply_collected(&s.walk)
    return -1 if run_backward(&s.walk, 0, node.batch) else multiply_collected(&s.walk)


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
            with nogil:
                note_of(journal, p)
    return 0


cdef void note_of(Journal* journal, Param* p) noexcept nogil:
    """Without the lock of the interpreter: an update may wait for that while it holds this one."""
    pthread_mutex_lock(&p.lock)
    note_before(journal, p)
    pthread_mutex_unlock(&p.lock)


cdef void note_after(Journal* journal) noexcept nogil:
    """Record that the pass has added to the gradients, so that a pass that began meanwhile does not restore them."""
    cdef uint32_t i
    for i in range(journal.n):
        note_of(journal, journal.before[i].p)


cdef bint put_gradients_back(Journal* journal) except *:
    """Restore the gradients of before the pass, unless they were not copied or another pass has added to them."""
    cdef Param* p
    cdef uint32_t i
    if not roll_back(journal):
        return False
    for i in range(journal.n):
        p = journal.before[i].p
        if p.device and p.has_gradient:
            mirrors().send(p.device, p.grad, p.device_grad, p.size)
        elif p.device:
            mirrors().clear(p.device, p.device_grad, p.size)
    return True


# ==== executor ====================================================================================
#
# The GPU executor: runs plans forward on a device.

# How many batches are sent as one pass, unless the graph is one for which `may_drop`: then all are.  Signal handlers
# run between passes.
cdef enum:
    MOST_TOGETHER = 1 << 12


cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and of the nodes that they depend on."""
    cdef DeviceGraph* d = device_graph(g, g.device)
    cdef int error
    cdef uint32_t n_batches = 0, ran = g.n_batches
    cdef uint64_t span = begin_pass_span(g)
    cdef Interrupts s
    begin_interrupts(&s)
    limit_by_device(g, d)
    lock_graph(g)
    try:
        g.finishes = may_join(g)
        if may_drop(g):
            run_again_what_is_needed(g, d, targets, n)
        with nogil:
            error = plan(g, targets, n, strategy, checking, &n_batches, &s)
        if error == 1:
            run_again_what_is_needed(g, d, targets, n)
            with nogil:
                error = plan(g, targets, n, strategy, checking, &n_batches, &s)
        with nogil:
            if not error:
                finish_plan(g, n_batches)
            g.finishes = False
        raise_interrupt(&s)
        if error:
            out_of_memory("the schedule of the graph")
        g.n_passes += n_batches != 0
        run_all(g, d, n_batches, targets, n, &s)
    except MemoryError as error_of_memory:
        if not is_limited(g):
            g.assumed.kept = ENOUGH             # nothing has been dropped
        limit_by_device(g, d)
        raise_of_device(g, d, error_of_memory)
    finally:
        g.finishes = False
        unlock_graph(g)
    end_pass(g, FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    return 0


cdef int run_again_what_is_needed(Graph* g, DeviceGraph* d, const uint32_t* targets, uint32_t n) except -1:
    """Compute values again that were dropped and that the targets need, in a pass of their own."""
    cdef Pass s
    cdef int error
    cdef PassStart before = pass_start(g)
    begin_pass(&s, g, d)
    try:
        with nogil:
            error = bring_back(&s.walk, targets, n)
        if error:
            raise_pass_failure(&s, "the values of the graph")
        if s.first != NULL:
            run_pass(&s, "the values of the graph")
    except BaseException:
        undo(g, &before)
        raise
    return 0


cdef int run_all(Graph* g, DeviceGraph* d, uint32_t n_batches, const uint32_t* targets, uint32_t n,
                 Interrupts* s) except -1:
    """Run the planned batches."""
    cdef uint32_t end = g.n_batches + n_batches
    cdef bint seeks = n_batches > MOST_TOGETHER
    if n_batches and (not seeks or may_drop(g)):
        run_planned(g, d, n_batches, targets, n, seeks)
        return 0
    while g.n_batches < end:
        run_planned(g, d, min(end - g.n_batches, <uint32_t>MOST_TOGETHER), NULL, 0, seeks)
        with nogil:
            interrupted(s, batches_of(g)[g.n_batches - 1].bytes)
        if s.raised != NULL:
            drop_plan(g)
            raise_interrupt(s)
    return 0


cdef bint may_join(const Graph* g) noexcept nogil:
    return not (profiling or checking or g.check_validity)


cdef void finish_plan(Graph* g, uint32_t n_batches) noexcept nogil:
    """The passes of the device over a plan, unless an equal structure has been through them."""
    if is_finished(g):
        return
    if g.finishes:
        find_copies(g, n_batches)
    order_nodes(g, n_batches)
    if g.finishes and n_batches <= MOST_TOGETHER:
        find_cells(g, g.n_batches, n_batches)
        find_fusions(g, g.n_batches, n_batches)
        keep_finished(g)


cdef void take_apart(Walk* w, uint32_t n) noexcept nogil:
    take_cells_apart(w.g, n)
    take_fusions_apart(w.g, n)


device_of_graphs().take_apart = take_apart


cdef int run_planned(Graph* g, DeviceGraph* d, uint32_t n_batches, const uint32_t* targets, uint32_t n,
                     bint seeks) except -1:
    """Run the next planned batches in one pass; after an error the rest of the plan is dropped.

    Args:
        targets: those of the plan, if these are all of its batches; then values may be dropped.  NULL: they are kept.
        seeks: find the cells and the runs among them first.
    """
    cdef Pass s
    cdef int error
    cdef PassStart before = pass_start(g)
    try:
        begin_pass(&s, g, d)
        with nogil:
            if seeks and may_join(g):
                find_cells(g, g.n_batches, n_batches)
                find_fusions(g, g.n_batches, n_batches)
            if targets != NULL:
                error = run_plan(&s.walk, n_batches, targets, n)
            else:
                error = run_planned_at_once(&s.walk, n_batches)
        if error:
            raise_pass_failure(&s, "the values of the graph")
        run_pass(&s, "the values of the graph")
        if g.check_validity and not checking:       # if checks are on, the pass has checked the values already
            check_values(g, d, before.n_batches)
        if g.forward_only:
            release(g, before.n_batches)
            arena_rewind(&g.tables, before.tables)
    except BaseException:
        undo(g, &before)
        raise
    return 0


cdef void release(Graph* g, uint32_t before) noexcept nogil:
    """After a pass, not during it: inputs are still read from the host when it is sent."""
    cdef uint32_t b
    for b in range(before, g.n_batches):
        release_arguments(g, &batches_of(g)[b])


cdef PassStart pass_start(const Graph* g) noexcept nogil:
    return PassStart(g.n_batches, g.values.top, g.scratch.top, g.tables.top)


cdef void undo(Graph* g, const PassStart* before) noexcept nogil:
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    cut_stretches(g, before.n_batches, before.values)
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~SENT
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= before.n_batches:
            state[i] &= <uint8_t>~COMPUTED
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    g.stale_gradients = True
    if g.n_batches > before.n_batches:
        g.n_order = batches_of(g)[before.n_batches].first
        g.n_batches = before.n_batches
    drop_plan(g)
    arena_rewind(&g.values, before.values)
    arena_rewind(&g.scratch, min(g.scratch.top, before.scratch))
    arena_rewind(&g.tables, before.tables)


cdef int check_values(Graph* g, const DeviceGraph* d, uint32_t first) except -1:
    cdef Finding finding
    cdef Batch* batch
    cdef Node* x
    cdef uint32_t b, i
    memset(&finding, 0, sizeof(Finding))
    for b in range(first, g.n_batches):
        batch = &batches_of(g)[b]
        fetch(g, 1 + d.gpu.number, batch.y, batch.bytes // sizeof(float))
        if not bad_values(g, batch, True, &finding):
            continue
        x = &nodes_of(g)[finding.node]
        for i in range(x.nargs):
            value_here(g, &nodes_of(g)[args_of(g, x)[i]])
        raise_anomaly(g, &finding)
    return 0


cdef Engine* hooks = engine(ENGINE_GPU)
hooks.forward = forward
hooks.backward = backward
hooks.fetch = fetch
hooks.close = close
