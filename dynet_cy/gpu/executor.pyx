"""The GPU executor: runs plans forward on a device.

The arenas of the graph have mirrors on the device.  So the host decides where values,
gradients and working memory lie, as for the CPU.  It writes nothing to its own
arenas, so they take no memory of the host.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.core.tensor cimport Call, Tensor, size_of, total_of
from dynet_cy.execute.anomaly cimport Finding, bad_values, checking, raise_anomaly
from dynet_cy.execute.cpu cimport (
    FEW, count_as_run, hand_out_values, is_shared, list_batches, make_room, may_list, set_one, side_by_side, take,
)
from dynet_cy.execute.profile cimport profiling
from dynet_cy.gpu.driver cimport Address, GpuOp
from dynet_cy.gpu.gradients cimport backward
from dynet_cy.gpu.graphs cimport DeviceGraph, close, device_graph, device_ptr, fetch
from dynet_cy.gpu.memory cimport Range
from dynet_cy.gpu.passes cimport (
    FORWARD, Pass, add_call, add_move, begin_moves, begin_pass, end_moves, lay_items, raise_pass_failure, room,
    run_pass, scratch, set_device_call, uses_in,
)
from dynet_cy.gpu.registry cimport gpu_op_at
from dynet_cy.graph.graph cimport (
    COMPUTED, EACH, ENGINE_GPU, NO_BATCH, SENT, Batch, Engine, Graph, Laid, Node, args_of, batches_of, engine,
    lock_graph, nodes_of, order_of, release_arguments, state_of, unlock_graph, value_here,
)
from dynet_cy.graph.timeline cimport FORWARD_PASS, begin_pass_span, end_span
from dynet_cy.memory.arena cimport arena_rewind, array_push, out_of_memory
from dynet_cy.ops.registry cimport Op, op_at
from dynet_cy.schedule.plan cimport drop_plan, plan


# ---- laying out a batch ----------------------------------------------------------

cdef int send_input(Pass* s, uint32_t number) noexcept nogil:
    """Let the upload hold the numbers of a node, if it is an input that the device lacks."""
    cdef Node* x = &nodes_of(s.g)[number]
    cdef uint8_t* state = state_of(s.g)
    cdef Range* r
    if x.val == NULL or x.batch != NO_BATCH or state[number] & SENT:
        return 0
    r = <Range*>array_push(&s.d.ranges, sizeof(Range))
    if r == NULL:
        s.failure.needed = sizeof(Range)
        return -1
    r.device_ptr = <Address><uintptr_t>device_ptr(s.g, s.d, x.val)
    r.host_ptr = x.val
    r.n = total_of(&x.dim) * sizeof(float)
    state[number] |= SENT
    return 0


cdef int arrange(Pass* s, Batch* batch) noexcept nogil:
    """Lay the arguments and items of a batch side by side, and list inputs to be sent."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Op* op = op_at(node.op)
    cdef Laid* x
    cdef Node* a
    cdef float* at
    cdef uint32_t i, j
    cdef size_t n
    for j in range(batch.count):
        for i in range(node.nargs):
            if send_input(s, args_of(g, &nodes[ids[j]])[i]):
                return -1
    if lay_items(s, batch):
        return -1
    if batch.count == 1 or node.nargs == 0:
        return 0
    batch.x = <Laid*>take(g, node.nargs * sizeof(Laid), &s.failure)
    if batch.x == NULL:
        return -1
    for i in range(node.nargs):
        batch.x[i].v = NULL
        batch.x[i].list = NULL
        if not is_shared(state_of(g), op, i, args_of(g, node)[i]) and lay(s, batch, op, i):
            return -1
    begin_moves(s)
    for i in range(node.nargs):
        x = &batch.x[i]
        a = &nodes[args_of(g, node)[i]]
        if x.v == NULL or x.v == a.val:
            continue
        at = x.v
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            n = total_of(&a.dim)
            # What may be listed may have one batch element for several of the node.
            for _ in range(uses_in(batch, a, &nodes[ids[j]])):
                if add_move(s, device_ptr(g, s.d, a.val), device_ptr(g, s.d, at), n, False) == NULL:
                    return -1
                at += n
    return end_moves(s)


cdef int lay(Pass* s, Batch* batch, Op* op, uint32_t i) noexcept nogil:
    """Decide where argument i of several nodes lies: where it is, listed, or in room of its own."""
    cdef Graph* g = s.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Laid* x = &batch.x[i]
    cdef Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef uint32_t j
    cdef size_t n = 0, stride
    cdef float* at
    cdef bint listable = may_list(batch, op, i)
    x.v = a.val
    if side_by_side(g, batch, i, listable):
        return 0
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n += size_of(&a.dim) * (nodes[ids[j]].dim.bd if listable else a.dim.bd)
    if not (listable and gpu_op_at(op.id).lists):
        x.v = <float*>scratch(s, n * sizeof(float))
        return 0 if x.v != NULL else -1
    x.v = NULL
    x.list = <float**>room(s, &g.tables, batch.bd * sizeof(float*))
    if x.list == NULL:
        return -1
    n = 0
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        at = device_ptr(g, s.d, a.val)
        stride = size_of(&a.dim) if a.dim.bd > 1 else 0
        for _ in range(nodes[ids[j]].dim.bd):
            x.list[n] = at
            at += stride
            n += 1
    return 0


