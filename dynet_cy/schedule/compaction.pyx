"""Compaction of forward-only graphs: where memory is short, each node gets its own memory, and values move down.

The values of a batch lie side by side, and their memory is free for others when the last of its nodes is dropped
(include/dynet_cy/liveness.h). A batch of steps of many sentences stays as a whole as long as one of them has its state
there, perhaps since it has ended. So when memory is short, batches are parted: the memory of their dropped nodes is
free at once, that of the others when each is dropped. Where the holes between them have become a large share of the
memory, values move down into holes, so that there is space for whole batches again.

Only values on the host are moved, and of these only those that take whole blocks of `ALIGN` bytes.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memmove, memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    COMPUTED, DROPPED, NO_BATCH, SHARED, Batch, Graph, Hole, Node, batches_of, n_holes, nodes_of, state_of,
)
from dynet_cy.graph.table cimport lock_graph, unlock_graph
from dynet_cy.memory.arena cimport ALIGN, Arena, Array, arena_offset, segment_of
from dynet_cy.ops.registry cimport op_at

cdef extern from "dynet_cy/liveness.h" nogil:
    # derived: functions of add_hole, drop_top_holes
    void add_hole "dy_add_hole"(const Arena* arena, Array* holes, void* p, size_t bytes)
    void drop_top_holes "dy_drop_top_holes"(Arena* arena, Array* holes)
    # end of functions


cdef enum:
    SHARE_OF_HOLES = 4              # holes are compacted if they are more than the memory divided by this


cdef bint part_batches(Graph* g) except -1:
    cdef uint8_t* partable
    cdef uint32_t n = 0
    cdef bint moved = False
    if g.device or g.multi_device or g.n_batches == 0:
        return False
    lock_graph(g)
    partable = <uint8_t*>calloc(g.n_batches + g.values.top // ALIGN + 1, 1)
    if partable != NULL:
        find_partable(g, partable)
        n = part_found(g, partable, partable + g.n_batches)
        moved = bytes_of_holes(g) * SHARE_OF_HOLES > g.values.top and compact_values(g)
    free(partable)
    unlock_graph(g)
    return n != 0 or moved


cdef inline bint is_in_batch(const Graph* g, uint32_t i) noexcept nogil:
    return nodes_of(g)[i].batch != NO_BATCH and not state_of(g)[i] & DROPPED


cdef inline size_t bytes_at(const Node* x) noexcept nogil:
    return total_of(&x.dim) * sizeof(float)


cdef void find_partable(const Graph* g, uint8_t* partable) noexcept nogil:
    """Mark the batches each of whose needed nodes has whole blocks for itself."""
    cdef const Batch* batches = batches_of(g)
    cdef const Node* x
    cdef uint32_t b, i
    for b in range(g.n_batches):
        partable[b] = batches[b].live != 0
    for i in range(g.n_nodes):
        x = &nodes_of(g)[i]
        if is_in_batch(g, i) and (bytes_at(x) == 0 or bytes_at(x) % ALIGN
                                  or <size_t>(<char*>x.val - <char*>batches[x.batch].y) % ALIGN):
            partable[x.batch] = False


cdef uint32_t part_found(Graph* g, const uint8_t* partable, uint8_t* taken) noexcept nogil:
    """Part the marked batches; returns how many they are.

    Args:
        taken: for each block of the arena, 0.
    """
    cdef Batch* batch
    cdef Node* x
    cdef uint8_t* of
    cdef size_t k, end, first
    cdef uint32_t b, i, n = 0
    for i in range(g.n_nodes):
        x = &nodes_of(g)[i]
        if is_in_batch(g, i) and partable[x.batch]:
            memset(taken + arena_offset(&g.values, x.val) // ALIGN, 1, bytes_at(x) // ALIGN)
    for b in range(g.n_batches):
        batch = &batches_of(g)[b]
        if not partable[b]:
            continue
        of = taken + arena_offset(&g.values, batch.y) // ALIGN
        end = (batch.bytes + ALIGN - 1) // ALIGN
        first = 0
        for k in range(end + 1):
            if k == end or of[k]:
                add_hole(&g.values, &g.free_values, <char*>batch.y + first * ALIGN, (k - first) * ALIGN)
                first = k + 1
        batch.live = 0
        n += 1
    for i in range(g.n_nodes):
        if is_in_batch(g, i) and partable[nodes_of(g)[i].batch]:
            nodes_of(g)[i].batch = NO_BATCH
    drop_top_holes(&g.values, &g.free_values)
    return n


# ---- compaction ------------------------------------------------------------------------

cdef size_t bytes_of_holes(const Graph* g) noexcept nogil:
    cdef const Hole* holes = <const Hole*>g.free_values.base
    cdef size_t k, sum = 0
    for k in range(n_holes(&g.free_values)):
        sum += holes[k].bytes
    return sum


cdef inline bint may_move(const Graph* g, uint32_t i) noexcept nogil:
    """Whether a value of whole blocks was computed and has memory of the arena for itself."""
    cdef const Node* x = &nodes_of(g)[i]
    return (x.batch == NO_BATCH and x.val != NULL and (state_of(g)[i] & (COMPUTED | DROPPED | SHARED)) == COMPUTED
            and bytes_at(x) != 0 and bytes_at(x) % ALIGN == 0 and op_at(x.op).forward != NULL
            and segment_of(&g.values, x.val) != NULL)


cdef bint compact_values(Graph* g) noexcept nogil:
    """Move values down into holes, so that nearly all free memory is above them; whether some have moved."""
    cdef Node** nodes = <Node**>malloc((g.n_nodes + <size_t>1) * sizeof(Node*))
    cdef uint32_t i, n = 0
    cdef bint moved = False
    if nodes == NULL:
        return False
    for i in range(g.n_nodes):
        if may_move(g, i):
            nodes[n] = &nodes_of(g)[i]
            n += 1
    qsort(nodes, n, sizeof(Node*), lower)
    for i in range(n):
        moved = move_down(g, nodes[i]) or moved
    free(nodes)
    drop_top_holes(&g.values, &g.free_values)
    return moved


cdef int lower(const void* a, const void* b) noexcept nogil:
    """The order of nodes by their addresses."""
    return -1 if (<const Node**>a)[0].val < (<const Node**>b)[0].val else 1


cdef bint move_down(Graph* g, Node* x) noexcept nogil:
    """Move a value into the first hole below that it fits in, or that ends where it begins; whether there is one."""
    cdef Hole* hole = <Hole*>g.free_values.base
    cdef char* at = <char*>x.val
    cdef char* to
    cdef size_t n = bytes_at(x), k = 0, freed
    while k < n_holes(&g.free_values) and hole[k].at < at:
        freed = hole[k].bytes
        if freed < n and hole[k].at + freed != at:
            k += 1
            continue
        to = hole[k].at
        memmove(to, at, n)
        x.val = <float*>to
        if to + freed == at:                    # the hole moves up
            memmove(&hole[k], &hole[k + 1], (n_holes(&g.free_values) - k - 1) * sizeof(Hole))
            g.free_values.top -= sizeof(Hole)
            add_hole(&g.values, &g.free_values, to + n, freed)
        else:
            take_part(g, k, n)
            add_hole(&g.values, &g.free_values, at, n)
        return True
    return False


cdef void take_part(Graph* g, size_t k, size_t n) noexcept nogil:
    """Take bytes from the beginning of a hole."""
    cdef Hole* hole = <Hole*>g.free_values.base + k
    hole.at += n
    hole.bytes -= n
    if hole.bytes == 0:
        memmove(hole, hole + 1, (n_holes(&g.free_values) - k - 1) * sizeof(Hole))
        g.free_values.top -= sizeof(Hole)
