"""Products of matrices and tensors, by cuBLAS; circular convolutions, inverses and determinants."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor, cols_of, element, rows_of, size_of, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, gemm, gemm_strided, launch_each, launch_rows
from dynet_cy.gpu.registry cimport (
    BASE, Axes, axes_in, contract, contract_list, expand, expand_list, gpu_op, kernel_at, module_at, split_axes,
)
from dynet_cy.ops.linalg cimport AFFINE, MATMUL
from dynet_cy.ops.products cimport Products, nth_product, products_of
from dynet_cy.ops.registry cimport Factors

cdef GpuOp* op


# ==== linalg ======================================================================================
#
# Products of matrices and vectors, by cuBLAS.

cdef int multiply(Gpu* gpu, const Tensor* a, const Tensor* b, const Tensor* y, float beta) noexcept nogil:
    """y = a b + beta y, batch element by element."""
    cdef size_t m = rows_of(&a.dim), k = cols_of(&a.dim), n = cols_of(&b.dim)
    if a.dim.bd == 1 and b.dim.bd == y.dim.bd:
        # One matrix for all: the columns of all batch elements are one wide b.
        return gemm(gpu, 0, 0, m, n * b.dim.bd, k, 1, a.v, m, b.v, k, beta, y.v, m)
    return gemm_strided(gpu, 0, 0, m, n, k, 1, a.v, m, a.bstride, b.v, k, b.bstride, beta, y.v, m, y.bstride, y.dim.bd)


cdef int multiply_backward_a(Gpu* gpu, const Tensor* b, const Tensor* dy, const Tensor* da,
                             bint accumulate) noexcept nogil:
    """da = dy b' (+ da)."""
    cdef size_t m = rows_of(&da.dim), k = cols_of(&da.dim), n = cols_of(&b.dim)
    cdef uint32_t i
    if da.dim.bd == 1 and b.dim.bd == dy.dim.bd:
        return gemm(gpu, 0, 1, m, k, n * b.dim.bd, 1, dy.v, m, b.v, k, accumulate, da.v, m)
    if da.dim.bd == 1:                          # a and b have batch size 1: sum over the batch of dy
        for i in range(dy.dim.bd):
            gemm(gpu, 0, 1, m, k, n, 1, element(dy, i), m, b.v, k, accumulate or i > 0, da.v, m)
        return gpu.error
    return gemm_strided(gpu, 0, 1, m, k, n, 1, dy.v, m, dy.bstride, b.v, k, b.bstride, accumulate, da.v, m,
                        da.bstride, dy.dim.bd)


cdef int multiply_backward_b(Gpu* gpu, const Tensor* a, const Tensor* dy, const Tensor* db,
                             bint accumulate) noexcept nogil:
    """db = a' dy (+ db)."""
    cdef size_t m = rows_of(&a.dim), k = cols_of(&a.dim), n = cols_of(&db.dim)
    cdef uint32_t i
    if a.dim.bd == 1 and db.dim.bd == dy.dim.bd:
        return gemm(gpu, 1, 0, k, n * db.dim.bd, m, 1, a.v, m, dy.v, m, accumulate, db.v, k)
    if db.dim.bd == 1:                          # a sum over the batch
        for i in range(dy.dim.bd):
            gemm(gpu, 1, 0, k, n, m, 1, element(a, i), m, element(dy, i), m, accumulate or i > 0, db.v, k)
        return gpu.error
    return gemm_strided(gpu, 1, 0, k, n, m, 1, a.v, m, a.bstride, dy.v, m, dy.bstride, accumulate, db.v, k,
                        db.bstride, dy.dim.bd)


# ---- matmul --------------------------------------------------------------------

cdef int matmul_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return multiply(gpu, &c.x[0], &c.x[1], &c.y, 0)


cdef int matmul_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    if i == 0:
        return multiply_backward_a(gpu, &c.x[1], &c.dy, &c.dx, c.accumulate)
    return multiply_backward_b(gpu, &c.x[0], &c.dy, &c.dx, c.accumulate)


op = gpu_op(b"matmul", BASE, matmul_forward, matmul_backward)
op.factors = MATMUL.factors
op.assigns = True


# ---- affine_transform ------------------------------------------------------------

cdef Tensor as_matrix(const Tensor* x) noexcept nogil:
    """x with all axes after the first merged into one."""
    cdef Tensor y = x[0]
    y.dim.nd = 2
    y.dim.d[0] = rows_of(&x.dim)
    y.dim.d[1] = <uint32_t>cols_of(&x.dim)
    return y


