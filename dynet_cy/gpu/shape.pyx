"""Shapes and selections: copies, transpose, concatenate; rows of tables, elements, ranges, rows, columns; sorting."""

from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport Attr, Call, Dim, Tensor, axis_of, element, size_of, total_of
from dynet_cy.gpu.driver cimport (
    THREADS, Address, Gpu, GpuOp, blocks, enter, fetch_bytes, fill, launch, launch_each, launch_rows, launch_slices,
    leave, opened_gpu, set_error, value_at, wait,
)
from dynet_cy.gpu.lazy cimport read_rows
from dynet_cy.gpu.positions cimport CU_POSITIONS, NO_ROW, find_places, find_positions
from dynet_cy.gpu.refused cimport refused_of
from dynet_cy.gpu.registry cimport (
    BASE, Axes, add_axis, contract, expand, gpu_op, kernel_at, module_at, needs_module, no_axes, scaled,
)
from dynet_cy.memory.storage cimport Param, note_gradient, touch
from dynet_cy.ops.loops cimport Split, split_at
from dynet_cy.ops.select cimport OWN_POSITIONS
from dynet_cy.ops.shape cimport is_along_last_axis

cdef int CU_LOOKUP                                     # the module of kernels


cdef GpuOp* op


# ==== shape =======================================================================================
#
# Shapes: copies, transpose, concatenate; and ops that only change the gradient.

cdef extern from "dynet_cy/gpu_parts.h" nogil:
    # derived: structs of Piece, Parts
    ctypedef struct Piece "dy_piece":
        float* v
        size_t bstride
        float* const* list
        size_t start
        size_t m

    ctypedef struct Parts "dy_parts":
        Piece part[32]
    # end of structs

    int PARTS "DY_PARTS"

cdef int CU_SHAPE = module_at(b"shape")


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


cdef bint always(const Dim* y, const Attr* attrs) noexcept nogil:
    return True


op = gpu_op(b"reshape", BASE, copy_forward, copy_backward)
op.laid = always
op.assigns = True

op = gpu_op(b"nobackprop", BASE, copy_forward, NULL)

op = gpu_op(b"flip_gradient", BASE, copy_forward, flip_gradient_backward)
op.assigns = True

op = gpu_op(b"scale_gradient", BASE, copy_forward, scale_gradient_backward)
op.assigns = True


# ---- transpose: octal digit i of attribute 0 is the axis of x that is axis i of y -------

cdef int TRANSPOSE = kernel_at(CU_SHAPE, b"turn_forward")


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


cdef bint is_one_line(const Dim* y, const Attr* attrs) noexcept nogil:
    """Whether one axis has all elements, so that the order of axes makes no difference."""
    cdef uint32_t k, lines = 0
    for k in range(y.nd):
        lines += y.d[k] != 1
    return lines <= 1


op = gpu_op(b"transpose", CU_SHAPE, transpose_forward, transpose_backward)
op.laid = is_one_line
needs_module(op, BASE)
op.assigns = True


# ---- concatenate, concatenate_to_batch: arguments side by side -----------------------------

cdef int PARTS_FORWARD = kernel_at(CU_SHAPE, b"parts_forward")
cdef int PART_BACKWARD = kernel_at(CU_SHAPE, b"part_backward")


cdef size_t part_size(const Tensor* x, const Split* s) noexcept nogil:
    """How many numbers of an argument are in each column of the result."""
    return size_of(&x.dim) // s.post


cdef int lay_parts(Gpu* gpu, const Call* c, const Split* s, size_t batch) noexcept nogil:
    """Lay the arguments side by side along the middle axis of y; with `batch` 0, whole arguments with their batches."""
    cdef Parts parts
    cdef Piece* part
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


op = gpu_op(b"concatenate", CU_SHAPE, concatenate_forward, concatenate_backward)
op.assigns = True
op.lists = True
op.laid = is_along_last_axis


cdef int concatenate_to_batch_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s
    s.pre = s.post = 1
    s.len = total_of(&c.y.dim)
    return lay_parts(gpu, c, &s, 0)


cdef int concatenate_to_batch_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return scaled(gpu, total_of(&c.dx.dim), 1, c.dy.v + c.before, c.dx.v, c.accumulate)


op = gpu_op(b"concatenate_to_batch", CU_SHAPE, concatenate_to_batch_forward, concatenate_to_batch_backward)
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


# ==== inputs ======================================================================================
#
# Leaves: rows of tables.  Inputs and parameters have nothing to compute.

