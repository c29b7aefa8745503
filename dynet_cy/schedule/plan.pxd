"""Plans: the nodes that values need, put into batches.

A plan is written after the batches that have run: node numbers into
`graph.order`, and a Batch for each call into `graph.batches`, with `first`,
`count` and `form` set.  Nothing runs here.  All functions return 0, or -1 if
an arena is full or a signal handler has raised.
"""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint32_t

from dynet_cy.core.interrupts cimport Interrupts
from dynet_cy.graph.structs cimport Batch, Graph, Node, args_of, items_of, nodes_of, order_of
from dynet_cy.ops.registry cimport op_at
from dynet_cy.schedule.prefetch cimport fetch

# Plan the values of the targets; `as_made`: each node runs as the program made it, so that it can be looked at.
cdef int plan(Graph* g, const uint32_t* targets, uint32_t n, int strategy, bint as_made,
              uint32_t* n_batches, Interrupts* s) noexcept nogil
cdef void drop_plan(Graph* g) noexcept nogil

# Mark the targets and their uncomputed ancestors, and make room for them in `order`.
cdef int mark_wanted(Graph* g, const uint32_t* targets, uint32_t n, uint32_t* lowest, uint32_t* highest,
                     uint32_t* count, int strategy, uint32_t* rewrites) noexcept nogil


# ---- views: results that are parts of an argument ------------------------------------------
# For example, the result of `pick_range` along the last axis is a part of its argument in memory.  If only such picks
# use the argument, their gradients are parts of its gradient too, and nothing has to be computed, forward or backward.
# Within such a batch, the nodes with the same argument follow each other.

cdef inline ptrdiff_t view_at(const Graph* g, const Node* x) noexcept nogil:
    """Where the result of a node begins in its argument, in floats; -1: it is not one piece of it."""
    return op_at(x.op).view(&nodes_of(g)[args_of(g, x)[0]].dim, &x.dim, x.attrs, items_of(g, x))


cdef inline uint32_t argument_of(const Graph* g, uint32_t node) noexcept nogil:
    return args_of(g, &nodes_of(g)[node])[0]


cdef inline uint32_t end_of_run(const Graph* g, const Batch* batch, uint32_t first) noexcept nogil:
    """The end of the run of nodes, from `first` on, that have the same argument."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j = first + 1
    while j < batch.count and argument_of(g, ids[j]) == argument_of(g, ids[first]):
        j += 1
    return j


# How many nodes are prefetched at once.
cdef enum:
    AHEAD = 64


cdef inline void fetch_from(const Graph* g, const Batch* batch, uint32_t first, uint32_t* fetched) noexcept nogil:
    """Prefetch the next nodes if `first` has not been prefetched yet."""
    if first >= fetched[0]:
        fetched[0] = min(batch.count, first + AHEAD)
        fetch(g, order_of(g) + batch.first + first, fetched[0] - first)
