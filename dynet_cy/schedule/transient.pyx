"""Finds transient values of a plan: no backward reads them, and the program cannot request them.

A batch is transient if

- its own backward does not read its result, and that of no batch that reads it reads that argument (`Op.unread`), or
  every such reader uses a gathered copy, which can be made again from the arguments of this batch, a concatenation;
- no expression refers to one of its nodes, and none is a target of the pass;
- no node outside the plan takes one as an argument;
- running it again would compute the same: its op draws no random numbers and runs no Python.

Its memory is free for others when the last batch has run that reads it (include/dynet_cy/dropping.h). A node that is
made later, or a value that is asked for by the number of its node, has it computed again (execute/rematerialize).

On a device, copies are made together, right before one of them is read (gpu/copies), and the steps of a cell
(gpu/cells) and runs of elementwise batches (gpu/fusion) run with their last batch. So what they read stays until then.
A bias is copied in advance only to values that stay, so small batches are kept: the launch that this saves takes longer
than their memory is worth.

Batches that are kept may be donated: in backward their memory is used for gradients once nothing reads them any more
(include/dynet_cy/gradients.h). The search marks those that can be computed again, and notes the first batch that
reads each of them in backward.

Every number is computed by the same call from the same numbers as otherwise. Calls read arguments in place if these
are adjacent, perhaps in several batches, and how gradients are added depends on that. So a batch is kept if it could be
read together with its neighbours, and gaps are left where transient values would have been.

The search takes about 20 ns a node. It is left out where that would cost more than the caches give back: in plans with
little memory, and in those of small values, of which a few nodes are sampled.
"""

