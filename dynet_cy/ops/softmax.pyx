"""Softmax, log-sum-exp, and losses over class scores."""

from libc.math cimport INFINITY, logf
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset, strcmp

from dynet_cy.core.tensor cimport Call, Dim, cols_of, element, number_at, rows_of, size_of, total_of
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply, apply1_for, apply1x, apply2, apply2_for, expression, sequence
from dynet_cy.graph.origin cimport describe_dim
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport (
    K, dy_kernels, DY_BINARY_add, DY_BINARY_max, DY_BINARY_mul, DY_BINARY_sub, DY_UNARY_exp, DY_UNARY_log,
)
from dynet_cy.kernels.product cimport RangeRun, in_ranges
from dynet_cy.ops.inputs cimport (
    axis_in, check_count, is_list, of_numbers, of_words, set_index, set_indices, set_shared_indices, whole,
)
from dynet_cy.ops.loops cimport adds, scalar, without
from dynet_cy.ops.registry cimport (
    ASSIGNS, BY_ELEMENT, RAGGED, SECOND, UNREAD_ARGUMENTS, UNREAD_FIRST, UNREAD_RESULT, DimRule, Op, Shapes,
    as_many_as_y, equal_dim, need_axis, need_d, register, same_dim, twice_as_many,
)
from dynet_cy.ops.index cimport (
    ONE_POSITION, OWN_POSITIONS, SHARED_POSITIONS, function_number, is_position, need_one, need_positions, refuse,
    refused,
)
from dynet_cy.ops.select cimport one_each, put, taken

from dynet_cy.graph.nodes import expect
from dynet_cy.graph.structs import results
from dynet_cy.ops.elementwise import rectify, where
from dynet_cy.ops.inputs import ones
from dynet_cy.ops.reduce import sum_dim
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape, transpose


cdef extern from "dynet_cy/line.h" nogil:
    # derived: constants of PAIRS = DY_LINE_PAIRS
    int PAIRS "DY_LINE_PAIRS"
    # end of constants
    # derived: structs of LineRow
    ctypedef struct LineRow "dy_line_row":
        const char* name
        int result
        void (*forward)(const Call* c) noexcept nogil
        void (*backward)(const Call* c, uint32_t i) noexcept nogil
    # end of structs
    # derived: variables of dy_line_kernels, dy_line_rows
    const dy_kernels* dy_line_kernels
    const LineRow dy_line_rows[]
    # end of variables
    # derived: functions of dy_line_work
    size_t dy_line_work(const Call* c, int i)
    # end of functions

cdef extern from "dynet_cy/simplex.h" nogil:
    # derived: functions of dy_sparsemax, dy_sparsemax_bwd, dy_constrained, dy_constrained_bwd
    void dy_sparsemax(size_t n, const float* x, float* y, float* part)
    void dy_sparsemax_bwd(size_t n, const float* y, const float* dy, float* dx, int acc, float* part)
    void dy_constrained(size_t n, const float* x, const float* bound, float* q, float* p, float* part)
    void dy_constrained_bwd(
        size_t n, int of_bound, const float* q, const float* p, const float* dy, float* dx, float* part)
    # end of functions


dy_line_kernels = K


# ==== softmax =====================================================================================

cdef int scores_dim(const Shapes* s, Dim* y) except -1:
    """One result for a vector of scores."""
    if cols_of(s.x[0]) != 1:
        raise DimensionError("x must be a vector of scores")
    return scalar(y)


cdef int picked_dim(const Shapes* s, Dim* y) except -1:
    """One result for a vector of scores and an item; attribute 1: whether there is an index for each batch element."""
    if s.attrs[1].i and s.n_items != s.bd:
        raise IndexError(f"{s.n_items} indices given for a batch of {s.bd}")
    s.attrs[1].i = 0
    scores_dim(s, y)
    return check_indices(s, 1, size_of(s.x[0]))


cdef int check_indices(const Shapes* s, uint32_t item_count, size_t n) except -1:
    """Every index must be below n."""
    cdef uint32_t i
    check_count(s, item_count)
    for i in range(s.n_items):
        if s.items[i] >= n:
            raise IndexError(f"index {s.items[i]} is out of range for {n} elements")
    return 0


# ---- rows of line.def ------------------------------------------------------------

