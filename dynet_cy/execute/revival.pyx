"""Passes over plans with fleeting values, and the computation of such values that are asked for later.

After the pass the nodes of fleeting batches have no values (schedule/fleeting). What was dropped is asked for seldom:
by the number of a node, as `dump` does, or by a rule that makes nodes from those of a graph, such as a derivative. Then
the batch runs again, and before it those among its arguments that were dropped too. From then on its values are kept,
and the graph keeps all values for some renewals, since a program that does this once may do it again.

What runs again computes the same bits, as in execute/recompute, as long as the parameters that it reads have not
changed.
"""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.recompute cimport (
    check_batch, count_again, end_fleeting, keep_needed, may_drop, note_fleeting_reads, run_planned_in_stretches,
    visit_needed,
)
from dynet_cy.execute.walk cimport assign_values, most_along, run_again, run_planned_at_once
from dynet_cy.execute.watch cimport checking
from dynet_cy.graph.structs cimport (
    COMPUTED, FLEETING, Batch, Graph, Node, args_of, batches_of, is_dropped, nodes_of,
    order_of, part_gradients, state_of,
)
from dynet_cy.graph.thrift cimport is_limited, memory_left
from dynet_cy.kernels.product cimport note_caller
from dynet_cy.memory.arena cimport ALIGN, arena_alloc, arena_rewind
from dynet_cy.schedule.dividing cimport slice_large
from dynet_cy.schedule.dropping cimport fits
from dynet_cy.schedule.fleeting cimport open_fleeting, plan_fleeting

cdef enum:
    SLICES = 32                     # of what is left: how large slices of large batches are
    RENEWALS = 64                   # for which a graph keeps all values, after one was asked for that had been dropped


# ---- forward ---------------------------------------------------------------------------

cdef inline bint may_be_fleeting(const Walk* w) noexcept nogil:
    """Whether backward may follow, nothing looks at all values, and no others are dropped.  A pass with a time limit
    may end in between."""
    cdef const Graph* g = w.g
    return not (g.forward_only or g.immediate or g.check_validity or checking or w.end or g.regions.top
                or g.stretches.top)


cdef bint drops_values(const Walk* w) noexcept nogil:
    return may_be_fleeting(w) or may_drop(w.g)


