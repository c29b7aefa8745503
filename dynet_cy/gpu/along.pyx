"""Ops along one axis: lines of `length` elements that are `inner` floats apart."""

# derived: launches
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of, total_of
from dynet_cy.gpu.base cimport BASE, pass_scaled
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.reduce cimport by_blocks
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, needs_module
from dynet_cy.ops.axes cimport Split, split_at

cdef int CU = module_at(b"along")
cdef int EXTREME_FORWARD = kernel_at(CU, b"extreme_forward")
cdef int EXTREME_BACKWARD = kernel_at(CU, b"extreme_backward")
cdef int ARGMAX_FORWARD = kernel_at(CU, b"argmax_forward")
cdef int SCAN_LINES = kernel_at(CU, b"scan_lines")
cdef int LOGSUMEXP_LINES = kernel_at(CU, b"logsumexp_lines")
cdef int LOGSUMEXP_LINES_BACKWARD = kernel_at(CU, b"logsumexp_lines_backward")
cdef GpuOp* op


cdef int max_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef float sign = <float>1
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, EXTREME_FORWARD, lines, length, lines, inner, length, outer, sign, c.x[0].v,
                           c.x[0].bstride, c.saved, c.y.v, 1)
    return launch_each(gpu, EXTREME_FORWARD, lines, lines, inner, length, outer, sign, c.x[0].v, c.x[0].bstride,
                       c.saved, c.y.v, 0)


cdef int max_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, lines = inner * outer * elements
    return launch_each(gpu, EXTREME_BACKWARD, lines, lines, inner, length, outer, uses, c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"max_dim", CU, max_dim_forward, max_dim_backward)


cdef int min_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef float sign = <float>(-1)
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, EXTREME_FORWARD, lines, length, lines, inner, length, outer, sign, c.x[0].v,
                           c.x[0].bstride, c.saved, c.y.v, 1)
    return launch_each(gpu, EXTREME_FORWARD, lines, lines, inner, length, outer, sign, c.x[0].v, c.x[0].bstride,
                       c.saved, c.y.v, 0)


op = gpu_op(b"min_dim", CU, min_dim_forward, max_dim_backward)


cdef int argmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    return launch_rows(gpu, ARGMAX_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.y.v)


op = gpu_op(b"argmax", CU, argmax_forward, NULL)


cdef int argmax_straight_through_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate)


op = gpu_op(b"argmax_straight_through", CU, argmax_forward, argmax_straight_through_backward)
needs_module(op, BASE)
op.assigns = True


cdef int cumsum_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, use_stride = size_of(&c.y.dim)
    if length == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, SCAN_LINES, lines, length, lines, inner, length, outer, 1, use_stride, 0, c.x[0].v,
                           c.x[0].bstride, c.y.v, 0, 1)
    return launch_each(gpu, SCAN_LINES, lines, lines, inner, length, outer, 1, use_stride, 0, c.x[0].v, c.x[0].bstride,
                       c.y.v, 0, 0)


cdef int cumsum_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, use_stride = size_of(&c.y.dim)
    if length == 0:
        return 0
    cdef size_t lines = inner * outer * elements, stride_x = use_stride
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, SCAN_LINES, lines, length, lines, inner, length, outer, uses, use_stride, 1, c.dy.v,
                           stride_x, c.dx.v, c.accumulate, 1)
    return launch_each(gpu, SCAN_LINES, lines, lines, inner, length, outer, uses, use_stride, 1, c.dy.v, stride_x,
                       c.dx.v, c.accumulate, 0)


op = gpu_op(b"cumsum", CU, cumsum_forward, cumsum_backward)
op.assigns = True


cdef int logsumexp_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, lines = inner * outer * batch
    if by_blocks(lines, length, inner == 1):
        return launch_rows(gpu, LOGSUMEXP_LINES, lines, length, lines, inner, length, outer, c.x[0].v, c.x[0].bstride,
                           c.y.v, c.saved, 1)
    return launch_each(gpu, LOGSUMEXP_LINES, lines, lines, inner, length, outer, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved, 0)


cdef int logsumexp_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, n = total_of(&c.dx.dim), lines = inner * s.post * elements
    return launch_each(gpu, LOGSUMEXP_LINES_BACKWARD, n, n, inner, length, uses, lines, c.x[0].v, c.saved, c.dy.v,
                       c.dx.v, c.accumulate)


op = gpu_op(b"logsumexp_dim", CU, logsumexp_dim_forward, logsumexp_dim_backward)
op.assigns = True
# end of launches