cdef int axis_dim(const Shapes* s, Dim* y) except -1:
    need_axis(s)
    return same_dim(s, y)


cdef int without_axis_dim(const Shapes* s, Dim* y) except -1:
    need_d(s)
    without(s.x[0], <uint32_t>1 << s.attrs[0].u, y)
    return 0


cdef Op* line_op(const char* name, const char* row_name, DimRule dim) except NULL:
    """An op that computes a row of line.def along the axis that is attribute 0."""
    cdef const LineRow* row = dy_line_rows
    cdef Op* op
    while strcmp(row.name, row_name) != 0:
        row += 1
    op = register(name, b"x", dim, row.forward, row.backward, UNREAD_ARGUMENTS | ASSIGNS, dy_line_work)
    if row.result == PAIRS:
        op.unread = UNREAD_RESULT
        op.saved = twice_as_many
    else:
        op.ragged = True
    return op


# ---- softmax: y = e^x / sum e^x, along axis d ---------------------------------

cdef Op* SOFTMAX = line_op(b"softmax", b"softmax", axis_dim)
results[SOFTMAX.id] = "probabilities"


cdef Expression normalized(const Op* op, object x, object d, str name):
    """x to the op, which normalizes it along axis d."""
    cdef Extra extra = of_words(<uint32_t>axis_in(x, d, name))
    return apply1_for(name, op, x, &extra)


cdef object unmasked(object x, object mask):
    """x, with -inf where the mask is 0."""
    return where(mask, x, -INFINITY)


def softmax(x, d: int = 0, mask: Expression | npt.ArrayLike | None = None):
    """Positive numbers that sum to one along an axis: e^x / sum e^x.

    Args:
        x: scores, of any shape.
        d: the axis; 0 normalizes each column. Default: 0.
        mask: an expression or array that is 0 for elements to leave out: their result is 0, and the sum does not
            include them; shapes broadcast.  Where all elements are masked, the result is NaN.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.softmax(dy.inputVector([1, 1, 2])).npvalue().round(3)
        array([0.212, 0.212, 0.576])
    """
    return normalized(SOFTMAX, x if mask is None else unmasked(x, mask), d, "softmax")


def softmin(x, d: int = 0):
    """Softmax of -x along an axis: the smallest element gets the greatest weight.

    Args:
        x: the expression; the result has its shape.
        d: the axis (default: 0).

    Raises:
        DimensionError: there is no such axis.

    Example:
        >>> dy.softmin(dy.inputVector([0, np.log(3)])).npvalue().round(3)
        array([0.75, 0.25])
    """
    return normalized(SOFTMAX, -expression(x, "softmin", "x"), d, "softmin")


# ---- log_softmax: y = x - log sum e^x, in each column, and along another axis ----------

cdef Op* LOG_SOFTMAX = line_op(b"log_softmax", b"log_softmax", same_dim)
LOG_SOFTMAX.columns = True
cdef Op* LOG_SOFTMAX_ALONG = line_op(b"log_softmax_along", b"log_softmax", axis_dim)


# ---- restricted_log_softmax: the same over some elements; -inf for the others ---

cdef int restricted_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1:
        raise DimensionError("x must be a vector where `restrict` is given")
    check_indices(s, s.n_items, size_of(s.x[0]))
    return same_dim(s, y)


cdef void restricted_forward(const Call* c) noexcept nogil:
    cdef uint32_t b, k
    cdef const uint32_t* chosen = c.items
    cdef float* x
    cdef float* y
    K.fill(total_of(&c.y.dim), -INFINITY, c.y.v)
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        y = element(&c.y, b)
        for k in range(c.item_count):
            c.work[k] = x[chosen[k]]
        K.log_softmax(c.item_count, 1, 1, c.work, c.work, NULL)
        for k in range(c.item_count):
            y[chosen[k]] = c.work[k]
        chosen += c.item_count


cdef void restricted_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b, k
    cdef const uint32_t* chosen = c.items
    cdef float* y
    cdef float* dx
    cdef float* dy
    cdef float total
    for b in range(c.y.dim.bd):
        y = element(&c.y, b)
        dy = element(&c.dy, b)
        dx = element(&c.dx, b)
        total = 0
        for k in range(c.item_count):
            total += dy[chosen[k]]
            c.work[k] = y[chosen[k]]
        K.unary_fwd[<int>DY_UNARY_exp](c.item_count, c.work, 0, 0, c.work)
        for k in range(c.item_count):
            dx[chosen[k]] += dy[chosen[k]] - total * c.work[k]
        chosen += c.item_count


