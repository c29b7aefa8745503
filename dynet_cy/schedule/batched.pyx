"""The batched schedules: nodes of equal signature run together.

By agenda (Neubig, Goldberg and Dyer 2017, On-the-fly operation batching in
dynamic computation graphs): of the signatures with nodes whose arguments are
ready, the one whose remaining nodes have the least average depth runs next,
with all its ready nodes.  Beyond the paper: a signature all of whose nodes are
ready runs first, and one whose nodes do not need each other waits until they
are, as long as there is another.  By depth: nodes of equal depth and signature.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.graph cimport (
    WANTED, Batch, Graph, Node, args_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_push, arena_rewind
from dynet_cy.schedule.kept cimport (
    Structure, describe_structure, keep_plan, plan_as_before,
)
from dynet_cy.schedule.plain cimport plan_plain
from dynet_cy.schedule.signature cimport (
    Signatures, signature_of, signatures_open,
)


# All per wanted node, by its number less `lowest`.
cdef struct Work:
    uint32_t* sig
    uint32_t* depth
    uint32_t* next                  # the node after it in the list of its signature
    uint32_t span
    uint32_t deepest
    Signatures signatures

# All per signature: its list of nodes, first in first out, so that nodes run
# in the order in which their arguments did and these lie side by side.
cdef struct Queue:
    uint32_t head
    uint32_t tail
    uint32_t ready
    uint32_t left                   # nodes that have not run
    uint32_t chained                # some of its nodes perhaps need others of them
    uint64_t depths                 # sum over those that have not run

cdef uint32_t NONE = 0xFFFFFFFFu

# A batch of which shapes are forgotten is one vector, whose length must fit a Dim.
cdef size_t MOST_FLAT = 0xFFFFFFFFu


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
    """Whether so few nodes stand side by side that batches cost more than they save."""
    return 2 * <uint64_t>count < 3 * (<uint64_t>w.deepest + 1)


cdef int find_signatures(Graph* g, uint32_t lowest, uint32_t count, Work* w) noexcept nogil:
    """Signature of every wanted node."""
    cdef uint32_t i
    w.sig = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    w.next = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    if w.sig == NULL or w.next == NULL or signatures_open(g, &w.signatures, count):
        return -1
    for i in range(w.span):
        if (state_of(g)[lowest + i] & WANTED
                and signature_of(g, &w.signatures, lowest + i, &w.sig[i])):
            return -1
    return 0


cdef inline void push(Work* w, Queue* q, uint32_t i) noexcept nogil:
    w.next[i] = NONE
    if q.ready:
        w.next[q.tail] = i
    else:
        q.head = i
    q.tail = i
    q.ready += 1


cdef inline void start(Batch* batch, uint32_t first, uint32_t flat) noexcept nogil:
    batch.first = first
    batch.count = 0
    batch.flat = flat


cdef int emit(Graph* g, Work* w, uint32_t sig, Queue* q, uint32_t lowest,
              uint32_t* at) noexcept nogil:
    """Write all ready nodes of a signature as one batch (or more, where one would be too long)."""
    cdef Batch* batch = <Batch*>arena_push(&g.batches, sizeof(Batch))
    cdef uint32_t* order = order_of(g)
    cdef uint32_t i = q.head
    cdef size_t n, floats = 0
    if batch == NULL:
        return -1
    start(batch, at[0], w.signatures.keys[sig].flat)
    while i != NONE:
        if batch.flat:
            n = total_of(&nodes_of(g)[lowest + i].dim)
            floats += n
            if floats > MOST_FLAT and batch.count:
                batch = <Batch*>arena_push(&g.batches, sizeof(Batch))
                if batch == NULL:
                    return -1
                start(batch, at[0], 1)
                floats = n
        order[at[0]] = lowest + i
        at[0] += 1
        batch.count += 1
        i = w.next[i]
    q.left -= q.ready
    q.ready = 0
    return 0


cdef Queue* open_queues(Graph* g, Work* w) noexcept nogil:
    cdef Queue* queues = <Queue*>take(g, w.signatures.n * sizeof(Queue))
    if queues != NULL:
        memset(queues, 0, w.signatures.n * sizeof(Queue))
    return queues


cdef int plan_batched(Graph* g, uint32_t lowest, uint32_t target, uint32_t count,
                      int strategy) noexcept nogil:
    """Plan by agenda (1) or by depth (2), or as an equal structure was planned before."""
    cdef size_t top = g.scratch.top
    cdef Work w
    cdef Structure s
    cdef int failed = find_depths(g, lowest, target, &w)
    if not failed:
        if is_narrow(&w, count):
            failed = plan_plain(g, lowest, target, count)
        else:
            describe_structure(g, lowest, target, count, strategy, &s)
            if not plan_as_before(g, &s):
                failed = (find_signatures(g, lowest, count, &w)
                          or (run_agenda(g, &w, lowest, count) if strategy == 1
                              else run_depths(g, &w, lowest)))
                if not failed:
                    keep_plan(g, &s)
    arena_rewind(&g.scratch, top)
    return failed


cdef int run_depths(Graph* g, Work* w, uint32_t lowest) noexcept nogil:
    cdef uint8_t* state = state_of(g)
    cdef Queue* queues = open_queues(g, w)
    cdef uint32_t* levels = <uint32_t*>take(g, (w.deepest + 2) * sizeof(uint32_t))
    cdef uint32_t* sorted_ = <uint32_t*>take(g, w.span * sizeof(uint32_t))
    cdef uint32_t* active = <uint32_t*>take(g, w.signatures.n * sizeof(uint32_t))
    cdef uint32_t i, k, d, n_active, sig
    cdef uint32_t at = g.n_order
    if queues == NULL or levels == NULL or sorted_ == NULL or active == NULL:
        return -1
    # Counting sort by depth; nodes of one depth stay in the order of making.
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
            sig = w.sig[i]
            if queues[sig].ready == 0:
                active[n_active] = sig
                n_active += 1
            queues[sig].left += 1
            push(w, &queues[sig], i)
        for i in range(n_active):
            if emit(g, w, active[i], &queues[active[i]], lowest, &at):
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
    """0: all of its nodes are ready.  2: some are not, and they would run together with these later."""
    return 0 if q.ready == q.left else 1 if q.chained else 2


cdef int run_agenda(Graph* g, Work* w, uint32_t lowest, uint32_t count) noexcept nogil:
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
    # behind[i]: the signatures of the nodes that node i needs, directly or not, as bits, which they share beyond 64.
    # users[a] .. users[a + 1]: where in `user` the users of node a are.
    memset(users, 0, (w.span + 1) * sizeof(uint32_t))
    for i in range(w.span):
        if not state[lowest + i] & WANTED:
            continue
        q = &queues[w.sig[i]]
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
                behind[i] |= behind[a] | <uint64_t>1 << (w.sig[a] & 63)
                users[a] += 1
                waits[i] += 1
                n_edges += 1
        q.chained |= behind[i] >> (w.sig[i] & 63) & 1
    user = <uint32_t*>take(g, n_edges * sizeof(uint32_t))
    if user == NULL:
        return -1
    n_edges = 0
    for i in range(w.span + 1):
        n_edges += users[i]
        users[i] = n_edges
    for i in range(w.span - 1, -1, -1):         # backwards, so that lists end up rising
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
            sig = w.sig[i]
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
        if emit(g, w, sig, q, lowest, &at):
            return -1
        while ran < at:
            i = order_of(g)[ran] - lowest
            ran += 1
            q.depths -= w.depth[i]
            for k in range(users[i], users[i + 1]):
                a = user[k]
                waits[a] -= 1
                if waits[a] == 0:
                    r = &queues[w.sig[a]]
                    if r.ready == 0:
                        active[n_active] = w.sig[a]
                        n_active += 1
                    push(w, r, a)
    return 0
