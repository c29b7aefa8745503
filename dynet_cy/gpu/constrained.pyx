"""Softmax with upper bounds."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, rows_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"constrained")
cdef int FORWARD = kernel_at(CU, b"constrained_forward")
cdef int BACKWARD = kernel_at(CU, b"constrained_backward")


cdef int forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_rows(gpu, FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.saved,
                       c.y.v)


cdef int backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), batch = c.y.dim.bd
    if n == 0:
        return 0
    return launch_rows(gpu, BACKWARD, c.dx.dim.bd, n, batch, n, i, c.saved, c.y.v, c.dy.v, c.dx.v, c.dx.bstride)


cdef GpuOp* op = gpu_op(b"constrained_softmax", CU)
op.forward = forward
op.backward = backward
