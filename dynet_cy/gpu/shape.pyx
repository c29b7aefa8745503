"""Shapes and selections: copies, transpose, concatenate; rows of tables, elements, ranges, columns; sorting."""

from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport Attr, Call, Dim, Tensor, size_of, total_of
from dynet_cy.gpu.driver cimport (
    THREADS, Address, Gpu, GpuOp, blocks, enter, fetch_bytes, fill, launch, launch_each, launch_rows, launch_slices,
    leave, opened_gpu, refused_of, set_error, value_at, wait,
)
from dynet_cy.gpu.lazy cimport read_rows
from dynet_cy.gpu.registry cimport (
    Axes, add_axis, contract, expand, gpu_op, kernel_at, module_at, needs_module, no_axes, number_of, scaled, strided,
)
from dynet_cy.memory.storage cimport Param, note_gradient, touch
from dynet_cy.ops.loops cimport Split, split_at
from dynet_cy.ops.index cimport LISTED, OWN_POSITIONS, Places, has_positions, places_of, places_total

from dynet_cy.ops.index import ways

CU_POSITIONS = module_at(b"positions")
cdef int CU_LOOKUP                                     # the module of kernels


cdef GpuOp* op


# ==== positions ===================================================================================
#
# Launchers of kernels that read indices from the graph.

cdef int FIND = kernel_at(CU_POSITIONS, b"find_positions")


cdef int find(Gpu* gpu, const Call* c, const Tensor* indices, size_t pre, size_t length, size_t post, uint32_t none,
              uint32_t* items) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, count = size_of(&indices.dim)
    return launch_each(gpu, FIND, batch * count, batch, count, pre, length, post, indices.v, indices.bstride,
                       indices.dim.type, none, c.attrs[3].u, refused_of(gpu), items)


cdef int find_positions(Gpu* gpu, const Call* c, const Tensor* indices, size_t length, uint32_t none,
                        uint32_t* items) noexcept nogil:
    return find(gpu, c, indices, 0, length, 1, none, items)


cdef int find_places(Gpu* gpu, const Call* c, const Tensor* indices, const Split* s, uint32_t* items) noexcept nogil:
    return find(gpu, c, indices, s.pre, s.len, s.post, 0, items)


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
cdef int CU_SELECT = module_at(b"select")
cdef int SELECT_READ = kernel_at(CU_SELECT, b"select_read")
cdef int SELECT_ADD = kernel_at(CU_SELECT, b"select_add")
cdef int SELECT_READ_BACK = kernel_at(CU_SELECT, b"select_read_back")


# ---- reshape, nobackprop, flip_gradient, scale_gradient: y has the elements of x --------

