"""The CPU executor: runs plans forward, and what has run backward.

Values of the nodes of one batch lie side by side, in the order of the batch.
Where the arguments of a batch lie so too, the call reads them in place; else
they are gathered first.  Gradients lie side by side exactly where values do.  The first
contribution to a gradient assigns it, later ones add.
"""

import sys

from cpython.ref cimport Py_DECREF, Py_INCREF

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, coarse_ms, interrupted, raise_interrupt
from dynet_cy.core.tensor cimport Call, Dim, Packed, Tensor, cols_of, rows_of, size_of, total_of
from dynet_cy.execute.anomaly cimport bad_collected, bad_gradients, bad_values, check_before, checking, raise_anomaly
from dynet_cy.execute.collect cimport add_collected, add_collected_of, collect
from dynet_cy.execute.gradient_hooks cimport Use, gradient_hooks, list_uses
from dynet_cy.execute.journal cimport Journal, Waiting, begin_journal, end_journal, note_before, take_back
from dynet_cy.execute.profile cimport WEIGHT_GRADIENTS, note, note_call, now, profiling
from dynet_cy.graph.graph cimport (
    COLUMNS, COMPUTED, EACH, ENGINE_CPU, FLATTENED, LIVE, NEEDS_GRAD, STACKED, TRAINABLE,
    Batch, Engine, Graph, Laid, Node, args_of, batches_of, describe_dim, engine, gradient_at,
    items_of, lock_graph, made_at, nodes_of, open_gradients, order_of, release_arguments, state_of,
    unlock_graph, untake_values, value_of,
)
from dynet_cy.graph.timeline cimport BACKWARD_PASS, FORWARD_PASS, begin_pass_span, end_span
from dynet_cy.kernels.draws cimport random_seed
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, out_of_memory
from dynet_cy.memory.storage cimport Param, note_gradient, pthread_mutex_t
from dynet_cy.ops.registry cimport Factors, Op, any_raises, op_at
from dynet_cy.schedule.beside cimport drop_beside
from dynet_cy.schedule.plan cimport drop_plan, plan
from dynet_cy.schedule.plan_cache cimport drop_plan_cache


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

HALF = ("Gradients of parameters hold a part of this backward, beside what they held before: set them to zero "
        "before the next one")


# A backward pass after so long a forward pass may be long enough to be interrupted.
cdef enum:
    LONG_FORWARD = 50               # milliseconds


cdef void begin_failure(Failure* failure) noexcept nogil:
    """Nothing has gone wrong yet."""
    memset(failure, 0, sizeof(Failure))
    begin_interrupts(&failure.interrupts)


cdef void* take(Graph* g, size_t bytes, Failure* failure) noexcept nogil:
    cdef void* p = arena_alloc(&g.scratch, bytes)
    if p == NULL:
        failure.needed = bytes
    return p


cdef inline void set_tensor(Tensor* t, const Dim* dim, uint32_t bd, float* v) noexcept nogil:
    t.dim = dim[0]
    t.dim.bd = bd
    t.v = v
    t.bstride = size_of(dim) if bd > 1 else 0
    t.list = NULL
    t.pack = NULL


cdef inline void set_shared(Tensor* t, Node* a) noexcept nogil:
    """An argument that is one node, perhaps a parameter."""
    set_tensor(t, &a.dim, a.dim.bd, value_of(a))
    if a.val == NULL:
        t.pack = <Packed*>&(<Param*>a.object).pack


cdef inline void set_columns(Tensor* t, size_t rows, size_t n, float* v) noexcept nogil:
    set_flat(t, rows, v)
    t.dim.nd = 2
    t.dim.d[1] = <uint32_t>n


cdef inline void set_flat(Tensor* t, size_t n, float* v) noexcept nogil:
    t.dim.nd = 1
    t.dim.d[0] = <uint32_t>n
    t.dim.bd = 1
    t.v = v
    t.bstride = 0
    t.list = NULL
    t.pack = NULL


# ---- forward -----------------------------------------------------------------

cdef extern from *:
    """
    static _Thread_local uint64_t dy_pass_end = 0;
    """
    uint64_t pass_end "dy_pass_end"


cdef void end_passes_at(uint64_t nanoseconds) noexcept:
    global pass_end
    pass_end = nanoseconds


