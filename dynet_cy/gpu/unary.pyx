"""Elementwise functions of one argument: kernels from the rows of unary.def."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.base cimport BASE, scaled
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, needs_module
from dynet_cy.kernels.kernels cimport DY_UNARY_COUNT
from dynet_cy.ops.registry cimport MAX_OPS
from dynet_cy.ops.unary cimport THROUGH, UNARY

cdef int CU = module_at(b"unary")
# Kernels by number of the op.
cdef int[MAX_OPS] FORWARD
cdef int[MAX_OPS] BACKWARD


cdef int forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    return launch_each(gpu, FORWARD[gpu.op], n, n, c.x[0].v, c.attrs[0].f, c.attrs[1].f, c.y.v)


cdef int backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    return launch_each(gpu, BACKWARD[gpu.op], n, n, c.x[0].v, c.y.v, c.dy.v, c.attrs[0].f, c.attrs[1].f, c.dx.v,
                       c.accumulate)


cdef int straight_through(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return scaled(gpu, total_of(&c.dx.dim), 1, c.dy.v, c.dx.v, c.accumulate)


cdef int which
cdef GpuOp* op
for which in range(DY_UNARY_COUNT):
    op = gpu_op(UNARY[which].name, CU, forward, backward)
    op.assigns = True
    FORWARD[UNARY[which].id] = kernel_at(CU, b"unary_forward_" + UNARY[which].name)
    BACKWARD[UNARY[which].id] = kernel_at(CU, b"unary_backward_" + UNARY[which].name)
    if THROUGH[which] != NULL:
        op = gpu_op(THROUGH[which].name, CU, forward, straight_through)
        needs_module(op, BASE)
        op.assigns = True
        FORWARD[THROUGH[which].id] = FORWARD[UNARY[which].id]