cdef size_t one_per_item(const Call* c, int i) noexcept nogil:
    return c.item_count


cdef Op* RESTRICTED = register(b"restricted_log_softmax", b"x", restricted_dim, restricted_forward, restricted_backward,
                               UNREAD_ARGUMENTS, one_per_item)
RESTRICTED.infinite = True


def log_softmax(x, restrict: Expression | _Ints | None = None, d: int = 0,
                mask: Expression | npt.ArrayLike | None = None):
    """Logarithm of the softmax along an axis.

    Args:
        x: scores.
        restrict: indices of the elements of a vector to normalize over; all
            others become -inf.  Each counts once.  A list, or a vector of them as an expression.
        d: the axis; 0 normalizes each column. Default: 0.
        mask: an expression or array that is 0 for elements to leave out: their result is -inf; see `softmax`.

    Raises:
        DimensionError: x has no axis d.
        IndexError: an index is out of range.
        ValueError: `restrict` is empty, or combined with a mask or another axis.

    Example:
        >>> dy.log_softmax(dy.inputVector([1, 1])).npvalue().round(3)
        array([-0.693, -0.693])
        >>> dy.log_softmax(dy.inputVector([1, 1, 9]), restrict=[0, 1]).npvalue().round(3)
        array([-0.693, -0.693,   -inf])
    """
    cdef Py_ssize_t axis = axis_in(x, d, "log_softmax")
    cdef Extra extra = no_extra()
    if restrict is None:
        if mask is not None:
            x = unmasked(x, mask)
        if axis == 0:
            return apply1x(LOG_SOFTMAX, x, NULL)
        return normalized(LOG_SOFTMAX_ALONG, x, <int>axis, "log_softmax")
    if axis or mask is not None:
        raise ValueError("log_softmax: `restrict` is for vectors; it goes with neither d nor a mask")
    if isinstance(restrict, Expression):
        count = size_of(dim_of(restrict))
        length = size_of(dim_of(expression(x, "log_softmax", "x")))
        chosen = put(ones(count), restrict, 0, length, SHARED_POSITIONS, "log_softmax")
        return apply1x(LOG_SOFTMAX, unmasked(x, chosen), NULL)
    chosen = list(dict.fromkeys([whole(k, "log_softmax") for k in restrict]))
    if not chosen:
        raise ValueError("log_softmax: `restrict` is empty")
    _held = set_shared_indices(&extra, chosen, "log_softmax", "indices of `restrict`")
    return apply1x(RESTRICTED, x, &extra)


# ---- pickneglogsoftmax: y = log sum e^x - x_v ----------------------------------
# The pairs of loops.pxd are saved; the gradient e^(x - log-sum) - onehot takes one pass.

# Cost of one element, in multiplications of a matrix product: 0.2 to 0.3 ns.
cdef enum:
    LOG_SUM_COST = 32


