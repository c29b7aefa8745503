"""Products of matrices and tensors, by cuBLAS; circular convolutions, inverses and determinants; cells."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Packed, Tensor, cols_of, rows_of, size_of, total_of
from dynet_cy.gpu.driver cimport OUTPUT, Gpu, GpuOp, fill, gemm, gemm_strided, launch_each, launch_rows
from dynet_cy.gpu.registry cimport (
    BASE, Axes, axes_of, contract, contract_list, expand, expand_list, gpu_op, gpu_op_named, kernel_at, module_at,
    split_axes,
)
from dynet_cy.ops cimport linalg
from dynet_cy.ops.linalg cimport Algebra, Gates, add_products, multiply
from dynet_cy.ops.recurrent cimport add_inputs
from dynet_cy.ops.registry cimport ASSIGNS, LIST, MAX_OPS, op_at

cdef GpuOp* op


# ==== linalg ======================================================================================
#
# Products of matrices and vectors, by cuBLAS, and activations. Ops that are made of these are defined in ops/linalg,
# ops/products and ops/recurrent.

cdef int CU_CELLS = module_at(b"cells")
cdef int GATES_FORWARD = kernel_at(CU_CELLS, b"gates_forward")
cdef int GATES_BACKWARD = kernel_at(CU_CELLS, b"gates_backward")
cdef Algebra gpu_algebra


cdef void product_there(void* on, bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b,
                        float beta, float* c) noexcept nogil:
    gemm(<Gpu*>on, ta, 0, m, n, k, 1, a, k if ta else m, b, k, beta, c, m)


cdef void gradient_there(void* on, bint of_parameter, size_t m, size_t k, size_t n, const float* dy, const float* x,
                         float beta, float* dw) noexcept nogil:
    gemm(<Gpu*>on, 0, 1, m, k, n, 1, dy, m, x, k, beta, dw, m)


cdef void gemm_there(void* on, bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
                     size_t stride_a, const float* b, size_t ldb, size_t stride_b, float beta, float* c, size_t ldc,
                     size_t stride_c, size_t count) noexcept nogil:
    cdef size_t i
    if count > 1 and stride_c:
        gemm_strided(<Gpu*>on, ta, tb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c,
                     count)
        return
    for i in range(count):
        gemm(<Gpu*>on, ta, tb, m, n, k, alpha, a + i * stride_a, lda, b + i * stride_b, ldb, 1 if i else beta, c, ldc)


cdef void zero_there(void* on, size_t n, float* to) noexcept nogil:
    fill(<Gpu*>on, n, 0, to)


cdef Tensor as_matrix(const Tensor* x) noexcept nogil:
    """x with all axes after the first merged into one; of a list, its first batch element."""
    cdef Tensor y = x[0]
    y.dim.nd = 2
    y.dim.d[0] = rows_of(&x.dim)
    y.dim.d[1] = <uint32_t>cols_of(&x.dim)
    return y


cdef bint begin_sum_there(const Call* c) noexcept nogil:
    cdef Tensor y = as_matrix(&c.y), b = as_matrix(&c.x[0])
    cdef Axes axes
    if b.list != NULL:
        y.dim.bd = b.dim.bd = 1
    axes = axes_of(&y.dim, &b.dim, &b.dim)
    if b.list != NULL:
        expand_list(<Gpu*>c.on, c.y.dim.bd, &axes, 1, <const void*>b.list, c.y.v, 0)
    else:
        expand(<Gpu*>c.on, &axes, 1, b.v, y.v, 0)
    return False


cdef void add_to_bias_there(void* on, const Tensor* dy, const Tensor* db, bint accumulate) noexcept nogil:
    cdef Tensor y = as_matrix(dy), b = as_matrix(db)
    cdef Axes kept, reduced
    if b.list != NULL:
        y.dim.bd = b.dim.bd = 1
    split_axes(&y.dim, &y.dim, &y.dim, &b.dim, &kept, &reduced)
    if b.list != NULL:
        contract_list(<Gpu*>on, dy.dim.bd, dy.bstride, &kept, &reduced, 1, dy.v, <const void*>b.list, accumulate)
    else:
        contract(<Gpu*>on, &kept, &reduced, 1, dy.v, db.v, accumulate)


cdef void activate_there(void* on, const Gates* g, float* y) noexcept nogil:
    cdef size_t n = g.rows * g.columns
    launch_each(<Gpu*>on, GATES_FORWARD, n, n, g.rows, g.first, g.tanh, y)


cdef void activate_backward_there(void* on, const Gates* g, const float* y, const float* dy,
                                  float* dsums) noexcept nogil:
    cdef size_t n = g.rows * g.columns
    launch_each(<Gpu*>on, GATES_BACKWARD, n, n, g.rows, g.first, g.tanh, y, dy, dsums)


gpu_algebra = Algebra(product_there, gradient_there, gemm_there, zero_there, begin_sum_there, add_to_bias_there,
                      activate_there, activate_backward_there)
linalg.there = &gpu_algebra


cdef int forward(Gpu* gpu, const Call* c) noexcept nogil:
    op_at(gpu.op).forward(c)
    return gpu.error


cdef int begin_backward(Gpu* gpu, const Call* c) noexcept nogil:
    op_at(gpu.op).prepare(c)
    return gpu.error


cdef int backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    op_at(gpu.op).backward(c, i)
    return gpu.error


cdef int number
for number in range(MAX_OPS):
    if op_at(number).anywhere:
        op = gpu_op(op_at(number).name, BASE, forward, backward, ASSIGNS)
        op.lists = op_at(number).rule[0] == LIST
        if op_at(number).prepare != NULL:
            op.begin_backward = begin_backward
            needs_module(op, CU_CELLS)


# ---- affine_transform ------------------------------------------------------------

cdef int affine_sums(Gpu* gpu, const Call* c) noexcept nogil:
    """Add the products to y, which is the bias."""
    add_products(c, 1)
    return gpu.error


cdef float* same_as_sum(const Call* c, uint32_t i) noexcept nogil:
    """The gradient of a bias that is not broadcast is that of the sum."""
    if i or total_of(&c.x[0].dim) != total_of(&c.y.dim):
        return NULL
    return c.dy.v if c.work == NULL else c.work


op = gpu_op_named(b"affine_transform")
op.same = same_as_sum
op.sums = affine_sums
op.adds_to_first = True


# ---- dot_product: its backward adds multiples of vectors for other ops too ------------------

cdef int CU_LINALG = module_at(b"linalg")      # kernels that are not cuBLAS calls
cdef int DOT_BACKWARD = kernel_at(CU_LINALG, b"dot_backward")


cdef int add_scaled_elements(Gpu* gpu, const Tensor* x, const float* factors, size_t batch,
                             const Tensor* dx) noexcept nogil:
    """dx_b += factor_b x_b for each batch element b; summed over the batch if dx has batch size 1."""
    cdef size_t n = size_of(&dx.dim), own = dx.dim.bd
    return launch_each(gpu, DOT_BACKWARD, n * own, batch, n, own, x.v, x.bstride, factors, dx.v, 1)


# ==== cells =======================================================================================
#
# The products of cells; cuda/cells.cu has all else.

# ---- vanilla_lstm_gates: y = act(b + Wh h + Wx1 x1 + Wx2 x2 + ...) -------------
# With noise |(h, x)|^2 of each batch element is saved, with room for the slope of the noise.

cdef int ADD_SQUARES = kernel_at(CU_CELLS, b"add_squares")
cdef int NOISE_SLOPES = kernel_at(CU_CELLS, b"weight_noise_slopes")


cdef int squares_of_inputs(Gpu* gpu, const Call* c) noexcept nogil:
    """With noise, save |(h, x)|^2 of each batch element."""
    cdef size_t n, batch = c.y.dim.bd
    cdef uint32_t i
    for i in range(2, c.n if c.attrs[0].f != 0 else 0, 2):
        n = rows_of(&c.x[i].dim)
        launch_rows(gpu, ADD_SQUARES, batch, n, batch, n, c.x[i].v, c.x[i].bstride, c.saved, i > 2)
    return gpu.error


cdef int gates_sums(Gpu* gpu, const Call* c) noexcept nogil:
    """The sums without the bias."""
    multiply(gpu, &c.x[1], &c.x[2], &c.y, 0)
    add_inputs(c)
    return gpu.error


cdef size_t squares_saved(const Call* c) noexcept nogil:
    return 2 * <size_t>c.y.dim.bd


cdef int noise_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    """The gradient of x or h through the standard deviation of the noise."""
    cdef size_t m = rows_of(&c.y.dim), batch = c.y.dim.bd
    cdef float* slopes = c.saved + batch
    launch_rows(gpu, NOISE_SLOPES, batch, m,
                batch, m, <const void*>c.seed, c.items, c.attrs[0].f, c.saved, c.work, slopes)
    return add_scaled_elements(gpu, &c.x[i], slopes, batch, &c.dx)


# derived: launches of linalg, contract, inverse, cells
from dynet_cy.gpu.driver cimport STATE, SUMS, value_at
from dynet_cy.gpu.registry cimport SOME, Some, needs_module, some_of
from dynet_cy.ops.products cimport inverse_back
from dynet_cy.ops.recurrent cimport gates_backward

cdef int DOT_FORWARD = kernel_at(CU_LINALG, b"dot_forward")


cdef int dot_product_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.x[0].dim)
    return launch_rows(gpu, DOT_FORWARD, batch, n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v)


cdef int dot_product_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.dx.dim)
    return launch_each(gpu, DOT_BACKWARD, elements * n, batch, n, elements, c.x[1 - i].v, c.x[1 - i].bstride, c.dy.v,
                       c.dx.v, c.accumulate)


op = gpu_op(b"dot_product", CU_LINALG, dot_product_forward, dot_product_backward)
op.assigns = True

cdef int CU_CONTRACT = module_at(b"contract")
cdef int CIRCULAR = kernel_at(CU_CONTRACT, b"circular")


cdef int circ_conv_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_each(gpu, CIRCULAR, batch * n, batch, n, 0, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v,
                       batch, 0)


cdef int circ_conv_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), stride_a = c.x[1 - i].bstride
    cdef size_t stride_b = n
    return launch_each(gpu, CIRCULAR, elements * n, batch, n, 1, c.x[1 - i].v, stride_a, c.dy.v, stride_b, c.dx.v,
                       elements, c.accumulate)


op = gpu_op(b"circ_conv", CU_CONTRACT, circ_conv_forward, circ_conv_backward)
op.assigns = True


cdef int circ_corr_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    return launch_each(gpu, CIRCULAR, batch * n, batch, n, 1, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.y.v,
                       batch, 0)


cdef int circ_corr_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), stride_a = n
    cdef size_t stride_b = c.x[1 - i].bstride
    return launch_each(gpu, CIRCULAR, elements * n, batch, n, i == 0, c.dy.v, stride_a, c.x[1 - i].v, stride_b, c.dx.v,
                       elements, c.accumulate)


op = gpu_op(b"circ_corr", CU_CONTRACT, circ_corr_forward, circ_corr_backward)
op.assigns = True

cdef int CU_INVERSE = module_at(b"inverse")
cdef int INVERT = kernel_at(CU_INVERSE, b"invert")
cdef int LOGDET_BACKWARD = kernel_at(CU_INVERSE, b"logdet_backward")


cdef int inverse_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    if n == 0:
        return 0
    return launch_rows(gpu, INVERT, batch, n * n, batch, n, c.x[0].v, c.x[0].bstride, c.y.v, c.work, NULL)


cdef int inverse_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    inverse_back(c, i)
    return gpu.error


cdef size_t inverse_work(const Call* c, int i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    return c.y.dim.bd * (2 * n if i < 0 else n * n)


op = gpu_op(b"inverse", CU_INVERSE, inverse_forward, inverse_backward)
op.work = inverse_work
op.assigns = True


cdef int logdet_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.x[0].dim)
    if n == 0:
        return fill(gpu, batch, 0, c.y.v)
    return launch_rows(gpu, INVERT, batch, n * n, batch, n, c.x[0].v, c.x[0].bstride, c.saved, c.work, c.y.v)


cdef int logdet_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.x[0].dim)
    return launch_each(gpu, LOGDET_BACKWARD, elements * n * n, batch, n, c.saved, c.dy.v, elements, c.dx.v,
                       c.accumulate)


cdef size_t logdet_saved(const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.x[0].dim)
    return batch * n * n


cdef size_t logdet_work(const Call* c, int i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.x[0].dim)
    return 2 * n * batch if i < 0 else 0


op = gpu_op(b"logdet", CU_INVERSE, logdet_forward, logdet_backward)
op.saved = logdet_saved
op.work = logdet_work
op.assigns = True

cdef int ADD_WEIGHT_NOISE = kernel_at(CU_CELLS, b"add_weight_noise")
cdef int LSTM_GATES_FORWARD = kernel_at(CU_CELLS, b"lstm_gates_forward")
cdef int PART_MASKED = kernel_at(CU_CELLS, b"part_masked")
cdef int PART_MASKED_BACKWARD = kernel_at(CU_CELLS, b"part_masked_backward")
cdef int LSTM_C_FORWARD = kernel_at(CU_CELLS, b"lstm_c_forward")
cdef int FORGOTTEN_BACKWARD = kernel_at(CU_CELLS, b"forgotten_backward")
cdef int LSTM_C_BACKWARD_GATES = kernel_at(CU_CELLS, b"lstm_c_backward_gates")
cdef int LSTM_H_FORWARD = kernel_at(CU_CELLS, b"lstm_h_forward")
cdef int LSTM_H_BACKWARD_C = kernel_at(CU_CELLS, b"lstm_h_backward_c")
cdef int LSTM_H_BACKWARD_GATES = kernel_at(CU_CELLS, b"lstm_h_backward_gates")
cdef int GRU_H_FORWARD = kernel_at(CU_CELLS, b"gru_h_forward")
cdef int GRU_H_BACKWARD = kernel_at(CU_CELLS, b"gru_h_backward")
cdef int TREE_C_FORWARD = kernel_at(CU_CELLS, b"tree_c_forward")
cdef int TREE_C_BACKWARD_GATES = kernel_at(CU_CELLS, b"tree_c_backward_gates")


cdef int vanilla_lstm_gates_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim)
    cdef uint32_t h = n // 4
    if n == 0:
        return 0
    cdef float s = <float>c.attrs[0].f
    gates_sums(gpu, c)
    squares_of_inputs(gpu, c)
    if s != 0:
        launch_each(gpu, ADD_WEIGHT_NOISE, batch * n, batch, n, <const void*>c.seed, c.items, s, c.saved, c.y.v)
    return launch_each(gpu, LSTM_GATES_FORWARD, batch * n, batch, h, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int vanilla_lstm_gates_begin_backward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim), h = n // 4
    return launch_each(gpu, GATES_BACKWARD, batch * n, batch * n, n, 3 * h, h, c.y.v, c.dy.v, c.work)


cdef int vanilla_lstm_gates_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    gates_backward(c, i)
    if i and i % 2 == 0 and c.attrs[0].f != 0:
        return noise_backward(gpu, c, i)
    return gpu.error


op = gpu_op(b"vanilla_lstm_gates", CU_CELLS, vanilla_lstm_gates_forward, vanilla_lstm_gates_backward)
needs_module(op, CU_LINALG)
op.begin_backward = vanilla_lstm_gates_begin_backward
op.step = SUMS
op.sums = gates_sums
op.same = same_as_sum
op.saved = NULL
op.assigns = True

op = gpu_op(b"vanilla_lstm_gates_projected", CU_CELLS, vanilla_lstm_gates_forward, vanilla_lstm_gates_backward)
needs_module(op, CU_LINALG)
op.begin_backward = vanilla_lstm_gates_begin_backward
op.step = SUMS
op.sums = gates_sums
op.same = same_as_sum
op.saved = NULL
op.assigns = True


op = gpu_op(b"vanilla_lstm_gates_noise", CU_CELLS, vanilla_lstm_gates_forward, vanilla_lstm_gates_backward)
needs_module(op, CU_LINALG)
op.begin_backward = vanilla_lstm_gates_begin_backward
op.step = 0
op.sums = gates_sums
op.same = same_as_sum
op.saved = squares_saved
op.assigns = True
op.draws = True


cdef int dropout_mask_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = rows_of(&c.y.dim), offset = c.attrs[0].i
    return launch_each(gpu, PART_MASKED, batch * n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v + offset,
                       c.x[1].bstride, c.y.v)


cdef int dropout_mask_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = rows_of(&c.y.dim), offset = c.attrs[0].i
    cdef size_t dx_stride = size_of(&c.dx.dim)
    return launch_each(gpu, PART_MASKED_BACKWARD, elements * n, batch, n, c.x[1 - i].v + (0 if i else offset),
                       c.x[1 - i].bstride, c.dy.v, elements, c.dx.v + (offset if i else 0), dx_stride)


op = gpu_op(b"dropout_mask", CU_CELLS, dropout_mask_forward, dropout_mask_backward)


cdef int vanilla_lstm_c_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, h = rows_of(&c.y.dim)
    return launch_each(gpu, LSTM_C_FORWARD, batch * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.y.v)


cdef int vanilla_lstm_c_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, h = rows_of(&c.y.dim)
    if i == 0:
        return launch_each(gpu, FORGOTTEN_BACKWARD, elements * h, batch, h, c.x[1].v + h, c.x[1].bstride, c.dy.v,
                           elements, c.dx.v, c.accumulate)
    return launch_each(gpu, LSTM_C_BACKWARD_GATES, elements * h, batch, h, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"vanilla_lstm_c", CU_CELLS, vanilla_lstm_c_forward, vanilla_lstm_c_backward)
op.step = STATE
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


op = gpu_op(b"vanilla_lstm_h", CU_CELLS, vanilla_lstm_h_forward, vanilla_lstm_h_backward)
op.step = OUTPUT
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


op = gpu_op(b"tree_lstm_h", CU_CELLS, tree_lstm_h_forward, tree_lstm_h_backward)
op.saved = tree_lstm_h_saved
op.assigns = True


cdef int gru_h_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    return launch_each(gpu, GRU_H_FORWARD, batch * n, batch, n, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.x[2].v, c.x[2].bstride, c.y.v)


cdef int gru_h_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    return launch_each(gpu, GRU_H_BACKWARD, elements * n, batch, n, i, c.x[0].v, c.x[0].bstride, c.x[1].v,
                       c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"gru_h", CU_CELLS, gru_h_forward, gru_h_backward)
op.assigns = True


cdef int tree_lstm_c_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, h = rows_of(&c.y.dim)
    if h == 0:
        return 0
    cdef uint32_t first = 0
    cdef Some some
    while first == 0 or first < c.n - 1:
        some = some_of(c, 1, first)
        launch_each(gpu, TREE_C_FORWARD, batch * h, batch, h, c.x[0].v, c.x[0].bstride, value_at(&some), c.y.v)
        first += SOME
    return gpu.error


cdef int tree_lstm_c_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, h = rows_of(&c.y.dim)
    if h == 0:
        return 0
    if i:
        return launch_each(gpu, FORGOTTEN_BACKWARD, elements * h, batch, h, c.x[0].v + (2 + i) * h, c.x[0].bstride,
                           c.dy.v, elements, c.dx.v, c.accumulate)
    cdef size_t rows = rows_of(&c.x[0].dim)
    cdef uint32_t first = 0
    cdef Some some
    while first == 0 or first < c.n - 1:
        some = some_of(c, 1, first)
        launch_each(gpu, TREE_C_BACKWARD_GATES, elements * rows, batch, h, rows, c.x[0].v, c.x[0].bstride,
                    value_at(&some), c.dy.v, elements, c.dx.v, c.accumulate)
        first += SOME
    return gpu.error


cdef size_t tree_lstm_c_saved(const Call* c) noexcept nogil:
    cdef size_t h = rows_of(&c.y.dim)
    if h == 0:
        return 0
    return 0


op = gpu_op(b"tree_lstm_c", CU_CELLS, tree_lstm_c_forward, tree_lstm_c_backward)
op.saved = tree_lstm_c_saved
op.assigns = True
# end of launches
