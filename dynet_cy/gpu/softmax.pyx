"""Softmax and what belongs to it."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"softmax")


# ---- pickneglogsoftmax: the log-sum is kept ------------------------------------------

cdef int PICK_FORWARD = kernel_at(CU, b"pickneglogsoftmax_forward")
cdef int PICK_BACKWARD = kernel_at(CU, b"pickneglogsoftmax_backward")


cdef int pickneglogsoftmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), batch = c.y.dim.bd
    return launch_rows(gpu, PICK_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.kept, c.y.v)


cdef int pickneglogsoftmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), batch = c.y.dim.bd
    return launch_each(gpu, PICK_BACKWARD, n * c.dx.dim.bd, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.kept,
                       c.dy.v, c.dx.v, c.accumulate)


cdef GpuOp* op = gpu_op(b"pickneglogsoftmax", CU)
op.forward = pickneglogsoftmax_forward
op.backward = pickneglogsoftmax_backward
op.assigns = True