cdef void log_sums(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Call* c = <const Call*>job
    K.logsumexp(size_of(&c.x[0].dim), 1, end - first, element(&c.x[0], <uint32_t>first), c.saved + 2 * first, NULL)


cdef void log_sums_backward(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Call* c = <const Call*>job
    cdef uint32_t b = <uint32_t>first
    K.logsumexp_bwd(size_of(&c.x[0].dim), 1, end - first, element(&c.x[0], b), c.saved + 2 * first, c.dy.v + first,
                    element(&c.dx, b), NULL, adds(c, b))


cdef void for_batch_elements(const Call* c, RangeRun run) noexcept nogil:
    """Run a function over ranges of batch elements, or over one at a time if they share x."""
    cdef uint32_t b
    if c.x[0].dim.bd == c.y.dim.bd:
        in_ranges(c.y.dim.bd, 1, size_of(&c.x[0].dim) * LOG_SUM_COST, run, <void*>c)
    else:
        for b in range(c.y.dim.bd):
            run(<void*>c, b, b + 1)


cdef inline bint class_of(const Call* c, uint32_t b, uint32_t* at) noexcept nogil:
    """Find the true class, an item or a value of the graph; False if that is refused."""
    cdef uint32_t n = <uint32_t>size_of(&c.x[0].dim)
    if c.n == 1:
        at[0] = c.items[b]
    elif not is_position(&c.x[1], b, 0, n, at):
        refuse(c.attrs[3].u, &c.x[1], b, 0, n)
        return False
    return True


cdef void pickneglogsoftmax_forward(const Call* c) noexcept nogil:
    cdef uint32_t b, at
    cdef const float* pair
    for_batch_elements(c, log_sums)
    for b in range(c.y.dim.bd):
        pair = c.saved + 2 * <size_t>b
        c.y.v[b] = logf(pair[1]) - (element(&c.x[0], b)[at] - pair[0]) if class_of(c, b, &at) else 0


cdef void pickneglogsoftmax_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b
    if i == 0:
        for_batch_elements(c, log_sums_backward)
        for b in range(c.y.dim.bd):
            element(&c.dx, b)[c.items[b] if c.n == 1 else <size_t>number_at(&c.x[1], b, 0)] -= c.dy.v[b]
    elif not c.accumulate:
        memset(c.dx.v, 0, total_of(&c.dx.dim) * sizeof(float))


cdef Op* new_loss(const char* name, const char* args, DimRule dim) except NULL:
    cdef Op* op = register(name, args, dim, pickneglogsoftmax_forward, pickneglogsoftmax_backward,
                           UNREAD_RESULT | ASSIGNS | RAGGED, NULL, twice_as_many)
    op.over = UNREAD_FIRST
    return op


cdef Op* PICKNEGLOGSOFTMAX = new_loss(b"pickneglogsoftmax", b"x", picked_dim)


# ---- the same, of a class that is a value of the graph ------------------------------------

cdef int picked_at_dim(const Shapes* s, Dim* y) except -1:
    scores_dim(s, y)
    need_one(s, 1)
    return need_positions(s.x[1], size_of(s.x[0]))


cdef Op* PICKNEGLOGSOFTMAX_AT = new_loss(b"pickneglogsoftmax_at", b"x v", picked_at_dim)
PICKNEGLOGSOFTMAX_AT.raised = refused
PICKNEGLOGSOFTMAX_AT.integers = SECOND


cdef Expression loss_at(object x, Expression v, str name):
    cdef Extra extra = of_words(0, 0, 0, function_number(name))
    note_scores(x)
    return apply2_for(name, b"x vs" if name == "pickneglogsoftmax_batch" else b"x v", PICKNEGLOGSOFTMAX_AT, x,
                      one_each(v, name), &extra)


# Arguments of the first calls are looked at: a program that passes a softmax does so from the start.
cdef int unseen = 100


cdef inline int note_scores(object x) except -1:
    """Warn once of the softmax of a softmax."""
    global unseen
    if unseen:
        unseen -= 1
        expect(x, "scores", "pickneglogsoftmax", "x")
    return 0


def pickneglogsoftmax(x, v: Expression | _Int | _Ints):
    """Negative log-likelihood of a class under the softmax of scores.

    Shapes: ``x {n}`` -> ``{1}``.

    Args:
        x: scores.
        v: index of the true class, the same for every batch element; or a list, as for
            `pickneglogsoftmax_batch`; or an expression of one whole number for each batch element, such as
            ``dy.sample(x)``, which gets no gradient.

    Raises:
        IndexError: there is no element v; if v is an expression, when the value is computed.

    Example:
        >>> round(dy.pickneglogsoftmax(dy.inputVector([1, 1]), 0).value(), 3)
        0.693
    """
    cdef uint32_t index
    if isinstance(v, Expression):
        return loss_at(x, v, "pickneglogsoftmax")
    if is_list(v):
        return pickneglogsoftmax_batch(x, v)
    cdef Extra extra = no_extra()
    set_index(&extra, &index, v, "pickneglogsoftmax")
    note_scores(x)
    return apply1x(PICKNEGLOGSOFTMAX, x, &extra)


def pickneglogsoftmax_list(xs: Iterable[Expression], vs: _Ints | Sequence[Expression]) -> list[Expression]:
    """`pickneglogsoftmax` for each element of a list, such as the scores of all words of a sentence, in one call.

    Args:
        xs: a list of expressions, the scores.
        vs: a list of the indices of the true classes, one for each expression: whole numbers, or expressions of one.

    Returns:
        A list of losses, one for each expression.

    Raises:
        IndexError: there is no element v in an x.
        ValueError: the lists differ in length.

    Example:
        >>> losses = dy.pickneglogsoftmax_list([dy.inputVector([1, 1]), dy.inputVector([2, 2, 2])], [0, 2])
        >>> round(dy.esum(losses).value(), 3)
        1.792
    """
    cdef list scores = sequence(xs, b"pickneglogsoftmax_list")
    cdef list losses = []
    cdef Extra extra
    cdef uint32_t index
    for x in scores:
        expression(x, "pickneglogsoftmax_list", "x")
        note_scores(x)
    if not is_list(vs) or len(vs) != len(scores):
        raise ValueError(
            f"pickneglogsoftmax_list: vs must be a list of {len(scores)} indices, as many as there are scores, "
            f"not {vs!r}")
    for x, v in zip(scores, vs):
        if isinstance(v, Expression):
            losses.append(loss_at(x, v, "pickneglogsoftmax_list"))
            continue
        extra = no_extra()
        set_index(&extra, &index, v, "pickneglogsoftmax_list")
        losses.append(apply1x(PICKNEGLOGSOFTMAX, x, &extra))
    return losses


def pickneglogsoftmax_batch(x, vs: Expression | _Ints):
    """Negative log-likelihood of one class for each batch element.

    Args:
        x: scores, a batch of vectors.
        vs: list of indices, one for each batch element; or a vector of them as an expression, or as for
            `pickneglogsoftmax`.

    Raises:
        IndexError: an index is out of range, or the number of indices is wrong.

    Example:
        >>> dy.pickneglogsoftmax_batch(dy.inputTensor([[1, 0], [1, 0]], batched=True), [0, 1]).npvalue().round(3)
        array([[0.693, 0.693]])
    """
    cdef Extra extra = no_extra()
    if isinstance(vs, Expression):
        return loss_at(x, vs, "pickneglogsoftmax_batch")
    _held = set_indices(&extra, vs, "pickneglogsoftmax_batch")
    note_scores(x)
    extra.attrs[1].i = 1
    return apply1x(PICKNEGLOGSOFTMAX, x, &extra)


# ---- logsumexp_dim: y = log sum_i e^x_i, along axis d -------------------------------

cdef Op* LOGSUMEXP_DIM = line_op(b"logsumexp_dim", b"logsumexp", without_axis_dim)


def logsumexp_dim(x, d=0):
    """Logarithm of the sum of e^x over the elements along axis d, which is removed.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> round(dy.logsumexp_dim(dy.inputVector([1, 1])).value(), 3)
        1.693
    """
    return normalized(LOGSUMEXP_DIM, x, d, "logsumexp_dim")


# ---- logsumexp: y = log sum_i e^(x_i), element by element ----------------------
# The maximum of each element and the logarithm of the sum of e^(x - maximum) are saved: their sum, y, has too few
# digits next to a large maximum.  Elements are computed by tiles, which stay in the cache.

cdef enum:
    LOG_SUM_TILE = 1024

cdef int of_list_dim(const Shapes* s, Dim* y) except -1:
    equal_dim(s, y)
    while y.nd > 1 and y.d[y.nd - 1] == 1:      # as in DyNet
        y.nd -= 1
    return 0


cdef void logsumexp_tile(const Call* c, uint32_t b, size_t at, size_t n) noexcept nogil:
    cdef size_t j
    cdef uint32_t i
    cdef double* sums = <double*>c.work
    cdef float* e = c.work + 2 * n
    cdef float* y = element(&c.y, b) + at
    cdef float* top = c.saved + (y - c.y.v)     # 0 if it is not finite
    cdef float* log_sum = top + total_of(&c.y.dim)
    memcpy(top, element(&c.x[0], b) + at, n * sizeof(float))
    for i in range(1, c.n):
        K.binary_fwd[<int>DY_BINARY_max](n, top, 1, element(&c.x[i], b) + at, 1, top)
    for j in range(n):
        if top[j] - top[j] != 0:
            top[j] = 0
    memset(sums, 0, n * sizeof(double))
    for i in range(c.n):
        K.binary_fwd[<int>DY_BINARY_sub](n, element(&c.x[i], b) + at, 1, top, 1, e)
        K.unary_fwd[<int>DY_UNARY_exp](n, e, 0, 0, e)
        for j in range(n):
            sums[j] += e[j]
    for j in range(n):
        log_sum[j] = <float>sums[j]
    K.unary_fwd[<int>DY_UNARY_log](n, log_sum, 0, 0, log_sum)
    K.binary_fwd[<int>DY_BINARY_add](n, top, 1, log_sum, 1, y)


cdef inline size_t tile_at(size_t at, size_t n) noexcept nogil:
    """The size of the tile of n elements that begins at one of them."""
    return n - at if n - at < LOG_SUM_TILE else <size_t>LOG_SUM_TILE


cdef void logsumexp_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), at
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        at = 0
        while at < n:
            logsumexp_tile(c, b, at, tile_at(at, n))
            at += LOG_SUM_TILE


cdef void logsumexp_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t at, j, m, n = size_of(&c.y.dim), all = total_of(&c.y.dim), place
    cdef uint32_t b
    cdef const float* x
    cdef const float* top
    cdef float* e = c.work
    for b in range(c.y.dim.bd):
        at = 0
        while at < n:
            m = tile_at(at, n)
            place = b * n + at
            x = element(&c.x[i], b) + at
            top = c.saved + place
            for j in range(m):
                e[j] = x[j] if x[j] == -INFINITY else (x[j] - top[j]) - top[all + j]
            K.unary_fwd[<int>DY_UNARY_exp](m, e, 0, 0, e)
            K.binary_fwd[<int>DY_BINARY_mul](m, e, 1, c.dy.v + place, 1, e)
            K.add(m, e, element(&c.dx, b) + at)
            at += LOG_SUM_TILE


cdef size_t logsumexp_work(const Call* c, int i) noexcept nogil:
    return (3 if i < 0 else 1) * tile_at(0, size_of(&c.y.dim))


cdef Op* LOGSUMEXP = register(b"logsumexp", b"xs...", of_list_dim, logsumexp_forward, logsumexp_backward, BY_ELEMENT,
                              logsumexp_work, twice_as_many)


def logsumexp(xs: Iterable[Expression]):
    """log(e^x1 + e^x2 + ...), element by element, without overflow.

    Args:
        xs: a list of expressions of one shape; those with batch size 1 are used for
            every batch element of the others.

    Raises:
        ValueError: the list is empty, or shapes differ.

    Example:
        >>> dy.logsumexp([dy.inputVector([1, 2]), dy.inputVector([1, 2])]).npvalue().round(3)
        array([1.693, 2.693])
    """
    return apply(LOGSUMEXP, xs, NULL)


# ---- sparsemax: y = max(x - t, 0), with t such that each column sums to one -----

cdef void sparsemax_forward(const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), k
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for k in range(cols_of(&c.y.dim)):
            dy_sparsemax(n, element(&c.x[0], b) + k * n, element(&c.y, b) + k * n, NULL)


cdef void sparsemax_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim), k
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for k in range(cols_of(&c.y.dim)):
            dy_sparsemax_bwd(n, element(&c.y, b) + k * n, element(&c.dy, b) + k * n, element(&c.dx, b) + k * n,
                             adds(c, b), NULL)


cdef Op* SPARSEMAX = register(b"sparsemax", b"x", same_dim, sparsemax_forward, sparsemax_backward,
                              UNREAD_ARGUMENTS | ASSIGNS)


def sparsemax(x):
    """Projection of each column onto the simplex: like softmax, but with exact
    zeros (Martins and Astudillo 2016).

    Args:
        x: a vector, or a matrix, each of whose columns is projected.

    Example:
        >>> dy.sparsemax(dy.inputVector([1, 1, 3])).npvalue()
        array([0., 0., 1.])
    """
    return apply1x(SPARSEMAX, x, NULL)


# ---- hinge: y = sum_(j != v) max(m - x_v + x_j, 0) ------------------------------
# Attributes: m; whether there is an index for each batch element.

# Neither loop has a branch: which scores are too high is as good as random.
cdef inline double losses_of(size_t first, size_t end, float bar, const float* x) noexcept nogil:
    cdef size_t j
    cdef float over
    cdef double total = 0
    for j in range(first, end):
        over = bar + x[j]
        total += 0 if over <= 0 else over           # a NaN is a loss
    return total


cdef inline uint32_t slopes_of(size_t first, size_t end, float bar, const float* x, float dy, float* dx,
                               bint added) noexcept nogil:
    """The gradients of some elements; their number of losses."""
    cdef size_t j
    cdef float slope
    cdef uint32_t count = 0
    for j in range(first, end):                     # dx may be x
        slope = 0 if bar + x[j] <= 0 else dy
        count += 0 if bar + x[j] <= 0 else 1
        dx[j] = dx[j] + slope if added else slope
    return count


