"""The parts of an LSTM cell, each one op."""

from libc.math cimport sqrt
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport (
    Call, Dim, Tensor, cols_of, draw_key, draw_number, element, rows_of, size_of, total_of,
)
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply, apply2, apply2x, sequence
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport DY_BINARY_mul, DY_RNG_normal, K
from dynet_cy.kernels.ranges cimport ELEMENT_COST, in_ranges
from dynet_cy.ops.linalg cimport factors_of_a, multiply, multiply_backward_a, multiply_backward_b
from dynet_cy.ops.registry cimport (
    LIST, SHARE, Backward, Factors, Forward, Op, Shapes, register, same_dim,
)

from dynet_cy.ops.registry import DimensionError


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
    y.nd = 1
    y.d[0] = <uint32_t>(4 * h)
    return 0


cdef inline Tensor block_of(const Tensor* w, const Tensor* x, size_t offset) noexcept nogil:
    """The columns of w, from number `offset` on, that belong to x."""
    cdef Tensor part = w[0]
    part.dim.nd = 2
    part.dim.d[1] = rows_of(&x.dim)
    part.v += offset * rows_of(&w.dim)
    if cols_of(&part.dim) != cols_of(&w.dim):
        part.pack = NULL
    return part


cdef void activate(void* job, size_t first, size_t end) noexcept nogil:
    """Turn the sums of some batch elements into gates."""
    cdef const Call* c = <const Call*>job
    cdef size_t m = rows_of(&c.y.dim)
    K.lstm_gates(m // 4, end - first, c.y.v + first * m, 1, c.y.v + first * m)


cdef void gates_forward(const Call* c) noexcept nogil:
    cdef size_t m = rows_of(&c.y.dim), offset = 0
    cdef uint32_t i
    cdef Tensor part
    if c.x[0].list != NULL:
        for i in range(c.y.dim.bd):
            memcpy(element(&c.y, i), c.x[0].list[i], m * sizeof(float))
    elif c.x[0].dim.bd == c.y.dim.bd:
        memcpy(c.y.v, c.x[0].v, total_of(&c.y.dim) * sizeof(float))
    else:
        K.repeat(m, c.y.dim.bd, c.x[0].v, c.y.v)
    multiply(&c.x[1], &c.x[2], &c.y, 1)
    for i in range(3, c.n, 2):
        part = block_of(&c.x[i], &c.x[i + 1], offset)
        multiply(&part, &c.x[i + 1], &c.y, 1)
        offset += rows_of(&c.x[i + 1].dim)
    if c.attrs[0].f != 0:
        add_weight_noise(c)
    in_ranges(c.y.dim.bd, 1, m * GATE_COST, activate, <void*>c)


cdef double noise_scale(const Call* c, uint32_t b) noexcept nogil:
    """The deviation, divided by s, of the noise of batch element b's sums; draws noise of deviation 1 into `work`."""
    cdef double total = 1
    cdef uint32_t i
    for i in range(2, c.n, 2):
        total += K.sumsq(rows_of(&c.x[i].dim), element(&c.x[i], b))
    K.rng[<int>DY_RNG_normal](draw_key(c, b), <uint32_t>(c.stream >> 32), draw_number(c, b), 0,
                              rows_of(&c.y.dim), 0, 1, c.work)
    return sqrt(total)


cdef void add_weight_noise(const Call* c) noexcept nogil:
    cdef uint32_t b
    cdef double scale
    for b in range(c.y.dim.bd):
        scale = noise_scale(c, b)
        K.axpy(rows_of(&c.y.dim), <float>(scale * c.attrs[0].f), c.work, element(&c.y, b))


cdef void weight_noise_backward(const Call* c, uint32_t i, const Tensor* dpre) noexcept nogil:
    """The contribution of the noise's deviation to the gradient of x or h."""
    cdef uint32_t b
    cdef double scale
    for b in range(c.y.dim.bd):
        scale = noise_scale(c, b)
        scale = c.attrs[0].f * K.dot(rows_of(&c.y.dim), c.work, element(dpre, b)) / scale
        K.axpy(rows_of(&c.x[i].dim), <float>scale, element(&c.x[i], b), element(&c.dx, b))


cdef void activate_backward(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Call* c = <const Call*>job
    cdef size_t m = rows_of(&c.y.dim)
    K.lstm_gates_bwd(m // 4, end - first, c.y.v + first * m, c.dy.v + first * m, c.saved + first * m, 0)


cdef Tensor gradient_of_sums(const Call* c) noexcept nogil:
    """The gradient of the sums, computed once for all arguments."""
    cdef Tensor dpre = c.y
    dpre.v = c.saved
    if c.first:
        in_ranges(c.y.dim.bd, 1, rows_of(&c.y.dim) * ELEMENT_COST, activate_backward, <void*>c)
    return dpre


cdef void gates_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    cdef Tensor dpre
    if i % 2 and (i == 1 or c.n == 5):
        dpre = gradient_of_sums(c)
        factors_of_a(&c.x[i], &c.x[i + 1], &dpre, f)


cdef void gates_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t m = rows_of(&c.y.dim)
    cdef uint32_t k
    cdef Tensor dpre = gradient_of_sums(c), part
    cdef bint accumulate = c.accumulate
    if i == 0:
        if c.dx.list != NULL:
            for k in range(c.y.dim.bd):
                K.bias_bwd(m, 1, element(&dpre, k), c.dx.list[k], accumulate)
        elif c.dx.dim.bd == c.y.dim.bd:
            K.bias_bwd(m * c.y.dim.bd, 1, dpre.v, c.dx.v, accumulate)
        else:
            K.bias_bwd(m, c.y.dim.bd, dpre.v, c.dx.v, accumulate)
        return
    if i == 1:
        multiply_backward_a(&c.x[1], &c.x[2], &dpre, &c.dx, accumulate)
        return
    if i == 2:
        multiply_backward_b(&c.x[1], &dpre, &c.dx, accumulate)
    elif i % 2:
        if c.n > 5 and not accumulate:          # the columns of other inputs get no gradient here
            K.fill(total_of(&c.dx.dim), 0, c.dx.v)
            accumulate = True
        part = block_of(&c.dx, &c.x[i + 1], c.before)
        multiply_backward_a(&c.x[i], &c.x[i + 1], &dpre, &part, accumulate)
    else:
        part = block_of(&c.x[i - 1], &c.x[i], c.before)
        multiply_backward_b(&part, &dpre, &c.dx, accumulate)
    if i % 2 == 0 and c.attrs[0].f != 0:
        weight_noise_backward(c, i, &dpre)


cdef size_t gates_part(const Call* c, uint32_t i) noexcept nogil:
    """Each input multiplies the next block of columns of Wx."""
    return rows_of(&c.x[i].dim) if i >= 4 and i % 2 == 0 else 0


cdef size_t gates_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef size_t gates_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.y.dim)


cdef Op* new_gates_op(const char* name) except NULL:
    cdef Op* op = register(name, b"b Wh h Wx x more...", gates_dim, gates_forward, gates_backward)
    op.saved = gates_saved
    op.part = gates_part
    op.factors = gates_factors
    op.rule[0] = SHARE
    op.rule[1] = SHARE
    op.assigns = True
    return op


cdef Op* GATES = new_gates_op(b"vanilla_lstm_gates")
cdef Op* NOISY_GATES = new_gates_op(b"vanilla_lstm_gates_noise")
# Takes the sums Wx x + b in place of b.
PROJECTED = new_gates_op(b"vanilla_lstm_gates_projected")
PROJECTED.rule[0] = LIST
NOISY_GATES.random = True
NOISY_GATES.work = gates_work


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
    cdef Extra extra = no_extra()
    extra.attrs[0].f = deviation
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

    That part does not depend on earlier steps, so it can be computed for all steps at once.

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


cdef Op* MASKED = register(b"dropout_mask", b"x mask", masked_dim, masked_forward, masked_backward)


cdef Expression masked(object x, object mask, int offset, bint ends):
    cdef Extra extra = no_extra()
    extra.attrs[0].i = offset
    extra.attrs[1].i = ends
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
    return gates([masked(x_t, dropout_mask_x, 0, True)],
                 masked(h_tm1, dropout_mask_h, 0, True), Wx, Wh, b, weightnoise_std)


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


cdef inline uint32_t together(const Call* c, uint32_t b) noexcept nogil:
    """The number of batch elements from b on that are adjacent in both arguments: one kernel call computes them."""
    cdef uint32_t end = b + 1
    cdef uint32_t all_of_y = c.y.dim.bd
    if c.x[0].list == NULL and c.x[1].list == NULL and c.x[0].dim.bd == all_of_y == c.x[1].dim.bd:
        return all_of_y
    while end < all_of_y and follows(&c.x[0], end) and follows(&c.x[1], end):
        end += 1
    return end - b


cdef inline bint adds(const Call* c, uint32_t b) noexcept nogil:
    """Whether batch element b adds to dx rather than assigns it."""
    return c.accumulate or (b > 0 and c.dx.dim.bd == 1)


cdef void cell_forward(const Call* c) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b)
        K.lstm_c(rows_of(&c.y.dim), n, element(&c.x[0], b), element(&c.x[1], b),
                 element(&c.y, b))
        b += n


cdef void cell_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b)
        K.lstm_c_bwd(rows_of(&c.y.dim), n, element(&c.x[0], b), element(&c.x[1], b),
                     element(&c.dy, b), NULL if i else element(&c.dx, b), adds(c, b),
                     element(&c.dx, b) if i else NULL, adds(c, b))
        b += n


cdef Op* new_cell_op(const char* name, const char* args, Forward forward, Backward backward) except NULL:
    cdef Op* op = register(name, args, cell_dim, forward, backward)
    # The nodes of several cells run as one call; the results of each cell are adjacent, but not those of all cells.
    op.rule[0] = op.rule[1] = LIST
    op.assigns = True
    return op


CELL = new_cell_op(b"vanilla_lstm_c", b"c_tm1 gates_t", cell_forward, cell_backward)


cdef void output_forward(const Call* c) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b)
        K.lstm_h(rows_of(&c.y.dim), n, element(&c.x[1], b), element(&c.x[0], b),
                 element(&c.y, b))
        b += n


cdef void output_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b = 0, n
    while b < c.y.dim.bd:
        n = together(c, b)
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
