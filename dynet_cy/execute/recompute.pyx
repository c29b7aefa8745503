"""Passes over plans with stretches: values are dropped after a stretch, and computed again in backward.

Forward runs the batches of a plan as always. The values that only batches of one stretch read lie in a room, which the
next stretch uses again; when a stretch ends, its values are dropped, together with gathered arguments and saved values.
The last stretch of a pass stays: backward begins with it. Backward reaches the end of a stretch, runs its batches
forward again, goes back over them, and drops them for the second time. Stretches within it do the same meanwhile.
Gradients have memory of their own, and live as long as in other graphs, whether values are dropped or not; but within a
limit of memory those of dropped values are not kept after the backward of their batch (include/dynet_cy/gradients.h).

What runs again computes the same bits: batches are those of the plan, random ops draw the same numbers, since their
stream and seed are kept with the stretch, and products use the packed form of a matrix where they did before.
Parameters must not have changed; each storage counts the changes of its values. A batch whose values were kept runs
again only if it saves values for backward.

A dropped value that is asked for later is computed again by execute/rematerialize.
"""

from libc.math cimport NAN
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.engine cimport add_count
from dynet_cy.core.threads cimport Number, add_to, now
from dynet_cy.execute.accumulation cimport finish_background
from dynet_cy.execute.gradients cimport run_backward
from dynet_cy.execute.walk cimport (
    MOST_TOGETHER, arrange, assign_values, claim_batch, clear_call, is_divided, lay_items, run_again,
    run_planned_at_once, settle,
)
from dynet_cy.graph.structs cimport (
    COLUMNS, COMPUTED, FLATTENED, MOST_DEPTH, NO_STRETCH, ONE, STACKED, TILES, Batch, Draws, Node, Read, Room, Stretch,
    args_of, batches_of, drop_stretch, evict, n_stretches, nodes_of, order_of, part_gradients, state_of, stretches_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport op_at
from dynet_cy.schedule.dropping cimport UNREAD_AGAIN

cdef enum:
    FAILED = 2                      # of a resident stretch: its values are there, what else it needs may be lost

cdef Number nodes_again = 0         # nodes computed again
add_count("execute.recompute.nodes", &nodes_again)


# ---- forward ---------------------------------------------------------------------------

cdef void note_rooms(Graph* g, size_t* needed) noexcept nogil:
    cdef int i
    if g.stretches.top == 0:                    # rooms of a pass that has failed
        memset(g.rooms, 0, sizeof(g.rooms))
    for i in range(MOST_DEPTH):
        needed[i] = g.rooms[i].needed


cdef int open_stretches(Walk* w, uint32_t first, uint32_t n_batches) noexcept nogil:
    cdef Graph* g = w.g
    if first == NO_STRETCH:
        return 0
    if not w.at_once:
        w.device.take_apart(w, n_batches)           # a stretch may end between them
    evict(g, stretches_of(g)[first].before)         # the last stretch of an earlier pass, whose room is needed
    return note_reads(w, first) or open_rooms(w)


cdef void close_stretches(Graph* g, int ended, const size_t* needed) noexcept nogil:
    cdef int i
    if ended:
        cut_short(g)
    for i in range(MOST_DEPTH if ended < 0 else 0):     # it may run again with stretches that need smaller rooms
        g.rooms[i].needed = needed[i]


cdef int run_to(Walk* w, uint32_t end, uint32_t number, bint stays) noexcept nogil:
    """Run planned batches up to the end of some; `number` is the first stretch among them.

    Args:
        stays: whether the last stretch stays.
    """
    cdef Graph* g = w.g
    cdef Stretch* s
    cdef int ended
    while number != NO_STRETCH:
        s = &stretches_of(g)[number]
        ended = run_part(w, s.first)
        if ended:
            return ended
        s.scratch = g.scratch.top
        s.draws = w.draws
        s.resident = True
        ended = run_to(w, s.end, s.child, stays and s.next == NO_STRETCH)
        if ended:
            return ended
        s.scratch_end = g.scratch.top
        if (s.next != NO_STRETCH or not stays) and drop(w, number):
            return -1
        number = s.next
    return run_part(w, end)


cdef int run_part(Walk* w, uint32_t end) noexcept nogil:
    """Run the planned batches before one; 1 if time is up."""
    cdef int ended
    if w.g.n_batches >= end:
        return 0
    ended = run_planned_at_once(w, end - w.g.n_batches)
    return 1 if not ended and w.end and now() >= w.end else ended


cdef int drop(Walk* w, uint32_t number) noexcept nogil:
    cdef Stretch* s = &stretches_of(w.g)[number]
    cdef int failed = finish_readers(w, s.depth)
    drop_stretch(w.g, number)
    arena_rewind(&w.g.scratch, s.scratch)
    return failed


cdef int finish_readers(Walk* w, uint32_t depth) noexcept nogil:
    """Do all that reads values of a stretch of a depth: by another thread, or what is listed for a device."""
    cdef Room* room
    cdef uint32_t level
    if w.collecting.background != NULL:
        finish_background(w.collecting.background)
    if w.at_once:
        return 0
    if w.device.finish(w):
        return -1
    for level in range(depth, (MOST_DEPTH + 1) if w.g.values.poison else 0):    # `drop_stretch` does so on the host
        room = &w.g.rooms[level - 1]
        if room.used and w.device.fill(w, w.device.place(w, room.p), min(room.used, room.bytes) // sizeof(float), NAN):
            return -1
    return 0


cdef void cut_short(Graph* g) noexcept nogil:
    """After a pass that has ended early: its stretches have the batches that have run."""
    cdef Stretch* all = stretches_of(g)
    cdef uint32_t i, n = n_stretches(g)
    while n > 0 and all[n - 1].first >= g.n_batches:
        n -= 1
    while g.last_stretch != NO_STRETCH and g.last_stretch >= n:
        g.last_stretch = all[g.last_stretch].before
    for i in range(n):
        if all[i].end > g.n_batches:
            all[i].end = g.n_batches
            all[i].scratch_end = g.scratch.top
        if all[i].next != NO_STRETCH and all[i].next >= n:
            all[i].next = NO_STRETCH
        if all[i].child != NO_STRETCH and all[i].child >= n:
            all[i].child = all[i].last = NO_STRETCH
        while all[i].last != NO_STRETCH and all[i].last >= n:
            all[i].last = all[all[i].last].before
    array_rewind(&g.stretches, n * sizeof(Stretch))


# ---- rooms and parameters ----------------------------------------------------------------

cdef int open_rooms(Walk* w) noexcept nogil:
    """Allocate rooms of the sizes that stretches need; nothing is in them."""
    cdef Graph* g = w.g
    cdef Room* room
    cdef int i
    for i in range(MOST_DEPTH):
        room = &g.rooms[i]
        if room.bytes >= room.needed:
            continue
        # A room that has become too small is lost until the graph is renewed, so leave space for more.
        room.needed += room.needed // 2 if room.bytes else 0
        room.p = <char*>arena_alloc(&g.values, room.needed)
        room.bytes = room.needed if room.p != NULL else 0
        if room.p == NULL:
            w.failure.needed = room.needed
            return -1
    return 0


cdef inline const Param* parameter_at(const Graph* g, const Node* x, uint32_t i) noexcept nogil:
    """The parameter that is argument i of a node, or the table of a node without arguments; NULL if there is none."""
    cdef const Node* a = x
    if x.nargs:
        a = &nodes_of(g)[args_of(g, x)[i]]
        if a.nargs or a.val != NULL:
            return NULL
    return <const Param*>a.object


cdef int note_reads(Walk* w, uint32_t number) noexcept nogil:
    """Note how often the storages of parameters that stretches read have changed."""
    cdef Graph* g = w.g
    cdef uint32_t b, end
    while number != NO_STRETCH:
        end = stretches_of(g)[number].end
        for b in range(stretches_of(g)[number].first, end):
            if note_reads_of(w, &batches_of(g)[b]):
                return -1
        number = stretches_of(g)[number].next
    return 0


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


cdef int check_parameters(Walk* w, const Stretch* s) noexcept nogil:
    """Fail if a parameter that a stretch reads has changed."""
    cdef uint32_t b
    for b in range(s.first, s.end):
        if check_batch(w, &batches_of(w.g)[b]):
            return -1
    return 0


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


# ---- running again -----------------------------------------------------------------------

cdef inline bint saves(const Walk* w, const Batch* batch) noexcept nogil:
    return op_at(nodes_of(w.g)[order_of(w.g)[batch.first]].op).needs[w.kind].saved != NULL


cdef int run_stretch_again(Walk* w, uint32_t number, uint32_t end) noexcept nogil:
    """Compute the dropped values of a stretch up to a batch, for backward."""
    cdef Stretch* s = &stretches_of(w.g)[number]
    cdef Draws draws = w.draws
    cdef uint64_t begun = now()
    cdef int failed
    s.scratch = w.g.scratch.top
    w.draws = s.draws
    failed = run_inside(w, number, end, s.depth)
    w.draws = draws
    s.scratch_end = w.g.scratch.top
    w.g.again_ns += now() - begun
    if failed:
        drop(w, number)
    return failed


cdef int run_inside(Walk* w, uint32_t number, uint32_t end, uint32_t depth) noexcept nogil:
    """Run a stretch again up to a batch, as a part of the stretch of a depth around it."""
    cdef Stretch* s = &stretches_of(w.g)[number]
    cdef Stretch* inner
    cdef uint32_t b = s.first, child = s.child
    s.resident = True
    while child != NO_STRETCH and stretches_of(w.g)[child].first < end:
        inner = &stretches_of(w.g)[child]
        if run_batches_again(w, b, inner.first, depth):
            return -1
        b = min(inner.end, end)
        inner.scratch = w.g.scratch.top
        if run_inside(w, child, b, depth):
            return -1
        inner.scratch_end = w.g.scratch.top
        if inner.next != NO_STRETCH and stretches_of(w.g)[inner.next].first < end and drop(w, child):
            return -1
        child = inner.next
    return run_batches_again(w, b, end, depth)


cdef int run_batches_again(Walk* w, uint32_t first, uint32_t end, uint32_t depth) noexcept nogil:
    """Compute the values of batches that were dropped with a stretch of a depth, and bring the arguments of the others
    into the form that backward needs."""
    cdef uint32_t n = 0
    cdef int failed
    if is_divided(w):
        return w.device.divide(w, first, end, run_batches_again, depth, False) if first < end else 0
    failed = run_dropped(w, first, end, depth, &n)
    count_again(n)
    return failed


cdef int run_dropped(Walk* w, uint32_t first, uint32_t end, uint32_t depth, uint32_t* n_nodes) noexcept nogil:
    """Compute dropped batches on one device; adds to the number of computed nodes."""
    cdef Graph* g = w.g
    cdef Batch* batch
    cdef uint32_t b = first, k, n
    # Devices mark a batch with pending additions to its gradients as one with pending copies of values (gpu/copies).
    if w.going_back and not w.at_once and w.device.settle(w):
        return -1
    while b < end:
        batch = &batches_of(g)[b]
        if batch.level < depth and is_computed(g, batch) and not saves(w, batch):
            if arrange_again(w, batch):
                return -1
            b += 1
            continue
        n = 1
        while batch.form == TILES and b + n < end and n < MOST_TOGETHER and batch[n].form == TILES:
            n += 1
        for k in range(n):
            if batch[k].level >= depth:
                batch[k].y = claim_batch(g, &batch[k])
                if batch[k].y == NULL:
                    w.failure.needed = batch[k].bytes
                    return -1
                assign_values(g, &batch[k], b + k)
                part_gradients(g, b + k)
        w.number = b
        if w.going_back and batch.level and batch.last == UNREAD_AGAIN:
            if arrange_again(w, batch):
                return -1
            b += n
            continue
        if run_again(w, batch, n):
            return -1
        for k in range(n):
            mark_computed(g, &batch[k])
            batch[k].again += 1
            n_nodes[0] += batch[k].count
        b += n
    return 0 if w.at_once else settle(w)        # backward reads the arguments that were gathered


cdef int arrange_again(Walk* w, Batch* batch) noexcept nogil:
    clear_call(batch)
    if w.listing.in_part:                               # a copy between devices reads its argument where it is
        return 0
    if batch.form == ONE:
        return lay_items(w, batch)
    if batch.form != STACKED and batch.form != FLATTENED and batch.form != COLUMNS:
        return 0
    return arrange(w, batch, op_at(nodes_of(w.g)[order_of(w.g)[batch.first]].op))


cdef inline bint is_computed(const Graph* g, const Batch* batch) noexcept nogil:
    return state_of(g)[order_of(g)[batch.first]] & COMPUTED


cdef void mark_computed(Graph* g, const Batch* batch) noexcept nogil:
    cdef uint32_t j
    for j in range(batch.count):
        state_of(g)[order_of(g)[batch.first + j]] |= <uint8_t>COMPUTED


# ---- backward --------------------------------------------------------------------------

cdef int prepare_backward(Walk* w, uint32_t last) noexcept nogil:
    cdef Graph* g = w.g
    cdef uint32_t number = g.last_stretch
    cdef const Stretch* s
    drop_failed(g)
    if number != NO_STRETCH and stretches_of(g)[number].first > last:
        evict(g, number)                        # it is newer than the target, and the others need its room
    while number != NO_STRETCH:
        s = &stretches_of(g)[number]
        if s.first <= last and not s.resident and check_parameters(w, s):
            return -1
        number = s.before
    return open_missing_rooms(w)


cdef int open_missing_rooms(Walk* w) noexcept nogil:
    cdef int i
    for i in range(MOST_DEPTH):
        if w.g.rooms[i].bytes < w.g.rooms[i].needed:
            evict(w.g, w.g.last_stretch)        # going back to a checkpoint has freed a room
            return open_rooms(w)
    return 0


cdef int run_backward_in_stretches(Walk* w, uint32_t last) noexcept nogil:
    cdef size_t top = w.g.scratch.top
    cdef int failed = go_back_over(w, 0, last + 1, w.g.last_stretch)
    if failed:
        note_failed(w.g, top)
    return failed


cdef int go_back_over(Walk* w, uint32_t begin, uint32_t end, uint32_t number) noexcept nogil:
    """Run batches backward, the last one first; `number` is the last stretch among them."""
    cdef Graph* g = w.g
    cdef Stretch* s
    cdef uint32_t to
    while number != NO_STRETCH:
        s = &stretches_of(g)[number]
        if s.first < end:
            to = min(s.end, end)
            if to < end and run_backward(w, to, end - 1):
                return -1
            if not s.resident and run_stretch_again(w, number, to):
                return -1
            if go_back_over(w, s.first, to, s.last):
                return -1
            if finish_readers(w, s.depth):
                return -1
            evict(w.g, number)
            end = s.first
        number = s.before
    return run_backward(w, begin, end - 1) if begin < end else 0


cdef void note_failed(Graph* g, size_t top) noexcept nogil:
    """Note that backward has failed at a stretch, whose values the error may tell: `drop_failed` drops them.

    Args:
        top: the end of the working memory that there was before this pass; what was above is lost.
    """
    cdef uint32_t number = g.last_stretch
    cdef Stretch* s
    while number != NO_STRETCH:
        s = &stretches_of(g)[number]
        if s.resident:
            s.resident = FAILED
            if s.scratch_end > top:
                s.scratch_end = s.scratch = min(s.scratch, top)
        number = s.before


cdef void drop_failed(Graph* g) noexcept nogil:
    """Drop the values of a stretch at which backward has failed: working memory of it may be lost, and other stretches
    need its room."""
    cdef uint32_t number = g.last_stretch
    while number != NO_STRETCH:
        if stretches_of(g)[number].resident == FAILED:
            evict(g, number)
        number = stretches_of(g)[number].before


# ---- counts ----------------------------------------------------------------------------

cdef void count_again(uint32_t nodes) noexcept nogil:
    add_to(&nodes_again, nodes)
