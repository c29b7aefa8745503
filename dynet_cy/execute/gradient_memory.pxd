"""Memory of gradients during backward: allocated at the first contribution, reused after the last read."""

from libc.stdint cimport uint32_t

from dynet_cy.execute.accumulation cimport Addition
from dynet_cy.graph.structs cimport (
    NO_BATCH, Batch, Graph, Node, Spare, batches_of, gradient_of_node, home_of, leave_spare, take_spare,
)

# Memory of gradients that are still read: by another thread, as factors of an addition, or by listed additions.
cdef struct Lent:
    Lent* next
    const Addition* until           # it comes back when this is made; NULL: when the group of additions has ended
    uint32_t group
    char* p
    size_t bytes

# That of one pass.
cdef struct Lending:
    Spare spare
    Lent* first                     # in the order in which it comes back
    Lent* last
    size_t bytes                    # of these
    bint waiting                    # on devices: additions are listed that may read gradients of batches that have run
    uint32_t group                  # the number of the group of these additions
    # With DYNET_CY_POISON, on devices: fill memory that is free with NaN; the walk is its argument.  NULL: not so.
    void (*spoil)(void* walk, void* p, size_t bytes) noexcept nogil
    void* walk


cdef inline void begin_lending(Lending* lending) noexcept nogil:
    lending.spare.bytes = 0
    lending.first = NULL
    lending.bytes = 0
    lending.waiting = False
    lending.group = 0
    lending.spoil = NULL


cdef inline void end_lending(Lending* lending) noexcept nogil:
    """The listed additions run before the commands that follow."""
    lending.waiting = False
    lending.group += 1


cdef inline float* gradient_for(Graph* g, Lending* lending, const Node* x) noexcept nogil:
    """The gradient of a node, which gets memory for one if it has none; NULL if there is no memory."""
    cdef uint32_t home = home_of(g, x)
    cdef Batch* batch = &batches_of(g)[home]
    if home == NO_BATCH:
        return gradient_of_node(g, x)
    if batch.dy == NULL and not (take_spare(batch, &lending.spare) or give(g, lending, batch)):
        return NULL
    return batch.dy + (x.val - batch.y)


cdef inline void take_back(Graph* g, Lending* lending, Batch* batch, const Addition* reader) noexcept nogil:
    """A batch has run backward: free the memory of its gradients, unless they are kept.

    Args:
        reader: the last addition in another thread that may read them, or NULL.
    """
    if batch.dy != NULL and not batch.keeps and (
            reader != NULL or lending.waiting or not leave_spare(g, batch, &lending.spare)):
        free_gradients(g, lending, batch, reader)


# The rest of the pass does not read the values of a batch: let gradients use their memory, if they may. `reader`: the
# last addition that may read the values.
cdef void donate_values(Graph* g, Lending* lending, Batch* batch, const Addition* reader) noexcept nogil
# Free memory of `claim_memory`; `reader` as above.
cdef void give_back(Graph* g, Lending* lending, void* p, size_t n, const Addition* reader) noexcept nogil

# The listed additions have been made, and the command after them begins: free the memory that they read.
cdef void come_back(Graph* g, Lending* lending) noexcept nogil
# A part of a pass has ended: free all memory that is lent or kept aside.
cdef void close_lending(Graph* g, Lending* lending) noexcept nogil

# The general cases of these.
cdef bint give(Graph* g, Lending* lending, Batch* batch) noexcept nogil
cdef void free_gradients(Graph* g, Lending* lending, Batch* batch, const Addition* reader) noexcept nogil
