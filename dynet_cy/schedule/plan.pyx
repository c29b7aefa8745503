"""Plans: the nodes that values need, put into batches; see plan.pxd.

The batched schedules run nodes with equal signatures together.
By agenda (Neubig, Goldberg and Dyer 2017, On-the-fly operation batching in dynamic computation graphs): among the
signatures with nodes whose arguments are ready, the one whose remaining nodes have the smallest average depth runs
next, with all its ready nodes.  Beyond the paper: a signature all of whose nodes are ready runs first, and one whose
nodes do not depend on each other waits until all of them are ready, as long as another one can run.  By depth: nodes of
equal depth and signature run together.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from dynet_cy.core.interrupts cimport Interrupts, interrupted
from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    COMPUTED, EACH, FLATTENED, ONE, PIECES, STACKED, TILES, VIEWS, WANTED, Batch, Graph, Node, args_of, batches_of,
    device_of, nodes_of, order_of, state_of,
)
from dynet_cy.graph.timeline cimport SCHEDULING, begin_span, end_span
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push, array_rewind
from dynet_cy.ops.registry cimport Op, op_at
from dynet_cy.schedule.plan_cache cimport Structure, cache_plan, describe_structure, plan_from_cache
from dynet_cy.schedule.rewrite cimport LONG, count_users, rewrite, rewrites_at, rewrites_of
from dynet_cy.schedule.signature cimport Signatures, queue_of, settle_values, signature_of, signatures_open

cdef const Op* ops = op_at(0)                   # all ops; the table never moves


# ---- plans -----------------------------------------------------------------------------

cdef int plan(Graph* g, const uint32_t* targets, uint32_t n, int strategy, bint as_made,
              uint32_t* n_batches, Interrupts* s) noexcept nogil:
    """Plan the values of the targets, by a strategy: 0 plain, 1 by agenda, 2 by depth."""
    cdef uint32_t lowest, highest, absorbed, count = 0
    cdef uint32_t rewrites = 0 if as_made or g.check_validity else rewrites_of(g, strategy)
    cdef uint64_t span = begin_span()
    cdef int failed = mark_wanted(g, targets, n, &lowest, &highest, &count, strategy, &rewrites)
    if not failed and rewrites:
        absorbed = rewrite(g, targets, n, strategy, rewrites, lowest, highest)
        array_rewind(&g.order, g.order.top - absorbed * sizeof(uint32_t))
        count -= absorbed
    if not failed and count:
        if strategy == 0 or count == 1:
            failed = plan_plain(g, lowest, highest, count)
        else:
            failed = plan_batched(g, lowest, highest, count, strategy, as_made or g.check_validity, s)
    if failed:
        drop_plan(g)
        return -1
    n_batches[0] = <uint32_t>(g.batches.top // sizeof(Batch)) - g.n_batches
    end_span(SCHEDULING, span)
    return 0


cdef void drop_plan(Graph* g) noexcept nogil:
    """Drop the part of the plan that has not run."""
    cdef uint8_t* state = state_of(g)
    cdef uint32_t i
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~WANTED
    array_rewind(&g.order, g.n_order * sizeof(uint32_t))
    array_rewind(&g.batches, g.n_batches * sizeof(Batch))


cdef int mark_wanted(Graph* g, const uint32_t* targets, uint32_t n, uint32_t* lowest, uint32_t* highest,
                     uint32_t* count, int strategy, uint32_t* rewrites) noexcept nogil:
    """Mark the targets and their uncomputed ancestors, and make room for them in `order`.

    Arguments have smaller numbers than the nodes that use them, so one pass from
    the highest number down finds all of them.

    Args:
        rewrites: those that may be made in this plan (bits, as in schedule/rewrite); on return, those that nodes show.
    """
    cdef uint8_t* state = state_of(g)
    cdef Node* node
    cdef uint32_t a, i
    cdef uint32_t ahead = 0                     # marked, and not visited yet
    cdef const uint32_t* args
    cdef uint32_t sought = rewrites[0]
    rewrites[0] = 0
    highest[0] = 0
    count[0] = 0
    for i in range(n):
        a = targets[i]
        if not state[a] & (COMPUTED | WANTED):
            state[a] |= WANTED
            ahead += 1
            highest[0] = max(highest[0], a)
    a = highest[0] + 1
    while ahead:
        a -= 1
        if not state[a] & WANTED:
            continue
        ahead -= 1
        count[0] += 1
        node = nodes_of(g) + a
        args = args_of(g, node)
        for i in range(node.nargs):
            if not state[args[i]] & (COMPUTED | WANTED):
                state[args[i]] |= WANTED
                ahead += 1
        if sought >> ops[node.op].role & 1 and rewrites_at[ops[node.op].role].pattern.shows(g, node, strategy):
            rewrites[0] |= <uint32_t>1 << ops[node.op].role
            sought ^= <uint32_t>1 << ops[node.op].role
    lowest[0] = a
    return -1 if array_push(&g.order, count[0] * sizeof(uint32_t)) == NULL else 0


cdef int plan_plain(Graph* g, uint32_t lowest, uint32_t target, uint32_t count) noexcept nogil:
    """Every node alone, in the order in which the nodes were made."""
    cdef Batch* batch = <Batch*>array_push(&g.batches, count * sizeof(Batch))
    cdef uint8_t* state = state_of(g)
    cdef uint32_t* order = order_of(g)
    cdef uint32_t at = g.n_order
    cdef uint32_t i
    if batch == NULL:
        return -1
    for i in range(lowest, target + 1):
        if state[i] & WANTED:
            order[at] = i
            batch.first = at
            batch.count = 1
            batch.form = ONE
            batch += 1
            at += 1
    return 0


# ---- forms -----------------------------------------------------------------------------

cdef void choose_forms(Graph* g, bint as_made) noexcept nogil:
    """Choose the forms of planned batches that depend on more than their structure, or that only the CPU has."""
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef const Batch* end = <Batch*>(<char*>g.batches.base + g.batches.top)
    cdef bint here
    while batch < end:
        here = device_of(g, order_of(g)[batch.first]) == 0
        # A view lives no longer than its argument, and checks need values that are side by side.
        if batch.form == VIEWS and not (here and not g.forward_only and not as_made and lie_apart(g, batch)):
            batch.form = STACKED
        if batch.count == 1 and batch.form != VIEWS:
            batch.form = ONE
        elif batch.form == FLATTENED and here and may_run_in_pieces(g, batch):
            batch.form = TILES if is_rising(g, batch) else PIECES
        batch += 1


cdef inline bint may_run_in_pieces(const Graph* g, const Batch* batch) noexcept nogil:
    """Whether an elementwise batch can be called for one piece after another, and its nodes are long enough for that.

    Ops that save values can not, since saved values are one block for the whole batch.  The same holds for gradients
    that are prepared for all arguments, unless that can be done piece by piece.
    """
    cdef const Node* node = &nodes_of(g)[order_of(g)[batch.first]]
    cdef const Op* op = &ops[node.op]
    return (total_of(&node.dim) >= LONG and op.saved == NULL and op.raised == NULL and node.item_count == 0
            and (op.prepare == NULL or op.backward_all != NULL))


cdef inline bint is_rising(const Graph* g, const Batch* batch) noexcept nogil:
    """Whether the nodes of a batch are in the order in which they were made."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j
    for j in range(1, batch.count):
        if ids[j] < ids[j - 1]:
            return False
    return True


