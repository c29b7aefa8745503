"""Products of matrices on any device, and the ops that are made of them."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, Packed, Tensor
from dynet_cy.ops.registry cimport Backward, DimRule, Factors, Forward, Op, Shapes

cdef Op* MATMUL
cdef Op* AFFINE

# Rows of the sums that become gates: all logistic, except `tanh` rows after the `first` ones.
cdef struct Gates:
    size_t rows
    size_t first
    size_t tanh
    size_t columns

# The linear algebra of a kind of devices. Ops that consist of its functions are defined once, for all devices.  `on` is
# the device, as in Call.
cdef struct Algebra:
    # C = A B + beta C or, with `ta`, A' B + beta C, where matrices have no gaps; `pack`: of the parameter that A is, or
    # NULL
    void (*product)(void* on, bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b,
                    float beta, float* c) noexcept nogil
    # dW = dY X' + beta dW, where dW is m x k, the gradient of a parameter or not, and X has n columns
    void (*gradient)(void* on, bint of_parameter, size_t m, size_t k, size_t n, const float* dy, const float* x,
                     float beta, float* dw) noexcept nogil
    # As in BLAS, `count` times, with matrices `stride_*` floats apart.  All add to one C if `stride_c` is 0.
    void (*gemm)(void* on, bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
                 size_t stride_a, const float* b, size_t ldb, size_t stride_b, float beta, float* c, size_t ldc,
                 size_t stride_c, size_t count) noexcept nogil
    void (*zero)(void* on, size_t n, float* to) noexcept nogil
    # y = b for argument b of a sum b + W x + ..., repeated for all columns; True: y has the first product too
    bint (*begin_sum)(const Call* c) noexcept nogil
    # db = the sum of the columns that b was repeated for (+ db)
    void (*add_to_bias)(void* on, const Tensor* dy, const Tensor* db, bint accumulate) noexcept nogil
    # y = the gates of sums y; the gradient of the sums, which may be over dy
    void (*activate)(void* on, const Gates* g, float* y) noexcept nogil
    void (*activate_backward)(void* on, const Gates* g, const float* y, const float* dy, float* dsums) noexcept nogil

cdef Algebra here                   # that of the CPU
cdef Algebra* there                 # that of GPUs


cdef inline const Algebra* algebra_of(const void* on) noexcept nogil:
    return &here if on == NULL else there


# Register an op whose functions run on every device.
cdef Op* product_op(const char* name, const char* args, DimRule dim, Forward forward, Backward backward) except NULL

cdef void multiply(void* on, const Tensor* a, const Tensor* b, const Tensor* y, float beta) noexcept nogil
cdef void multiply_backward_a(void* on, const Tensor* a, const Tensor* b, const Tensor* dy, const Tensor* da,
                              bint accumulate) noexcept nogil
cdef void multiply_backward_b(void* on, const Tensor* a, const Tensor* dy, const Tensor* db,
                              bint accumulate) noexcept nogil

# A sum b + W x + ...: its value, or only the products from argument `first` on; from its gradient, that of an argument
# and the factors of it.
cdef int affine_transform_dim(const Shapes* s, Dim* y) except -1
cdef void affine_transform_forward(const Call* c) noexcept nogil
cdef void add_products(const Call* c, uint32_t first) noexcept nogil
cdef void backward_of_sum(const Call* c, const Tensor* dsum, uint32_t i) noexcept nogil
cdef void factors_of_sum(const Call* c, const Tensor* dsum, uint32_t i, Factors* f) noexcept nogil
