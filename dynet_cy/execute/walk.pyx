"""The forward walk over the batches of a plan, for all devices; forms that run in pieces or as views."""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport NAN
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memmove, memset

from dynet_cy.core.engine cimport add_count, add_tunable
from dynet_cy.core.tensor cimport MOST_ALONG, Call, Dim, Tensor, cols_of, rows_of, total_of
from dynet_cy.core.threads cimport Number, add_to, begin_interrupts, interrupted, now, raise_interrupt
from dynet_cy.execute.gradient_memory cimport begin_lending
from dynet_cy.graph.origin cimport explain, made_at
from dynet_cy.graph.structs cimport (
    COMPUTED, COPIES, EACH, IN_STRETCH, LIVE, MAY_DONATE, NEEDS_GRAD, NO_BATCH, NO_NODE, RESIDENT, SHARED, STRIPPED,
    TILES, TRANSIENT, VIEWS, Batch, Graph, Laid, Node, args_of, batches_of, begin_gradients, gradient_of_node, home_of,
    is_dropped, join_gradients, nodes_of, order_of, release_arguments, state_of, unclaim_values, value_arrives,
)
from dynet_cy.kernels.kernels cimport random_seed
from dynet_cy.kernels.product cimport note_caller
from dynet_cy.memory.arena cimport ALIGN, Arena, arena_alloc, arena_offset, arena_rewind, segment_of
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.index cimport locate, located, located_refusal, refused, refused_element
from dynet_cy.ops.registry cimport CPU, LIST, SHARE, UNCHANGED, Needs, Op, op_at, rule_of
from dynet_cy.schedule.budget cimport LEAST_AGAIN, is_limited
from dynet_cy.schedule.plan cimport argument_of, end_of_run, fetch, fetch_from, may_be_value, view_at
from dynet_cy.schedule.transient cimport small_too
from dynet_cy.schedule.verify cimport verify
from dynet_cy.watch.instruments cimport AGAIN, NOTHING, bad_values, checking, note_call, profiling, raise_anomaly
from dynet_cy.watch.usage cimport raise_no_memory

from dynet_cy.memory.storage import parameter_names


# ==== pieces ======================================================================================
#
# Elementwise batches whose arguments are not adjacent in memory, run in pieces that are.
#
# The arguments of a long elementwise batch are seldom adjacent: those of `cmult(i, u)` are some of the results of one
# batch and all results of another.  To make them adjacent, each number would have to be copied before it is used, and
# each gradient once more after it is computed.  Instead the op is called for one piece after another.  A piece is a run
# of nodes that are adjacent in all of their arguments.
#
# Such batches often follow each other: the logistic, tanh, products and sums of a gate. If they ran one after another,
# the results of each would have left the cache before the next one reads them. So they run together, in tiles that fit
# a cache: all batches compute their nodes up to some node number, then up to the next one. Arguments have smaller
# numbers than the nodes that use them, and programs make the nodes of one cell in a row, so a tile has whole cells.
#
# Every number is computed by the same formula from the same numbers as otherwise. Gradients get the same contributions,
# but if a gradient gets more than two of them from several tiles, they may be added in another order.

cdef enum:
    FEW_ARGUMENTS = 4                         # arguments; for nodes with more of them, pieces of backward have one node
    TILE = 1 << 17                  # bytes of results that, with arguments and gradients, fit the second-level cache

cdef uint32_t EVERY = 0xFFFFFFFFu

cdef Number in_pieces = 0           # batches that ran forward in pieces
cdef Number tiles = 0
add_count("execute.walk.pieces.batches", &in_pieces)
add_count("execute.walk.pieces.tiles", &tiles)

# One of the batches that run together.
cdef struct TiledBatch:
    const Batch* batch
    const Op* op
    const uint32_t* ids             # of its nodes
    Tensor* x
    Call call
    float** dx                      # with `backward_all`: of each argument
    uint8_t* adds
    uint32_t at                     # forward: the first node that has not run; backward: one past the last such node


cdef inline Node* first_node(const Graph* g, const Batch* batch) noexcept nogil:
    return &nodes_of(g)[order_of(g)[batch.first]]


# ---- parts and pieces -----------------------------------------------------------------