cdef int forward(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1:
    """Compute the values of the targets and all that they need."""
    cdef Failure failure
    cdef int failed
    cdef uint32_t ran = g.n_batches
    cdef int64_t begun = coarse_ms()
    cdef uint64_t span = begin_pass_span(g)
    begin_failure(&failure)
    lock_graph(g)
    with nogil:
        enter_pool()
        failed = plan_and_run(g, targets, n, strategy, &failure)
        leave_pool()
    g.forward_ms += <uint32_t>(coarse_ms() - begun)
    unlock_graph(g)
    end_span(FORWARD_PASS, span)
    if profiling > 1:
        list_batches(g, ran)
    raise_interrupt(&failure.interrupts)
    if failed:
        raise_failure(g, "the values of the graph", &failure)
    return 0


cdef int raise_failure(Graph* g, str what, const Failure* failure) except -1:
    """Raise for what stopped a pass: an op, numbers that are not finite, or a lack of memory for `what`."""
    if failure.raised != NULL:
        raise_of_op(failure)
    if failure.finding.kind:
        raise_anomaly(g, &failure.finding)
    out_of_memory(what)


cdef inline bint op_raised(const Op* op, Failure* failure) noexcept nogil:
    """Whether what an op has just run has raised an exception."""
    if op.raised == NULL:
        return False
    failure.raised = op.raised()
    return failure.raised != NULL


cdef int raise_of_op(const Failure* failure) except -1:
    """Raise the exception of an op; one that is no error, such as that of Ctrl-C, as that of a signal's handler."""
    cdef Interrupts of_handler
    error = <object>failure.raised
    Py_DECREF(error)
    if failure.half and hasattr(error, "add_note"):
        error.add_note(HALF)
    if isinstance(error, Exception):
        raise error
    begin_interrupts(&of_handler)
    Py_INCREF(error)
    of_handler.raised = <void*>error
    return raise_interrupt(&of_handler)


cdef int list_batches(Graph* g, uint32_t first) except -1:
    """Write what has run since, a batch a line, to stderr."""
    cdef Batch* batch
    lines = ["Forward Call"]
    for i in range(first, g.n_batches):
        batch = &batches_of(g)[i]
        node = &nodes_of(g)[order_of(g)[batch.first]]
        lines.append(f"BatchSize:{batch.count} {op_at(node.op).name.decode()} {describe_dim(&node.dim)}"
                     f"{made_at(g, order_of(g)[batch.first])}")
    print("\n".join(lines), file=sys.stderr)
    return 0


cdef int plan_and_run(Graph* g, const uint32_t* targets, uint32_t n, int strategy,
                      Failure* failure) noexcept nogil:
    cdef uint32_t n_batches = 0, i
    cdef uint64_t end = pass_end
    cdef Batch* batch
    if plan(g, targets, n, strategy, &n_batches, &failure.interrupts):
        failure.needed = g.n_nodes * sizeof(uint32_t)
        return -1
    for i in range(n_batches):
        batch = &batches_of(g)[g.n_batches]
        if run_batch(g, batch, failure) or interrupted(&failure.interrupts, batch.bytes):
            drop_plan(g)
            return -1
        if end and i + 1 < n_batches and now() >= end:
            drop_plan(g)
            return 0
    return 0


cdef int run_batch(Graph* g, Batch* batch, Failure* failure) noexcept nogil:
    """Run one planned batch and count it as run."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Op* op = op_at(nodes_of(g)[ids[0]].op)
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef int failed
    cdef uint64_t begun = now() if profiling else 0
    if not make_room(g, batch):
        failure.needed = batch.bytes
        return -1
    if batch.form == EACH:
        failed = call_each(g, batch, op, failure)
    else:
        failed = call(g, batch, op, failure)
    if failed:
        return undo_run(g, batch, values_top, scratch_top)
    if g.forward_only:                          # no backward: nothing is saved
        arena_rewind(&g.scratch, scratch_top)
    if (checking or g.check_validity) and bad_values(g, batch, g.check_validity, &failure.finding):
        return undo_run(g, batch, values_top, scratch_top)
    hand_out_values(g, batch, g.n_batches)
    count_as_run(g)
    if g.forward_only:
        release_arguments(g, batch)
    if profiling:
        note_call(g, batch.first, batch.count, False, batch.count, begun)
    return 0


cdef int undo_run(Graph* g, Batch* batch, size_t values_top, size_t scratch_top) noexcept nogil:
    """Give back the memory of a batch that could not run."""
    untake_values(g, batch.y, batch.bytes, values_top)
    arena_rewind(&g.scratch, scratch_top)
    return -1


cdef int call(Graph* g, Batch* batch, Op* op, Failure* failure) noexcept nogil:
    """Run a batch, whose results have their place, as one call."""
    cdef Tensor few[FEW]
    cdef Call c
    cdef size_t top
    batch.saved = NULL
    batch.saved_of = NULL
    batch.items = NULL
    batch.x = NULL
    if arrange(g, batch, failure) or set_call(g, batch, few, &c, failure):
        return -1
    if op.saved != NULL:
        batch.saved = <float*>take(g, op.saved(&c) * sizeof(float), failure)
        c.saved = batch.saved
    top = g.scratch.top
    if op.work != NULL:
        c.work = <float*>take(g, op.work(&c, -1) * sizeof(float), failure)
    if failure.needed:
        return -1
    op.forward(&c)
    arena_rewind(&g.scratch, top)
    return -1 if op_raised(op, failure) else 0


cdef int call_each(Graph* g, Batch* batch, Op* op, Failure* failure) noexcept nogil:
    """Run a batch, whose results have their place, as a call for each node."""
    cdef Batch one
    cdef uint32_t j
    cdef size_t n
    batch.x = NULL
    batch.items = NULL
    batch.saved = NULL
    batch.saved_of = NULL
    if op.saved != NULL:
        batch.saved_of = <float**>take(g, batch.count * sizeof(float*), failure)
        if batch.saved_of == NULL:
            return -1
    one.y = batch.y
    for j in range(batch.count):
        set_one(g, batch, j, &one)
        n = total_of(&nodes_of(g)[order_of(g)[one.first]].dim)
        if call(g, &one, op, failure) or interrupted(&failure.interrupts, n * sizeof(float)):
            return -1
        if op.saved != NULL:
            batch.saved_of[j] = one.saved
        one.y += n
    return 0


cdef void set_one(Graph* g, const Batch* batch, uint32_t j, Batch* one) noexcept nogil:
    """A batch of node j of one that calls each; its y is left to the caller."""
    one.first = batch.first + j
    one.count = 1
    one.bd = nodes_of(g)[order_of(g)[one.first]].dim.bd
    one.form = STACKED
    one.x = NULL
    one.items = NULL


cdef int arrange(Graph* g, Batch* batch, Failure* failure) noexcept nogil:
    """Lay the arguments and items of several nodes side by side.

    Leaves batch.x[i] empty for an argument that all nodes share.
    """
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Op* op = op_at(node.op)
    cdef uint32_t i, j
    cdef size_t n
    if batch.count == 1:
        return 0
    if node.nargs:
        batch.x = <Laid*>take(g, node.nargs * sizeof(Laid), failure)
        if batch.x == NULL:
            return -1
    for i in range(node.nargs):
        batch.x[i].v = NULL
        batch.x[i].list = NULL
        if not is_shared(state_of(g), op, i, args_of(g, node)[i]) and lay(g, batch, op, i, failure):
            return -1
    if node.item_count:
        batch.items = <uint32_t*>take(g, batch.bd * node.item_count * sizeof(uint32_t), failure)
        if batch.items == NULL:
            return -1
        n = 0
        for j in range(batch.count):
            node = &nodes[ids[j]]
            memcpy(batch.items + n, items_of(g, node),
                   node.dim.bd * node.item_count * sizeof(uint32_t))
            n += node.dim.bd * node.item_count
    return 0


cdef int lay(Graph* g, Batch* batch, Op* op, uint32_t i, Failure* failure) noexcept nogil:
    """Lay argument i of several nodes side by side, or list where its batch elements lie."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Laid* x = &batch.x[i]
    cdef Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef uint32_t j
    cdef size_t n = 0, stride
    cdef float* at
    cdef bint listed = may_list(batch, op, i)
    x.v = a.val
    if side_by_side(g, batch, i, listed):
        return 0
    if listed:
        x.v = NULL
        x.list = <float**>take(g, batch.bd * sizeof(float*), failure)
        if x.list == NULL:
            return -1
        n = 0
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            at = a.val
            stride = size_of(&a.dim) if a.dim.bd > 1 else 0
            for _ in range(nodes[ids[j]].dim.bd):
                x.list[n] = at
                at += stride
                n += 1
        return 0
    for j in range(batch.count):
        n += total_of(&nodes[args_of(g, &nodes[ids[j]])[i]].dim)
    at = <float*>take(g, n * sizeof(float), failure)
    x.v = at
    if at == NULL:
        return -1
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n = total_of(&a.dim)
        memcpy(at, a.val, n * sizeof(float))
        at += n
    return 0


cdef int set_call(Graph* g, Batch* batch, Tensor* few, Call* c,
                  Failure* failure) noexcept nogil:
    """The call of a batch: its arguments and result as the op sees them."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Node* a
    cdef uint32_t* args = args_of(g, node)
    cdef Tensor* x = few
    cdef uint32_t i
    cdef size_t total
    if node.nargs > FEW:
        x = <Tensor*>take(g, node.nargs * sizeof(Tensor), failure)
        if x == NULL:
            return -1
    if batch.count == 1:
        for i in range(node.nargs):
            a = &nodes[args[i]]
            set_shared(&x[i], a)
        set_tensor(&c.y, &node.dim, node.dim.bd, batch.y)
        c.items = items_of(g, node)
    elif batch.form == FLATTENED:
        total = 0
        for i in range(batch.count):
            total += total_of(&nodes[ids[i]].dim)
        for i in range(node.nargs):
            set_flat(&x[i], total, batch.x[i].v)
        set_flat(&c.y, total, batch.y)
        c.items = NULL
    elif batch.form == COLUMNS:
        total = 0
        for i in range(batch.count):
            total += cols_of(&nodes[ids[i]].dim) * nodes[ids[i]].dim.bd
        for i in range(node.nargs):
            a = &nodes[args[i]]
            if batch.x[i].v == NULL:
                set_shared(&x[i], a)
            else:
                set_columns(&x[i], rows_of(&a.dim), total, batch.x[i].v)
        set_columns(&c.y, rows_of(&node.dim), total, batch.y)
        c.items = NULL
    else:
        for i in range(node.nargs):
            a = &nodes[args[i]]
            if batch.x[i].v == NULL and batch.x[i].list == NULL:
                set_shared(&x[i], a)
            else:
                set_tensor(&x[i], &a.dim, batch.bd, batch.x[i].v)
                x[i].list = batch.x[i].list
        set_tensor(&c.y, &node.dim, batch.bd, batch.y)
        c.items = batch.items
    c.n = node.nargs
    c.x = x
    c.accumulate = 0
    c.before = 0
    c.attrs = node.attrs
    c.item_count = node.item_count
    c.object = node.object
    c.seed = random_seed()
    c.stream = g.stream
    c.saved = batch.saved
    c.work = NULL
    return 0


# ---- backward ----------------------------------------------------------------

cdef int backward(Graph* g, uint32_t target, bint full) except -1:
    """Add the gradient of target to the gradients of parameters: all of it, or after an exception nothing.

    What a handler of a signal raises stops the pass only where gradients can be taken back.  Else the pass is
    finished first.
    """
    cdef Failure failure
    cdef Journal journal
    cdef uint64_t span = begin_pass_span(g)
    begin_failure(&failure)
    if checking:
        check_before(g, target)
    lock_graph(g)
    with nogil:
        begin_journal(&journal, checking or any_raises() or g.forward_ms >= LONG_FORWARD)
        # Gradients are sent while the pass runs.
        journal.irrevocable = gradient_hooks().complete != NULL
        enter_pool()
        run_backward(g, target, full, &journal, &failure)
        if failure.needed or failure.finding.kind or failure.raised != NULL:
            failure.half = not take_back(&journal)
        leave_pool()
        end_journal(&journal)
    unlock_graph(g)
    end_span(BACKWARD_PASS, span)
    try:
        raise_interrupt(&failure.interrupts)
    finally:
        if failure.raised != NULL:
            raise_of_op(&failure)
        if failure.finding.kind:
            raise_anomaly(g, &failure.finding)
        if failure.needed:
            raise_out_of_memory(&failure)
    return 0


cdef int raise_out_of_memory(const Failure* failure) except -1:
    try:
        out_of_memory("the gradients of the graph")
    except MemoryError as error:
        if not failure.half:
            raise
        raise MemoryError(f"{error}.  {HALF}") from None
    return 0


cdef inline bint stops(Journal* journal, Failure* failure, size_t bytes) noexcept nogil:
    """Whether the pass ends here, as if it had not begun, since a handler of a signal has raised an exception."""
    return interrupted(&failure.interrupts, bytes) and take_back(journal)


cdef int run_backward(Graph* g, uint32_t target, bint full, Journal* journal, Failure* failure) noexcept nogil:
    cdef size_t before = g.scratch.top, scratch_top
    cdef Node* node = &nodes_of(g)[target]
    cdef Batch* batch
    cdef uint32_t b
    cdef int failed = 0
    cdef uint64_t begun
    cdef Waiting* w
    cdef Use* uses = NULL
    cdef uint32_t n_uses = 0, n_complete = 0
    mark_gradients(g, target, full)
    if not open_gradients(g):
        failure.needed = g.values.top
        return -1
    if node.val == NULL:                        # a parameter is its own gradient's place
        if state_of(g)[target] & TRAINABLE:
            add_to_parameter(<Param*>node.object, journal)
        return 0
    K.fill(node.dim.bd, 1.0, gradient_at(g, node.val))
    state_of(g)[target] |= LIVE
    if not state_of(g)[target] & COMPUTED or node.batch >= g.n_batches:
        return 0
    if gradient_hooks().complete != NULL and not g.aside and tell_uses(g, target, &uses, &n_uses, failure):
        return -1
    scratch_top = g.scratch.top
    for b in range(node.batch + 1):
        batch = &batches_of(g)[node.batch - b]
        failed = run_batch_backward(g, batch, journal, failure)
        arena_rewind(&g.scratch, scratch_top)
        if failed or stops(journal, failure, batch.bytes):
            arena_rewind(&g.scratch, before)
            return -1
        while n_complete < n_uses and uses[n_complete].batch == node.batch - b:
            add_collected_of(journal, uses[n_complete].p)
            gradient_hooks().complete(uses[n_complete].p)
            n_complete += 1
        if gradient_hooks().progress != NULL:
            gradient_hooks().progress()
    arena_rewind(&g.scratch, before)
    begun = now() if profiling else 0
    w = journal.waiting
    while w != NULL:
        add_collected(w, journal)
        if stops(journal, failure, w.p.size * sizeof(float)):
            return -1
        w = w.next
    if profiling and journal.waiting != NULL:
        note(WEIGHT_GRADIENTS, True, 1, begun)
    return check_collected(g, journal.waiting, failure)


cdef int check_collected(Graph* g, const Waiting* waiting, Failure* failure) noexcept nogil:
    """Look at the gradients that were collected, while checks are on."""
    while checking and waiting != NULL:
        if bad_collected(g, waiting.p, &failure.finding):
            return -1
        waiting = waiting.next
    return 0


cdef int tell_uses(Graph* g, uint32_t target, Use** uses, uint32_t* n, Failure* failure) noexcept nogil:
    """List which parameters get gradients and when, and call the hook."""
    cdef Param** coming
    cdef uint32_t i
    if list_uses(g, target, uses, n):
        failure.needed = g.n_nodes * sizeof(Use)
        return -1
    coming = <Param**>take(g, (n[0] + 1) * sizeof(Param*), failure)
    if coming == NULL:
        return -1
    for i in range(n[0]):
        coming[i] = uses[0][i].p
    gradient_hooks().begin(coming, n[0])
    return 0


cdef void add_to_parameter(Param* p, Journal* journal) noexcept nogil:
    pthread_mutex_lock(&p.lock)
    note_before(journal, p)
    p.grad[0] += 1
    note_gradient(p)
    pthread_mutex_unlock(&p.lock)


cdef void mark_gradients(Graph* g, uint32_t target, bint full) noexcept nogil:
    """Note which nodes up to target have a gradient to compute."""
    cdef uint8_t* state = state_of(g)
    cdef uint32_t i, k
    cdef uint8_t needs
    cdef Node* node = nodes_of(g)
    cdef const uint32_t* args
    for i in range(target + 1):
        # A parameter may be frozen or set free again by now; a pass aside has marked those that it is for.
        if node.nargs == 0 and node.object != NULL and not g.aside:
            state[i] &= <uint8_t>~TRAINABLE
            if node.attrs[0].u and (<Param*>node.object).updated:
                state[i] |= TRAINABLE
        needs = full or state[i] & TRAINABLE
        args = args_of(g, node)
        for k in range(node.nargs):
            needs |= state[args[k]] & NEEDS_GRAD
        state[i] = (state[i] & <uint8_t>~(LIVE | NEEDS_GRAD)) | (NEEDS_GRAD if needs else 0)
        node += 1
    for i in range(target + 1, g.n_nodes):
        state[i] &= <uint8_t>~(LIVE | NEEDS_GRAD)


cdef int run_batch_backward(Graph* g, Batch* batch, Journal* journal,
                            Failure* failure) noexcept nogil:
    cdef Op* op = op_at(nodes_of(g)[order_of(g)[batch.first]].op)
    cdef Batch one
    cdef uint32_t j, n_live = 0
    cdef size_t n, top = g.scratch.top
    cdef uint64_t begun = now() if profiling else 0
    if op.backward == NULL:
        return 0
    if batch.form != EACH:
        if backward_call(g, batch, op, journal, &n_live, failure):
            return -1
    else:
        one.y = batch.y
        for j in range(batch.count):
            set_one(g, batch, j, &one)
            one.saved = batch.saved_of[j] if batch.saved_of != NULL else NULL
            n = total_of(&nodes_of(g)[order_of(g)[one.first]].dim)
            if backward_call(g, &one, op, journal, &n_live, failure) or stops(journal, failure, n * sizeof(float)):
                return -1
            arena_rewind(&g.scratch, top)
            one.y += n
    if profiling and n_live:
        note_call(g, batch.first, batch.count, True, n_live, begun)
    if checking and n_live and bad_gradients(g, batch, &failure.finding):
        return -1
    return 0


cdef int backward_call(Graph* g, Batch* batch, Op* op, Journal* journal, uint32_t* all_live,
                       Failure* failure) noexcept nogil:
    """Gradients of the arguments of one call; adds the number of nodes that the loss depends on."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef uint8_t* state = state_of(g)
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i, j, n_live = 0
    cdef size_t top
    cdef float* dy
    for j in range(batch.count):
        n_live += (state[ids[j]] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
    all_live[0] += n_live
    if n_live == 0:
        return 0
    if n_live < batch.count:                    # the loss does not depend on the others
        for j in range(batch.count):
            if not state[ids[j]] & LIVE:
                dy = gradient_at(g, nodes[ids[j]].val)
                memset(dy, 0, total_of(&nodes[ids[j]].dim) * sizeof(float))
    if set_call(g, batch, few, &c, failure):
        return -1
    c.dy = c.y
    c.dy.v = gradient_at(g, c.y.v)
    c.first = 1
    if op.prepare != NULL:
        c.work = <float*>take(g, op.prepared(&c) * sizeof(float), failure)
        if c.work == NULL:
            return -1
        op.prepare(&c)
        if op_raised(op, failure):
            return -1
    top = g.scratch.top
    if node.nargs == 0 and state[ids[0]] & TRAINABLE:
        pthread_mutex_lock(&(<Param*>node.object).lock)
        note_before(journal, <Param*>node.object)
        op.backward(&c, 0)
        (<Param*>node.object).has_gradient = 1
        pthread_mutex_unlock(&(<Param*>node.object).lock)
    for i in range(node.nargs):
        if argument_backward(g, batch, op, &c, i, journal, failure):
            return -1
        if op.part != NULL:
            c.before += op.part(&c, i)
        arena_rewind(&g.scratch, top)
    return 0


cdef int argument_backward(Graph* g, Batch* batch, Op* op, Call* c, uint32_t i,
                           Journal* journal, Failure* failure) noexcept nogil:
    """Gradient of argument i of all nodes of a batch."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    cdef uint32_t n_need, n_live
    cdef bint one = batch.count == 1 or (batch.x[i].v == NULL and batch.x[i].list == NULL)
    cdef bint together
    cdef Node* a = &nodes[arg]
    cdef Param* p
    cdef Factors factors
    cdef size_t n
    cdef float* at
    if not wants_gradient(g, batch, i, one, &n_need, &n_live):
        return 0
    if op.work != NULL:
        c.work = <float*>take(g, op.work(c, <int>i) * sizeof(float), failure)
        if c.work == NULL:
            return -1
    c.dx = c.x[i]
    if one and a.val == NULL:                   # a parameter: its gradient is in storage
        p = <Param*>a.object
        if op.factors != NULL:
            factors.n = 0
            op.factors(c, i, &factors)
            if factors.n:
                c.first = 0
            if collect(g, journal, p, &factors):
                return 0
        pthread_mutex_lock(&p.lock)
        note_before(journal, p)
        c.dx.v = p.grad
        c.accumulate = 1
        op.backward(c, i)
        c.first = 0
        note_gradient(p)
        pthread_mutex_unlock(&p.lock)
        return 0
    if one:
        c.dx.v = gradient_at(g, a.val)
        call_backward(op, c, i, (state[arg] & LIVE) != 0)
        state[arg] |= LIVE
        return 0
    if batch.x[i].list != NULL:
        return list_backward(g, batch, op, c, i, failure)
    together = batch.x[i].v == a.val
    if together and n_need == batch.count:
        # Side by side, so each argument occurs once.
        if n_live:
            for j in range(batch.count):
                arg = args_of(g, &nodes[ids[j]])[i]
                if not state[arg] & LIVE:
                    n = total_of(&nodes[arg].dim)
                    memset(gradient_at(g, nodes[arg].val), 0, n * sizeof(float))
        c.dx.v = gradient_at(g, a.val)
        call_backward(op, c, i, n_live != 0)
        for j in range(batch.count):
            state[args_of(g, &nodes[ids[j]])[i]] |= LIVE
        return 0
    c.dx.v = <float*>take(g, total_of(&c.dx.dim) * sizeof(float), failure)
    if c.dx.v == NULL:
        return -1
    call_backward(op, c, i, False)
    at = c.dx.v
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        n = total_of(&nodes[arg].dim)
        if state[arg] & NEEDS_GRAD and nodes[arg].val != NULL:
            if state[arg] & LIVE:
                K.add(n, at, gradient_at(g, nodes[arg].val))
            else:
                memcpy(gradient_at(g, nodes[arg].val), at, n * sizeof(float))
                state[arg] |= LIVE
        at += n
    return 0


cdef int list_backward(Graph* g, Batch* batch, Op* op, Call* c, uint32_t i,
                       Failure* failure) noexcept nogil:
    """Gradient of an argument that is read where it lies: goes to where its gradients lie."""
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef float** dx = <float**>take(g, batch.bd * sizeof(float*), failure)
    # What has no gradient yet; NULL for the others.
    cdef Node** empty = <Node**>take(g, batch.count * sizeof(Node*), failure)
    cdef uint32_t j, arg
    cdef bint adds = not op.assigns
    cdef Node* a
    if dx == NULL or empty == NULL:
        return -1
    for j in range(batch.count):
        arg = args_of(g, &nodes_of(g)[ids[j]])[i]
        a = &nodes_of(g)[arg]
        empty[j] = NULL
        if a.dim.bd != nodes_of(g)[ids[j]].dim.bd:      # it serves several batch elements
            adds = True
        if state[arg] & LIVE:                           # perhaps as the argument of a node before, in this batch
            adds = True
        else:
            # What needs no gradient has a place for it all the same.
            empty[j] = a
            state[arg] |= LIVE if state[arg] & NEEDS_GRAD else 0
    if adds:
        for j in range(batch.count):
            if empty[j] != NULL:
                memset(gradient_at(g, empty[j].val), 0, total_of(&empty[j].dim) * sizeof(float))
    for j in range(batch.bd):
        dx[j] = gradient_at(g, batch.x[i].list[j])
    c.dx.list = dx
    c.accumulate = adds
    op.backward(c, i)
    c.first = 0
    return 0


cdef void call_backward(Op* op, Call* c, uint32_t i, bint accumulate) noexcept nogil:
    if not op.assigns and not accumulate:
        memset(c.dx.v, 0, total_of(&c.dx.dim) * sizeof(float))
        accumulate = True
    c.accumulate = accumulate
    op.backward(c, i)
    c.first = 0


cdef void closed(Graph* g) noexcept nogil:
    drop_plan_cache(g)
    drop_beside(g)


cdef Engine* hooks = engine(ENGINE_CPU)
hooks.forward = forward
hooks.backward = backward
hooks.closed = closed
