"""Products, for other families."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, Tensor
from dynet_cy.ops.registry cimport Factors, Op, Shapes

cdef Op* MATMUL
cdef Op* AFFINE

cdef void factors_of_a(const Tensor* a, const Tensor* b, const Tensor* dy, Factors* f) noexcept nogil
cdef void multiply(const Tensor* a, const Tensor* b, const Tensor* y, float beta) noexcept nogil
cdef bint multiply_plus(const Tensor* a, const Tensor* b, const Tensor* old, const Tensor* y) noexcept nogil
cdef void multiply_backward_a(const Tensor* a, const Tensor* b, const Tensor* dy, const Tensor* da,
                              bint accumulate) noexcept nogil
cdef void multiply_backward_b(const Tensor* a, const Tensor* dy, const Tensor* db,
                              bint accumulate) noexcept nogil

cdef int affine_transform_dim(const Shapes* s, Dim* y) except -1
cdef void affine_transform_forward(const Call* c) noexcept nogil
cdef void affine_transform_backward(const Call* c, uint32_t i) noexcept nogil
cdef void affine_transform_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil
