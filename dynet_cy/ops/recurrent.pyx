"""Cells of recurrent networks: gates, the parts of a cell, and steps that builders add to a graph."""

from libc.math cimport sqrt
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport (
    Call, Dim, Tensor, cols_of, draw_key, draw_number, element, rows_of, same_shape, size_of, total_of,
)
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport add_node, add_node_like, apply, apply2, apply2x, sequence
from dynet_cy.graph.structs cimport Extra, Graph, Node, args_of, nodes_of
from dynet_cy.kernels.kernels cimport (
    K, DY_BINARY_add, DY_BINARY_mul, DY_BINARY_sub, DY_RNG_normal, DY_UNARY_gelu, DY_UNARY_logistic, DY_UNARY_rectify,
    DY_UNARY_silu, DY_UNARY_tanh, squares_of,
)
from dynet_cy.kernels.product cimport ELEMENT_COST, in_ranges
from dynet_cy.ops.elementwise cimport BINARY, UNARY
from dynet_cy.ops.inputs cimport of_numbers, of_words, whole
from dynet_cy.ops.linalg cimport (
    AFFINE, Gates, affine_transform_dim, affine_transform_forward, algebra_of, backward_of_sum, factors_of_sum, here,
    multiply, multiply_backward_a, multiply_backward_b, product_op,
)
from dynet_cy.ops.loops cimport adds, vector
from dynet_cy.ops.registry cimport (
    ASSIGNS, BY_ELEMENT, LIST, SHARE, UNREAD_EVEN, UNREAD_FIRST, UNREAD_RESULT, Backward, Factors, Forward, Op,
    Shapes, as_many_as_y, op_at, register, same_dim,
)
from dynet_cy.schedule.rewrite cimport MOST_PRODUCTS, add_rewrite, sums_of_activations

from dynet_cy.ops.registry import DimensionError


# ==== cells =======================================================================================
#
# The parts of an LSTM cell, each one op.

# ---- vanilla_lstm_gates: y = act(b + Wh h + Wx1 x1 + Wx2 x2 + ...) -------------
# y holds the gates i, f, o, g: the first three logistic (f after adding 1 to its
# sum), the last one tanh.  Wx1, Wx2, ... are blocks of columns of one matrix Wx,
# which is passed before each x: arguments with odd numbers are weights, which
# nodes share.
#
# With weight noise, every batch element has its own noise of deviation s on all
# weights.  Its effect on a sum is normal with deviation s |(x, h, 1)|, so that is
# drawn instead.  Attributes: s.

# Cost of one element, in multiplications of a matrix product: 0.2 to 0.3 ns.
cdef enum:
    GATE_COST = 32


cdef int gates_dim(const Shapes* s, Dim* y) except -1:
    cdef size_t h, inputs = 0
    cdef uint32_t i
    for i in range(s.n):
        if (i == 0 or i % 2 == 0) and cols_of(s.x[i]) != 1:
            raise DimensionError("b, h and x must be vectors")
        if i >= 4 and i % 2 == 0:
            inputs += rows_of(s.x[i])
    h = rows_of(s.x[2])
    if rows_of(s.x[0]) != 4 * h:
        raise DimensionError(f"b has {rows_of(s.x[0])} elements, not 4 times the {h} of h")
    if s.x[1].nd > 2 or rows_of(s.x[1]) != 4 * h or cols_of(s.x[1]) != h:
        raise DimensionError(f"Wh must have the shape {{{4 * h},{h}}}")
    if s.n > 3 and (s.x[3].nd > 2 or rows_of(s.x[3]) != 4 * h or cols_of(s.x[3]) != inputs):
        raise DimensionError(f"Wx must have the shape {{{4 * h},{inputs}}}")
    return vector(y, 4 * h)


cdef inline Tensor block_of(const Tensor* w, const Tensor* x, size_t offset) noexcept nogil:
    """The columns of w, from number `offset` on, that belong to x."""
    cdef Tensor part = w[0]
    part.dim.nd = 2
    part.dim.d[1] = rows_of(&x.dim)
    part.v += offset * rows_of(&w.dim)
    if cols_of(&part.dim) != cols_of(&w.dim):
        part.pack = NULL
    return part


cdef void add_inputs(const Call* c) noexcept nogil:
    cdef size_t offset = 0
    cdef uint32_t i
    cdef Tensor part
    for i in range(3, c.n, 2):
        part = block_of(&c.x[i], &c.x[i + 1], offset)
        multiply(c.on, &part, &c.x[i + 1], &c.y, 1)
        offset += rows_of(&c.x[i + 1].dim)


cdef inline Tensor gradient_of_sums(const Call* c) noexcept nogil:
    cdef Tensor dsums = c.y
    dsums.v = c.work
    return dsums


cdef void gates_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Tensor dsums = gradient_of_sums(c), part
    cdef bint accumulate = c.accumulate
    if i < 3:
        backward_of_sum(c, &dsums, i)
    elif i % 2:
        if c.n > 5 and not accumulate:          # the columns of other inputs get no gradient here
            algebra_of(c.on).zero(c.on, total_of(&c.dx.dim), c.dx.v)
            accumulate = True
        part = block_of(&c.dx, &c.x[i + 1], c.before)
        multiply_backward_a(c.on, &c.x[i], &c.x[i + 1], &dsums, &part, accumulate)
    else:
        part = block_of(&c.x[i - 1], &c.x[i], c.before)
        multiply_backward_b(c.on, &part, &dsums, &c.dx, accumulate)