cdef int mark_views(Graph* g, uint32_t lowest, uint32_t highest) noexcept nogil:
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef Batch* end = <Batch*>(<char*>g.batches.base + g.batches.top)
    cdef size_t top = g.scratch.top
    cdef uint32_t* users = NULL
    while batch < end:
        if batch.form == STACKED and ops[nodes_of(g)[order_of(g)[batch.first]].op].view != NULL:
            if users == NULL:
                users = count_users(g, lowest, highest + 1, True)
                if users == NULL:
                    return -1
            if can_view(g, batch, users, lowest):
                batch.form = VIEWS
        batch += 1
    arena_rewind(&g.scratch, top)
    return 0


cdef bint can_view(const Graph* g, const Batch* batch, const uint32_t* users, uint32_t lowest) noexcept nogil:
    """Whether the arguments have no users but nodes of this batch, and the users of each argument are consecutive."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef uint32_t arg, j = 0, first
    while j < batch.count:
        first = j
        arg = args_of(g, &nodes[ids[j]])[0]
        # A view of a view would have to move with it.
        if not state_of(g)[arg] & WANTED or ops[nodes[arg].op].view != NULL:
            return False
        while j < batch.count and args_of(g, &nodes[ids[j]])[0] == arg:
            if view_at(g, &nodes[ids[j]]) < 0 or total_of(&nodes[ids[j]].dim) < LONG:
                return False
            j += 1
        if j - first != users[arg - lowest]:
            return False
    return True


cdef bint lie_apart(const Graph* g, const Batch* batch) noexcept nogil:
    """Whether the ranges that the nodes of a batch take of one argument do not overlap."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* x
    cdef uint32_t j, k, end, first = 0, fetched = 0
    cdef ptrdiff_t at, other
    while first < batch.count:
        fetch_from(g, batch, first, &fetched)
        end = end_of_run(g, batch, first)
        for j in range(first, end):
            x = &nodes[ids[j]]
            at = view_at(g, x)
            for k in range(first, j):
                other = view_at(g, &nodes[ids[k]])
                if (at < other + <ptrdiff_t>total_of(&nodes[ids[k]].dim)
                        and other < at + <ptrdiff_t>total_of(&x.dim)):
                    return False
        first = end
    return True


