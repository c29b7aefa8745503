"""What the comments beside kernels of reductions call (cuda/reduce.cu, vector_norm.cu, along.cu)."""

from dynet_cy.core.tensor cimport Call
from dynet_cy.gpu.base cimport Axes

# The axes of x that are kept and those that are reduced, with the strides of x; and all with the strides of y.
cdef void reduction_axes(const Call* c, Axes* kept, Axes* reduced, Axes* back) noexcept nogil
# Whether each result is computed by a block; `neighbours`: the terms of a result are adjacent.
cdef bint by_blocks(size_t results, size_t terms, bint neighbours) noexcept nogil
cdef bint by_blocks_over(const Axes* kept, const Axes* reduced) noexcept nogil
# 1 / the number of elements of x for each element of y.
cdef float share(const Call* c) noexcept nogil
cdef float moment_scale(const Call* c) noexcept nogil
# How many batch elements of y share one batch element of x.
cdef size_t sharing(const Call* c) noexcept nogil