cdef void activate(void* job, size_t first, size_t end) noexcept nogil:
    """Turn the sums of some batch elements into gates."""
    cdef const Call* c = <const Call*>job
    cdef size_t m = rows_of(&c.y.dim)
    K.lstm_gates(m // 4, end - first, c.y.v + first * m, 1, c.y.v + first * m)


cdef void gates_forward(const Call* c) noexcept nogil:
    if not here.begin_sum(c):
        multiply(NULL, &c.x[1], &c.x[2], &c.y, 1)
    add_inputs(c)
    if c.attrs[0].f != 0:
        add_weight_noise(c)
    in_ranges(c.y.dim.bd, 1, rows_of(&c.y.dim) * GATE_COST, activate, <void*>c)


cdef double noise_scale(const Call* c, uint32_t b) noexcept nogil:
    """The deviation, divided by s, of the noise of batch element b's sums; draws noise of deviation 1 into `saved`."""
    cdef double total = 1
    cdef uint32_t i
    for i in range(2, c.n, 2):
        total += squares_of(rows_of(&c.x[i].dim), element(&c.x[i], b))
    K.rng[<int>DY_RNG_normal](draw_key(c, b), <uint32_t>(c.stream >> 32), draw_number(c, b), 0,
                              rows_of(&c.y.dim), 0, 1, c.saved)
    return sqrt(total)


cdef void add_weight_noise(const Call* c) noexcept nogil:
    cdef uint32_t b
    cdef double scale
    for b in range(c.y.dim.bd):
        scale = noise_scale(c, b)
        K.axpy(rows_of(&c.y.dim), <float>(scale * c.attrs[0].f), c.saved, element(&c.y, b))


cdef void noisy_backward(const Call* c, uint32_t i) noexcept nogil:
    """The same with the contribution of the noise's deviation to the gradient of x or h."""
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    cdef double scale
    gates_backward(c, i)
    if i == 0 or i % 2:
        return
    for b in range(c.y.dim.bd):
        scale = noise_scale(c, b)
        scale = c.attrs[0].f * K.dot(n, c.saved, c.work + b * n) / scale
        K.axpy(rows_of(&c.x[i].dim), <float>scale, element(&c.x[i], b), element(&c.dx, b))


cdef void activate_backward(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Call* c = <const Call*>job
    cdef size_t m = rows_of(&c.y.dim)
    K.lstm_gates_bwd(m // 4, end - first, c.y.v + first * m, c.dy.v + first * m, c.work + first * m, 0)


cdef void gates_prepare(const Call* c) noexcept nogil:
    """The gradient of the sums, which serves all arguments."""
    in_ranges(c.y.dim.bd, 1, rows_of(&c.y.dim) * ELEMENT_COST, activate_backward, <void*>c)


cdef void gates_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    cdef Tensor dsums = gradient_of_sums(c)
    if i < 3 or c.n == 5:
        factors_of_sum(c, &dsums, i, f)


cdef size_t gates_part(const Call* c, uint32_t i) noexcept nogil:
    """Each input multiplies the next block of columns of Wx."""
    return rows_of(&c.x[i].dim) if i >= 4 and i % 2 == 0 else 0


cdef size_t noise_saved(const Call* c) noexcept nogil:
    """Room for the noise of one batch element, which backward draws again."""
    return size_of(&c.y.dim)


cdef Op* new_gates_op(const char* name, Backward backward=gates_backward) except NULL:
    cdef Op* op = register(name, b"b Wh h Wx x more...", gates_dim, gates_forward, backward, UNREAD_FIRST | ASSIGNS)
    op.prepare = gates_prepare
    op.prepared = as_many_as_y
    op.prepares_over = True
    op.part = gates_part
    op.factors = gates_factors
    op.rule[0] = SHARE
    op.rule[1] = SHARE
    op.over = UNREAD_EVEN
    return op


cdef Op* GATES = new_gates_op(b"vanilla_lstm_gates")
cdef Op* NOISY_GATES = new_gates_op(b"vanilla_lstm_gates_noise", noisy_backward)
# Takes the sums Wx x + b in place of b.
PROJECTED = new_gates_op(b"vanilla_lstm_gates_projected")
PROJECTED.rule[0] = LIST
NOISY_GATES.random = True
NOISY_GATES.saved = noise_saved
NOISY_GATES.over = 0                # the noise depends on x and h


cdef Expression gates(object inputs, object h, object Wx, object Wh, object b, float deviation):
    cdef list args = [b, Wh, h]
    cdef list xs = sequence(inputs, b"vanilla_lstm_gates")
    if not xs:
        raise ValueError("vanilla_lstm_gates: the list of inputs is empty")
    if deviation < 0:
        raise ValueError(f"vanilla_lstm_gates: weightnoise_std must not be negative: {deviation}")
    for x in xs:
        args.append(Wx)
        args.append(x)
    if deviation == 0:
        return apply(GATES, args, NULL)
    cdef Extra extra = of_numbers(deviation)
    return apply(NOISY_GATES, args, &extra)


def vanilla_lstm_gates(x_t, h_tm1, Wx, Wh, b, float weightnoise_std=0.0):
    """All gates of an LSTM cell: logistic or tanh of Wx x + Wh h + b.

    The result holds the gates i, f, o (logistic) and g (tanh), in this order; the
    forget gate f has 1 added to its bias.

    Shapes: ``x_t {I}``, ``h_tm1 {H}``, ``Wx {4H,I}``, ``Wh {4H,H}``, ``b {4H}`` -> ``{4H}``.

    Args:
        x_t: input.
        h_tm1: output of the previous step.
        Wx, Wh, b: weights.
        weightnoise_std: deviation of Gaussian noise on all weights, drawn again for
            each batch element of each node. Default: 0.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> W, U, b = dy.ones((4, 2)), dy.ones((4, 1)), dy.zeros(4)
        >>> dy.vanilla_lstm_gates(dy.inputVector([1, 2]), dy.zeros(1), W, U, b).npvalue().round(3)
        array([0.953, 0.982, 0.953, 0.995])
    """
    return gates([x_t], h_tm1, Wx, Wh, b, weightnoise_std)


def vanilla_lstm_gates_concat(x_t: Iterable[Expression], h_tm1, Wx, Wh, b, float weightnoise_std=0.0):
    """`vanilla_lstm_gates` of a list of inputs, as if they were concatenated.

    Args:
        x_t: the inputs, whose sizes add up to the columns of Wx.
        h_tm1, Wx, Wh, b, weightnoise_std: see `vanilla_lstm_gates`.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> W, U, b = dy.ones((4, 2)), dy.ones((4, 1)), dy.zeros(4)
        >>> gates = dy.vanilla_lstm_gates_concat([dy.inputVector([1]), dy.inputVector([2])], dy.zeros(1), W, U, b)
        >>> gates.npvalue().round(3)
        array([0.953, 0.982, 0.953, 0.995])
    """
    return gates(x_t, h_tm1, Wx, Wh, b, weightnoise_std)


def vanilla_lstm_gates_projected(p_t, h_tm1, Wh):
    """`vanilla_lstm_gates` with the input's part of the sums, Wx x + b, already computed.

    This part of the gates does not depend on earlier steps, so it can be computed for all steps at once.

    Shapes: ``p_t {4H}``, ``h_tm1 {H}``, ``Wh {4H,H}`` -> ``{4H}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> projected = dy.inputVector([1, 1, 1, 1])
        >>> dy.vanilla_lstm_gates_projected(projected, dy.zeros(1), dy.ones((4, 1))).npvalue().round(3)
        array([0.731, 0.881, 0.731, 0.762])
    """
    return apply(PROJECTED, [p_t, Wh, h_tm1], NULL)


# ---- masked: y = x m[offset : offset + size x] ----------------------------------
# Attributes: offset; whether the mask must end where x does.

cdef int masked_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or cols_of(s.x[1]) != 1:
        raise DimensionError("x and its mask must be vectors")
    if <size_t>s.attrs[0].i + rows_of(s.x[0]) > rows_of(s.x[1]):
        raise DimensionError(f"the mask has {rows_of(s.x[1])} elements, "
                             f"{s.attrs[0].i + rows_of(s.x[0])} are needed")
    if s.attrs[1].i and <size_t>s.attrs[0].i + rows_of(s.x[0]) != rows_of(s.x[1]):
        raise DimensionError(f"the mask has {rows_of(s.x[1])} elements, the input only "
                             f"{s.attrs[0].i + rows_of(s.x[0])}")
    s.attrs[1].i = 0
    return same_dim(s, y)


cdef void masked_forward(const Call* c) noexcept nogil:
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.binary_fwd[<int>DY_BINARY_mul](rows_of(&c.y.dim), element(&c.x[0], b), 1,
                                         element(&c.x[1], b) + c.attrs[0].i, 1, element(&c.y, b))


cdef void masked_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t j, n = rows_of(&c.y.dim)
    cdef size_t to = c.attrs[0].i if i else 0, of = 0 if i else c.attrs[0].i
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for j in range(n):
            element(&c.dx, b)[to + j] += element(&c.dy, b)[j] * element(&c.x[1 - i], b)[of + j]


cdef Op* MASKED = register(b"dropout_mask", b"x mask", masked_dim, masked_forward, masked_backward, UNREAD_RESULT)


cdef Expression masked(object x, object mask, int offset, bint ends):
    cdef Extra extra = of_words(offset, ends)
    return apply2x(MASKED, x, mask, &extra)


def vanilla_lstm_gates_dropout(x_t, h_tm1, Wx, Wh, b, dropout_mask_x, dropout_mask_h,
                               float weightnoise_std=0.0):
    """`vanilla_lstm_gates` of inputs multiplied by dropout masks.

    Args:
        x_t, h_tm1, Wx, Wh, b, weightnoise_std: see `vanilla_lstm_gates`.
        dropout_mask_x, dropout_mask_h: factors for the elements of x_t and h_tm1.

    Example:
        >>> W, U, b = dy.ones((4, 1)), dy.ones((4, 1)), dy.zeros(4)
        >>> x, h, kept, dropped = dy.inputVector([2]), dy.zeros(1), dy.ones(1), dy.zeros(1)
        >>> dy.vanilla_lstm_gates_dropout(x, h, W, U, b, dropped, kept).npvalue().round(3)
        array([0.5  , 0.731, 0.5  , 0.   ])
    """
    return vanilla_lstm_gates_dropout_concat([x_t], h_tm1, Wx, Wh, b, dropout_mask_x, dropout_mask_h, weightnoise_std)


def vanilla_lstm_gates_dropout_concat(x_t: Iterable[Expression], h_tm1, Wx, Wh, b, dropout_mask_x, dropout_mask_h,
                                      float weightnoise_std=0.0):
    """`vanilla_lstm_gates_dropout` of a list of inputs, as if they were concatenated;
    dropout_mask_x covers all of them.

    Args:
        x_t: the inputs, whose sizes add up to the columns of Wx.
        h_tm1, Wx, Wh, b, dropout_mask_h, weightnoise_std: see `vanilla_lstm_gates_dropout`.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> W, U, b = dy.ones((4, 2)), dy.ones((4, 1)), dy.zeros(4)
        >>> xs, h, mask = [dy.inputVector([1]), dy.inputVector([2])], dy.zeros(1), dy.inputVector([1, 0])
        >>> dy.vanilla_lstm_gates_dropout_concat(xs, h, W, U, b, mask, dy.ones(1)).npvalue().round(3)
        array([0.731, 0.881, 0.731, 0.762])
    """
    cdef list inputs = sequence(x_t, b"vanilla_lstm_gates_dropout_concat")
    cdef list xs = []
    cdef size_t offset = 0
    cdef Py_ssize_t k
    for k in range(len(inputs)):
        xs.append(masked(inputs[k], dropout_mask_x, <int>offset, k + 1 == len(inputs)))
        offset += size_of(dim_of(inputs[k]))
    return gates(xs, masked(h_tm1, dropout_mask_h, 0, True), Wx, Wh, b, weightnoise_std)


# ---- vanilla_lstm_c: y = f c + i g ----------------------------------------------
# ---- vanilla_lstm_h: y = o tanh(c) ----------------------------------------------

cdef int cell_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or cols_of(s.x[1]) != 1:
        raise DimensionError("the cell and the gates must be vectors")
    if 4 * <size_t>rows_of(s.x[0]) != rows_of(s.x[1]):
        raise DimensionError(f"there are {rows_of(s.x[1])} gates, "
                             f"not 4 times the {rows_of(s.x[0])} elements of the cell")
    return same_dim(s, y)


cdef inline bint follows(const Tensor* x, uint32_t b) noexcept nogil:
    """Whether batch element b directly follows the previous one in memory."""
    return element(x, b) == element(x, b - 1) + size_of(&x.dim)


cdef inline uint32_t together(const Call* c, uint32_t b, bint back) noexcept nogil:
    """The number of batch elements from b on that are adjacent in both arguments, and backward in dx, which need not
    lie as its argument does: one kernel call computes them."""
    cdef uint32_t end = b + 1
    cdef uint32_t all_of_y = c.y.dim.bd
    if c.x[0].list == NULL and c.x[1].list == NULL and c.x[0].dim.bd == all_of_y == c.x[1].dim.bd:
        return all_of_y
    while (end < all_of_y and follows(&c.x[0], end) and follows(&c.x[1], end)
           and not (back and not follows(&c.dx, end))):
        end += 1
    return end - b


cdef void cell_forward(const Call* c) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b, False)
        K.lstm_c(rows_of(&c.y.dim), n, element(&c.x[0], b), element(&c.x[1], b),
                 element(&c.y, b))
        b += n


cdef void cell_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b, True)
        K.lstm_c_bwd(rows_of(&c.y.dim), n, element(&c.x[0], b), element(&c.x[1], b),
                     element(&c.dy, b), NULL if i else element(&c.dx, b), adds(c, b),
                     element(&c.dx, b) if i else NULL, adds(c, b))
        b += n


cdef Op* new_cell_op(const char* name, const char* args, Forward forward, Backward backward) except NULL:
    cdef Op* op = register(name, args, cell_dim, forward, backward)
    # The nodes of several cells run as one call; the results of each cell are adjacent, but not those of all cells.
    op.rule[0] = op.rule[1] = LIST
    op.assigns = True
    op.unread = UNREAD_RESULT
    return op


CELL = new_cell_op(b"vanilla_lstm_c", b"c_tm1 gates_t", cell_forward, cell_backward)


cdef void output_forward(const Call* c) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b, False)
        K.lstm_h(rows_of(&c.y.dim), n, element(&c.x[1], b), element(&c.x[0], b),
                 element(&c.y, b))
        b += n


