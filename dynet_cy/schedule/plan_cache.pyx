"""A cache of plans: a structure that was scheduled before is not scheduled again.

A structure is described by all that a plan depends on: for each wanted node its op and parameters, its device where
there are several, the shape of its result, and its arguments; for arguments that are already computed, their shape and
whether they are parameters.  The values of inputs and the items of nodes (indices of lookups and picks) are not part of
it.  Two structures are equal when their descriptions are, word for word; a hash only finds the candidate.

Nodes are numbered from the lowest wanted node, parameters excepted, so that a structure may repeat later in the same
graph.

A plan is cached when its structure is seen for the second time: a structure that never repeats costs its description
and nothing else.  Each graph has a cache of its own, which survives renewal and drops the least recently used plans
beyond a number of plans and of bytes.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from dynet_cy.core.atomic cimport Number
from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.graph cimport ComputationGraph
from dynet_cy.graph.structs cimport (
    SHARED, WANTED, Batch, Graph, Node, args_of, batches_of, device_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_extend, array_push
from dynet_cy.schedule.counting cimport Counts, add_counts, clear, counted
from dynet_cy.schedule.hash cimport dy_hash

cdef enum:
    CHUNK = 4096                    # words
    NODE_WORDS = 21                 # most words of a node, arguments not counted
    ARGUMENT_WORDS = 12             # most words of an argument
    MOST_ARGUMENTS = 0x7FFFFFF      # most arguments of a node that can be described
    SEEN_GROUPS = 256
    SEEN_WAYS = 4                   # hashes of one group

# GAP takes the place of an op, OUTSIDE that of an argument's number.
cdef uint32_t GAP = 0xFFFF
cdef uint32_t OUTSIDE = 0xFFFFFFFFu

cdef Number most_plans = 64
cdef Number most_bytes = 16 << 20
cdef Number hash_mask = 0xFFFFFFFFFFFFFFFFu
cdef Counts made_and_reused         # plans

# Followed in memory by the words of its structure, the nodes in order of
# execution, and the count and form of each batch.
cdef struct CachedPlan:
    CachedPlan* next                      # the next less recently used one
    uint64_t hash
    size_t n_words
    size_t bytes
    uint32_t n_nodes
    uint32_t n_batches

cdef struct PlanCache:
    CachedPlan* first
    uint32_t n
    size_t bytes
    # The hashes seen last, in groups by their low bits, in each group the newest first.  A group holds several:
    # structures that alternate would otherwise displace each other where their low bits are equal, and none be cached.
    uint64_t seen[SEEN_GROUPS][SEEN_WAYS]


cdef inline uint32_t* words_of(CachedPlan* k) noexcept nogil:
    return <uint32_t*>(k + 1)


cdef inline uint32_t* write_dim(uint32_t* w, const Dim* d) noexcept nogil:
    cdef uint32_t i
    w[0] = d.bd
    for i in range(d.nd):
        w[1 + i] = d.d[i]
    return w + 1 + d.nd


cdef inline uint32_t* write_node(Graph* g, const Node* x, uint32_t lowest, uint32_t* w) noexcept nogil:
    """Describe a wanted node; return the end of its words."""
    cdef const uint8_t* state = state_of(g)
    cdef const uint32_t* args = args_of(g, x)
    cdef const Node* a
    cdef uint32_t i
    cdef uint32_t has_attrs = (x.attrs[0].u | x.attrs[1].u | x.attrs[2].u | x.attrs[3].u) != 0
    cdef uint32_t has_object = x.object != NULL
    w[0] = x.op | <uint32_t>x.item_count << 16
    w[1] = x.nargs << 5 | has_object << 4 | has_attrs << 3 | x.dim.nd
    w = write_dim(w + 2, &x.dim)
    if g.multi_device:
        w[0] = <uint32_t>device_of(g, <uint32_t>(x - nodes_of(g)))
        w += 1
    if has_attrs:
        for i in range(4):
            w[i] = x.attrs[i].u
        w += 4
    if has_object:
        w[0] = <uint32_t><uintptr_t>x.object
        w[1] = <uint32_t>(<uint64_t><uintptr_t>x.object >> 32)
        w += 2
    for i in range(x.nargs):
        if state[args[i]] & WANTED:
            w[0] = args[i] - lowest
            w += 1
        else:
            a = nodes_of(g) + args[i]
            w[0] = OUTSIDE
            w[1] = args[i] if state[args[i]] & SHARED else args[i] - lowest
            w[2] = a.dim.nd | <uint32_t>(state[args[i]] & SHARED) << 8
            w = write_dim(w + 3, &a.dim)
    return w


cdef void describe_structure(Graph* g, uint32_t lowest, uint32_t highest, uint32_t count,
                             int strategy, Structure* s) noexcept nogil:
    """Describe everything that the schedule of the wanted nodes depends on."""
    cdef const uint8_t* state = state_of(g)
    cdef const Node* x
    cdef uint32_t* w = NULL
    cdef uint32_t* end = NULL
    cdef uint32_t* first
    cdef uint32_t* moved
    cdef size_t most
    cdef uint32_t i, following = lowest
    s.words = NULL
    s.lowest = lowest
    s.count = count
    if most_plans:
        w = <uint32_t*>arena_alloc(&g.scratch, CHUNK * sizeof(uint32_t))
    if w == NULL:
        return
    end = w + CHUNK
    first = w
    w[0] = <uint32_t>strategy | <uint32_t>g.multi_device << 8
    w[1] = highest - lowest
    w += 2
    for i in range(lowest, highest + 1):
        if not state[i] & WANTED:
            continue
        x = nodes_of(g) + i
        most = NODE_WORDS + ARGUMENT_WORDS * <size_t>x.nargs
        if w + most > end:
            most = max(most, <size_t>CHUNK)
            if x.nargs > MOST_ARGUMENTS:
                return
            moved = <uint32_t*>arena_extend(
                &g.scratch, first, (end - first) * sizeof(uint32_t), most * sizeof(uint32_t))
            if moved == NULL:
                return
            w = moved + (w - first)
            end = moved + (end - first) + most
            first = moved
        if i != following:
            w[0] = GAP
            w[1] = i - lowest
            w += 2
        following = i + 1
        w = write_node(g, x, lowest, w)
    s.words = first
    s.n_words = w - first
    s.hash = dy_hash(first, s.n_words) & hash_mask


cdef bint plan_from_cache(Graph* g, const Structure* s) noexcept nogil:
    """Copy the plan of an equal structure; False if none is cached."""
    cdef PlanCache* plans = <PlanCache*>g.plans
    cdef CachedPlan** link
    cdef CachedPlan* k
    cdef const uint32_t* order
    cdef const uint32_t* batches
    cdef Batch* batch
    cdef uint32_t i
    cdef uint32_t at = g.n_order
    if plans == NULL or s.words == NULL:
        return False
    link = &plans.first
    k = link[0]
    while k != NULL:
        if (k.hash == s.hash and k.n_words == s.n_words
                and memcmp(words_of(k), s.words, s.n_words * sizeof(uint32_t)) == 0):
            break
        link = &k.next
        k = link[0]
    if k == NULL:
        return False
    batch = <Batch*>array_push(&g.batches, k.n_batches * sizeof(Batch))
    if batch == NULL:
        return False
    link[0] = k.next
    k.next = plans.first
    plans.first = k
    order = words_of(k) + k.n_words
    batches = order + k.n_nodes
    for i in range(k.n_nodes):
        order_of(g)[at + i] = order[i] + s.lowest
    for i in range(k.n_batches):
        batch[i].first = at
        batch[i].count = batches[2 * i]
        batch[i].form = batches[2 * i + 1]
        at += batch[i].count
    add_counts(&made_and_reused, 0, 1)
    return True


cdef bint was_seen(PlanCache* plans, uint64_t hash) noexcept nogil:
    """Return whether the hash is one of those seen last; make it the newest of its group."""
    cdef uint64_t* group = &plans.seen[hash % SEEN_GROUPS][0]
    cdef uint64_t previous, current = hash
    cdef int i
    for i in range(SEEN_WAYS):
        previous = group[i]
        group[i] = current
        if previous == hash:
            return True
        current = previous
    return False


cdef void cache_plan(Graph* g, const Structure* s) noexcept nogil:
    """Cache the plan just made, if its structure has been seen before."""
    cdef PlanCache* plans = <PlanCache*>g.plans
    cdef uint32_t n_batches = <uint32_t>(g.batches.top // sizeof(Batch)) - g.n_batches
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef size_t bytes
    cdef uint32_t* w
    cdef uint32_t i
    cdef CachedPlan* k
    add_counts(&made_and_reused, 1, 0)
    if s.words == NULL:
        return
    if plans == NULL:
        plans = <PlanCache*>calloc(1, sizeof(PlanCache))
        g.plans = plans
        if plans == NULL:
            return
    if not was_seen(plans, s.hash):
        return
    bytes = sizeof(CachedPlan) + (s.n_words + s.count + 2 * <size_t>n_batches) * sizeof(uint32_t)
    if bytes > most_bytes:
        return
    make_room(plans, bytes)
    k = <CachedPlan*>malloc(bytes)
    if k == NULL:
        return
    k.hash = s.hash
    k.n_words = s.n_words
    k.bytes = bytes
    k.n_nodes = s.count
    k.n_batches = n_batches
    w = words_of(k)
    memcpy(w, s.words, s.n_words * sizeof(uint32_t))
    w += s.n_words
    for i in range(s.count):
        w[i] = order_of(g)[g.n_order + i] - s.lowest
    w += s.count
    for i in range(n_batches):
        w[2 * i] = batch[i].count
        w[2 * i + 1] = batch[i].form
    k.next = plans.first
    plans.first = k
    plans.n += 1
    plans.bytes += bytes


cdef void make_room(PlanCache* plans, size_t bytes) noexcept nogil:
    """Drop the least recently used plans until there is room for one more."""
    cdef CachedPlan** link = &plans.first
    cdef CachedPlan* k = plans.first
    cdef CachedPlan* following
    cdef uint32_t n = 1
    while k != NULL and n < most_plans and bytes + k.bytes <= most_bytes:
        bytes += k.bytes
        n += 1
        link = &k.next
        k = link[0]
    link[0] = NULL
    while k != NULL:
        plans.n -= 1
        plans.bytes -= k.bytes
        following = k.next
        free(k)
        k = following


cdef void drop_plan_cache(Graph* g) noexcept nogil:
    """Free the cache of a graph."""
    cdef PlanCache* plans = <PlanCache*>g.plans
    cdef CachedPlan* k
    if plans == NULL:
        return
    while plans.first != NULL:
        k = plans.first
        plans.first = k.next
        free(k)
    free(plans)
    g.plans = NULL


def counts():
    """The number of plans made, and of plans taken from the cache, since `reset`."""
    return counted(&made_and_reused)


def reset():
    """Count from zero again."""
    clear(&made_and_reused)


def set_limits(uint32_t plans, size_t bytes):
    """Limit the cache of each graph.

    Args:
        plans: number of plans; 0 caches none.
        bytes: their total size.

    Returns:
        The previous limits, as a tuple.
    """
    global most_plans, most_bytes
    before = most_plans, most_bytes
    most_plans = plans
    most_bytes = bytes
    return before


def set_hash_mask(uint64_t mask):
    """Use only these bits of hashes: for tests, which need different structures with equal hashes."""
    global hash_mask
    hash_mask = mask


def cached_in(ComputationGraph graph not None):
    """The number of plans in the cache of a graph, and their size in bytes."""
    cdef PlanCache* plans = <PlanCache*>graph.g.plans
    if plans == NULL:
        return 0, 0
    return plans.n, plans.bytes
