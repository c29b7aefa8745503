"""Batches on a device whose results are copies of their arguments, made by moves.

A concatenation of vectors is its arguments, one after the other; so is a reshaped value (`laid` of an op's needs).
Such a batch has no launch of its own: forward, copies are added to the group of moves that is being collected, which
runs before the next command that reads one of them.  Backward, the parts of its gradient are added to those of the
arguments likewise.  So many such batches, and the copies that other batches need, are one launch.

Such a batch runs as late as possible, right before the first batch that uses it.  So backward, which goes the other
way, adds to the gradients of its arguments early, with those of all other copies that this batch uses, and not between
two batches of the arguments: when the outputs of a recurrent network are concatenated step by step, the steps back
through time need no launch for them.

If nothing else uses the argument, a reshaped value needs no copy: it is a view, as ranges are on the CPU
(execute/walk).
"""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.gradients cimport contribute
from dynet_cy.execute.walk cimport Walk, clear_call, place_of, settle, settle_gradients, views_backward
from dynet_cy.gpu.commands cimport Pass, copy_later, device_forms, first_of
from dynet_cy.graph.structs cimport (
    COPIES, LIVE, NEEDS_GRAD, NO_BATCH, VIEWS, Batch, Node, args_of, batches_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport GPU, op_at
from dynet_cy.schedule.facts cimport PlanFacts, batch_of, count_readers, open_facts


cdef void find_copies(Graph* g, uint32_t n) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Batch* batch
    cdef uint32_t b
    cdef bint some = False
    for b in range(g.n_batches, g.n_batches + n):
        batch = &batches_of(g)[b]
        if op_at(first_of(g, batch).op).needs[GPU].laid != NULL and are_copies(g, batch):
            batch.form = COPIES
            some = True
    if some:
        find_views(g, n)
        bring_to_users(g, g.n_batches, n)
        arena_rewind(&g.scratch, top)


cdef bint are_copies(const Graph* g, const Batch* batch) noexcept nogil:
    cdef const Node* x
    cdef uint32_t j
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        if not op_at(x.op).needs[GPU].laid(&x.dim, x.attrs):
            return False
    return True


# ---- views ---------------------------------------------------------------------------

cdef void find_views(Graph* g, uint32_t n) noexcept nogil:
    """Let batches of copies be views if each of their nodes is a whole value of the plan that nothing else uses.

    If there is no memory, they stay copies.
    """
    cdef size_t top = g.scratch.top
    cdef PlanFacts facts
    cdef const uint32_t* readers = count_readers(&facts) if open_facts(&facts, g, g.n_batches, n) else NULL
    cdef uint32_t b
    for b in range(g.n_batches, g.n_batches + n if readers != NULL else 0):
        if batches_of(g)[b].form == COPIES and are_views(&facts, &batches_of(g)[b], readers):
            batches_of(g)[b].form = VIEWS
    arena_rewind(&g.scratch, top)


cdef bint are_views(const PlanFacts* facts, const Batch* batch, const uint32_t* readers) noexcept nogil:
    cdef const Graph* g = facts.g
    cdef const Node* x
    cdef uint32_t j, arg
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        arg = args_of(g, x)[0]
        # A view of a copy or of a view would have to wait for it, or to move with it.
        if (x.nargs != 1 or batch_of(facts, arg) == NO_BATCH or readers[arg - facts.lowest] != 1
                or op_at(nodes_of(g)[arg].op).needs[GPU].laid != NULL):
            return False
    return True


cdef int views_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef Graph* g = w.g
    cdef Node* x
    cdef uint32_t j
    # Views live as long as their arguments, which are dropped in such graphs.
    if g.forward_only or g.regions.top or g.stretches.top:
        batch.form = COPIES
        return copies_forward(w, batch, n)
    clear_call(batch)
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        x.val = nodes_of(g)[args_of(g, x)[0]].val
        x.batch = w.number
    return 0


cdef int backward_of_views(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    w.n_live_in_batch = views_backward(w.g, batch)
    return 0


# ---- their place in the plan ----------------------------------------------------------

# Where a planned batch goes.
cdef struct Slot:
    uint32_t before                 # the batch before which it runs: itself, or of copies the first batch that uses one
    uint32_t first                  # the first of the batches that go before this one, or NO_BATCH
    uint32_t following              # the next one that goes before the same batch, or NO_BATCH


cdef void bring_to_users(Graph* g, uint32_t first, uint32_t n) noexcept nogil:
    """Move batches of copies right before the first batches that use them.  The plan stays if there is no memory."""
    cdef const Batch* batches = batches_of(g) + first
    cdef Slot* slots = <Slot*>arena_alloc(&g.scratch, n * sizeof(Slot))
    cdef uint32_t b
    cdef bint moved = False
    if slots == NULL:
        return
    for b in range(n):
        slots[b].before = b if batches[b].form != COPIES else NO_BATCH
        slots[b].first = slots[b].following = NO_BATCH
        if b and batches[b].first != batches[b - 1].first + batches[b - 1].count:
            return
    if not find_slots(g, first, n, slots):
        return
    b = n
    while b:                                    # so that those before one batch keep their order
        b -= 1
        if slots[b].before != b:
            slots[b].following = slots[slots[b].before].first
            slots[slots[b].before].first = b
            moved = moved or slots[b].before != b + 1
    if moved:
        write_plan(g, first, n, slots)


cdef bint find_slots(Graph* g, uint32_t first, uint32_t n, Slot* slots) noexcept nogil:
    """Find where batches of copies go; False if there is no memory."""
    cdef const Batch* batches = batches_of(g) + first
    cdef uint32_t b, i, j, of
    cdef PlanFacts facts
    cdef const Node* x
    cdef const uint32_t* args
    if not open_facts(&facts, g, first, n):
        return False
    b = n
    while b:                                    # all users of a batch have their slots
        b -= 1
        if slots[b].before == NO_BATCH:         # nothing uses it
            slots[b].before = b
        for j in range(batches[b].count):
            x = &nodes_of(g)[order_of(g)[batches[b].first + j]]
            args = args_of(g, x)
            for i in range(x.nargs):
                of = batch_of(&facts, args[i])
                if of != NO_BATCH and batches[of - first].form == COPIES:
                    slots[of - first].before = min(slots[of - first].before, slots[b].before)
    return True


cdef void write_plan(Graph* g, uint32_t first, uint32_t n, const Slot* slots) noexcept nogil:
    """Bring the batches and their nodes into their new order; if there is no memory, they stay."""
    cdef Batch* batches = batches_of(g) + first
    cdef uint32_t at = batches[0].first, k = 0, b
    cdef uint32_t* order = order_of(g) + at
    cdef size_t nodes = batches[n - 1].first + batches[n - 1].count - at
    cdef Batch* old = <Batch*>arena_alloc(&g.scratch, n * sizeof(Batch))
    cdef uint32_t* ids = <uint32_t*>arena_alloc(&g.scratch, nodes * sizeof(uint32_t))
    cdef uint32_t* sequence = <uint32_t*>arena_alloc(&g.scratch, n * sizeof(uint32_t))
    if old == NULL or ids == NULL or sequence == NULL:
        return
    memcpy(old, batches, n * sizeof(Batch))
    memcpy(ids, order, nodes * sizeof(uint32_t))
    for b in range(n):
        if slots[b].before == b:
            list_group(slots, b, sequence, &k)
    for k in range(n):
        b = sequence[k]
        batches[k] = old[b]
        batches[k].first = at
        memcpy(order, ids + (old[b].first - old[0].first), old[b].count * sizeof(uint32_t))
        order += old[b].count
        at += old[b].count


cdef inline void list_group(const Slot* slots, uint32_t b, uint32_t* sequence, uint32_t* k) noexcept nogil:
    """List the batches that go before a batch, then itself."""
    cdef uint32_t other = slots[b].first
    while other != NO_BATCH:
        sequence[k[0]] = other
        k[0] += 1
        other = slots[other].following
    sequence[k[0]] = b
    k[0] += 1


# ---- forward and backward --------------------------------------------------------------

# How often a copy of a copy is followed to what it copies.
cdef enum:
    DEPTH = 4


cdef int copies_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef const Node* x
    cdef float* y = batch.y
    cdef uint32_t j
    cdef bint pending = w.listing.pending
    clear_call(batch)
    if w.device.send_arguments(w, batch):
        return -1
    w.listing.pending = pending                         # arguments that are copies themselves need not be there first
    if settle(w):
        return -1
    for j in range(batch.count):
        x = &nodes_of(w.g)[order_of(w.g)[batch.first + j]]
        if copy_parts(w, x, y, DEPTH):
            return -1
        y += total_of(&x.dim)
    return 0


cdef int copy_parts(Walk* w, const Node* x, float* y, int depth) noexcept nogil:
    """Copy the arguments of a node to y, and follow copies that wait themselves to their sources, at most `depth`
    levels; one that lies deeper is made now."""
    cdef const Node* a
    cdef uint32_t i
    for i in range(x.nargs):
        a = &nodes_of(w.g)[args_of(w.g, x)[i]]
        if waits(w, a) and depth > 0:
            if copy_parts(w, a, y, depth - 1):
                return -1
        elif ((waits(w, a) and w.device.settle(w))
              or copy_later(<Pass*>w, y, place_of(w, a.val) if a.val != NULL else (<Param*>a.object).device_value,
                            total_of(&a.dim))):
            return -1
        y += total_of(&a.dim)
    return 0


cdef inline bint waits(const Walk* w, const Node* x) noexcept nogil:
    """Whether the value of a node is copies that have not been made yet."""
    return x.batch != NO_BATCH and w.listing.owed != NULL and w.listing.owed[x.batch] == w.listing.turn


cdef int copies_backward(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef const Node* x
    cdef const Node* a
    cdef const float* dy
    cdef uint32_t i, j, id
    cdef size_t size
    if batch.dy == NULL:                        # the loss depends on none of them
        return 0
    if settle_gradients(w, w.number):
        return -1
    dy = place_of(w, batch.dy)
    w.n_live = 0
    for j in range(batch.count):
        id = order_of(w.g)[batch.first + j]
        x = &nodes_of(w.g)[id]
        if (state_of(w.g)[id] & (LIVE | NEEDS_GRAD)) != (LIVE | NEEDS_GRAD):
            dy += total_of(&x.dim)
            continue
        w.n_live += 1
        for i in range(x.nargs):
            a = &nodes_of(w.g)[args_of(w.g, x)[i]]
            size = total_of(&a.dim)
            if contribute(w, args_of(w.g, x)[i], dy, size, 1):
                return -1
            dy += size
    w.n_live_in_batch += w.n_live
    return settle(w)


device_forms()[VIEWS].forward = views_forward
device_forms()[VIEWS].backward = backward_of_views
device_forms()[COPIES].forward = copies_forward
device_forms()[COPIES].backward = copies_backward