cdef void output_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b, True)
        K.lstm_h_bwd(rows_of(&c.y.dim), n, element(&c.x[1], b), element(&c.x[0], b),
                     element(&c.dy, b), element(&c.dx, b) if i else NULL, adds(c, b),
                     NULL if i else element(&c.dx, b), adds(c, b))
        b += n


OUTPUT = new_cell_op(b"vanilla_lstm_h", b"c_t gates_t", output_forward, output_backward)


def vanilla_lstm_c(c_tm1, gates_t):
    """The cell of an LSTM: f c + i g.

    Shapes: ``c_tm1 {H}``, ``gates_t {4H}`` as from `vanilla_lstm_gates` -> ``{H}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.vanilla_lstm_c(dy.inputVector([2]), dy.inputVector([0.5, 1, 0.5, 1])).npvalue()
        array([2.5])
    """
    return apply2(CELL, c_tm1, gates_t)


def vanilla_lstm_h(c_t, gates_t):
    """The output of an LSTM: o tanh(c).

    Shapes: ``c_t {H}``, ``gates_t {4H}`` as from `vanilla_lstm_gates` -> ``{H}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.vanilla_lstm_h(dy.inputVector([2]), dy.inputVector([0.5, 1, 0.5, 1])).npvalue().round(3)
        array([0.482])
    """
    return apply2(OUTPUT, c_t, gates_t)


