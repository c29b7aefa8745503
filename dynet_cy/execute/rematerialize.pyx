"""Passes over plans with dropped values, which are computed again for backward, and if the program requests them.

After a pass the nodes of dropped batches have no values (include/dynet_cy/dropping.h). There are three reasons to
compute them again, and one way: the batch is marked, then all dropped batches on which it depends, and marked batches
run in order.

- **Backward** goes back over one stretch of the plan after the other, the last one first. It marks what the batches of
  a stretch read in backward. A value stays until backward has passed its batch, if that is in the stretch or in one
  around it; others are there for now only. Each batch also gets its arguments in the form that its call needs.
- **The program** may ask for a value that was dropped, by the number of a node, as `dump` does, or by a rule that makes
  nodes from those of a graph, such as a derivative. The batch keeps its values from then on. If they are transient, the
  graph keeps all such values for some renewals, since a program that does this once may do it again.
- **A second backward pass** may depend on values that the first one has donated (include/dynet_cy/gradients.h). They
  are computed again in their old places, which the calls of other batches have noted. The graph then donates no values
  for some renewals.

What runs again computes the same bits: batches are those of the plan, random ops draw the same numbers, since their
stream and seed are kept with the stretch, and products use the packed form of a matrix where they did before.
Parameters must not have changed; each storage counts the changes of its values.

Gradients have memory of their own, and live as long as in other graphs, whether values are dropped or not; but within a
limit of memory those of dropped values are not kept after the backward of their batch (include/dynet_cy/gradients.h).
"""

from libc.stdint cimport SIZE_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.engine cimport add_count
from dynet_cy.core.threads cimport Number, add_to, now
from dynet_cy.execute.accumulation cimport finish_background
from dynet_cy.execute.gradients cimport run_backward
from dynet_cy.execute.walk cimport (
    MOST_TOGETHER, Part, arrange, assign_values, clear_call, give_copies_back, lay_items, most_along, run_again,
    run_planned_at_once, settle, verify_plan,
)
from dynet_cy.graph.structs cimport (
    AGAIN, COLUMNS, COMPUTED, CUT, DONATED, FLATTENED, FOR_NOW, IN_ORDER, IN_STRETCH, MOST_DEPTH, NO_BATCH, ONE,
    RESIDENT, SPARED, STACKED, STRIPPED, TILES, TRANSIENT, VIEWS, Batch, Draws, Graph, Node, Read, Stretch, args_of,
    batches_of, block_bytes, claim_again, cut_stretches, drop_stretches, drop_values, end_of_room, free_memory,
    free_reserved, held_of, home_of, is_dropped, n_stretches, nodes_of, order_of, part_gradients, state_of,
    stretches_of, strip, value_arrives,
)
from dynet_cy.kernels.product cimport note_caller, pack_for_narrow
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, arena_trim, array_push
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Op, op_at, reads, reads_result
from dynet_cy.schedule.budget cimport is_limited, memory_left
from dynet_cy.schedule.dividing cimport slice_large
from dynet_cy.schedule.dropping cimport enter_stretches, fits, plan_stretches
from dynet_cy.schedule.facts cimport NONE
from dynet_cy.schedule.transient cimport Places, keep_all, open_places, plan_transient
from dynet_cy.watch.instruments cimport checking

cdef enum:
    SLICES = 32                     # of what is left: how large slices of large batches are
    RENEWALS = 64                   # for which a graph keeps all values, after one was asked for that had been dropped

cdef Number nodes_again = 0         # nodes computed again
add_count("execute.rematerialize.nodes", &nodes_again)

# What batches are computed again for, and so where their values lie, and whether their calls are kept for backward.
cdef enum Purpose:
    REQUEST                         # something outside backward: they keep their values
    CLONES                          # values that the batches of a stretch read
    STRETCH                         # the stretch itself: backward follows


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
    bint drops                      # some are dropped
    bint searched                   # stretches were searched for
    uint32_t stretch                # the number of the first of them, if there are any
    Places places
    size_t top                      # of the arena in which the block lies, before it does


