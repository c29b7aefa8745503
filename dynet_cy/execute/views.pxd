"""Batches of views (schedule/plan): where their values are, and how backward completes their gradients."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Batch, Graph

# Let the values of its nodes point into those of their arguments.
cdef void place_views(Graph* g, const Batch* batch) noexcept nogil
# Complete the gradients of the arguments, which contain those of the views, and return how many views are live.
cdef uint32_t views_backward(Graph* g, const Batch* batch) noexcept nogil
# Copy views whose argument has other users among the nodes up to `target`, so that their gradients do not mix.  Returns
# 0, or the size of the working memory that could not be allocated.
cdef size_t part_views(Graph* g, uint32_t target) noexcept nogil
