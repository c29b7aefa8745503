"""Plans: batches of nodes with equal signatures, and a cache of plans."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from dynet_cy.core.engine cimport add_count, add_tunable
from dynet_cy.core.tensor cimport Dim, cols_of, rows_of, same_shape, total_of
from dynet_cy.core.threads cimport Interrupts, Number, add_to, interrupted
from dynet_cy.graph.expressions cimport ComputationGraph
from dynet_cy.graph.structs cimport (
    COLUMNS, COMPUTED, EACH, FLATTENED, ONE, PIECES, SHARED, STACKED, TILES, VIEWS, WANTED, Batch, Graph, Node, args_of,
    batches_of, device_of, is_dropped, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport (
    arena_alloc, arena_extend, arena_offset, arena_push, arena_rewind, array_push, array_rewind,
)
from dynet_cy.ops.registry cimport ALONE, FLAT, LIST, SHARE, Op, op_at, rule_index, rule_of
from dynet_cy.schedule.facts cimport NONE
from dynet_cy.schedule.rewrite cimport (
    LONG, count_users, rewrite, rewrites_at, rewrites_of,
)
from dynet_cy.watch.timeline cimport SCHEDULING, begin_span, end_span

cdef extern from "wanted.h" nogil:
    # derived: functions of next_wanted, last_wanted
    uint32_t next_wanted "dy_next_wanted"(const uint8_t* state, uint32_t i, uint32_t end)
    uint32_t last_wanted "dy_last_wanted"(const uint8_t* state, uint32_t end)
    # end of functions


# ==== signature ===================================================================================
#
# Signatures: which nodes may run as one call.

# Words of a key before those of its arguments, and of a shape.
cdef enum:
    HEAD_WORDS = 10
    SHAPE_WORDS = 8

# A node has up to three keys: its own, that of its kin, and that `of_values`.  Most graphs have few.
cdef enum:
    KEYS_OF_NODE = 3
    FEW_KEYS = 512

# The arguments' part of a key.
cdef enum:
    KEY_SHAPES                      # their shapes
    KEY_ALONE                       # nothing: the key holds the number of its node, which runs alone
    KEY_FLAT                        # nothing: all are as large as the result
    KEY_COLUMNS                     # their numbers of rows
    KEY_KIN                         # their numbers of axes


cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil:
    """An empty table for the signatures of at most `most` nodes, in the scratch arena."""
    s.n = 0
    return make_table(g, s, min(KEYS_OF_NODE * most, <uint32_t>FEW_KEYS))


cdef int make_table(Graph* g, Signatures* s, uint32_t most) noexcept nogil:
    """Make a table with room for so many signatures, and put those there that are known.  -1: there is no memory."""
    cdef Key* before = s.keys
    cdef uint32_t i, at
    s.most = most
    s.table_size = 16
    while s.table_size <= most:
        s.table_size *= 2
    s.table = <uint32_t*>arena_alloc(&g.scratch, s.table_size * sizeof(uint32_t))
    s.keys = <Key*>arena_alloc(&g.scratch, most * sizeof(Key))
    if s.table == NULL or s.keys == NULL:
        return -1
    memset(s.table, 0, s.table_size * sizeof(uint32_t))
    if s.n:
        memcpy(s.keys, before, s.n * sizeof(Key))
    for i in range(s.n):
        at = s.keys[i].hash & (s.table_size - 1)
        while s.table[at]:
            at = (at + 1) & (s.table_size - 1)
        s.table[at] = i + 1
    return 0


cdef inline uint32_t* write_shape(uint32_t* w, const Dim* d) noexcept nogil:
    cdef uint32_t i
    w[0] = axes_and_type(d)
    for i in range(d.nd):
        w[1 + i] = d.d[i]
    return w + 1 + d.nd


cdef inline uint32_t axes_and_type(const Dim* d) noexcept nogil:
    return d.nd | <uint32_t>d.type << 8


cdef inline uint32_t* write_rows(uint32_t* w, const Dim* d) noexcept nogil:
    w[0] = 1 | <uint32_t>d.type << 8
    w[1] = rows_of(d)
    return w + 2


cdef inline uint32_t* write_shared(uint32_t* w, uint32_t node) noexcept nogil:
    w[0] = 0xFFFFFFFFu
    w[1] = node
    return w + 2


cdef inline uint32_t* write_head(Graph* g, const Node* x, uint32_t kind, uint32_t* w) noexcept nogil:
    cdef uint32_t i
    kind |= <uint32_t>x.dim.type << 4
    if g.multi_device:
        kind |= <uint32_t>device_of(g, <uint32_t>(x - nodes_of(g))) << 8
    w[0] = x.op
    w[1] = x.nargs
    for i in range(4):
        w[2 + i] = x.attrs[i].u
    w[6] = x.item_count
    w[7] = <uint32_t><uintptr_t>x.object
    w[8] = <uint32_t>(<uint64_t><uintptr_t>x.object >> 32)
    w[9] = kind
    return w + HEAD_WORDS


cdef inline uint32_t write_alone(Graph* g, const Node* x, uint32_t id, uint32_t* w) noexcept nogil:
    write_head(g, x, KEY_ALONE, w)[0] = id
    return HEAD_WORDS + 1


cdef inline bint is_flat(Graph* g, const Node* x) noexcept nogil:
    """Whether all arguments have the shape of the result."""
    cdef const uint32_t* args = args_of(g, x)
    cdef const Node* a
    cdef uint32_t i
    for i in range(x.nargs):
        a = &nodes_of(g)[args[i]]
        if (state_of(g)[args[i]] & SHARED or a.dim.bd != x.dim.bd
                or not same_shape(&a.dim, &x.dim)):
            return False
    return True


cdef bint has_parameter_value(const Graph* g, const Node* x) noexcept nogil:
    cdef const uint32_t* args = args_of(g, x)
    cdef uint32_t i
    for i in range(x.nargs):
        if state_of(g)[args[i]] & SHARED and may_be_value(op_at(x.op), i):
            return True
    return False


cdef inline bint is_shared(const Graph* g, const Op* op, uint32_t i, uint32_t arg, bint as_values) noexcept nogil:
    """Whether argument i is a parameter that all nodes share; `as_values`: only if it can not be a value."""
    return state_of(g)[arg] & SHARED and not (as_values and may_be_value(op, i))


cdef inline bint has_columns(Graph* g, const Op* op, const Node* x, bint as_values) noexcept nogil:
    """Whether all arguments have as many columns as the result, except those that the whole batch shares."""
    cdef const uint32_t* args = args_of(g, x)
    cdef const Node* a
    cdef size_t n = cols_of(&x.dim) * x.dim.bd
    cdef uint32_t i
    for i in range(x.nargs):
        a = &nodes_of(g)[args[i]]
        if rule_of(op, i) == SHARE:
            if a.dim.bd != 1:
                return False
        elif is_shared(g, op, i, args[i], as_values):
            if cols_of(&a.dim) != 1 or not op.one_column[rule_index(i)]:
                return False
        elif cols_of(&a.dim) * a.dim.bd != n or (rule_of(op, i) == LIST and cols_of(&x.dim) == 1):
            return False                        # vectors of a list are read where they lie, if they are stacked
    return True


cdef inline uint32_t write_key(Graph* g, uint32_t id, uint32_t* w, Key* key, bint as_values) noexcept nogil:
    """Write the key of a node, perhaps with parameters `as_values`, and return its length in words."""
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef Node* x = &nodes[id]
    cdef Op* op = op_at(x.op)
    cdef const uint32_t* args = args_of(g, x)
    cdef uint32_t i
    cdef uint32_t* at
    cdef Node* a
    cdef bint shared, columns
    cdef bint all_shared = x.nargs > 0
    key.form = STACKED
    key.by_node = False
    if op.batching == ALONE:
        return write_alone(g, x, id, w)
    if op.batching == FLAT and is_flat(g, x):
        key.form = FLATTENED
        write_head(g, x, KEY_FLAT, w)
        return HEAD_WORDS
    columns = op.columns and has_columns(g, op, x, as_values)
    at = write_head(g, x, KEY_COLUMNS if columns else KEY_SHAPES, w)
    for i in range(x.nargs):
        a = &nodes[args[i]]
        shared = is_shared(g, op, i, args[i], as_values) or rule_of(op, i) == SHARE
        if rule_of(op, i) == LIST:
            all_shared = False
        elif not columns and a.dim.bd != (1 if shared else x.dim.bd):
            # An argument with several batch elements cannot be shared by all nodes; one
            # that the node's own batch elements share cannot be concatenated with others.
            return write_alone(g, x, id, w)
        if shared:
            key.by_node = key.by_node or not state[args[i]] & SHARED
            at = write_shared(at, args[i])
        else:
            all_shared = False
            at = write_rows(at, &a.dim) if columns else write_shape(at, &a.dim)
    if all_shared:
        # At least one argument of a call must have its batch size.
        key.by_node = False
        return write_alone(g, x, id, w)
    if columns:
        key.form = COLUMNS
    at = write_rows(at, &x.dim) if columns else write_shape(at, &x.dim)
    return <uint32_t>(at - w)


cdef uint32_t write_kin(Graph* g, uint32_t id, uint32_t* w) noexcept nogil:
    """Write the key that nodes of different sizes have in common, and return its length."""
    cdef Node* x = &nodes_of(g)[id]
    cdef const uint32_t* args = args_of(g, x)
    cdef uint32_t* at = write_head(g, x, KEY_KIN, w)
    cdef uint32_t i
    w[6] = 0                                    # the number of items may depend on the size
    for i in range(x.nargs):
        if state_of(g)[args[i]] & SHARED:
            at = write_shared(at, args[i])
        else:
            at[0] = axes_and_type(&nodes_of(g)[args[i]].dim)
            at += 1
    return <uint32_t>(at - w)


cdef inline uint32_t find(Graph* g, Signatures* s, uint32_t* w, uint32_t n) noexcept nogil:
    """Number of the signature with this key; a new one if the key is not known.

    The key is at the top of the scratch arena, and stays there if it is new.
    """
    cdef uint32_t h = <uint32_t>dy_hash(w, n)
    cdef uint32_t at = h & (s.table_size - 1)
    cdef size_t top = arena_offset(&g.scratch, w)
    cdef Key* key
    while s.table[at]:
        key = &s.keys[s.table[at] - 1]
        if key.hash == h and key.n_words == n and memcmp(key.words, w, n * sizeof(uint32_t)) == 0:
            arena_rewind(&g.scratch, top)
            return s.table[at] - 1
        at = (at + 1) & (s.table_size - 1)
    arena_rewind(&g.scratch, top + n * sizeof(uint32_t))
    key = &s.keys[s.n]
    key.words = w
    key.n_words = n
    key.hash = h
    key.form = EACH
    key.kin = key.of_values = s.n
    key.by_node = False
    key.n_nodes = 0
    s.n += 1
    s.table[at] = s.n
    return s.n - 1


cdef int signature_of(Graph* g, Signatures* s, uint32_t node, uint32_t depth,
                      uint32_t* out) noexcept nogil:
    """Number of the signature of a node.  Call it for nodes in the order in which they were made."""
    cdef const Node* x = &nodes_of(g)[node]
    cdef size_t most = most_words(x) * sizeof(uint32_t)
    cdef uint32_t* w
    cdef Key described
    cdef Key* key
    if s.n + KEYS_OF_NODE > s.most and make_table(g, s, 2 * s.most + KEYS_OF_NODE):
        return -1
    w = <uint32_t*>arena_push(&g.scratch, most)
    if w == NULL:
        return -1
    out[0] = find(g, s, w, write_key(g, node, w, &described, False))
    key = &s.keys[out[0]]
    key.n_nodes += 1
    if key.n_nodes > 1:
        key.rising = key.rising and depth > key.deepest
        key.deepest = depth
        return 0
    key.form = described.form
    key.by_node = described.by_node
    key.rising = True
    key.deepest = depth
    if op_at(x.op).ragged and key.form != FLATTENED:
        w = <uint32_t*>arena_push(&g.scratch, most)
        if w == NULL:
            return -1
        key.kin = find(g, s, w, write_kin(g, node, w))
    if device_of(g, node) == 0 and has_parameter_value(g, x):
        w = <uint32_t*>arena_push(&g.scratch, most)
        if w == NULL:
            return -1
        key.of_values = find(g, s, w, write_key(g, node, w, &described, True))
    return 0


cdef size_t most_words(const Node* x) noexcept nogil:
    return HEAD_WORDS + SHAPE_WORDS * (<size_t>x.nargs + 1)


cdef uint32_t write_queue(Graph* g, uint32_t node, uint32_t* w) noexcept nogil:
    cdef Key key
    cdef uint32_t n = write_key(g, node, w, &key, False)
    if op_at(nodes_of(g)[node].op).ragged and key.form != FLATTENED:
        n = write_kin(g, node, w)
    return n


cdef void settle_values(Signatures* s) noexcept nogil:
    """Parameters are copied next to values if there are more values: otherwise, nodes gain more by sharing a
    parameter."""
    cdef uint32_t i
    for i in range(s.n):
        if s.keys[s.keys[i].of_values].n_nodes < s.keys[i].n_nodes:
            s.keys[i].of_values = i


# ==== plan cache ==================================================================================
#
# A cache of plans: a structure that was scheduled before is not scheduled again.
#
# A structure is described by all that a plan depends on: for each wanted node its op and parameters, its device where
# there are several, the shape of its result, and its arguments; for arguments that are already computed, their shape
# and whether they are parameters. The values of inputs and the items of nodes (indices of lookups and picks) are not
# part of it. Two structures are equal when their descriptions are, word for word; a hash only finds the candidate.
#
# Nodes are numbered from the lowest wanted node, parameters excepted, so that a structure may repeat later in the same
# graph.
#
# A device has passes of its own over a plan: the order of nodes within batches, forms that only it has.  They depend on
# structure too, so what they find is kept in the place of the plan (`keep_finished`).  Plans of graphs with and without
# such passes (`finishes`) have different descriptions, since settings decide whether they are made.
#
# A plan is cached when its structure is seen for the second time: a structure that never repeats costs its description
# and nothing else.  Each graph has a cache of its own, which survives renewal and drops the least recently used plans
# beyond a number of plans and of bytes.

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

cdef Number most_plans = 64         # of each graph
cdef Number most_bytes = 16 << 20
cdef Number hash_mask = 0xFFFFFFFFFFFFFFFFu         # tests need different structures with equal hashes
add_tunable("schedule.plan.most_plans", &most_plans, UINT32_MAX)
add_tunable("schedule.plan.most_bytes", &most_bytes)
add_tunable("schedule.plan.hash_mask", &hash_mask)

cdef Number made = 0                # plans
cdef Number reused = 0
add_count("schedule.plan.made", &made)
add_count("schedule.plan.reused", &reused)

# Followed in memory by the words of its structure, the nodes in order of execution, and for each batch its count, in
# one word its form and what its `cell` is beyond the number of the first batch (0: it has none), and its `parts`.
cdef struct CachedPlan:
    CachedPlan* next                      # the next less recently used one
    uint64_t hash
    size_t n_words
    size_t bytes
    uint32_t n_nodes
    uint32_t n_batches
    uint32_t lowest                       # the lowest wanted node of the plan that was made last
    bint finished                         # by the passes of the device

cdef enum:
    BATCH_WORDS = 3                 # of a batch in this memory
    FORM_BITS = 8                   # the bits of a form

cdef struct PlanCache:
    CachedPlan* first
    CachedPlan* now                 # the plan that was made last, if it is in the cache
    bint came_finished              # it was finished when it was taken from the cache
    uint32_t n
    size_t bytes
    size_t described                # words of the last structure: that many are reserved for the next one at once
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
    w[0] = x.op | x.item_count << 10
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
            w[2] = axes_and_type(&a.dim) | <uint32_t>(state[args[i]] & SHARED) << 16
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
    cdef PlanCache* plans = <PlanCache*>g.plans
    cdef size_t most = CHUNK
    cdef uint32_t i, following = lowest
    s.words = NULL
    s.lowest = lowest
    s.count = count
    if plans != NULL:
        most = max(most, plans.described)
    if most_plans:
        w = <uint32_t*>arena_alloc(&g.scratch, most * sizeof(uint32_t))
    if w == NULL:
        return
    end = w + most
    first = w
    w[0] = <uint32_t>strategy | <uint32_t>g.multi_device << 8 | <uint32_t>g.finishes << 9
    w[1] = highest - lowest
    w += 2
    i = next_wanted(state, lowest, highest + 1)
    while i <= highest:
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
        i = next_wanted(state, following, highest + 1)
    s.words = first
    s.n_words = w - first
    if plans != NULL:
        plans.described = s.n_words + NODE_WORDS + ARGUMENT_WORDS
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
    plans.now = k
    plans.came_finished = k.finished
    k.lowest = s.lowest
    for i in range(k.n_nodes):
        order_of(g)[at + i] = order[i] + s.lowest
    for i in range(k.n_batches):
        batch[i].first = at
        batch[i].count = batches[BATCH_WORDS * i]
        batch[i].form = batches[BATCH_WORDS * i + 1] & ((1 << FORM_BITS) - 1)
        batch[i].cell = batches[BATCH_WORDS * i + 1] >> FORM_BITS
        batch[i].parts = batches[BATCH_WORDS * i + 2]
        if batch[i].cell:
            batch[i].cell += g.n_batches
        batch[i].level = batch[i].planned = batch[i].lifetime = batch[i].why = 0
        batch[i].reader = 0
        batch[i].again = 0
        at += batch[i].count
    add_to(&reused, 1)
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
    cdef size_t bytes
    cdef CachedPlan* k
    add_to(&made, 1)
    if s.words == NULL:
        return
    if plans == NULL:
        plans = <PlanCache*>calloc(1, sizeof(PlanCache))
        g.plans = plans
        if plans == NULL:
            return
    if not was_seen(plans, s.hash):
        return
    bytes = sizeof(CachedPlan) + (s.n_words + s.count + BATCH_WORDS * <size_t>n_batches) * sizeof(uint32_t)
    if bytes > most_bytes:
        return
    evict(plans, bytes)
    k = <CachedPlan*>malloc(bytes)
    if k == NULL:
        return
    k.hash = s.hash
    k.n_words = s.n_words
    k.bytes = bytes
    k.n_nodes = s.count
    k.n_batches = n_batches
    k.lowest = s.lowest
    k.finished = False
    memcpy(words_of(k), s.words, s.n_words * sizeof(uint32_t))
    write_plan(g, k)
    k.next = plans.first
    plans.first = plans.now = k
    plans.n += 1
    plans.bytes += bytes


cdef void write_plan(const Graph* g, CachedPlan* k) noexcept nogil:
    """Write the order of nodes and the batches of the present plan into its place in the cache."""
    cdef const Batch* batch = batches_of(g) + g.n_batches
    cdef uint32_t* w = words_of(k) + k.n_words
    cdef uint32_t i
    for i in range(k.n_nodes):
        w[i] = order_of(g)[g.n_order + i] - k.lowest
    w += k.n_nodes
    for i in range(k.n_batches):
        w[0] = batch[i].count
        w[1] = batch[i].form
        if k.finished and batch[i].cell:
            w[1] |= (batch[i].cell - g.n_batches) << FORM_BITS
        w[2] = batch[i].parts if k.finished else 0
        w += BATCH_WORDS


cdef void keep_finished(Graph* g) noexcept nogil:
    cdef PlanCache* plans = <PlanCache*>g.plans
    if plans != NULL and plans.now != NULL and plans.now.n_batches < 1 << (32 - FORM_BITS):
        plans.now.finished = True
        write_plan(g, plans.now)


cdef bint is_finished(const Graph* g) noexcept nogil:
    cdef const PlanCache* plans = <const PlanCache*>g.plans
    return plans != NULL and plans.now != NULL and plans.came_finished


cdef void evict(PlanCache* plans, size_t bytes) noexcept nogil:
    """Drop the least recently used plans until one more fits."""
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


def cached_in(ComputationGraph graph not None) -> tuple[int, int]:
    """The number of plans in the cache of a graph, and their size in bytes."""
    cdef PlanCache* plans = <PlanCache*>graph.g.plans
    if plans == NULL:
        return 0, 0
    return plans.n, plans.bytes


# ==== plan ========================================================================================
#
# Plans: the nodes that values need, put into batches.
#
# The batched schedules run nodes with equal signatures together. By agenda (Neubig, Goldberg and Dyer 2017, On-the-fly
# operation batching in dynamic computation graphs): among the signatures with nodes whose arguments are ready, the one
# whose remaining nodes have the smallest average depth runs next, with all its ready nodes. Beyond the paper: a
# signature all of whose nodes are ready runs first, and one whose nodes do not depend on each other waits until all of
# them are ready, as long as another one can run. And one that is not elementwise waits for another one with ready nodes
# whose results it uses: it grows by them, and chains that are in different steps, such as the directions of a recurrent
# network, come into step. By depth: nodes of equal depth and signature run together.

cdef const Op* ops = op_at(0)                   # all ops; the table never moves


# ---- plans -----------------------------------------------------------------------------

cdef int plan(Graph* g, const uint32_t* targets, uint32_t n, int strategy, bint as_made,
              uint32_t* n_batches, Interrupts* s) noexcept nogil:
    """Plan the values of the targets, by a strategy: 0 plain, 1 by agenda, 2 by depth."""
    cdef uint32_t lowest, highest, absorbed, count = 0
    cdef uint32_t rewrites = 0 if as_made or g.check_validity else rewrites_of(g, strategy)
    cdef uint64_t span = begin_span()
    cdef PlanCache* plans = <PlanCache*>g.plans
    if plans != NULL:
        plans.now = NULL
        plans.came_finished = False
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
        return failed
    n_batches[0] = <uint32_t>(g.batches.top // sizeof(Batch)) - g.n_batches
    end_span(SCHEDULING, span)
    return 0


cdef void drop_plan(Graph* g) noexcept nogil:
    """Drop the part of the plan that has not run."""
    unmark(g)
    array_rewind(&g.order, g.n_order * sizeof(uint32_t))
    array_rewind(&g.batches, g.n_batches * sizeof(Batch))


cdef void unmark(Graph* g) noexcept nogil:
    cdef uint8_t* state = state_of(g)
    cdef uint32_t i
    for i in range(g.n_nodes):
        state[i] &= <uint8_t>~WANTED


cdef int mark_wanted(Graph* g, const uint32_t* targets, uint32_t n, uint32_t* lowest, uint32_t* highest,
                     uint32_t* count, int strategy, uint32_t* rewrites) noexcept nogil:
    """Mark the targets and their uncomputed ancestors, and reserve their places in `order`.

    Arguments have smaller numbers than the nodes that use them, so one pass from
    the highest number down finds all of them.

    Args:
        rewrites: those that may be made in this plan (bits, as in schedule/rewrite); on return, those that nodes show.

    Returns:
        0; -1: there is no memory; 1: they need transient values, which have been dropped.
    """
    cdef uint8_t* state = state_of(g)
    cdef Node* node
    cdef uint32_t a, i
    cdef uint32_t ahead = 0                     # marked, and not visited yet
    cdef const uint32_t* args
    cdef uint32_t sought = rewrites[0]
    cdef bint drops = g.has_dropped or g.has_donated
    rewrites[0] = 0
    highest[0] = 0
    count[0] = 0
    for i in range(n):
        a = targets[i]
        if not state[a] & (COMPUTED | WANTED):
            if drops and is_dropped(g, a):
                unmark(g)
                return 1
            state[a] |= WANTED
            ahead += 1
            highest[0] = max(highest[0], a)
    a = highest[0] + 1
    while ahead:
        a = last_wanted(state, a)
        ahead -= 1
        count[0] += 1
        node = nodes_of(g) + a
        args = args_of(g, node)
        for i in range(node.nargs):
            if not state[args[i]] & (COMPUTED | WANTED):
                if drops and is_dropped(g, args[i]):
                    unmark(g)
                    return 1
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
    cdef uint32_t at, i = lowest
    if batch == NULL:
        return -1
    for at in range(g.n_order, g.n_order + count):
        i = next_wanted(state, i, target + 1)
        order[at] = i
        batch.first = at
        batch.count = 1
        batch.form = ONE
        batch.cell = 0
        batch.level = batch.planned = batch.lifetime = batch.why = 0
        batch.reader = 0
        batch.again = 0
        batch += 1
        i += 1
    return 0


# ---- forms -----------------------------------------------------------------------------

cdef void choose_forms(Graph* g, bint as_made) noexcept nogil:
    """Choose the forms of planned batches that depend on more than their structure, or that only the CPU has."""
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef const Batch* end = <Batch*>(<char*>g.batches.base + g.batches.top)
    cdef bint here
    while batch < end:
        batch.cell = 0
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
cdef struct PlanWork:
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
    uint32_t slot                   # by agenda: its place in the heap
    uint32_t n                      # nodes of this signature in the queue being emptied
    uint32_t at                     # 1 + position of the next one in its own batch; 0: it has no batch of its own
    uint64_t feeds                  # by agenda: the queues of the users of its nodes; those beyond 64 share bits

# At least MANY_APART nodes of one size run as one call of their own, even if nodes of other
# sizes are ready, provided that their results have at most SMALL_APART floats.
cdef enum:
    MANY_APART = 8
    SMALL_APART = 64

# The agenda looks for feeders of a queue among so many others, so that planning is not quadratic in the signatures.
cdef enum:
    MOST_FEEDERS = 256


cdef void* allocate(Graph* g, size_t bytes) noexcept nogil:
    return arena_alloc(&g.scratch, bytes)


cdef int find_depths(Graph* g, uint32_t lowest, uint32_t target, PlanWork* w) noexcept nogil:
    """Depth of every wanted node."""
    cdef uint32_t i, k, a
    cdef uint32_t depth
    cdef uint8_t* state = state_of(g)
    cdef Node* x
    cdef const uint32_t* args
    w.span = target - lowest + 1
    w.deepest = 0
    w.depth = <uint32_t*>allocate(g, w.span * sizeof(uint32_t))
    if w.depth == NULL:
        return -1
    i = next_wanted(state, lowest, target + 1)
    while i <= target:
        x = nodes_of(g) + i
        args = args_of(g, x)
        depth = 0
        for k in range(x.nargs):
            a = args[k]
            if state[a] & WANTED and w.depth[a - lowest] >= depth:
                depth = w.depth[a - lowest] + 1
        w.depth[i - lowest] = depth
        if depth > w.deepest:
            w.deepest = depth
        i = next_wanted(state, i + 1, target + 1)
    return 0


cdef inline bint is_narrow(const PlanWork* w, uint32_t count) noexcept nogil:
    """Whether there are so few nodes per depth that batching costs more than it saves."""
    return 2 * <uint64_t>count < 3 * (<uint64_t>w.deepest + 1)


cdef int find_signatures(Graph* g, uint32_t lowest, uint32_t count, PlanWork* w, Interrupts* s) noexcept nogil:
    """Signature and queue of every wanted node."""
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t i
    w.sig = <uint32_t*>allocate(g, w.span * sizeof(uint32_t))
    w.queue = <uint32_t*>allocate(g, w.span * sizeof(uint32_t))
    w.next = <uint32_t*>allocate(g, w.span * sizeof(uint32_t))
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


cdef inline void push(PlanWork* w, Queue* q, uint32_t i) noexcept nogil:
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
        batch.level = batch.planned = batch.lifetime = batch.why = 0
        batch.reader = 0
        batch.again = 0
    return batch


cdef int emit(Graph* g, PlanWork* w, Queue* queues, Queue* q, uint32_t lowest,
              uint32_t* at) noexcept nogil:
    """Write all ready nodes of a queue as batches: as a single one where that is possible and faster."""
    cdef int failed
    if is_mixed(w, q):
        failed = batch_kin(g, w, queues, q, lowest, at)
    else:
        failed = write_alike(g, w, q, lowest, at)
    q.left -= q.ready
    q.ready = 0
    return failed


cdef bint is_mixed(const PlanWork* w, const Queue* q) noexcept nogil:
    """Whether the ready nodes have several signatures."""
    cdef uint32_t i = q.head
    cdef uint32_t sig = w.sig[i]
    if w.queue[i] == sig:
        return False
    while i != NONE and w.sig[i] == sig:
        i = w.next[i]
    return i != NONE


cdef int write_alike(Graph* g, const PlanWork* w, const Queue* q, uint32_t lowest,
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


cdef inline bint is_apart(const PlanWork* w, const Queue* own, uint32_t i, const Node* x) noexcept nogil:
    """Whether nodes of one signature gain more from a call of their own than from a batch with nodes of other sizes."""
    if w.signatures.keys[w.sig[i]].by_node:
        return own.n > 1
    return own.n >= MANY_APART and total_of(&x.dim) <= SMALL_APART


cdef int batch_kin(Graph* g, const PlanWork* w, Queue* queues, const Queue* q, uint32_t lowest,
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


cdef Queue* open_queues(Graph* g, PlanWork* w) noexcept nogil:
    cdef Queue* queues = <Queue*>allocate(g, w.signatures.n * sizeof(Queue))
    if queues != NULL:
        memset(queues, 0, w.signatures.n * sizeof(Queue))
    return queues


cdef int plan_batched(Graph* g, uint32_t lowest, uint32_t target, uint32_t count,
                      int strategy, bint as_made, Interrupts* s) noexcept nogil:
    """Plan by agenda (1) or by depth (2), or reuse the plan of an equal structure."""
    cdef size_t top = g.scratch.top
    cdef PlanWork w
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
            if not failed and not is_finished(g):
                choose_forms(g, as_made)
    arena_rewind(&g.scratch, top)
    return failed


cdef int run_depths(Graph* g, PlanWork* w, uint32_t lowest, Interrupts* s) noexcept nogil:
    cdef uint8_t* state = state_of(g)
    cdef Queue* queues = open_queues(g, w)
    cdef uint32_t* levels = <uint32_t*>allocate(g, (w.deepest + 2) * sizeof(uint32_t))
    cdef uint32_t* sorted_ = <uint32_t*>allocate(g, w.span * sizeof(uint32_t))
    cdef uint32_t* active = <uint32_t*>allocate(g, w.signatures.n * sizeof(uint32_t))
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


# Queues with ready nodes, as a heap: each before the two that follow it at 2 k + 1 and 2 k + 2.
cdef struct Agenda:
    Queue* queues
    uint32_t* active
    uint32_t n


cdef inline void put_at(Agenda* a, uint32_t k, uint32_t sig) noexcept nogil:
    a.active[k] = sig
    a.queues[sig].slot = k


cdef inline void move_up(Agenda* a, uint32_t k, uint32_t sig) noexcept nogil:
    """Put a queue at k or, while it is before them, in place of those above."""
    cdef uint32_t above
    while k:
        above = (k - 1) >> 1
        if not is_before(&a.queues[sig], &a.queues[a.active[above]]):
            break
        put_at(a, k, a.active[above])
        k = above
    put_at(a, k, sig)


cdef inline void move_down(Agenda* a, uint32_t k, uint32_t sig) noexcept nogil:
    """Put a queue at k or, while it is after them, in place of those below."""
    cdef uint32_t below
    while True:
        below = 2 * k + 1
        if below >= a.n:
            break
        if below + 1 < a.n and is_before(&a.queues[a.active[below + 1]], &a.queues[a.active[below]]):
            below += 1
        if is_before(&a.queues[sig], &a.queues[a.active[below]]):
            break
        put_at(a, k, a.active[below])
        k = below
    put_at(a, k, sig)


cdef inline void make_ready(Agenda* a, PlanWork* w, uint32_t i) noexcept nogil:
    """Add a node to its queue, which may run earlier now."""
    cdef Queue* q = &a.queues[w.queue[i]]
    push(w, q, i)
    if q.ready == 1:
        a.n += 1
        move_up(a, a.n - 1, w.queue[i])
    elif q.ready == q.left:
        move_up(a, q.slot, w.queue[i])


cdef uint32_t take_next(Agenda* a, const PlanWork* w) noexcept nogil:
    """Take the queue that runs next: the first one, or one that feeds it."""
    cdef uint32_t k = first_feeder(a, w)
    cdef uint32_t sig = a.active[k], last
    a.n -= 1
    if k < a.n:
        last = a.active[a.n]
        move_down(a, k, last)
        move_up(a, a.queues[last].slot, last)
    return sig


cdef uint32_t first_feeder(const Agenda* a, const PlanWork* w) noexcept nogil:
    """The queue to run before the first one: one with ready nodes whose users are in it, or one that feeds that, ..."""
    cdef uint64_t seen = 0, own
    cdef uint32_t k, found, best = 0, n = min(a.n, <uint32_t>MOST_FEEDERS)
    cdef const Queue* q
    while True:
        q = &a.queues[a.active[best]]
        if rank_of(q) != 1 or w.signatures.keys[w.sig[q.head]].form == FLATTENED:
            return best
        own = <uint64_t>1 << (a.active[best] & 63)
        seen |= own
        found = n
        for k in range(n):
            q = &a.queues[a.active[k]]
            if (q.feeds & own and not seen >> (a.active[k] & 63) & 1 and rank_of(q) < 2
                    and (found == n or is_before(q, &a.queues[a.active[found]]))):
                found = k
        if found == n:
            return best
        best = found


cdef uint32_t* list_users(Graph* g, const PlanWork* w, uint32_t lowest, uint32_t* users,
                          uint32_t n_edges) noexcept nogil:
    """List the users of each wanted node, in ascending order; NULL: there is no memory.

    Args:
        users: how many each node has; set to where they begin in the list.
        n_edges: how many there are.
    """
    cdef const uint8_t* state = state_of(g)
    cdef uint32_t* user = <uint32_t*>allocate(g, n_edges * sizeof(uint32_t))
    cdef const uint32_t* args
    cdef const Node* x
    cdef uint32_t i, k, a, n = 0
    if user == NULL:
        return NULL
    for i in range(w.span + 1):
        n += users[i]
        users[i] = n
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
    return user


cdef int run_agenda(Graph* g, PlanWork* w, uint32_t lowest, uint32_t count, Interrupts* s) noexcept nogil:
    cdef uint8_t* state = state_of(g)
    cdef Queue* queues = open_queues(g, w)
    cdef uint32_t* waits = <uint32_t*>allocate(g, w.span * sizeof(uint32_t))
    cdef uint64_t* behind = <uint64_t*>allocate(g, w.span * sizeof(uint64_t))
    cdef uint32_t* users = <uint32_t*>allocate(g, (w.span + 1) * sizeof(uint32_t))
    cdef uint32_t* user
    cdef Agenda agenda
    cdef uint32_t i, k, a, n_edges = 0
    cdef uint32_t at = g.n_order
    cdef uint32_t end = g.n_order + count
    cdef uint32_t ran
    cdef Node* x
    cdef const uint32_t* args
    cdef Queue* q
    agenda.queues = queues
    agenda.active = <uint32_t*>allocate(g, w.signatures.n * sizeof(uint32_t))
    agenda.n = 0
    if queues == NULL or waits == NULL or behind == NULL or users == NULL or agenda.active == NULL:
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
                queues[w.queue[a]].feeds |= <uint64_t>1 << (w.queue[i] & 63)
                users[a] += 1
                waits[i] += 1
                n_edges += 1
        q.chained |= behind[i] >> (w.queue[i] & 63) & 1
    user = list_users(g, w, lowest, users, n_edges)
    if user == NULL:
        return -1
    for i in range(w.span):
        if state[lowest + i] & WANTED and waits[i] == 0:
            make_ready(&agenda, w, i)
    while at < end:
        q = &queues[take_next(&agenda, w)]
        ran = at
        if emit(g, w, queues, q, lowest, &at) or interrupted(s, 0):
            return -1
        for k in range(ran, at):                # before any node is ready, which may be one of this queue
            q.depths -= w.depth[order_of(g)[k] - lowest]
        while ran < at:
            i = order_of(g)[ran] - lowest
            ran += 1
            for k in range(users[i], users[i + 1]):
                waits[user[k]] -= 1
                if waits[user[k]] == 0:
                    make_ready(&agenda, w, user[k])
    return 0
