"""Products of matrices and vectors, by cuBLAS."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor, cols_of, element, rows_of, size_of
from dynet_cy.gpu.base cimport (
    BASE, Axes, axes_in, contract, contract_list, expand, expand_list, split_axes,
)
from dynet_cy.gpu.driver cimport Gpu, GpuOp, gemm, gemm_strided, launch_each
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.linalg cimport AFFINE, MATMUL


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


cdef GpuOp* op = gpu_op(b"matmul", BASE, matmul_forward, matmul_backward)
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
    cdef uint32_t i
    if b.list != NULL:
        one_element(&y, &b)
        axes_in(&y, &b, &axes)
        expand_list(gpu, c.y.dim.bd, &axes, 1, <const void*>b.list, c.y.v, 0)
    else:
        axes_in(&y, &b, &axes)
        expand(gpu, &axes, 1, b.v, y.v, 0)
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


op = gpu_op(b"affine_transform", BASE, affine_forward, affine_backward)
op.factors = AFFINE.factors
op.assigns = True
op.lists = True


# ---- dot_product: its backward adds multiples of vectors for other ops too ------------------

LINALG = module_at(b"linalg")
cdef int DOT_BACKWARD = kernel_at(LINALG, b"dot_backward")


cdef int add_scaled_elements(Gpu* gpu, const Tensor* x, const float* factors, size_t batch,
                             const Tensor* dx) noexcept nogil:
    cdef size_t n = size_of(&dx.dim), own = dx.dim.bd
    return launch_each(gpu, DOT_BACKWARD, n * own, batch, n, own, x.v, x.bstride, factors, dx.v)


# derived: launches
from dynet_cy.gpu.driver cimport launch_rows

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
# end of launches
