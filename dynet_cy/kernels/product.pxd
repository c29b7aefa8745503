# SPDX-License-Identifier: Apache-2.0
"""Products of matrices, and long loops, in parts that threads share."""

from libc.stdint cimport uint64_t

from dynet_cy.core.tensor cimport Packed


# ==== product =====================================================================================
#
# Products of matrices: with packed parameters, in bfloat16 where a program asks for it, and on several threads.

# Multiplications for which it pays to wake a thread.
cdef enum:
    LEAST_ASLEEP = 2500000


cdef struct Product:
    int way
    bint ta, tb
    size_t m, n, k
    float alpha
    const float* a                              # or panels
    size_t lda
    const float* b
    size_t ldb
    float beta
    const float* old                            # PACKED: what is added, beta times; otherwise c
    size_t ldold
    float* c
    size_t ldc
    const float* panels                         # ROUNDED: of a, or NULL


# How a product is cut.
cdef struct Cut:
    const Product* whole
    bint by_rows                                # whether parts are rows, not columns
    size_t step                                 # parts begin at multiples of this
    size_t parts


# dW += dY X' in parts.  The product must not move.
cdef struct WeightGradient:
    Product product
    Cut cut


cdef void product(bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack,
                  const float* b, float beta, float* c) noexcept nogil
# C = A B + D, where D is at `old`: a matrix as large as C or, with `ldold` 0, one column for all of C's.
cdef void product_plus(size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b, const float* old,
                       size_t ldold, float* c) noexcept nogil
# Note whose products follow in this thread; `again`: it computes what it has computed before, with the same bits.  0:
# nobody's, as before the first call.
cdef void note_caller(uint64_t number, bint again) noexcept nogil
# Memory is short: weights are packed only for products in which that saves most, those of few columns; or not any more.
cdef void pack_for_narrow(bint only) noexcept nogil
cdef void weight_gradient(size_t m, size_t k, size_t n, const float* dy, const float* x, float beta,
                          float* dw) noexcept nogil
# The same in parts, with beta 1, for threads that compute them at any time, one after the other or at once.
cdef void cut_weight_gradient(size_t m, size_t k, size_t n, const float* dy, const float* x, float* dw,
                              WeightGradient* g) noexcept nogil
cdef void part_of_weight_gradient(const WeightGradient* g, size_t i) noexcept nogil
cdef void gemm(bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
               const float* b, size_t ldb, float beta, float* c, size_t ldc) noexcept nogil
cdef bint in_parts(size_t parts, size_t work, void (*run)(void* job, size_t part) noexcept nogil,
                   void* job) noexcept nogil


# ==== ranges ======================================================================================
#
# Loops over independent elements, columns or images, divided among threads; see product.pyx.

ctypedef void (*RangeRun)(void* job, size_t first, size_t end) noexcept nogil
ctypedef void (*InRanges)(size_t n, size_t step, size_t cost, RangeRun run, void* job) noexcept nogil

cdef extern from "dynet_cy/ranges.h":
    # derived: constants of ELEMENT_COST
    int ELEMENT_COST "DY_ELEMENT_COST"
    # end of constants


cdef void in_ranges(size_t n, size_t step, size_t cost, RangeRun run, void* job) noexcept nogil
