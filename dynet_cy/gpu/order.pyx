"""Sorting, cumulative products and cumulative sums of exponentials."""

# derived: launches
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.axes cimport Split, split_at

cdef int CU = module_at(b"order")
cdef int SORT_LINES = kernel_at(CU, b"sort_lines")
cdef int SORT_BACKWARD = kernel_at(CU, b"sort_backward")
cdef int CUMPROD_FORWARD = kernel_at(CU, b"cumprod_forward")
cdef int CUMPROD_BACKWARD = kernel_at(CU, b"cumprod_backward")
cdef int LOGCUMSUMEXP_FORWARD = kernel_at(CU, b"logcumsumexp_forward")
cdef int LOGCUMSUMEXP_BACKWARD = kernel_at(CU, b"logcumsumexp_backward")
cdef GpuOp* op


cdef int sort_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, count = c.attrs[1].u
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    cdef int descending = c.attrs[2].u
    return launch_each(gpu, SORT_LINES, lines * length, lines, inner, length, outer, count, descending, c.x[0].v,
                       c.x[0].bstride, c.saved, c.y.v)


cdef int sort_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, count = c.attrs[1].u
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * elements
    return launch_each(gpu, SORT_BACKWARD, lines, lines, inner, length, outer, count, uses, c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"sort", CU, sort_forward, sort_backward)


cdef int argsort_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, count = c.attrs[1].u
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    cdef int descending = c.attrs[2].u
    return launch_each(gpu, SORT_LINES, lines * length, lines, inner, length, outer, count, descending, c.x[0].v,
                       c.x[0].bstride, NULL, c.y.v)


op = gpu_op(b"argsort", CU, argsort_forward, NULL)


cdef int cumprod_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    return launch_each(gpu, CUMPROD_FORWARD, lines, lines, inner, length, outer, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved)


cdef int cumprod_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * elements
    return launch_each(gpu, CUMPROD_BACKWARD, lines, lines, inner, length, outer, uses, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"cumprod", CU, cumprod_forward, cumprod_backward)


cdef int logcumsumexp_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    return launch_each(gpu, LOGCUMSUMEXP_FORWARD, lines, lines, inner, length, outer, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved)


cdef int logcumsumexp_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * elements
    return launch_each(gpu, LOGCUMSUMEXP_BACKWARD, lines, lines, inner, length, outer, uses, c.x[0].v, c.x[0].bstride,
                       c.y.v, c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"logcumsumexp", CU, logcumsumexp_forward, logcumsumexp_backward)
# end of launches
