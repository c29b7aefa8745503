# Used from Cython only.
"""The walk over batches, forward and backward: the rules, for all devices; see walk.pxd.

The values of the nodes of one batch are side by side, in the order of the batch, and gradients
have the same layout as values.  `arguments` brings arguments into the form that ops need, `calls`
makes the structs that ops get, `contributions` adds gradients, and `single` is the path of
batches of one node.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.core.tensor cimport Tensor
from dynet_cy.execute.anomaly cimport NOTHING, bad_gradients, checking, raise_anomaly
from dynet_cy.execute.arguments cimport arrange, lay_items, side_by_side
from dynet_cy.execute.calls cimport FEW, is_empty, prepare, run_call, set_call, set_one
from dynet_cy.execute.contributions cimport (
    backward_into, contribute, contribute_nothing, hand_out, leaf_backward, list_backward, parameter_backward, spread,
    zero_gradient,
)
from dynet_cy.execute.pieces cimport (
    backward_in_pieces, forward_in_pieces, may_run_in_pieces, must_run_in_pieces, ran_in_pieces, together_before,
    together_with,
)
from dynet_cy.execute.profile cimport note_call, now, profiling
from dynet_cy.execute.single cimport backward_of_one, checked, run_one_at_once
from dynet_cy.execute.views cimport lie_apart, part_views, place_views, views_backward
from dynet_cy.graph.structs cimport (
    EACH, LIVE, NEEDS_GRAD, NO_BATCH, STACKED, TRAINABLE, args_of, gradient_at, open_gradients, release_arguments,
    untake_values,
)
from dynet_cy.kernels.draws cimport random_seed
from dynet_cy.memory.arena cimport arena_rewind, out_of_memory
from dynet_cy.ops.registry cimport Needs, op_at
from dynet_cy.schedule.views cimport VIEWS

PARTIAL = ("Gradients of parameters hold a part of this backward, beside what they held before: set them to zero "
           "before the next one")

cdef const Op* ops = op_at(0)                   # all ops; the table never moves


cdef void begin_walk(Walk* w, Graph* g, const Device* device) noexcept nogil:
    # Field by field: the rest of a finding is not read, and clearing all of it costs 5 ns per pass.
    w.g = g
    w.device = device
    w.kind = device.kind
    w.at_once = device.forward == NULL
    w.tables = &g.scratch if w.at_once else &g.tables
    w.journal = NULL
    w.collected = NULL
    w.background = NULL
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
    """Raise the error that stopped a pass: an op, numbers that are not finite, or a lack of memory for `what`."""
    if failure.raised != NULL:
        raise_of_op(failure)
    if failure.finding.kind:
        raise_anomaly(g, &failure.finding)
    out_of_memory(what)


cdef int raise_of_op(const Failure* failure) except -1:
    """Raise the exception of an op.  One that is not an Exception, such as KeyboardInterrupt, counts as a handler's."""
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


# ---- forward ---------------------------------------------------------------------

cdef inline bint runs_in_pieces(const Walk* w, const Batch* batch) noexcept nogil:
    """Whether an elementwise batch should run in pieces, because an argument would have to be copied."""
    cdef const Node* node = &nodes_of(w.g)[order_of(w.g)[batch.first]]
    cdef uint32_t i
    if not w.at_once or not may_run_in_pieces(w.g, batch):
        return False
    if must_run_in_pieces(w.g, batch):
        return True
    for i in range(node.nargs):
        if not side_by_side(w.g, batch, i, False):
            return True
    return False


cdef inline bint views_stand(const Walk* w, const Batch* batch) noexcept nogil:
    """Whether a batch that was planned as views can be views.

    A view lives no longer than its argument, and checks need values that are side by side.
    """
    return w.at_once and not w.g.forward_only and not (checking or w.g.check_validity) and lie_apart(w.g, batch)


