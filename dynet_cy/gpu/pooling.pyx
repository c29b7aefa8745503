"""Average and adaptive pooling."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.driver cimport THREADS, Gpu, GpuOp, blocks, launch, value_at
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.windows cimport Pooling, adaptive, sized

cdef int CU = module_at(b"pooling")
cdef int AVERAGE_FORWARD = kernel_at(CU, b"average_forward")
cdef int AVERAGE_BACKWARD = kernel_at(CU, b"average_backward")
cdef int GREATEST_FORWARD = kernel_at(CU, b"greatest_forward")
cdef int GREATEST_BACKWARD = kernel_at(CU, b"greatest_backward")


cdef int forward(Gpu* gpu, const Call* c, int kernel, const Pooling* p) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef unsigned across, planes
    if total_of(&c.y.dim) == 0:
        return 0
    across = blocks(gpu, (<size_t>p.out[0] * p.out[1] + THREADS - 1) // THREADS)
    planes = <unsigned>min(batch * p.channels, <size_t>65535)
    if kernel == AVERAGE_FORWARD:
        return launch(gpu, kernel, across, planes, THREADS, 0, batch, value_at(p), c.x[0].v, c.x[0].bstride, c.y.v)
    return launch(gpu, kernel, across, planes, THREADS, 0, batch, value_at(p), c.x[0].v, c.x[0].bstride, c.saved, c.y.v)


cdef int backward(Gpu* gpu, const Call* c, int kernel, const Pooling* p) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, own = c.dx.dim.bd
    cdef unsigned across, planes
    if total_of(&c.dx.dim) == 0:
        return 0
    across = blocks(gpu, (<size_t>p.inputs[0] * p.inputs[1] + THREADS - 1) // THREADS)
    planes = <unsigned>min(own * p.channels, <size_t>65535)
    if kernel == AVERAGE_BACKWARD:
        return launch(gpu, kernel, across, planes, THREADS, 0, batch, value_at(p), c.dy.v, own, c.dx.v, c.accumulate)
    return launch(gpu, kernel, across, planes, THREADS, 0, batch, value_at(p), c.saved, c.dy.v, own, c.dx.v,
                  c.accumulate)


cdef int avg_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Pooling p = sized(&c.x[0].dim, c.attrs)
    return forward(gpu, c, AVERAGE_FORWARD, &p)


cdef int avg_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = sized(&c.x[0].dim, c.attrs)
    return backward(gpu, c, AVERAGE_BACKWARD, &p)


cdef int adaptive_avg_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    return forward(gpu, c, AVERAGE_FORWARD, &p)


cdef int adaptive_avg_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    return backward(gpu, c, AVERAGE_BACKWARD, &p)


cdef int adaptive_max_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    return forward(gpu, c, GREATEST_FORWARD, &p)


cdef int adaptive_max_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    return backward(gpu, c, GREATEST_BACKWARD, &p)


cdef GpuOp* op = gpu_op(b"avgpooling2d", CU)
op.forward = avg_forward
op.backward = avg_backward
op.assigns = True

op = gpu_op(b"adaptive_avgpooling2d", CU)
op.forward = adaptive_avg_forward
op.backward = adaptive_avg_backward
op.assigns = True

op = gpu_op(b"adaptive_maxpooling2d", CU)
op.forward = adaptive_max_forward
op.backward = adaptive_max_backward
op.assigns = True