CU_LOOKUP = module_at(b"lookup")
cdef int LOOKUP_FORWARD = kernel_at(CU_LOOKUP, b"lookup_forward")
cdef int LOOKUP_BACKWARD = kernel_at(CU_LOOKUP, b"lookup_backward")
cdef int LOOKUP_UNORDERED = kernel_at(CU_LOOKUP, b"lookup_backward_unordered")

# With more rows than this, searching for equal row numbers costs more than the addition.
cdef enum:
    MOST_ORDERED = 8192
    PART = 256                  # MOST of the kernel


# y_b = factor table[items_b], rows of n numbers.
cdef int gather_rows(Gpu* gpu, size_t rows, size_t n, float factor, const float* table, const uint32_t* items,
                     float* y) noexcept nogil:
    return launch_each(gpu, LOOKUP_FORWARD, rows * n, rows, n, factor, table, items, y) if rows * n else 0


# table[items_b] += dy_b.
cdef int add_rows(Gpu* gpu, size_t rows, size_t n, const uint32_t* items, const float* dy, float* table) noexcept nogil:
    if rows * n == 0:
        return 0
    if rows > MOST_ORDERED:
        return launch_slices(gpu, LOOKUP_UNORDERED, (rows + PART - 1) // PART, PART * n, rows, n, items, dy, table)
    return launch_rows(gpu, LOOKUP_BACKWARD, rows, n, rows, n, items, dy, table)


cdef int lookup_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    if p.lazy != NULL and p.lazy.n:
        return read_rows(gpu, p, c.y.dim.bd, c.items, 0, c.y.v)
    return gather_rows(gpu, c.y.dim.bd, size_of(&p.dim), 1, p.device_value, c.items, c.y.v)


cdef void lookup_note(const Call* c, const uint32_t* items) noexcept nogil:
    """Note which rows get a gradient."""
    cdef Param* p = <Param*>c.object
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        touch(p, items[b])


cdef int lookup_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Param* p = <Param*>c.object
    return add_rows(gpu, c.y.dim.bd, size_of(&p.dim), c.items, c.dy.v, p.device_grad)


op = gpu_op(b"lookup", CU_LOOKUP, lookup_forward, lookup_backward)
op.note = lookup_note


# ---- rows whose numbers are values of the graph: forward saves them as items -------------------

cdef int lookup_at_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t rows = total_of(&c.x[0].dim)
    cdef uint32_t* items = <uint32_t*>c.saved
    find_positions(gpu, c, &c.x[0], p.rows, <uint32_t>NO_ROW, items)
    if p.lazy != NULL and p.lazy.n:
        return read_rows(gpu, p, rows, items, 0, c.y.v)
    return gather_rows(gpu, rows, size_of(&p.dim), 1, p.device_value, items, c.y.v)


cdef void lookup_at_note(const Call* c, const uint32_t* items) noexcept nogil:
    """Note which rows get a gradient.  The trainer's list is on the host, so their numbers are fetched."""
    cdef Param* p = <Param*>c.object
    cdef size_t n = total_of(&c.x[0].dim), k
    cdef uint32_t* rows = <uint32_t*>malloc(n * sizeof(uint32_t))
    cdef Gpu* gpu = opened_gpu(p.device - 1)
    if rows == NULL or enter(gpu):
        note_gradient(p)                            # more rows than needed, rather than too few
        free(rows)
        return
    fetch_bytes(gpu, rows, <Address><uintptr_t>c.saved, n * sizeof(uint32_t))
    wait(gpu)
    for k in range(n):
        if rows[k] < p.rows:
            touch(p, rows[k])
    free(rows)
    set_error(gpu, leave(gpu))                      # the pass reports it


cdef int lookup_at_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Param* p = <Param*>c.object
    if i < c.n:                                     # none flows to an index
        return 0
    return add_rows(gpu, total_of(&c.x[0].dim), size_of(&p.dim), <const uint32_t*>c.saved, c.dy.v, p.device_grad)


op = gpu_op(b"lookup_at", CU_LOOKUP, lookup_at_forward, lookup_at_backward)
needs_module(op, CU_POSITIONS)
op.note = lookup_at_note


# ==== select ======================================================================================
#
# Selections: elements, ranges, rows, columns, batch elements.

cdef int CU_SELECT = module_at(b"select")


cdef int LISTED_FORWARD = kernel_at(CU_SELECT, b"listed_forward")
cdef int LISTED_BACKWARD = kernel_at(CU_SELECT, b"listed_backward")


# ---- select_rows, select_cols; scatter_rows, scatter_cols, with forward and backward exchanged ----

cdef int read_listed(Gpu* gpu, size_t batch, const Split* s, size_t count, const uint32_t* items, const float* x,
                     size_t stride, float** list, float* y) noexcept nogil:
    """y = the listed ones of pre x len x post numbers x, along the middle axis."""
    cdef size_t n = s.pre * count * s.post
    return launch_each(gpu, LISTED_FORWARD, batch * n, batch, n, s.pre, count, s.pre * s.len, items, x, stride, list, y)


cdef int add_listed(Gpu* gpu, size_t batch, const Split* s, size_t count, const uint32_t* items, const float* y,
                    float* x, size_t stride, float** list) noexcept nogil:
    """The listed ones of x += y."""
    cdef size_t n = s.pre * count * s.post, j
    if batch > 1 or list != NULL or count <= MOST_ORDERED:
        return launch_slices(gpu, LISTED_BACKWARD, batch, n, batch, n, s.pre, count, s.pre * s.len, items, y, x, stride,
                             list)
    for j in range(s.post):
        add_rows(gpu, count, s.pre, items, y + j * count * s.pre, x + j * s.len * s.pre)
    return gpu.error


cdef int scatter_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = c.item_count
    cdef uint32_t b
    fill(gpu, total_of(&c.y.dim), 0, c.y.v)
    for b in range(c.y.dim.bd):
        add_listed(gpu, 1, &s, n, c.items + b * n, element(&c.x[0], b), element(&c.y, b), 0, NULL)
    return gpu.error


cdef int scatter_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    read_listed(gpu, c.y.dim.bd, &s, c.item_count, c.items, c.dy.v, size_of(&c.y.dim), NULL, c.work)
    for b in range(c.y.dim.bd):
        scaled(gpu, n, 1, c.work + b * n, element(&c.dx, b), 1)
    return gpu.error


cdef size_t scatter_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.x[0].dim) * c.y.dim.bd if i >= 0 else 0


