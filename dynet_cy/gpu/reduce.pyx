"""Reductions."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.base cimport BASE, Axes, add_axis, contract, expand
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill
from dynet_cy.gpu.registry cimport gpu_op


# ---- sum: attributes: the axes, one bit each, and the batch ------------------------

cdef void axes_of(const Call* c, Axes* kept, Axes* reduced, Axes* back) noexcept nogil:
    """Axes of x that stay and that are summed over, with the strides of x; all of them with those of y.

    Where nodes that run together share x, each has a sum of its own: an axis of y that x has not.
    """
    cdef uint32_t k
    cdef uint32_t mask = c.attrs[0].u
    cdef size_t size, at = 1, to = 1
    kept.n = reduced.n = back.n = 0
    for k in range(c.x[0].dim.nd):
        size = c.x[0].dim.d[k]
        if mask >> k & 1:
            add_axis(reduced, size, at, 0, 0)
            add_axis(back, size, 0, 0, 0)
        else:
            add_axis(kept, size, at, 0, 0)
            add_axis(back, size, to, 0, 0)
            to *= size
        at *= size
    size = c.x[0].dim.bd
    if size == 1:
        add_axis(kept, c.y.dim.bd, 0, 0, 0)
    elif c.y.dim.bd == 1:
        add_axis(reduced, size, at, 0, 0)
        add_axis(back, size, 0, 0, 0)
    else:
        add_axis(kept, size, at, 0, 0)
        add_axis(back, size, to, 0, 0)


cdef int sum_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Axes kept, reduced, back
    if total_of(&c.x[0].dim) == 0:
        return fill(gpu, total_of(&c.y.dim), 0, c.y.v)
    axes_of(c, &kept, &reduced, &back)
    return contract(gpu, &kept, &reduced, 1, c.x[0].v, c.y.v, 0)


cdef int sum_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Axes kept, reduced, back
    cdef uint32_t k, uses = c.y.dim.bd if c.x[0].dim.bd == 1 else 1
    if total_of(&c.x[0].dim) == 0:
        return 0
    axes_of(c, &kept, &reduced, &back)
    for k in range(uses):
        expand(gpu, &back, 1, c.dy.v + k * c.dy.bstride, c.dx.v, c.accumulate or k > 0)
    return gpu.error


cdef GpuOp* op = gpu_op(b"sum", BASE)
op.forward = sum_forward
op.backward = sum_backward
op.assigns = True
