"""The batched schedules: nodes with equal signatures run together.

By agenda (Neubig, Goldberg and Dyer 2017, On-the-fly operation batching in dynamic computation graphs): among the
signatures with nodes whose arguments are ready, the one whose remaining nodes have the smallest average depth runs
next, with all its ready nodes.  Beyond the paper: a signature all of whose nodes are ready runs first, and one whose
nodes do not depend on each other waits until all of them are ready, as long as another one can run.  By depth: nodes of
equal depth and signature run together.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from dynet_cy.core.interrupts cimport Interrupts, interrupted
from dynet_cy.core.limits cimport MOST_ALONG
from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, WANTED, Batch, Graph, Node, args_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind, array_push
from dynet_cy.schedule.plain cimport plan_plain
from dynet_cy.schedule.plan_cache cimport (
    Structure, cache_plan, describe_structure, plan_from_cache,
)
from dynet_cy.schedule.signature cimport (
    Signatures, queue_of, signature_of, signatures_open,
)
from dynet_cy.schedule.views cimport LONG, mark_views


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

# A flattened batch is one vector, whose length must fit one axis.
cdef size_t MOST_FLAT = MOST_ALONG

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
    for i in range(w.span):
        if state[lowest + i] & WANTED:
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
    """Write ready nodes of one signature as one batch, or as several if one would be too long."""
    cdef uint32_t* order = order_of(g)
    cdef uint32_t i = q.head
    cdef uint32_t form = w.signatures.keys[w.sig[i]].form
    cdef bint adds_up = form == FLATTENED or form == COLUMNS
    cdef size_t n, floats = 0
    cdef const Node* x
    cdef Batch* batch = start(g, at[0], form)
    if batch == NULL:
        return -1
    while i != NONE:
        if adds_up:
            n = total_of(&nodes_of(g)[lowest + i].dim)
            floats += n
            if floats > MOST_FLAT and batch.count:
                batch = start(g, at[0], form)
                if batch == NULL:
                    return -1
                floats = n
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
                      int strategy, Interrupts* s) noexcept nogil:
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