# ==== gated =======================================================================================
#
# Affine maps with their activation as one node, and the cells of GRUs and Tree-LSTMs.

# ---- gated_affine: y = f(b + W1 x1 + W2 x2 + ...) -------------------------------
# Attributes: the number of blocks of rows of y; how many of the first are logistic, and
# how many after those tanh.  The others are logistic again.

cdef enum:
    BLOCKS
    LOGISTIC
    TANH


cdef int gated_dim(const Shapes* s, Dim* y) except -1:
    affine_transform_dim(s, y)
    if rows_of(y) % s.attrs[BLOCKS].u:
        raise DimensionError(f"the sum has {rows_of(y)} rows, not a multiple of {s.attrs[BLOCKS].u} gates")
    return 0


cdef Gates gates_of(const Call* c) noexcept nogil:
    """Which rows are tanh."""
    cdef size_t rows = rows_of(&c.y.dim), h = rows // c.attrs[BLOCKS].u
    return Gates(rows, h * c.attrs[LOGISTIC].u, h * c.attrs[TANH].u, total_of(&c.y.dim) // max(rows, <size_t>1))


cdef void gated_forward(const Call* c) noexcept nogil:
    cdef Gates g = gates_of(c)
    affine_transform_forward(c)
    algebra_of(c.on).activate(c.on, &g, c.y.v)


cdef void gated_prepare(const Call* c) noexcept nogil:
    """The gradient of the sum, which serves all arguments."""
    cdef Gates g = gates_of(c)
    algebra_of(c.on).activate_backward(c.on, &g, c.y.v, c.dy.v, c.work)


cdef void gated_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Tensor dsums = gradient_of_sums(c)
    backward_of_sum(c, &dsums, i)


cdef void gated_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    cdef Tensor dsums = gradient_of_sums(c)
    factors_of_sum(c, &dsums, i, f)


GATED = product_op(b"gated_affine", b"b xs...", gated_dim, gated_forward, gated_backward)
GATED.unread = UNREAD_FIRST
GATED.over = UNREAD_EVEN
GATED.prepare = gated_prepare
GATED.prepared = as_many_as_y
GATED.prepares_over = True
GATED.factors = gated_factors
GATED.rule[0] = LIST
GATED.rule[1] = SHARE


cdef void set_gates(Extra* extra, uint32_t blocks, uint32_t first, uint32_t tanh) noexcept:
    extra[0] = of_words(blocks, first, tanh)    # BLOCKS, LOGISTIC, TANH


cdef void set_logistic(Extra* extra) noexcept:
    set_gates(extra, 1, 1, 0)


cdef Extra logistic_gate, tanh_gate
set_logistic(&logistic_gate)
set_gates(&tanh_gate, 1, 0, 1)


def logistic_affine(exprs: Iterable[Expression]):
    """`logistic` of `affine_transform`, as one node.

    Args:
        exprs: see `affine_transform`.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.logistic_affine([dy.inputVector([1]), dy.inputTensor([[2]]), dy.inputVector([0])]).npvalue().round(3)
        array([0.731])
    """
    return apply(GATED, exprs, &logistic_gate)


def tanh_affine(exprs: Iterable[Expression]):
    """`tanh` of `affine_transform`, as one node.

    Args:
        exprs: see `affine_transform`.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.tanh_affine([dy.inputVector([1]), dy.inputTensor([[2]]), dy.inputVector([0])]).npvalue().round(3)
        array([0.762])
    """
    return apply(GATED, exprs, &tanh_gate)


def tree_lstm_gates(exprs: Iterable[Expression], children: int):
    """All gates of a node of a Tree-LSTM (Tai, Socher and Manning, ACL 2015), from `affine_transform` of its input
    and of the outputs of its children.

    The result holds the gates i, o (logistic), u (tanh), and f for each child (logistic), in this order.

    Shapes: as in `affine_transform`, with a sum of ``{(3+children)H}`` -> ``{(3+children)H}``.

    Args:
        exprs: the list ``[b, W, x, ...]``, see `affine_transform`.
        children: the number of f gates: 0 for a leaf.

    Raises:
        DimensionError: the shapes do not fit.
        ValueError: `children` is negative.

    Example:
        >>> gates = dy.tree_lstm_gates([dy.zeros(4), dy.ones((4, 2)), dy.inputVector([1, 2])], 1)
        >>> gates.npvalue().round(3)
        array([0.953, 0.953, 0.995, 0.953])
    """
    cdef Extra extra
    cdef Py_ssize_t n = whole(children, "tree_lstm_gates", "children")
    if n < 0:
        raise ValueError(f"tree_lstm_gates: children must not be negative: {children}")
    set_gates(&extra, <uint32_t>n + 3, 2, 1)
    return apply(GATED, exprs, &extra)


# ---- gru_h: y = h + z (g - h) ----------------------------------------------------

cdef int gru_h_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i
    for i in range(1, 3):
        if not same_shape(s.x[i], s.x[0]):
            raise DimensionError("h, z and g must have one shape")
    return same_dim(s, y)


cdef void gru_h_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), j
    cdef uint32_t b
    cdef float* y
    cdef const float* h
    cdef const float* z
    cdef const float* g
    for b in range(c.y.dim.bd):
        y, h, z, g = element(&c.y, b), element(&c.x[0], b), element(&c.x[1], b), element(&c.x[2], b)
        for j in range(n):
            y[j] = h[j] + z[j] * (g[j] - h[j])