cdef inline void set_length(TiledBatch* p, size_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(p.call.n):
        p.x[i].dim.d[0] = <uint32_t>n
    p.call.y.dim.d[0] = p.call.dy.dim.d[0] = p.call.dx.dim.d[0] = <uint32_t>n


cdef inline void make_flat(Dim* d) noexcept nogil:
    d.nd = 1
    d.bd = 1


cdef TiledBatch* open_parts(Graph* g, const Batch* batch, uint32_t n, bint back, size_t* needed) noexcept nogil:
    """The parts of a run over n batches, in the scratch arena; NULL if there is no memory."""
    cdef TiledBatch* parts = <TiledBatch*>take_noting(g, n * sizeof(TiledBatch), needed)
    cdef TiledBatch* p
    cdef Node* node
    cdef uint32_t i, k
    cdef size_t work
    if parts == NULL:
        return NULL
    memset(parts, 0, n * sizeof(TiledBatch))
    for k in range(n):
        p = &parts[k]
        node = first_node(g, &batch[k])
        p.batch = &batch[k]
        p.op = op_at(node.op)
        p.ids = order_of(g) + batch[k].first
        p.at = batch[k].count if back else 0
        p.x = <Tensor*>take_noting(g, node.nargs * sizeof(Tensor), needed)
        if p.x == NULL:
            return NULL
        memset(p.x, 0, node.nargs * sizeof(Tensor))
        for i in range(node.nargs):
            make_flat(&p.x[i].dim)
        if back and p.op.backward_all != NULL:
            p.dx = <float**>take_noting(g, node.nargs * sizeof(float*), needed)
            p.adds = <uint8_t*>take_noting(g, node.nargs, needed)
            if p.dx == NULL or p.adds == NULL:
                return NULL
        p.call.n = node.nargs
        p.call.x = p.x
        p.call.attrs = node.attrs
        p.call.object = node.object
        make_flat(&p.call.y.dim)
        make_flat(&p.call.dy.dim)
        make_flat(&p.call.dx.dim)
        if p.op.work != NULL:
            set_length(p, batch[k].bytes // sizeof(float))
            work = 0
            for i in range(node.nargs if back else 1):
                work = max(work, p.op.work(&p.call, <int>i if back else -1))
            p.call.work = <float*>take_noting(g, work * sizeof(float), needed)
            if p.call.work == NULL:
                return NULL
    return parts


cdef inline void* take_noting(Graph* g, size_t bytes, size_t* needed) noexcept nogil:
    cdef void* p = arena_alloc(&g.scratch, bytes)
    if p == NULL:
        needed[0] = bytes
    return p


cdef TiledBatch* longest(TiledBatch* parts, uint32_t n) noexcept nogil:
    """The part with the most nodes, which determines where tiles end."""
    cdef TiledBatch* found = parts
    cdef uint32_t k
    for k in range(1, n):
        if parts[k].batch.count > found.batch.count:
            found = &parts[k]
    return found


cdef uint32_t tile_of(const TiledBatch* parts, uint32_t n, const TiledBatch* leader) noexcept nogil:
    """How many nodes of the leader are one tile.  A single batch is one tile, since its nodes may be in any order."""
    cdef size_t bytes = 0
    cdef uint32_t k
    if n == 1:
        return leader.batch.count
    for k in range(n):
        bytes += parts[k].batch.bytes
    return <uint32_t>min(<size_t>leader.batch.count, 1 + TILE // (1 + bytes // leader.batch.count))


cdef inline uint32_t find_piece(const Graph* g, TiledBatch* p, uint32_t first, uint32_t end, bint back) noexcept nogil:
    """Find the piece that begins at node `first` and ends at or before `end`, and return its end.

    Backward adds to the gradient of an argument or assigns it, or skips it, for a whole piece at once.  So there, for
    each i, the nodes that are argument i must all be live or none, all need a gradient or none, and their gradients
    must be side by side.  And the ranges of two arguments must be equal or disjoint.
    """
    cdef const Node* nodes = nodes_of(g)
    cdef const uint8_t* state = state_of(g)
    cdef const Node* node = &nodes[p.ids[first]]
    cdef const uint32_t* args = args_of(g, node)
    cdef const uint32_t* args_of_first = args
    cdef size_t length = total_of(&node.dim), n = length
    cdef uint32_t i, j = first + 1, n_args = p.call.n
    cdef bint adjacent = not back or n_args <= FEW_ARGUMENTS
    cdef uint32_t[FEW_ARGUMENTS] homes
    for i in range(n_args):
        p.x[i].v = nodes[args[i]].val
        if back and adjacent:
            homes[i] = home_of(g, &nodes[args[i]])
    p.call.y.v = node.val
    while adjacent and j < end:
        node = &nodes[p.ids[j]]
        args = args_of(g, node)
        for i in range(n_args):
            adjacent = (adjacent and nodes[args[i]].val == p.x[i].v + n
                        and not (back and ((state[args[i]] ^ state[args_of_first[i]]) & (LIVE | NEEDS_GRAD)
                                           or not g.whole_gradients and home_of(g, &nodes[args[i]]) != homes[i])))
        if adjacent:
            n += total_of(&node.dim)
            j += 1
    if back and j > first + 1 and overlap(p, n):
        n = length
        j = first + 1
    set_length(p, n)
    return j


cdef bint overlap(const TiledBatch* p, size_t n) noexcept nogil:
    """Whether two arguments overlap partly: some of their numbers are the same, but not all."""
    cdef uint32_t i, k
    for i in range(p.call.n):
        for k in range(i):
            if p.x[i].v != p.x[k].v and p.x[i].v < p.x[k].v + n and p.x[k].v < p.x[i].v + n:
                return True
    return False


# ---- forward --------------------------------------------------------------------------

cdef size_t compute_pieces(Graph* g, const Batch* batch, uint32_t n) noexcept nogil:
    """Compute n batches whose nodes already have memory for their values.  Returns 0, or the size of the working
    memory that could not be allocated."""
    cdef size_t top = g.scratch.top, needed = 0
    cdef TiledBatch* parts = open_parts(g, batch, n, False, &needed)
    cdef TiledBatch* leader
    cdef uint32_t tile, limit, k
    if parts == NULL:
        arena_rewind(&g.scratch, top)
        return needed
    leader = longest(parts, n)
    tile = tile_of(parts, n, leader)
    limit = 0
    while limit != EVERY:
        limit = EVERY if leader.batch.count - leader.at <= tile else leader.ids[leader.at + tile]
        for k in range(n):
            forward_below(g, &parts[k], limit)
        add_to(&tiles, 1)
    add_to(&in_pieces, n)
    arena_rewind(&g.scratch, top)
    return 0


cdef void forward_below(const Graph* g, TiledBatch* p, uint32_t limit) noexcept nogil:
    """Compute the nodes of a part that have not run and have numbers below the limit."""
    cdef uint32_t end = p.at
    if limit == EVERY:
        end = p.batch.count
    while end < p.batch.count and p.ids[end] < limit:
        end += 1
    fetch(g, p.ids + p.at, end - p.at)
    while p.at < end:
        p.at = find_piece(g, p, p.at, end, False)
        p.op.forward(&p.call)


# ---- backward -------------------------------------------------------------------------

cdef int pieces_backward(Walk* w, const Batch* batch, uint32_t n, uint32_t last) noexcept nogil:
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top
    cdef TiledBatch* parts = open_parts(g, batch, n, True, &w.failure.needed)
    cdef TiledBatch* leader
    cdef uint32_t tile, limit = EVERY, k
    if parts == NULL:
        arena_rewind(&g.scratch, top)
        return -1
    leader = longest(parts, n)
    tile = tile_of(parts, n, leader)
    while limit:
        limit = 0 if leader.at <= tile else leader.ids[leader.at - tile]
        for k in range(n):
            if backward_from(w, &parts[n - 1 - k], limit, last):
                arena_rewind(&g.scratch, top)
                return -1
    arena_rewind(&g.scratch, top)
    return 0


cdef int backward_from(Walk* w, TiledBatch* p, uint32_t limit, uint32_t last) noexcept nogil:
    """Run the nodes of a part backward that have not run and have numbers from the limit on; count the live ones."""
    cdef const Graph* g = w.g
    cdef const Node* nodes = nodes_of(g)
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t i, j, after, n_live = 0, end = p.at, first = p.at
    if limit == 0:
        first = 0
    while first > 0 and p.ids[first - 1] >= limit:
        first -= 1
    p.at = first
    fetch(g, p.ids + first, end - first)
    for j in range(first, end):
        n_live += (state[p.ids[j]] & (LIVE | NEEDS_GRAD)) == (LIVE | NEEDS_GRAD)
    if n_live == 0 or p.op.backward == NULL:
        return 0
    w.n_live_in_batch += n_live
    if n_live < end - first:                    # the loss does not depend on the others
        for j in range(first, end):
            if not state[p.ids[j]] & LIVE:
                memset(gradient_of_node(g, &nodes[p.ids[j]]), 0, total_of(&nodes[p.ids[j]].dim) * sizeof(float))
    while first < end:
        after = find_piece(g, p, first, end, True)
        p.call.dy.v = gradient_of_node(g, &nodes[p.ids[first]])
        for i in range(p.call.n):
            if argument_backward(w, p, in_turn(i, last, p.call.n), first, after):
                return -1
        if p.op.backward_all != NULL:
            p.op.backward_all(&p.call, p.dx, p.adds)
        first = after
    return 0


cdef int argument_backward(Walk* w, TiledBatch* p, uint32_t i, uint32_t first, uint32_t end) noexcept nogil:
    """The gradient of argument i of a piece."""
    cdef Graph* g = w.g
    cdef uint8_t* state = state_of(g)
    cdef Call* c = &p.call
    cdef uint32_t arg = args_of(g, &nodes_of(g)[p.ids[first]])[i]
    cdef uint8_t of_first = state[arg]
    cdef uint32_t j
    if p.op.backward_all != NULL:
        p.dx[i] = NULL
    if not of_first & NEEDS_GRAD:
        return 0
    c.dx.v = claim(w, &nodes_of(g)[arg])
    if c.dx.v == NULL:
        return -1
    c.accumulate = (of_first & LIVE) != 0
    if not c.accumulate and not p.op.assigns:
        memset(c.dx.v, 0, total_of(&c.dx.dim) * sizeof(float))
        c.accumulate = True
    if p.op.backward_all != NULL:
        p.dx[i] = c.dx.v
        p.adds[i] = c.accumulate
    elif c.dx.v != c.dy.v or p.op.in_place != UNCHANGED:
        p.op.backward(c, i)
    for j in range(first, end):
        state[args_of(g, &nodes_of(g)[p.ids[j]])[i]] |= LIVE
    return 0


# ==== views =======================================================================================
#
# Batches of views (schedule/plan): the places of their values, and the completion of their gradients in backward.
#
# When the batch was planned, the argument had no other users. Nodes that are made later may use the argument, and their
# contributions would mix with the gradients of the views. So before backward these views are copied to the memory that
# was reserved for them, and have their own gradients from then on.  This memory lies apart from values, in the arena of
# tables, which is for devices otherwise: most of it is never written, and among values it would be, by huge pages.

cdef Number views = 0               # values that were views
cdef Number copied = 0              # of these, those that were copied before backward
add_count("execute.walk.views.made", &views)
add_count("execute.walk.views.copied", &copied)


cdef float* reserve_for_views(Graph* g, const Batch* batch) noexcept nogil:
    if g.device or g.multi_device or is_limited(g) or batch.planned:
        return claim_batch(g, batch)
    if arena_alloc(&g.values, ALIGN) == NULL:   # the values before and after are not adjacent all the same
        return NULL
    return <float*>arena_alloc(&g.tables, batch.bytes + ALIGN)


cdef void place_views(Graph* g, const Batch* batch) noexcept nogil:
    """Let the values of its nodes point into those of their arguments."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* x
    cdef const Node* a
    cdef uint32_t j
    for j in range(batch.count):
        x = &nodes[ids[j]]
        a = &nodes[argument_of(g, ids[j])]
        x.val = a.val + view_at(g, x)
        if a.batch != NO_BATCH:
            batches_of(g)[a.batch].lifetime &= <uint16_t>~MAY_DONATE
    add_to(&views, batch.count)


cdef uint32_t views_backward(Graph* g, const Batch* batch) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, end, n, arg, first = 0, fetched = 0, n_live = 0
    while first < batch.count:
        fetch_from(g, batch, first, &fetched)
        end = end_of_run(g, batch, first)
        arg = argument_of(g, ids[first])
        n = 0
        for j in range(first, end):
            n += (state[ids[j]] & LIVE) != 0
        if n and state[arg] & NEEDS_GRAD:
            clear_others(g, ids + first, end - first, &nodes_of(g)[arg])
            state[arg] |= LIVE
            n_live += n
        first = end
    return n_live


cdef void clear_others(Graph* g, const uint32_t* ids, uint32_t n, const Node* arg) noexcept nogil:
    """Set the gradient of the argument to 0 outside the live views."""
    cdef const Node* nodes = nodes_of(g)
    cdef float* at = gradient_of_node(g, arg)
    cdef size_t size = total_of(&arg.dim), done = 0, begin, end, start
    cdef uint32_t j
    while done < size:
        begin = end = size                      # the bounds of the next live view
        for j in range(n):
            start = nodes[ids[j]].val - arg.val
            if state_of(g)[ids[j]] & LIVE and done <= start < begin:
                begin = start
                end = start + total_of(&nodes[ids[j]].dim)
        memset(at + done, 0, (begin - done) * sizeof(float))
        done = end


cdef size_t part_views(Walk* w, uint32_t target) noexcept nogil:
    cdef const Graph* g = w.g
    cdef uint32_t b
    if g.n_passes == 1:                         # all users were known when the views were planned
        return 0
    for b in range(g.n_batches):
        if batches_of(g)[b].form == VIEWS:
            return part_shared(w, target)
    return 0


cdef size_t part_shared(Walk* w, uint32_t target) noexcept nogil:
    """Copy the views of arguments that are also used by a node that is not a view."""
    cdef Graph* g = w.g
    cdef size_t top = g.scratch.top, bytes = target + <size_t>1
    cdef uint8_t* used = <uint8_t*>arena_alloc(&g.scratch, bytes)
    cdef const Node* x
    cdef const uint32_t* args
    cdef Batch* batch
    cdef uint32_t b, i, j, k
    if used == NULL:
        return bytes
    memset(used, 0, bytes)
    for i in range(target + 1):
        x = &nodes_of(g)[i]
        if not (state_of(g)[i] & COMPUTED or is_dropped(g, i)):
            continue
        if x.batch != NO_BATCH and batches_of(g)[x.batch].form == VIEWS:
            continue
        args = args_of(g, x)
        for k in range(x.nargs):
            used[args[k]] = True
    for b in range(g.n_batches):
        batch = &batches_of(g)[b]
        if batch.form != VIEWS:
            continue
        for j in range(batch.count):
            i = order_of(g)[batch.first + j]
            if argument_of(g, i) <= target and used[argument_of(g, i)]:
                if copy_views(w, batch):
                    return w.failure.needed
                break
    arena_rewind(&g.scratch, top)
    return w.failure.needed if settle(w) else 0


cdef int copy_views(Walk* w, Batch* batch) noexcept nogil:
    cdef Graph* g = w.g
    cdef Node* x
    cdef float* y = batch.y
    cdef size_t n
    cdef uint32_t j
    batch.form = EACH if w.at_once else COPIES
    add_to(&copied, batch.count)
    if is_dropped(g, order_of(g)[batch.first]):     # they are apart when they are computed again
        return 0
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        n = total_of(&x.dim)
        if w.at_once:
            memcpy(y, x.val, n * sizeof(float))
        elif w.device.copy(w, y, x.val, n):
            return -1
        x.val = y
        y += n
    return 0


# ==== walk ========================================================================================
#
# The walk over the batches of a plan, forward.
#
# The values of the nodes of one batch are side by side, in the order of the batch, and gradients have the same layout
# as values. If the arguments of a batch are contiguous in memory already, its call reads them in place. Otherwise they
# are copied side by side first, or the call reads a list of pointers to them.

PARTIAL = ("Gradients of parameters hold a part of this backward, beside what they held before: set them to zero "
           "before the next one")

most_along = MOST_ALONG
add_tunable("execute.walk.most_along", <Number*>&most_along)

cdef const Op* ops = op_at(0)                   # all ops; the table never moves


cdef void begin_walk(Walk* w, Graph* g, const Device* device) noexcept nogil:
    # Field by field: the rest of a finding is not read, and clearing all of it costs 5 ns per pass.
    w.g = g
    w.device = device
    w.kind = device.kind
    w.at_once = device.place == NULL
    w.tables = &g.scratch if w.at_once else &g.tables
    w.journal = NULL
    memset(&w.collecting, 0, sizeof(Collecting))
    memset(&w.listing, 0, sizeof(Listing))
    begin_lending(&w.lending)
    if g.grads.poison and not w.at_once:
        w.lending.spoil = spoil
        w.lending.walk = w
    w.relieve = NULL
    w.number = NO_BATCH
    w.first = g.n_batches
    w.n_live = w.n_live_in_batch = 0
    w.dy = NULL
    w.draws.seed = random_seed()
    w.draws.stream = atomic_load(&g.stream, RELAXED)    # another thread may set the seed
    w.whole = w.again = w.going_back = w.copies.own = False
    w.end = 0
    w.hook.after = NULL
    w.hook.data = NULL
    w.failure.needed = 0
    w.failure.partial = False
    w.failure.finding.kind = NOTHING
    w.failure.raised = NULL
    w.failure.changed = NULL
    begin_interrupts(&w.failure.interrupts)


cdef void spoil(void* walk, void* p, size_t bytes) noexcept nogil:
    """Fill memory of gradients with NaN on a device, at this point of the pass."""
    cdef Walk* w = <Walk*>walk
    w.device.fill(w, place_of(w, p), bytes // sizeof(float), NAN)


cdef int raise_failure(Graph* g, str what, const Failure* failure) except -1:
    """Raise the error that stopped a pass: an op, numbers that are not finite, or a lack of memory for `what`."""
    cdef uint32_t node
    if failure.raised != NULL:
        node = located()
        if node != NO_NODE:
            raise_refusal(g, node, failure)
        raise_of_op(failure)
    if failure.changed != NULL:
        raise_changed(failure.changed)
    if failure.finding.kind:
        raise_anomaly(g, &failure.finding)
    raise_no_memory(g, what)


cdef int raise_changed(const Param* p) except -1:
    name = parameter_names.get(p.id, "?")
    raise RuntimeError(
        f"the values of parameter {name} have changed (an update, set_value, a file) since values were computed that "
        "checkpoint() dropped, or whose memory backward has used, so these cannot be computed again; call backward, "
        "and ask for values and gradients, before that, or renew the graph; values to which an expression refers stay")


cdef int raise_refusal(Graph* g, uint32_t number, const Failure* failure) except -1:
    """Raise the error of an index that is out of range, with the arguments of the node that reads it."""
    cdef const Node* x = &nodes_of(g)[number]
    Py_DECREF(<object>failure.raised)
    arguments = explain(op_at(x.op), "", args_of(g, x), x.nargs, g).partition("\n")[2]
    error = located_refusal()
    raise type(error)(f"{error}{made_at(g, number)}\n{arguments}")


cdef void locate_refusal(const Graph* g, const Batch* batch) noexcept nogil:
    """Find the node of a batch whose index was refused, and its own batch element."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j, b = refused_element()
    for j in range(batch.count):
        if b < nodes_of(g)[ids[j]].dim.bd:
            locate(ids[j], b)
            return
        b -= nodes_of(g)[ids[j]].dim.bd


cdef int raise_of_op(const Failure* failure) except -1:
    """Raise the exception of an op.  A KeyboardInterrupt, or another error that is not an Exception, counts as a
    handler's."""
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


# ---- arguments -------------------------------------------------------------------------

cdef inline bint is_shared(const Graph* g, const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether the nodes of a batch share argument i.  A parameter may also be one of several values."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j, arg = args_of(g, &nodes_of(g)[ids[0]])[i]
    if rule_of(op, i) == SHARE:
        return True
    if not state_of(g)[arg] & SHARED:
        return False
    for j in range(1, batch.count):
        if args_of(g, &nodes_of(g)[ids[j]])[i] != arg:
            return False
    return True


cdef inline bint is_read_by_all(const Graph* g, const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether the call of a batch reads argument i once for all of its nodes."""
    if not is_shared(g, batch, op, i):
        return False
    return not may_be_value(op, i) or not needs_values(g, batch, op, nodes_of(g)[order_of(g)[batch.first]].nargs)


cdef bint needs_values(const Graph* g, const Batch* batch, const Op* op, uint32_t n_args) noexcept nogil:
    """Whether parameters in place of values are copied even if all nodes share them.

    A matrix of columns has a column for each node, and at least one argument of a call must have its batch size.
    """
    cdef uint32_t i
    if batch.form == COLUMNS:
        return True
    for i in range(n_args):
        if rule_of(op, i) == LIST or not is_shared(g, batch, op, i):
            return False
    return True


cdef inline bint side_by_side(const Walk* w, const Batch* batch, uint32_t i, bint listable) noexcept nogil:
    """Whether argument i of all nodes of a batch is contiguous in memory, in order, so that it is read in place.

    A LIST argument may have batch size 1 while its node has more.  Then it is not read in place.  Nor are values that
    have been dropped, of which a joined batch of backward makes copies.
    """
    cdef const Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef const float* at = a.val
    cdef uint32_t j
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        if (a.val != at or (listable and a.dim.bd < nodes[ids[j]].dim.bd)
                or w.going_back and is_dropped(g, args_of(g, &nodes[ids[j]])[i])):
            return False
        at += total_of(&a.dim)
    return True


cdef inline void join_homes(const Walk* w, const Batch* batch, uint32_t i) noexcept nogil:
    """Let the gradients of arguments that are read in place, perhaps from several batches, lie side by side too."""
    cdef Graph* g = w.g
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef uint32_t first = home_of(g, &nodes[args_of(g, &nodes[ids[0]])[i]])
    cdef uint32_t last = home_of(g, &nodes[args_of(g, &nodes[ids[batch.count - 1]])[i]])
    if first < last and last != NO_BATCH:
        join_gradients(g, first, last, w.going_back)


cdef inline bint may_list(const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether argument i of a batch may be a list of pointers."""
    return rule_of(op, i) == LIST and batch.form != COLUMNS         # a matrix of columns cannot be a list


cdef int arrange(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Bring the arguments and items of a batch into the form that its call needs.

    Leaves batch.x[i] empty for an argument that all nodes share.  Copies may be pending afterwards.  They come last in
    working memory, so that they can be given back.
    """
    cdef Graph* g = w.g
    cdef Node* node = &nodes_of(g)[order_of(g)[batch.first]]
    cdef uint32_t i
    if not w.at_once and w.device.send_arguments(w, batch):
        return -1
    if lay_items(w, batch):
        return -1
    if batch.count == 1 or node.nargs == 0:
        return 0
    batch.x = <Laid*>allocate(w, node.nargs * sizeof(Laid))
    if batch.x == NULL:
        return -1
    for i in range(node.nargs):
        batch.x[i].v = batch.x[i].aside = NULL
        batch.x[i].list = NULL
        batch.x[i].bytes = 0
        if not is_read_by_all(g, batch, op, i) and lay(w, batch, op, i):
            return -1
    if batch.level == TRANSIENT and op.needs[w.kind].laid != NULL and set_aside(w, batch):
        return -1
    w.copies.begin = g.scratch.top
    w.copies.lasting = False
    for i in range(node.nargs):                 # all copies come after all lists, so that they run together
        if batch.x[i].bytes == 0:
            continue
        batch.x[i].v = <float*>allocate(w, batch.x[i].bytes)
        if batch.x[i].v == NULL:
            return -1
        # The cell reads the bias of its sums where it is.
        if not (batch.cell and i == 0) and gather(w, batch, i):
            return -1
    return 0


cdef int set_aside(Walk* w, Batch* batch) noexcept nogil:
    """Copy the parameters that are parts of values that will be dropped: backward may read the parts of such values,
    and parameters may change until then."""
    cdef Graph* g = w.g
    cdef const Node* node
    cdef const Node* a
    cdef uint32_t i, j
    cdef size_t n
    for j in range(batch.count):
        node = &nodes_of(g)[order_of(g)[batch.first + j]]
        for i in range(node.nargs):
            a = &nodes_of(g)[args_of(g, node)[i]]
            if a.val != NULL or batch.x[i].aside != NULL:
                continue
            n = total_of(&a.dim) * sizeof(float)
            batch.x[i].aside = <float*>allocate(w, n)
            if batch.x[i].aside == NULL:
                return -1
            memcpy(batch.x[i].aside, value_of(a), n)
    return 0


cdef int lay_items(Walk* w, Batch* batch) noexcept nogil:
    """Copy the items of the nodes of a call side by side.  The items of a single node are adjacent already, but a GPU
    needs a copy."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node = &nodes_of(g)[ids[0]]
    cdef uint32_t j
    cdef size_t n = 0
    if node.item_count == 0 or (batch.count == 1 and w.at_once):
        return 0
    batch.items = <uint32_t*>allocate_table(w, <size_t>batch.bd * node.item_count * sizeof(uint32_t))
    if batch.items == NULL:
        return -1
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        memcpy(batch.items + n, items_of(g, node), <size_t>node.dim.bd * node.item_count * sizeof(uint32_t))
        n += <size_t>node.dim.bd * node.item_count
    return 0


cdef int lay(Walk* w, Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Choose the form of argument i of several nodes: in place, as a list, or as a copy, whose size this sets."""
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
    if side_by_side(w, batch, i, listable):
        if not g.forward_only:
            join_homes(w, batch, i)
        return 0
    if listable and op.needs[w.kind].lists:
        x.v = NULL
        x.list = <float**>allocate_table(w, batch.bd * sizeof(float*))
        if x.list == NULL:
            return -1
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            at = place_of(w, value_of(a))
            stride = size_of(&a.dim) if a.dim.bd > 1 else 0
            for _ in range(nodes[ids[j]].dim.bd):
                x.list[n] = at
                at += stride
                n += 1
        return 0
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n += total_of(&a.dim) * uses_in(batch, a, &nodes[ids[j]])
    x.v = NULL
    x.bytes = n * sizeof(float)
    if n == 0:                                  # an address all the same
        x.v = <float*>allocate(w, 0)
    return 0 if n or x.v != NULL else -1


cdef int gather(Walk* w, const Batch* batch, uint32_t i) noexcept nogil:
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
        w.copies.lasting = w.copies.lasting or a.val == NULL
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if w.going_back and is_dropped(g, args_of(g, &nodes[ids[j]])[i]):
                if w.at_once:                   # on devices nothing reads them
                    copy_parts(g, a, to)
            elif w.at_once:
                memcpy(to, value_of(a), n * sizeof(float))
            elif settle_gradients(w, a.batch) or w.device.copy(w, to, a.val, n):   # it may be a copy itself
                return -1
            to += n
    return 0


cdef void copy_parts(const Graph* g, const Node* x, float* to) noexcept nogil:
    """Copy a dropped value from the arguments of which it consists (schedule/transient); others are not read."""
    cdef const Op* op = &ops[x.op]
    cdef const Node* a
    cdef const float* part
    cdef uint32_t i
    cdef size_t n
    if (op.needs[CPU].laid == NULL or not op.needs[CPU].laid(&x.dim, x.attrs)
            or batches_of(g)[x.batch].lifetime & STRIPPED):
        return
    for i in range(x.nargs):
        a = &nodes_of(g)[args_of(g, x)[i]]
        n = total_of(&a.dim)
        part = a.val if a.val != NULL else batches_of(g)[x.batch].x[i].aside
        memcpy(to, part, n * sizeof(float))
        to += n


cdef void give_copies_back(Walk* w, Batch* batch) noexcept nogil:
    cdef Arena* scratch = &w.g.scratch
    cdef uint32_t i, n_args = first_node(w.g, batch).nargs
    cdef size_t bytes = 0, begin = w.copies.begin, saved = 0
    cdef float* copies = NULL
    for i in range(n_args if batch.x != NULL else 0):
        if batch.x[i].bytes and copies == NULL:
            copies = batch.x[i].v
        bytes += batch.x[i].bytes
    if bytes < (1 if small_too else LEAST_AGAIN) or w.copies.lasting:
        return
    if batch.saved != NULL:                     # it is behind the copies, and takes their place
        if segment_of(scratch, copies) != segment_of(scratch, batch.saved):
            return
        saved = scratch.top - arena_offset(scratch, batch.saved)
        memmove(copies, batch.saved, saved)
        batch.saved = copies
        begin = arena_offset(scratch, copies) + saved
    for i in range(n_args):
        if batch.x[i].bytes:
            batch.x[i].v = NULL
    arena_rewind(scratch, begin)


# ---- calls -----------------------------------------------------------------------------

cdef inline void set_flat(Tensor* t, const Dim* of, size_t n, float* v) noexcept nogil:
    t.dim.nd = 1
    t.dim.type = of.type
    t.dim.d[0] = <uint32_t>n
    t.dim.bd = 1
    t.v = v
    t.bstride = 0
    t.list = NULL
    t.pack = NULL


cdef inline void set_columns(Tensor* t, const Dim* of, size_t n, float* v) noexcept nogil:
    set_flat(t, of, rows_of(of), v)
    t.dim.nd = 2
    t.dim.d[1] = <uint32_t>n


cdef int set_call(Walk* w, const Batch* batch, Tensor* few, Call* c) noexcept nogil:
    """Set the call of a batch: its arguments and result, in the form of the batch."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* node = &nodes[ids[0]]
    cdef Node* a
    cdef uint32_t* args = args_of(g, node)
    cdef Tensor* x
    cdef uint32_t i
    cdef size_t total
    cdef bint single = batch.count == 1
    if begin_call(w, batch, node, few, c):
        return -1
    x = <Tensor*>c.x
    if batch.form == FLATTENED and not single:
        total = 0
        for i in range(batch.count):
            total += total_of(&nodes[ids[i]].dim)
        for i in range(node.nargs):
            set_flat(&x[i], &nodes[args[i]].dim, total, batch.x[i].v)
        set_flat(&c.y, &node.dim, total, batch.y)
    elif batch.form == COLUMNS and not single:
        total = 0
        for i in range(batch.count):
            total += cols_of(&nodes[ids[i]].dim) * nodes[ids[i]].dim.bd
        for i in range(node.nargs):
            a = &nodes[args[i]]
            if batch.x[i].v == NULL:
                set_shared(&x[i], a)
            else:
                set_columns(&x[i], &a.dim, total, batch.x[i].v)
        set_columns(&c.y, &node.dim, total, batch.y)
    else:
        for i in range(node.nargs):
            a = &nodes[args[i]]
            if single or batch.x[i].v == NULL and batch.x[i].list == NULL:
                set_shared(&x[i], a)
            else:
                set_tensor(&x[i], &a.dim, batch.bd, batch.x[i].v)
                x[i].list = batch.x[i].list
        set_tensor(&c.y, &node.dim, batch.bd, batch.y)
        c.items = items_of(g, node) if single else batch.items
    return 0 if w.at_once else w.device.translate(w, batch, c)


cdef inline int run_call(Walk* w, Batch* batch, const Op* op, Call* c) noexcept nogil:
    cdef const Needs* needs = &op.needs[w.kind]
    cdef size_t top
    if is_empty(w, &c.y.dim):
        return 0
    if needs.saved != NULL:
        batch.saved = <float*>allocate(w, needs.saved(c) * sizeof(float))
        c.saved = place_of(w, batch.saved)
    top = w.g.scratch.top
    if needs.work != NULL:
        c.work = place_of(w, allocate(w, needs.work(c, -1) * sizeof(float)))
    if w.failure.needed:
        return -1
    if w.at_once:
        op.forward(c)
        if op_raised(op, &w.failure):
            if op.raised == refused:
                locate_refusal(w.g, batch)
            return -1
    elif w.device.forward(w, batch, op, c):
        return -1
    arena_rewind(&w.g.scratch, top)
    return 0


# ---- forward: the forms ----------------------------------------------------------------

cdef int run_forward(Walk* w, Batch* batch) noexcept nogil:
    if allocate_values(w.g, batch):
        return w.device.forms[batch.form].forward(w, batch, 1)
    w.failure.needed = batch.bytes
    return -1


cdef int forward_call(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Run a batch as one call."""
    return call(w, batch, &ops[nodes_of(w.g)[order_of(w.g)[batch.first]].op])


cdef int call(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    cdef Tensor few[FEW]
    cdef Call c
    cdef bint copied = batch.count > 1 and w.at_once
    clear_call(batch)
    if (copied or not w.at_once) and arrange(w, batch, op):
        return -1
    if set_call(w, batch, few, &c) or run_call(w, batch, op, &c):
        return -1
    if copied:
        give_copies_back(w, batch)
    return 0


cdef int open_section(Walk* w) noexcept nogil:
    if settle(w):
        return -1
    w.listing.sections += 1
    w.listing.section = w.listing.sections
    return 0


cdef int forward_each(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Run a batch as a call for each node."""
    cdef const Op* op = &ops[nodes_of(w.g)[order_of(w.g)[batch.first]].op]
    cdef bint saves = op.needs[w.kind].saved != NULL
    cdef Batch one
    cdef uint32_t j
    cdef size_t size
    clear_call(batch)
    if saves:
        batch.saved_of = <float**>allocate(w, batch.count * sizeof(float*))
        if batch.saved_of == NULL:
            return -1
    # Calls that need working memory have the same one.
    if not w.at_once and op.needs[w.kind].work == NULL and (w.device.send_arguments(w, batch) or open_section(w)):
        return -1
    one.y = batch.y
    for j in range(batch.count):
        w.listing.member = j
        set_one(w.g, batch, j, &one)
        size = total_of(&nodes_of(w.g)[order_of(w.g)[one.first]].dim)
        if (call(w, &one, op)
                or (w.at_once and not w.again and interrupted(&w.failure.interrupts, size * sizeof(float)))):
            return -1
        if saves:
            batch.saved_of[j] = one.saved
        one.y += size
    w.listing.section = 0
    return 0


cdef int forward_pieces(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Run n batches in pieces."""
    cdef uint32_t k
    for k in range(n):
        clear_call(&batch[k])
    w.failure.needed = compute_pieces(w.g, batch, n)
    return -1 if w.failure.needed else 0


cdef int forward_views(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Let the values of a batch be parts of its arguments."""
    clear_call(batch)
    place_views(w.g, batch)
    return 0


# ---- forward: the loop -----------------------------------------------------------------

cdef inline bint fails_checks(Walk* w, const Batch* batch) noexcept nogil:
    return (checking or w.g.check_validity) and bad_values(w.g, batch, w.g.check_validity, &w.failure.finding)


cdef int run_batches(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    """Run the next n planned batches, or fewer if memory is short, and count them as run."""
    cdef Graph* g = w.g
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef uint64_t begun = now() if profiling else 0
    cdef uint32_t k, made = 0
    while made < n and allocate_values(g, &batch[made]):
        assign_values(g, &batch[made], g.n_batches + made)
        made += 1
    if made == 0:
        w.failure.needed = batch.bytes
        return -1
    if w.device.forms[batch.form].forward(w, batch, made) or fails_checks(w, batch):
        for k in range(made):
            unassign_values(g, &batch[k])
            unclaim_values(g, batch[k].y, batch[k].bytes, values_top)
        arena_rewind(&g.scratch, scratch_top)
        return -1
    for _ in range(made):
        count_as_run(g)
    if g.forward_only:                          # no backward: nothing is saved
        arena_rewind(&g.scratch, scratch_top)
        for k in range(made):
            release_arguments(g, &batch[k])
    if profiling:
        note_call(g, batch.first, batch.count, False, batch.count, begun)
    return 0


cdef void unassign_values(Graph* g, const Batch* batch) noexcept nogil:
    """Undo `assign_values`."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    for j in range(batch.count):
        nodes_of(g)[ids[j]].val = NULL
        nodes_of(g)[ids[j]].batch = NO_BATCH


cdef inline int run_one(Walk* w, Batch* batch) noexcept nogil:
    """`run_batches` for a batch of one node, of which narrow graphs consist.

    This function omits the steps that only other batches need, and is inline, since calls cost nanoseconds of the 60
    that such a batch takes.
    """
    cdef Graph* g = w.g
    cdef size_t values_top = g.values.top, scratch_top = g.scratch.top
    cdef uint64_t begun = now() if profiling else 0
    cdef uint32_t number = order_of(g)[batch.first]
    cdef Node* node = &nodes_of(g)[number]
    cdef uint8_t* state = &state_of(g)[number]
    cdef Tensor few[FEW]
    cdef Call c
    batch.bd = node.dim.bd
    batch.bytes = total_of(&node.dim) * sizeof(float)
    batch.live = 1
    begin_gradients(batch)
    clear_call(batch)
    batch.y = claim_batch(g, batch)
    if batch.y == NULL:
        w.failure.needed = batch.bytes
        return -1
    if (set_call_of_one(w, batch, node, few, &c) or run_call(w, batch, &ops[node.op], &c)
            or fails_checks(w, batch)):
        unclaim_values(g, batch.y, batch.bytes, values_top)
        arena_rewind(&g.scratch, scratch_top)
        return -1
    node.val = batch.y
    node.batch = g.n_batches
    value_arrives(state)
    g.n_order += 1
    g.n_batches += 1
    if g.forward_only:
        arena_rewind(&g.scratch, scratch_top)
        release_arguments(g, batch)
    if profiling:
        note_call(g, batch.first, 1, False, 1, begun)
    return 0


cdef inline bint may_pack(const Walk* w, const Batch* batch) noexcept nogil:
    """Whether the products of a batch may read a packed parameter: its gradient is a product too then."""
    return ops[nodes_of(w.g)[order_of(w.g)[batch.first]].op].needs[w.kind].factors != NULL


cdef inline uint64_t caller_of(const Graph* g, const Batch* batch) noexcept nogil:
    """A number for a batch that no other one has, in any graph."""
    return (g.renewal + g.n_forgets) * <uint64_t>0x9E3779B97F4A7C15u ^ order_of(g)[batch.first] + 1


cdef int run_again(Walk* w, Batch* batch, uint32_t n) noexcept nogil:
    cdef uint64_t begun = now() if profiling else 0
    cdef uint32_t k
    cdef int failed
    note_caller(caller_of(w.g, batch), True)
    w.again = True
    failed = w.device.forms[batch.form].forward(w, batch, n)
    w.again = False
    note_caller(0, False)
    if profiling and not failed:
        for k in range(n):
            note_call(w.g, batch[k].first, batch[k].count, AGAIN, batch[k].count, begun)
            begun = now()
    return failed


cdef int poison_dropped(Walk* w) noexcept nogil:
    cdef Graph* g = w.g
    cdef Batch* batch
    cdef uint32_t b
    for b in range(w.first, g.n_batches):
        batch = &batches_of(g)[b]
        if batch.level and not batch.lifetime & RESIDENT and batch.last < g.n_batches and batch.live:
            batch.live = 0
            if w.device.fill(w, place_of(w, batch.y), batch.bytes // sizeof(float), NAN):
                return -1
    return 0


cdef int list_planned(Walk* w, uint32_t end) noexcept nogil:
    """`run_part` for devices: list the calls."""
    cdef Graph* g = w.g
    cdef Batch* batch
    while g.n_batches < end:
        batch = &batches_of(g)[g.n_batches]
        w.number = g.n_batches
        if run_forward(w, batch):
            return -1
        if batch.form != VIEWS:
            assign_values(g, batch, g.n_batches)
        count_as_run(g)
        if g.values.poison and g.has_dropped and poison_dropped(w):
            return -1
    w.number = NO_BATCH
    return 0


cdef int verify_plan(Walk* w, uint32_t n) noexcept nogil:
    w.failure.raised = verify(w.g, n, most_along)
    return -1 if w.failure.raised != NULL else 0


cdef int run_planned_at_once(Walk* w, uint32_t n) noexcept nogil:
    cdef uint32_t first = w.g.n_batches
    if w.device.divide != NULL:
        return w.device.divide(w, first, first + n, run_part, 0, False)
    return run_part(w, first, first + n, 0)


cdef int run_part(Walk* w, uint32_t first, uint32_t end, uint32_t purpose) noexcept nogil:
    """Compute planned batches up to one, on one device."""
    cdef Graph* g = w.g
    cdef Batch* batch
    cdef uint32_t together
    # Profiles and checks need the batches one by one.
    cdef bint one_by_one = profiling or checking or g.check_validity
    if not w.at_once:
        return list_planned(w, end)
    while g.n_batches < end:
        batch = &batches_of(g)[g.n_batches]
        together = 1
        if batch.lifetime & IN_STRETCH or (batch.level or batch.lifetime) and may_pack(w, batch):
            note_caller(caller_of(g, batch), False)
        if batch.form == TILES and not one_by_one:
            together = neighbours(batch, end - g.n_batches)
        if run_one(w, batch) if batch.form == ONE else run_batches(w, batch, together):
            return -1
        if g.values.poison and g.has_dropped and poison_dropped(w):
            return -1
        if interrupted(&w.failure.interrupts, batch.bytes * together):
            return -1
        if w.end and g.n_batches < end and now() >= w.end:
            return 1
    return 0
