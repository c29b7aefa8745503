"""Passes over plans with transient values, and their computation if the program requests them later.

After the pass the nodes of transient batches have no values (schedule/transient). A program seldom asks for one: by
the number of a node, as `dump` does, or by a rule that makes nodes from those of a graph, such as a derivative. Then
the batch runs again, after those of its arguments that were dropped too. From then on the batch keeps its values, and
the graph keeps all values for some renewals, since a program that does this once may do it again.

A value of a stretch (execute/recompute) is computed again in the same way, by the program or for a new node. What it
depends on within the stretch is there for this time only.

A batch that runs again computes the same bits, as in execute/recompute, as long as the parameters that it reads have
not changed.

Values that backward has donated (include/dynet_cy/gradients.h) are computed again in the same way, but in their old
places, which the calls of other batches have noted. A backward pass first does this for those on which its target
depends. The graph then donates no values for some renewals: a program that runs backward twice may do it again.
"""

from libc.stdint cimport SIZE_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.threads cimport now
from dynet_cy.execute.recompute cimport (
    check_batch, close_stretches, count_again, drop_failed, may_drop, note_reads_of, note_rooms, open_stretches, run_to,
)
from dynet_cy.execute.walk cimport (
    assign_values, is_divided, most_along, run_again, run_planned_at_once, verify_plan,
)
from dynet_cy.graph.structs cimport (
    COMPUTED, DONATED, FOR_NOW, IN_ORDER, NO_BATCH, NO_STRETCH, REMATERIALIZING, SENT, SPARED, TRANSIENT, VIEWS, Batch,
    Draws, Graph, Node, Stretch, args_of, batches_of, drop_transient, held_of, home_of, is_dropped, nodes_of, order_of,
    part_gradients, state_of, stretches_of,
)
from dynet_cy.kernels.product cimport note_caller, pack_for_narrow
from dynet_cy.memory.arena cimport ALIGN, arena_alloc, arena_rewind, arena_trim
from dynet_cy.schedule.budget cimport bytes_of, is_limited, memory_left
from dynet_cy.schedule.dividing cimport slice_large
from dynet_cy.schedule.dropping cimport fits, plan_stretches
from dynet_cy.schedule.transient cimport open_transient, plan_transient
from dynet_cy.watch.instruments cimport checking

cdef enum:
    SLICES = 32                     # of what is left: how large slices of large batches are
    RENEWALS = 64                   # for which a graph keeps all values, after one was asked for that had been dropped


# ---- forward ---------------------------------------------------------------------------

cdef inline bint may_be_transient(const Walk* w) noexcept nogil:
    """Whether backward may follow, nothing looks at all values, and no others are dropped.  A pass with a time limit
    may end in between."""
    cdef const Graph* g = w.g
    return not (g.forward_only or g.immediate or g.check_validity or checking or w.end or g.regions.top
                or g.stretches.top)


cdef bint drops_values(const Walk* w) noexcept nogil:
    return may_be_transient(w) or may_drop(w.g)


# What the values of a plan need that do not live as long as the graph.
cdef struct Lifetimes:
    uint32_t begin, n_batches       # of the plan
    bint transient                  # some are transient
    bint searched                   # stretches were searched for
    uint32_t stretch                # the first of them; NO_STRETCH: there is none
    size_t top                      # of the arena in which transient values lie, before they do
    size_t[8] needed                # MOST_DEPTH: if they were, of rooms, by earlier passes


