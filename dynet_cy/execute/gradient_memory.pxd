"""Memory of gradients during backward: given with the first contribution, reused once nothing reads them any more."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.accumulation cimport Addition
from dynet_cy.graph.structs cimport NO_BATCH, Batch, Graph, Node, batches_of, gradient_of_node, home_of

# Gradients that another thread still reads, as factors of an addition.
cdef struct Lent:
    Lent* next
    const Addition* until           # it is done with them when this is made
    char* p
    size_t bytes

# Those of one pass.
cdef struct Lending:
    Lent* first                     # in the order in which they come back
    Lent* last


cdef inline float* gradient_for(Graph* g, Lending* lending, const Node* x) noexcept nogil:
    """The gradient of a node, which gets memory for one if it has none; NULL if there is no memory."""
    cdef uint32_t home = home_of(g, x)
    if home != NO_BATCH and batches_of(g)[home].dy == NULL and not give(g, lending, &batches_of(g)[home]):
        return NULL
    return gradient_of_node(g, x)


# Give memory to the gradients of a batch; False if there is none.
cdef bint give(Graph* g, Lending* lending, Batch* batch) noexcept nogil
# A batch has run backward: free the memory of its gradients, unless they are kept.  `reader`: the last addition in
# another thread that may read them, or NULL.
cdef void take_back(Graph* g, Lending* lending, Batch* batch, const Addition* reader) noexcept nogil