cdef int copy_elements(Gpu* gpu, const Call* c) noexcept nogil:
    """y has the elements of x in the same order, repeated if several nodes share x."""
    cdef size_t n = total_of(&c.x[0].dim), total = total_of(&c.y.dim)
    cdef Axes axes
    if total == n or total == 0:
        return scaled(gpu, total, 1, c.x[0].v, c.y.v, 0)
    axes = strided(n, 1, total // n, 0)
    return expand(gpu, &axes, 1, c.x[0].v, c.y.v, 0)


cdef int pass_elements(Gpu* gpu, const Call* c, float scale) noexcept nogil:
    cdef size_t n = total_of(&c.dx.dim), total = total_of(&c.y.dim)
    cdef Axes kept, reduced
    if total == n or total == 0:
        return scaled(gpu, total, scale, c.dy.v, c.dx.v, c.accumulate)
    kept = strided(n, 1)
    reduced = strided(total // n, n)
    return contract(gpu, &kept, &reduced, scale, c.dy.v, c.dx.v, c.accumulate)


cdef bint always(const Dim* y, const Attr* attrs) noexcept nogil:
    return True


# ---- transpose: octal digit i of attribute 0 is the axis of x that is axis i of y -------

cdef int TRANSPOSE = kernel_at(CU_SHAPE, b"turn_forward")


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


cdef int turn(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Places p
    cdef uint32_t k
    cdef Axes axes
    places_of(gpu.op, c, 0, &p)
    no_axes(&axes)
    for k in range(p.n):
        add_axis(&axes, p.size[k], p.stride[k], 0, 0)
    return transposed(gpu, &axes, c.y.dim.bd, c.x[0].v, c.x[0].bstride, c.y.v, 0)


cdef int turn_back(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Places p
    cdef size_t stride = 1, step
    cdef uint32_t k
    cdef Axes axes, batch
    places_of(gpu.op, c, 0, &p)
    no_axes(&axes)
    for _ in range(p.n):                            # the axes in the order of x, with their strides in y
        step = 1
        k = 0
        while p.stride[k] != stride:
            step *= p.size[k]
            k += 1
        add_axis(&axes, p.size[k], step, 0, 0)
        stride *= p.size[k]
    if c.dx.dim.bd == c.y.dim.bd:
        return transposed(gpu, &axes, c.y.dim.bd, c.dy.v, c.dy.bstride, c.dx.v, c.accumulate)
    batch = strided(c.y.dim.bd, size_of(&c.y.dim))
    return contract(gpu, &axes, &batch, 1, c.dy.v, c.dx.v, c.accumulate)


cdef bint is_one_line(const Dim* y, const Attr* attrs) noexcept nogil:
    """Whether one axis has all elements, so that the order of axes makes no difference."""
    cdef uint32_t k, lines = 0
    for k in range(y.nd):
        lines += y.d[k] != 1
    return lines <= 1


# ---- concatenate, concatenate_to_batch: arguments side by side -----------------------------

cdef int PARTS_FORWARD = kernel_at(CU_SHAPE, b"parts_forward")


cdef int lay_parts(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Places p
    cdef Parts parts
    cdef Piece* part
    cdef uint32_t k, n = 0
    cdef size_t start = 0, longest = 0
    memset(&parts, 0, sizeof(Parts))
    for k in range(c.n if total_of(&c.y.dim) else 0):
        places_of(gpu.op, c, k, &p)
        part = &parts.part[n]
        part.v = c.x[k].v
        part.bstride = c.x[k].bstride
        part.list = <float**>c.x[k].list
        part.start = start
        part.m = p.pre * p.count
        start += part.m
        longest = max(longest, part.m)
        n += part.m > 0
        if n and (n == <uint32_t>PARTS or k + 1 == c.n):
            launch(gpu, PARTS_FORWARD, blocks(gpu, (longest * p.post * p.batch + THREADS - 1) // THREADS), n, THREADS,
                   0, p.batch, p.post, p.pre * p.len, value_at(&parts), n, c.y.v)
            n = 0
            longest = 0
    return gpu.error


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


# table[items_b] += dy_b.
cdef int add_rows(Gpu* gpu, size_t rows, size_t n, const uint32_t* items, const float* dy, float* table) noexcept nogil:
    if rows * n == 0:
        return 0
    if rows > MOST_ORDERED:
        return launch_slices(gpu, LOOKUP_UNORDERED, (rows + PART - 1) // PART, PART * n, rows, n, items, dy, table)
    return launch_rows(gpu, LOOKUP_BACKWARD, rows, n, rows, n, items, dy, table)


# y_b = row items_b of the table of a call.
cdef int read_table(Gpu* gpu, const Call* c, size_t rows, const uint32_t* items) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    if p.lazy != NULL and p.lazy.n:
        return read_rows(gpu, p, rows, items, 0, c.y.v)
    return launch_each(gpu, LOOKUP_FORWARD, rows * n, rows, n, p.device_value, items, c.y.v)


cdef int add_to_table(Gpu* gpu, const Call* c, size_t rows, const uint32_t* items) noexcept nogil:
    cdef Param* p = <Param*>c.object
    return add_rows(gpu, rows, size_of(&p.dim), items, c.dy.v, p.device_grad)


cdef void lookup_note(const Call* c, const uint32_t* items) noexcept nogil:
    """Note which rows get a gradient."""
    cdef Param* p = <Param*>c.object
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        touch(p, items[b])


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


# ==== select ======================================================================================
#
# Selections: elements, ranges, rows, columns, batch elements, at the places of the rows of index.def.

# ---- positions that are values of the graph become items ------------------------------------

cdef int find_items(Gpu* gpu, const Call* c, const Dim* all, uint32_t* items) noexcept nogil:
    cdef Split s = split_at(all, c.attrs[0].u)
    if c.attrs[1].u == <uint32_t>OWN_POSITIONS:
        return find_places(gpu, c, &c.x[1], &s, items)
    return find_positions(gpu, c, &c.x[1], s.len, 0, items)


cdef size_t items_size(const Call* c) noexcept nogil:
    return size_of(&c.x[1].dim) * c.y.dim.bd


cdef const uint32_t* items_in(Gpu* gpu, const Call* c) noexcept nogil:
    return <const uint32_t*>c.saved if has_positions(gpu.op) else c.items


# ---- moves in either direction ------------------------------------------------------------

cdef int add_places(Gpu* gpu, const Call* c, const Tensor* part, const Tensor* whole) noexcept nogil:
    """Add a part to the whole."""
    cdef Places p
    cdef const uint32_t* items = items_in(gpu, c)
    cdef size_t n, post, k
    places_of(gpu.op, c, 0, &p)
    n = places_total(&p)
    if n == 0:
        return 0
    post = n // (p.pre * p.count) if p.kind == <uint32_t>LISTED else 0
    if p.batch == 1 and whole.list == NULL and (post == 1 or post and p.count > MOST_ORDERED):
        for k in range(post):
            add_rows(gpu, p.count, p.pre, items, part.v + k * p.count * p.pre,
                     whole.v + k * p.pre * p.extent[p.axis])
        return gpu.error
    return launch_slices(gpu, SELECT_ADD, p.batch, n, n, value_at(&p), items, part.v, part.bstride, whole.v,
                         whole.bstride, whole.list)


cdef int read_back(Gpu* gpu, const Call* c, uint32_t i, const uint32_t* items) noexcept nogil:
    """The gradient of a part is the part of dy."""
    cdef Places p
    cdef size_t n
    places_of(gpu.op, c, i, &p)
    n = places_total(&p)
    return launch_slices(gpu, SELECT_READ_BACK, p.batch, n, n, value_at(&p), items, c.dy.v, size_of(&c.y.dim), c.dx.v,
                         c.dx.bstride, c.dx.list, c.accumulate) if n else 0


cdef int read_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Places p
    cdef size_t n
    if has_positions(gpu.op):
        find_items(gpu, c, &c.x[0].dim, <uint32_t*>c.saved)
    places_of(gpu.op, c, 0, &p)
    n = places_total(&p)
    return launch_each(gpu, SELECT_READ, p.batch * n, n, value_at(&p), items_in(gpu, c), c.x[0].v, c.x[0].bstride,
                       c.x[0].list, c.y.v)


cdef int read_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return add_places(gpu, c, &c.dy, &c.dx) if i == 0 else 0    # none flows to an index


cdef int add_forward(Gpu* gpu, const Call* c) noexcept nogil:
    fill(gpu, total_of(&c.y.dim), 0, c.y.v)
    if has_positions(gpu.op):
        find_items(gpu, c, &c.y.dim, <uint32_t*>c.saved)
    return add_places(gpu, c, &c.x[0], &c.y)


cdef int add_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    if i == 0:
        return read_back(gpu, c, i, items_in(gpu, c))
    return 0 if c.accumulate else fill(gpu, total_of(&c.dx.dim), 0, c.dx.v)


for name, way in ways.items():
    if way not in ("reads", "adds"):
        continue
    op = (gpu_op(name.encode(), CU_SELECT, read_forward, read_backward) if way == "reads"
          else gpu_op(name.encode(), CU_SELECT, add_forward, add_backward))
    needs_module(op, CU_LOOKUP)
    op.lists = way == "reads"
    op.assigns = way == "adds"
    if has_positions(number_of(op)):
        needs_module(op, CU_POSITIONS)
        op.saved = items_size


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

# derived: launches of lookup, order, positions, shape
from dynet_cy.gpu.registry cimport BASE
from dynet_cy.gpu.shape cimport CU_POSITIONS, NO_ROW
from dynet_cy.ops.select cimport NAN_FIRST
from dynet_cy.ops.shape cimport is_along_last_axis


cdef int lookup_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return read_table(gpu, c, c.y.dim.bd, c.items)


cdef int lookup_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return add_to_table(gpu, c, c.y.dim.bd, c.items)


op = gpu_op(b"lookup", BASE, lookup_forward, lookup_backward)
needs_module(op, CU_LOOKUP)
op.note = lookup_note


cdef int lookup_at_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t rows = total_of(&c.x[0].dim)
    find_positions(gpu, c, &c.x[0], (<Param*>c.object).rows, <uint32_t>NO_ROW, <uint32_t*>c.saved)
    return read_table(gpu, c, rows, <const uint32_t*>c.saved)


cdef int lookup_at_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t rows = total_of(&c.x[0].dim)
    if i < c.n:
        return 0
    return add_to_table(gpu, c, rows, <const uint32_t*>c.saved)


op = gpu_op(b"lookup_at", BASE, lookup_at_forward, lookup_at_backward)
needs_module(op, CU_LOOKUP)
needs_module(op, CU_POSITIONS)
op.note = lookup_at_note

cdef int SORT_BACKWARD = kernel_at(CU_ORDER, b"sort_backward")
cdef int KMAX_FORWARD = kernel_at(CU_ORDER, b"kmax_forward")
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


op = gpu_op(b"argsort", BASE, argsort_forward, NULL)
needs_module(op, CU_ORDER)
op.work = sort_work


cdef int kmax_pooling_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, count = c.attrs[1].u
    cdef int ignores = not c.attrs[2].u & NAN_FIRST
    cdef size_t outer = s.post, lines = inner * outer * batch
    return launch_rows(gpu, KMAX_FORWARD, lines, length, lines, inner, length, outer, count, ignores, c.x[0].v,
                       c.x[0].bstride, c.saved, c.y.v)


cdef int kmax_pooling_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, count = c.attrs[1].u, outer = s.post, lines = inner * outer * elements
    return launch_each(gpu, SORT_BACKWARD, lines * (count if uses == 1 else <size_t>1), lines, inner, length, outer,
                       count, uses, c.saved, c.dy.v, c.dx.v)


op = gpu_op(b"kmax_pooling", CU_ORDER, kmax_pooling_forward, kmax_pooling_backward)


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

cdef int ONE_HOT_FORWARD = kernel_at(CU_POSITIONS, b"one_hot_forward")


cdef int one_hot_at_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, count = size_of(&c.x[0].dim), n = c.y.dim.d[0]
    cdef int integers = c.x[0].dim.type
    cdef uint32_t function = c.attrs[3].u
    return launch_each(gpu, ONE_HOT_FORWARD, batch * count * n, batch, count, n, c.x[0].v, c.x[0].bstride, integers,
                       function, refused_of(gpu), c.y.v)


op = gpu_op(b"one_hot_at", CU_POSITIONS, one_hot_at_forward, NULL)


cdef int reshape_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return copy_elements(gpu, c)


cdef int reshape_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_elements(gpu, c, 1)


op = gpu_op(b"reshape", BASE, reshape_forward, reshape_backward)
op.laid = always
op.assigns = True


cdef int scale_gradient_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_elements(gpu, c, c.attrs[0].f)


op = gpu_op(b"scale_gradient", BASE, reshape_forward, scale_gradient_backward)
op.laid = NULL
op.assigns = True


op = gpu_op(b"nobackprop", BASE, reshape_forward, NULL)


cdef int fold_rows_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = c.attrs[0].u, size = size_of(&c.y.dim)
    cdef Axes kept = strided(size, n, c.y.dim.bd, c.x[0].bstride)
    cdef Axes reduced = strided(n, 1)
    return contract(gpu, &kept, &reduced, 1, c.x[0].v, c.y.v, 0)


cdef int fold_rows_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t elements = c.dx.dim.bd, uses = c.y.dim.bd // c.dx.dim.bd, n = c.attrs[0].u, size = size_of(&c.y.dim)
    cdef Axes kept = strided(n, 0, size, 1, elements, size)
    cdef Axes reduced = strided(uses, size)
    return contract(gpu, &kept, &reduced, 1, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"fold_rows", BASE, fold_rows_forward, fold_rows_backward)
op.assigns = True


cdef int concatenate_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return lay_parts(gpu, c)


cdef int concatenate_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return read_back(gpu, c, i, c.items)


op = gpu_op(b"concatenate", BASE, concatenate_forward, concatenate_backward)
needs_module(op, CU_SHAPE)
needs_module(op, CU_SELECT)
op.lists = True
op.laid = is_along_last_axis
op.assigns = True


cdef int concatenate_to_batch_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return scaled(gpu, total_of(&c.dx.dim), 1, c.dy.v + c.before * size_of(&c.dx.dim), c.dx.v, c.accumulate)


op = gpu_op(b"concatenate_to_batch", BASE, concatenate_forward, concatenate_to_batch_backward)
needs_module(op, CU_SHAPE)
op.assigns = True


cdef int transpose_forward(Gpu* gpu, const Call* c) noexcept nogil:
    if total_of(&c.y.dim) == 0:
        return 0
    return turn(gpu, c)


cdef int transpose_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    if total_of(&c.y.dim) == 0:
        return 0
    return turn_back(gpu, c)


op = gpu_op(b"transpose", BASE, transpose_forward, transpose_backward)
needs_module(op, CU_SHAPE)
op.laid = is_one_line
op.assigns = True
# end of launches