cdef void hinge_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b, v
    cdef float* x
    cdef float bar
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        v = c.items[b]
        bar = c.attrs[0].f - x[v]
        c.y.v[b] = <float>(losses_of(0, v, bar, x) + losses_of(v + 1, n, bar, x))


cdef void hinge_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b, v, others
    cdef float* x
    cdef float* dx
    cdef float bar, dy
    cdef bint added
    for b in range(c.y.dim.bd):
        added = adds(c, b)
        x = element(&c.x[0], b)
        dx = element(&c.dx, b)
        v = c.items[b]
        bar = c.attrs[0].f - x[v]
        dy = c.dy.v[b]
        others = slopes_of(0, v, bar, x, dy, dx, added) + slopes_of(v + 1, n, bar, x, dy, dx, added)
        dx[v] = (dx[v] if added else 0) - (others * dy if others else 0)


cdef Op* HINGE = register(b"hinge", b"x", picked_dim, hinge_forward, hinge_backward, UNREAD_RESULT | ASSIGNS)
HINGE.over = UNREAD_FIRST


cdef Expression hinge_at(object x, object right, Py_ssize_t axis, float m):
    """Hinge losses along an axis, from the scores of the true classes; the sum has max(m, 0) of these themselves."""
    return sum_dim(rectify(x - (right - m)), [axis]) - max(m, 0)