for name in (b"scatter_rows", b"scatter_cols"):
    op = gpu_op(name, CU_SELECT, scatter_forward, scatter_backward)
    needs_module(op, BASE)
    needs_module(op, CU_LOOKUP)
    op.work = scatter_work


# ---- take, put: the same where the numbers are values of the graph, which become items --------

cdef void items_split(const Call* c, const Dim* all, Split* s) noexcept nogil:
    """How items divide a tensor of shape `all`: along an axis; indices of their own for each element are places in the
    tensor as one long vector."""
    s[0] = split_at(all, c.attrs[0].u)
    if c.attrs[1].u == <uint32_t>OWN_POSITIONS:
        s.len = s.pre * s.len * s.post
        s.pre = s.post = 1


cdef int find_items(Gpu* gpu, const Call* c, const Dim* all, Split* s, uint32_t* items) noexcept nogil:
    s[0] = split_at(all, c.attrs[0].u)
    if c.attrs[1].u == <uint32_t>OWN_POSITIONS:
        find_places(gpu, c, &c.x[1], s, items)
    else:
        find_positions(gpu, c, &c.x[1], s.len, 0, items)
    items_split(c, all, s)
    return gpu.error


cdef size_t items_size(const Call* c) noexcept nogil:
    return size_of(&c.x[1].dim) * c.y.dim.bd


cdef int put_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Split s
    cdef size_t n = size_of(&c.x[1].dim)
    cdef uint32_t* items = <uint32_t*>c.saved
    cdef uint32_t b
    fill(gpu, total_of(&c.y.dim), 0, c.y.v)
    find_items(gpu, c, &c.y.dim, &s, items)
    for b in range(c.y.dim.bd):
        add_listed(gpu, 1, &s, n, items + b * n, element(&c.x[0], b), element(&c.y, b), 0, NULL)
    return gpu.error


cdef int put_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Split s
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    if i:
        return 0
    items_split(c, &c.y.dim, &s)
    read_listed(gpu, c.y.dim.bd, &s, size_of(&c.x[1].dim), <const uint32_t*>c.saved, c.dy.v, size_of(&c.y.dim), NULL,
                c.work)
    for b in range(c.y.dim.bd):
        scaled(gpu, n, 1, c.work + b * n, element(&c.dx, b), 1)
    return gpu.error


op = gpu_op(b"put", CU_SELECT, put_forward, put_backward)
needs_module(op, BASE)
needs_module(op, CU_LOOKUP)
needs_module(op, CU_POSITIONS)
op.saved = items_size
op.work = scatter_work


