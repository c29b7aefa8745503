"""Elementwise batches whose arguments do not lie side by side, one or several together, in pieces that do."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport FLATTENED, Batch, Graph


cdef inline bint ran_in_pieces(const Batch* batch) noexcept nogil:
    return batch.form == FLATTENED and batch.count > 1 and batch.x == NULL


# Whether the nodes of a planned batch are long enough for pieces, and its op can run so.
cdef bint may_run_in_pieces(const Graph* g, const Batch* batch) noexcept nogil
# How many planned batches, from the first of n on, are better computed together; 0 or 1: no others with it.
cdef uint32_t together_with(const Graph* g, const Batch* batch, uint32_t n) noexcept nogil
# How many batches that ran in pieces, up to this one and after `first`, are better run backward together.
cdef uint32_t together_before(const Graph* g, const Batch* batch, const Batch* first) noexcept nogil

# Compute n batches whose nodes have their places; returns 0, or the bytes of working memory for which there was no
# room.
cdef size_t forward_in_pieces(Graph* g, const Batch* batch, uint32_t n) noexcept nogil
# Let the gradients of n batches, `batch` the first, be contributions to those of their arguments, and count the nodes
# that have one to pass on.
cdef size_t backward_in_pieces(Graph* g, const Batch* batch, uint32_t n, uint32_t* n_live) noexcept nogil