def hinge(x, v: Expression | _Int | _Ints, float m=1.0):
    """Hinge loss: the score of the true class must exceed all others by a margin.

    Shapes: ``x {n}`` -> ``{1}``.

    Args:
        x: scores.
        v: index of the true class, the same for every batch element; or a list, as for `hinge_batch`; or an
            expression of one whole number for each batch element, which gets no gradient.
        m: the margin (default: 1).

    Raises:
        IndexError: there is no element v; if v is an expression, when the value is computed.

    Example:
        >>> dy.hinge(dy.inputVector([3, 1, 2.5]), 0).value()
        0.5
    """
    cdef uint32_t index
    if isinstance(v, Expression):
        return hinge_at(x, taken(x, one_each(v, "hinge"), 0, ONE_POSITION, "hinge"), 0, m)
    if is_list(v):
        return hinge_batch(x, v, m)
    cdef Extra extra = of_numbers(m)
    set_index(&extra, &index, v, "hinge")
    return apply1x(HINGE, x, &extra)


def hinge_batch(x, vs: Expression | _Ints, float m=1.0):
    """Hinge loss with one true class for each batch element; see `hinge`.

    Args:
        x: scores, a batch of vectors.
        vs: list of indices, one for each batch element; or a vector of them as an expression, or as for `hinge`.
        m: the margin (default: 1).

    Example:
        >>> dy.hinge_batch(dy.inputTensor([[3, 2], [1, 4]], batched=True), [0, 0]).npvalue()
        array([[0., 3.]])
    """
    cdef Extra extra = of_numbers(m)
    if isinstance(vs, Expression):
        return hinge_at(x, taken(x, one_each(vs, "hinge_batch"), 0, ONE_POSITION, "hinge_batch"), 0, m)
    _held = set_indices(&extra, vs, "hinge_batch")
    extra.attrs[1].i = 1
    return apply1x(HINGE, x, &extra)


