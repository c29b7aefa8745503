"""Products of tensors with three and more axes, circular convolutions, inverses and determinants."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call
from dynet_cy.ops.registry cimport Op

# Batched matrix products, shared with their GPU op.

cdef Op* BATCHED_MATMUL

# The products of a call: `count` for each batch element, of m x k and k x n.
cdef struct Products:
    bint ta
    bint tb
    size_t m
    size_t n
    size_t k
    uint32_t axes               # beyond the first two, those of the matrices
    size_t[5] size
    size_t[5] a                 # stride of a along each axis, in matrices; 0: one matrix for all positions
    size_t[5] b
    size_t count
    bint[2] spread              # whether an argument has fewer matrices than y

cdef Products products_of(const Call* c) noexcept nogil
cdef void nth_product(const Products* p, size_t i, size_t* a, size_t* b) noexcept nogil
