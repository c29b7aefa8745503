"""Batches of views (schedule/views): where their values are, and what backward does about their gradients."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph

# Whether a planned batch can be views now: what the nodes pick of one argument does not overlap.
cdef bint lie_apart(const Graph* g, const Batch* batch) noexcept nogil
# Let its nodes have their values in those of their arguments.
cdef void place_views(Graph* g, const Batch* batch) noexcept nogil
# Complete the gradients of the arguments, of which those of the views are parts, and return how many of these are live.
cdef uint32_t views_backward(Graph* g, const Batch* batch) noexcept nogil
# Copy views of arguments that have other users up to a node, so that their gradients are apart; returns 0, or the bytes
# of working memory for which there was no room.
cdef size_t part_views(Graph* g, uint32_t target) noexcept nogil
