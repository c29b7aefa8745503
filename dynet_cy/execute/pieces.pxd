"""Elementwise batches whose arguments are not adjacent in memory, run in pieces that are."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport TILES, Batch, Graph

cdef enum:
    MOST_TOGETHER = 32              # batches


cdef inline uint32_t neighbours(const Batch* batch, uint32_t n) noexcept nogil:
    """How many of n batches, from the first on, which is one of them, run together in tiles."""
    cdef uint32_t k = 1
    while k < n and k < MOST_TOGETHER and batch[k].form == TILES:
        k += 1
    return k


cdef inline uint32_t neighbours_before(const Batch* batch, const Batch* first) noexcept nogil:
    """How many batches, from this one, which is one of them, back to `first`, run together in tiles."""
    cdef uint32_t k = 1
    while batch > first and k < MOST_TOGETHER and (batch - 1).form == TILES:
        batch -= 1
        k += 1
    return k


# Compute n batches whose nodes already have memory for their values.  Returns 0, or the size of the working memory that
# could not be allocated.
cdef size_t compute_pieces(Graph* g, const Batch* batch, uint32_t n) noexcept nogil
# Run n batches backward, `batch` being the first of them, and count the nodes that have a gradient to pass on.  Returns
# as above.
cdef size_t pieces_backward(Graph* g, const Batch* batch, uint32_t n, uint32_t* n_live) noexcept nogil