# ---- batched schedules ------------------------------------------------------------------

# Per wanted node, indexed by its number minus `lowest`.
cdef struct Work:
    uint32_t* sig                   # its signature
    uint32_t* queue                 # the signature in whose queue it waits
    uint32_t* depth
    uint32_t* next                  # the node after it in the list of its signature
    uint32_t span
    uint32_t deepest
    Signatures signatures

# Per signature: a first-in, first-out list of its nodes.  Nodes then run in the
# order in which their arguments ran, so the arguments are adjacent in memory.
cdef struct Queue:
    uint32_t head
    uint32_t tail
    uint32_t ready
    uint32_t left                   # nodes that have not run
    uint32_t chained                # some of its nodes may depend on others of them
    uint64_t depths                 # sum over those that have not run
    uint32_t n                      # nodes of this signature in the queue being emptied
    uint32_t at                     # 1 + position of the next one in its own batch; 0: it has no batch of its own

cdef uint32_t NONE = 0xFFFFFFFFu

# At least MANY_APART nodes of one size run as one call of their own, even if nodes of other
# sizes are ready, provided that their results have at most SMALL_APART floats.
cdef enum:
    MANY_APART = 8
    SMALL_APART = 64


cdef void* take(Graph* g, size_t bytes) noexcept nogil:
    return arena_alloc(&g.scratch, bytes)


cdef int find_depths(Graph* g, uint32_t lowest, uint32_t target, Work* w) noexcept nogil:
    """Depth of every wanted node."""
    cdef uint32_t i, k, a
    cdef uint32_t depth
    cdef uint8_t* state = state_of(g)
    cdef Node* x
    cdef const uint32_t* args
    w.span = target - lowest + 1
    w.deepest = 0
    w.depth = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    if w.depth == NULL:
        return -1
    for i in range(w.span):
        if not state[lowest + i] & WANTED:
            continue
        x = nodes_of(g) + lowest + i
        args = args_of(g, x)
        depth = 0
        for k in range(x.nargs):
            a = args[k]
            if state[a] & WANTED and w.depth[a - lowest] >= depth:
                depth = w.depth[a - lowest] + 1
        w.depth[i] = depth
        if depth > w.deepest:
            w.deepest = depth
    return 0


cdef inline bint is_narrow(const Work* w, uint32_t count) noexcept nogil:
    """Whether there are so few nodes per depth that batching costs more than it saves."""
    return 2 * <uint64_t>count < 3 * (<uint64_t>w.deepest + 1)


