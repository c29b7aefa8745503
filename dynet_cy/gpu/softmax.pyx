"""Softmax and attention, losses, and conditional random fields."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, axis_of, cols_of, rows_of
from dynet_cy.ops.attention cimport ATTENTION_RATE, ATTENTION_SCALE, heads_in, keys_after, keys_before, place_of_first


# ==== attention ===================================================================================
#
# Scaled dot-product attention.

cdef extern from "dynet_cy/gpu_attention.h" nogil:
    # derived: structs of Attention = dy_gpu_attention
    ctypedef struct Attention "dy_gpu_attention":
        const float* q
        const float* k
        const float* v
        const float* bias
        size_t q_step
        size_t k_step
        size_t v_step
        size_t bias_step
        const float* y
        const float* dy
        const float* means
        float* sums
        const uint64_t* seeds
        const uint32_t* items
        size_t m
        size_t n
        size_t place
        size_t before
        size_t after
        uint32_t heads
        uint32_t rows
        uint32_t value_rows
        uint32_t bias_columns
        uint32_t bias_heads
        float scale
        float keep
    # end of structs


cdef inline size_t sums_of(const Call* c) noexcept nogil:
    """The number of softmax sums: one for each query of each head of each batch element."""
    return <size_t>heads_in(c.attrs) * cols_of(&c.x[0].dim) * c.y.dim.bd


cdef Attention attention_of(const Call* c) noexcept nogil:
    cdef Attention p
    memset(&p, 0, sizeof(p))
    p.heads = heads_in(c.attrs)
    p.m = cols_of(&c.x[0].dim)
    p.n = cols_of(&c.x[1].dim)
    p.rows = rows_of(&c.x[0].dim) // p.heads
    p.value_rows = rows_of(&c.x[2].dim) // p.heads
    p.q = c.x[0].v
    p.k = c.x[1].v
    p.v = c.x[2].v
    p.q_step = c.x[0].bstride
    p.k_step = c.x[1].bstride
    p.v_step = c.x[2].bstride
    p.bias_columns = p.bias_heads = 1
    if c.n > 3:
        p.bias = c.x[3].v
        p.bias_step = c.x[3].bstride
        p.bias_columns = axis_of(&c.x[3].dim, 1)
        p.bias_heads = axis_of(&c.x[3].dim, 2)
    p.place = place_of_first(c.attrs, p.m, p.n)
    p.before = keys_before(c.attrs)
    p.after = keys_after(c.attrs)
    p.scale = c.attrs[ATTENTION_SCALE].f
    p.keep = 1 - c.attrs[ATTENTION_RATE].f
    if c.attrs[ATTENTION_RATE].f > 0:
        p.seeds = <const uint64_t*>c.seed
        p.items = c.items
    p.sums = c.saved
    return p


cdef Attention attention_backward_of(const Call* c) noexcept nogil:
    """The arguments of attention with the result and its gradient, for backward."""
    cdef Attention p = attention_of(c)
    p.y = c.y.v
    p.dy = c.dy.v
    p.means = c.saved + 2 * sums_of(c)
    return p


# derived: launches of softmax, constrained, losses, crf, attention
from dynet_cy.core.tensor cimport size_of, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, launch_each, launch_rows, refused_of, value_at
from dynet_cy.gpu.registry cimport SOME, Some, gpu_op, kernel_at, module_at, needs_module, some_of
from dynet_cy.gpu.shape cimport CU_POSITIONS, find_positions
from dynet_cy.ops.loops cimport Split, split_at

cdef GpuOp* op

cdef int CU_SOFTMAX = module_at(b"softmax")
cdef int PICKNEGLOGSOFTMAX_FORWARD = kernel_at(CU_SOFTMAX, b"pickneglogsoftmax_forward")
cdef int PICKNEGLOGSOFTMAX_BACKWARD = kernel_at(CU_SOFTMAX, b"pickneglogsoftmax_backward")
cdef int SOFTMAX_FORWARD = kernel_at(CU_SOFTMAX, b"softmax_forward")
cdef int SOFTMAX_BACKWARD = kernel_at(CU_SOFTMAX, b"softmax_backward")
cdef int LOG_SOFTMAX_FORWARD = kernel_at(CU_SOFTMAX, b"log_softmax_forward")
cdef int LOG_SOFTMAX_BACKWARD = kernel_at(CU_SOFTMAX, b"log_softmax_backward")
cdef int LOGSUMEXP_FORWARD = kernel_at(CU_SOFTMAX, b"logsumexp_forward")
cdef int LOGSUMEXP_BACKWARD = kernel_at(CU_SOFTMAX, b"logsumexp_backward")
cdef int SPARSEMAX_FORWARD = kernel_at(CU_SOFTMAX, b"sparsemax_forward")
cdef int SPARSEMAX_BACKWARD = kernel_at(CU_SOFTMAX, b"sparsemax_backward")
cdef int RESTRICTED_FORWARD = kernel_at(CU_SOFTMAX, b"restricted_forward")
cdef int RESTRICTED_BACKWARD = kernel_at(CU_SOFTMAX, b"restricted_backward")
cdef int LOGSUMEXP_OF_LIST_FORWARD = kernel_at(CU_SOFTMAX, b"logsumexp_of_list_forward")
cdef int LOGSUMEXP_OF_LIST_BACKWARD = kernel_at(CU_SOFTMAX, b"logsumexp_of_list_backward")
cdef int HINGE_FORWARD = kernel_at(CU_SOFTMAX, b"hinge_forward")
cdef int HINGE_BACKWARD = kernel_at(CU_SOFTMAX, b"hinge_backward")


cdef int pickneglogsoftmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    return launch_rows(gpu, PICKNEGLOGSOFTMAX_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, c.saved,
                       c.y.v)


cdef int pickneglogsoftmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    return launch_each(gpu, PICKNEGLOGSOFTMAX_BACKWARD, n * elements, batch, n, c.x[0].v, c.x[0].bstride, c.items,
                       c.saved, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"pickneglogsoftmax", CU_SOFTMAX, pickneglogsoftmax_forward, pickneglogsoftmax_backward)
op.assigns = True


cdef size_t pickneglogsoftmax_at_saved(const Call* c) noexcept nogil:
    return 3 * <size_t>c.y.dim.bd


cdef int pickneglogsoftmax_at_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    find_positions(gpu, c, &c.x[1], n, 0, <uint32_t*>(c.saved + 2 * batch))
    return launch_rows(gpu, PICKNEGLOGSOFTMAX_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride,
                       <const uint32_t*>(c.saved + 2 * batch), c.saved, c.y.v)


cdef int pickneglogsoftmax_at_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    if i:
        return 0 if c.accumulate else fill(gpu, total_of(&c.dx.dim), 0, c.dx.v)
    return launch_each(gpu, PICKNEGLOGSOFTMAX_BACKWARD, n * elements, batch, n, c.x[0].v, c.x[0].bstride,
                       <const uint32_t*>(c.saved + 2 * batch), c.saved, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"pickneglogsoftmax_at", CU_SOFTMAX, pickneglogsoftmax_at_forward, pickneglogsoftmax_at_backward)
needs_module(op, CU_POSITIONS)
op.saved = pickneglogsoftmax_at_saved
op.assigns = True


cdef int softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * c.x[0].dim.bd
    if step >= 32:
        return launch_each(gpu, SOFTMAX_FORWARD, lines, lines, n, step, c.x[0].v, x_lines, c.y.v, c.saved, 0)
    return launch_rows(gpu, SOFTMAX_FORWARD, lines, n, lines, n, step, c.x[0].v, x_lines, c.y.v, c.saved, 1)


cdef int softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * elements
    if step >= 32:
        return launch_each(gpu, SOFTMAX_BACKWARD, x_lines, lines, n, step, c.x[0].v, c.y.v, c.saved, c.dy.v, x_lines,
                           c.dx.v, c.accumulate, 0)
    return launch_rows(gpu, SOFTMAX_BACKWARD, x_lines, n, lines, n, step, c.x[0].v, c.y.v, c.saved, c.dy.v, x_lines,
                       c.dx.v, c.accumulate, 1)


op = gpu_op(b"softmax", CU_SOFTMAX, softmax_forward, softmax_backward)
op.assigns = True


cdef int log_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * c.x[0].dim.bd
    if step >= 32:
        return launch_each(gpu, LOG_SOFTMAX_FORWARD, lines, lines, n, step, c.x[0].v, x_lines, c.y.v, c.saved, 0)
    return launch_rows(gpu, LOG_SOFTMAX_FORWARD, lines, n, lines, n, step, c.x[0].v, x_lines, c.y.v, c.saved, 1)


cdef int log_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * elements
    if step >= 32:
        return launch_each(gpu, LOG_SOFTMAX_BACKWARD, x_lines, lines, n, step, c.x[0].v, c.y.v, c.saved, c.dy.v,
                           x_lines, c.dx.v, c.accumulate, 0)
    return launch_rows(gpu, LOG_SOFTMAX_BACKWARD, x_lines, n, lines, n, step, c.x[0].v, c.y.v, c.saved, c.dy.v, x_lines,
                       c.dx.v, c.accumulate, 1)


op = gpu_op(b"log_softmax", CU_SOFTMAX, log_softmax_forward, log_softmax_backward)
op.assigns = True

op = gpu_op(b"log_softmax_along", CU_SOFTMAX, log_softmax_forward, log_softmax_backward)
op.assigns = True


cdef int logsumexp_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * c.x[0].dim.bd
    if step >= 32:
        return launch_each(gpu, LOGSUMEXP_FORWARD, lines, lines, n, step, c.x[0].v, x_lines, c.y.v, c.saved, 0)
    return launch_rows(gpu, LOGSUMEXP_FORWARD, lines, n, lines, n, step, c.x[0].v, x_lines, c.y.v, c.saved, 1)


cdef int logsumexp_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t n = s.len, step = s.pre, lines = s.pre * s.post * batch, x_lines = s.pre * s.post * elements
    if step >= 32:
        return launch_each(gpu, LOGSUMEXP_BACKWARD, x_lines, lines, n, step, c.x[0].v, c.y.v, c.saved, c.dy.v, x_lines,
                           c.dx.v, c.accumulate, 0)
    return launch_rows(gpu, LOGSUMEXP_BACKWARD, x_lines, n, lines, n, step, c.x[0].v, c.y.v, c.saved, c.dy.v, x_lines,
                       c.dx.v, c.accumulate, 1)


op = gpu_op(b"logsumexp_dim", CU_SOFTMAX, logsumexp_dim_forward, logsumexp_dim_backward)
op.assigns = True


cdef int sparsemax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim), cols = cols_of(&c.y.dim), lines = cols * batch
    cdef size_t x_lines = cols * c.x[0].dim.bd
    return launch_rows(gpu, SPARSEMAX_FORWARD, lines, n, lines, n, c.x[0].v, x_lines, c.y.v)


cdef int sparsemax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), cols = cols_of(&c.y.dim)
    cdef size_t lines = cols * batch, x_lines = cols * elements
    return launch_rows(gpu, SPARSEMAX_BACKWARD, x_lines, n, lines, n, c.y.v, c.dy.v, x_lines, c.dx.v, c.accumulate)


op = gpu_op(b"sparsemax", CU_SOFTMAX, sparsemax_forward, sparsemax_backward)
op.assigns = True


cdef int restricted_log_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim), count = c.item_count
    return launch_rows(gpu, RESTRICTED_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.items, count, c.y.v)


cdef int restricted_log_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim), count = c.item_count
    return launch_rows(gpu, RESTRICTED_BACKWARD, elements, count, batch, n, c.items, count, c.y.v, c.dy.v, c.dx.v,
                       c.dx.bstride)


op = gpu_op(b"restricted_log_softmax", CU_SOFTMAX, restricted_log_softmax_forward, restricted_log_softmax_backward)


cdef int logsumexp_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = size_of(&c.y.dim)
    cdef uint32_t first = 0
    cdef Some some
    while first == 0 or first < c.n - 0:
        some = some_of(c, 0, first)
        launch_each(gpu, LOGSUMEXP_OF_LIST_FORWARD, total, total, n, value_at(&some), c.saved, c.y.v)
        first += SOME
    return gpu.error


cdef int logsumexp_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    return launch_each(gpu, LOGSUMEXP_OF_LIST_BACKWARD, n, total, n, c.x[i].v, c.saved, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"logsumexp", CU_SOFTMAX, logsumexp_forward, logsumexp_backward)
op.assigns = True


cdef int hinge_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float margin = <float>c.attrs[0].f
    return launch_rows(gpu, HINGE_FORWARD, batch, n, batch, n, margin, c.x[0].v, c.x[0].bstride, c.items, c.y.v)


cdef int hinge_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float margin = <float>c.attrs[0].f
    return launch_rows(gpu, HINGE_BACKWARD, elements, n, batch, n, margin, c.x[0].v, c.x[0].bstride, c.items, c.dy.v,
                       c.dx.v)


op = gpu_op(b"hinge", CU_SOFTMAX, hinge_forward, hinge_backward)

cdef int CU_CONSTRAINED = module_at(b"constrained")
cdef int CONSTRAINED_FORWARD = kernel_at(CU_CONSTRAINED, b"constrained_forward")
cdef int CONSTRAINED_BACKWARD = kernel_at(CU_CONSTRAINED, b"constrained_backward")


cdef int constrained_softmax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_rows(gpu, CONSTRAINED_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.saved, c.y.v)


cdef int constrained_softmax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim)
    return launch_rows(gpu, CONSTRAINED_BACKWARD, elements, n, batch, n, i, c.saved, c.y.v, c.dy.v, elements, c.dx.v)


op = gpu_op(b"constrained_softmax", CU_CONSTRAINED, constrained_softmax_forward, constrained_softmax_backward)

cdef int CU_LOSSES = module_at(b"losses")
cdef int PAIR_FORWARD_SQUARED_DIFFERENCE = kernel_at(CU_LOSSES, b"pair_forward_squared_difference")
cdef int PAIR_BACKWARD_0_SQUARED_DIFFERENCE = kernel_at(CU_LOSSES, b"pair_backward_0_squared_difference")
cdef int PAIR_BACKWARD_1_SQUARED_DIFFERENCE = kernel_at(CU_LOSSES, b"pair_backward_1_squared_difference")
cdef int PAIR_FORWARD_ABS_DIFFERENCE = kernel_at(CU_LOSSES, b"pair_forward_abs_difference")
cdef int PAIR_BACKWARD_0_ABS_DIFFERENCE = kernel_at(CU_LOSSES, b"pair_backward_0_abs_difference")
cdef int PAIR_BACKWARD_1_ABS_DIFFERENCE = kernel_at(CU_LOSSES, b"pair_backward_1_abs_difference")
cdef int PAIR_FORWARD_BINARY_LOG_LOSS = kernel_at(CU_LOSSES, b"pair_forward_binary_log_loss")
cdef int PAIR_BACKWARD_0_BINARY_LOG_LOSS = kernel_at(CU_LOSSES, b"pair_backward_0_binary_log_loss")
cdef int PAIR_BACKWARD_1_BINARY_LOG_LOSS = kernel_at(CU_LOSSES, b"pair_backward_1_binary_log_loss")
cdef int PAIR_FORWARD_HUBER = kernel_at(CU_LOSSES, b"pair_forward_huber")
cdef int PAIR_BACKWARD_0_HUBER = kernel_at(CU_LOSSES, b"pair_backward_0_huber")
cdef int PAIR_BACKWARD_1_HUBER = kernel_at(CU_LOSSES, b"pair_backward_1_huber")
cdef int PAIRWISE_FORWARD = kernel_at(CU_LOSSES, b"pairwise_forward")
cdef int PAIRWISE_BACKWARD = kernel_at(CU_LOSSES, b"pairwise_backward")
cdef int POISSON_FORWARD = kernel_at(CU_LOSSES, b"poisson_forward")
cdef int POISSON_BACKWARD = kernel_at(CU_LOSSES, b"poisson_backward")


cdef int squared_distance_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_SQUARED_DIFFERENCE, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int squared_distance_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_SQUARED_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_SQUARED_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"squared_distance", CU_LOSSES, squared_distance_forward, squared_distance_backward)
op.assigns = True


cdef int l1_distance_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_ABS_DIFFERENCE, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int l1_distance_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_ABS_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_ABS_DIFFERENCE, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"l1_distance", CU_LOSSES, l1_distance_forward, l1_distance_backward)
op.assigns = True


cdef int binary_log_loss_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_BINARY_LOG_LOSS, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int binary_log_loss_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_BINARY_LOG_LOSS, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_BINARY_LOG_LOSS, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride,
                       c.x[1].v, c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"binary_log_loss", CU_LOSSES, binary_log_loss_forward, binary_log_loss_backward)
op.assigns = True


cdef int huber_distance_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    return launch_rows(gpu, PAIR_FORWARD_HUBER, batch, n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.y.v)


cdef int huber_distance_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.x[0].dim)
    cdef float p = <float>c.attrs[0].f
    if i == 0:
        return launch_each(gpu, PAIR_BACKWARD_0_HUBER, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                           c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)
    return launch_each(gpu, PAIR_BACKWARD_1_HUBER, elements * n, batch, n, p, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, c.dx.v, elements, c.accumulate)


op = gpu_op(b"huber_distance", CU_LOSSES, huber_distance_forward, huber_distance_backward)
op.assigns = True


cdef int pairwise_rank_loss_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim)
    cdef float m = <float>c.attrs[0].f
    cdef size_t na = total_of(&c.x[0].dim), nb = total_of(&c.x[1].dim)
    return launch_each(gpu, PAIRWISE_FORWARD, total, total, m, c.x[0].v, na, c.x[1].v, nb, c.y.v)


cdef int pairwise_rank_loss_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    cdef float sign = <float>(1 if i else -1)
    return launch_each(gpu, PAIRWISE_BACKWARD, n, total, n, sign, c.y.v, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"pairwise_rank_loss", CU_LOSSES, pairwise_rank_loss_forward, pairwise_rank_loss_backward)
op.assigns = True


cdef int poisson_loss_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    return launch_each(gpu, POISSON_FORWARD, batch, batch, c.x[0].v, c.x[0].bstride, c.items, c.y.v)


cdef int poisson_loss_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    return launch_each(gpu, POISSON_BACKWARD, elements, batch, c.x[0].v, c.x[0].bstride, c.items, c.dy.v, elements,
                       c.dx.v, c.accumulate)


op = gpu_op(b"poisson_loss", CU_LOSSES, poisson_loss_forward, poisson_loss_backward)
op.assigns = True

cdef int CU_CRF = module_at(b"crf")
cdef int CRF_ALPHAS = kernel_at(CU_CRF, b"crf_alphas")
cdef int CRF_BETAS = kernel_at(CU_CRF, b"crf_betas")
cdef int CRF_TRANSITIONS_BACKWARD = kernel_at(CU_CRF, b"crf_transitions_backward")
cdef int CRF_MARGINALS = kernel_at(CU_CRF, b"crf_marginals")
cdef int CRF_VITERBI = kernel_at(CU_CRF, b"crf_viterbi")
cdef int CHAIN_FORWARD = kernel_at(CU_CRF, b"chain_forward")
cdef int CHAIN_BACKWARD = kernel_at(CU_CRF, b"chain_backward")


cdef int crf_log_partition_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n
    cdef size_t apart = 2 * size + 2 * n + 3, lowered = 2 * size
    return launch_rows(gpu, CRF_ALPHAS, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, c.items if c.item_count else NULL,
                       apart, c.saved, lowered, c.y.v)


cdef int crf_log_partition_begin_backward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n
    cdef size_t apart = 2 * size + 2 * n + 3, lowered = 2 * size
    return launch_rows(gpu, CRF_BETAS, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v,
                       c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, c.items if c.item_count else NULL, apart,
                       c.saved, lowered, c.saved + size)


cdef int crf_log_partition_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    cdef size_t size = tags * n, apart = 2 * size + 2 * n + 3, own = elements
    if i == 1:
        return launch_each(gpu, CRF_TRANSITIONS_BACKWARD, own * tags * tags, own, batch, c.x[0].v, c.x[0].bstride,
                           c.x[1].v, c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n,
                           c.items if c.item_count else NULL, apart, c.saved, c.saved + size, c.saved + 2 * size,
                           c.dy.v, c.dx.v)
    cdef size_t count = size if i == 0 else tags, offset = size - tags if i == 3 else 0
    return launch_each(gpu, CRF_MARGINALS, own * count, own, batch, count, offset, apart, tags, n,
                       c.items if c.item_count else NULL, c.saved, c.saved + size, c.dy.v, c.dx.v)


cdef size_t crf_log_partition_saved(const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n
    cdef size_t apart = 2 * size + 2 * n + 3
    return apart * batch


op = gpu_op(b"crf_log_partition", CU_CRF, crf_log_partition_forward, crf_log_partition_backward)
op.begin_backward = crf_log_partition_begin_backward
op.saved = crf_log_partition_saved

op = gpu_op(b"crf_loss", CU_CRF, crf_log_partition_forward, crf_log_partition_backward)
op.begin_backward = crf_log_partition_begin_backward
op.saved = crf_log_partition_saved


cdef int crf_marginals_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n
    cdef size_t apart = 2 * size + 2 * n + 3, lowered = 2 * size
    launch_rows(gpu, CRF_ALPHAS, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v,
                c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, NULL, apart, c.work, lowered, NULL)
    launch_rows(gpu, CRF_BETAS, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v,
                c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, NULL, apart, c.work, lowered, c.work + size)
    cdef size_t own = batch, count = size, offset = 0
    return launch_each(gpu, CRF_MARGINALS, batch * size, own, batch, count, offset, apart, tags, n, NULL, c.work,
                       c.work + size, NULL, c.y.v)


cdef size_t crf_marginals_work(const Call* c, int i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n
    cdef size_t apart = 2 * size + 2 * n + 3
    return apart * batch


op = gpu_op(b"crf_marginals", CU_CRF, crf_marginals_forward, NULL)
op.work = crf_marginals_work


cdef int crf_viterbi_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    cdef uint32_t function = c.attrs[0].u
    return launch_rows(gpu, CRF_VITERBI, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, NULL, function, refused_of(gpu),
                       c.work, c.y.v)


cdef size_t crf_viterbi_work(const Call* c, int i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    return ((n + 2) * tags + n + 3) * batch


op = gpu_op(b"crf_viterbi", CU_CRF, crf_viterbi_forward, NULL)
op.work = crf_viterbi_work


cdef int label_chain_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, states = rows_of(&c.x[0].dim), frames = cols_of(&c.x[0].dim)
    return launch_rows(gpu, CHAIN_FORWARD, batch, states, batch, states, frames, c.x[0].v, c.x[0].bstride, c.items,
                       c.saved, c.y.v)


cdef int label_chain_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, states = rows_of(&c.x[0].dim), frames = cols_of(&c.x[0].dim)
    return launch_rows(gpu, CHAIN_BACKWARD, elements, states, batch, states, frames, c.x[0].v, c.x[0].bstride, c.items,
                       c.saved, c.work, c.dy.v, elements, c.dx.v)


cdef size_t label_chain_work(const Call* c, int i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, states = rows_of(&c.x[0].dim)
    return 2 * states * batch if i >= 0 else 0


op = gpu_op(b"label_chain", CU_CRF, label_chain_forward, label_chain_backward)
op.work = label_chain_work

cdef int CU_ATTENTION = module_at(b"attention")
cdef int ATTENTION_FORWARD = kernel_at(CU_ATTENTION, b"attention_forward")
cdef int ATTENTION_MEANS = kernel_at(CU_ATTENTION, b"attention_means")
cdef int ATTENTION_BACKWARD_Q = kernel_at(CU_ATTENTION, b"attention_backward_q")
cdef int ATTENTION_BACKWARD_BIAS = kernel_at(CU_ATTENTION, b"attention_backward_bias")
cdef int ATTENTION_BACKWARD_KV = kernel_at(CU_ATTENTION, b"attention_backward_kv")


cdef int scaled_dot_product_attention_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Attention p = attention_of(c)
    cdef size_t blocks = sums_of(c)
    return launch_rows(gpu, ATTENTION_FORWARD, blocks, p.n, blocks, value_at(&p), c.y.v)


cdef int scaled_dot_product_attention_begin_backward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Attention p = attention_backward_of(c)
    cdef size_t blocks = sums_of(c)
    return launch_rows(gpu, ATTENTION_MEANS, blocks, p.value_rows, blocks, value_at(&p), c.saved + 2 * blocks)


cdef int scaled_dot_product_attention_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Attention p = attention_backward_of(c)
    cdef size_t blocks = size_of(&c.dx.dim) * elements // (1 if i == 3 else p.value_rows if i == 2 else p.rows)
    if i == 0:
        return launch_rows(gpu, ATTENTION_BACKWARD_Q, blocks, p.n, blocks, elements, batch, value_at(&p), c.dx.v)
    if i == 3:
        return launch_rows(gpu, ATTENTION_BACKWARD_BIAS, blocks, p.m, blocks, elements, batch, value_at(&p), c.dx.v)
    return launch_rows(gpu, ATTENTION_BACKWARD_KV, blocks, p.m, blocks, elements, batch, i == 2, value_at(&p), c.dx.v)


cdef size_t scaled_dot_product_attention_saved(const Call* c) noexcept nogil:
    return 3 * sums_of(c)


op = gpu_op(b"scaled_dot_product_attention", CU_ATTENTION, scaled_dot_product_attention_forward,
            scaled_dot_product_attention_backward)
op.begin_backward = scaled_dot_product_attention_begin_backward
op.saved = scaled_dot_product_attention_saved

op = gpu_op(b"scaled_dot_product_attention_dropout", CU_ATTENTION, scaled_dot_product_attention_forward,
            scaled_dot_product_attention_backward)
op.begin_backward = scaled_dot_product_attention_begin_backward
op.saved = scaled_dot_product_attention_saved
op.draws = True
# end of launches
