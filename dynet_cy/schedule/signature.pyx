"""Signatures: which nodes may run as one call."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memset

from dynet_cy.core.tensor cimport Dim, cols_of, rows_of, same_shape
from dynet_cy.graph.structs cimport (
    COLUMNS, EACH, FLATTENED, SHARED, STACKED, Graph, Node, args_of, device_of, nodes_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_offset, arena_push, arena_rewind
from dynet_cy.ops.registry cimport ALONE, FLAT, LIST, SHARE, Op, op_at, rule_index, rule_of
from dynet_cy.schedule.hash cimport dy_hash


# Words of a key before those of its arguments, and of a shape.
cdef enum:
    HEAD_WORDS = 10
    SHAPE_WORDS = 8

# What a key holds about the arguments.
cdef enum:
    KEY_SHAPES                      # their shapes
    KEY_ALONE                       # nothing: the key holds the number of its node, which runs alone
    KEY_FLAT                        # nothing: all are as large as the result
    KEY_COLUMNS                     # their numbers of rows
    KEY_KIN                         # their numbers of axes


cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil:
    """An empty table for at most `most` signatures, in the scratch arena."""
    s.n = 0
    s.table_size = 16
    while s.table_size <= 3 * most:             # for each node its signature, that of its kin, and that `of_values`
        s.table_size *= 2
    s.table = <uint32_t*>arena_alloc(&g.scratch, s.table_size * sizeof(uint32_t))
    s.keys = <Key*>arena_alloc(&g.scratch, 3 * most * sizeof(Key))
    if s.table == NULL or s.keys == NULL:
        return -1
    memset(s.table, 0, s.table_size * sizeof(uint32_t))
    return 0


cdef inline uint32_t* write_shape(uint32_t* w, const Dim* d) noexcept nogil:
    cdef uint32_t i
    w[0] = d.nd
    for i in range(d.nd):
        w[1 + i] = d.d[i]
    return w + 1 + d.nd


cdef inline uint32_t* write_rows(uint32_t* w, const Dim* d) noexcept nogil:
    w[0] = 1
    w[1] = rows_of(d)
    return w + 2


cdef inline uint32_t* write_shared(uint32_t* w, uint32_t node) noexcept nogil:
    w[0] = 0xFFFFFFFFu
    w[1] = node
    return w + 2


cdef inline uint32_t* write_head(Graph* g, const Node* x, uint32_t kind, uint32_t* w) noexcept nogil:
    cdef uint32_t i
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
            at[0] = nodes_of(g)[args[i]].dim.nd
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
    cdef uint32_t* w = <uint32_t*>arena_push(&g.scratch, most)
    cdef Key described
    cdef Key* key
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
    """Parameters are copied beside values where there are more of these: many nodes gain more if they share one."""
    cdef uint32_t i
    for i in range(s.n):
        if s.keys[s.keys[i].of_values].n_nodes < s.keys[i].n_nodes:
            s.keys[i].of_values = i
