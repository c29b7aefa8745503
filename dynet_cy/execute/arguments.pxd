"""Arguments of batches: shared by all nodes, read in place, listed, or gathered first."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport total_of
from dynet_cy.execute.walk cimport Walk
from dynet_cy.graph.structs cimport SHARED, STACKED, Batch, Graph, Node, args_of, nodes_of, order_of
from dynet_cy.ops.registry cimport SHARE, Op, rule_of

# Bring the arguments and items of a batch into the form that its call needs.
cdef int arrange(Walk* w, Batch* batch, const Op* op) noexcept nogil
# The same for the items only.
cdef int lay_items(Walk* w, Batch* batch) noexcept nogil


cdef inline bint is_shared(const uint8_t* state, const Op* op, uint32_t i, uint32_t arg) noexcept nogil:
    """Whether the nodes of a batch share argument i."""
    return state[arg] & SHARED or rule_of(op, i) == SHARE


cdef inline bint side_by_side(const Graph* g, const Batch* batch, uint32_t i, bint listable) noexcept nogil:
    """Whether argument i of all nodes of a batch is contiguous in memory, in order, so that it is read in place.

    A LIST argument may have batch size 1 while its node has more.  Then it is not read in place.
    """
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const Node* nodes = nodes_of(g)
    cdef const Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef const float* at = a.val
    cdef uint32_t j
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        if a.val != at or (listable and a.dim.bd < nodes[ids[j]].dim.bd):
            return False
        at += total_of(&a.dim)
    return True


cdef inline uint32_t uses_in(const Batch* batch, const Node* a, const Node* y) noexcept nogil:
    """How many copies of an argument a node needs: one, or one for each batch element if it has batch size 1."""
    return y.dim.bd if batch.form == STACKED and a.dim.bd == 1 else 1
