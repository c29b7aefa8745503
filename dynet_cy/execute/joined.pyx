# Used from Cython only.
"""Batches of different forward passes that run backward as one call.

Their nodes form a temporary batch, which exists for this call only: its list of nodes follows those of the batches that
have run, in `graph.order`.  As in forward, the arguments are laid side by side.  The gradients of the results are
copied side by side too, and the gradients that the call computes are added to those of the arguments.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.arguments cimport arrange
from dynet_cy.execute.walk cimport go_back, run_backward, take
from dynet_cy.graph.structs cimport (
    LIVE, NO_BATCH, Batch, Graph, Node, batches_of, gradient_at, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_rewind, array_push, array_rewind
from dynet_cy.ops.registry cimport op_at
from dynet_cy.schedule.joining cimport BackwardPlan, Step, plan_backward


cdef int run_backward_joined(Walk* w, uint32_t last) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef BackwardPlan plan
    cdef const Step* step
    cdef uint32_t i, number
    cdef int failed = 0
    if not plan_backward(g, last, &plan):
        return run_backward(w, 0, last)
    for i in range(plan.n_steps):
        step = &plan.steps[i]
        if step.count > 1:
            failed = join(w, plan.numbers + step.first, step.count, step.form)
        else:
            number = plan.numbers[step.first]
            failed = go_back(w, &batches_of(g)[number], number)
        if failed:
            break
    arena_rewind(&g.scratch, top)
    return failed


cdef int join(Walk* w, const uint32_t* numbers, uint32_t count, uint32_t form) noexcept nogil:
    """Run some batches backward as one."""
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top, order_top = g.order.top
    cdef Batch joined
    cdef int failed
    memset(&joined, 0, sizeof(Batch))
    joined.form = form
    failed = list_nodes(w, numbers, count, &joined)
    if not failed and joined.count:
        w.dy = <float*>take(w, joined.bytes)
        failed = -1
        if w.dy != NULL:
            gather_gradients(w, &joined)
            failed = (arrange(w, &joined, op_at(nodes_of(g)[order_of(g)[joined.first]].op))
                      or go_back(w, &joined, NO_BATCH))
    w.dy = NULL
    array_rewind(&g.order, order_top)
    arena_rewind(&g.scratch, top)
    return failed


cdef int list_nodes(Walk* w, const uint32_t* numbers, uint32_t count, Batch* joined) noexcept nogil:
    """The nodes of some batches, without those that the loss does not depend on."""
    cdef Graph* g = w.g
    cdef const Batch* batch
    cdef uint32_t* to
    cdef uint32_t i, j, id
    joined.first = <uint32_t>(g.order.top // sizeof(uint32_t))
    for i in range(count):
        batch = &batches_of(g)[numbers[i]]
        to = <uint32_t*>array_push(&g.order, batch.count * sizeof(uint32_t))
        if to == NULL:
            w.failure.needed = batch.count * sizeof(uint32_t)
            return -1
        for j in range(batch.count):
            id = order_of(g)[batch.first + j]
            if state_of(g)[id] & LIVE:
                to[0] = id
                to += 1
                joined.count += 1
                joined.bd += nodes_of(g)[id].dim.bd
                joined.bytes += total_of(&nodes_of(g)[id].dim) * sizeof(float)
        array_rewind(&g.order, (joined.first + joined.count) * sizeof(uint32_t))
    return 0


cdef void gather_gradients(Walk* w, const Batch* joined) noexcept nogil:
    cdef const Graph* g = w.g
    cdef const Node* node
    cdef float* to = w.dy
    cdef size_t n
    cdef uint32_t j
    for j in range(joined.count):
        node = &nodes_of(g)[order_of(g)[joined.first + j]]
        n = total_of(&node.dim)
        memcpy(to, gradient_at(g, node.val), n * sizeof(float))
        to += n
