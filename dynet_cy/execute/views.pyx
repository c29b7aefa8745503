"""Batches of views (schedule/plan): where their values are, and how backward completes their gradients.

When the batch was planned, the argument had
no other users.  Other nodes may use it later, and their contributions would mix with the gradients of the views.  So
before backward these views are copied to the memory that was reserved for them, and have their own gradients from then
on.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.atomic cimport Number, add_to
from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.structs cimport (
    COMPUTED, EACH, LIVE, NEEDS_GRAD, NO_BATCH, VIEWS, Batch, Graph, Node, args_of, batches_of, gradient_at, nodes_of,
    order_of, state_of,
)
from dynet_cy.memory.arena cimport arena_alloc, arena_rewind
from dynet_cy.schedule.plan cimport argument_of, end_of_run, fetch_from, view_at


cdef Number n_views = 0           # since `reset`
cdef Number n_copied = 0


cdef void place_views(Graph* g, const Batch* batch) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* x
    cdef uint32_t j
    for j in range(batch.count):
        x = &nodes[ids[j]]
        x.val = nodes[argument_of(g, ids[j])].val + view_at(g, x)
    add_to(&n_views, batch.count)


cdef uint32_t views_backward(Graph* g, const Batch* batch) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint8_t* state = state_of(g)
    cdef uint32_t j, end, n, arg, first = 0, fetched = 0, n_live = 0
    while first < batch.count:
        fetch_from(g, batch, first, &fetched)
        end = end_of_run(g, batch, first)
        arg = argument_of(g, ids[first])
        n = 0
        for j in range(first, end):
            n += (state[ids[j]] & LIVE) != 0
        if n and state[arg] & NEEDS_GRAD:
            clear_others(g, ids + first, end - first, &nodes_of(g)[arg])
            state[arg] |= LIVE
            n_live += n
        first = end
    return n_live


cdef void clear_others(Graph* g, const uint32_t* ids, uint32_t n, const Node* arg) noexcept nogil:
    """Set the gradient of the argument to 0 outside the live views."""
    cdef const Node* nodes = nodes_of(g)
    cdef float* at = gradient_at(g, arg.val)
    cdef size_t size = total_of(&arg.dim), done = 0, begin, end, start
    cdef uint32_t j
    while done < size:
        begin = end = size                      # the bounds of the next live view
        for j in range(n):
            start = nodes[ids[j]].val - arg.val
            if state_of(g)[ids[j]] & LIVE and done <= start < begin:
                begin = start
                end = start + total_of(&nodes[ids[j]].dim)
        memset(at + done, 0, (begin - done) * sizeof(float))
        done = end


cdef size_t part_views(Graph* g, uint32_t target) noexcept nogil:
    cdef uint32_t b
    if g.n_passes == 1:                         # all users were known when the views were planned
        return 0
    for b in range(g.n_batches):
        if batches_of(g)[b].form == VIEWS:
            return part_shared(g, target)
    return 0


cdef size_t part_shared(Graph* g, uint32_t target) noexcept nogil:
    """Copy the views of arguments that are also used by a node that is not a view."""
    cdef size_t top = g.scratch.top, bytes = target + <size_t>1
    cdef uint8_t* used = <uint8_t*>arena_alloc(&g.scratch, bytes)
    cdef const Node* x
    cdef const uint32_t* args
    cdef Batch* batch
    cdef uint32_t b, i, j, k
    if used == NULL:
        return bytes
    memset(used, 0, bytes)
    for i in range(target + 1):
        x = &nodes_of(g)[i]
        if not state_of(g)[i] & COMPUTED or (x.batch != NO_BATCH and batches_of(g)[x.batch].form == VIEWS):
            continue
        args = args_of(g, x)
        for k in range(x.nargs):
            used[args[k]] = True
    for b in range(g.n_batches):
        batch = &batches_of(g)[b]
        if batch.form != VIEWS:
            continue
        for j in range(batch.count):
            i = order_of(g)[batch.first + j]
            if argument_of(g, i) <= target and used[argument_of(g, i)]:
                copy_views(g, batch)
                break
    arena_rewind(&g.scratch, top)
    return 0


cdef void copy_views(Graph* g, Batch* batch) noexcept nogil:
    cdef Node* x
    cdef float* y = batch.y
    cdef size_t n
    cdef uint32_t j
    for j in range(batch.count):
        x = &nodes_of(g)[order_of(g)[batch.first + j]]
        n = total_of(&x.dim)
        memcpy(y, x.val, n * sizeof(float))
        x.val = y
        y += n
    batch.form = EACH
    add_to(&n_copied, batch.count)


def counts():
    """The number of values that were views, and of those that were copied before backward, since `reset`."""
    return n_views, n_copied


def reset():
    """Count from zero again."""
    global n_views, n_copied
    n_views = n_copied = 0