cdef void gru_h_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), j
    cdef uint32_t b
    cdef float* dx
    cdef const float* dy
    cdef const float* h
    cdef const float* z
    cdef const float* g
    for b in range(c.y.dim.bd):
        dx, dy = element(&c.dx, b), element(&c.dy, b)
        h, z, g = element(&c.x[0], b), element(&c.x[1], b), element(&c.x[2], b)
        if not c.accumulate and (b == 0 or c.dx.dim.bd > 1):
            memset(dx, 0, n * sizeof(float))
        if i == 0:
            for j in range(n):
                dx[j] += dy[j] * (1 - z[j])
        elif i == 1:
            for j in range(n):
                dx[j] += dy[j] * (g[j] - h[j])
        else:
            for j in range(n):
                dx[j] += dy[j] * z[j]


GRU_H = register(b"gru_h", b"h_tm1 z_t g_t", gru_h_dim, gru_h_forward, gru_h_backward, UNREAD_RESULT | ASSIGNS)
GRU_H.rule[0] = GRU_H.rule[1] = GRU_H.rule[2] = LIST


def gru_h(h_tm1, z_t, g_t):
    """The output of a gated recurrent unit: (1 - z) h + z g.

    Shapes: ``h_tm1``, ``z_t`` and ``g_t`` of one shape, that of the result.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.gru_h(dy.inputVector([1, 1]), dy.inputVector([0, 0.5]), dy.inputVector([4, 4])).npvalue()
        array([1. , 2.5])
    """
    return apply(GRU_H, [h_tm1, z_t, g_t], NULL)


# ---- tree_lstm_c: y = i u + f1 c1 + f2 c2 + ... ----------------------------------
# Attributes: the number of children that have a gate f.

