"""Batch normalization: channels normalized by the statistics of a minibatch."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.axes cimport Split, split_at

cdef int CU = module_at(b"batch_norm")
cdef int MOMENTS_FORWARD = kernel_at(CU, b"moments_forward")
cdef int MOMENTS_BACKWARD = kernel_at(CU, b"moments_backward")
cdef int CHANNEL_FORWARD = kernel_at(CU, b"channel_forward")
cdef int CHANNEL_BACKWARD_X = kernel_at(CU, b"channel_backward_x")
cdef int CHANNEL_BACKWARD = kernel_at(CU, b"channel_backward")


# ---- batch_moments: attribute: axis -------------------------------------------------------

cdef int moments_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t own = c.y.dim.bd, uses = c.x[0].dim.bd // own
    return launch_rows(gpu, MOMENTS_FORWARD, own * s.len, uses * s.pre * s.post, own, uses, s.pre, s.len, s.post,
                       c.x[0].v, c.y.v)


cdef int moments_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t own = c.y.dim.bd, uses = c.x[0].dim.bd // own
    return launch_each(gpu, MOMENTS_BACKWARD, total_of(&c.x[0].dim), own, uses, s.pre, s.len, s.post, c.x[0].v, c.y.v,
                       c.dy.v, c.dx.v, c.accumulate)


cdef GpuOp* op = gpu_op(b"batch_moments", CU)
op.forward = moments_forward
op.backward = moments_backward
op.assigns = True


# ---- channel_norm: attributes: axis, eps ----------------------------------------------------

cdef int channel_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = total_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_each(gpu, CHANNEL_FORWARD, n, batch, s.pre, s.len, s.post, c.attrs[1].f, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride, c.x[4].v,
                       c.x[4].bstride, c.y.v)


cdef int channel_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = total_of(&c.dx.dim), batch = c.y.dim.bd, own = c.dx.dim.bd
    if n == 0:
        return 0
    if i == 0:
        return launch_each(gpu, CHANNEL_BACKWARD_X, n, batch, s.pre, s.len, s.post, c.attrs[1].f, c.x[2].v,
                           c.x[2].bstride, c.x[3].v, c.x[3].bstride, c.dy.v, own, c.dx.v, c.accumulate)
    return launch_rows(gpu, CHANNEL_BACKWARD, n, batch // own * s.pre * s.post, batch, s.pre, s.len, s.post,
                       c.attrs[1].f, <int>i, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v,
                       c.x[2].bstride, c.x[3].v, c.x[3].bstride, c.dy.v, own, c.dx.v, c.accumulate)


op = gpu_op(b"channel_norm", CU)
op.forward = channel_forward
op.backward = channel_backward
op.assigns = True
