"""Batch normalization: channels normalized by the statistics of a minibatch."""

# derived: launches
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
cdef GpuOp* op


cdef int batch_moments_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post, elements = batch, uses = c.x[0].dim.bd // batch
    return launch_rows(gpu, MOMENTS_FORWARD, elements * channels, uses * pre * post, elements, uses, pre, channels,
                       post, c.x[0].v, c.y.v)


cdef int batch_moments_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post, elements = batch, uses = c.x[0].dim.bd // batch
    return launch_each(gpu, MOMENTS_BACKWARD, total_of(&c.x[0].dim), elements, uses, pre, channels, post, c.x[0].v,
                       c.y.v, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"batch_moments", CU, batch_moments_forward, batch_moments_backward)
op.assigns = True


cdef int channel_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post
    cdef float eps = <float>c.attrs[1].f
    return launch_each(gpu, CHANNEL_FORWARD, total_of(&c.y.dim), batch, pre, channels, post, eps, c.x[0].v,
                       c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride,
                       c.x[4].v, c.x[4].bstride, c.y.v)


cdef int channel_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t pre = s.pre, channels = s.len, post = s.post
    cdef float eps = <float>c.attrs[1].f
    cdef size_t n = total_of(&c.dx.dim)
    if i == 0:
        return launch_each(gpu, CHANNEL_BACKWARD_X, n, batch, pre, channels, post, eps, c.x[2].v, c.x[2].bstride,
                           c.x[3].v, c.x[3].bstride, c.dy.v, elements, c.dx.v, c.accumulate)
    return launch_rows(gpu, CHANNEL_BACKWARD, n, batch // elements * pre * post, batch, pre, channels, post, eps, i,
                       c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v,
                       c.x[3].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"channel_norm", CU, channel_norm_forward, channel_norm_backward)
op.assigns = True
# end of launches