cdef void one_element(Tensor* y, Tensor* x) noexcept nogil:
    """Reduce both shapes to one batch element, for the axes of LIST arguments."""
    y.dim.bd = 1
    x.dim.bd = 1


cdef int affine_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Tensor y = as_matrix(&c.y), b = as_matrix(&c.x[0])
    cdef Axes axes
    if b.list != NULL:
        one_element(&y, &b)
        axes_in(&y, &b, &axes)
        expand_list(gpu, c.y.dim.bd, &axes, 1, <const void*>b.list, c.y.v, 0)
    else:
        axes_in(&y, &b, &axes)
        expand(gpu, &axes, 1, b.v, y.v, 0)
    return add_products(gpu, c)


cdef int add_products(Gpu* gpu, const Call* c) noexcept nogil:
    """Add the products to y, which is the bias."""
    cdef uint32_t i
    for i in range(1, c.n, 2):
        multiply(gpu, &c.x[i], &c.x[i + 1], &c.y, 1)
    return gpu.error


cdef int affine_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Tensor dy, db
    cdef Axes kept, reduced
    if i == 0:
        dy = as_matrix(&c.dy)
        db = as_matrix(&c.dx)
        if db.list != NULL:
            one_element(&dy, &db)
            split_axes(&dy, &db, &kept, &reduced)
            return contract_list(gpu, c.y.dim.bd, c.dy.bstride, &kept, &reduced, 1, dy.v, <const void*>db.list,
                                 c.accumulate)
        split_axes(&dy, &db, &kept, &reduced)
        return contract(gpu, &kept, &reduced, 1, dy.v, db.v, c.accumulate)
    if i % 2:
        return multiply_backward_a(gpu, &c.x[i + 1], &c.dy, &c.dx, c.accumulate)
    return multiply_backward_b(gpu, &c.x[i - 1], &c.dy, &c.dx, c.accumulate)


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


op = gpu_op(b"affine_transform", BASE, affine_forward, affine_backward)
op.same = affine_same
op.sums = add_products
op.adds_to_first = True
op.factors = affine_factors
op.assigns = True
op.lists = True


# ---- dot_product: its backward adds multiples of vectors for other ops too ------------------

LINALG = module_at(b"linalg")
cdef int DOT_BACKWARD = kernel_at(LINALG, b"dot_backward")


cdef int add_scaled_elements(Gpu* gpu, const Tensor* x, const float* factors, size_t batch,
                             const Tensor* dx) noexcept nogil:
    cdef size_t n = size_of(&dx.dim), own = dx.dim.bd
    return launch_each(gpu, DOT_BACKWARD, n * own, batch, n, own, x.v, x.bstride, factors, dx.v)


# ==== contract ====================================================================================
#
# Tensors of three axes times vectors, and circular convolutions of vectors.

# ---- contract3d_1d: the tensor is used as a matrix with one column per index of its last axis ----

cdef Tensor matrix_of(const Tensor* x, size_t rows, size_t cols) noexcept nogil:
    cdef Tensor m = x[0]
    m.dim.d[0] = <uint32_t>rows
    m.dim.d[1] = <uint32_t>cols
    m.dim.nd = 2
    return m


cdef int contract_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef Tensor x = matrix_of(&c.x[0], n, rows_of(&c.x[1].dim)), z = matrix_of(&c.y, n, 1)
    return multiply(gpu, &x, &c.x[1], &z, 0)


cdef int contract_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef Tensor dz = matrix_of(&c.dy, n, 1)
    cdef Tensor x = matrix_of(&c.x[0] if i else &c.dx, n, rows_of(&c.x[1].dim))
    if i:
        return multiply_backward_b(gpu, &x, &dz, &c.dx, c.accumulate)
    return multiply_backward_a(gpu, &c.x[1], &dz, &x, c.accumulate)


op = gpu_op(b"contract3d_1d", BASE, contract_forward, contract_backward)
op.assigns = True


# ==== batched =====================================================================================
#
# Products of tensors with three or more axes, by cuBLAS.

cdef bint in_step(const Products* p, const Call* c) noexcept nogil:
    """Whether the matrices of all batch elements are at constant strides in both arguments."""
    return not (p.spread[0] or p.spread[1]) and c.x[0].dim.bd == c.y.dim.bd and c.x[1].dim.bd == c.y.dim.bd


