"""Products, for other families to apply."""

from dynet_cy.core.tensor cimport Tensor
from dynet_cy.ops.registry cimport Factors, Op

cdef Op* MATMUL
cdef Op* AFFINE

cdef void factors_of_a(const Tensor* a, const Tensor* b, const Tensor* dy, Factors* f) noexcept nogil
cdef void multiply(const Tensor* a, const Tensor* b, const Tensor* y, float beta) noexcept nogil
cdef void multiply_backward_a(const Tensor* b, const Tensor* dy, const Tensor* da,
                              bint accumulate) noexcept nogil
cdef void multiply_backward_b(const Tensor* a, const Tensor* dy, const Tensor* db,
                              bint accumulate) noexcept nogil
