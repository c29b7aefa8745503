"""Sorting, cumulative products and cumulative sums of exponentials."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.axes cimport Split, split_at

cdef int CU = module_at(b"order")
cdef int SORT = kernel_at(CU, b"sort_lines")
cdef int SORT_BACKWARD = kernel_at(CU, b"sort_backward")
cdef int CUMPROD = kernel_at(CU, b"cumprod_forward")
cdef int CUMPROD_BACKWARD = kernel_at(CU, b"cumprod_backward")
cdef int LOGCUMSUMEXP = kernel_at(CU, b"logcumsumexp_forward")
cdef int LOGCUMSUMEXP_BACKWARD = kernel_at(CU, b"logcumsumexp_backward")


cdef size_t lines_of(const Split* s, const Tensor* x) noexcept nogil:
    return s.pre * s.post * x.dim.bd


cdef size_t uses_of(const Call* c) noexcept nogil:
    """How many batch elements of y share one batch element of dx."""
    return c.y.dim.bd // c.dx.dim.bd


# ---- sort, argsort: attributes: the axis, how many to keep, and whether the order is descending -----

cdef int order(Gpu* gpu, const Call* c, float* where) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = lines_of(&s, &c.y)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch_each(gpu, SORT, n * s.len, n, s.pre, s.len, s.post, <size_t>c.attrs[1].u, <int>c.attrs[2].u,
                       c.x[0].v, c.x[0].bstride, where, c.y.v)


cdef int sort_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return order(gpu, c, c.saved)


cdef int argsort_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return order(gpu, c, NULL)


cdef int sort_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = lines_of(&s, &c.dx)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch_each(gpu, SORT_BACKWARD, n, n, s.pre, s.len, s.post, <size_t>c.attrs[1].u, uses_of(c), c.saved,
                       c.dy.v, c.dx.v)


cdef GpuOp* op = gpu_op(b"sort", CU)
op.forward = sort_forward
op.backward = sort_backward

op = gpu_op(b"argsort", CU)
op.forward = argsort_forward


# ---- cumprod, logcumsumexp: the attribute is the axis --------------------------------

cdef int accumulate(Gpu* gpu, int kernel, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = lines_of(&s, &c.y)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch_each(gpu, kernel, n, n, s.pre, s.len, s.post, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int accumulate_backward(Gpu* gpu, int kernel, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = lines_of(&s, &c.dx)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch_each(gpu, kernel, n, n, s.pre, s.len, s.post, uses_of(c), c.x[0].v, c.x[0].bstride, c.y.v, c.dy.v,
                       c.dx.v)


cdef int cumprod_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return accumulate(gpu, CUMPROD, c)


cdef int cumprod_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return accumulate_backward(gpu, CUMPROD_BACKWARD, c)


cdef int logcumsumexp_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return accumulate(gpu, LOGCUMSUMEXP, c)


cdef int logcumsumexp_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return accumulate_backward(gpu, LOGCUMSUMEXP_BACKWARD, c)


op = gpu_op(b"cumprod", CU)
op.forward = cumprod_forward
op.backward = cumprod_backward

op = gpu_op(b"logcumsumexp", CU)
op.forward = logcumsumexp_forward
op.backward = logcumsumexp_backward