cdef int in_pieces(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Compute n batches, whose results have memory, in pieces."""
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
    """Allocate the values of a planned batch, and compute them."""
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
    """Run a batch, whose results have memory, as one call."""
    cdef Tensor few[FEW]
    cdef Call c
    batch.saved = NULL
    batch.saved_of = NULL
    batch.items = NULL
    batch.x = NULL
    if (batch.count > 1 or not w.at_once) and arrange(w, batch, op):
        return -1
    return -1 if set_call(w, batch, few, &c) else run_call(w, batch, op, &c)


cdef int call_each(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Run a batch, whose results have memory, as a call for each node."""
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
    """Run the next n planned batches together in pieces, or as many of them as there is memory for."""
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


cdef int run_planned_at_once(Walk* w, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Batch* batch
    cdef int failed
    cdef uint32_t together, end = g.n_batches + n
    # Profiles and checks need the batches one by one.
    cdef bint one_by_one = profiling or checking or g.check_validity
    while g.n_batches < end:
        batch = &batches_of(g)[g.n_batches]
        together = 1 if one_by_one else together_with(g, batch, end - g.n_batches)
        if together > 1:
            failed = run_together(w, batch, together)
        elif batch.count == 1 and batch.form != VIEWS:
            failed = run_one_at_once(w, batch, &ops[nodes_of(g)[order_of(g)[batch.first]].op])
        else:
            failed = run_at_once(w, batch)
        if failed:
            return -1
        if interrupted(&w.failure.interrupts, batch.bytes * max(together, <uint32_t>1)):
            return -1
        if w.end and g.n_batches < end and now() >= w.end:
            return 1
    return 0


# ---- backward: its beginning -------------------------------------------------------

cdef int open_backward(Walk* w, uint32_t target, bint full) noexcept nogil:
    """Mark the nodes up to target that need a gradient, and allocate the gradients."""
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
        # A parameter may have been frozen or unfrozen since; `aside` passes have marked their parameters already.
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
    """Set the gradient of the target to one."""
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


# ---- backward: batches ---------------------------------------------------------------

cdef inline bint is_looked_at(const Walk* w) noexcept nogil:
    return w.at_once and (profiling or checking)


cdef int run_backward(Walk* w, uint32_t first, uint32_t last) noexcept nogil:
    """Compute the gradients of the arguments of batches, the last batch first."""
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
    """Compute the gradients of the arguments of one batch."""
    return step_back(w, batch, number, 1, w.g.scratch.top, is_looked_at(w))


cdef inline int step_back(Walk* w, Batch* batch, uint32_t number, uint32_t together, size_t top,
                          bint looked_at) noexcept nogil:
    """Compute the gradients of the arguments of a batch, then call the hooks and check for signals.

    Args:
        together: how many batches, this one last, ran in pieces and run backward together; 0 or 1: only this one.
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
    """Compute the gradients of the arguments of n batches that ran in pieces."""
    w.failure.needed = backward_in_pieces(w.g, last - (n - 1), n, &w.n_live_in_batch)
    return -1 if w.failure.needed else 0


cdef inline int batch_backward(Walk* w, Batch* batch) noexcept nogil:
    """Compute the gradients of the arguments of a batch."""
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
    """Compute the gradients of the arguments of an EACH batch, node by node."""
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


cdef int call_backward(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Compute the gradients of the arguments of one call."""
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
    if is_empty(w, &c.y.dim):
        for i in range(node.nargs):
            if contribute_nothing(w, batch, i):
                return -1
        return 0
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
        if (contribute_nothing(w, batch, i) if is_empty(w, &c.x[i].dim)
                else argument_backward(w, batch, op, needs, &c, i)):
            return -1
        if op.part != NULL:
            c.before += op.part(&c, i)
        if not w.pending:
            arena_rewind(&g.scratch, top)
    if settle(w):
        return -1
    arena_rewind(&g.scratch, top)
    return 0


cdef int argument_backward(Walk* w, Batch* batch, const Op* op, const Needs* needs, Call* c,
                           uint32_t i) noexcept nogil:
    """Compute the gradient of argument i of all nodes of a batch."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, arg = args_of(g, &nodes[ids[0]])[i]
    cdef uint32_t n_need = 0, n_live = 0        # arguments that need a gradient, and those that have one already
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
        # The arguments are read in place, so each occurs once.
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
