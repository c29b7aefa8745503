"""Average and adaptive pooling."""

# derived: launches
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.driver cimport THREADS, Gpu, GpuOp, across, launch, planes, value_at
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.windows cimport Pooling, adaptive, sized

cdef int CU = module_at(b"pooling")
cdef int AVERAGE_FORWARD = kernel_at(CU, b"average_forward")
cdef int AVERAGE_BACKWARD = kernel_at(CU, b"average_backward")
cdef int GREATEST_FORWARD = kernel_at(CU, b"greatest_forward")
cdef int GREATEST_BACKWARD = kernel_at(CU, b"greatest_backward")
cdef GpuOp* op


cdef int avgpooling2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Pooling w = sized(&c.x[0].dim, c.attrs)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch(gpu, AVERAGE_FORWARD, across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels), THREADS,
                  0, batch, value_at(&w), c.x[0].v, c.x[0].bstride, c.y.v)


cdef int avgpooling2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Pooling w = sized(&c.x[0].dim, c.attrs)
    if total_of(&c.dx.dim) == 0:
        return 0
    return launch(gpu, AVERAGE_BACKWARD, across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels),
                  THREADS, 0, batch, value_at(&w), c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"avgpooling2d", CU, avgpooling2d_forward, avgpooling2d_backward)
op.assigns = True


cdef int adaptive_avgpooling2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Pooling w = adaptive(&c.x[0].dim, c.attrs)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch(gpu, AVERAGE_FORWARD, across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels), THREADS,
                  0, batch, value_at(&w), c.x[0].v, c.x[0].bstride, c.y.v)


cdef int adaptive_avgpooling2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Pooling w = adaptive(&c.x[0].dim, c.attrs)
    if total_of(&c.dx.dim) == 0:
        return 0
    return launch(gpu, AVERAGE_BACKWARD, across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels),
                  THREADS, 0, batch, value_at(&w), c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"adaptive_avgpooling2d", CU, adaptive_avgpooling2d_forward, adaptive_avgpooling2d_backward)
op.assigns = True


cdef int adaptive_maxpooling2d_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Pooling w = adaptive(&c.x[0].dim, c.attrs)
    if total_of(&c.y.dim) == 0:
        return 0
    return launch(gpu, GREATEST_FORWARD, across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels), THREADS,
                  0, batch, value_at(&w), c.x[0].v, c.x[0].bstride, c.saved, c.y.v)


cdef int adaptive_maxpooling2d_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Pooling w = adaptive(&c.x[0].dim, c.attrs)
    if total_of(&c.dx.dim) == 0:
        return 0
    return launch(gpu, GREATEST_BACKWARD, across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels),
                  THREADS, 0, batch, value_at(&w), c.saved, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"adaptive_maxpooling2d", CU, adaptive_maxpooling2d_forward, adaptive_maxpooling2d_backward)
op.assigns = True
# end of launches