cdef int run_plan(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Lifetimes x
    cdef int ended
    if n_batches == 0 or not drops_values(w):
        return run_planned_at_once(w, n_batches)
    plan_lifetimes(w, &x, n_batches, targets, n)
    ended = -1 if open_lifetimes(w, &x) else run_to(w, x.begin + x.n_batches, x.stretch, True)
    note_caller(0, False)
    if x.transient:
        end_transient(w.g, &x)
    if x.searched:
        close_stretches(w.g, ended, x.needed)
    return ended


cdef int bring_back(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    if not (g.has_transient or g.has_donated or g.stretches.top):
        return 0
    drop_failed(g)
    return -1 if rematerialize_needed(w, targets, n) else 0


cdef void plan_lifetimes(Walk* w, Lifetimes* x, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    """Choose which values of a plan are transient, or dropped with stretches, as memory needs."""
    cdef Graph* g = w.g
    cdef size_t block = 0, along = 0
    x.begin = w.first = g.n_batches
    x.n_batches = n_batches
    x.transient = x.searched = False
    x.stretch = NO_STRETCH
    x.top = g.grads.top
    if may_be_transient(w) and plan_transient(g, n_batches, targets, n, most_along, &block):
        along = most_along if w.at_once else 0
        x.transient = is_enough(g, n_batches, targets, n, block)
        if not x.transient and w.at_once:
            x.n_batches = slice_large(g, n_batches, <size_t>(memory_left(g) / SLICES))
            x.transient = (x.n_batches != n_batches and plan_transient(g, x.n_batches, targets, n, most_along, &block)
                           and is_enough(g, x.n_batches, targets, n, block))
    if x.transient:
        open_transient(g, x.n_batches, block)
    elif may_drop(g):
        x.searched = True
        note_rooms(g, x.needed)
        x.stretch = plan_stretches(g, &x.n_batches, targets, n, along, &x.transient)


cdef int open_lifetimes(Walk* w, const Lifetimes* x) noexcept nogil:
    """Before a plan runs: check its lifetimes, note what may change until values are computed again, make room."""
    cdef Graph* g = w.g
    cdef uint32_t b
    cdef bint lasts = not (x.transient or x.stretch != NO_STRETCH or g.may_donate)
    if x.transient and not w.at_once:
        w.device.note_memory(w)
    if not lasts and verify_plan(w, x.n_batches):
        return -1
    if x.searched:
        pack_for_narrow(g.missing != 0)
    if x.searched and is_limited(g) and w.at_once:
        arena_trim(&g.scratch, SIZE_MAX)        # the plan took more than the pass will
    if lasts:
        return 0
    for b in range(x.begin, x.begin + x.n_batches):
        if (batches_of(g)[b].level == TRANSIENT or batches_of(g)[b].donation) and note_reads_of(w, &batches_of(g)[b]):
            return -1
    return open_stretches(w, x.stretch, x.n_batches)


cdef void end_transient(Graph* g, const Lifetimes* x) noexcept nogil:
    cdef uint32_t b
    for b in range(x.begin, g.n_batches):
        if batches_of(g)[b].level == TRANSIENT:
            drop_transient(g, &batches_of(g)[b])
    arena_rewind(&g.grads, x.top)


cdef bint is_enough(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t block) noexcept nogil:
    """Whether the next n batches fit, within a limit, with the transient values that are planned; if not, undo that
    plan.

    Args:
        block: the bytes that transient values take at a time.
    """
    if not is_limited(g) or fits(g, n_batches, targets, n, bytes_of_others(g, n_batches), block):
        return True
    keep_all(g, n_batches)
    return False


cdef size_t bytes_of_others(const Graph* g, uint32_t n_batches) noexcept nogil:
    """The bytes of the values that the next n batches keep."""
    cdef const Batch* batch = &batches_of(g)[g.n_batches]
    cdef size_t n = 0
    cdef uint32_t b
    for b in range(n_batches):
        if batch[b].level != TRANSIENT:
            n += bytes_of(g, &batch[b])
    return n


cdef void keep_all(Graph* g, uint32_t n_batches) noexcept nogil:
    """Undo `plan_transient`."""
    cdef Batch* batch = &batches_of(g)[g.n_batches]
    cdef uint32_t b
    for b in range(n_batches):
        batch[b].level = batch[b].planned = 0


# ---- values that are asked for later ------------------------------------------------------

cdef int rematerialize_needed(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef uint32_t end = 0
    cdef int failed = mark_needed(w, targets, n, &end)
    arena_rewind(&g.scratch, top)
    return failed or rematerialize_marked(w, end)


cdef int mark_needed(Walk* w, const uint32_t* targets, uint32_t n, uint32_t* end) noexcept nogil:
    """Mark the batches, computed or dropped, of nodes that are targets or that the targets need first."""
    cdef Graph* g = w.g
    cdef uint32_t highest = 0, i, k, arg, ahead = 0
    cdef const Node* x
    cdef uint8_t* seen
    for i in range(n):
        highest = max(highest, targets[i])
    seen = <uint8_t*>arena_alloc(&g.scratch, highest + <size_t>1)
    if seen == NULL:
        w.failure.needed = highest + <size_t>1
        return -1
    memset(seen, 0, highest + <size_t>1)
    for i in range(n):
        if nodes_of(g)[targets[i]].batch != NO_BATCH:       # computed or not: what is visited may drop others
            mark(g, targets[i], end)
        elif not state_of(g)[targets[i]] & COMPUTED and not seen[targets[i]]:
            seen[targets[i]] = True
            ahead += 1
    i = highest + 1
    while ahead:
        i -= 1
        if not seen[i]:
            continue
        ahead -= 1
        x = &nodes_of(g)[i]
        for k in range(x.nargs):
            arg = args_of(g, x)[k]
            if nodes_of(g)[arg].batch != NO_BATCH:
                mark(g, arg, end)
            elif not state_of(g)[arg] & COMPUTED and not seen[arg]:
                seen[arg] = True
                ahead += 1
    return 0


cdef int rematerialize_marked(Walk* w, uint32_t end) noexcept nogil:
    """Compute the values of the marked batches, which are before a batch, and of those that they need."""
    cdef Graph* g = w.g
    cdef size_t top = g.grads.top
    cdef Draws draws = w.draws
    cdef uint64_t begun = now()
    cdef int failed
    if end == 0:
        return 0
    mark_arguments(g, end)
    failed = check_marked(w, end) or run_marked(w, end)
    note_caller(0, False)
    w.number = NO_BATCH
    w.draws = draws
    unmark(g, end)
    arena_rewind(&g.grads, top)
    g.again_ns += now() - begun
    return -1 if failed else 0


cdef inline bint is_marked(const Graph* g, const Batch* batch) noexcept nogil:
    return (batch.donation & (REMATERIALIZING | FOR_NOW)
            or batch.level == 0 and batch.planned and is_dropped(g, order_of(g)[batch.first]))


cdef void mark(Graph* g, uint32_t node, uint32_t* end) noexcept nogil:
    """Mark the batch of a node that was dropped, or will be, for `run_marked`; `end`: one past the last of them."""
    cdef uint32_t number = nodes_of(g)[node].batch, j
    cdef Batch* batch = &batches_of(g)[number]
    if batch.level == TRANSIENT:
        g.keeps_for = RENEWALS
    elif batch.level:                           # of a stretch
        drop_nodes(g, batch)
    elif batch.donation & DONATED:
        batch.donation |= <uint8_t>REMATERIALIZING
        g.spares_for = RENEWALS
    else:
        return
    batch.level = 0
    end[0] = max(end[0], number + 1)
    for j in range(batch.count if batch.form == VIEWS else 0):
        mark(g, args_of(g, &nodes_of(g)[order_of(g)[batch.first + j]])[0], end)


cdef void drop_nodes(Graph* g, const Batch* batch) noexcept nogil:
    """The nodes of a batch have no values."""
    cdef uint32_t j, node
    for j in range(batch.count):
        node = order_of(g)[batch.first + j]
        state_of(g)[node] &= <uint8_t>~(COMPUTED | SENT)
        nodes_of(g)[node].val = NULL


cdef void mark_arguments(Graph* g, uint32_t end) noexcept nogil:
    """Mark the batches whose values those need that are marked already, which are before a batch.

    Those of stretches are there for now only: there may be many between two values that are kept.
    """
    cdef const Node* x
    cdef Batch* of
    cdef uint32_t b = end, j, k, ignored = 0
    while b > 0:
        b -= 1
        if not is_marked(g, &batches_of(g)[b]):
            continue
        for j in range(batches_of(g)[b].count):
            x = &nodes_of(g)[order_of(g)[batches_of(g)[b].first + j]]
            for k in range(x.nargs):
                if not is_dropped(g, args_of(g, x)[k]):
                    continue
                of = &batches_of(g)[nodes_of(g)[args_of(g, x)[k]].batch]
                if of.level and of.level != TRANSIENT:
                    of.donation |= <uint8_t>FOR_NOW
                else:
                    mark(g, args_of(g, x)[k], &ignored)


cdef bint check_marked(Walk* w, uint32_t end) noexcept nogil:
    """Whether a parameter has changed that marked batches read."""
    cdef uint32_t b
    for b in range(end):
        if is_marked(w.g, &batches_of(w.g)[b]) and check_batch(w, &batches_of(w.g)[b]):
            return True
    return False


cdef int run_marked(Walk* w, uint32_t end) noexcept nogil:
    """Compute the values of marked batches: those that were dropped in memory that they keep, apart from others.

    What backward reads of their calls stays as it was, so that a revert does not free it.
    """
    cdef uint32_t b
    for b in range(end):
        if is_marked(w.g, &batches_of(w.g)[b]) and (w.device.divide(w, b, b + 1, run_one, 0, False) if is_divided(w)
                                                    else run_one(w, b, b + 1, 0)):
            return -1
    return 0


cdef int run_one(Walk* w, uint32_t number, uint32_t end, uint32_t depth) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef Batch* batch = &batches_of(g)[number]
    cdef Batch again
    cdef uint32_t j
    if not batch.donation & REMATERIALIZING and move_away(w, batch, number):
        return -1
    if batch.planned != TRANSIENT and g.stretches.top:
        draw_as_before(w, number)
    again = batch[0]
    w.number = number
    if run_again(w, &again, 1):
        return -1
    arena_rewind(&g.scratch, top)
    batch.donation &= <uint8_t>~(DONATED | REMATERIALIZING)
    for j in range(batch.count):
        state_of(g)[order_of(g)[batch.first + j]] |= <uint8_t>COMPUTED
    batch.again += 1
    count_again(batch.count)
    return 0


cdef void draw_as_before(Walk* w, uint32_t number) noexcept nogil:
    """Have a batch draw the numbers that its stretch, if it is in one, has drawn."""
    cdef const Stretch* s
    cdef uint32_t x = w.g.last_stretch
    while x != NO_STRETCH:
        s = &stretches_of(w.g)[x]
        if s.first <= number < s.end:
            w.draws = s.draws
        x = s.before if s.first > number else NO_STRETCH


cdef int move_away(Walk* w, Batch* batch, uint32_t number) noexcept nogil:
    """Give a batch that was dropped memory of its own."""
    cdef float* y = <float*>arena_alloc(&w.g.grads if batch.donation & FOR_NOW else &w.g.values, batch.bytes + ALIGN)
    if y == NULL:
        w.failure.needed = batch.bytes
        return -1
    batch.y = y
    assign_values(w.g, batch, number)
    part_gradients(w.g, number)
    return 0


cdef void unmark(Graph* g, uint32_t end) noexcept nogil:
    """Batches that were there for now, or could not be computed, are dropped again."""
    cdef Batch* batch
    cdef uint32_t b
    for b in range(end):
        batch = &batches_of(g)[b]
        if batch.donation & FOR_NOW:
            drop_nodes(g, batch)
        elif not batch.donation & REMATERIALIZING and is_marked(g, batch):
            batch.level = batch.planned
        batch.donation &= <uint8_t>~(REMATERIALIZING | FOR_NOW)


# ---- donated values ---------------------------------------------------------------------

# What is known of a node before a backward pass.
cdef enum:
    PASSED = 1                      # backward from the target reads it
    NEEDED = 2                      # something else needs it that an expression refers to


cdef int open_donation(Walk* w, uint32_t target, bint full) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef uint8_t* marks
    cdef int failed
    g.donates = False
    if not g.may_donate:
        return 0
    marks = <uint8_t*>arena_alloc(&g.scratch, g.n_nodes)
    if marks == NULL:
        w.failure.needed = g.n_nodes
        return -1
    mark_passed(g, target, marks)
    failed = g.has_donated and rematerialize_passed(w, marks)
    if not failed and not (full or checking or g.multi_device or g.stretches.top):
        spare_needed(g, marks)
        g.donates = IN_ORDER
    arena_rewind(&g.scratch, top)
    return failed


cdef void mark_passed(const Graph* g, uint32_t target, uint8_t* marks) noexcept nogil:
    """Mark what backward from the target reads, and what other expressions need.

    A batch runs backward as a whole: its call reads the arguments of all of its nodes, also of those that the target
    does not depend on.
    """
    cdef const uint8_t* held = held_of(g)
    cdef uint32_t i = g.n_nodes, b = g.n_batches, j
    cdef uint8_t needs
    memset(marks, 0, g.n_nodes)
    marks[target] = PASSED
    while i > 0:                                # only such nodes read nodes without a value
        i -= 1
        if nodes_of(g)[i].batch == NO_BATCH:
            mark_arguments_of(g, i, mark_held(held, marks, i), marks)
    while b > 0:
        b -= 1
        needs = 0
        for j in range(batches_of(g)[b].count):
            needs |= mark_held(held, marks, order_of(g)[batches_of(g)[b].first + j])
        for j in range(batches_of(g)[b].count if needs else 0):
            mark_arguments_of(g, order_of(g)[batches_of(g)[b].first + j], needs, marks)


cdef inline uint8_t mark_held(const uint8_t* held, uint8_t* marks, uint32_t node) noexcept nogil:
    """Complete the marks of a node, whose users have been looked at, and return them."""
    if held[node] and not marks[node] & PASSED:
        marks[node] = NEEDED
    return marks[node]


cdef inline void mark_arguments_of(const Graph* g, uint32_t node, uint8_t needs, uint8_t* marks) noexcept nogil:
    cdef const Node* x = &nodes_of(g)[node]
    cdef uint32_t k
    for k in range(x.nargs):
        marks[args_of(g, x)[k]] |= needs


cdef int rematerialize_passed(Walk* w, const uint8_t* marks) noexcept nogil:
    """Compute the donated values that backward from the target reads."""
    cdef Graph* g = w.g
    cdef uint32_t i, end = 0
    for i in range(g.n_nodes):
        if marks[i] & PASSED and is_dropped(g, i) and batches_of(g)[nodes_of(g)[i].batch].donation & DONATED:
            mark(g, i, &end)
    return rematerialize_marked(w, end)


cdef void spare_needed(Graph* g, const uint8_t* marks) noexcept nogil:
    """Spare the values that something else needs."""
    cdef uint32_t i, home
    for i in range(g.n_batches):
        batches_of(g)[i].donation &= <uint8_t>~SPARED
    for i in range(g.n_nodes):
        if marks[i] & NEEDED:
            home = home_of(g, &nodes_of(g)[i])
            if home != NO_BATCH:
                batches_of(g)[home].donation |= <uint8_t>SPARED
