"""Elementwise batches whose arguments are not adjacent in memory, run in pieces that are.

The arguments of a long elementwise batch are seldom adjacent: those of `cmult(i, u)` are some of the results of one
batch and all results of another.  To make them adjacent, each number would have to be copied before it is used, and
each gradient once more after it is computed.  Instead the op is called for one piece after another.  A piece is a run
of nodes that are adjacent in all of their arguments.

Such batches often follow each other: the logistic, tanh, products and sums of a gate.  If they ran one after another,
the results of each would have left the cache before the next one reads them.  So they run together, in tiles that fit a
cache: all batches compute their nodes up to some node number, then up to the next one.  Arguments have smaller numbers
than the nodes that use them, and programs make the nodes of one cell in a row, so a tile has whole cells.

Every number is computed by the same formula from the same numbers as otherwise.  Gradients get the same contributions,
but if a gradient gets more than two of them from several tiles, they may be added in another order.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.atomic cimport Number, add_to
from dynet_cy.core.tensor cimport Call, Dim, Tensor, total_of
from dynet_cy.schedule.prefetch cimport fetch
from dynet_cy.graph.structs cimport (
    LIVE, NEEDS_GRAD, Batch, Graph, Node, args_of, gradient_at, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.ops.registry cimport Op, op_at


cdef enum:
    FEW = 4                         # arguments; for nodes with more of them, pieces of backward have one node
    TILE = 1 << 17                  # bytes of results that, with arguments and gradients, fit the second-level cache

cdef uint32_t EVERY = 0xFFFFFFFFu

cdef Number n_batches = 0         # since `reset`
cdef Number n_tiles = 0

# One of the batches that run together.
cdef struct Part:
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

cdef inline void set_length(Part* p, size_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(p.call.n):
        p.x[i].dim.d[0] = <uint32_t>n
    p.call.y.dim.d[0] = p.call.dy.dim.d[0] = p.call.dx.dim.d[0] = <uint32_t>n


cdef inline void make_flat(Dim* d) noexcept nogil:
    d.nd = 1
    d.bd = 1


cdef Part* open_parts(Graph* g, const Batch* batch, uint32_t n, bint back, size_t* needed) noexcept nogil:
    """The parts of a run over n batches, in the scratch arena; NULL if there is no memory."""
    cdef Part* parts = <Part*>take(g, n * sizeof(Part), needed)
    cdef Part* p
    cdef Node* node
    cdef uint32_t i, k
    cdef size_t work
    if parts == NULL:
        return NULL
    memset(parts, 0, n * sizeof(Part))
    for k in range(n):
        p = &parts[k]
        node = first_node(g, &batch[k])
        p.batch = &batch[k]
        p.op = op_at(node.op)
        p.ids = order_of(g) + batch[k].first
        p.at = batch[k].count if back else 0
        p.x = <Tensor*>take(g, node.nargs * sizeof(Tensor), needed)
        if p.x == NULL:
            return NULL
        memset(p.x, 0, node.nargs * sizeof(Tensor))
        for i in range(node.nargs):
            make_flat(&p.x[i].dim)
        if back and p.op.backward_all != NULL:
            p.dx = <float**>take(g, node.nargs * sizeof(float*), needed)
            p.adds = <uint8_t*>take(g, node.nargs, needed)
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
            p.call.work = <float*>take(g, work * sizeof(float), needed)
            if p.call.work == NULL:
                return NULL
    return parts


cdef inline void* take(Graph* g, size_t bytes, size_t* needed) noexcept nogil:
    cdef void* p = arena_alloc(&g.scratch, bytes)
    if p == NULL:
        needed[0] = bytes
    return p


cdef Part* longest(Part* parts, uint32_t n) noexcept nogil:
    """The part with the most nodes, which determines where tiles end."""
    cdef Part* found = parts
    cdef uint32_t k
    for k in range(1, n):
        if parts[k].batch.count > found.batch.count:
            found = &parts[k]
    return found


cdef uint32_t tile_of(const Part* parts, uint32_t n, const Part* leader) noexcept nogil:
    """How many nodes of the leader are one tile.  A single batch is one tile, since its nodes may be in any order."""
    cdef size_t bytes = 0
    cdef uint32_t k
    if n == 1:
        return leader.batch.count
    for k in range(n):
        bytes += parts[k].batch.bytes
    return <uint32_t>min(<size_t>leader.batch.count, 1 + TILE // (1 + bytes // leader.batch.count))


cdef inline uint32_t find_piece(const Graph* g, Part* p, uint32_t first, uint32_t end, bint back) noexcept nogil:
    """Find the piece that begins at node `first` and ends at or before `end`, and return its end.

    Backward adds to the gradient of an argument or assigns it, or skips it, for a whole piece at once.  So there, for
    each i, the nodes that are argument i must all be live or none, and all need a gradient or none.  And the ranges of
    two arguments must be equal or disjoint.
    """
    cdef const Node* nodes = nodes_of(g)
    cdef const uint8_t* state = state_of(g)
    cdef const Node* node = &nodes[p.ids[first]]
    cdef const uint32_t* args = args_of(g, node)
    cdef const uint32_t* args_of_first = args
    cdef size_t length = total_of(&node.dim), n = length
    cdef uint32_t i, j = first + 1, n_args = p.call.n
    cdef bint adjacent = not back or n_args <= FEW
    for i in range(n_args):
        p.x[i].v = nodes[args[i]].val
    p.call.y.v = node.val
    while adjacent and j < end:
        node = &nodes[p.ids[j]]
        args = args_of(g, node)
        for i in range(n_args):
            adjacent = (adjacent and nodes[args[i]].val == p.x[i].v + n
                        and not (back and (state[args[i]] ^ state[args_of_first[i]]) & (LIVE | NEEDS_GRAD)))
        if adjacent:
            n += total_of(&node.dim)
            j += 1
    if back and j > first + 1 and overlap(p, n):
        n = length
        j = first + 1
    set_length(p, n)
    return j


cdef bint overlap(const Part* p, size_t n) noexcept nogil:
    """Whether two arguments overlap partly: some of their numbers are the same, but not all."""
    cdef uint32_t i, k
    for i in range(p.call.n):
        for k in range(i):
            if p.x[i].v != p.x[k].v and p.x[i].v < p.x[k].v + n and p.x[k].v < p.x[i].v + n:
                return True
    return False


# ---- forward --------------------------------------------------------------------------

cdef size_t compute_pieces(Graph* g, const Batch* batch, uint32_t n) noexcept nogil:
    cdef size_t top = g.scratch.top, needed = 0
    cdef Part* parts = open_parts(g, batch, n, False, &needed)
    cdef Part* leader
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
        add_to(&n_tiles, 1)
    add_to(&n_batches, n)
    arena_rewind(&g.scratch, top)
    return 0


cdef void forward_below(const Graph* g, Part* p, uint32_t limit) noexcept nogil:
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

cdef size_t pieces_backward(Graph* g, const Batch* batch, uint32_t n, uint32_t* n_live) noexcept nogil:
    cdef size_t top = g.scratch.top, needed = 0
    cdef Part* parts = open_parts(g, batch, n, True, &needed)
    cdef Part* leader
    cdef uint32_t tile, limit = EVERY, k
    if parts == NULL:
        arena_rewind(&g.scratch, top)
        return needed
    leader = longest(parts, n)
    tile = tile_of(parts, n, leader)
    while limit:
        limit = 0 if leader.at <= tile else leader.ids[leader.at - tile]
        for k in range(n):
            n_live[0] += backward_from(g, &parts[n - 1 - k], limit)
    arena_rewind(&g.scratch, top)
    return 0


cdef uint32_t backward_from(Graph* g, Part* p, uint32_t limit) noexcept nogil:
    """Run the nodes of a part backward that have not run and have numbers from the limit on; count the live ones."""
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
    if n_live < end - first:                    # the loss does not depend on the others
        for j in range(first, end):
            if not state[p.ids[j]] & LIVE:
                memset(gradient_at(g, nodes[p.ids[j]].val), 0, total_of(&nodes[p.ids[j]].dim) * sizeof(float))
    while first < end:
        after = find_piece(g, p, first, end, True)
        p.call.dy.v = gradient_at(g, p.call.y.v)
        for i in range(p.call.n):
            argument_backward(g, p, i, first, after)
        if p.op.backward_all != NULL:
            p.op.backward_all(&p.call, p.dx, p.adds)
        first = after
    return n_live


cdef void argument_backward(Graph* g, Part* p, uint32_t i, uint32_t first, uint32_t end) noexcept nogil:
    """The gradient of argument i of a piece."""
    cdef uint8_t* state = state_of(g)
    cdef Call* c = &p.call
    cdef uint8_t of_first = state[args_of(g, &nodes_of(g)[p.ids[first]])[i]]
    cdef uint32_t j
    if p.op.backward_all != NULL:
        p.dx[i] = NULL
    if not of_first & NEEDS_GRAD:
        return
    c.dx.v = gradient_at(g, p.x[i].v)
    c.accumulate = (of_first & LIVE) != 0
    if not c.accumulate and not p.op.assigns:
        memset(c.dx.v, 0, total_of(&c.dx.dim) * sizeof(float))
        c.accumulate = True
    if p.op.backward_all != NULL:
        p.dx[i] = c.dx.v
        p.adds[i] = c.accumulate
    else:
        p.op.backward(c, i)
    for j in range(first, end):
        state[args_of(g, &nodes_of(g)[p.ids[j]])[i]] |= LIVE


def counts():
    """The number of batches that ran forward in pieces, and the number of tiles, since `reset`."""
    return n_batches, n_tiles


def reset():
    """Count from zero again."""
    global n_batches, n_tiles
    n_batches = n_tiles = 0