cdef int find_signatures(Graph* g, uint32_t lowest, uint32_t count, Work* w, Interrupts* s) noexcept nogil:
    """Signature and queue of every wanted node."""
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t i
    w.sig = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    w.queue = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    w.next = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    if (w.sig == NULL or w.queue == NULL or w.next == NULL
            or signatures_open(g, &w.signatures, count)):
        return -1
    for i in range(w.span):
        if (state[lowest + i] & WANTED
                and (signature_of(g, &w.signatures, lowest + i, w.depth[i], &w.sig[i]) or interrupted(s, 0))):
            return -1
    settle_values(&w.signatures)
    for i in range(w.span):
        if state[lowest + i] & WANTED:
            w.sig[i] = w.signatures.keys[w.sig[i]].of_values
            w.queue[i] = queue_of(&w.signatures, w.sig[i])
    return 0


cdef inline void push(Work* w, Queue* q, uint32_t i) noexcept nogil:
    w.next[i] = NONE
    if q.ready:
        w.next[q.tail] = i
    else:
        q.head = i
    q.tail = i
    q.ready += 1


cdef inline Batch* start(Graph* g, uint32_t first, uint32_t form) noexcept nogil:
    """A new batch without nodes; NULL if memory is full."""
    cdef Batch* batch = <Batch*>array_push(&g.batches, sizeof(Batch))
    if batch != NULL:
        batch.first = first
        batch.count = 0
        batch.form = form
    return batch


cdef int emit(Graph* g, Work* w, Queue* queues, Queue* q, uint32_t lowest,
              uint32_t* at) noexcept nogil:
    """Write all ready nodes of a queue as batches: as a single one where that is possible and faster."""
    cdef int failed
    if is_mixed(w, q):
        failed = write_kin(g, w, queues, q, lowest, at)
    else:
        failed = write_alike(g, w, q, lowest, at)
    q.left -= q.ready
    q.ready = 0
    return failed


cdef bint is_mixed(const Work* w, const Queue* q) noexcept nogil:
    """Whether the ready nodes have several signatures."""
    cdef uint32_t i = q.head
    cdef uint32_t sig = w.sig[i]
    if w.queue[i] == sig:
        return False
    while i != NONE and w.sig[i] == sig:
        i = w.next[i]
    return i != NONE


cdef int write_alike(Graph* g, const Work* w, const Queue* q, uint32_t lowest,
                     uint32_t* at) noexcept nogil:
    """Write ready nodes of one signature as one batch."""
    cdef uint32_t* order = order_of(g)
    cdef uint32_t i = q.head
    cdef uint32_t form = w.signatures.keys[w.sig[i]].form
    cdef const Node* x
    cdef Batch* batch = start(g, at[0], form)
    if batch == NULL:
        return -1
    while i != NONE:
        order[at[0]] = lowest + i
        at[0] += 1
        batch.count += 1
        i = w.next[i]
    # Nodes with one argument are already in the order of their arguments, which are adjacent.
    x = &nodes_of(g)[order[batch.first]]
    if form == FLATTENED and x.nargs > 1 and total_of(&x.dim) >= LONG:
        put_in_order(order + batch.first, batch.count)
    return 0


cdef inline void put_in_order(uint32_t* ids, uint32_t n) noexcept nogil:
    """Sort node numbers, which are mostly sorted already: elementwise batches run together in tiles by node number."""
    cdef uint32_t j
    for j in range(1, n):
        if ids[j] < ids[j - 1]:
            qsort(ids, n, sizeof(uint32_t), compare_numbers)
            return


cdef int compare_numbers(const void* a, const void* b) noexcept nogil:
    cdef uint32_t x = (<const uint32_t*>a)[0], y = (<const uint32_t*>b)[0]
    return (x > y) - (x < y)


cdef inline bint is_apart(const Work* w, const Queue* own, uint32_t i, const Node* x) noexcept nogil:
    """Whether nodes of one signature gain more from a call of their own than from a batch with nodes of other sizes."""
    if w.signatures.keys[w.sig[i]].by_node:
        return own.n > 1
    return own.n >= MANY_APART and total_of(&x.dim) <= SMALL_APART


