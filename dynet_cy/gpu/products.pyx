"""Products of matrices and tensors, by cuBLAS; circular convolutions, inverses and determinants."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Packed, Tensor, cols_of, rows_of, size_of, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, gemm, gemm_strided, launch_each, launch_rows
from dynet_cy.gpu.registry cimport (
    BASE, Axes, axes_in, contract, contract_list, expand, expand_list, gpu_op, gpu_op_named, kernel_at, module_at,
    split_axes,
)
from dynet_cy.ops.linalg cimport AFFINE, Algebra, add_products, product_op_at
from dynet_cy.ops.products cimport inverse_back
from dynet_cy.ops.registry cimport MAX_OPS, Factors, op_at

cdef GpuOp* op


# ==== linalg ======================================================================================
#
# Products of matrices and vectors, by cuBLAS. Ops that are made of these are defined in ops/linalg and ops/products.

cdef void product_there(void* on, bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b,
                        float beta, float* c) noexcept nogil:
    gemm(<Gpu*>on, ta, 0, m, n, k, 1, a, k if ta else m, b, k, beta, c, m)


cdef void gradient_there(void* on, bint of_parameter, size_t m, size_t k, size_t n, const float* dy, const float* x,
                         float beta, float* dw) noexcept nogil:
    gemm(<Gpu*>on, 0, 1, m, k, n, 1, dy, m, x, k, beta, dw, m)


cdef void gemm_there(void* on, bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
                     size_t stride_a, const float* b, size_t ldb, size_t stride_b, float beta, float* c, size_t ldc,
                     size_t stride_c, size_t count) noexcept nogil:
    cdef size_t i
    if count > 1 and stride_c:
        gemm_strided(<Gpu*>on, ta, tb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c,
                     count)
        return
    for i in range(count):
        gemm(<Gpu*>on, ta, tb, m, n, k, alpha, a + i * stride_a, lda, b + i * stride_b, ldb, 1 if i else beta, c, ldc)


cdef void zero_there(void* on, size_t n, float* to) noexcept nogil:
    fill(<Gpu*>on, n, 0, to)


cdef Tensor as_matrix(const Tensor* x) noexcept nogil:
    """x with all axes after the first merged into one; of a list, its first batch element."""
    cdef Tensor y = x[0]
    y.dim.nd = 2
    y.dim.d[0] = rows_of(&x.dim)
    y.dim.d[1] = <uint32_t>cols_of(&x.dim)
    return y


cdef bint begin_sum_there(void* on, const Call* c) noexcept nogil:
    cdef Tensor y = as_matrix(&c.y), b = as_matrix(&c.x[0])
    cdef Axes axes
    if b.list != NULL:
        y.dim.bd = b.dim.bd = 1
    axes_in(&y, &b, &axes)
    if b.list != NULL:
        expand_list(<Gpu*>on, c.y.dim.bd, &axes, 1, <const void*>b.list, c.y.v, 0)
    else:
        expand(<Gpu*>on, &axes, 1, b.v, y.v, 0)
    return False


cdef void add_to_bias_there(void* on, const Tensor* dy, const Tensor* db, bint accumulate) noexcept nogil:
    cdef Tensor y = as_matrix(dy), b = as_matrix(db)
    cdef Axes kept, reduced
    if b.list != NULL:
        y.dim.bd = b.dim.bd = 1
    split_axes(&y, &b, &kept, &reduced)
    if b.list != NULL:
        contract_list(<Gpu*>on, dy.dim.bd, dy.bstride, &kept, &reduced, 1, dy.v, <const void*>b.list, accumulate)
    else:
        contract(<Gpu*>on, &kept, &reduced, 1, dy.v, db.v, accumulate)


cdef Algebra there(Gpu* gpu) noexcept nogil:
    return Algebra(gpu, product_there, gradient_there, gemm_there, zero_there, begin_sum_there, add_to_bias_there)


cdef int forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Algebra la = there(gpu)
    product_op_at(gpu.op).forward(&la, c)
    return gpu.error


cdef int backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Algebra la = there(gpu)
    product_op_at(gpu.op).backward(&la, c, i)
    return gpu.error


cdef int number
for number in range(MAX_OPS):
    if product_op_at(number).forward != NULL:
        op = gpu_op(op_at(number).name, BASE, forward, backward)
        op.factors = op_at(number).factors
        op.assigns = True


# ---- affine_transform ------------------------------------------------------------

cdef int affine_sums(Gpu* gpu, const Call* c) noexcept nogil:
    """Add the products to y, which is the bias."""
    cdef Algebra la = there(gpu)
    add_products(&la, c, 1)
    return gpu.error


cdef float* affine_same(const Call* c, uint32_t i) noexcept nogil:
    """The gradient of a bias that is not broadcast is that of the result."""
    return c.dy.v if i == 0 and total_of(&c.x[0].dim) == total_of(&c.y.dim) else NULL


cdef void columns_to_sum(const Tensor* b, const Tensor* dy, Factors* f) noexcept nogil:
    cdef size_t rows = rows_of(&dy.dim), n = total_of(&dy.dim)
    if b.list == NULL and total_of(&b.dim) == rows and rows_of(&b.dim) == rows and n > rows:
        f.left = dy.v
        f.right = NULL
        f.rows = rows
        f.cols = 1
        f.n = n // rows


cdef void affine_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    if i == 0:
        columns_to_sum(&c.x[0], &c.dy, f)
    else:
        AFFINE.factors(c, i, f)


op = gpu_op_named(b"affine_transform")
op.same = affine_same
op.sums = affine_sums
op.adds_to_first = True
op.factors = affine_factors
op.lists = True


# ---- dot_product: its backward adds multiples of vectors for other ops too ------------------

LINALG = module_at(b"linalg")
cdef int DOT_BACKWARD = kernel_at(LINALG, b"dot_backward")


cdef int add_scaled_elements(Gpu* gpu, const Tensor* x, const float* factors, size_t batch,
                             const Tensor* dx) noexcept nogil:
    cdef size_t n = size_of(&dx.dim), own = dx.dim.bd
    return launch_each(gpu, DOT_BACKWARD, n * own, batch, n, own, x.v, x.bstride, factors, dx.v)


# ==== inverse =====================================================================================
#
# Inverse and determinant of square matrices.

cdef int CU_INVERSE = module_at(b"inverse")
cdef int INVERT = kernel_at(CU_INVERSE, b"invert")


# ---- inverse -----------------------------------------------------------------------------

cdef int inverse_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_rows(gpu, INVERT, batch, n * n, batch, n, c.x[0].v, c.x[0].bstride, c.y.v, c.work, <float*>NULL)


cdef int inverse_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Algebra la = there(gpu)
    inverse_back(&la, c, i)
    return gpu.error


cdef size_t inverse_work(const Call* c, int i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    return c.y.dim.bd * (2 * n if i < 0 else n * n)


op = gpu_op(b"inverse", CU_INVERSE, inverse_forward, inverse_backward)
op.work = inverse_work
op.assigns = True

# derived: launches of linalg, contract, inverse

cdef int DOT_FORWARD = kernel_at(LINALG, b"dot_forward")


cdef int dot_product_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    return launch_rows(gpu, DOT_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v)


cdef int dot_product_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.dx.dim)
    return launch_each(gpu, DOT_BACKWARD, elements * n, batch, n, elements, c.x[1 - i].v, c.x[1 - i].bstride, c.dy.v,
                       c.dx.v)


op = gpu_op(b"dot_product", LINALG, dot_product_forward, dot_product_backward)

op = gpu_op(b"trace_of_product", LINALG, dot_product_forward, dot_product_backward)

cdef int CU_CONTRACT = module_at(b"contract")
cdef int CIRCULAR = kernel_at(CU_CONTRACT, b"circular")


cdef int circ_conv_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_each(gpu, CIRCULAR, batch * n, batch, n, 0, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v,
                       batch, 0)


cdef int circ_conv_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), stride_a = c.x[1 - i].bstride
    cdef size_t stride_b = n
    return launch_each(gpu, CIRCULAR, elements * n, batch, n, 1, c.x[1 - i].v, stride_a, c.dy.v, stride_b, c.dx.v,
                       elements, c.accumulate)


op = gpu_op(b"circ_conv", CU_CONTRACT, circ_conv_forward, circ_conv_backward)
op.assigns = True


cdef int circ_corr_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_each(gpu, CIRCULAR, batch * n, batch, n, 1, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v,
                       batch, 0)


cdef int circ_corr_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), stride_a = n
    cdef size_t stride_b = c.x[1 - i].bstride
    return launch_each(gpu, CIRCULAR, elements * n, batch, n, i == 0, c.dy.v, stride_a, c.x[1 - i].v, stride_b, c.dx.v,
                       elements, c.accumulate)


op = gpu_op(b"circ_corr", CU_CONTRACT, circ_corr_forward, circ_corr_backward)
op.assigns = True

cdef int LOGDET_BACKWARD = kernel_at(CU_INVERSE, b"logdet_backward")


cdef int logdet_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.x[0].dim)
    if n == 0:
        return fill(gpu, batch, 0, c.y.v)
    return launch_rows(gpu, INVERT, batch, n * n, batch, n, c.x[0].v, c.x[0].bstride, c.saved, c.work, c.y.v)


cdef int logdet_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.x[0].dim)
    return launch_each(gpu, LOGDET_BACKWARD, elements * n * n, batch, n, c.saved, c.dy.v, c.dx.v, c.dx.bstride)


cdef size_t logdet_saved(const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.x[0].dim)
    return batch * n * n


cdef size_t logdet_work(const Call* c, int i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.x[0].dim)
    return 2 * n * batch if i < 0 else 0


op = gpu_op(b"logdet", CU_INVERSE, logdet_forward, logdet_backward)
op.saved = logdet_saved
op.work = logdet_work
# end of launches
