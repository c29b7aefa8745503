"""The parts of an LSTM cell."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Tensor, rows_of, total_of
from dynet_cy.gpu.base cimport BASE, pass_scaled
from dynet_cy.gpu.driver cimport Gpu, GpuOp, fill, launch_each, launch_rows
from dynet_cy.gpu.linalg cimport (
    LINALG, add_scaled_elements, multiply, multiply_backward_a, multiply_backward_b,
)
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at, needs_module
from dynet_cy.ops.linalg cimport factors_of_a
from dynet_cy.ops.registry cimport Factors

cdef int CU = module_at(b"cells")


# ---- vanilla_lstm_gates: y = act(b + Wh h + Wx1 x1 + Wx2 x2 + ...) -------------
# The gradient of the sums, which all arguments need, is stored in place of the saved
# values.  Working memory: |(h, x)|^2 of each batch element, and the slope of the noise.

cdef int GATES_FORWARD = kernel_at(CU, b"lstm_gates_forward")
cdef int GATES_BACKWARD = kernel_at(CU, b"lstm_gates_backward")
cdef int ADD_SQUARES = kernel_at(CU, b"add_squares")
cdef int ADD_NOISE = kernel_at(CU, b"add_weight_noise")
cdef int NOISE_SLOPES = kernel_at(CU, b"weight_noise_slopes")


cdef Tensor block_of(const Tensor* w, const Tensor* x, size_t offset) noexcept nogil:
    """The columns of w, from number `offset` on, that belong to x."""
    cdef Tensor part = w[0]
    part.dim.nd = 2
    part.dim.d[1] = rows_of(&x.dim)
    part.v += offset * rows_of(&w.dim)
    return part


cdef int squares_of_inputs(Gpu* gpu, const Call* c) noexcept nogil:
    """Store |(h, x)|^2 of each batch element in the working memory."""
    cdef size_t n, batch = c.y.dim.bd
    cdef uint32_t i
    for i in range(2, c.n, 2):
        n = rows_of(&c.x[i].dim)
        launch_rows(gpu, ADD_SQUARES, batch, n, batch, n, c.x[i].v, c.x[i].bstride, c.work, i > 2)
    return gpu.error


cdef int gates_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t m = rows_of(&c.y.dim), batch = c.y.dim.bd, offset = 0
    cdef uint32_t i
    cdef Tensor part
    if m == 0:
        return 0
    multiply(gpu, &c.x[1], &c.x[2], &c.y, 0)
    for i in range(3, c.n, 2):
        part = block_of(&c.x[i], &c.x[i + 1], offset)
        multiply(gpu, &part, &c.x[i + 1], &c.y, 1)
        offset += rows_of(&c.x[i + 1].dim)
    if c.attrs[0].f != 0:
        squares_of_inputs(gpu, c)
        launch_each(gpu, ADD_NOISE, batch * m, batch, m, <const void*>c.seed, c.items, c.attrs[0].f, c.work, c.y.v)
    return launch_each(gpu, GATES_FORWARD, batch * m, batch, m // 4, 1.0, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int gates_begin(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t m = rows_of(&c.y.dim), batch = c.y.dim.bd
    return launch_each(gpu, GATES_BACKWARD, batch * m, batch, m // 4, c.y.v, c.dy.v, c.saved)


cdef Tensor gradient_of_sums(const Call* c) noexcept nogil:
    cdef Tensor dsums = c.y
    dsums.v = c.saved
    return dsums


cdef void gates_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    cdef Tensor dsums = gradient_of_sums(c)
    if i % 2 and (i == 1 or c.n == 5):
        factors_of_a(&c.x[i], &c.x[i + 1], &dsums, f)


cdef float* gates_same(const Call* c, uint32_t i) noexcept nogil:
    """The gradient of the bias equals that of the sums, if each batch element has its own bias."""
    return c.saved if i == 0 and c.x[0].dim.bd == c.y.dim.bd else NULL


cdef int noise_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    """The gradient of x or h through the standard deviation of the noise."""
    cdef size_t m = rows_of(&c.y.dim), batch = c.y.dim.bd
    cdef float* slopes = c.work + batch
    squares_of_inputs(gpu, c)
    launch_rows(gpu, NOISE_SLOPES, batch, m,
                batch, m, <const void*>c.seed, c.items, c.attrs[0].f, c.work, c.saved, slopes)
    return add_scaled_elements(gpu, &c.x[i], slopes, batch, &c.dx)


cdef int gates_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Tensor dsums = gradient_of_sums(c), part
    cdef bint accumulate = c.accumulate
    if i == 0:
        return pass_scaled(gpu, &dsums, 1, &c.dx, accumulate)
    if i == 1:
        return multiply_backward_a(gpu, &c.x[2], &dsums, &c.dx, accumulate)
    if i == 2:
        multiply_backward_b(gpu, &c.x[1], &dsums, &c.dx, accumulate)
    elif i % 2:
        if c.n > 5 and not accumulate:          # only the columns of this input are written below
            fill(gpu, total_of(&c.dx.dim), 0, c.dx.v)
            accumulate = True
        part = block_of(&c.dx, &c.x[i + 1], c.before)
        return multiply_backward_a(gpu, &c.x[i + 1], &dsums, &part, accumulate)
    else:
        part = block_of(&c.x[i - 1], &c.x[i], c.before)
        multiply_backward_b(gpu, &part, &dsums, &c.dx, accumulate)
    if c.attrs[0].f != 0:
        noise_backward(gpu, c, i)
    return gpu.error


cdef size_t gates_work(const Call* c, int i) noexcept nogil:
    return 2 * <size_t>c.y.dim.bd if c.attrs[0].f != 0 else 0


cdef GpuOp* op
cdef bytes name
for name in (b"vanilla_lstm_gates", b"vanilla_lstm_gates_noise", b"vanilla_lstm_gates_projected"):
    op = gpu_op(name, CU, gates_forward, gates_backward)
    needs_module(op, BASE)
    needs_module(op, LINALG)
    op.begin = gates_begin
    op.factors = gates_factors
    op.same = gates_same
    op.work = gates_work
    op.assigns = True
    op.draws = name == b"vanilla_lstm_gates_noise"


# derived: launches
from dynet_cy.core.tensor cimport size_of

cdef int PART_MASKED = kernel_at(CU, b"part_masked")
cdef int PART_MASKED_BACKWARD = kernel_at(CU, b"part_masked_backward")
cdef int LSTM_C_FORWARD = kernel_at(CU, b"lstm_c_forward")
cdef int LSTM_C_BACKWARD_C = kernel_at(CU, b"lstm_c_backward_c")
cdef int LSTM_C_BACKWARD_GATES = kernel_at(CU, b"lstm_c_backward_gates")
cdef int LSTM_H_FORWARD = kernel_at(CU, b"lstm_h_forward")
cdef int LSTM_H_BACKWARD_C = kernel_at(CU, b"lstm_h_backward_c")
cdef int LSTM_H_BACKWARD_GATES = kernel_at(CU, b"lstm_h_backward_gates")


cdef int dropout_mask_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim), offset = c.attrs[0].i
    return launch_each(gpu, PART_MASKED, batch * n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v + offset,
                       c.x[1].bstride, c.y.v)


cdef int dropout_mask_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), offset = c.attrs[0].i
    cdef size_t dx_stride = size_of(&c.dx.dim)
    return launch_each(gpu, PART_MASKED_BACKWARD, elements * n, batch, n, c.x[1 - i].v + (0 if i else offset),
                       c.x[1 - i].bstride, c.dy.v, elements, c.dx.v + (offset if i else 0), dx_stride)


op = gpu_op(b"dropout_mask", CU, dropout_mask_forward, dropout_mask_backward)


cdef int vanilla_lstm_c_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, h = rows_of(&c.y.dim)
    return launch_each(gpu, LSTM_C_FORWARD, batch * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.y.v)


cdef int vanilla_lstm_c_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, h = rows_of(&c.y.dim)
    if i == 0:
        return launch_each(gpu, LSTM_C_BACKWARD_C, elements * h, batch, h, c.x[1].v, c.x[1].bstride, c.dy.v, elements,
                           c.dx.v, c.accumulate)
    return launch_each(gpu, LSTM_C_BACKWARD_GATES, elements * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"vanilla_lstm_c", CU, vanilla_lstm_c_forward, vanilla_lstm_c_backward)
op.assigns = True


cdef int vanilla_lstm_h_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, h = rows_of(&c.y.dim), at = 2 * h, stride_o = c.x[1].bstride
    return launch_each(gpu, LSTM_H_FORWARD, batch * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v + at, stride_o,
                       c.y.v)


cdef int vanilla_lstm_h_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, h = rows_of(&c.y.dim), at = 2 * h, stride_o = c.x[1].bstride
    cdef size_t rows = rows_of(&c.x[1].dim)
    if i == 0:
        return launch_each(gpu, LSTM_H_BACKWARD_C, elements * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v + at,
                           stride_o, c.dy.v, elements, c.dx.v, c.accumulate)
    return launch_each(gpu, LSTM_H_BACKWARD_GATES, elements * rows, batch, h, rows, at, c.x[0].v, c.x[0].bstride,
                       c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"vanilla_lstm_h", CU, vanilla_lstm_h_forward, vanilla_lstm_h_backward)
op.assigns = True


cdef int tree_lstm_h_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, h = rows_of(&c.y.dim), at = 1 * h, stride_o = c.x[1].bstride
    return launch_each(gpu, LSTM_H_FORWARD, batch * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v + at, stride_o,
                       c.y.v)


cdef int tree_lstm_h_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, h = rows_of(&c.y.dim), at = 1 * h, stride_o = c.x[1].bstride
    cdef size_t rows = rows_of(&c.x[1].dim)
    if i == 0:
        return launch_each(gpu, LSTM_H_BACKWARD_C, elements * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v + at,
                           stride_o, c.dy.v, elements, c.dx.v, c.accumulate)
    return launch_each(gpu, LSTM_H_BACKWARD_GATES, elements * rows, batch, h, rows, at, c.x[0].v, c.x[0].bstride,
                       c.dy.v, elements, c.dx.v, c.accumulate)


cdef size_t tree_lstm_h_saved(const Call* c) noexcept nogil:
    return 0


op = gpu_op(b"tree_lstm_h", CU, tree_lstm_h_forward, tree_lstm_h_backward)
op.saved = tree_lstm_h_saved
op.assigns = True
# end of launches
