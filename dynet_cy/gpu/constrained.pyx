"""Softmax with upper bounds."""

# derived: launches
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, rows_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"constrained")
cdef int CONSTRAINED_FORWARD = kernel_at(CU, b"constrained_forward")
cdef int CONSTRAINED_BACKWARD = kernel_at(CU, b"constrained_backward")
cdef GpuOp* op


cdef int constrained_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_rows(gpu, CONSTRAINED_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.saved, c.y.v)


cdef int constrained_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim)
    return launch_rows(gpu, CONSTRAINED_BACKWARD, elements, n, batch, n, i, c.saved, c.y.v, c.dy.v, c.dx.v,
                       c.dx.bstride)


op = gpu_op(b"constrained_softmax", CU, constrained_softmax_forward, constrained_softmax_backward)
# end of launches