cdef int write_kin(Graph* g, const Work* w, Queue* queues, const Queue* q, uint32_t lowest,
                   uint32_t* at) noexcept nogil:
    """Write ready nodes of several signatures as one batch with a call for each node.

    Signatures with enough nodes get batches of their own first.
    """
    cdef uint32_t* order = order_of(g)
    cdef uint32_t n_each = 0
    cdef uint32_t i = q.head
    cdef Queue* own
    cdef Batch* batch
    while i != NONE:
        queues[w.sig[i]].n += 1
        i = w.next[i]
    i = q.head
    while i != NONE:
        own = &queues[w.sig[i]]
        if own.at == 0 and is_apart(w, own, i, &nodes_of(g)[lowest + i]):
            batch = start(g, at[0], w.signatures.keys[w.sig[i]].form)
            if batch == NULL:
                return -1
            batch.count = own.n
            own.at = at[0] + 1
            at[0] += own.n
        n_each += own.at == 0
        i = w.next[i]
    if n_each:
        batch = start(g, at[0], EACH)
        if batch == NULL:
            return -1
        batch.count = n_each
    i = q.head
    while i != NONE:
        own = &queues[w.sig[i]]
        if own.at:
            order[own.at - 1] = lowest + i
            own.at += 1
        else:
            order[at[0]] = lowest + i
            at[0] += 1
        i = w.next[i]
    i = q.head
    while i != NONE:
        own = &queues[w.sig[i]]
        own.n = own.at = 0
        i = w.next[i]
    return 0


cdef Queue* open_queues(Graph* g, Work* w) noexcept nogil:
    cdef Queue* queues = <Queue*>take(g, w.signatures.n * sizeof(Queue))
    if queues != NULL:
        memset(queues, 0, w.signatures.n * sizeof(Queue))
    return queues


cdef int plan_batched(Graph* g, uint32_t lowest, uint32_t target, uint32_t count,
                      int strategy, bint as_made, Interrupts* s) noexcept nogil:
    """Plan by agenda (1) or by depth (2), or reuse the plan of an equal structure."""
    cdef size_t top = g.scratch.top
    cdef Work w
    cdef Structure structure
    cdef int failed = find_depths(g, lowest, target, &w)
    if not failed:
        if is_narrow(&w, count):
            failed = plan_plain(g, lowest, target, count)
        else:
            describe_structure(g, lowest, target, count, strategy, &structure)
            if not plan_from_cache(g, &structure):
                failed = (find_signatures(g, lowest, count, &w, s)
                          or (run_agenda(g, &w, lowest, count, s) if strategy == 1
                              else run_depths(g, &w, lowest, s)))
                failed = failed or mark_views(g, lowest, target)
                if not failed:
                    cache_plan(g, &structure)
            if not failed:
                choose_forms(g, as_made)
    arena_rewind(&g.scratch, top)
    return failed


cdef int run_depths(Graph* g, Work* w, uint32_t lowest, Interrupts* s) noexcept nogil:
    cdef uint8_t* state = state_of(g)
    cdef Queue* queues = open_queues(g, w)
    cdef uint32_t* levels = <uint32_t*>take(g, (w.deepest + 2) * sizeof(uint32_t))
    cdef uint32_t* sorted_ = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    cdef uint32_t* active = <uint32_t*>take(g, w.signatures.n * sizeof(uint32_t))
    cdef uint32_t i, k, d, n_active, sig
    cdef uint32_t at = g.n_order
    if queues == NULL or levels == NULL or sorted_ == NULL or active == NULL:
        return -1
    # Counting sort by depth; nodes of one depth stay in the order in which they were made.
    memset(levels, 0, (w.deepest + 2) * sizeof(uint32_t))
    for i in range(w.span):
        if state[lowest + i] & WANTED:
            levels[w.depth[i] + 1] += 1
    for d in range(w.deepest + 1):
        levels[d + 1] += levels[d]
    for i in range(w.span):
        if state[lowest + i] & WANTED:
            sorted_[levels[w.depth[i]]] = i
            levels[w.depth[i]] += 1
    k = 0
    for d in range(w.deepest + 1):
        n_active = 0
        while k < levels[d]:
            i = sorted_[k]
            k += 1
            sig = w.queue[i]
            if queues[sig].ready == 0:
                active[n_active] = sig
                n_active += 1
            queues[sig].left += 1
            push(w, &queues[sig], i)
        for i in range(n_active):
            if emit(g, w, queues, &queues[active[i]], lowest, &at) or interrupted(s, 0):
                return -1
    return 0


