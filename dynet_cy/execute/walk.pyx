# Used from Cython only.
"""The walk over batches, forward and backward: the rules, for all devices; see walk.pxd.

Values of the nodes of one batch lie side by side, in the order of the batch.  Where the
arguments of a batch lie so too, the call reads them in place; else they are gathered first,
or the call reads a list of where they lie.  Gradients lie side by side exactly where values
do.  The first contribution to a gradient assigns it, later ones add.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.core.tensor cimport Dim, Packed, Tensor, cols_of, rows_of, size_of, total_of
from dynet_cy.execute.anomaly cimport NOTHING, bad_gradients, bad_values, checking, raise_anomaly
from dynet_cy.execute.journal cimport note_before
from dynet_cy.execute.pieces cimport (
    backward_in_pieces, forward_in_pieces, may_run_in_pieces, ran_in_pieces, together_before, together_with,
)
from dynet_cy.execute.profile cimport note_call, now, profiling
from dynet_cy.execute.views cimport lie_apart, part_views, place_views, views_backward
from dynet_cy.graph.structs cimport (
    COLUMNS, COMPUTED, EACH, FLATTENED, LIVE, NEEDS_GRAD, NO_BATCH, SHARED, STACKED, TRAINABLE, WANTED, Laid,
    args_of, gradient_at, items_of, open_gradients, release_arguments, untake_values, value_of,
)
from dynet_cy.kernels.draws cimport random_seed
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, out_of_memory
from dynet_cy.memory.storage cimport note_gradient, pthread_mutex_t
from dynet_cy.ops.registry cimport LIST, SHARE, Needs, op_at, rule_of
from dynet_cy.schedule.views cimport VIEWS


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

PARTIAL = ("Gradients of parameters hold a part of this backward, beside what they held before: set them to zero "
           "before the next one")

cdef const Op* ops = op_at(0)                   # all ops; the table never moves

# Calls with more arguments than this keep their tensors in the scratch arena.
cdef enum:
    FEW = 8


cdef void begin_walk(Walk* w, Graph* g, const Device* device) noexcept nogil:
    # Field by field: nobody reads the rest of a finding, and clearing all of it costs 5 ns a pass.
    w.g = g
    w.device = device
    w.kind = device.kind
    w.at_once = device.forward == NULL
    w.tables = &g.scratch if w.at_once else &g.tables
    w.journal = NULL
    w.collected = NULL
    w.summed = NULL
    w.number = NO_BATCH
    w.n_live = w.n_live_in_batch = 0
    w.dy = NULL
    w.seed = random_seed()
    w.whole = w.pending = False
    w.end = 0
    w.after = NULL
    w.hooked = NULL
    w.failure.needed = 0
    w.failure.partial = False
    w.failure.finding.kind = NOTHING
    w.failure.raised = NULL
    begin_interrupts(&w.failure.interrupts)


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
    if failure.partial and hasattr(error, "add_note"):
        error.add_note(PARTIAL)
    if isinstance(error, Exception):
        raise error
    begin_interrupts(&of_handler)
    Py_INCREF(error)
    of_handler.raised = <void*>error
    return raise_interrupt(&of_handler)


# ---- memory and places -----------------------------------------------------------

cdef inline void* take_table(Walk* w, size_t n) noexcept nogil:
    """Room for what ops read beside numbers.  Copies that wait are a table too, so they end here."""
    cdef void* p = NULL
    if settle(w):
        return NULL
    p = arena_alloc(w.tables, n)
    if p == NULL:
        w.failure.needed = n
    return p


cdef inline float* place_of(Walk* w, const void* p) noexcept nogil:
    """What ops are given for what lies at p, in an arena of the graph."""
    return <float*>p if w.at_once else w.device.place(w, p)


# ---- arguments -------------------------------------------------------------------

cdef inline bint is_shared(const uint8_t* state, const Op* op, uint32_t i, uint32_t arg) noexcept nogil:
    """Whether the nodes of a batch share argument i."""
    return state[arg] & SHARED or rule_of(op, i) == SHARE


cdef inline bint may_list(const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether argument i of a batch may be a list of places."""
    return rule_of(op, i) == LIST and batch.form != COLUMNS         # a matrix has no list


cdef inline bint side_by_side(const Graph* g, const Batch* batch, uint32_t i, bint listable) noexcept nogil:
    """Whether argument i of the nodes of a batch lies as the op wants it already.

    An argument that may be listed may have one batch element for several of its node: it is not read in place then.
    """
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef const float* at = a.val
    cdef uint32_t j
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        if a.val != at or (listable and a.dim.bd < nodes[ids[j]].dim.bd):
            return False
        at += total_of(&a.dim)
    return True


cdef inline uint32_t uses_in(const Batch* batch, const Node* a, const Node* y) noexcept nogil:
    """How many times an argument is laid down for a node: once, or for each batch element that it serves."""
    return y.dim.bd if batch.form == STACKED and a.dim.bd == 1 else 1


