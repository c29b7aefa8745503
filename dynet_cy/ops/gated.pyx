"""Affine maps with their activation as one node, and the cells of GRUs and Tree-LSTMs."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, cols_of, element, rows_of, same_shape, size_of, total_of
from dynet_cy.graph.making cimport apply, sequence
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport DY_BINARY_mul, DY_UNARY_logistic, DY_UNARY_tanh, K
from dynet_cy.ops.indices cimport whole
from dynet_cy.ops.linalg cimport (
    affine_transform_backward, affine_transform_dim, affine_transform_factors, affine_transform_forward,
)
from dynet_cy.ops.registry cimport LIST, SHARE, Factors, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


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
        raise DimensionError(f"the sum has {rows_of(y)} rows, which is not a multiple of {s.attrs[BLOCKS].u} gates")
    return 0


cdef struct Runs:
    size_t n                        # repetitions of the three parts below
    size_t first
    size_t tanh
    size_t last


cdef Runs runs_of(const Call* c) noexcept nogil:
    """Lengths of the parts with logistic, tanh and logistic; with the same f everywhere, all columns are one part."""
    cdef Runs r
    cdef size_t h = rows_of(&c.y.dim) // c.attrs[BLOCKS].u
    r.first = h * c.attrs[LOGISTIC].u
    r.tanh = h * c.attrs[TANH].u
    r.last = rows_of(&c.y.dim) - r.first - r.tanh
    r.n = total_of(&c.y.dim) // max(rows_of(&c.y.dim), <uint32_t>1)
    if r.first == rows_of(&c.y.dim) or r.tanh == rows_of(&c.y.dim):
        r.first *= r.n
        r.tanh *= r.n
        r.n = 1
    return r


cdef void gated_forward(const Call* c) noexcept nogil:
    cdef Runs r = runs_of(c)
    cdef float* y = c.y.v
    affine_transform_forward(c)
    for _ in range(r.n):
        K.unary_fwd[<int>DY_UNARY_logistic](r.first, y, 0, 0, y)
        y += r.first
        K.unary_fwd[<int>DY_UNARY_tanh](r.tanh, y, 0, 0, y)
        y += r.tanh
        K.unary_fwd[<int>DY_UNARY_logistic](r.last, y, 0, 0, y)
        y += r.last


cdef Call before_activation(const Call* c) noexcept nogil:
    """The call of the sum alone: the gradient of the sum serves all arguments."""
    cdef Call sums = c[0]
    cdef Runs r = runs_of(c)
    cdef const float* y = c.y.v
    cdef const float* dy = c.dy.v
    cdef float* to = c.saved
    sums.dy.v = c.saved
    if not c.first:
        return sums
    for _ in range(r.n):
        K.unary_bwd[<int>DY_UNARY_logistic](r.first, y, y, dy, 0, 0, to, 0)
        y += r.first
        dy += r.first
        to += r.first
        K.unary_bwd[<int>DY_UNARY_tanh](r.tanh, y, y, dy, 0, 0, to, 0)
        y += r.tanh
        dy += r.tanh
        to += r.tanh
        K.unary_bwd[<int>DY_UNARY_logistic](r.last, y, y, dy, 0, 0, to, 0)
        y += r.last
        dy += r.last
        to += r.last
    return sums


cdef void gated_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Call sums = before_activation(c)
    affine_transform_backward(&sums, i)


cdef void gated_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    cdef Call sums
    if i % 2:
        sums = before_activation(c)
        affine_transform_factors(&sums, i, f)


cdef size_t gated_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


GATED = register(b"gated_affine", b"b xs...", gated_dim, gated_forward, gated_backward)
GATED.saved = gated_saved
GATED.factors = gated_factors
GATED.rule[0] = LIST
GATED.rule[1] = SHARE
GATED.assigns = True


cdef void set_gates(Extra* extra, uint32_t blocks, uint32_t first, uint32_t tanh) noexcept:
    memset(extra, 0, sizeof(Extra))
    extra.attrs[<int>BLOCKS].u = blocks
    extra.attrs[<int>LOGISTIC].u = first
    extra.attrs[<int>TANH].u = tanh


cdef void set_logistic(Extra* extra) noexcept:
    set_gates(extra, 1, 1, 0)


cdef void set_tanh(Extra* extra) noexcept:
    set_gates(extra, 1, 0, 1)


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
    cdef Extra extra
    set_logistic(&extra)
    return apply(GATED, exprs, &extra)


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
    cdef Extra extra
    set_tanh(&extra)
    return apply(GATED, exprs, &extra)


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


GRU_H = register(b"gru_h", b"h_tm1 z_t g_t", gru_h_dim, gru_h_forward, gru_h_backward)
GRU_H.rule[0] = GRU_H.rule[1] = GRU_H.rule[2] = LIST
GRU_H.assigns = True


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
        raise DimensionError(f"there are {rows} gates, which is not a multiple of {blocks}")
    if s.n - 1 > s.attrs[0].u:
        raise DimensionError(f"{s.n - 1} cells are given for {s.attrs[0].u} children")
    for i in range(s.n):
        if cols_of(s.x[i]) != 1:
            raise DimensionError("the gates and the cells must be vectors")
        if i and rows_of(s.x[i]) != rows // blocks:
            raise DimensionError(f"cs[{i - 1}] has {rows_of(s.x[i])} elements, {rows // blocks} are needed")
    y.nd = 1
    y.d[0] = rows // blocks
    return 0


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
        acc = c.accumulate or (b > 0 and c.dx.dim.bd == 1)
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


TREE_C = register(b"tree_lstm_c", b"gates cs...", tree_c_dim, tree_c_forward, tree_c_backward)
TREE_C.rule[0] = TREE_C.rule[1] = TREE_C.rule[2] = LIST
TREE_C.assigns = True


cdef void set_tree(Extra* extra, uint32_t children) noexcept:
    memset(extra, 0, sizeof(Extra))
    extra.attrs[0].u = children


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
    y.nd = 1
    y.d[0] = rows_of(s.x[0])
    return 0


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
        acc = c.accumulate or (b > 0 and c.dx.dim.bd == 1)
        if i == 0:
            add_product(h, element(&c.dy, b), element(&c.x[1], b) + h, c.work, False)
            K.unary_bwd[<int>DY_UNARY_tanh](h, squashed, squashed, c.work, 0, 0, dx, acc)
        else:
            add_product(h, element(&c.dy, b), squashed, dx + h, acc)
            if not acc:
                memset(dx, 0, h * sizeof(float))
                memset(dx + 2 * h, 0, (rows_of(&c.dx.dim) - 2 * h) * sizeof(float))
        squashed += h


cdef size_t tree_h_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef size_t tree_h_work(const Call* c, int i) noexcept nogil:
    return rows_of(&c.y.dim)


TREE_H = register(b"tree_lstm_h", b"c gates", tree_h_dim, tree_h_forward, tree_h_backward)
TREE_H.rule[0] = TREE_H.rule[1] = LIST
TREE_H.saved = tree_h_saved
TREE_H.work = tree_h_work
TREE_H.assigns = True


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