cdef int tree_c_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, blocks = 3 + s.attrs[0].u, rows = rows_of(s.x[0])
    if rows % blocks:
        raise DimensionError(f"there are {rows} gates, not a multiple of {blocks}")
    if s.n - 1 > s.attrs[0].u:
        raise DimensionError(f"{s.n - 1} cells are given for {s.attrs[0].u} children")
    for i in range(s.n):
        if cols_of(s.x[i]) != 1:
            raise DimensionError("the gates and the cells must be vectors")
        if i and rows_of(s.x[i]) != rows // blocks:
            raise DimensionError(f"cs[{i - 1}] has {rows_of(s.x[i])} elements, {rows // blocks} are needed")
    return vector(y, rows // blocks)


cdef inline void add_product(size_t n, const float* a, const float* b, float* to, bint acc) noexcept nogil:
    """to = a b (+ to)."""
    K.binary_bwd_a[<int>DY_BINARY_mul](n, a, 1, b, 1, a, a, to, acc)


cdef void tree_c_forward(const Call* c) noexcept nogil:
    cdef size_t h = rows_of(&c.y.dim)
    cdef uint32_t b, k
    cdef const float* gates
    for b in range(c.y.dim.bd):
        gates = element(&c.x[0], b)
        add_product(h, gates, gates + 2 * h, element(&c.y, b), False)
        for k in range(1, c.n):
            add_product(h, gates + (2 + k) * h, element(&c.x[k], b), element(&c.y, b), True)


cdef void tree_c_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t h = rows_of(&c.y.dim)
    cdef uint32_t b, k
    cdef bint acc
    cdef const float* gates
    cdef const float* dy
    cdef float* dx
    for b in range(c.y.dim.bd):
        gates, dy, dx = element(&c.x[0], b), element(&c.dy, b), element(&c.dx, b)
        acc = adds(c, b)
        if i:
            add_product(h, dy, gates + (2 + i) * h, dx, acc)
            continue
        add_product(h, dy, gates + 2 * h, dx, acc)
        add_product(h, dy, gates, dx + 2 * h, acc)
        if not acc:
            memset(dx + h, 0, h * sizeof(float))
            memset(dx + (2 + c.n) * h, 0, (rows_of(&c.dx.dim) - (2 + c.n) * h) * sizeof(float))
        for k in range(1, c.n):
            add_product(h, dy, element(&c.x[k], b), dx + (2 + k) * h, acc)


TREE_C = register(b"tree_lstm_c", b"gates cs...", tree_c_dim, tree_c_forward, tree_c_backward, UNREAD_RESULT | ASSIGNS)
TREE_C.rule[0] = TREE_C.rule[1] = TREE_C.rule[2] = LIST


cdef void set_tree(Extra* extra, uint32_t children) noexcept:
    extra[0] = of_words(children)


def tree_lstm_c(gates, cells: Iterable[Expression], children: int = -1):
    """The cell of a node of a Tree-LSTM: i u + f1 c1 + f2 c2 + ...

    Shapes: ``gates {(3+children)H}`` as from `tree_lstm_gates`, each of ``cells {H}`` -> ``{H}``.

    Args:
        gates: the gates.
        cells: the cells of the first children, in their order; `[]` for a leaf.
        children: the number of f gates; -1 for one per cell.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.tree_lstm_c(dy.inputVector([0.5, 1, 0.5, 1]), [dy.inputVector([2])], 1).npvalue()
        array([2.25])
    """
    cdef Extra extra
    cdef list args = [gates] + sequence(cells, b"tree_lstm_c")
    cdef Py_ssize_t n = whole(children, "tree_lstm_c", "children")
    set_tree(&extra, <uint32_t>(len(args) - 1 if n < 0 else n))
    return apply(TREE_C, args, &extra)


# ---- tree_lstm_h: y = o tanh(c) ---------------------------------------------------

cdef int tree_h_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or cols_of(s.x[1]) != 1:
        raise DimensionError("the cell and the gates must be vectors")
    if rows_of(s.x[0]) == 0 or rows_of(s.x[1]) % rows_of(s.x[0]) or rows_of(s.x[1]) // rows_of(s.x[0]) < 3:
        raise DimensionError(f"there are {rows_of(s.x[1])} gates, not 3 times the {rows_of(s.x[0])} elements of the "
                             "cell or a greater multiple")
    return vector(y, rows_of(s.x[0]))


cdef void tree_h_forward(const Call* c) noexcept nogil:
    cdef size_t h = rows_of(&c.y.dim)
    cdef uint32_t b
    cdef float* squashed = c.saved
    for b in range(c.y.dim.bd):
        K.unary_fwd[<int>DY_UNARY_tanh](h, element(&c.x[0], b), 0, 0, squashed)
        add_product(h, squashed, element(&c.x[1], b) + h, element(&c.y, b), False)
        squashed += h


cdef void tree_h_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t h = rows_of(&c.y.dim)
    cdef uint32_t b
    cdef bint acc
    cdef const float* squashed = c.saved
    cdef float* dx
    for b in range(c.y.dim.bd):
        dx = element(&c.dx, b)
        acc = adds(c, b)
        if i == 0:
            add_product(h, element(&c.dy, b), element(&c.x[1], b) + h, c.work, False)
            K.unary_bwd[<int>DY_UNARY_tanh](h, squashed, squashed, c.work, 0, 0, dx, acc)
        else:
            add_product(h, element(&c.dy, b), squashed, dx + h, acc)
            if not acc:
                memset(dx, 0, h * sizeof(float))
                memset(dx + 2 * h, 0, (rows_of(&c.dx.dim) - 2 * h) * sizeof(float))
        squashed += h


cdef size_t tree_h_work(const Call* c, int i) noexcept nogil:
    return rows_of(&c.y.dim)


TREE_H = register(b"tree_lstm_h", b"c gates", tree_h_dim, tree_h_forward, tree_h_backward, UNREAD_RESULT | ASSIGNS,
                  tree_h_work, as_many_as_y)
TREE_H.rule[0] = TREE_H.rule[1] = LIST


def tree_lstm_h(c, gates):
    """The output of a node of a Tree-LSTM: o tanh(c).

    Shapes: ``c {H}``, ``gates {(3+children)H}`` as from `tree_lstm_gates` -> ``{H}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.tree_lstm_h(dy.inputVector([2]), dy.inputVector([0.5, 1, 0.5, 1])).npvalue().round(3)
        array([0.964])
    """
    return apply(TREE_H, [c, gates], NULL)


# ==== gates =======================================================================================
#
# Sums of products of activations, y = c + f(a) g(b) + ...: the op that such sums become in a plan (schedule/rewrite).
#
# Its arguments are c, unless their number is even, and then a and b of each product, which has an attribute for f and
# g. All have the same shape.

cdef enum:
    BLOCK = 256                                 # floats


cdef inline const float* activated(uint32_t f, size_t n, const float* x, float* scratch) noexcept nogil:
    if f == 0:
        return x
    K.unary_fwd[f - 1](n, x, 0, 0, scratch)
    return scratch


cdef inline uint32_t function_of(const Call* c, uint32_t i) noexcept nogil:
    """The activation of argument i: 0, or a number of unary.def plus one."""
    cdef uint32_t k = i - (c.n & 1)
    return c.attrs[k >> 1].u >> 8 * (k & 1) & 0xFF


cdef void gate_sums_forward(const Call* c) noexcept nogil:
    cdef float[BLOCK] of_a
    cdef float[BLOCK] of_b
    cdef size_t total = total_of(&c.y.dim), at = 0, n
    cdef const float* a
    cdef const float* b
    cdef const float* sum
    cdef float* y
    cdef uint32_t i
    while at < total:
        n = min(<size_t>BLOCK, total - at)
        y = c.y.v + at
        sum = c.x[0].v + at if c.n & 1 else NULL
        for i in range(c.n & 1, c.n, 2):
            a = activated(function_of(c, i), n, c.x[i].v + at, of_a)
            b = activated(function_of(c, i + 1), n, c.x[i + 1].v + at, of_b)
            if sum == NULL:
                K.binary_fwd[<int>DY_BINARY_mul](n, a, 1, b, 1, y)
            else:
                K.binary_fwd[<int>DY_BINARY_mul](n, a, 1, b, 1, of_a)
                K.binary_fwd[<int>DY_BINARY_add](n, sum, 1, of_a, 1, y)
            sum = y
        at += n


cdef inline void through(uint32_t f, size_t n, const float* x, const float* fx, const float* dy, const float* other,
                         float* dx, bint add) noexcept nogil:
    """The gradient of x in f(x) * other."""
    cdef float[BLOCK] product
    if f == 0:
        K.binary_bwd_a[<int>DY_BINARY_mul](n, x, 1, other, 1, other, dy, dx, add)    # `mul` does not use its result
    else:
        K.binary_fwd[<int>DY_BINARY_mul](n, dy, 1, other, 1, product)
        K.unary_bwd[f - 1](n, x, fx, product, 0, 0, dx, add)


cdef void gates_backward_all(const Call* c, float* const* dx, const uint8_t* added) noexcept nogil:
    cdef float[BLOCK] of_a
    cdef float[BLOCK] of_b
    cdef size_t total = total_of(&c.y.dim), at = 0, n
    cdef const float* a
    cdef const float* b
    cdef const float* dy
    cdef uint32_t i, f, g
    while at < total:
        n = min(<size_t>BLOCK, total - at)
        dy = c.dy.v + at
        if c.n & 1 and dx[0] != NULL:
            if added[0]:
                K.add(n, dy, dx[0] + at)
            else:
                memcpy(dx[0] + at, dy, n * sizeof(float))
        for i in range(c.n & 1, c.n, 2):
            if dx[i] == NULL and dx[i + 1] == NULL:
                continue
            f, g = function_of(c, i), function_of(c, i + 1)
            a = activated(f, n, c.x[i].v + at, of_a)
            b = activated(g, n, c.x[i + 1].v + at, of_b)
            if dx[i] != NULL:
                through(f, n, c.x[i].v + at, a, dy, b, dx[i] + at, added[i])
            if dx[i + 1] != NULL:
                through(g, n, c.x[i + 1].v + at, b, dy, a, dx[i + 1] + at, added[i + 1])
        at += n


cdef size_t gate_sums_prepared(const Call* c) noexcept nogil:
    return c.n * total_of(&c.y.dim)


cdef void gate_sums_prepare(const Call* c) noexcept nogil:
    """The gradients of all arguments, one after the other in c.work."""
    cdef (float*)[2 * MOST_PRODUCTS + 1] dx
    cdef uint8_t[2 * MOST_PRODUCTS + 1] added
    cdef uint32_t i
    memset(added, 0, sizeof(added))
    for i in range(c.n):
        dx[i] = c.work + i * total_of(&c.y.dim)
    gates_backward_all(c, dx, added)


cdef void gate_sums_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    if c.accumulate:
        K.add(n, c.work + i * n, c.dx.v)
    else:
        memcpy(c.dx.v, c.work + i * n, n * sizeof(float))


cdef Op* GATE_SUMS = register(b"gates", b"xs...", same_dim, gate_sums_forward, gate_sums_backward,
                              UNREAD_RESULT | ASSIGNS | BY_ELEMENT)
GATE_SUMS.prepare = gate_sums_prepare
GATE_SUMS.prepared = gate_sums_prepared
GATE_SUMS.backward_all = gates_backward_all
add_rewrite("gates", sums_of_activations, GATE_SUMS)

# Activations that are quick to compute again.
cdef int which
for which in (DY_UNARY_gelu, DY_UNARY_logistic, DY_UNARY_rectify, DY_UNARY_silu, DY_UNARY_tanh):
    UNARY[which].activation = <uint8_t>(which + 1)


# ==== steps =======================================================================================
#
# Steps of recurrent networks, which builders add to a graph without calling Python.

# Indices of the masks.
cdef enum:
    OF_X
    OF_H
    OF_C


cdef inline uint32_t combined(Graph* g, int which, uint32_t a, uint32_t b) except? 0xFFFFFFFF:
    """An elementwise function of two nodes."""
    cdef uint32_t[2] args
    args[0], args[1] = a, b
    return add_node(g, BINARY[which], args, 2, NULL)


cdef inline uint32_t masked_node(Graph* g, uint32_t x, const uint32_t* masks, int which) except? 0xFFFFFFFF:
    """x times its mask, if both are there."""
    if x == NOTHING or masks == NULL or masks[which] == NOTHING:
        return x
    return combined(g, <int>DY_BINARY_mul, x, masks[which])


cdef inline uint32_t projected(Graph* g, uint32_t b, uint32_t W, uint32_t x) except? 0xFFFFFFFF:
    """W x + b for an input x.

    This does not depend on earlier steps: batched, it is one product for all steps.
    """
    cdef uint32_t[3] args
    args[0], args[1], args[2] = b, W, x
    return add_node(g, AFFINE, args, 3, NULL)


cdef inline uint32_t peeping_gate(Graph* g, const Op* op, Extra* activation, uint32_t b, uint32_t W, uint32_t h,
                                  uint32_t V, uint32_t c) except? 0xFFFFFFFF:
    """The activation of b + W h + V c; h or c may be missing."""
    cdef uint32_t[5] args
    cdef uint32_t n = 1
    args[0] = b
    if h != NOTHING:
        args[n], args[n + 1] = W, h
        n += 2
    if c != NOTHING:
        args[n], args[n + 1] = V, c
        n += 2
    return add_node(g, op, args, n, activation)


cdef inline uint32_t gate(Graph* g, const Op* op, Extra* activation, uint32_t b, uint32_t W,
                          uint32_t h) except? 0xFFFFFFFF:
    return peeping_gate(g, op, activation, b, W, h, NOTHING, NOTHING)


cdef int simple_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                     uint32_t* c) except -1:
    """The nodes of Elman's network for one input.  Weights: Wx, Wh, b."""
    cdef uint32_t sums = projected(g, weights[2], weights[0], masked_node(g, x, masks, OF_X))
    h[0] = gate(g, GATED, &tanh_gate, sums, weights[1], masked_node(g, h[0], masks, OF_H))
    return 0