import os

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.engine cimport add_tunable
from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport Number
from dynet_cy.graph.structs cimport (
    COMPUTED, COPIES, CUT, EACH, FUSION, IN_FUSION, IN_STRETCH, MAY_DONATE, NO_BATCH, RESIDENT, SHARED, TILES,
    TRANSIENT, VIEWS, WANTED, WHY_BESIDE, WHY_HELD, WHY_ONCE, WHY_READ, WHY_REQUESTED, WHY_RESULT, WHY_SMALL, WHY_VIEW,
    Batch, Block, Graph, Hole, Node, Room, args_of, batches_of, block_bytes, device_of, give_to_block, held_of,
    nodes_of, order_of, state_of, take_in_block,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.ops.registry cimport CPU, Op, op_at, reads, reads_result
from dynet_cy.schedule.budget cimport bytes_of
from dynet_cy.schedule.facts cimport NONE, PlanFacts, argument, batch_of, is_copied, open_facts

cdef const Op* ops = op_at(0)       # all ops; the table never moves

cdef enum:
    SAMPLED = 32                    # nodes of a plan whose sizes are looked at
    LEAST_ON_AVERAGE = 256          # elements of a node
    LEAST_OF_BATCH = 256            # bytes; less is kept
    LEAST_ON_DEVICE = 1 << 18       # the same on devices

cdef Number least_of_plan = 1 << 20  # bytes; plans with less have no transient values
least_donated = 1 << 12             # bytes of a batch; for less, a list of memory does not pay
# Whether values are transient however little memory they take.  In the environment: for tests.
small_too = os.environ.get("DYNET_CY_DROP_SMALL", "0") not in ("", "0")
add_tunable("schedule.transient.least_of_plan", &least_of_plan)
add_tunable("schedule.transient.least_donated", &least_donated)
add_tunable("schedule.transient.small_too", &small_too, 1)

# In `Search.parts`.
cdef enum:
    UNKNOWN
    LASTING
    CHANGING

# What the search needs to know, in the scratch arena.
cdef struct Search:
    Graph* g
    uint32_t begin, end             # the planned batches
    PlanFacts facts
    uint8_t* kept                   # by batch: why it is kept (WHY_...), or 0
    bint on_device                  # some of it
    uint8_t* parts                  # by batch, of concatenations: whether its parts are the same in backward
    size_t most_along
    uint32_t at                     # the batch whose backward reads what is kept now; NONE: something else does
    uint32_t n                      # batches that are not kept


cdef bint plan_transient(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                         Places* places) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Search s
    cdef bint found
    begin_search(&s, g, n_batches, most_along)
    found = (is_worth_it(g, n_batches) and open_search(&s) and keep_what_is_read(&s, targets, n)
             and lay_out(&s, places))
    arena_rewind(&g.scratch, top)
    return found


cdef bint find_kept(Graph* g, uint32_t n_batches, const uint32_t* targets, uint32_t n, size_t most_along,
                    uint8_t* kept) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Search s
    cdef bint found
    begin_search(&s, g, n_batches, most_along)
    found = is_worth_it(g, n_batches) and open_search(&s) and keep_what_is_read(&s, targets, n)
    if found:
        memcpy(kept, s.kept, n_batches)
    arena_rewind(&g.scratch, top)
    return found


cdef bint lay_out_dropped(Graph* g, uint32_t n_batches, const uint8_t* kept, Places* places) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef Search s
    cdef uint32_t b
    cdef bint found
    begin_search(&s, g, n_batches, 0)
    s.kept = <uint8_t*>kept
    s.n = 0
    for b in range(n_batches):
        s.n += not kept[b]
        batch[b].bytes = bytes_of(g, &batch[b])
    found = lay_out(&s, places)
    arena_rewind(&g.scratch, top)
    return found


cdef void begin_search(Search* s, Graph* g, uint32_t n_batches, size_t most_along) noexcept nogil:
    s.g = g
    s.most_along = most_along
    s.begin = g.n_batches
    s.end = s.begin + n_batches
    s.on_device = g.device != 0 or g.multi_device


cdef bint is_worth_it(const Graph* g, uint32_t n_batches) noexcept nogil:
    """Whether values of a plan take so much memory that the search pays, as a sample of its nodes says."""
    cdef size_t n = g.order.top // sizeof(uint32_t) - g.n_order, sum = 0, sampled = min(n, <size_t>SAMPLED), k
    if n_batches < 2 or g.keeps_for:
        return False
    if small_too:
        return True
    for k in range(sampled):
        sum += total_of(&nodes_of(g)[order_of(g)[g.n_order + k * n // sampled]].dim)
    return sum >= LEAST_ON_AVERAGE * sampled and sum // sampled * n * sizeof(float) >= least_of_plan


cdef bint open_search(Search* s) noexcept nogil:
    """Find the batch of each node.  False: there is no memory."""
    cdef uint32_t n_batches = s.end - s.begin
    s.kept = <uint8_t*>arena_alloc(&s.g.scratch, 2 * <size_t>n_batches)
    if s.kept == NULL:
        return False
    memset(s.kept, 0, 2 * <size_t>n_batches)
    s.parts = s.kept + n_batches
    return open_facts(&s.facts, s.g, s.begin, n_batches)


cdef inline void keep(Search* s, uint32_t b, uint8_t why) noexcept nogil:
    if b != NONE:
        s.kept[b - s.begin] |= why
        note_reader(s, b)


cdef inline void note_reader(const Search* s, uint32_t b) noexcept nogil:
    """The batch that is looked at reads batch b; as these are looked at in order, the first one counts."""
    cdef Batch* batch = &batches_of(s.g)[b]
    if batch.reader == 0:
        batch.reader = s.at + 1                     # 0 if nothing reads it in backward: it stays so


# ---- which ------------------------------------------------------------------------------

cdef bint keep_what_is_read(Search* s, const uint32_t* targets, uint32_t n) noexcept nogil:
    """Mark the batches that are kept, and find the last reader of the others.  False: all are kept."""
    cdef Graph* g = s.g
    cdef Batch* batch
    cdef uint32_t b, i
    for b in range(s.begin, s.end):
        batch = &batches_of(g)[b]
        s.at = b
        batch.last = end_of_run(s, b)
        batch.reader = batch.lifetime = 0         # a plan that is divided is searched again
        if batch.count == 1 and batch.form != VIEWS and not s.on_device:
            look_at_one(s, batch, b)
            continue
        s.kept[b - s.begin] |= keeps_itself(s, batch)
        keep_arguments(s, b)
        if batch.cell:
            extend_arguments(s, batch, batch.cell - 1)
        elif batch.form == FUSION or batch.form == IN_FUSION:
            extend_arguments(s, batch, end_of_run(s, b))
            keep_what_is_copied(s, batch)
    s.at = NONE
    if s.on_device:
        keep_copied_last(s)
    for i in range(n):
        keep(s, batch_of(&s.facts, targets[i]), WHY_REQUESTED)
    keep_for_others(s)
    s.n = 0
    for b in range(s.begin, s.end):
        batches_of(g)[b].why = s.kept[b - s.begin]
        s.n += not s.kept[b - s.begin]
    if not s.on_device and g.spares_for == 0:
        mark_donatable(s)
    return s.n != 0


cdef void mark_donatable(const Search* s) noexcept nogil:
    """Mark the kept batches whose memory backward may use once it has read them: they can be computed again."""
    cdef Graph* g = s.g
    cdef Batch* batch
    cdef const Op* op
    cdef uint32_t b
    for b in range(s.begin, s.end):
        batch = &batches_of(g)[b]
        op = &ops[nodes_of(g)[order_of(g)[batch.first]].op]
        if s.kept[b - s.begin] and batch.form != VIEWS and not op.random and op.raised == NULL:
            batch.lifetime = MAY_DONATE
            g.may_donate = True


cdef inline void look_at_one(Search* s, Batch* batch, uint32_t b) noexcept nogil:
    """What `keeps_itself` and `keep_arguments` do, for a batch of one node."""
    cdef Graph* g = s.g
    cdef uint32_t number = order_of(g)[batch.first], i, of
    cdef const Node* x = &nodes_of(g)[number]
    cdef const Op* op = &ops[x.op]
    cdef const uint32_t* args = args_of(g, x)
    batch.bytes = total_of(&x.dim) * sizeof(float)
    s.kept[b - s.begin] |= (keeps_op(op) or (WHY_HELD if held_of(g)[number] else WHY_SMALL
                                             if batch.bytes < least_of(g, number) else 0))
    for i in range(x.nargs):
        of = batch_of(&s.facts, args[i])
        if of == NONE:
            continue
        batches_of(g)[of].last = b
        if reads(op, i):
            keep(s, of, WHY_READ)


cdef inline size_t least_of(const Graph* g, uint32_t node) noexcept nogil:
    """The least bytes of a batch that is not kept, whose first node is this one."""
    return 1 if small_too else LEAST_ON_DEVICE if device_of(g, node) else LEAST_OF_BATCH


cdef inline uint8_t keeps_op(const Op* op) noexcept nogil:
    """Why the values of an op are kept, whatever else there is in the graph; 0: they need not be."""
    return WHY_RESULT if reads_result(op) else WHY_ONCE if op.random or op.raised != NULL else 0


cdef uint8_t keeps_itself(const Search* s, Batch* batch) noexcept nogil:
    """Why a batch is kept whoever reads it, or 0; sets its bytes."""
    cdef const Graph* g = s.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Op* op = &ops[nodes_of(g)[ids[0]].op]
    cdef const uint8_t* held = held_of(g)
    cdef uint32_t j
    if batch.form == VIEWS or keeps_op(op):
        return WHY_VIEW if batch.form == VIEWS else keeps_op(op)
    batch.bytes = 0
    for j in range(batch.count):
        if held[ids[j]]:
            return WHY_HELD
        batch.bytes += total_of(&nodes_of(g)[ids[j]].dim) * sizeof(float)
    return WHY_SMALL if batch.bytes < least_of(g, ids[0]) else 0


cdef void keep_arguments(Search* s, uint32_t b) noexcept nogil:
    """Keep what the backward of a batch reads of its arguments; note it as the reader of the others."""
    cdef Graph* g = s.g
    cdef const Batch* batch = &batches_of(g)[b]
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Op* op = &ops[nodes_of(g)[ids[0]].op]
    cdef uint32_t i, j, of, before, n_args = nodes_of(g)[ids[0]].nargs
    cdef bint read, adjacent, parted
    for i in range(n_args):
        read = batch.form == VIEWS or reads(op, i)
        adjacent = True                             # they may be read in place, although they are in several batches
        if read and not s.on_device and read_through(s, batch, op, i):
            read = adjacent = False
        parted = False
        before = NONE
        for j in range(batch.count):
            of = batch_of(&s.facts, args_of(g, &nodes_of(g)[ids[j]])[i])
            if j and of != before:
                parted = True
                adjacent = adjacent and (of == before + 1 or before == NONE or of == NONE)
            before = of
            if of == NONE:
                continue
            if batches_of(g)[of].form == COPIES and batches_of(g)[of].last == of:
                read_copies(s, of, b)
            batches_of(g)[of].last = max(batches_of(g)[of].last, b)
            if read:
                keep(s, of, WHY_VIEW if batch.form == VIEWS else WHY_READ)
        if parted and adjacent and not read:
            for j in range(batch.count):
                keep(s, batch_of(&s.facts, args_of(g, &nodes_of(g)[ids[j]])[i]), WHY_BESIDE)


cdef void extend_arguments(Search* s, const Batch* batch, uint32_t until) noexcept nogil:
    """Extend the lifetime of the arguments of a batch until another one has run."""
    cdef Graph* g = s.g
    cdef const Node* x
    cdef uint32_t i, j, of
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        for i in range(x.nargs):
            of = batch_of(&s.facts, args_of(g, x)[i])
            if of != NONE:
                batches_of(g)[of].last = max(batches_of(g)[of].last, until)


cdef uint32_t end_of_run(const Search* s, uint32_t b) noexcept nogil:
    """The batch with which a batch runs: the last one of its run of elementwise batches, or itself."""
    while batches_of(s.g)[b].form == IN_FUSION:
        b += 1
    return b


cdef void keep_what_is_copied(Search* s, const Batch* batch) noexcept nogil:
    """Keep the sources of those arguments of a batch that are copied before their first reader runs."""
    cdef const Node* x
    cdef uint32_t i, j, of
    for j in range(batch.count):
        x = &nodes_of(s.g)[order_of(s.g)[batch.first + j]]
        for i in range(x.nargs):
            of = batch_of(&s.facts, args_of(s.g, x)[i])
            if of != NONE and batches_of(s.g)[of].form == COPIES:
                keep_all_arguments(s, &batches_of(s.g)[of])


cdef void keep_all_arguments(Search* s, const Batch* batch) noexcept nogil:
    cdef const Node* x
    cdef uint32_t i, j
    for j in range(batch.count):
        x = &nodes_of(s.g)[order_of(s.g)[batch.first + j]]
        for i in range(x.nargs):
            keep(s, batch_of(&s.facts, args_of(s.g, x)[i]), WHY_READ)


cdef void read_copies(Search* s, uint32_t copies, uint32_t reader) noexcept nogil:
    """A batch reads copies, as the first one: they are made by then, unless they are copied again."""
    if batches_of(s.g)[reader].form == COPIES:
        keep(s, copies, WHY_READ)
        keep_all_arguments(s, &batches_of(s.g)[copies])
    else:
        extend_arguments(s, &batches_of(s.g)[copies], reader)


cdef void keep_copied_last(Search* s) noexcept nogil:
    """Keep what is copied at the end of the pass: nothing reads the copies."""
    cdef uint32_t b
    for b in range(s.begin, s.end):
        if batches_of(s.g)[b].form == COPIES and batches_of(s.g)[b].last == b:
            keep_all_arguments(s, &batches_of(s.g)[b])


# ---- concatenations -----------------------------------------------------------------------
#
# A batch copies an argument if its values are not side by side, and gives large copies back after forward.  Backward
# makes them again (execute/gradients).  The copy of a concatenation may just as well be made of its arguments, so the
# concatenation itself need not be kept.

cdef bint read_through(Search* s, const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether backward reads argument i of a batch as a copy, in which concatenations come from their own arguments;
    these are kept."""
    cdef Graph* g = s.g
    cdef uint32_t j, k, arg, of
    cdef const Node* x
    if not reads_parts(&s.facts, batch, op, i, s.most_along):
        return False
    for j in range(batch.count):
        arg = argument(g, batch, j, i)
        of = batch_of(&s.facts, arg)
        if not is_of_parts(g, arg):
            keep(s, of, WHY_READ)
            continue
        if s.parts[of - s.begin] == UNKNOWN:
            s.parts[of - s.begin] = LASTING if have_copies(g, &batches_of(g)[of]) else CHANGING
        if s.parts[of - s.begin] == CHANGING:
            keep(s, of, WHY_READ)
        x = &nodes_of(g)[arg]
        for k in range(x.nargs):
            keep(s, batch_of(&s.facts, args_of(g, x)[k]), WHY_READ)
    return True


cdef bint reads_parts(const PlanFacts* facts, const Batch* batch, const Op* op, uint32_t i,
                      size_t most_along) noexcept nogil:
    cdef uint32_t arg = argument(facts.g, batch, 0, i)
    return batch_of(facts, arg) != NONE and is_of_parts(facts.g, arg) and is_copied(facts, batch, op, i, most_along)


cdef bint is_of_parts(const Graph* g, uint32_t node) noexcept nogil:
    cdef const Node* x = &nodes_of(g)[node]
    return ops[x.op].needs[CPU].laid != NULL and ops[x.op].needs[CPU].laid(&x.dim, x.attrs)


cdef bint have_copies(const Graph* g, const Batch* batch) noexcept nogil:
    """Whether there will be copies of the parameters that are arguments of a batch, since these may change before
    backward: one for each place among the arguments."""
    cdef uint32_t i, j, arg, found
    for i in range(nodes_of(g)[order_of(g)[batch.first]].nargs):
        found = NONE
        for j in range(batch.count):
            arg = argument(g, batch, j, i)
            if not state_of(g)[arg] & SHARED:
                continue
            if found != NONE and found != arg or batch.count == 1 or batch.form == EACH:
                return False
            found = arg
    return True


cdef void keep_for_others(Search* s) noexcept nogil:
    """Keep the arguments of nodes that are not computed by this plan."""
    cdef Graph* g = s.g
    cdef const uint8_t* state = state_of(g)
    cdef const Node* x
    cdef uint32_t i, k
    for i in range(s.facts.lowest + 1, g.n_nodes):
        if state[i] & (COMPUTED | WANTED):
            continue
        x = &nodes_of(g)[i]
        if x.batch != NO_BATCH:                     # it has been dropped itself
            continue
        for k in range(x.nargs):
            keep(s, batch_of(&s.facts, args_of(g, x)[k]), WHY_REQUESTED)


# ---- where ------------------------------------------------------------------------------

cdef size_t open_places(Graph* g, uint32_t n_batches, const Places* places) noexcept nogil:
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef char* block = <char*>arena_alloc(&g.grads, places.block)
    cdef uint32_t b
    if block == NULL:
        return places.block
    for b in range(n_batches):
        if batch[b].level:
            batch[b].y = <float*>(block + <size_t>batch[b].y + (places.at if batch[b].lifetime & RESIDENT else 0))
    g.has_dropped = True
    if places.stays:
        g.room = Room(block, places.block, block + places.at, places.stays, max(places.stays, places.least), False)
    return 0


cdef void keep_all(Graph* g, uint32_t n_batches) noexcept nogil:
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef uint32_t b
    for b in range(n_batches):
        batch[b].level = batch[b].planned = 0
        batch[b].lifetime &= <uint16_t>~(IN_STRETCH | CUT | RESIDENT)


cdef bint lay_out(Search* s, Places* places) noexcept nogil:
    """Give the batches that are not kept their parts of one block: `y` is set to where in the block.  False: there is
    no memory.  Those that stay after the pass have one part together, from the first of them on."""
    cdef Graph* g = s.g
    cdef Batch* batches = batches_of(g)
    cdef Block block
    cdef size_t* at = <size_t*>arena_alloc(&g.scratch, (s.end - s.begin) * sizeof(size_t))
    cdef uint32_t* first = <uint32_t*>arena_alloc(&g.scratch, (s.end - s.begin) * sizeof(uint32_t))
    cdef uint32_t* following = <uint32_t*>arena_alloc(&g.scratch, (s.end - s.begin) * sizeof(uint32_t))
    cdef uint32_t b = s.begin, k, after, room = NONE
    cdef size_t alive = 0, most = 0                 # bytes at a time
    memset(&block, 0, sizeof(Block))
    block.holes = <Hole*>arena_alloc(&g.scratch, (s.n + <size_t>2) * sizeof(Hole))
    if at == NULL or first == NULL or following == NULL or block.holes == NULL:
        return False
    memset(first, 0xFF, (s.end - s.begin) * sizeof(uint32_t))   # by batch: the first of those that it reads last
    while b < s.end:
        after = end_of_tiles(s, b)                  # they may run together
        for k in range(b, after):
            if places.stays and room == NONE and batches[k].lifetime & RESIDENT:
                room = b
                places.at = take_in_block(&block, places.stays)
                alive += places.stays
            if not s.kept[k - s.begin]:
                at[k - s.begin] = take_in_block(&block, block_bytes(batches[k].bytes))
                alive += block_bytes(batches[k].bytes)
                following[k - s.begin] = first[batches[k].last - s.begin]
                first[batches[k].last - s.begin] = k
        most = max(most, alive)
        while b < after:
            k = first[b - s.begin]
            while k != NONE:
                give_to_block(&block, at[k - s.begin], block_bytes(batches[k].bytes))
                alive -= block_bytes(batches[k].bytes)
                k = following[k - s.begin]
            b += 1
    if block.end - most >= LEAST_WASTE and s.n <= MOST_PLACED:
        block.end = place_large_first(s, at, block.end, places, room)
    for b in range(s.begin, s.end):
        if not s.kept[b - s.begin]:
            batches[b].y = <float*>at[b - s.begin]
            if batches[b].level == 0:
                batches[b].level = batches[b].planned = <uint8_t>TRANSIENT
    places.block = max(block.end, places.at + places.least)
    return True


cdef inline uint32_t end_of_tiles(const Search* s, uint32_t b) noexcept nogil:
    """One past the last of the batches that may run together with a batch and end at the same time."""
    cdef const Batch* batches = batches_of(s.g)
    cdef uint32_t after = b + 1
    while batches[b].form == TILES and after < s.end and batches[after].form == TILES:
        after += 1
    return after


# Where memory is taken batch by batch, a small batch may come to lie where two large ones would follow each other, and
# the second one finds no room.  Then all batches of a plan are placed again: the largest first, each as far in front as
# those allow that are placed already and needed at the same time.  Without this, the forward pass of the tagger takes
# 10.8 % more memory (9.1 % with letters; 1.7 % where backward follows).

cdef enum:
    LEAST_WASTE = 1 << 16           # bytes of a block beyond what its values take at a time
    MOST_PLACED = 512               # batches, each of which is compared with all others

cdef struct Buffer:
    size_t bytes, at
    uint32_t batch                  # NONE: those that stay
    uint32_t begin, end             # the batches during which it is needed; `end` is the last one


cdef size_t place_large_first(const Search* s, size_t* at, size_t end, Places* places, uint32_t room) noexcept nogil:
    """Find other places in a block, if it becomes shorter than `end`; the new end.  `room`: the batch from which on
    values stay, or NONE."""
    cdef const Batch* batches = batches_of(s.g)
    cdef Buffer* buffers = <Buffer*>arena_alloc(&s.g.scratch, 2 * (s.n + <size_t>1) * sizeof(Buffer))
    cdef Buffer* placed = buffers + s.n + 1         # in the order of the block
    cdef uint32_t b = s.begin, k, after, n = 0
    cdef size_t shorter = 0
    if buffers == NULL:
        return end
    while b < s.end:
        after = end_of_tiles(s, b)
        for k in range(b, after):
            if not s.kept[k - s.begin]:
                add_by_size(buffers, n, block_bytes(batches[k].bytes), k, b, end_of_tiles(s, batches[k].last) - 1)
                n += 1
        b = after
    if room != NONE:
        add_by_size(buffers, n, places.stays, NONE, room, s.end - 1)
        n += 1
    for k in range(n):
        shorter = max(shorter, place(placed, k, &buffers[k]))
    if shorter >= end:
        return end
    for k in range(n):
        if placed[k].batch == NONE:
            places.at = placed[k].at
        else:
            at[placed[k].batch - s.begin] = placed[k].at
    return shorter


cdef void add_by_size(Buffer* buffers, uint32_t n, size_t bytes, uint32_t batch, uint32_t begin,
                      uint32_t end) noexcept nogil:
    """Insert a batch among n others, behind those that are at least as large."""
    while n > 0 and buffers[n - 1].bytes < bytes:
        buffers[n] = buffers[n - 1]
        n -= 1
    buffers[n].bytes = bytes
    buffers[n].batch = batch
    buffers[n].begin = begin
    buffers[n].end = end


cdef size_t place(Buffer* placed, uint32_t n, const Buffer* x) noexcept nogil:
    """Place a batch among n others in the first gap between those that are needed at the same time; where it ends."""
    cdef size_t at = 0
    cdef uint32_t i
    for i in range(n):
        if placed[i].begin > x.end or x.begin > placed[i].end:
            continue
        if at + x.bytes <= placed[i].at:
            break
        at = max(at, placed[i].at + placed[i].bytes)
    i = n
    while i > 0 and placed[i - 1].at > at:
        placed[i] = placed[i - 1]
        i -= 1
    placed[i] = x[0]
    placed[i].at = at
    return at + x.bytes
