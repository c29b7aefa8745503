"""A shorter walk for batches of one node, of which narrow graphs consist, on the CPU.

It omits everything that only batches of several nodes need.  The functions are inline, since a call between modules
costs a nanosecond of the 60 that such a batch takes.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Tensor, total_of
from dynet_cy.execute.anomaly cimport bad_values, checking
from dynet_cy.execute.calls cimport FEW, is_empty, prepare, run_call, set_call_of_one, set_tensor
from dynet_cy.execute.contributions cimport backward_into, contribute_nothing, leaf_backward, parameter_backward, spread
from dynet_cy.execute.profile cimport note_call, now, profiling
from dynet_cy.execute.walk cimport Walk, take
from dynet_cy.graph.structs cimport (
    COMPUTED, EACH, LIVE, NEEDS_GRAD, STACKED, TRAINABLE, WANTED, Batch, Graph, Node, args_of, gradient_at, nodes_of,
    order_of, release_arguments, state_of, take_values, untake_values,
)
from dynet_cy.memory.arena cimport arena_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Needs, Op


cdef inline int checked(Walk* w, const Batch* batch, size_t values_top, size_t scratch_top, bint failed) noexcept nogil:
    """Return -1, after freeing the memory of a batch, if it has `failed` or its values do not pass the checks."""
    cdef Graph* g = w.g
    if not failed and not ((checking or g.check_validity)
                           and bad_values(g, batch, g.check_validity, &w.failure.finding)):
        return 0
    if batch.y != NULL:
        untake_values(g, batch.y, batch.bytes, values_top)
    arena_rewind(&g.scratch, scratch_top)
    return -1


cdef inline int run_one_at_once(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Run the next planned batch, which has one node, and count it as run."""
    cdef Graph* g = w.g
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef uint64_t begun = now() if profiling else 0
    cdef uint32_t number = order_of(g)[batch.first]
    cdef Node* node = &nodes_of(g)[number]
    cdef uint8_t* state = &state_of(g)[number]
    cdef Tensor few[FEW]
    cdef Call c
    if batch.form == EACH:                      # a single call, which backward must treat as one
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
               or run_call(w, batch, op, &c) != 0):
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


cdef inline int backward_of_one(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Compute the gradients of the arguments of a batch of one node: `call_backward` for this case."""
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
    if is_empty(w, &node.dim):
        for i in range(node.nargs):
            if contribute_nothing(w, batch, i):
                return -1
        return 0
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
        if is_empty(w, &a.dim):
            if contribute_nothing(w, batch, i):
                return -1
        elif of_arg[0] & NEEDS_GRAD and (a.val != NULL or of_arg[0] & TRAINABLE):
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