cdef inline uint32_t gru_state(Graph* g, uint32_t h, uint32_t z, uint32_t new) except? 0xFFFFFFFF:
    """The state of a GRU after a step: (1 - z) h + z new."""
    cdef uint32_t[3] args
    args[0], args[1], args[2] = h, z, new
    return combined(g, <int>DY_BINARY_mul, z, new) if h == NOTHING else add_node(g, GRU_H, args, 3, NULL)


cdef int gru_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                  uint32_t* c) except -1:
    """The nodes of a GRU for one input.  Weights: Wx, Wh, b of z, then of r, then of g."""
    cdef uint32_t before = masked_node(g, h[0], masks, OF_H), r, left = NOTHING
    x = masked_node(g, x, masks, OF_X)
    cdef uint32_t z = projected(g, weights[2], weights[0], x)
    cdef uint32_t new = projected(g, weights[8], weights[6], x)
    if before != NOTHING:
        r = gate(g, GATED, &logistic_gate, projected(g, weights[5], weights[3], x), weights[4], before)
        left = combined(g, <int>DY_BINARY_mul, r, before)
    z = gate(g, GATED, &logistic_gate, z, weights[1], before)
    h[0] = gru_state(g, h[0], z, gate(g, GATED, &tanh_gate, new, weights[7], left))
    return 0


