"""Products of matrices and tensors, by cuBLAS; circular convolutions, inverses and determinants."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor
from dynet_cy.gpu.driver cimport Gpu, GpuOp
from dynet_cy.ops.linalg cimport Algebra
from dynet_cy.ops.registry cimport Factors

cdef int LINALG              # the module of the kernels that are not cuBLAS calls

# The linear algebra of a device.
cdef Algebra there(Gpu* gpu) noexcept nogil
# dx_b += factor_b x_b for each batch element b; summed over the batch if dx has batch size 1.
cdef int add_scaled_elements(Gpu* gpu, const Tensor* x, const float* factors, size_t batch,
                             const Tensor* dx) noexcept nogil
cdef void affine_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil
# The gradient of a vector b that is added to all columns is their sum, if that is not dy itself.
cdef void columns_to_sum(const Tensor* b, const Tensor* dy, Factors* f) noexcept nogil
