# SPDX-License-Identifier: Apache-2.0
"""Products of matrices: with packed parameters, in bfloat16 where a program asks for it, and on several threads."""

from dynet_cy.core.tensor cimport Packed

cdef void product(bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack,
                  const float* b, float beta, float* c) noexcept nogil
cdef void weight_gradient(size_t m, size_t k, size_t n, const float* dy, const float* x, float beta,
                          float* dw) noexcept nogil
cdef void gemm(bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
               const float* b, size_t ldb, float beta, float* c, size_t ldc) noexcept nogil
cdef bint in_parts(size_t parts, size_t work, void (*run)(void* job, size_t part) noexcept nogil,
                   void* job) noexcept nogil
