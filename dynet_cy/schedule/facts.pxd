"""Facts about planned nodes that passes share: the batch, position and readers of each."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph, args_of, nodes_of, order_of
from dynet_cy.ops.registry cimport Op

cdef extern from *:
    """
    #define DY_NONE 0xFFFFFFFFu
    """
    uint32_t NONE "DY_NONE"         # no number: of a batch, node, position, signature

# Facts of planned batches, in the scratch arena. A list by node begins with node `lowest`.
cdef struct PlanFacts:
    Graph* g
    const Batch* batches            # that of number b is batches[b - begin]
    const uint32_t* order           # their nodes, batch by batch
    uint32_t begin, n_batches       # the batches: the number of the first one, and how many
    uint32_t first, n_nodes         # their nodes: the position of the first one in graph.order, and how many
    uint32_t lowest, span           # the numbers of the nodes: the lowest one, and how many up to the highest
    uint32_t* batch                 # by node: the number of its batch, or NONE; NULL: a node each, in their order


# Find the batches of the nodes of n batches, the first of which has the number `begin`: those of the graph, or a copy
# of the plan. False: there is no memory.
cdef bint open_facts(PlanFacts* f, Graph* g, uint32_t begin, uint32_t n) noexcept nogil
cdef bint open_facts_of(PlanFacts* f, Graph* g, uint32_t begin, const Batch* batches, uint32_t n,
                        const uint32_t* order) noexcept nogil

# Let `batch` be a list, as passes need that change it. False: there is no memory.
cdef bint list_batches(PlanFacts* f) noexcept nogil

# By node: how many arguments of planned nodes it is. NULL: there is no memory.
cdef uint32_t* count_readers(const PlanFacts* f) noexcept nogil
# By node: its position in graph.order, or NONE. NULL: there is no memory.
cdef uint32_t* list_positions(const PlanFacts* f) noexcept nogil


cdef inline uint32_t batch_of(const PlanFacts* f, uint32_t node) noexcept nogil:
    """The planned batch of a node, or NONE."""
    cdef uint32_t at = node - f.lowest              # unsigned: a lower number is beyond the span
    if at >= f.span:
        return NONE
    return f.batch[at] if f.batch != NULL else f.begin + at


cdef inline const uint32_t* nodes_in(const PlanFacts* f, const Batch* batch) noexcept nogil:
    """The nodes of a planned batch."""
    return f.order + (<ptrdiff_t>batch.first - <ptrdiff_t>f.first)


cdef inline uint32_t argument(const Graph* g, const Batch* batch, uint32_t j, uint32_t i) noexcept nogil:
    """Argument i of node j of a batch."""
    return args_of(g, &nodes_of(g)[order_of(g)[batch.first + j]])[i]


# Whether the call of a batch cannot but copy argument i: wherever values lie, two that it reads one after the other are
# not adjacent.
cdef bint is_copied(const PlanFacts* facts, const Batch* batch, const Op* op, uint32_t i,
                    size_t most_along) noexcept nogil
