"""Selections: elements, ranges, rows, columns, batch elements."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, element, size_of
from dynet_cy.gpu.base cimport BASE, Axes, no_axes, scaled
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, launch_each, launch_slices
from dynet_cy.gpu.inputs cimport CU as LOOKUP
from dynet_cy.gpu.inputs cimport add_rows, take_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, needs_module

cdef int CU = module_at(b"select")


cdef int LISTED_FORWARD = kernel_at(CU, b"listed_forward")
cdef int LISTED_BACKWARD = kernel_at(CU, b"listed_backward")


# ---- scatter_rows: the inverse of select_rows, with forward and backward exchanged -------

cdef int scatter_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = c.item_count, size = size_of(&c.y.dim)
    cdef uint32_t b
    fill(gpu, size * c.y.dim.bd, 0, c.y.v)
    for b in range(c.y.dim.bd):
        launch_slices(gpu, LISTED_BACKWARD, 1, n, <size_t>1, n, <size_t>1, n, size, c.items + b * n,
                      element(&c.x[0], b), element(&c.y, b), <size_t>0, <float**>NULL)
    return gpu.error


cdef int scatter_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = c.item_count, size = size_of(&c.y.dim), total = n * c.y.dim.bd
    cdef uint32_t b
    launch_each(gpu, LISTED_FORWARD, total, <size_t>c.y.dim.bd, n, <size_t>1, n, size, c.items, c.dy.v, size,
                <float**>NULL, c.work)
    for b in range(c.y.dim.bd):
        scaled(gpu, n, 1, c.work + b * n, element(&c.dx, b), 1)
    return gpu.error


cdef size_t scatter_work(const Call* c, int i) noexcept nogil:
    return <size_t>c.item_count * c.y.dim.bd if i >= 0 else 0


cdef GpuOp* op = gpu_op(b"scatter_rows", CU, scatter_forward, scatter_backward)
needs_module(op, BASE)
op.work = scatter_work


# ---- pick_batch_elems: rows of a table whose rows are the batch elements of x -------------

cdef int pick_batch_elems_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return take_rows(gpu, c.y.dim.bd, size_of(&c.y.dim), 1, c.x[0].v, c.items, c.y.v)


cdef int pick_batch_elems_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return add_rows(gpu, c.y.dim.bd, size_of(&c.y.dim), c.items, c.dy.v, c.dx.v)


op = gpu_op(b"pick_batch_elems", LOOKUP, pick_batch_elems_forward, pick_batch_elems_backward)


# ---- strided_select ---------------------------------------------------------------------

cdef void strided_axes(const Call* c, Axes* axes) noexcept nogil:
    """The axes of y with the strides of x in array 0, and with the sizes of x in place of the strides of array 1.

    Axes of size 1 are kept, since the kernel needs every axis.
    """
    cdef size_t stride = 1
    cdef uint32_t k
    no_axes(axes)
    axes.n = c.y.dim.nd
    for k in range(axes.n):
        axes.size[k] = c.y.dim.d[k]
        axes.stride[0][k] = stride
        axes.stride[1][k] = c.x[0].dim.d[k]
        axes.stride[2][k] = 0
        stride *= c.x[0].dim.d[k]


# derived: launches
from dynet_cy.gpu.driver cimport value_at
from dynet_cy.ops.axes cimport Split, split_at

cdef int RANGE_FORWARD = kernel_at(CU, b"range_forward")
cdef int RANGE_BACKWARD = kernel_at(CU, b"range_backward")
cdef int STRIDED_FORWARD = kernel_at(CU, b"strided_forward")
cdef int STRIDED_BACKWARD = kernel_at(CU, b"strided_backward")


cdef int pick_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = size_of(&c.y.dim), pre = s.pre, column = pre * s.len
    if n == 0:
        return 0
    cdef size_t len = n // (pre * s.post)
    return launch_each(gpu, RANGE_FORWARD, batch * n, batch, n, pre, len, column, c.items, c.x[0].v, c.x[0].bstride,
                       c.x[0].list, c.y.v)


cdef int pick_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = size_of(&c.y.dim), pre = s.pre, column = pre * s.len
    if n == 0:
        return 0
    cdef size_t len = n // (pre * s.post)
    return launch_slices(gpu, RANGE_BACKWARD, batch, n, batch, n, pre, len, column, c.items, c.dy.v, c.dx.v,
                         c.dx.bstride, c.dx.list)


op = gpu_op(b"pick", CU, pick_forward, pick_backward)

op = gpu_op(b"pick_range", CU, pick_forward, pick_backward)


cdef int select_rows_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = size_of(&c.y.dim), pre = s.pre, column = pre * s.len
    if n == 0:
        return 0
    cdef size_t count = n // (pre * s.post)
    return launch_each(gpu, LISTED_FORWARD, batch * n, batch, n, pre, count, column, c.items, c.x[0].v, c.x[0].bstride,
                       c.x[0].list, c.y.v)


cdef int select_rows_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = size_of(&c.y.dim), pre = s.pre, column = pre * s.len
    if n == 0:
        return 0
    cdef size_t count = n // (pre * s.post)
    return launch_slices(gpu, LISTED_BACKWARD, batch, n, batch, n, pre, count, column, c.items, c.dy.v, c.dx.v,
                         c.dx.bstride, c.dx.list)


op = gpu_op(b"select_rows", CU, select_rows_forward, select_rows_backward)

op = gpu_op(b"select_cols", CU, select_rows_forward, select_rows_backward)


cdef int strided_select_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef Axes axes
    strided_axes(c, &axes)
    return launch_each(gpu, STRIDED_FORWARD, batch * n, batch, n, value_at(&axes), c.items, c.x[0].v, c.x[0].bstride,
                       c.y.v)


cdef int strided_select_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef Axes axes
    strided_axes(c, &axes)
    if n == 0:
        return 0
    return launch_slices(gpu, STRIDED_BACKWARD, batch, n, batch, n, value_at(&axes), c.items, c.dy.v, c.dx.v,
                         c.dx.bstride)


op = gpu_op(b"strided_select", CU, strided_select_forward, strided_select_backward)
# end of launches
