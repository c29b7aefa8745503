"""Inverse and determinant of square matrices."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, element, rows_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, gemm, gemm_strided, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"inverse")
cdef int INVERT = kernel_at(CU, b"invert")


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


cdef GpuOp* op = gpu_op(b"inverse", CU, inverse_forward, inverse_backward)
op.work = inverse_work
op.assigns = True


# derived: launches
from dynet_cy.gpu.driver cimport fill, launch_each

cdef int LOGDET_BACKWARD = kernel_at(CU, b"logdet_backward")


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


op = gpu_op(b"logdet", CU, logdet_forward, logdet_backward)
op.saved = logdet_saved
op.work = logdet_work
# end of launches
