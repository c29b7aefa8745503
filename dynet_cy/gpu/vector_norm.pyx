"""Norms of vectors."""

# derived: launches
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, size_of, total_of
from dynet_cy.gpu.base cimport Axes, axes_total
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, launch_each, launch_rows, value_at
from dynet_cy.gpu.reduce cimport by_blocks_over, reduction_axes, sharing
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"vector_norm")
cdef int NORM_FORWARD = kernel_at(CU, b"norm_forward")
cdef int NORM_BACKWARD = kernel_at(CU, b"norm_backward")
cdef int P_NORM_FORWARD = kernel_at(CU, b"p_norm_forward")
cdef int P_NORM_BACKWARD = kernel_at(CU, b"p_norm_backward")
cdef GpuOp* op


cdef int squared_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef int root = 0
    return launch_rows(gpu, NORM_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, root, c.y.v)


cdef int squared_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef int root = 0
    return launch_each(gpu, NORM_BACKWARD, elements * n, batch, n, c.x[0].v, root, c.y.v, c.dy.v, elements, c.dx.v,
                       c.accumulate)


op = gpu_op(b"squared_norm", CU, squared_norm_forward, squared_norm_backward)
op.assigns = True


cdef int l2_norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef int root = 1
    return launch_rows(gpu, NORM_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, root, c.y.v)


cdef int l2_norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef int root = 1
    return launch_each(gpu, NORM_BACKWARD, elements * n, batch, n, c.x[0].v, root, c.y.v, c.dy.v, elements, c.dx.v,
                       c.accumulate)


op = gpu_op(b"l2_norm", CU, l2_norm_forward, l2_norm_backward)
op.assigns = True


cdef int norm_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Axes kept, reduced, back
    reduction_axes(c, &kept, &reduced, &back)
    cdef float p = <float>c.attrs[1].f
    cdef size_t n = axes_total(&kept), terms = axes_total(&reduced)
    if total_of(&c.x[0].dim) == 0:
        return fill(gpu, total_of(&c.y.dim), 0, c.y.v)
    if by_blocks_over(&kept, &reduced):
        return launch_rows(gpu, P_NORM_FORWARD, n, terms, n, terms, value_at(&kept), value_at(&reduced), p, c.x[0].v,
                           c.saved, c.y.v, 1)
    return launch_each(gpu, P_NORM_FORWARD, n, n, terms, value_at(&kept), value_at(&reduced), p, c.x[0].v, c.saved,
                       c.y.v, 0)


cdef int norm_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Axes kept, reduced, back
    reduction_axes(c, &kept, &reduced, &back)
    cdef float p = <float>c.attrs[1].f
    cdef size_t n = total_of(&c.x[0].dim), uses = sharing(c), y_size = size_of(&c.y.dim)
    return launch_each(gpu, P_NORM_BACKWARD, n, n, value_at(&back), uses, y_size, p, c.x[0].v, c.saved, c.y.v, c.dy.v,
                       c.dx.v, c.accumulate)


op = gpu_op(b"norm", CU, norm_forward, norm_backward)
op.assigns = True
# end of launches