cdef int run_plan(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    if may_be_fleeting(w):
        return run_planned_with_fleeting(w, n_batches, targets, n)
    if may_drop(w.g):
        return run_planned_in_stretches(w, n_batches, targets, n, 0)
    return run_planned_at_once(w, n_batches)


cdef int bring_back(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    return -1 if w.g.has_fleeting and revive_needed(w, targets, n) or keep_needed(w, targets, n) else 0


cdef int run_planned_with_fleeting(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.grads.top, block = 0
    cdef uint32_t first = g.n_batches, undivided = n_batches
    cdef int ended
    if not plan_fleeting(g, n_batches, targets, n, most_along, &block):
        if is_limited(g):
            return run_planned_in_stretches(w, n_batches, targets, n, 0)
        return run_planned_at_once(w, n_batches)
    if is_limited(g) and not is_enough(g, n_batches, targets, n, block):
        if w.at_once:
            n_batches = slice_large(g, n_batches, <size_t>(memory_left(g) / SLICES))
        if (n_batches == undivided or not plan_fleeting(g, n_batches, targets, n, most_along, &block)
                or not is_enough(g, n_batches, targets, n, block)):
            return run_planned_in_stretches(w, n_batches, targets, n, most_along if w.at_once else 0)
    open_fleeting(g, n_batches, block)
    if not w.at_once:
        w.device.note_memory(w)
    if note_fleeting_reads(w, n_batches):
        arena_rewind(&g.grads, top)
        return -1
    ended = run_planned_at_once(w, n_batches)
    note_caller(0, False)
    end_fleeting(g, first, top)
    return ended


cdef bint is_enough(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t block) noexcept nogil:
    """Whether the next n batches fit with the fleeting values that are planned; if not, undo that plan.

    Args:
        block: the bytes that fleeting values take at a time.
    """
    if fits(g, n_batches, targets, n, bytes_of_others(g, n_batches), block):
        return True
    keep_all(g, n_batches)
    return False


cdef size_t bytes_of_others(const Graph* g, uint32_t n_batches) noexcept nogil:
    """The bytes of the values that the next n batches keep."""
    cdef const Batch* batch = &batches_of(g)[g.n_batches]
    cdef size_t n = 0
    cdef uint32_t b, j
    for b in range(n_batches):
        if batch[b].level != FLEETING:
            for j in range(batch[b].count):
                n += total_of(&nodes_of(g)[order_of(g)[batch[b].first + j]].dim) * sizeof(float)
    return n


cdef void keep_all(Graph* g, uint32_t n_batches) noexcept nogil:
    """Undo `plan_fleeting`."""
    cdef Batch* batch = &batches_of(g)[g.n_batches]
    cdef uint32_t b
    for b in range(n_batches):
        batch[b].level = batch[b].planned = 0


# ---- values that are asked for later ------------------------------------------------------

cdef int revive_needed(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef uint32_t end = 0
    cdef int failed = visit_needed(w, targets, n, mark, &end)
    arena_rewind(&g.scratch, top)
    if failed or end == 0:
        return failed
    mark_arguments(g, end)
    failed = check_marked(w, end) or run_marked(w, end)
    note_caller(0, False)
    unmark(g, end)
    g.keeps_for = RENEWALS
    return -1 if failed else 0


cdef inline bint is_marked(const Graph* g, const Batch* batch) noexcept nogil:
    return batch.level == 0 and batch.planned == FLEETING and is_dropped(g, order_of(g)[batch.first])


cdef void mark(Graph* g, uint32_t node, void* data) noexcept nogil:
    """Mark the batch of a node that was dropped, for `run_marked`; `data`: one past the last of them."""
    cdef uint32_t number = nodes_of(g)[node].batch
    cdef uint32_t* end = <uint32_t*>data
    if batches_of(g)[number].level == FLEETING:
        batches_of(g)[number].level = 0
        end[0] = max(end[0], number + 1)


cdef void mark_arguments(Graph* g, uint32_t end) noexcept nogil:
    """Mark the batches whose values those need that are marked already, which are before a batch."""
    cdef const Node* x
    cdef uint32_t b = end, j, k, ignored = 0
    while b > 0:
        b -= 1
        if not is_marked(g, &batches_of(g)[b]):
            continue
        for j in range(batches_of(g)[b].count):
            x = &nodes_of(g)[order_of(g)[batches_of(g)[b].first + j]]
            for k in range(x.nargs):
                if is_dropped(g, args_of(g, x)[k]):
                    mark(g, args_of(g, x)[k], &ignored)


cdef bint check_marked(Walk* w, uint32_t end) noexcept nogil:
    """Whether a parameter has changed that marked batches read."""
    cdef uint32_t b
    for b in range(end):
        if is_marked(w.g, &batches_of(w.g)[b]) and check_batch(w, &batches_of(w.g)[b]):
            return True
    return False


cdef int run_marked(Walk* w, uint32_t end) noexcept nogil:
    """Compute the values of marked batches, in memory that they keep, apart from others.

    What backward reads of their calls stays as it was, so that a revert does not free it.
    """
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef Batch* batch
    cdef Batch again
    cdef uint32_t b, j
    cdef float* y
    for b in range(end):
        batch = &batches_of(g)[b]
        if not is_marked(g, batch):
            continue
        y = <float*>arena_alloc(&g.values, batch.bytes + ALIGN)
        if y == NULL:
            w.failure.needed = batch.bytes
            return -1
        batch.y = y
        assign_values(g, batch, b)
        part_gradients(g, b)
        again = batch[0]
        w.number = b
        if run_again(w, &again, 1):
            return -1
        arena_rewind(&g.scratch, top)
        for j in range(batch.count):
            state_of(g)[order_of(g)[batch.first + j]] |= <uint8_t>COMPUTED
        count_again(batch.count)
    return 0


cdef void unmark(Graph* g, uint32_t end) noexcept nogil:
    """Batches that could not be computed are fleeting again."""
    cdef uint32_t b
    for b in range(end):
        if is_marked(g, &batches_of(g)[b]):
            batches_of(g)[b].level = <uint8_t>FLEETING