cdef int lay_out(Pass* s, Batch* batch, uint32_t number) noexcept nogil:
    """Find room for a planned batch, and add its commands."""
    cdef Graph* g = s.g
    cdef uint16_t number_of_op = nodes_of(g)[order_of(g)[batch.first]].op
    cdef GpuOp* gpu_op = gpu_op_at(number_of_op)
    cdef size_t before = g.scratch.top
    if gpu_op.forward == NULL:
        s.missing = number_of_op + 1
        return -1
    s.batch = number
    s.modules |= gpu_op.modules
    if not make_room(g, batch):
        s.failure.needed = batch.bytes
        return -1
    s.values_needed = max(s.values_needed, g.values.top)
    if lay_each(s, batch, gpu_op) if batch.form == EACH else lay_call(s, batch, gpu_op):
        return -1
    if g.forward_only:                          # no backward: nothing is saved
        arena_rewind(&g.scratch, before)
    hand_out_values(g, batch, number)
    return 0


cdef int lay_call(Pass* s, Batch* batch, GpuOp* gpu_op) noexcept nogil:
    """Lay out a batch, whose results have their place, as one call."""
    cdef Graph* g = s.g
    cdef Tensor few[FEW]
    cdef Call c
    cdef size_t top
    batch.saved = NULL
    batch.saved_of = NULL
    batch.items = NULL
    batch.x = NULL
    if arrange(s, batch) or set_device_call(s, batch, few, &c):
        return -1
    if gpu_op.saved != NULL:
        batch.saved = <float*>scratch(s, gpu_op.saved(&c) * sizeof(float))
        if batch.saved == NULL:
            return -1
        c.saved = device_ptr(g, s.d, batch.saved)
    top = g.scratch.top
    if gpu_op.work != NULL:
        c.work = <float*>scratch(s, gpu_op.work(&c, -1) * sizeof(float))
        if c.work == NULL:
            return -1
        c.work = device_ptr(g, s.d, c.work)
    if add_call(s, FORWARD, &c, batch, 0, batch.count):
        return -1
    arena_rewind(&g.scratch, top)               # the device does one thing after another
    return 0


cdef int lay_each(Pass* s, Batch* batch, GpuOp* gpu_op) noexcept nogil:
    """Lay out a batch, whose results have their place, as a call for each node."""
    cdef Batch one
    cdef uint32_t j
    batch.x = NULL
    batch.items = NULL
    batch.saved = NULL
    batch.saved_of = NULL
    if gpu_op.saved != NULL:
        batch.saved_of = <float**>take(s.g, batch.count * sizeof(float*), &s.failure)
        if batch.saved_of == NULL:
            return -1
    one.y = batch.y
    for j in range(batch.count):
        set_one(s.g, batch, j, &one)
        if lay_call(s, &one, gpu_op):
            return -1
        if gpu_op.saved != NULL:
            batch.saved_of[j] = one.saved
        one.y += total_of(&nodes_of(s.g)[order_of(s.g)[one.first]].dim)
    return 0


# Batches that are sent as one pass.  Between passes handlers of signals run.
cdef enum:
    MOST_TOGETHER = 1 << 12


cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and all that they need."""
    cdef DeviceGraph* d = device_graph(g, g.device)
    cdef int error
    cdef uint32_t n_batches = 0, ran = g.n_batches, end
    cdef uint64_t span = begin_pass_span(g)
    cdef Interrupts s
    begin_interrupts(&s)
    lock_graph(g)
    try:
        with nogil:
            error = plan(g, targets, n, strategy, &n_batches, &s)
        raise_interrupt(&s)
        if error:
            out_of_memory("the schedule of the graph")
        end = g.n_batches + n_batches
        while g.n_batches < end:
            run_planned(g, d, min(end - g.n_batches, <uint32_t>MOST_TOGETHER))
            with nogil:
                interrupted(&s, batches_of(g)[g.n_batches - 1].bytes)
            if s.raised != NULL:
                drop_plan(g)
                raise_interrupt(&s)
    finally:
        unlock_graph(g)
    end_span(FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    return 0


cdef int run_planned(Graph* g, DeviceGraph* d, uint32_t n_batches) except -1:
    """Run the next planned batches in one pass; after an error all that is planned is dropped."""
    cdef Pass s
    cdef int error = 0
    cdef uint32_t before = g.n_batches, number
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef size_t tables_top = g.tables.top
    try:
        begin_pass(&s, g, d)
        with nogil:
            for number in range(before, before + n_batches):
                if not error:
                    error = lay_out(&s, &batches_of(g)[number], number)
        if error:
            raise_pass_failure(&s, "the values of the graph")
        run_pass(&s, "the values of the graph")
        for _ in range(n_batches):
            count_as_run(g)
        if g.check_validity and not checking:       # else the pass has looked at them already
            check_values(g, d, before)
        if g.forward_only:
            release(g, before)
            arena_rewind(&g.tables, tables_top)
    except BaseException:
        undo(g, before)
        arena_rewind(&g.values, values_top)
        arena_rewind(&g.scratch, scratch_top)
        arena_rewind(&g.tables, tables_top)
        raise
    return 0


cdef void release(Graph* g, uint32_t before) noexcept nogil:
    """Drop what nobody needs now that the batches since have run.  It is dropped after the pass and not within it:
    inputs are read from here when the pass is laid out."""
    cdef uint32_t b
    for b in range(before, g.n_batches):
        release_arguments(g, &batches_of(g)[b])


cdef void undo(Graph* g, uint32_t before) noexcept nogil:
    """Forget the batches that were laid out since, and that inputs were sent."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~SENT
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= before:
            state[i] &= <uint8_t>~COMPUTED
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    if g.n_batches > before:
        g.n_order = batches_of(g)[before].first
        g.n_batches = before
    drop_plan(g)


cdef int check_values(Graph* g, const DeviceGraph* d, uint32_t first) except -1:
    """Raise where a value that has been computed since is not finite."""
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