def hinge_dim(x, v: Expression | _Ints | Sequence[_Ints], d=0, float m=1.0):
    """Hinge loss of every line of a matrix along axis d.

    Shapes: ``x {r,c}`` -> ``{c}`` for d=0, ``{r}`` for d=1.

    Args:
        x: scores.
        v: the true index in each line, as a list for every batch element to share, or
            the lists of all batch elements, nested or concatenated; or a vector of them as an expression, which gets no
            gradient.
        d: the axis of the classes (default: 0).
        m: the margin (default: 1).

    Raises:
        IndexError: an index is out of range, or the number of indices is wrong.

    Example:
        >>> dy.hinge_dim(dy.inputTensor([[3, 1], [2, 4]]), [0, 0]).npvalue()
        array([0., 4.])
    """
    cdef Expression scores = expression(x, "hinge_dim", "x")
    cdef Dim dim = dim_of(scores)[0]
    cdef Py_ssize_t axis = axis_in(scores, d, "hinge_dim")
    cdef uint32_t lines, n, i
    cdef Extra extra = no_extra()
    if dim.nd != 2 or axis > 1:
        why = "x must be a matrix" if dim.nd != 2 else f"x has no axis {axis}"
        raise DimensionError(f"hinge_dim: {why}\n    x  {describe_dim(&dim)}")
    n, lines = dim.d[axis], dim.d[1 - axis]
    if isinstance(v, Expression):
        if size_of(dim_of(v)) != lines:
            raise DimensionError(f"hinge_dim: v has {size_of(dim_of(v))} indices for {lines} lines")
        places = reshape(v, [lines, 1] if axis else [1, lines], dim_of(v).bd)
        return hinge_at(scores, taken(scores, places, axis, OWN_POSITIONS, "hinge_dim"), axis, m)
    if is_list(v) and len(v) and is_list(v[0]):
        v = [k for line in v for k in line]
    if is_list(v) and len(v) == lines:
        v = list(v) * dim.bd                    # the same for each batch element
    _held = set_indices(&extra, v, "hinge_dim")
    if extra.n_items != <size_t>lines * dim.bd:
        each = f", or {lines} for each of the {dim.bd} batch elements" if dim.bd > 1 else ""
        raise IndexError(
            f"hinge_dim: {extra.n_items} indices given where {lines} are needed{each}\n    x  {describe_dim(&dim)}")
    for i in range(extra.n_items):
        if extra.items[i] >= n:
            raise IndexError(f"hinge_dim: index {extra.items[i]} is out of range for {n} elements\n"
                             f"    x  {describe_dim(&dim)}")
    extra.attrs[0].f = m
    vectors = reshape(transpose(scores) if axis else scores, (n,), lines * dim.bd)
    return reshape(apply1x(HINGE, vectors, &extra), (lines,), dim.bd)


# ==== constrained =================================================================================
#
# Softmax with upper bounds.

# ---- constrained_softmax: p_i = min(u_i, s q_i), see simplex.h ---------------------

cdef int constrained_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or cols_of(s.x[1]) != 1:
        raise DimensionError("x and y must be vectors")
    if rows_of(s.x[0]) != rows_of(s.x[1]):
        raise DimensionError(f"x has {rows_of(s.x[0])} elements but y has {rows_of(s.x[1])}")
    return same_dim(s, y)


cdef void constrained_forward(const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        dy_constrained(n, element(&c.x[0], b), element(&c.x[1], b), c.saved + b * n, element(&c.y, b), NULL)


cdef void constrained_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        dy_constrained_bwd(n, i, c.saved + b * n, element(&c.y, b), element(&c.dy, b), element(&c.dx, b), NULL)


cdef Op* CONSTRAINED = register(b"constrained_softmax", b"x y", constrained_dim, constrained_forward,
                                constrained_backward, UNREAD_ARGUMENTS, NULL, as_many_as_y)


def constrained_softmax(x, y):
    """Softmax of scores with upper bounds on the probabilities (Martins and Kreutzer 2017).

    The result is the distribution closest to the softmax of x, in Kullback-Leibler
    divergence, that nowhere exceeds y.  If the bounds sum to less than 1, there is
    none, and the result is y.

    Shapes: ``x {n}``, ``y {n}`` -> ``{n}``.

    Args:
        x: scores.
        y: upper bounds, at least 0.

    Raises:
        DimensionError: x and y are not vectors of the same size.

    Example:
        >>> dy.constrained_softmax(dy.inputVector([1, 1, 3]), dy.inputVector([1, 1, 0.5])).npvalue().round(3)
        array([0.25, 0.25, 0.5 ])
    """
    return apply2(CONSTRAINED, x, y)
