"""Products of tensors with three or more axes, by cuBLAS."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, element, total_of
from dynet_cy.gpu.base cimport BASE
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, gemm, gemm_strided
from dynet_cy.gpu.registry cimport gpu_op
from dynet_cy.ops.batched cimport Products, nth_product, products_of


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


cdef GpuOp* op = gpu_op(b"batched_matmul", BASE, forward, backward)
op.assigns = True