cdef int run_plan(Walk* w, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Lifetimes x
    cdef int ended
    if n_batches == 0 or not drops_values(w):
        return run_planned_at_once(w, n_batches)
    plan_lifetimes(w, &x, n_batches, targets, n)
    ended = -1 if open_lifetimes(w, &x) else run_in_stretches(w, &x)
    note_caller(0, False)
    close_lifetimes(w.g, &x, ended)
    return ended


cdef void plan_lifetimes(Walk* w, Lifetimes* x, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    """Choose which values of a plan are transient, or dropped with stretches, as memory needs."""
    cdef Graph* g = w.g
    cdef size_t along = 0
    memset(x, 0, sizeof(Lifetimes))
    x.begin = w.first = g.n_batches
    x.n_batches = n_batches
    x.stretch = n_stretches(g)
    x.top = g.grads.top
    if may_be_transient(w) and plan_transient(g, n_batches, targets, n, most_along, &x.places):
        along = most_along if w.at_once else 0
        x.drops = is_enough(g, n_batches, targets, n)
        if not x.drops and w.at_once:
            x.n_batches = slice_large(g, n_batches, <size_t>(memory_left(g) / SLICES))
            x.drops = (x.n_batches != n_batches
                       and plan_transient(g, x.n_batches, targets, n, most_along, &x.places)
                       and is_enough(g, x.n_batches, targets, n))
    if not x.drops and may_drop(g):
        x.searched = True
        x.drops = plan_stretches(g, &x.n_batches, targets, n, along, &x.places)


cdef inline bint has_stretches(const Graph* g, const Lifetimes* x) noexcept nogil:
    return n_stretches(g) > x.stretch


cdef int open_lifetimes(Walk* w, Lifetimes* x) noexcept nogil:
    """Before a plan runs: make room, check its lifetimes, note what may change until values are computed again."""
    cdef Graph* g = w.g
    cdef size_t missing
    cdef uint32_t b, i
    if has_stretches(g, x):                     # make room
        drop_stretches(g, x.stretch)
        x.top = g.grads.top
    missing = open_places(g, x.n_batches, &x.places) if x.drops else 0
    if missing and has_stretches(g, x):
        w.failure.needed = missing
        return -1
    if missing:
        keep_all(g, x.n_batches)
        x.drops = False
    if has_stretches(g, x) and not w.at_once:
        w.device.take_apart(w, x.n_batches)     # a stretch may end between them
    if (x.drops or g.may_donate) and verify_plan(w, x.n_batches):
        return -1
    if x.searched:
        pack_for_narrow(g.missing != 0)
    if x.searched and is_limited(g) and w.at_once:
        arena_trim(&g.scratch, SIZE_MAX)        # the plan took more than the pass will
    for i in range(x.stretch, n_stretches(g)):
        stretches_of(g)[i].draws = w.draws
    for b in range(x.begin, x.begin + x.n_batches if x.drops or g.may_donate else x.begin):
        if (batches_of(g)[b].level or batches_of(g)[b].lifetime) and note_reads_of(w, &batches_of(g)[b]):
            return -1
    return 0


cdef int run_in_stretches(Walk* w, const Lifetimes* x) noexcept nogil:
    """Run a plan.  What the calls of a stretch need in backward goes when it ends, unless it stays."""
    cdef Graph* g = w.g
    cdef uint32_t end = x.begin + x.n_batches, next_stretch = x.stretch, first, after, inner
    cdef uint32_t[9] around                     # MOST_DEPTH + 1
    cdef Stretch* s
    cdef size_t top
    cdef int ended
    if not has_stretches(g, x):
        return run_planned_at_once(w, x.n_batches)
    memset(around, 0xFF, sizeof(around))
    while g.n_batches < end:
        first = g.n_batches
        after = first + 1
        while after < end and not batches_of(g)[after].lifetime & CUT:
            after += 1
        top = g.scratch.top
        ended = run_planned_at_once(w, after - first)
        if ended or after < end and w.end and now() >= w.end:
            return ended if ended else 1
        inner = enter_stretches(g, first, &next_stretch, around)
        if inner == NONE:
            continue
        s = &stretches_of(g)[inner]
        if s.resident:
            s.scratch = top
            s.scratch_end = g.scratch.top
        elif strip_calls(w, first, after, top):
            return -1
    return 0


cdef int strip_calls(Walk* w, uint32_t first, uint32_t end, size_t top) noexcept nogil:
    """Drop what the calls of batches need in backward, which is in working memory from `top` on."""
    cdef uint32_t b
    if finish_readers(w):
        return -1
    for b in range(first, end):
        strip(&batches_of(w.g)[b])
    arena_rewind(&w.g.scratch, top)
    return 0


cdef int finish_readers(Walk* w) noexcept nogil:
    """Do all that reads values of a stretch: by another thread, or what is listed for a device."""
    if w.collecting.background != NULL:
        finish_background(w.collecting.background)
    return w.device.finish(w) if not w.at_once else 0


cdef void close_lifetimes(Graph* g, const Lifetimes* x, int ended) noexcept nogil:
    """After a pass, which may have ended early: drop what does not stay."""
    cdef const Batch* batch
    cdef uint32_t b
    if not x.drops:
        return
    for b in range(x.begin, g.n_batches):
        batch = &batches_of(g)[b]
        if batch.level and not batch.lifetime & RESIDENT:
            drop_values(g, batch)
    if ended:
        cut_stretches(g, g.n_batches, g.values.top)
    arena_rewind(&g.grads, min(g.grads.top, end_of_room(g) if x.places.stays and not ended else x.top))


cdef bint is_enough(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n) noexcept nogil:
    """Whether the next n batches fit, within a limit, with the transient values that are planned; if not, undo that
    plan."""
    if not is_limited(g) or fits(g, n_batches, targets, n):
        return True
    keep_all(g, n_batches)
    return False


# ---- parameters --------------------------------------------------------------------------

cdef inline const Param* parameter_at(const Graph* g, const Node* x, uint32_t i) noexcept nogil:
    """The parameter that is argument i of a node, or the table of a node without arguments; NULL if there is none."""
    cdef const Node* a = x
    if x.nargs:
        a = &nodes_of(g)[args_of(g, x)[i]]
        if a.nargs or a.val != NULL:
            return NULL
    return <const Param*>a.object


cdef int note_reads_of(Walk* w, const Batch* batch) noexcept nogil:
    """Note the parameters that one batch reads."""
    cdef Graph* g = w.g
    cdef const Node* x = &nodes_of(g)[order_of(g)[batch.first]]     # they are in the same place in all of its nodes
    cdef const Param* p
    cdef Read* read
    cdef uint32_t i
    for i in range(max(x.nargs, <uint32_t>1)):
        p = parameter_at(g, x, i)
        if p == NULL or read_of(g, p) != NULL:
            continue
        read = <Read*>array_push(&g.reads, sizeof(Read))
        if read == NULL:
            w.failure.needed = sizeof(Read)
            return -1
        read.changes = p.pack.changes
        read.before = p.pack.changes[0]
    return 0


cdef inline const Read* read_of(const Graph* g, const Param* p) noexcept nogil:
    cdef const Read* read = <const Read*>g.reads.base
    cdef const Read* end = <const Read*>(g.reads.base + g.reads.top)
    while read < end:
        if read.changes == p.pack.changes:
            return read
        read += 1
    return NULL


cdef bint has_changed(const Graph* g, const Param* p) noexcept nogil:
    """Whether values of a parameter have changed since stretches first read its storage: its own, or any."""
    cdef const Read* read = read_of(g, p)
    if read == NULL:
        return False
    return (p.changed_at > read.before.n
            or p.pack.changes.n - read.before.n != p.pack.changes.alone - read.before.alone)


cdef int check_batch(Walk* w, const Batch* batch) noexcept nogil:
    """Fail if a parameter that a batch reads has changed."""
    cdef Graph* g = w.g
    cdef const Node* x
    cdef const Param* p
    cdef uint32_t i, j
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        for i in range(max(x.nargs, <uint32_t>1)):
            p = parameter_at(g, x, i)
            if p != NULL and has_changed(g, p):
                w.failure.changed = p
                return -1
    return 0


# ---- marks -------------------------------------------------------------------------------

cdef inline bint is_computed(const Graph* g, const Batch* batch) noexcept nogil:
    return state_of(g)[order_of(g)[batch.first]] & COMPUTED


cdef inline uint32_t mark(Batch* batch, uint32_t bits) noexcept nogil:
    """Mark a batch to be computed again; returns how many are marked by that."""
    if batch.lifetime & AGAIN:
        return 0
    batch.lifetime |= <uint16_t>(AGAIN | bits)
    return 1


cdef uint32_t mark_arguments(Graph* g, uint32_t end, uint32_t n, const uint32_t* stay) noexcept nogil:
    """Mark what the n marked batches before one need, which were dropped; returns the first of all marked.

    Args:
        stay: by depth, the first batch of the stretch whose values stay; NULL: all are there for now only.
    """
    cdef const Node* x
    cdef Batch* of
    cdef uint32_t b = end, j, k, number
    cdef bint stays
    while n:
        b -= 1
        if not batches_of(g)[b].lifetime & AGAIN:
            continue
        n -= 1
        for j in range(batches_of(g)[b].count):
            x = &nodes_of(g)[order_of(g)[batches_of(g)[b].first + j]]
            for k in range(x.nargs):
                if not is_dropped(g, args_of(g, x)[k]):
                    continue
                number = nodes_of(g)[args_of(g, x)[k]].batch
                of = &batches_of(g)[number]
                stays = (of.lifetime & DONATED or stay != NULL and of.level and of.level != TRANSIENT
                         and stay[of.level] <= number)
                n += mark(of, 0 if stays else FOR_NOW)
    return b


cdef void unmark(Graph* g, uint32_t first, uint32_t end) noexcept nogil:
    cdef uint32_t b
    for b in range(first, end):
        batches_of(g)[b].lifetime &= <uint16_t>~(AGAIN | FOR_NOW)


# ---- running again -----------------------------------------------------------------------

cdef int compute_again(Walk* w, uint32_t first, uint32_t end, uint32_t purpose) noexcept nogil:
    """Compute the values of a batch, or of several of the form TILES, on one device."""
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef Batch* batch = &batches_of(g)[first]
    cdef Batch again
    cdef uint32_t b, j
    # Devices mark a batch with pending additions to its gradients as one with pending copies of values (gpu/copies).
    if w.going_back and not w.at_once and w.device.settle(w):
        return -1
    for b in range(first, end):
        if not is_computed(g, &batches_of(g)[b]) and take_place(w, b, <Purpose>purpose):
            return -1
    w.number = first
    again = batch[0]                            # a call that backward will make stays as it was
    if run_again(w, batch if purpose == STRETCH else &again, end - first):
        return -1
    if not w.at_once and settle(w):
        return -1
    if purpose != STRETCH:
        arena_rewind(&g.scratch, top)
    for b in range(first, end):
        batch = &batches_of(g)[b]
        batch.lifetime &= <uint16_t>~(DONATED | (STRIPPED if purpose == STRETCH else 0))
        batch.again += 1
        add_to(&nodes_again, batch.count)
        for j in range(batch.count):
            value_arrives(&state_of(g)[order_of(g)[batch.first + j]])
    return 0


cdef int take_place(Walk* w, uint32_t number, Purpose purpose) noexcept nogil:
    """Give a batch that was dropped memory for its values, apart from others."""
    cdef Graph* g = w.g
    cdef Batch* batch = &batches_of(g)[number]
    cdef size_t bytes = block_bytes(batch.bytes)
    cdef void* y
    if batch.lifetime & DONATED or batch.form == VIEWS and purpose != REQUEST:
        return 0
    if purpose != REQUEST:
        y = claim_again(g, bytes)
        if y == NULL and w.relieve != NULL and w.relieve(w):
            y = claim_again(g, bytes)
    else:
        y = arena_alloc(&g.grads if batch.lifetime & FOR_NOW else &g.values, bytes)
    if y == NULL:
        w.failure.needed = bytes
        return -1
    batch.y = <float*>y
    assign_values(g, batch, number)
    part_gradients(g, number)
    return 0


cdef void give_up(Graph* g, Batch* batch) noexcept nogil:
    """Drop values that backward has read, and free their memory."""
    if not is_computed(g, batch):
        return
    drop_values(g, batch)
    if batch.form != VIEWS:
        free_memory(g, batch.y, block_bytes(batch.bytes))


cdef int run_marked(Walk* w, uint32_t first, uint32_t end, Purpose purpose) noexcept nogil:
    """Compute the values of marked batches."""
    cdef uint32_t b
    for b in range(first, end):
        if batches_of(w.g)[b].lifetime & AGAIN and (run_part(w, b, b + 1, compute_again, purpose)
                                                    or purpose == CLONES and give_arguments_up(w.g, b, b + 1)):
            return -1
    return 0


cdef inline int run_part(Walk* w, uint32_t first, uint32_t end, Part part, uint32_t purpose) noexcept nogil:
    """Call a function for batches of one device."""
    draw_as_before(w, first)
    if w.device.divide != NULL:
        return w.device.divide(w, first, end, part, purpose, False)
    return part(w, first, end, purpose)


cdef int give_arguments_up(Graph* g, uint32_t first, uint32_t end) noexcept nogil:
    """Drop the arguments of some batches that were there for now, and that no later batch reads."""
    cdef const Node* x
    cdef Batch* of
    cdef uint32_t b, j, k, number
    for b in range(first, end):
        for j in range(batches_of(g)[b].count):
            x = &nodes_of(g)[order_of(g)[batches_of(g)[b].first + j]]
            for k in range(x.nargs):
                number = nodes_of(g)[args_of(g, x)[k]].batch
                if number == NO_BATCH:
                    continue
                of = &batches_of(g)[number]
                if of.lifetime & FOR_NOW and of.last < end:
                    give_up(g, of)
    return 0


cdef void draw_as_before(Walk* w, uint32_t number) noexcept nogil:
    """Have a batch draw the numbers that it has drawn, if it is in a stretch."""
    cdef const Stretch* s = stretches_of(w.g)
    cdef uint32_t i
    if not op_at(nodes_of(w.g)[order_of(w.g)[batches_of(w.g)[number].first]].op).random:
        return
    for i in range(n_stretches(w.g)):
        if s[i].first <= number < s[i].end:
            w.draws = s[i].draws
            return


cdef int arrange_again(Walk* w, uint32_t number, uint32_t end, uint32_t purpose) noexcept nogil:
    """Bring the arguments of a batch that is not computed again into the form that backward needs."""
    cdef Batch* batch = &batches_of(w.g)[number]
    batch.lifetime &= <uint16_t>~STRIPPED
    clear_call(batch)
    if w.going_back and not w.at_once and w.device.settle(w):
        return -1
    if w.device.divide != NULL:                 # a copy between devices reads its argument where it is
        return 0
    if batch.form == ONE:
        return lay_items(w, batch)
    if batch.form != STACKED and batch.form != FLATTENED and batch.form != COLUMNS:
        return 0
    if arrange(w, batch, op_at(nodes_of(w.g)[order_of(w.g)[batch.first]].op)):
        return -1
    if w.at_once:
        give_copies_back(w, batch)              # backward makes them when it needs them
        return 0
    return settle(w)                            # backward reads the arguments that were gathered


# ---- values that are asked for later ------------------------------------------------------

cdef int bring_back(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    if not (g.has_dropped or g.has_donated):
        return 0
    if g.is_torn:
        drop_stretches(g, n_stretches(g))
    return -1 if rematerialize_needed(w, targets, n) else 0


cdef int rematerialize_needed(Walk* w, const uint32_t* targets, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef uint32_t end = 0, marked = 0
    cdef int failed = mark_needed(w, targets, n, &end, &marked)
    arena_rewind(&g.scratch, top)
    return failed or rematerialize_marked(w, end, marked)


cdef int mark_needed(Walk* w, const uint32_t* targets, uint32_t n, uint32_t* end, uint32_t* marked) noexcept nogil:
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
            keep_from_now(g, targets[i], end, marked)
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
                keep_from_now(g, arg, end, marked)
            elif not state_of(g)[arg] & COMPUTED and not seen[arg]:
                seen[arg] = True
                ahead += 1
    return 0


cdef void keep_from_now(Graph* g, uint32_t node, uint32_t* end, uint32_t* marked) noexcept nogil:
    """Mark the batch of a node that was dropped, or will be: it will keep its values.  `end`: one past the last one."""
    cdef uint32_t number = nodes_of(g)[node].batch, j
    cdef Batch* batch = &batches_of(g)[number]
    if batch.level:
        if batch.level == TRANSIENT and not batch.lifetime & IN_STRETCH:
            g.keeps_for = RENEWALS
        drop_values(g, batch)                   # if it stays after the pass, it does so until the next one
        batch.level = 0
    elif batch.lifetime & DONATED:
        g.spares_for = RENEWALS
    else:
        return
    end[0] = max(end[0], number + 1)
    marked[0] += mark(batch, 0)
    for j in range(batch.count if batch.form == VIEWS else 0):
        keep_from_now(g, args_of(g, &nodes_of(g)[order_of(g)[batch.first + j]])[0], end, marked)


cdef int rematerialize_marked(Walk* w, uint32_t end, uint32_t n) noexcept nogil:
    """Compute the values of the n marked batches, which are before a batch, and of those that they need."""
    cdef Graph* g = w.g
    cdef size_t top = g.grads.top
    cdef Draws draws = w.draws
    cdef uint64_t begun = now()
    cdef uint32_t first = mark_arguments(g, end, n, NULL), b
    cdef int failed
    if n == 0:
        return 0
    failed = check_marked(w, first, end) or run_marked(w, first, end, REQUEST)
    note_caller(0, False)
    w.number = NO_BATCH
    w.draws = draws
    for b in range(first, end):
        if batches_of(g)[b].lifetime & FOR_NOW:
            drop_values(g, &batches_of(g)[b])
        elif batches_of(g)[b].lifetime & AGAIN and not is_computed(g, &batches_of(g)[b]):
            batches_of(g)[b].level = batches_of(g)[b].planned
    unmark(g, first, end)
    arena_rewind(&g.grads, top)
    g.again_ns += now() - begun
    return -1 if failed else 0


cdef bint check_marked(Walk* w, uint32_t first, uint32_t end) noexcept nogil:
    """Whether a parameter has changed that marked batches read."""
    cdef uint32_t b
    for b in range(first, end):
        if batches_of(w.g)[b].lifetime & AGAIN and check_batch(w, &batches_of(w.g)[b]):
            return True
    return False


# ---- backward ----------------------------------------------------------------------------

cdef int prepare_backward(Walk* w, uint32_t last) noexcept nogil:
    cdef Graph* g = w.g
    cdef const Batch* batch
    cdef uint32_t b
    if g.is_torn or g.room.bytes and not is_room_whole(g):
        drop_stretches(g, n_stretches(g))
    for b in range(last + 1):
        batch = &batches_of(g)[b]
        if (batch.lifetime & STRIPPED or batch.level and not is_computed(g, batch)) and check_batch(w, batch):
            return -1
    return 0


cdef int run_backward_in_stretches(Walk* w, uint32_t last) noexcept nogil:
    cdef Graph* g = w.g
    cdef uint32_t end = last + 1, first
    cdef uint16_t inside
    while end > 0:
        first = end - 1
        inside = batches_of(g)[first].lifetime & IN_STRETCH
        while first > 0 and not (batches_of(g)[first].lifetime & CUT
                                 or (batches_of(g)[first - 1].lifetime ^ inside) & IN_STRETCH):
            first -= 1
        if go_back_over(w, first, end) if inside else run_backward(w, first, end - 1):
            g.is_torn = True                    # what was computed again stays: the error may tell of it
            return -1
        if inside:
            free_reserved(g)
        end = first
    return 0


cdef bint is_room_whole(const Graph* g) noexcept nogil:
    """Whether all values are there that stay after a pass: an earlier backward may have gone over some."""
    cdef uint32_t b
    for b in range(g.n_batches):
        if batches_of(g)[b].lifetime & RESIDENT and batches_of(g)[b].level and not is_computed(g, &batches_of(g)[b]):
            return False
    return True


cdef int go_back_over(Walk* w, uint32_t first, uint32_t end) noexcept nogil:
    """Run batches of a stretch backward, and drop what they have."""
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef const Stretch* s
    cdef uint32_t[9] around                     # MOST_DEPTH + 1
    cdef uint32_t next_stretch = 0, inner, b
    cdef bint stripped = False
    memset(around, 0xFF, sizeof(around))
    inner = enter_stretches(g, first, &next_stretch, around)
    for b in range(first, end):
        stripped = stripped or batches_of(g)[b].lifetime & STRIPPED
    if stripped and clone(w, first, end, around):
        return -1
    if run_backward(w, first, end - 1) or finish_readers(w):
        return -1
    for b in range(first, end):
        if batches_of(g)[b].level:
            give_up(g, &batches_of(g)[b])
        strip(&batches_of(g)[b])
    s = &stretches_of(g)[inner]
    if stripped:
        arena_rewind(&g.scratch, top)
    elif g.scratch.top == s.scratch_end:        # else something else was allocated since
        arena_rewind(&g.scratch, s.scratch)
    return 0


cdef int clone(Walk* w, uint32_t first, uint32_t end, uint32_t* around) noexcept nogil:
    """Compute the values again that backward over batches reads, and bring their arguments into the form that it
    needs.

    Args:
        around: the stretches around them, by depth.
    """
    cdef Graph* g = w.g
    cdef Draws draws = w.draws
    cdef uint64_t begun = now()
    cdef uint32_t depth, b, lowest, n
    cdef int failed
    for depth in range(1, MOST_DEPTH + 1):
        if around[depth] != NONE:
            around[depth] = stretches_of(g)[around[depth]].first
    for b in range(first, end):
        strip(&batches_of(g)[b])
    n = mark_read(w, first, end)
    lowest = mark_arguments(g, end, n, around) if n else first
    failed = run_marked(w, min(lowest, first), first, CLONES) or run_stretch(w, first, end)
    for b in range(min(lowest, first), end):
        if batches_of(g)[b].lifetime & FOR_NOW:
            give_up(g, &batches_of(g)[b])
    unmark(g, min(lowest, first), end)
    note_caller(0, False)
    w.draws = draws
    g.again_ns += now() - begun
    return failed


cdef uint32_t mark_read(Walk* w, uint32_t first, uint32_t end) noexcept nogil:
    """Mark what backward over some batches reads and is not there; returns how many batches that are."""
    cdef Graph* g = w.g
    cdef Batch* batch
    cdef Batch* of
    cdef const Op* op
    cdef const Node* x
    cdef uint32_t b, i, j, n = 0
    cdef bint is_view, is_read
    for b in range(first, end):
        batch = &batches_of(g)[b]
        x = &nodes_of(g)[order_of(g)[batch.first]]
        op = op_at(x.op)
        is_view = batch.form == VIEWS
        if op.needs[w.kind].saved != NULL or (is_view or reads_result(op)) and not is_computed(g, batch):
            n += mark(batch, 0)
        for i in range(x.nargs):
            is_read = is_view or reads(op, i)
            for j in range(batch.count):
                of = dropped_argument(g, batch, j, i)
                if of != NULL and (is_read or of.form == VIEWS):    # gradients of views are found by their places
                    n += mark(of, 0)
    return n


cdef inline Batch* dropped_argument(const Graph* g, const Batch* batch, uint32_t j, uint32_t i) noexcept nogil:
    """The batch of argument i of node j of a batch, if it was dropped; else NULL."""
    cdef uint32_t arg = args_of(g, &nodes_of(g)[order_of(g)[batch.first + j]])[i]
    return &batches_of(g)[nodes_of(g)[arg].batch] if is_dropped(g, arg) else NULL


cdef int run_stretch(Walk* w, uint32_t first, uint32_t end) noexcept nogil:
    """Compute the marked batches of a stretch, and arrange the arguments of the others."""
    cdef const Graph* g = w.g
    cdef const Batch* batch
    cdef uint32_t b = first, n
    while b < end:
        batch = &batches_of(g)[b]
        n = 1
        if batch.lifetime & AGAIN:
            while (batch.form == TILES and b + n < end and n < MOST_TOGETHER and batch[n].form == TILES
                   and batch[n].lifetime & AGAIN):
                n += 1
        if run_part(w, b, b + n, compute_again if batch.lifetime & AGAIN else arrange_again, STRETCH):
            return -1
        give_arguments_up(w.g, b, b + n)
        b += n
    return 0


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
    cdef uint32_t i, end = 0, n = 0
    for i in range(g.n_nodes):
        if marks[i] & PASSED and is_dropped(g, i) and batches_of(g)[nodes_of(g)[i].batch].lifetime & DONATED:
            keep_from_now(g, i, &end, &n)
    return rematerialize_marked(w, end, n)


cdef void spare_needed(Graph* g, const uint8_t* marks) noexcept nogil:
    """Spare the values that something else needs."""
    cdef uint32_t i, home
    for i in range(g.n_batches):
        batches_of(g)[i].lifetime &= <uint16_t>~SPARED
    for i in range(g.n_nodes):
        if marks[i] & NEEDED:
            home = home_of(g, &nodes_of(g)[i])
            if home != NO_BATCH:
                batches_of(g)[home].lifetime |= <uint16_t>SPARED