cdef int forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Products p = products_of(c)
    cdef size_t lda = p.k if p.ta else p.m, ldb = p.n if p.tb else p.k, i, a, b
    cdef uint32_t e
    if total_of(&c.y.dim) == 0:
        return 0
    if in_step(&p, c):
        return gemm_strided(gpu, p.ta, p.tb, p.m, p.n, p.k, 1, c.x[0].v, lda, p.m * p.k, c.x[1].v, ldb, p.k * p.n, 0,
                            c.y.v, p.m, p.m * p.n, p.count * c.y.dim.bd)
    for e in range(c.y.dim.bd):
        for i in range(p.count):
            nth_product(&p, i, &a, &b)
            gemm(gpu, p.ta, p.tb, p.m, p.n, p.k, 1, element(&c.x[0], e) + a * p.m * p.k, lda,
                 element(&c.x[1], e) + b * p.k * p.n, ldb, 0, element(&c.y, e) + i * p.m * p.n, p.m)
    return gpu.error


cdef int gradient(Gpu* gpu, const Products* p, uint32_t side, const float* a, size_t step_a, const float* b,
                  size_t step_b, const float* dy, size_t step_y, float beta, float* dx, size_t count) noexcept nogil:
    """The gradients of one argument of `count` products, whose matrices are `step_*` numbers apart."""
    cdef size_t lda = p.k if p.ta else p.m, ldb = p.n if p.tb else p.k
    if side == 0 and not p.ta:
        return gemm_strided(gpu, 0, not p.tb, p.m, p.k, p.n, 1, dy, p.m, step_y, b, ldb, step_b, beta, dx, lda, step_a,
                            count)
    if side == 0:
        return gemm_strided(gpu, p.tb, 1, p.k, p.m, p.n, 1, b, ldb, step_b, dy, p.m, step_y, beta, dx, lda, step_a,
                            count)
    if not p.tb:
        return gemm_strided(gpu, not p.ta, 0, p.k, p.n, p.m, 1, a, lda, step_a, dy, p.m, step_y, beta, dx, ldb, step_b,
                            count)
    return gemm_strided(gpu, 1, p.ta, p.n, p.k, p.m, 1, dy, p.m, step_y, a, lda, step_a, beta, dx, ldb, step_b, count)


cdef int backward(Gpu* gpu, const Call* c, uint32_t side) noexcept nogil:
    cdef Products p = products_of(c)
    cdef size_t i, at_a, at_b, at
    cdef uint32_t e
    cdef float beta = c.accumulate
    if total_of(&c.dx.dim) == 0:
        return 0
    if in_step(&p, c):
        return gradient(gpu, &p, side, c.x[0].v, p.m * p.k, c.x[1].v, p.k * p.n, c.dy.v, p.m * p.n, beta, c.dx.v,
                        p.count * c.y.dim.bd)
    if not c.accumulate:
        fill(gpu, total_of(&c.dx.dim), 0, c.dx.v)
    for e in range(c.y.dim.bd):
        for i in range(p.count):
            nth_product(&p, i, &at_a, &at_b)
            at = at_b * p.k * p.n if side else at_a * p.m * p.k
            gradient(gpu, &p, side, element(&c.x[0], e) + at_a * p.m * p.k, 0, element(&c.x[1], e) + at_b * p.k * p.n,
                     0, element(&c.dy, e) + i * p.m * p.n, 0, 1, element(&c.dx, e) + at, 1)
    return gpu.error


op = gpu_op(b"batched_matmul", BASE, forward, backward)
op.assigns = True


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
    """dx = - y' dy y'."""
    cdef size_t n = rows_of(&c.y.dim), size = n * n, batch = c.y.dim.bd
    cdef uint32_t b
    if n == 0:
        return 0
    gemm_strided(gpu, 1, 0, n, n, n, 1, c.y.v, n, size, c.dy.v, n, size, 0, c.work, n, size, batch)
    if c.dx.dim.bd == batch:
        return gemm_strided(gpu, 0, 1, n, n, n, -1, c.work, n, size, c.y.v, n, size, c.accumulate, c.dx.v, n, size,
                            batch)
    for b in range(c.y.dim.bd):                 # x has batch size 1: sum over the batch
        gemm(gpu, 0, 1, n, n, n, -1, c.work + b * size, n, element(&c.y, b), n, c.accumulate or b > 0, c.dx.v, n)
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