cdef inline bint is_before(const Queue* q, const Queue* r) noexcept nogil:
    """Whether the ready nodes of q run before those of r."""
    cdef int q_rank = rank_of(q), r_rank = rank_of(r)
    if q_rank != r_rank:
        return q_rank < r_rank
    # least depths / left, compared without division
    if q.depths * r.left != r.depths * q.left:
        return q.depths * r.left < r.depths * q.left
    return q.head < r.head


cdef inline int rank_of(const Queue* q) noexcept nogil:
    """0: all of its nodes are ready.  2: some are not, but they could run in one call with the ready ones later."""
    return 0 if q.ready == q.left else 1 if q.chained else 2


cdef int run_agenda(Graph* g, Work* w, uint32_t lowest, uint32_t count, Interrupts* s) noexcept nogil:
    cdef uint8_t* state = state_of(g)
    cdef Queue* queues = open_queues(g, w)
    cdef uint32_t* waits = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    cdef uint64_t* behind = <uint64_t*>take(g, w.span * sizeof(uint64_t))
    cdef uint32_t* users = <uint32_t*>take(g, (w.span + 1) * sizeof(uint32_t))
    cdef uint32_t* user
    cdef uint32_t* active = <uint32_t*>take(g, w.signatures.n * sizeof(uint32_t))
    cdef uint32_t i, k, a, sig, best, n_active = 0, n_edges = 0
    cdef uint32_t at = g.n_order
    cdef uint32_t end = g.n_order + count
    cdef uint32_t ran
    cdef Node* x
    cdef const uint32_t* args
    cdef Queue* q
    cdef Queue* r
    if queues == NULL or waits == NULL or behind == NULL or users == NULL or active == NULL:
        return -1
    # behind[i]: the queues of all ancestors of node i, as a set of 64 bits; queues beyond 64 share bits.
    # users[a] .. users[a + 1]: where in `user` the users of node a are.
    memset(users, 0, (w.span + 1) * sizeof(uint32_t))
    for i in range(w.span):
        if not state[lowest + i] & WANTED:
            continue
        q = &queues[w.queue[i]]
        q.left += 1
        q.depths += w.depth[i]
        x = nodes_of(g) + lowest + i
        args = args_of(g, x)
        waits[i] = 0
        behind[i] = 0
        for k in range(x.nargs):
            a = args[k]
            if state[a] & WANTED:
                a -= lowest
                behind[i] |= behind[a] | <uint64_t>1 << (w.queue[a] & 63)
                users[a] += 1
                waits[i] += 1
                n_edges += 1
        q.chained |= behind[i] >> (w.queue[i] & 63) & 1
    user = <uint32_t*>take(g, n_edges * sizeof(uint32_t))
    if user == NULL:
        return -1
    n_edges = 0
    for i in range(w.span + 1):
        n_edges += users[i]
        users[i] = n_edges
    for i in range(w.span - 1, -1, -1):         # backwards, so that the lists end up in ascending order
        if not state[lowest + i] & WANTED:
            continue
        x = nodes_of(g) + lowest + i
        args = args_of(g, x)
        for k in range(x.nargs):
            a = args[k]
            if state[a] & WANTED:
                users[a - lowest] -= 1
                user[users[a - lowest]] = i
    for i in range(w.span):
        if state[lowest + i] & WANTED and waits[i] == 0:
            sig = w.queue[i]
            if queues[sig].ready == 0:
                active[n_active] = sig
                n_active += 1
            push(w, &queues[sig], i)
    while at < end:
        best = 0
        for k in range(1, n_active):
            if is_before(&queues[active[k]], &queues[active[best]]):
                best = k
        sig = active[best]
        n_active -= 1
        active[best] = active[n_active]
        q = &queues[sig]
        ran = at
        # The search for the best queue has read all active ones: add that to the work since the last check for signals.
        if emit(g, w, queues, q, lowest, &at) or interrupted(s, n_active * sizeof(Queue)):
            return -1
        while ran < at:
            i = order_of(g)[ran] - lowest
            ran += 1
            q.depths -= w.depth[i]
            for k in range(users[i], users[i + 1]):
                a = user[k]
                waits[a] -= 1
                if waits[a] == 0:
                    r = &queues[w.queue[a]]
                    if r.ready == 0:
                        active[n_active] = w.queue[a]
                        n_active += 1
                    push(w, r, a)
    return 0