# ---- sort, argsort ----------------------------------------------------------------------

cdef int CU_ORDER = module_at(b"order")
cdef int SORT_TILES = kernel_at(CU_ORDER, b"sort_tiles")
cdef int SORT_MERGE = kernel_at(CU_ORDER, b"sort_merge")

cdef enum:
    TILE = 1024                 # TILE of the kernels


cdef int order(Gpu* gpu, const Call* c, float* where) noexcept nogil:
    """The sorted values in y and their positions in `where`; if that is NULL, the positions in y."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t count = c.attrs[1].u, lines = s.pre * s.post * c.y.dim.bd, n = lines * s.len, width = TILE
    cdef int how = c.attrs[2].u
    cdef uint32_t function = c.attrs[3].u
    cdef void* refused = refused_of(gpu)
    cdef float* runs = c.work
    cdef float* merged
    if total_of(&c.y.dim) == 0:
        return 0
    launch_rows(gpu, SORT_TILES, lines * ((s.len + TILE - 1) // TILE), min(s.len, <size_t>TILE), lines, s.pre, s.len,
                s.post, count, how, function, refused, c.x[0].v, c.x[0].bstride, runs, where, c.y.v)
    while width < s.len:
        merged = c.work + 2 * n if runs == c.work else c.work
        launch_each(gpu, SORT_MERGE, n, lines, s.pre, s.len, s.post, count, how, function, refused,
                    width, runs, merged if 2 * width < s.len else NULL, where, c.y.v)
        runs = merged
        width *= 2
    return gpu.error


cdef size_t two_lists(const Call* c) noexcept nogil:
    """Two lists of values with their positions, for lines of several tiles."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    return 4 * s.pre * s.post * s.len * c.y.dim.bd if s.len > TILE else 0


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

# derived: launches of select, lookup, order

cdef int RANGE_FORWARD = kernel_at(CU_SELECT, b"range_forward")
cdef int RANGE_BACKWARD = kernel_at(CU_SELECT, b"range_backward")
cdef int STRIDED_FORWARD = kernel_at(CU_SELECT, b"strided_forward")
cdef int STRIDED_BACKWARD = kernel_at(CU_SELECT, b"strided_backward")


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


op = gpu_op(b"pick", CU_SELECT, pick_forward, pick_backward)
op.lists = True

op = gpu_op(b"pick_range", CU_SELECT, pick_forward, pick_backward)
op.lists = True


cdef int select_rows_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t count = c.item_count, pre = s.pre, column = pre * s.len, n = pre * count * s.post
    return launch_each(gpu, LISTED_FORWARD, batch * n, batch, n, pre, count, column, c.items, c.x[0].v, c.x[0].bstride,
                       c.x[0].list, c.y.v)


cdef int select_rows_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t count = c.item_count
    return add_listed(gpu, batch, &s, count, c.items, c.dy.v, c.dx.v, c.dx.bstride, <float**>c.dx.list)


op = gpu_op(b"select_rows", CU_SELECT, select_rows_forward, select_rows_backward)
needs_module(op, CU_LOOKUP)
op.lists = True

op = gpu_op(b"select_cols", CU_SELECT, select_rows_forward, select_rows_backward)
needs_module(op, CU_LOOKUP)
op.lists = True


cdef size_t take_saved(const Call* c) noexcept nogil:
    return size_of(&c.x[1].dim) * c.y.dim.bd


cdef int take_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s
    find_items(gpu, c, &c.x[0].dim, &s, <uint32_t*>c.saved)
    cdef size_t count = size_of(&c.x[1].dim), pre = s.pre, column = pre * s.len, n = pre * count * s.post
    return launch_each(gpu, LISTED_FORWARD, batch * n, batch, n, pre, count, column, <const uint32_t*>c.saved, c.x[0].v,
                       c.x[0].bstride, c.x[0].list, c.y.v)


cdef int take_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s
    if i:
        return 0
    items_split(c, &c.x[0].dim, &s)
    cdef size_t count = size_of(&c.x[1].dim)
    return add_listed(gpu, batch, &s, count, <const uint32_t*>c.saved, c.dy.v, c.dx.v, c.dx.bstride, <float**>c.dx.list)


op = gpu_op(b"take", CU_SELECT, take_forward, take_backward)
needs_module(op, CU_LOOKUP)
needs_module(op, CU_POSITIONS)
op.saved = take_saved
op.lists = True


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


