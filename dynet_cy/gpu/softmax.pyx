"""Softmax, related functions and their losses."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, cols_of, rows_of, size_of, total_of
from dynet_cy.gpu.base cimport FLAGS, Pointers
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows, value_at
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.axes cimport Split, split_at

cdef int CU = module_at(b"softmax")


# ---- pickneglogsoftmax: the log-sum is saved ------------------------------------------

cdef int PICK_FORWARD = kernel_at(CU, b"pickneglogsoftmax_forward")
cdef int PICK_BACKWARD = kernel_at(CU, b"pickneglogsoftmax_backward")


cdef int pickneglogsoftmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), batch = c.y.dim.bd
    return launch_rows(gpu, PICK_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.saved, c.y.v)


cdef int pickneglogsoftmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), batch = c.y.dim.bd
    return launch_each(gpu, PICK_BACKWARD, n * c.dx.dim.bd, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.saved,
                       c.dy.v, c.dx.v, c.accumulate)


cdef GpuOp* op = gpu_op(b"pickneglogsoftmax", CU)
op.forward = pickneglogsoftmax_forward
op.backward = pickneglogsoftmax_backward
op.assigns = True


# ---- softmax, softmin, log_softmax, sparsemax: lines of numbers --------------------------------

cdef enum:
    SIDE_BY_SIDE = 32               # with this many adjacent lines, the threads of a warp read 32 of them together

cdef int SOFTMAX_BY_BLOCKS = kernel_at(CU, b"softmax_by_blocks")
cdef int SOFTMAX_BY_THREADS = kernel_at(CU, b"softmax_by_threads")
cdef int SOFTMAX_BACKWARD_BY_BLOCKS = kernel_at(CU, b"softmax_backward_by_blocks")
cdef int SOFTMAX_BACKWARD_BY_THREADS = kernel_at(CU, b"softmax_backward_by_threads")
cdef int LOG_SOFTMAX_FORWARD = kernel_at(CU, b"log_softmax_forward")
cdef int LOG_SOFTMAX_BACKWARD = kernel_at(CU, b"log_softmax_backward")
cdef int SPARSEMAX_FORWARD = kernel_at(CU, b"sparsemax_forward")
cdef int SPARSEMAX_BACKWARD = kernel_at(CU, b"sparsemax_backward")


cdef int normalize(Gpu* gpu, const Call* c, float sign) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, <uint32_t>c.attrs[0].i)
    cdef size_t own = s.pre * s.post * c.x[0].dim.bd, lines = s.pre * s.post * c.y.dim.bd
    if lines * s.len == 0:
        return 0
    if s.pre >= SIDE_BY_SIDE:
        return launch_each(gpu, SOFTMAX_BY_THREADS, lines, lines, s.len, s.pre, sign, c.x[0].v, own, c.y.v)
    return launch_rows(gpu, SOFTMAX_BY_BLOCKS, lines, s.len, lines, s.len, s.pre, sign, c.x[0].v, own, c.y.v)


cdef int normalize_backward(Gpu* gpu, const Call* c, float sign) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, <uint32_t>c.attrs[0].i)
    cdef size_t own = s.pre * s.post * c.dx.dim.bd, lines = s.pre * s.post * c.y.dim.bd
    if lines * s.len == 0:
        return 0
    if s.pre >= SIDE_BY_SIDE:
        return launch_each(gpu, SOFTMAX_BACKWARD_BY_THREADS, own, lines, s.len, s.pre, sign, c.y.v, c.dy.v, own, c.dx.v,
                           c.accumulate)
    return launch_rows(gpu, SOFTMAX_BACKWARD_BY_BLOCKS, own, s.len, lines, s.len, s.pre, sign, c.y.v, c.dy.v, own,
                       c.dx.v, c.accumulate)


cdef int softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return normalize(gpu, c, 1)


cdef int softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return normalize_backward(gpu, c, 1)


cdef int softmin_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return normalize(gpu, c, -1)


cdef int softmin_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return normalize_backward(gpu, c, -1)


cdef int columns_forward(Gpu* gpu, const Call* c, int kernel) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), cols = cols_of(&c.y.dim)
    cdef size_t own = cols * c.x[0].dim.bd, lines = cols * c.y.dim.bd
    if n * lines == 0:
        return 0
    return launch_rows(gpu, kernel, lines, n, lines, n, c.x[0].v, own, c.y.v)


cdef int columns_backward(Gpu* gpu, const Call* c, int kernel) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), cols = cols_of(&c.y.dim)
    cdef size_t own = cols * c.dx.dim.bd, lines = cols * c.y.dim.bd
    if n * lines == 0:
        return 0
    return launch_rows(gpu, kernel, own, n, lines, n, c.y.v, c.dy.v, own, c.dx.v, c.accumulate)


cdef int log_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return columns_forward(gpu, c, LOG_SOFTMAX_FORWARD)


cdef int log_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return columns_backward(gpu, c, LOG_SOFTMAX_BACKWARD)


cdef int sparsemax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return columns_forward(gpu, c, SPARSEMAX_FORWARD)


cdef int sparsemax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return columns_backward(gpu, c, SPARSEMAX_BACKWARD)


op = gpu_op(b"softmax", CU)
op.forward = softmax_forward
op.backward = softmax_backward
op.assigns = True

op = gpu_op(b"softmin", CU)
op.forward = softmin_forward
op.backward = softmin_backward
op.assigns = True

op = gpu_op(b"log_softmax", CU)
op.forward = log_softmax_forward
op.backward = log_softmax_backward
op.assigns = True

op = gpu_op(b"sparsemax", CU)
op.forward = sparsemax_forward
op.backward = sparsemax_backward
op.assigns = True


# ---- restricted_log_softmax: over the elements that the items name ----------------------

cdef int RESTRICTED_FORWARD = kernel_at(CU, b"restricted_forward")
cdef int RESTRICTED_BACKWARD = kernel_at(CU, b"restricted_backward")


cdef int restricted_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    return launch_rows(gpu, RESTRICTED_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.item_count,
                       c.y.v)


cdef int restricted_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), batch = c.y.dim.bd
    return launch_rows(gpu, RESTRICTED_BACKWARD, c.dx.dim.bd, c.item_count, batch, n, c.items, c.item_count, c.y.v,
                       c.dy.v, c.dx.v, c.dx.bstride)


op = gpu_op(b"restricted_log_softmax", CU)
op.forward = restricted_forward
op.backward = restricted_backward


# ---- logsumexp: elementwise over several arguments -----------------------------------------

cdef int LOGSUMEXP_FORWARD = kernel_at(CU, b"logsumexp_forward")
cdef int LOGSUMEXP_BACKWARD = kernel_at(CU, b"logsumexp_backward")


cdef int logsumexp_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = size_of(&c.y.dim)
    cdef Pointers xs
    cdef uint32_t i, count = 0, once = 0
    cdef bint acc = False
    if total == 0:
        return 0
    memset(&xs, 0, sizeof(xs))
    for i in range(c.n):
        xs.p[count] = c.x[i].v
        once |= <uint32_t>(c.x[i].dim.bd == 1) << count
        count += 1
        if count == <uint32_t>FLAGS or i + 1 == c.n:
            launch_each(gpu, LOGSUMEXP_FORWARD, total, total, n, value_at(&xs), count, once, c.y.v, acc)
            count = once = 0
            acc = True
    return gpu.error


cdef int logsumexp_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    if total == 0:
        return 0
    return launch_each(gpu, LOGSUMEXP_BACKWARD, n, total, n, c.x[i].v, c.y.v, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"logsumexp", CU)
op.forward = logsumexp_forward
op.backward = logsumexp_backward
op.assigns = True


# ---- hinge, hinge_dim: one loss per line.  Attributes: the margin, the axis of the classes -----

cdef int HINGE_FORWARD = kernel_at(CU, b"hinge_forward")
cdef int HINGE_BACKWARD = kernel_at(CU, b"hinge_backward")


cdef void lines_of(const Call* c, size_t* n, size_t* step, size_t* apart) noexcept nogil:
    """The number of elements of a line, and the distances between elements and between lines."""
    cdef size_t rows = rows_of(&c.x[0].dim)
    if c.attrs[1].i:
        n[0] = cols_of(&c.x[0].dim)
        step[0] = rows
        apart[0] = 1
    else:
        n[0] = rows
        step[0] = 1
        apart[0] = rows


cdef int hinge_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t lines = size_of(&c.y.dim), batch = c.y.dim.bd, n, step, apart
    if lines == 0:
        return 0
    lines_of(c, &n, &step, &apart)
    return launch_rows(gpu, HINGE_FORWARD, lines * batch, n, batch, lines, n, step, apart, c.attrs[0].f, c.x[0].v,
                       c.x[0].bstride, c.items, c.y.v)


cdef int hinge_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t lines = size_of(&c.y.dim), batch = c.y.dim.bd, n, step, apart
    if lines == 0:
        return 0
    lines_of(c, &n, &step, &apart)
    return launch_rows(gpu, HINGE_BACKWARD, lines * c.dx.dim.bd, n, batch, lines, n, step, apart, c.attrs[0].f,
                       c.x[0].v, c.x[0].bstride, c.items, c.dy.v, c.dx.v)


cdef bytes name
for name in (b"hinge", b"hinge_dim"):
    op = gpu_op(name, CU)
    op.forward = hinge_forward
    op.backward = hinge_backward