cdef int gru_reset_after_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                              uint32_t* c) except -1:
    """The nodes of a GRU with r after the product.  Weights: those of `gru_step`, and the bias of Wh h in g."""
    cdef uint32_t before = masked_node(g, h[0], masks, OF_H)
    x = masked_node(g, x, masks, OF_X)
    cdef uint32_t z = projected(g, weights[2], weights[0], x)
    cdef uint32_t new = projected(g, weights[8], weights[6], x)
    cdef uint32_t r = gate(g, GATED, &logistic_gate, projected(g, weights[5], weights[3], x), weights[4], before)
    cdef uint32_t left = weights[9] if before == NOTHING else projected(g, weights[9], weights[7], before)
    z = gate(g, GATED, &logistic_gate, z, weights[1], before)
    new = combined(g, <int>DY_BINARY_add, new, combined(g, <int>DY_BINARY_mul, r, left))
    h[0] = gru_state(g, h[0], z, add_node(g, UNARY[<int>DY_UNARY_tanh], &new, 1, NULL))
    return 0


cdef inline uint32_t gates_before(const Graph* g, const uint32_t* weights, uint32_t x, uint32_t h,
                                  uint32_t c) noexcept:
    """The gates of the step without masks that made h and c, if a step for x has the same shapes; else NOTHING.

    This is so for nearly all steps of a chain, and their shapes need not be inferred again.
    """
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* of_c
    cdef const uint32_t* of_gates
    cdef const uint32_t* of_sums
    if h == NOTHING or c == NOTHING or not is_of(&nodes[h], OUTPUT) or not is_of(&nodes[c], CELL):
        return NOTHING
    of_c = args_of(g, &nodes[c])
    if args_of(g, &nodes[h])[0] != c or args_of(g, &nodes[h])[1] != of_c[1]:
        return NOTHING
    if not is_of(&nodes[of_c[1]], PROJECTED) or nodes[of_c[1]].nargs != 3:
        return NOTHING
    of_gates = args_of(g, &nodes[of_c[1]])
    if of_gates[1] != weights[1] or not is_of(&nodes[of_gates[0]], AFFINE) or nodes[of_gates[0]].nargs != 3:
        return NOTHING
    of_sums = args_of(g, &nodes[of_gates[0]])
    if (of_sums[0] == weights[2] and of_sums[1] == weights[0] and are_alike(nodes, x, of_sums[2])
            and are_alike(nodes, h, of_gates[2]) and are_alike(nodes, c, of_c[0])):
        return of_c[1]
    return NOTHING


cdef inline bint is_of(const Node* x, const Op* op) noexcept:
    return op_at(x.op) == op


cdef inline bint are_alike(const Node* nodes, uint32_t a, uint32_t b) noexcept:
    """Whether two nodes have the same shape, batch size and type."""
    return (nodes[a].dim.bd == nodes[b].dim.bd and nodes[a].dim.type == nodes[b].dim.type
            and same_shape(&nodes[a].dim, &nodes[b].dim))


cdef inline int lstm_step_like(Graph* g, const uint32_t* weights, uint32_t x, uint32_t* h, uint32_t* c,
                               uint32_t gates) except -1:
    """The nodes of an LSTM step with the shapes of the step that these gates belong to, which has made h and c."""
    cdef uint32_t[3] args
    cdef uint32_t[2] pair
    args[0], args[1], args[2] = weights[2], weights[0], x
    args[0] = add_node_like(g, AFFINE, args, 3, args_of(g, &nodes_of(g)[gates])[0])
    args[1], args[2] = weights[1], h[0]
    pair[1] = add_node_like(g, PROJECTED, args, 3, gates)
    pair[0] = c[0]
    c[0] = pair[0] = add_node_like(g, CELL, pair, 2, c[0])
    h[0] = add_node_like(g, OUTPUT, pair, 2, h[0])
    return 0


cdef int lstm_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1:
    """The nodes of an LSTM for one input.  Weights: Wx, Wh, b."""
    cdef uint32_t[2] args
    cdef uint32_t sums, like = NOTHING if masks != NULL else gates_before(g, weights, x, h[0], c[0])
    if like != NOTHING:
        return lstm_step_like(g, weights, x, h, c, like)
    sums = projected(g, weights[2], weights[0], masked_node(g, x, masks, OF_X))
    args[0] = c[0]
    args[1] = gate(g, PROJECTED, NULL, sums, weights[1], masked_node(g, h[0], masks, OF_H))
    c[0] = args[0] = add_node(g, CELL, args, 2, NULL)
    h[0] = add_node(g, OUTPUT, args, 2, NULL)
    return 0


cdef int coupled_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                      uint32_t* c) except -1:
    """The nodes of an LSTM with peepholes and coupled gates.  Weights: Wx, Wh, Wc, b of i and of o; Wx, Wh, b of g."""
    return coupled(g, weights, masks, x, h, c, True)


cdef int fast_step(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h,
                   uint32_t* c) except -1:
    """The nodes of an LSTM with coupled gates and without peepholes, whose weights are not used."""
    return coupled(g, weights, masks, x, h, c, False)


cdef int coupled(Graph* g, const uint32_t* weights, const uint32_t* masks, uint32_t x, uint32_t* h, uint32_t* c,
                 bint peepholes) except -1:
    cdef uint32_t i, new, o, before = masked_node(g, h[0], masks, OF_H)
    x = masked_node(g, x, masks, OF_X)
    i = peeping_gate(g, GATED, &logistic_gate, projected(g, weights[3], weights[0], x), weights[1], before,
                     weights[2], masked_node(g, c[0], masks, OF_C) if peepholes else NOTHING)
    new = gate(g, GATED, &tanh_gate, projected(g, weights[10], weights[8], x), weights[9], before)
    if c[0] == NOTHING:
        c[0] = combined(g, <int>DY_BINARY_mul, i, new)
    else:
        new = combined(g, <int>DY_BINARY_sub, new, c[0])
        c[0] = combined(g, <int>DY_BINARY_add, c[0], combined(g, <int>DY_BINARY_mul, i, new))
    o = peeping_gate(g, GATED, &logistic_gate, projected(g, weights[7], weights[4], x), weights[5], before,
                     weights[6], masked_node(g, c[0], masks, OF_C) if peepholes else NOTHING)
    h[0] = combined(g, <int>DY_BINARY_mul, o, add_node(g, UNARY[<int>DY_UNARY_tanh], c, 1, NULL))
    return 0
