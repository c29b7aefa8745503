"""Tensors of three axes times vectors, and circular convolutions of vectors."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor, rows_of, size_of
from dynet_cy.gpu.base cimport BASE, Axes, axes_in, contract, expand, split_axes
from dynet_cy.gpu.driver cimport Gpu, GpuOp
from dynet_cy.gpu.linalg cimport multiply, multiply_backward_a, multiply_backward_b
from dynet_cy.gpu.registry cimport gpu_op


# ---- contract3d_1d: the tensor is used as a matrix with one column per index of its last axis ----

cdef Tensor as_matrix(const Tensor* x, size_t rows, size_t cols) noexcept nogil:
    cdef Tensor m = x[0]
    m.dim.d[0] = <uint32_t>rows
    m.dim.d[1] = <uint32_t>cols
    m.dim.nd = 2
    return m


cdef int contract_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef Tensor x = as_matrix(&c.x[0], n, rows_of(&c.x[1].dim)), z = as_matrix(&c.y, n, 1)
    cdef Axes axes
    if c.n == 3:
        axes_in(&c.y, &c.x[2], &axes)
        expand(gpu, &axes, 1, c.x[2].v, c.y.v, 0)
    return multiply(gpu, &x, &c.x[1], &z, c.n == 3)


cdef int contract_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef Tensor x, dz = as_matrix(&c.dy, n, 1)
    cdef Axes kept, reduced
    if i == 2:
        split_axes(&c.dy, &c.dx, &kept, &reduced)
        return contract(gpu, &kept, &reduced, 1, c.dy.v, c.dx.v, c.accumulate)
    x = as_matrix(&c.x[0] if i else &c.dx, n, rows_of(&c.x[1].dim))
    if i:
        return multiply_backward_b(gpu, &x, &dz, &c.dx, c.accumulate)
    return multiply_backward_a(gpu, &c.x[1], &dz, &x, c.accumulate)


cdef GpuOp* op
cdef bytes name
for name in (b"contract3d_1d", b"contract3d_1d_bias"):
    op = gpu_op(name, BASE, contract_forward, contract_backward)
    op.assigns = True


# derived: launches
from dynet_cy.gpu.driver cimport launch_each
from dynet_cy.gpu.registry cimport kernel_at, module_at

cdef int CU = module_at(b"contract")
cdef int CIRCULAR = kernel_at(CU, b"circular")


cdef int circ_conv_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_each(gpu, CIRCULAR, batch * n, batch, n, 0, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v,
                       batch, 0)


cdef int circ_conv_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), stride_a = c.x[1 - i].bstride
    cdef size_t stride_b = n
    return launch_each(gpu, CIRCULAR, elements * n, batch, n, 1, c.x[1 - i].v, stride_a, c.dy.v, stride_b, c.dx.v,
                       elements, c.accumulate)


op = gpu_op(b"circ_conv", CU, circ_conv_forward, circ_conv_backward)
op.assigns = True


cdef int circ_corr_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_each(gpu, CIRCULAR, batch * n, batch, n, 1, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v,
                       batch, 0)


cdef int circ_corr_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), stride_a = n
    cdef size_t stride_b = c.x[1 - i].bstride
    return launch_each(gpu, CIRCULAR, elements * n, batch, n, i == 0, c.dy.v, stride_a, c.x[1 - i].v, stride_b, c.dx.v,
                       elements, c.accumulate)


op = gpu_op(b"circ_corr", CU, circ_corr_forward, circ_corr_backward)
op.assigns = True
# end of launches
