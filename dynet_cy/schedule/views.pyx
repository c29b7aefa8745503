"""Views: results that are parts of an argument, so that they need neither memory nor copies of their own."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    STACKED, WANTED, Batch, Graph, Node, args_of, batches_of, items_of, nodes_of, order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.ops.registry cimport MAX_OPS

cdef ViewOf[MAX_OPS] views
memset(views, 0, sizeof(views))


cdef void set_view(uint32_t op, ViewOf view) noexcept nogil:
    views[op] = view


cdef ptrdiff_t view_at(const Graph* g, const Node* x) noexcept nogil:
    """Where the result of a node begins in its argument."""
    return views[x.op](&nodes_of(g)[args_of(g, x)[0]].dim, &x.dim, x.attrs, items_of(g, x))


cdef int mark_views(Graph* g, uint32_t lowest, uint32_t highest) noexcept nogil:
    cdef Batch* batch = batches_of(g) + g.n_batches
    cdef Batch* end = <Batch*>(<char*>g.batches.base + g.batches.top)
    cdef size_t top = g.scratch.top
    cdef uint32_t* users = NULL
    while batch < end:
        if batch.form == STACKED and views[nodes_of(g)[order_of(g)[batch.first]].op] != NULL:
            if users == NULL:
                users = count_users(g, lowest, highest)
                if users == NULL:
                    return -1
            if can_view(g, batch, users, lowest):
                batch.form = VIEWS
        batch += 1
    arena_rewind(&g.scratch, top)
    return 0


cdef uint32_t* count_users(Graph* g, uint32_t lowest, uint32_t highest) noexcept nogil:
    """For each wanted node, how often wanted nodes use it, by its number minus `lowest`; NULL if there is no memory."""
    cdef const uint8_t* state = state_of(g)
    cdef size_t bytes = (highest - lowest + 1) * sizeof(uint32_t)
    cdef uint32_t* users = <uint32_t*>arena_alloc(&g.scratch, bytes)
    cdef const Node* x
    cdef const uint32_t* args
    cdef uint32_t i, k
    if users == NULL:
        return NULL
    memset(users, 0, bytes)
    for i in range(lowest, highest + 1):
        if not state[i] & WANTED:
            continue
        x = &nodes_of(g)[i]
        args = args_of(g, x)
        for k in range(x.nargs):
            if state[args[k]] & WANTED:
                users[args[k] - lowest] += 1
    return users


cdef bint can_view(const Graph* g, const Batch* batch, const uint32_t* users, uint32_t lowest) noexcept nogil:
    """Whether the arguments have no users but nodes of this batch, and the users of each argument are consecutive."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef uint32_t arg, j = 0, first
    while j < batch.count:
        first = j
        arg = args_of(g, &nodes[ids[j]])[0]
        # A view of a view would have to move with it.
        if not state_of(g)[arg] & WANTED or views[nodes[arg].op] != NULL:
            return False
        while j < batch.count and args_of(g, &nodes[ids[j]])[0] == arg:
            if view_at(g, &nodes[ids[j]]) < 0 or total_of(&nodes[ids[j]].dim) < LONG:
                return False
            j += 1
        if j - first != users[arg - lowest]:
            return False
    return True
