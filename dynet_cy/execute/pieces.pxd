"""Elementwise batches whose arguments are not adjacent in memory, run in pieces that are."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.core.tensor cimport Call
from dynet_cy.graph.structs cimport FLATTENED, Batch, Graph

# The gradients of all arguments of a call at once: into dx[i], unless it is NULL, and added to it if adds[i].
ctypedef void (*WholeBackward)(const Call* c, float* const* dx, const uint8_t* adds) noexcept nogil

# Let pieces of an op run backward for all arguments at once.  Call it before the first use of the op.
cdef void set_whole_backward(uint32_t op, WholeBackward run) noexcept nogil


cdef inline bint ran_in_pieces(const Batch* batch) noexcept nogil:
    return batch.form == FLATTENED and batch.count > 1 and batch.x == NULL


# Whether the nodes of a planned batch are long enough for pieces, and its op can run in pieces.
cdef bint may_run_in_pieces(const Graph* g, const Batch* batch) noexcept nogil
# Of those that may: whether it should even if all arguments are adjacent: backward for all at once is quicker.
cdef bint must_run_in_pieces(const Graph* g, const Batch* batch) noexcept nogil
# How many of n planned batches, from the first on, should run together; 0 or 1: the first runs alone.
cdef uint32_t together_with(const Graph* g, const Batch* batch, uint32_t n) noexcept nogil
# How many batches that ran in pieces, from this one back to `first`, should run backward together.
cdef uint32_t together_before(const Graph* g, const Batch* batch, const Batch* first) noexcept nogil

# Compute n batches whose nodes already have memory for their values.  Returns 0, or the size of the working memory that
# could not be allocated.
cdef size_t forward_in_pieces(Graph* g, const Batch* batch, uint32_t n) noexcept nogil
# Run n batches backward, `batch` being the first of them, and count the nodes that have a gradient to pass on.  Returns
# as above.
cdef size_t backward_in_pieces(Graph* g, const Batch* batch, uint32_t n, uint32_t* n_live) noexcept nogil
