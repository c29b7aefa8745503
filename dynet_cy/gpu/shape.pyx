"""Shapes: copies, transpose, concatenate; and ops that only change the gradient."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Tensor, axis_of, size_of, total_of
from dynet_cy.gpu.base cimport BASE, Axes, add_axis, contract, expand, no_axes, scaled
from dynet_cy.gpu.driver cimport THREADS, Gpu, GpuOp, blocks, launch, launch_slices, value_at
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, needs_module
from dynet_cy.ops.axes cimport Split, split_at

cdef extern from "dynet_cy/gpu_parts.h" nogil:
    ctypedef struct Part "dy_piece":
        float* v
        size_t bstride
        float** list
        size_t start
        size_t m

    ctypedef struct Parts "dy_parts":
        Part* part
    int PARTS "DY_PARTS"

cdef int CU = module_at(b"shape")


# ---- reshape, nobackprop, flip_gradient, scale_gradient: y has the elements of x --------

cdef int copy_forward(Gpu* gpu, const Call* c) noexcept nogil:
    """y has the elements of x in the same order, repeated if several nodes share x."""
    cdef size_t n = total_of(&c.x[0].dim), total = total_of(&c.y.dim)
    cdef Axes axes
    if total == n or total == 0:
        return scaled(gpu, total, 1, c.x[0].v, c.y.v, 0)
    no_axes(&axes)
    add_axis(&axes, n, 1, 0, 0)
    add_axis(&axes, total // n, 0, 0, 0)
    return expand(gpu, &axes, 1, c.x[0].v, c.y.v, 0)


cdef int pass_scaled(Gpu* gpu, const Call* c, float scale) noexcept nogil:
    cdef size_t n = total_of(&c.dx.dim), total = total_of(&c.y.dim)
    cdef Axes kept, reduced
    if total == n or total == 0:
        return scaled(gpu, total, scale, c.dy.v, c.dx.v, c.accumulate)
    no_axes(&kept)
    no_axes(&reduced)
    add_axis(&kept, n, 1, 0, 0)
    add_axis(&reduced, total // n, n, 0, 0)
    return contract(gpu, &kept, &reduced, scale, c.dy.v, c.dx.v, c.accumulate)


cdef int copy_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, c, 1)


cdef int flip_gradient_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, c, -1)


cdef int scale_gradient_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, c, c.attrs[0].f)


cdef GpuOp* op = gpu_op(b"reshape", BASE, copy_forward, copy_backward)
op.assigns = True

op = gpu_op(b"nobackprop", BASE, copy_forward, NULL)

op = gpu_op(b"flip_gradient", BASE, copy_forward, flip_gradient_backward)
op.assigns = True

op = gpu_op(b"scale_gradient", BASE, copy_forward, scale_gradient_backward)
op.assigns = True


# ---- transpose: octal digit i of attribute 0 is the axis of x that is axis i of y -------

cdef int TRANSPOSE = kernel_at(CU, b"turn_forward")


cdef uint32_t place_in_y(uint32_t dims, uint32_t n, uint32_t axis) noexcept nogil:
    """The axis of y that corresponds to an axis of x; 7 if there is none."""
    cdef uint32_t k
    for k in range(n):
        if (dims >> 3 * k & 7) == axis:
            return k
    return 7


cdef int transposed(Gpu* gpu, const Axes* axes, size_t count, const float* x, size_t bstride, float* y,
                    int acc) noexcept nogil:
    """Copy x to y in the order of `axes`, the axes of y with their strides in x, for each of `count` batch elements."""
    cdef size_t m, n
    cdef Axes all = axes[0]
    if axes.n == 2 and axes.stride[0][1] == 1 and axes.stride[0][0] == axes.size[1]:
        m = axes.size[1]
        n = axes.size[0]
        return launch(gpu, TRANSPOSE, blocks(gpu, (m + 31) // 32 * ((n + 31) // 32) * count), 1, THREADS, 0,
                      m, n, count, x, bstride, y, acc)
    add_axis(&all, count, bstride, 0, 0)
    return expand(gpu, &all, 1, x, y, acc)


cdef int transpose_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t[8] steps
    cdef size_t step = 1
    cdef uint32_t k
    cdef Axes axes
    if total_of(&c.y.dim) == 0:
        return 0
    for k in range(7):
        steps[k] = step
        step *= axis_of(&c.x[0].dim, k)
    no_axes(&axes)
    for k in range(c.y.dim.nd):
        add_axis(&axes, c.y.dim.d[k], steps[c.attrs[0].u >> 3 * k & 7], 0, 0)
    return transposed(gpu, &axes, c.y.dim.bd, c.x[0].v, c.x[0].bstride, c.y.v, 0)


cdef int transpose_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t[8] steps
    cdef size_t step = 1
    cdef uint32_t k
    cdef Axes axes, batch
    if total_of(&c.y.dim) == 0:
        return 0
    for k in range(7):
        steps[k] = step
        step *= axis_of(&c.y.dim, k)
    steps[7] = step
    no_axes(&axes)
    no_axes(&batch)
    for k in range(c.dx.dim.nd):
        add_axis(&axes, c.dx.dim.d[k], steps[place_in_y(c.attrs[0].u, c.attrs[1].u, k)], 0, 0)
    if c.dx.dim.bd == c.y.dim.bd:
        return transposed(gpu, &axes, c.y.dim.bd, c.dy.v, c.dy.bstride, c.dx.v, c.accumulate)
    add_axis(&batch, c.y.dim.bd, size_of(&c.y.dim), 0, 0)
    return contract(gpu, &axes, &batch, 1, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"transpose", CU, transpose_forward, transpose_backward)
needs_module(op, BASE)
op.assigns = True


# ---- concatenate, concatenate_to_batch: arguments side by side -----------------------------

cdef int PARTS_FORWARD = kernel_at(CU, b"parts_forward")
cdef int PART_BACKWARD = kernel_at(CU, b"part_backward")


cdef size_t part_size(const Tensor* x, const Split* s) noexcept nogil:
    """How many numbers of an argument are in each column of the result."""
    return size_of(&x.dim) // s.post


cdef int lay_parts(Gpu* gpu, const Call* c, const Split* s, size_t batch) noexcept nogil:
    """Lay the arguments side by side along the middle axis of y; with `batch` 0, whole arguments with their batches."""
    cdef Parts parts
    cdef Part* part
    cdef uint32_t k, n = 0
    cdef size_t start = 0, longest = 0, rows = max(batch, <size_t>1)
    memset(&parts, 0, sizeof(Parts))
    for k in range(c.n):
        part = &parts.part[n]
        part.v = c.x[k].v
        part.bstride = c.x[k].bstride
        part.list = <float**>c.x[k].list
        part.start = start
        part.m = part_size(&c.x[k], s) if batch else total_of(&c.x[k].dim)
        start += part.m
        longest = max(longest, part.m)
        n += part.m > 0
        if n and (n == <uint32_t>PARTS or k + 1 == c.n):
            launch(gpu, PARTS_FORWARD, blocks(gpu, (longest * s.post * rows + THREADS - 1) // THREADS), n, THREADS, 0,
                   rows, s.post, s.pre * s.len, value_at(&parts), n, c.y.v)
            n = 0
            longest = 0
    return gpu.error


cdef int concatenate_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    return lay_parts(gpu, c, &s, c.y.dim.bd) if total_of(&c.y.dim) else 0


cdef int concatenate_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t batch = c.y.dim.bd, m
    if total_of(&c.dx.dim) == 0:
        return 0
    m = part_size(&c.dx, &s)
    return launch_slices(gpu, PART_BACKWARD, batch, m * s.post, batch, s.post, s.pre * s.len, s.pre * c.before, m,
                         c.dy.v, c.dx.v, c.dx.bstride, c.dx.list, c.accumulate)


op = gpu_op(b"concatenate", CU, concatenate_forward, concatenate_backward)
op.assigns = True


cdef int concatenate_to_batch_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s
    s.pre = s.post = 1
    s.len = total_of(&c.y.dim)
    return lay_parts(gpu, c, &s, 0)


cdef int concatenate_to_batch_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return scaled(gpu, total_of(&c.dx.dim), 1, c.dy.v + c.before, c.dx.v, c.accumulate)


op = gpu_op(b"concatenate_to_batch", CU, concatenate_to_batch_forward, concatenate_to_batch_backward)
needs_module(op, BASE)
op.assigns = True


# ---- fold_rows: sums of n consecutive rows.  Attributes: n ---------------------------------------

cdef int fold_rows_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = c.attrs[0].u, size = size_of(&c.y.dim)
    cdef Axes kept, reduced
    no_axes(&kept)
    no_axes(&reduced)
    add_axis(&reduced, n, 1, 0, 0)
    add_axis(&kept, size, n, 0, 0)
    add_axis(&kept, c.y.dim.bd, c.x[0].bstride, 0, 0)
    return contract(gpu, &kept, &reduced, 1, c.x[0].v, c.y.v, 0)


cdef int fold_rows_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = c.attrs[0].u, size = size_of(&c.y.dim)
    cdef Axes kept, reduced
    no_axes(&kept)
    no_axes(&reduced)
    add_axis(&kept, n, 0, 0, 0)
    add_axis(&kept, size, 1, 0, 0)
    add_axis(&reduced if c.dx.dim.bd == 1 else &kept, c.y.dim.bd, size, 0, 0)
    return contract(gpu, &kept, &reduced, 1, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"fold_rows", BASE, fold_rows_forward, fold_rows_backward)
op.assigns = True
