"""Softmax, related functions and their losses."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, size_of, total_of
from dynet_cy.gpu.base cimport FLAGS, Pointers
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, value_at
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"softmax")


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
            launch_each(gpu, LOGSUMEXP_FORWARD, total, total, n, value_at(&xs), count, once, c.y.v, c.saved,
                        acc)
            count = once = 0
            acc = True
    return gpu.error


cdef int logsumexp_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    if total == 0:
        return 0
    return launch_each(gpu, LOGSUMEXP_BACKWARD, n, total, n, c.x[i].v, c.saved, c.dy.v, c.dx.v, c.accumulate)


cdef GpuOp* op = gpu_op(b"logsumexp", CU, logsumexp_forward, logsumexp_backward)
op.assigns = True


# derived: launches
from dynet_cy.core.tensor cimport cols_of, rows_of
from dynet_cy.gpu.driver cimport launch_rows
from dynet_cy.ops.axes cimport Split, split_at

cdef int PICKNEGLOGSOFTMAX_FORWARD = kernel_at(CU, b"pickneglogsoftmax_forward")
cdef int PICKNEGLOGSOFTMAX_BACKWARD = kernel_at(CU, b"pickneglogsoftmax_backward")
cdef int SOFTMAX_BY_THREADS = kernel_at(CU, b"softmax_by_threads")
cdef int SOFTMAX_BY_BLOCKS = kernel_at(CU, b"softmax_by_blocks")
cdef int SOFTMAX_BACKWARD_BY_THREADS = kernel_at(CU, b"softmax_backward_by_threads")
cdef int SOFTMAX_BACKWARD_BY_BLOCKS = kernel_at(CU, b"softmax_backward_by_blocks")
cdef int LOG_SOFTMAX_FORWARD = kernel_at(CU, b"log_softmax_forward")
cdef int LOG_SOFTMAX_BACKWARD = kernel_at(CU, b"log_softmax_backward")
cdef int SPARSEMAX_FORWARD = kernel_at(CU, b"sparsemax_forward")
cdef int SPARSEMAX_BACKWARD = kernel_at(CU, b"sparsemax_backward")
cdef int RESTRICTED_FORWARD = kernel_at(CU, b"restricted_forward")
cdef int RESTRICTED_BACKWARD = kernel_at(CU, b"restricted_backward")
cdef int HINGE_FORWARD = kernel_at(CU, b"hinge_forward")
cdef int HINGE_BACKWARD = kernel_at(CU, b"hinge_backward")


cdef int pickneglogsoftmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    return launch_rows(gpu, PICKNEGLOGSOFTMAX_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.saved,
                       c.y.v)


cdef int pickneglogsoftmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    return launch_each(gpu, PICKNEGLOGSOFTMAX_BACKWARD, n * elements, batch, n, c.x[0].v, c.x[0].bstride, c.items,
                       c.saved, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"pickneglogsoftmax", CU, pickneglogsoftmax_forward, pickneglogsoftmax_backward)
op.assigns = True


cdef int softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef float sign = <float>1
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * c.x[0].dim.bd
    if step >= 32:
        return launch_each(gpu, SOFTMAX_BY_THREADS, lines, lines, n, step, sign, c.x[0].v, x_lines, c.y.v)
    return launch_rows(gpu, SOFTMAX_BY_BLOCKS, lines, n, lines, n, step, sign, c.x[0].v, x_lines, c.y.v)


cdef int softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef float sign = <float>1
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * elements
    if step >= 32:
        return launch_each(gpu, SOFTMAX_BACKWARD_BY_THREADS, x_lines, lines, n, step, sign, c.y.v, c.dy.v, x_lines,
                           c.dx.v, c.accumulate)
    return launch_rows(gpu, SOFTMAX_BACKWARD_BY_BLOCKS, x_lines, n, lines, n, step, sign, c.y.v, c.dy.v, x_lines,
                       c.dx.v, c.accumulate)


op = gpu_op(b"softmax", CU, softmax_forward, softmax_backward)
op.assigns = True


cdef int softmin_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef float sign = <float>(-1)
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * c.x[0].dim.bd
    if step >= 32:
        return launch_each(gpu, SOFTMAX_BY_THREADS, lines, lines, n, step, sign, c.x[0].v, x_lines, c.y.v)
    return launch_rows(gpu, SOFTMAX_BY_BLOCKS, lines, n, lines, n, step, sign, c.x[0].v, x_lines, c.y.v)


cdef int softmin_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef float sign = <float>(-1)
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * elements
    if step >= 32:
        return launch_each(gpu, SOFTMAX_BACKWARD_BY_THREADS, x_lines, lines, n, step, sign, c.y.v, c.dy.v, x_lines,
                           c.dx.v, c.accumulate)
    return launch_rows(gpu, SOFTMAX_BACKWARD_BY_BLOCKS, x_lines, n, lines, n, step, sign, c.y.v, c.dy.v, x_lines,
                       c.dx.v, c.accumulate)


op = gpu_op(b"softmin", CU, softmin_forward, softmin_backward)
op.assigns = True


cdef int log_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim), step = 1
    cdef int blocks = 1
    cdef size_t cols = cols_of(&c.y.dim), lines = cols * batch, x_lines = cols * c.x[0].dim.bd
    return launch_rows(gpu, LOG_SOFTMAX_FORWARD, lines, n, lines, n, step, c.x[0].v, x_lines, c.y.v, blocks)


cdef int log_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), step = 1
    cdef int blocks = 1
    cdef size_t cols = cols_of(&c.y.dim), lines = cols * batch, x_lines = cols * elements
    return launch_rows(gpu, LOG_SOFTMAX_BACKWARD, x_lines, n, lines, n, step, c.y.v, c.dy.v, x_lines, c.dx.v,
                       c.accumulate, blocks)


op = gpu_op(b"log_softmax", CU, log_softmax_forward, log_softmax_backward)
op.assigns = True


cdef int log_softmax_along_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * c.x[0].dim.bd
    if step >= 32:
        return launch_each(gpu, LOG_SOFTMAX_FORWARD, lines, lines, n, step, c.x[0].v, x_lines, c.y.v, 0)
    return launch_rows(gpu, LOG_SOFTMAX_FORWARD, lines, n, lines, n, step, c.x[0].v, x_lines, c.y.v, 1)


cdef int log_softmax_along_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.y.dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * elements
    if step >= 32:
        return launch_each(gpu, LOG_SOFTMAX_BACKWARD, x_lines, lines, n, step, c.y.v, c.dy.v, x_lines, c.dx.v,
                           c.accumulate, 0)
    return launch_rows(gpu, LOG_SOFTMAX_BACKWARD, x_lines, n, lines, n, step, c.y.v, c.dy.v, x_lines, c.dx.v,
                       c.accumulate, 1)


op = gpu_op(b"log_softmax_along", CU, log_softmax_along_forward, log_softmax_along_backward)
op.assigns = True


cdef int sparsemax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim), cols = cols_of(&c.y.dim), lines = cols * batch
    cdef size_t x_lines = cols * c.x[0].dim.bd
    return launch_rows(gpu, SPARSEMAX_FORWARD, lines, n, lines, n, c.x[0].v, x_lines, c.y.v)


cdef int sparsemax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), cols = cols_of(&c.y.dim)
    cdef size_t lines = cols * batch, x_lines = cols * elements
    return launch_rows(gpu, SPARSEMAX_BACKWARD, x_lines, n, lines, n, c.y.v, c.dy.v, x_lines, c.dx.v, c.accumulate)


op = gpu_op(b"sparsemax", CU, sparsemax_forward, sparsemax_backward)
op.assigns = True


cdef int restricted_log_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim), count = c.item_count
    return launch_rows(gpu, RESTRICTED_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, count, c.y.v)


cdef int restricted_log_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim), count = c.item_count
    return launch_rows(gpu, RESTRICTED_BACKWARD, elements, count, batch, n, c.items, count, c.y.v, c.dy.v, c.dx.v,
                       c.dx.bstride)


op = gpu_op(b"restricted_log_softmax", CU, restricted_log_softmax_forward, restricted_log_softmax_backward)


cdef int hinge_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, lines = size_of(&c.y.dim)
    cdef float margin = <float>c.attrs[0].f
    cdef size_t rows = rows_of(&c.x[0].dim), along_rows = c.attrs[1].i, n = cols_of(&c.x[0].dim) if along_rows else rows
    cdef size_t step = rows if along_rows else 1, apart = 1 if along_rows else rows
    return launch_rows(gpu, HINGE_FORWARD, lines * batch, n, batch, lines, n, step, apart, margin, c.x[0].v,
                       c.x[0].bstride, c.items, c.y.v)


cdef int hinge_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, lines = size_of(&c.y.dim)
    cdef float margin = <float>c.attrs[0].f
    cdef size_t rows = rows_of(&c.x[0].dim), along_rows = c.attrs[1].i, n = cols_of(&c.x[0].dim) if along_rows else rows
    cdef size_t step = rows if along_rows else 1, apart = 1 if along_rows else rows
    return launch_rows(gpu, HINGE_BACKWARD, lines * elements, n, batch, lines, n, step, apart, margin, c.x[0].v,
                       c.x[0].bstride, c.items, c.dy.v, c.dx.v)


op = gpu_op(b"hinge", CU, hinge_forward, hinge_backward)

op = gpu_op(b"hinge_dim", CU, hinge_forward, hinge_backward)
# end of launches