cdef int arrange(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Lay the arguments and items of a call side by side.

    Leaves batch.x[i] empty for an argument that all nodes share.
    """
    cdef Graph* g = w.g
    cdef Node* node = &nodes_of(g)[order_of(g)[batch.first]]
    cdef uint32_t* args = args_of(g, node)
    cdef uint32_t i
    if not w.at_once and w.device.send_arguments(w, batch):
        return -1
    if lay_items(w, batch):
        return -1
    if batch.count == 1 or node.nargs == 0:
        return 0
    batch.x = <Laid*>take(w, node.nargs * sizeof(Laid))
    if batch.x == NULL:
        return -1
    for i in range(node.nargs):
        batch.x[i].v = NULL
        batch.x[i].list = NULL
        if not is_shared(state_of(g), op, i, args[i]) and lay(w, batch, op, i):
            return -1
    for i in range(node.nargs):                 # all copies after all lists: they run together
        if batch.x[i].v != NULL and batch.x[i].v != nodes_of(g)[args[i]].val and gather(w, batch, i):
            return -1
    return settle(w)


cdef int lay_items(Walk* w, Batch* batch) noexcept nogil:
    """Lay the items of the nodes of a call side by side; those of one node are, unless a device has to have them."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node = &nodes_of(g)[ids[0]]
    cdef uint32_t j
    cdef size_t n = 0
    if node.item_count == 0 or (batch.count == 1 and w.at_once):
        return 0
    batch.items = <uint32_t*>take_table(w, <size_t>batch.bd * node.item_count * sizeof(uint32_t))
    if batch.items == NULL:
        return -1
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        memcpy(batch.items + n, items_of(g, node), <size_t>node.dim.bd * node.item_count * sizeof(uint32_t))
        n += <size_t>node.dim.bd * node.item_count
    return 0


cdef int lay(Walk* w, Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Decide where argument i of several nodes lies: where it is, listed, or in room of its own, still empty."""
    cdef Graph* g = w.g
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
    if listable and op.needs[w.kind].lists:
        x.v = NULL
        x.list = <float**>take_table(w, batch.bd * sizeof(float*))
        if x.list == NULL:
            return -1
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            at = place_of(w, a.val)
            stride = size_of(&a.dim) if a.dim.bd > 1 else 0
            for _ in range(nodes[ids[j]].dim.bd):
                x.list[n] = at
                at += stride
                n += 1
        return 0
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n += total_of(&a.dim) * uses_in(batch, a, &nodes[ids[j]])
    x.v = <float*>take(w, n * sizeof(float))
    return 0 if x.v != NULL else -1


cdef int gather(Walk* w, const Batch* batch, uint32_t i) noexcept nogil:
    """Copy argument i of the nodes of a batch to its room."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* a
    cdef float* to = batch.x[i].v
    cdef uint32_t j
    cdef size_t n
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n = total_of(&a.dim)
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if w.at_once:
                memcpy(to, a.val, n * sizeof(float))
            elif w.device.copy(w, to, a.val, n):
                return -1
            to += n
    return 0


# ---- calls -----------------------------------------------------------------------

cdef inline void set_tensor(Tensor* t, const Dim* dim, uint32_t bd, float* v) noexcept nogil:
    t.dim = dim[0]
    t.dim.bd = bd
    t.v = v
    t.bstride = size_of(dim) if bd > 1 else 0
    t.list = NULL
    t.pack = NULL


cdef inline void set_shared(Tensor* t, const Node* a) noexcept nogil:
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


cdef inline int begin_call(Walk* w, const Batch* batch, Node* node, Tensor* few, Call* c) noexcept nogil:
    """All of a call but its arguments and result."""
    c.x = few
    if node.nargs > FEW:
        c.x = <Tensor*>take(w, node.nargs * sizeof(Tensor))
        if c.x == NULL:
            return -1
    c.n = node.nargs
    c.accumulate = 0
    c.before = 0
    c.attrs = node.attrs
    c.items = NULL
    c.item_count = node.item_count
    c.object = node.object
    c.seed = w.seed
    c.stream = w.g.stream
    c.saved = batch.saved
    c.work = NULL
    return 0


cdef inline int set_call_of_one(Walk* w, const Batch* batch, Node* node, Tensor* few, Call* c) noexcept nogil:
    """The call of a batch of one node, which reads all in place."""
    cdef Graph* g = w.g
    cdef Node* nodes = nodes_of(g)
    cdef const uint32_t* args = args_of(g, node)
    cdef uint32_t i
    if begin_call(w, batch, node, few, c):
        return -1
    for i in range(node.nargs):
        set_shared(<Tensor*>&c.x[i], &nodes[args[i]])
    set_tensor(&c.y, &node.dim, node.dim.bd, batch.y)
    c.items = items_of(g, node)
    return 0


cdef int set_call(Walk* w, const Batch* batch, Tensor* few, Call* c) noexcept nogil:
    """The call of a batch: its arguments and result as the op sees them."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Node* a
    cdef uint32_t* args = args_of(g, node)
    cdef Tensor* x
    cdef uint32_t i
    cdef size_t total
    if batch.count == 1:
        if set_call_of_one(w, batch, node, few, c):
            return -1
        return 0 if w.at_once else w.device.translate(w, batch, c)
    if begin_call(w, batch, node, few, c):
        return -1
    x = <Tensor*>c.x
    if batch.form == FLATTENED:
        total = 0
        for i in range(batch.count):
            total += total_of(&nodes[ids[i]].dim)
        for i in range(node.nargs):
            set_flat(&x[i], total, batch.x[i].v)
        set_flat(&c.y, total, batch.y)
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
    return 0 if w.at_once else w.device.translate(w, batch, c)


cdef inline void set_one(const Graph* g, const Batch* batch, uint32_t j, Batch* one) noexcept nogil:
    """A batch of node j of one that calls each; its y is left to the caller."""
    one.first = batch.first + j
    one.count = 1
    one.bd = nodes_of(g)[order_of(g)[one.first]].dim.bd
    one.form = STACKED
    one.x = NULL
    one.items = NULL


# ---- forward ---------------------------------------------------------------------

cdef inline bint runs_in_pieces(const Walk* w, const Batch* batch) noexcept nogil:
    """Whether some argument of an elementwise batch would have to be copied, and it had better run in pieces."""
    cdef const Node* node = &nodes_of(w.g)[order_of(w.g)[batch.first]]
    cdef uint32_t i
    if not w.at_once or not may_run_in_pieces(w.g, batch):
        return False
    for i in range(node.nargs):
        if not side_by_side(w.g, batch, i, False):
            return True
    return False


cdef inline bint views_stand(const Walk* w, const Batch* batch) noexcept nogil:
    """Whether planned views can be such.

    A view lives no longer than its argument, and checks look at values that are side by side.
    """
    return w.at_once and not w.g.forward_only and not (checking or w.g.check_validity) and lie_apart(w.g, batch)


cdef int in_pieces(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Compute n batches, whose results have their place, in pieces."""
    cdef Graph* g = w.g
    cdef uint32_t j, k
    for k in range(n):
        batch[k].x = NULL
        batch[k].items = NULL
        batch[k].saved = NULL
        batch[k].saved_of = NULL
        hand_out_values(g, &batch[k], g.n_batches + k)
    w.failure.needed = forward_in_pieces(g, batch, n)
    if w.failure.needed == 0:
        return 0
    for k in range(n):
        for j in range(batch[k].count):
            nodes_of(g)[order_of(g)[batch[k].first + j]].val = NULL
            nodes_of(g)[order_of(g)[batch[k].first + j]].batch = NO_BATCH
    return -1


cdef int run_forward(Walk* w, Batch* batch) noexcept nogil:
    """Find room for the values of a planned batch, and compute them."""
    cdef Graph* g = w.g
    cdef const Op* op = &ops[nodes_of(g)[order_of(g)[batch.first]].op]
    cdef size_t top = g.scratch.top
    if not make_room(g, batch):
        w.failure.needed = batch.bytes
        return -1
    if batch.form == VIEWS:
        if views_stand(w, batch):
            batch.x = NULL
            batch.saved_of = NULL
            return 0
        batch.form = STACKED
    if runs_in_pieces(w, batch):
        return in_pieces(w, batch, 1)
    if (call_each(w, batch, op) if batch.form == EACH else call(w, batch, op)):
        return -1
    if g.forward_only:                          # no backward: nothing is saved
        arena_rewind(&g.scratch, top)
    return 0


cdef int call(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Run a batch, whose results have their place, as one call."""
    cdef Tensor few[FEW]
    cdef Call c
    batch.saved = NULL
    batch.saved_of = NULL
    batch.items = NULL
    batch.x = NULL
    if (batch.count > 1 or not w.at_once) and arrange(w, batch, op):
        return -1
    return -1 if set_call(w, batch, few, &c) else run_call(w, batch, op, &c)


cdef inline int run_call(Walk* w, Batch* batch, const Op* op, Call* c) noexcept nogil:
    cdef const Needs* needs = &op.needs[w.kind]
    cdef size_t top
    if needs.saved != NULL:
        batch.saved = <float*>take(w, needs.saved(c) * sizeof(float))
        c.saved = place_of(w, batch.saved)
    top = w.g.scratch.top
    if needs.work != NULL:
        c.work = place_of(w, take(w, needs.work(c, -1) * sizeof(float)))
    if w.failure.needed:
        return -1
    if w.at_once:
        op.forward(c)
        if op_raised(op, &w.failure):
            return -1
    elif w.device.forward(w, batch, op, c):
        return -1
    arena_rewind(&w.g.scratch, top)
    return 0


cdef int call_each(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Run a batch, whose results have their place, as a call for each node."""
    cdef bint saves = op.needs[w.kind].saved != NULL
    cdef Batch one
    cdef uint32_t j
    cdef size_t n
    batch.x = NULL
    batch.items = NULL
    batch.saved = NULL
    batch.saved_of = NULL
    if saves:
        batch.saved_of = <float**>take(w, batch.count * sizeof(float*))
        if batch.saved_of == NULL:
            return -1
    one.y = batch.y
    for j in range(batch.count):
        set_one(w.g, batch, j, &one)
        n = total_of(&nodes_of(w.g)[order_of(w.g)[one.first]].dim)
        if call(w, &one, op) or stops(w, n * sizeof(float)):
            return -1
        if saves:
            batch.saved_of[j] = one.saved
        one.y += n
    return 0


cdef inline int checked(Walk* w, const Batch* batch, size_t values_top, size_t scratch_top, bint failed) noexcept nogil:
    """-1 if a batch has failed, or has values that it must not have: then its memory is free again."""
    cdef Graph* g = w.g
    if not failed and not ((checking or g.check_validity)
                           and bad_values(g, batch, g.check_validity, &w.failure.finding)):
        return 0
    if batch.y != NULL:
        untake_values(g, batch.y, batch.bytes, values_top)
    arena_rewind(&g.scratch, scratch_top)
    return -1


cdef int run_at_once(Walk* w, Batch* batch) noexcept nogil:
    """Run the next planned batch, and count it as run."""
    cdef Graph* g = w.g
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef uint64_t begun = now() if profiling else 0
    if checked(w, batch, values_top, scratch_top, run_forward(w, batch) != 0):
        return -1
    hand_out_values(g, batch, g.n_batches)
    if batch.form == VIEWS:
        place_views(g, batch)
    count_as_run(g)
    if g.forward_only:
        release_arguments(g, batch)
    if profiling:
        note_call(g, batch.first, batch.count, False, batch.count, begun)
    return 0


cdef int run_together(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Run the next n planned batches together in pieces, or as many of them as there is room for."""
    cdef Graph* g = w.g
    cdef size_t top = g.values.top
    cdef uint32_t k, made = 0
    while made < n and make_room(g, &batch[made]):
        made += 1
    if made == 0:
        w.failure.needed = batch.bytes
        return -1
    if in_pieces(w, batch, made):
        for k in range(made):
            untake_values(g, batch[k].y, batch[k].bytes, top)
        return -1
    for _ in range(made):
        count_as_run(g)
    if g.forward_only:
        for k in range(made):
            release_arguments(g, &batch[k])
    return 0


cdef int run_one_at_once(Walk* w, Batch* batch) noexcept nogil:
    """The same for a batch of one node, without what only several need."""
    cdef Graph* g = w.g
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef uint64_t begun = now() if profiling else 0
    cdef uint32_t number = order_of(g)[batch.first]
    cdef Node* node = &nodes_of(g)[number]
    cdef uint8_t* state = &state_of(g)[number]
    cdef Tensor few[FEW]
    cdef Call c
    if batch.form == EACH:                      # that is one call, and backward must know it
        batch.form = STACKED
    batch.bd = node.dim.bd
    batch.bytes = total_of(&node.dim) * sizeof(float)
    batch.live = 1
    batch.x = NULL
    batch.items = NULL
    batch.saved = NULL
    batch.saved_of = NULL
    batch.y = <float*>take_values(g, batch.bytes)
    if batch.y == NULL:
        w.failure.needed = batch.bytes
        return -1
    if checked(w, batch, values_top, scratch_top, set_call_of_one(w, batch, node, few, &c) != 0
               or run_call(w, batch, &ops[node.op], &c) != 0):
        return -1
    node.val = batch.y
    node.batch = g.n_batches
    state[0] = (state[0] | COMPUTED) & <uint8_t>~WANTED
    g.n_order += 1
    g.n_batches += 1
    if g.forward_only:                          # no backward: nothing is saved
        arena_rewind(&g.scratch, scratch_top)
        release_arguments(g, batch)
    if profiling:
        note_call(g, batch.first, 1, False, 1, begun)
    return 0


cdef int run_planned_at_once(Walk* w, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Batch* batch
    cdef int failed
    cdef uint32_t together, end = g.n_batches + n
    # What looks at batches sees them one by one.
    cdef bint one_by_one = profiling or checking or g.check_validity
    while g.n_batches < end:
        batch = &batches_of(g)[g.n_batches]
        together = 1 if one_by_one else together_with(g, batch, end - g.n_batches)
        if together > 1:
            failed = run_together(w, batch, together)
        elif batch.count == 1 and batch.form != VIEWS:
            failed = run_one_at_once(w, batch)
        else:
            failed = run_at_once(w, batch)
        if failed:
            return -1
        if interrupted(&w.failure.interrupts, batch.bytes * max(together, <uint32_t>1)):
            return -1
        if w.end and g.n_batches < end and now() >= w.end:
            return 1
    return 0


# ---- backward: where it begins -----------------------------------------------------

cdef int open_backward(Walk* w, uint32_t target, bint full) noexcept nogil:
    """Note which nodes up to target have a gradient to compute, and have room for these."""
    cdef Graph* g = w.g
    cdef uint8_t* state = state_of(g)
    cdef uint32_t i, k
    cdef uint8_t needs
    cdef Node* node = nodes_of(g)
    cdef const uint32_t* args
    w.failure.needed = part_views(g, target)
    if w.failure.needed:
        return -1
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
    if open_gradients(g):
        return 0
    w.failure.needed = g.values.top
    return -1


cdef int begin_at(Walk* w, uint32_t target) noexcept nogil:
    """The gradient of the target by itself is one."""
    cdef Node* x = &nodes_of(w.g)[target]
    cdef float* one
    if x.val != NULL:
        state_of(w.g)[target] |= LIVE
        return w.device.fill(w, place_of(w, gradient_at(w.g, x.val)), x.dim.bd, 1)
    one = <float*>take_table(w, sizeof(float))
    if one == NULL:
        return -1
    one[0] = 1
    if contribute(w, target, place_of(w, one), 1, 1):
        return -1
    return settle(w)


# ---- backward: what is added to a gradient --------------------------------------------

cdef inline void begin_parameter(Walk* w, Param* p) noexcept nogil:
    """A contribution to the gradient of a parameter begins."""
    pthread_mutex_lock(&p.lock)
    if w.journal != NULL:
        note_before(w.journal, p)


cdef inline void end_parameter(Param* p) noexcept nogil:
    note_gradient(p)
    pthread_mutex_unlock(&p.lock)


cdef inline int add_numbers(Walk* w, uint32_t node, float* to, const float* source, size_t n, float scale,
                            bint accumulate) noexcept nogil:
    if not w.at_once:
        return w.device.add(w, node, to, source, n, scale, accumulate)
    if scale != 1:
        if accumulate:
            K.axpy(n, scale, source, to)
        else:
            K.scale(n, scale, source, to)
    elif accumulate:
        K.add(n, source, to)
    else:
        memcpy(to, source, n * sizeof(float))
    return 0


cdef inline int add_contribution(Walk* w, uint32_t node, const Node* a, uint8_t* state, const float* source, size_t n,
                                 float scale) noexcept nogil:
    """Add n numbers, times scale, to the gradient of a node, if it needs one: the first contribution assigns."""
    cdef bint live = (state[0] & LIVE) != 0
    if a.val == NULL:
        return contribute_to_parameter(w, node, source, n, scale) if state[0] & TRAINABLE else 0
    if not state[0] & NEEDS_GRAD:
        return 0
    state[0] |= LIVE
    return add_numbers(w, node, gradient_at(w.g, a.val), source, n, scale, live)


cdef int contribute_to_parameter(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil:
    cdef Param* p = <Param*>nodes_of(w.g)[node].object
    cdef int failed
    begin_parameter(w, p)
    failed = add_numbers(w, node, p.grad, source, n, scale, True)
    end_parameter(p)
    return failed


cdef int contribute(Walk* w, uint32_t node, const float* source, size_t n, float scale) noexcept nogil:
    return add_contribution(w, node, &nodes_of(w.g)[node], &state_of(w.g)[node], source, n, scale)


cdef int hand_out(Walk* w, const Batch* batch, uint32_t i, const float* source) noexcept nogil:
    """Let gradients that lie side by side be contributions to those of argument i of each node."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg
    cdef size_t n
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        n = total_of(&a.dim)
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if add_contribution(w, arg, a, &state[arg], source, n, 1):
                return -1
            source += n
    return 0


cdef int spread(Walk* w, const Batch* batch, const Call* c, float scale) noexcept nogil:
    """The gradients of all arguments that lie as the results do are theirs, times a number."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node
    cdef const float* source = c.dy.v
    cdef uint32_t i, j
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        for i in range(c.n):
            if c.x[i].dim.bd == c.y.dim.bd and contribute(w, args_of(g, node)[i], source, total_of(&node.dim), scale):
                return -1
        source += total_of(&node.dim)
    return settle(w)


cdef Collected* collected_of(const Walk* w, const Param* p) noexcept nogil:
    """What was collected for a parameter; NULL: nothing so far."""
    cdef Collected* x = w.collected
    while x != NULL and x.p != p:
        x = x.next
    return x


cdef int multiply_one(Walk* w, Collected* x) noexcept nogil:
    """Add what was collected for a parameter to its gradient."""
    cdef int failed
    if x.product.n == 0:
        return 0
    begin_parameter(w, x.p)
    failed = w.device.multiply(w, x)
    end_parameter(x.p)
    x.product.n = 0
    return failed


cdef int multiply_collected(Walk* w) noexcept nogil:
    """Add all that was collected to gradients."""
    cdef size_t top = w.g.scratch.top
    cdef Collected* x = w.collected
    while x != NULL:
        if multiply_one(w, x) or stops(w, x.p.size * sizeof(float)):
            return -1
        arena_rewind(&w.g.scratch, top)
        x = x.next
    return 0


# ---- backward: batches ---------------------------------------------------------------

cdef inline bint is_looked_at(const Walk* w) noexcept nogil:
    return w.at_once and (profiling or checking)


cdef int run_backward(Walk* w, uint32_t first, uint32_t last) noexcept nogil:
    """Gradients of the arguments of batches, the last one first."""
    cdef const Graph* g = w.g
    cdef Batch* batch
    cdef size_t top = g.scratch.top
    cdef uint32_t number = last + 1, together
    cdef bint looked_at = is_looked_at(w), alone = looked_at or not w.at_once
    while number > first:
        number -= 1
        batch = &batches_of(g)[number]
        together = 0 if alone else together_before(g, batch, &batches_of(g)[first])
        if step_back(w, batch, number, together, top, looked_at):
            return -1
        if together > 1:
            number -= together - 1
    w.number = NO_BATCH
    return 0


cdef int go_back(Walk* w, Batch* batch, uint32_t number) noexcept nogil:
    """Gradients of the arguments of one batch."""
    return step_back(w, batch, number, 1, w.g.scratch.top, is_looked_at(w))


cdef inline int step_back(Walk* w, Batch* batch, uint32_t number, uint32_t together, size_t top,
                          bint looked_at) noexcept nogil:
    """Gradients of the arguments of a batch, and what is to be done after it.

    Args:
        together: how many batches, of which this is the last, ran in pieces and go back as one; 0 or 1: this alone.
        top: the end of working memory.
    """
    cdef uint64_t begun = 0
    cdef bint failed
    w.number = number
    w.n_live_in_batch = 0
    if looked_at:
        begun = now()
    failed = ((pieces_backward(w, batch, together) if together > 1 else batch_backward(w, batch))
              or (looked_at and w.n_live_in_batch and look_at(w, batch, begun)))
    arena_rewind(&w.g.scratch, top)
    if failed:
        return -1
    while True:
        if stops(w, batch.bytes) or (w.after != NULL and w.after(w, batch)):
            return -1
        if together <= 1:
            return 0
        together -= 1
        batch -= 1
        w.number -= 1


cdef int look_at(Walk* w, const Batch* batch, uint64_t begun) noexcept nogil:
    """Profile and check a batch that has run backward."""
    if profiling:
        note_call(w.g, batch.first, batch.count, True, w.n_live_in_batch, begun)
    return -1 if checking and bad_gradients(w.g, batch, &w.failure.finding) else 0


cdef int pieces_backward(Walk* w, const Batch* last, uint32_t n) noexcept nogil:
    """Gradients of the arguments of n batches that ran in pieces."""
    w.failure.needed = backward_in_pieces(w.g, last - (n - 1), n, &w.n_live_in_batch)
    return -1 if w.failure.needed else 0


cdef inline int batch_backward(Walk* w, Batch* batch) noexcept nogil:
    """Gradients of the arguments of a batch."""
    cdef const Op* op = &ops[nodes_of(w.g)[order_of(w.g)[batch.first]].op]
    if op.backward == NULL:
        return 0
    if batch.form == VIEWS:
        w.n_live_in_batch = views_backward(w.g, batch)
        return 0
    if w.at_once and ran_in_pieces(batch):
        return pieces_backward(w, batch, 1)
    if batch.form == EACH:
        return each_backward(w, batch, op)
    if batch.count == 1 and w.at_once and w.dy == NULL:
        return backward_of_one(w, batch, op)
    return call_backward(w, batch, op)


cdef int each_backward(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Gradients of the arguments of a batch that calls each."""
    cdef Graph* g = w.g
    cdef Batch one
    cdef uint32_t j
    cdef size_t n, top = g.scratch.top
    one.y = batch.y
    for j in range(batch.count):
        set_one(g, batch, j, &one)
        one.saved = batch.saved_of[j] if batch.saved_of != NULL else NULL
        n = total_of(&nodes_of(g)[order_of(g)[one.first]].dim)
        if (lay_items(w, &one) or (backward_of_one(w, &one, op) if w.at_once else call_backward(w, &one, op))
                or stops(w, n * sizeof(float))):
            return -1
        arena_rewind(&g.scratch, top)
        one.y += n
    return 0


cdef inline int zero_gradient(Walk* w, const Node* x) noexcept nogil:
    return w.device.zero(w, gradient_at(w.g, x.val), total_of(&x.dim))


cdef int prepare(Walk* w, const Op* op, Call* c) noexcept nogil:
    """Let an op that wants to compute all gradients together."""
    c.work = <float*>take(w, op.prepared(c) * sizeof(float))
    if c.work == NULL:
        return -1
    op.prepare(c)
    return -1 if op_raised(op, &w.failure) else 0


cdef int backward_of_one(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Gradients of the arguments of a batch of one node, at once: `call_backward` without what only several need."""
    cdef Graph* g = w.g
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t number = order_of(g)[batch.first]
    cdef Node* node = &nodes[number]
    cdef const uint32_t* args = args_of(g, node)
    cdef const Needs* needs = &op.needs[w.kind]
    cdef const Node* a
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i
    cdef uint8_t* of_arg
    cdef size_t top
    if (state[number] & (LIVE | NEEDS_GRAD)) != (LIVE | NEEDS_GRAD):
        w.n_live = 0
        return 0
    w.n_live = 1
    w.n_live_in_batch += 1
    if set_call_of_one(w, batch, node, few, &c):
        return -1
    set_tensor(&c.dy, &node.dim, node.dim.bd, gradient_at(g, batch.y))
    c.first = 1
    if op.prepare != NULL and prepare(w, op, &c):
        return -1
    if node.nargs == 0:
        return leaf_backward(w, batch, op, &c, <Param*>node.object) if state[number] & TRAINABLE else 0
    if needs.spread != NULL and spread(w, batch, &c, needs.spread(&c)):
        return -1
    top = g.scratch.top
    for i in range(node.nargs):
        a = &nodes[args[i]]
        of_arg = &state[args[i]]
        if needs.spread != NULL and a.dim.bd == node.dim.bd:
            continue                            # done by `spread`
        if of_arg[0] & NEEDS_GRAD and (a.val != NULL or of_arg[0] & TRAINABLE):
            if needs.work != NULL:
                c.work = <float*>take(w, needs.work(&c, <int>i) * sizeof(float))
                if c.work == NULL:
                    return -1
            if a.val == NULL:
                c.dx = c.x[i]
                if parameter_backward(w, batch, op, needs, &c, i, <Param*>a.object):
                    return -1
            else:
                set_tensor(&c.dx, &a.dim, a.dim.bd, gradient_at(g, a.val))
                if backward_into(w, batch, op, needs, &c, i, (of_arg[0] & LIVE) != 0):
                    return -1
                of_arg[0] |= LIVE
            arena_rewind(&g.scratch, top)
        if op.part != NULL:
            c.before += op.part(&c, i)
    return 0


cdef int call_backward(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Gradients of the arguments of one call."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef uint8_t* state = state_of(g)
    cdef const Needs* needs = &op.needs[w.kind]
    cdef Tensor few[FEW]
    cdef Call c
    cdef uint32_t i, j, n_live = 0
    cdef size_t top
    for j in range(batch.count):
        n_live += (state[ids[j]] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
    w.n_live = n_live
    w.n_live_in_batch += n_live
    if n_live == 0:
        return 0
    if n_live < batch.count:                    # the loss does not depend on the others
        for j in range(batch.count):
            if not state[ids[j]] & LIVE and zero_gradient(w, &nodes[ids[j]]):
                return -1
        if settle(w):
            return -1
    if set_call(w, batch, few, &c):
        return -1
    c.dy = c.y
    c.dy.v = w.dy if w.dy != NULL else place_of(w, gradient_at(g, batch.y))
    c.first = 1
    if not w.at_once and w.device.begin_backward(w, batch, op, &c):
        return -1
    if w.at_once and op.prepare != NULL and prepare(w, op, &c):
        return -1
    top = g.scratch.top
    if node.nargs == 0 and state[ids[0]] & TRAINABLE and leaf_backward(w, batch, op, &c, <Param*>node.object):
        return -1
    if needs.spread != NULL and spread(w, batch, &c, needs.spread(&c)):
        return -1
    for i in range(node.nargs):
        if needs.spread != NULL and c.x[i].dim.bd == c.y.dim.bd:
            continue                            # done by `spread`
        if argument_backward(w, batch, op, needs, &c, i):
            return -1
        if op.part != NULL:
            c.before += op.part(&c, i)
        if not w.pending:
            arena_rewind(&g.scratch, top)
    if settle(w):
        return -1
    arena_rewind(&g.scratch, top)
    return 0


cdef int leaf_backward(Walk* w, const Batch* batch, const Op* op, Call* c, Param* p) noexcept nogil:
    """The gradient of rows of a table; the op notes which rows they are."""
    cdef int failed
    begin_parameter(w, p)
    failed = one_backward(w, batch, op, c, 0)
    p.has_gradient = 1
    pthread_mutex_unlock(&p.lock)
    return failed


cdef inline int one_backward(Walk* w, const Batch* batch, const Op* op, Call* c, uint32_t i) noexcept nogil:
    """The op's backward for one argument; `c.accumulate` says whether it adds."""
    cdef int failed = 0
    if w.at_once:
        op.backward(c, i)
    else:
        failed = w.device.backward(w, batch, op, c, i)
    c.first = 0
    return failed


cdef inline int backward_into(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                              bint accumulate) noexcept nogil:
    """The op's backward for one argument, which adds to what is there, or else assigns."""
    if not needs.assigns and not accumulate:
        if w.device.fill(w, c.dx.v, total_of(&c.dx.dim), 0):
            return -1
        accumulate = True
    c.accumulate = accumulate
    return one_backward(w, batch, op, c, i)


cdef int argument_backward(Walk* w, Batch* batch, const Op* op, const Needs* needs, Call* c,
                           uint32_t i) noexcept nogil:
    """Gradient of argument i of all nodes of a batch."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    cdef uint32_t n_need = 0, n_live = 0        # nodes with a gradient of theirs to compute, or one that has begun
    cdef bint one = batch.count == 1 or (batch.x[i].v == NULL and batch.x[i].list == NULL)
    cdef Node* a = &nodes[arg]
    cdef float* at
    if one:
        if not state[arg] & NEEDS_GRAD or not (a.val != NULL or state[arg] & TRAINABLE):
            return 0
    else:
        for j in range(batch.count):
            arg = args_of(g, &nodes[ids[j]])[i]
            n_need += (state[arg] & NEEDS_GRAD) != 0
            n_live += (state[arg] & LIVE) != 0
        if n_need == 0:
            return 0
    if needs.work != NULL:
        at = <float*>take(w, needs.work(c, <int>i) * sizeof(float))
        if at == NULL:
            return -1
        c.work = place_of(w, at)
    c.dx = c.x[i]
    if one and a.val == NULL:
        return parameter_backward(w, batch, op, needs, c, i, <Param*>a.object)
    if one:
        c.dx.v = place_of(w, gradient_at(g, a.val))
        if settle(w) or backward_into(w, batch, op, needs, c, i, (state[arg] & LIVE) != 0):
            return -1
        state[arg] |= LIVE
        return 0
    if batch.x[i].list != NULL:
        return list_backward(w, batch, op, needs, c, i)
    if batch.x[i].v == a.val and n_need == batch.count:
        # Side by side, so each argument occurs once.
        if settle(w):
            return -1
        if n_live:
            for j in range(batch.count):
                arg = args_of(g, &nodes[ids[j]])[i]
                if not state[arg] & LIVE and zero_gradient(w, &nodes[arg]):
                    return -1
            if settle(w):
                return -1
        c.dx.v = place_of(w, gradient_at(g, a.val))
        if backward_into(w, batch, op, needs, c, i, n_live != 0):
            return -1
        for j in range(batch.count):
            state[args_of(g, &nodes[ids[j]])[i]] |= LIVE
        return 0
    if needs.same != NULL:
        at = needs.same(c, i)
        if at != NULL:
            return hand_out(w, batch, i, at)
    at = <float*>take(w, total_of(&c.dx.dim) * sizeof(float))
    if at == NULL:
        return -1
    c.dx.v = place_of(w, at)
    if backward_into(w, batch, op, needs, c, i, False):
        return -1
    return hand_out(w, batch, i, c.dx.v)


cdef int parameter_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c, uint32_t i,
                            Param* p) noexcept nogil:
    """Gradient of an argument that is a parameter: it is in storage."""
    cdef Factors factors
    cdef Collected* sums
    cdef int done
    if needs.factors != NULL:
        factors.n = 0
        needs.factors(c, i, &factors)
        if factors.n:
            c.first = 0
            done = w.device.collect(w, p, &factors)
            if done:
                return 0 if done == 1 else -1
    sums = w.device.sums(w, p) if w.device.sums != NULL else NULL
    if sums != NULL:
        c.dx.v = sums.sums
        done = backward_into(w, batch, op, needs, c, i, sums.product.n != 0)
        sums.product.n = 1
        return done
    if settle(w):
        return -1
    begin_parameter(w, p)
    c.dx.v = p.grad if w.at_once else p.device_grad
    c.accumulate = True
    done = one_backward(w, batch, op, c, i)
    end_parameter(p)
    return done


cdef int list_backward(Walk* w, const Batch* batch, const Op* op, const Needs* needs, Call* c,
                       uint32_t i) noexcept nogil:
    """Gradient of an argument that is read where it lies: goes to where its gradients lie."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef float** dx = <float**>take_table(w, batch.bd * sizeof(float*))
    # What has no gradient yet; NULL for the others.
    cdef Node** empty = <Node**>take(w, batch.count * sizeof(Node*))
    cdef uint32_t j, arg
    cdef size_t n = 0, stride
    cdef bint adds = not needs.assigns
    cdef float* at
    cdef Node* a
    if dx == NULL or empty == NULL:
        return -1
    for j in range(batch.count):
        arg = args_of(g, &nodes[ids[j]])[i]
        a = &nodes[arg]
        at = place_of(w, gradient_at(g, a.val))
        stride = size_of(&a.dim) if a.dim.bd > 1 else 0
        for _ in range(nodes[ids[j]].dim.bd):
            dx[n] = at
            at += stride
            n += 1
        empty[j] = NULL
        # It serves several batch elements, or has a gradient, perhaps as the argument of a node before in this batch.
        if a.dim.bd != nodes[ids[j]].dim.bd or state[arg] & LIVE:
            adds = True
        if not state[arg] & LIVE:
            # What needs no gradient has a place for it all the same.
            empty[j] = a
            state[arg] |= LIVE if state[arg] & NEEDS_GRAD else 0
    if adds:
        for j in range(batch.count):
            if empty[j] != NULL and zero_gradient(w, empty[j]):
                return -1
        if settle(w):
            return -1
    c.dx.list = <float**>place_of(w, dx)
    c.accumulate = adds
    return one_backward(w, batch, op, c, i)