op = gpu_op(b"strided_select", CU_SELECT, strided_select_forward, strided_select_backward)


cdef int pick_batch_elems_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t rows = c.y.dim.bd, n = size_of(&c.y.dim)
    return launch_each(gpu, LOOKUP_FORWARD, rows * n, rows, n, <float>1, c.x[0].v, c.items, c.y.v)


cdef int pick_batch_elems_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t rows = c.y.dim.bd, n = size_of(&c.y.dim)
    return add_rows(gpu, rows, n, c.items, c.dy.v, c.dx.v)


op = gpu_op(b"pick_batch_elems", CU_LOOKUP, pick_batch_elems_forward, pick_batch_elems_backward)

cdef int SORT_BACKWARD = kernel_at(CU_ORDER, b"sort_backward")
cdef int CONTINUATIONS_OF_LINES = kernel_at(CU_ORDER, b"continuations_of_lines")
cdef int CONTINUATIONS_OF_BEAMS = kernel_at(CU_ORDER, b"continuations_of_beams")
cdef int CUMPROD_FORWARD = kernel_at(CU_ORDER, b"cumprod_forward")
cdef int CUMPROD_BACKWARD = kernel_at(CU_ORDER, b"cumprod_backward")
cdef int LOGCUMSUMEXP_FORWARD = kernel_at(CU_ORDER, b"logcumsumexp_forward")
cdef int LOGCUMSUMEXP_BACKWARD = kernel_at(CU_ORDER, b"logcumsumexp_backward")


cdef size_t sort_work(const Call* c, int i) noexcept nogil:
    return two_lists(c) if i < 0 else 0


cdef int sort_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return order(gpu, c, c.saved)


cdef int sort_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post, count = c.attrs[1].u, lines = inner * outer * elements
    return launch_each(gpu, SORT_BACKWARD, lines * (count if uses == 1 else min(count, <size_t>1)), lines, inner,
                       length, outer, count, uses, <const uint32_t*>c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"sort", CU_ORDER, sort_forward, sort_backward)
op.work = sort_work


cdef int argsort_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return order(gpu, c, NULL)


op = gpu_op(b"argsort", CU_ORDER, argsort_forward, NULL)
op.work = sort_work


cdef size_t continuations_work(const Call* c, int i) noexcept nogil:
    cdef size_t count = c.attrs[1].u, n = size_of(&c.x[0].dim), lines = max(c.x[0].dim.bd, c.x[1].dim.bd)
    cdef size_t most = min(count, n)
    return 2 * lines * most if i < 0 else 0


cdef int continuations_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t beams = c.attrs[0].u, count = c.attrs[1].u
    cdef uint32_t end = c.attrs[2].u, begin = c.attrs[3].u
    cdef size_t n = size_of(&c.x[0].dim), lines = max(c.x[0].dim.bd, c.x[1].dim.bd), most = min(count, n)
    if count == 0:
        return 0
    launch_rows(gpu, CONTINUATIONS_OF_LINES, lines, n, lines, n, most, c.x[0].v, c.x[0].bstride, c.x[1].v,
                c.x[1].bstride, c.work)
    return launch_rows(gpu, CONTINUATIONS_OF_BEAMS, beams, lines // beams * most, beams, lines, count, most, end, begin,
                       c.work, c.y.v)


op = gpu_op(b"continuations", CU_ORDER, continuations_forward, NULL)
op.work = continuations_work


cdef int cumprod_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    return launch_each(gpu, CUMPROD_FORWARD, lines, lines, inner, length, outer, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved)


cdef int cumprod_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * elements
    return launch_each(gpu, CUMPROD_BACKWARD, lines, lines, inner, length, outer, uses, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"cumprod", CU_ORDER, cumprod_forward, cumprod_backward)


cdef int logcumsumexp_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * batch
    return launch_each(gpu, LOGCUMSUMEXP_FORWARD, lines, lines, inner, length, outer, c.x[0].v, c.x[0].bstride, c.y.v,
                       c.saved)


cdef int logcumsumexp_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    if total_of(&c.y.dim) == 0:
        return 0
    cdef size_t lines = inner * outer * elements
    return launch_each(gpu, LOGCUMSUMEXP_BACKWARD, lines, lines, inner, length, outer, uses, c.x[0].v, c.x[0].bstride,
                       c.y.v, c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"logcumsumexp", CU_ORDER, logcumsumexp_forward, logcumsumexp_backward)
# end of launches
