"""Signatures: which nodes may run as one call."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memset

from dynet_cy.core.tensor cimport Dim, same_shape
from dynet_cy.graph.graph cimport (
    SHARED, Graph, Node, args_of, nodes_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_push, arena_rewind
from dynet_cy.ops.registry cimport ALONE, FLAT, LIST, SHARE, Op, op_at, rule_of


cdef extern from *:
    """
    static inline uint32_t dy_hash(const uint32_t *w, uint32_t n) {
        uint64_t h = 0x9E3779B97F4A7C15u ^ n;
        for (uint32_t i = 0; i < n; i++)
            h = (h ^ w[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
        return (uint32_t)h;
    }
    """
    uint32_t dy_hash(const uint32_t* w, uint32_t n) nogil

# Words of a key before those of its arguments, and of a shape.
cdef enum:
    HEAD_WORDS = 10
    SHAPE_WORDS = 8


cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil:
    """An empty table for at most `most` signatures, in the scratch arena."""
    s.n = 0
    s.table_size = 16
    while s.table_size < 2 * most:
        s.table_size *= 2
    s.table = <uint32_t*>arena_alloc(&g.scratch, s.table_size * sizeof(uint32_t))
    s.keys = <Key*>arena_alloc(&g.scratch, most * sizeof(Key))
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


cdef uint32_t write_key(Graph* g, uint32_t id, uint32_t* w, uint32_t* flat) noexcept nogil:
    """Write the key of a node and return its length in words."""
    cdef Node* nodes = nodes_of(g)
    cdef uint8_t* state = state_of(g)
    cdef Node* x = &nodes[id]
    cdef Op* op = op_at(x.op)
    cdef const uint32_t* args = args_of(g, x)
    cdef uint32_t i
    cdef uint32_t* at = w + HEAD_WORDS
    cdef Node* a
    cdef bint shared, listed
    cdef bint all_shared = x.nargs > 0
    flat[0] = 0
    w[0] = x.op
    w[1] = x.nargs
    for i in range(4):
        w[2 + i] = x.attrs[i].u
    w[6] = x.item_count
    w[7] = <uint32_t><uintptr_t>x.object
    w[8] = <uint32_t>(<uint64_t><uintptr_t>x.object >> 32)
    w[9] = 0
    if op.batching == ALONE:
        w[9] = 1
        at[0] = id
        return HEAD_WORDS + 1
    if op.batching == FLAT:
        for i in range(x.nargs):
            a = &nodes[args[i]]
            if (state[args[i]] & SHARED or a.dim.bd != x.dim.bd
                    or not same_shape(&a.dim, &x.dim)):
                break
        else:
            flat[0] = 1
            w[9] = 2
            return HEAD_WORDS
    for i in range(x.nargs):
        a = &nodes[args[i]]
        shared = state[args[i]] & SHARED or rule_of(op, i) == SHARE
        listed = rule_of(op, i) == LIST
        if listed:
            all_shared = False
        elif a.dim.bd != (1 if shared else x.dim.bd):
            # An argument with several elements cannot be one for all; one that
            # the node's own elements share cannot be laid beside others.
            w[9] = 1
            w[HEAD_WORDS] = id
            return HEAD_WORDS + 1
        if shared:
            at[0] = 0xFFFFFFFFu
            at[1] = args[i]
            at += 2
        else:
            all_shared = False
            at = write_shape(at, &a.dim)
    if all_shared:
        # A call's batch size is that of one of its arguments at least.
        w[9] = 1
        w[HEAD_WORDS] = id
        return HEAD_WORDS + 1
    at = write_shape(at, &x.dim)
    return <uint32_t>(at - w)


cdef int signature_of(Graph* g, Signatures* s, uint32_t node, uint32_t* out) noexcept nogil:
    """Number of the signature of a node, a new one if no equal key is known."""
    cdef size_t top = g.scratch.top
    cdef size_t most = HEAD_WORDS + SHAPE_WORDS * (<size_t>nodes_of(g)[node].nargs + 1)
    cdef uint32_t* w = <uint32_t*>arena_push(&g.scratch, most * sizeof(uint32_t))
    cdef uint32_t n, h, at, flat
    cdef Key* key
    if w == NULL:
        return -1
    n = write_key(g, node, w, &flat)
    h = dy_hash(w, n)
    at = h & (s.table_size - 1)
    while s.table[at]:
        key = &s.keys[s.table[at] - 1]
        if key.hash == h and key.n_words == n and memcmp(key.words, w, n * sizeof(uint32_t)) == 0:
            arena_rewind(&g.scratch, top)
            out[0] = s.table[at] - 1
            return 0
        at = (at + 1) & (s.table_size - 1)
    arena_rewind(&g.scratch, top + n * sizeof(uint32_t))
    key = &s.keys[s.n]
    key.words = w
    key.n_words = n
    key.hash = h
    key.flat = flat
    out[0] = s.n
    s.n += 1
    s.table[at] = s.n
    return 0
