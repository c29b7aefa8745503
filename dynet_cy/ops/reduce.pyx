"""Reductions: sums, means, norms, moments, and ops along one axis."""

from libc.math cimport INFINITY, NAN, copysign, fabs, isinf, pow, sqrt
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Call, Dim, Tensor, cols_of, element, integers, rows_of, size_of, total_of
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply1, apply1_for, apply1x, expression
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport (
    K, DY_BINARY_mul, DY_UNARY_abs, DY_UNARY_pow_const, DY_UNARY_sqrt, DY_UNARY_square, squares_of,
)
from dynet_cy.ops.index cimport choice_dim, chooser_number, chooses, refuse
from dynet_cy.ops.inputs cimport axis_in, axis_word, is_list, of_words, whole
from dynet_cy.ops.loops cimport (
    ALL_AXES, BATCH_BIT, Split, Sweep, Walk, add_where, best_of_line, count_of, is_usual, pass_on, put_scaled,
    scalar, split_at, sum_run, sum_run_backward, sums_of, sweep, sweep_backward, sweep_forward, sweep_work, walk_of,
    without,
)
from dynet_cy.ops.registry cimport (
    ASSIGNS, RAGGED, UNREAD, UNREAD_RESULT, Forward, Op, Shapes, as_many_as_y, register, same_dim,
)

from dynet_cy.graph.structs import operators
from dynet_cy.ops.elementwise import cmult, square
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape


# ==== reduce ======================================================================================
#
# Reductions: sums and means.

# ---- which axes ------------------------------------------------------------------

# The shape rule of ops whose attrs[0] is the axes that they reduce.
cdef int reduced_dim(const Shapes* s, Dim* y) except -1:
    """x without the axes of the mask, and without its batch if that bit is set."""
    cdef uint32_t mask = s.attrs[0].u
    cdef uint32_t i
    if mask & BATCH_BIT:
        y.bd = 1
    if mask & ALL_AXES == ALL_AXES:                 # however many there are
        return scalar(y)
    for i in range(s.x[0].nd, 7):
        if mask >> i & 1:
            raise DimensionError(f"there is no axis {i} to reduce")
    without(s.x[0], mask, y)
    return 0


cdef uint32_t mask_of(object x, object d, object b, str op) except? 0xFFFFFFFF:
    """The axes d of x, one number or several, and the batch if b, as a mask."""
    cdef uint32_t mask = 0
    cdef Py_ssize_t i
    for axis in (d if isinstance(d, (list, tuple)) else (d,)):
        i = axis_in(x, axis, op, "an axis")
        if i > 6:
            raise DimensionError(f"{op}: there is no axis {i}")
        if mask >> i & 1:
            raise DimensionError(f"{op}: axis {i} is given twice")
        mask |= <uint32_t>1 << i
    if b:
        mask |= BATCH_BIT
    if mask == 0:
        raise DimensionError(f"{op}: no axis is given, nor the batch: there is nothing to reduce")
    return mask


cdef int number_of(object n, str op) except -1:
    """The number to divide by; 0 stands for the number of elements."""
    cdef int number = <int>whole(n, op, "n")
    if number < 0:
        raise ValueError(f"{op}: n must not be negative, but it is {n}")
    return number


cdef Expression reduced(const Op* op, object x, uint32_t mask, str name, int n=0):
    """x to a sum or a mean; n: the number that the sum is divided by, 0: the number of elements."""
    cdef Extra extra = of_words(mask, 1 if op == SUM else n)
    return apply1_for(name, op, x, &extra)


cdef list axes_of(Expression x, object axis, str op):
    """The axes that a method reduces, in ascending order; None means all."""
    cdef uint32_t i, mask
    if axis is None:
        return list(range(dim_of(x).nd))
    mask = mask_of(x, axis, False, op)
    axes = [i for i in range(7) if mask >> i & 1]
    if axes[-1] >= <int>dim_of(x).nd:
        raise DimensionError(f"{op}: there is no axis {axes[-1]}, x has {dim_of(x).nd}")
    return axes


cdef Expression with_axes(Expression x, Expression y, list axes, object keepdims):
    """y; if `keepdims`, with these axes of x kept as axes of size 1."""
    cdef uint32_t i
    if not keepdims:
        return y
    return reshape(y, [1 if i in axes else dim_of(x).d[i] for i in range(dim_of(x).nd)])


# ---- sum and mean: y = 1/n sum_i x_i -------------------------------------------
# attrs[1]: n, of a sum 1; 0: the number of elements.

cdef float divisor(const Call* c) noexcept nogil:
    return c.attrs[1].i if c.attrs[1].i > 0 else count_of(c)


cdef void mean_forward(const Call* c) noexcept nogil:
    sweep_forward(c, sum_run, 1 / divisor(c), c.y.v, sums_of(c))


cdef void mean_backward(const Call* c, uint32_t i) noexcept nogil:
    sweep_backward(c, sum_run_backward, 1 / divisor(c))


cdef Op* new_mean(const char* name) except NULL:
    return register(name, b"x", reduced_dim, mean_forward, mean_backward, UNREAD | ASSIGNS | RAGGED, sweep_work)


cdef Op* SUM = new_mean(b"sum")
cdef Op* MEAN = new_mean(b"mean")


def sum_elems(x):
    """Sum of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.sum_elems(dy.inputVector([1, 2, 6])).value()
        9.0
    """
    return reduced(SUM, x, ALL_AXES, "sum_elems")


def sum_dim(x, d: Sequence[int], b=False, n: int = 0):
    """Sum along some axes.

    Args:
        x: the expression.
        d: the axes, a list or one number; they vanish from the shape.
        b: whether to sum over the batch too (default: False).
        n: without effect, as in DyNet.

    Raises:
        DimensionError: there is no such axis, or nothing to sum over.

    Example:
        >>> dy.sum_dim(dy.inputTensor([[1, 4], [3, 2]]), [0]).npvalue()
        array([4., 6.])
    """
    whole(n, "sum_dim", "n")
    return reduced(SUM, x, mask_of(x, d, b, "sum_dim"), "sum_dim")


def sum_batches(x):
    """Sum of all batch elements: one batch element of the same shape.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.sum_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True)).npvalue()
        array([4., 6.])
    """
    return reduced(SUM, x, BATCH_BIT, "sum_batches")


def mean_elems(x):
    """Mean of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.mean_elems(dy.inputVector([1, 2, 6])).value()
        3.0
    """
    return reduced(MEAN, x, ALL_AXES, "mean_elems")


def mean_dim(x, d: Sequence[int], b=False, n: int = 0):
    """Mean along some axes.

    Args:
        x: the expression.
        d: the axes, a list or one number; they vanish from the shape.
        b: whether to take the mean over the batch too (default: False).
        n: if above 0, divide by it instead of the number of elements, for masked elements (default: 0).

    Raises:
        DimensionError: there is no such axis, or nothing to reduce.
        ValueError: n is negative.

    Example:
        >>> dy.mean_dim(dy.inputTensor([[1, 4], [3, 2]]), [0]).npvalue()
        array([2., 3.])
    """
    return reduced(MEAN, x, mask_of(x, d, b, "mean_dim"), "mean_dim", number_of(n, "mean_dim"))


def mean_batches(x):
    """Mean of all batch elements: one batch element of the same shape.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.mean_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True)).npvalue()
        array([2., 3.])
    """
    return reduced(MEAN, x, BATCH_BIT, "mean_batches")


# ---- methods of expressions ------------------------------------------------------

cdef Expression summed(Expression x, const Op* op, object axis, object keepdims, str name):
    axes = axes_of(x, axis, name)
    return with_axes(x, reduced(op, x, mask_of(x, axes, False, name) if axes else ALL_AXES, name), axes, keepdims)


def _sum(Expression x, axis, keepdims):
    return summed(x, SUM, axis, keepdims, "sum")


def _mean(Expression x, axis, keepdims):
    return summed(x, MEAN, axis, keepdims, "mean")


operators.update(sum=_sum, mean=_mean)


# ==== along =======================================================================================
#
# Ops along one axis: extremes, cumulative sums.

cdef Expression along(const Op* op, object x, Py_ssize_t d):
    cdef Extra extra = of_words(axis_word(d), follows_dynet())
    return apply1x(op, x, &extra)


# ---- max_dim, min_dim: y = max_i x_i; of equal ones the first gets the gradient --
# Attributes: the axis, and whether NaN is ignored, as in DyNet; otherwise the first NaN is the result.

cdef void extreme(const Call* c, float sign) noexcept nogil:
    """The maximum of sign x, and its position in c.saved."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef bint ignores = c.attrs[1].u
    cdef size_t b, k, p, best
    cdef float v
    cdef const float* x
    cdef float* y = c.y.v
    cdef uint32_t* where = <uint32_t*>c.saved
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], <uint32_t>b)
        for _ in range(s.post):
            best = best_of_line(x, 1, s.len, sign) if s.pre == 1 else 0
            if s.pre == 1 and (x[best] == x[best] or not ignores):
                y[0] = x[best]
                where[0] = <uint32_t>best
            else:
                K.fill(s.pre, -sign * INFINITY, y)
                memset(where, 0, s.pre * sizeof(uint32_t))
                for k in range(s.len):
                    for p in range(s.pre):
                        v = x[k * s.pre + p]
                        if sign * v > sign * y[p] or (v != v and y[p] == y[p] and not ignores):
                            y[p] = v
                            where[p] = <uint32_t>k
            x += s.pre * s.len
            y += s.pre
            where += s.pre


cdef void max_dim_forward(const Call* c) noexcept nogil:
    extreme(c, 1)


cdef void min_dim_forward(const Call* c) noexcept nogil:
    extreme(c, -1)


cdef void extreme_backward(const Call* c, uint32_t i) noexcept nogil:
    add_where(c, split_at(&c.x[0].dim, c.attrs[0].u), 1)


cdef Op* new_extreme(const char* name, Forward forward) except NULL:
    return register(name, b"x", choice_dim, forward, extreme_backward, UNREAD | RAGGED, NULL, as_many_as_y)


cdef Op* MAX_DIM = new_extreme(b"max_dim", max_dim_forward)
cdef Op* MIN_DIM = new_extreme(b"min_dim", min_dim_forward)


def max_dim(x, d=0):
    """Greatest element along axis d, which is removed; if several are equal, the first gets the gradient.

    Where an element is NaN, the result is NaN. With ``import dynet`` NaN is ignored, as in DyNet.

    Raises:
        DimensionError: x has no axis d, or no elements along it.

    Example:
        >>> dy.max_dim(dy.inputTensor([[1, 4], [3, 2]])).npvalue()
        array([3., 4.])
    """
    return along(MAX_DIM, x, axis_in(x, d, "max_dim"))


def min_dim(x, d=0):
    """Least element along axis d; see `max_dim`.

    Raises:
        DimensionError: x has no axis d, or no elements along it.

    Example:
        >>> dy.min_dim(dy.inputTensor([[1, 4], [3, 2]])).npvalue()
        array([1., 2.])
    """
    return along(MIN_DIM, x, axis_in(x, d, "min_dim"))


# ---- cumsum: y_i = sum_{j<=i} x_j ---------------------------------------------

cdef int cumsum_dim(const Shapes* s, Dim* y) except -1:
    # Missing axes have one element.
    if s.attrs[0].u >= 7:
        raise DimensionError("d must be from 0 to 6")
    return same_dim(s, y)


cdef inline void cumulate(const Call* c, bint back) noexcept nogil:
    """The sums of x from the beginning of each line, in y; or those of dy from the end, added to dx."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, k, p, at
    cdef const float* x
    cdef float* y
    cdef double* sums = <double*>c.work
    for b in range(c.y.dim.bd):
        x = element(&c.dy if back else &c.x[0], <uint32_t>b)
        y = element(&c.dx if back else &c.y, <uint32_t>b)
        for _ in range(s.post):
            memset(sums, 0, s.pre * sizeof(double))
            for k in range(s.len):
                at = (s.len - 1 - k if back else k) * s.pre
                for p in range(s.pre):
                    sums[p] += x[at + p]
                    y[at + p] = y[at + p] + <float>sums[p] if back else <float>sums[p]
            x += s.pre * s.len
            y += s.pre * s.len


cdef void cumsum_forward(const Call* c) noexcept nogil:
    cumulate(c, False)


cdef void cumsum_backward(const Call* c, uint32_t i) noexcept nogil:
    cumulate(c, True)


cdef size_t cumsum_work(const Call* c, int i) noexcept nogil:
    return 2 * split_at(&c.x[0].dim, c.attrs[0].u).pre


cdef Op* CUMSUM = register(b"cumsum", b"x", cumsum_dim, cumsum_forward, cumsum_backward, UNREAD, cumsum_work)


def cumsum(x, d=0):
    """Cumulative sums of the elements along axis d; the result has the shape of x.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.cumsum(dy.inputVector([1, 2, 3])).npvalue()
        array([1., 3., 6.])
    """
    return along(CUMSUM, x, axis_in(x, d, "cumsum"))


# ---- argmax: y = 1 at the greatest element, the first of equal ones, else 0 ------

cdef int argmax_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or rows_of(s.x[0]) == 0:
        raise DimensionError("x must be a vector, of at least one element")
    return same_dim(s, y)


cdef void argmax_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t b
    K.fill(total_of(&c.y.dim), 0, c.y.v)
    for b in range(c.y.dim.bd):
        element(&c.y, b)[K.argmax(n, element(&c.x[0], b))] = 1


cdef void straight_through_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, 1)


cdef Op* ARGMAX = register(b"argmax", b"x", argmax_dim, argmax_forward, NULL)
ARGMAX.no_gradient_because = b"the gradient is zero almost everywhere"
cdef Op* ARGMAX_STRAIGHT_THROUGH = register(b"argmax_straight_through", b"x", argmax_dim, argmax_forward,
                                            straight_through_backward, UNREAD | ASSIGNS)


# ---- the indices of the greatest and of the least element along an axis, as values ------------
# Attributes: the axis, whether the least is meant, and the function's number.  The first of equal elements counts.

cdef void index_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t line, first, best, n = total_of(&c.y.dim) // c.y.dim.bd
    cdef uint32_t b
    cdef int32_t* y = integers(c.y.v)
    cdef const float* x
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        for line in range(n):
            first = line // s.pre * s.pre * s.len + line % s.pre
            best = best_of_line(x + first, s.pre, s.len, -1 if c.attrs[1].u else 1)
            y[line] = <int32_t>best
            if x[first + best * s.pre] != x[first + best * s.pre]:
                refuse(c.attrs[2].u, &c.x[0], b, first + best * s.pre, 0)
        y += n


cdef Op* new_index(const char* name) except NULL:
    cdef Op* op = register(name, b"x", choice_dim, index_forward, NULL, RAGGED)
    chooses(op, b"indices are constant almost everywhere")
    return op


cdef Op* INDEX_OF_MAX = new_index(b"index_of_max")
cdef Op* INDEX_OF_MIN = new_index(b"index_of_min")


cdef Expression index_along(object x, object d, bint least, str name):
    cdef Extra extra = of_words(axis_word(axis_in(x, d, name)), least, chooser_number(name))
    return apply1x(INDEX_OF_MIN if least else INDEX_OF_MAX, x, &extra)


def argmax(x, gradient_mode: str | None = None, d=0):
    """The index of the greatest element along an axis, which is removed, as a value of the graph, an integer; the first
    if several are equal.

    The result can be used as an index: ``table[dy.argmax(scores)]``. No gradient flows through it. Of elements that are
    all -inf, it is the first.

    Args:
        x: an expression.
        gradient_mode: for DyNet's `argmax`, whose result is a vector with 1 at the greatest element of the vector x and
            0 elsewhere: "zero_gradient", or "straight_through_gradient": the gradient passes as if the op did nothing
            (Bengio et al. 2013). Default: None, for the index.
        d: the axis (default: 0).

    Raises:
        DimensionError: x has no axis d, or no elements along it; with a gradient mode, x is not a vector.
        ValueError: there is no such gradient mode; or, without one, when the value is computed, an element is NaN.

    Example:
        >>> dy.argmax(dy.inputVector([1, 5, 3])).value()
        1
        >>> dy.argmax(dy.inputVector([1, 5, 3]), gradient_mode="zero_gradient").npvalue()
        array([0., 1., 0.])
    """
    if gradient_mode is None:
        return index_along(x, d, False, "argmax")
    if gradient_mode == "zero_gradient":
        return apply1(ARGMAX, x)
    if gradient_mode == "straight_through_gradient":
        return apply1(ARGMAX_STRAIGHT_THROUGH, x)
    raise ValueError('argmax: gradient_mode must be "zero_gradient" or '
                     f'"straight_through_gradient", not {gradient_mode!r}')


def argmin(x, d=0):
    """The index of the least element along an axis, which is removed, as a value of the graph; see `argmax`.

    Args:
        x: an expression.
        d: the axis (default: 0).

    Raises:
        DimensionError: x has no axis d, or no elements along it.
        ValueError: an element is NaN, when the value is computed.

    Example:
        >>> dy.argmin(dy.inputTensor([[1, 5], [3, 4]])).npvalue()
        array([0, 1], dtype=int32)
    """
    return index_along(x, d, True, "argmin")


# ---- methods of expressions ------------------------------------------------------

cdef Expression extreme_of(Expression x, const Op* op, object axis, object keepdims, str name):
    cdef Expression y = x
    axes = axes_of(x, axis, name)
    for i in reversed(axes):                        # so that the remaining axes keep their numbers
        y = along(op, y, i)
    return with_axes(x, y if axes else reduced(SUM, x, ALL_AXES, "sum_elems"), axes, keepdims)


def _max(Expression x, axis, keepdims):
    return extreme_of(x, MAX_DIM, axis, keepdims, "max")


def _min(Expression x, axis, keepdims):
    return extreme_of(x, MIN_DIM, axis, keepdims, "min")


operators.update(max=_max, min=_min)


# ==== vector norm =================================================================================
#
# Norms.

# ---- squared_norm: y = sum_i x_i^2 --------------------------------------------

cdef int scalar_dim(const Shapes* s, Dim* y) except -1:
    return scalar(y)


cdef void squared_norm_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        c.y.v[b] = K.sumsq(n, element(&c.x[0], b))


cdef void squared_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.axpy(n, 2 * c.dy.v[b], element(&c.x[0], b), element(&c.dx, b))


cdef Op* SQUARED_NORM = register(b"squared_norm", b"x", scalar_dim, squared_norm_forward, squared_norm_backward,
                                 UNREAD_RESULT)


def squared_norm(x):
    """Sum of the squares of all elements.

    Shapes: of any shape -> ``{1}`` for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.squared_norm(dy.inputVector([3, 4])).value()
        25.0
    """
    return apply1(SQUARED_NORM, x)


# ---- norm: y = (sum_i |x_i|^p)^(1/p); max_i |x_i| if p is infinite ----------------
# attrs[1]: p.  attrs[2]: whether the powers are averaged, not summed.  If the sum of the powers is far from 1, the
# powers are those of x divided by its greatest element.  An infinite p saves the places of the greatest, as doubles.

cdef int norm_dim(const Shapes* s, Dim* y) except -1:
    reduced_dim(s, y)
    if isinf(s.attrs[1].f) and size_of(s.x[0]) == 0 and size_of(y):
        raise DimensionError("x has no elements, so there is no greatest one")
    return 0


cdef inline bint is_moderate(double sum_of_powers) noexcept nogil:
    """Whether none of the powers that count overflows or underflows."""
    return 1e-30 < sum_of_powers < 1e30


cdef float weight_of_powers(const Call* c) noexcept nogil:
    return 1 / count_of(c) if c.attrs[2].u else 1


cdef size_t line_length(const Call* c) noexcept nogil:
    """The number of terms of each sum, if the sums are of one run each; otherwise 0."""
    cdef Walk w
    walk_of(&c.x[0], &c.y, c.attrs[0].u, &w)
    return w.size[0] if w.stride[0] == 0 and w.n <= 2 else 0


cdef void powers(const Call* c, float p, float* to) noexcept nogil:
    """|x|^p of each element."""
    cdef size_t n = total_of(&c.x[0].dim)
    if p == 2:
        K.unary_fwd[DY_UNARY_square](n, c.x[0].v, 0, 0, to)
    else:
        K.unary_fwd[DY_UNARY_abs](n, c.x[0].v, 0, 0, to)
        if p != 1:
            K.unary_fwd[DY_UNARY_pow_const](n, to, p, 0, to)


cdef enum:
    LONG_RUN = 16                   # of fewer numbers, a call of a kernel costs more than it saves


cdef void greatest_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """The greatest x, which is not negative, and where it is; a NaN is the greatest."""
    cdef size_t k, to
    cdef float x
    if not kept and n >= LONG_RUN:
        i += K.argmax(n, s.x + i)
        n = 1
    for k in range(n):
        to = o + k if kept else o
        x = s.x[i + k]
        if x > s.y[to] or x != x:
            s.y[to] = x
            s.sums[to] = <double>(i + k)


cdef void scaled_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """The sums of powers of |x| divided by the greatest so far, where y is not known yet; a NaN stays the greatest."""
    cdef size_t k, to
    cdef double x
    for k in range(n):
        to = o + k if kept else o
        if s.y[to] == s.y[to]:
            continue
        x = fabs(s.x[i + k])
        if x > s.more[to] or x != x:
            s.sums[to] = s.sums[to] * pow(s.more[to] / x, s.p) + 1
            s.more[to] = <float>x
        elif x > 0:
            s.sums[to] += pow(x / s.more[to], s.p)


cdef void norm_forward(const Call* c) noexcept nogil:
    cdef float p = c.attrs[1].f, weight = weight_of_powers(c)
    cdef size_t total = total_of(&c.y.dim), k, n = line_length(c) if p == 2 else 0
    cdef double* sums = <double*>c.work
    cdef float* top = c.work + 2 * total
    cdef float* y = c.y.v
    cdef Tensor x = c.x[0]
    cdef Call of_powers = c[0]
    cdef bint all_known = True
    cdef Sweep s
    if n:
        for k in range(total):
            y[k] = <float>sqrt(weight * squares_of(n, x.v + k * n % total_of(&x.dim)))
        return
    memset(&s, 0, sizeof(Sweep))
    s.x = x.v
    s.y = y
    s.more = top
    s.p = p
    s.sums = sums
    if isinf(p):
        s.x = top
        s.sums = <double*>c.saved
        powers(c, 1, top)
        K.fill(total, -1, y)
        sweep(c, &s, greatest_run)
        return
    of_powers.x = &x
    x.v = top
    powers(c, p, top)
    sweep_forward(&of_powers, sum_run, weight, y, sums_of(c))
    if p == 1 or total_of(&c.x[0].dim) == 0:
        return
    for k in range(total):
        if not is_moderate(y[k]):
            y[k] = NAN                              # not known yet
            all_known = False
    if p == 2:
        K.unary_fwd[DY_UNARY_sqrt](total, y, 0, 0, y)
    else:
        K.unary_fwd[DY_UNARY_pow_const](total, y, 1 / p, 0, y)
    if all_known:
        return
    K.fill(total, 0, top)
    memset(sums, 0, total * sizeof(double))
    sweep(c, &s, scaled_run)
    for k in range(total):
        if y[k] != y[k]:
            y[k] = <float>(top[k] * pow(weight * sums[k], 1 / <double>p)) if 0 < top[k] < INFINITY else top[k]


cdef void product_run_backward(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """x times the number of its element of y."""
    cdef size_t k
    cdef float g = s.more[o]
    cdef float* dx = s.dx + i
    cdef const float* x = s.x + i
    if kept:                                        # dx is the gradient of x more by more
        K.binary_bwd_b[<int>DY_BINARY_mul](n, x, 1, x, 1, x, s.more + o, dx, s.acc)
    elif n < LONG_RUN:
        for k in range(n):
            dx[k] = dx[k] + g * x[k] if s.acc else g * x[k]
    else:
        put_scaled(n, g, x, dx, s.acc)


cdef void clear_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """0 for each x whose element of y has the number 0."""
    cdef size_t k
    for k in range(n):
        if s.more[o + k if kept else o] == 0:
            s.dx[i + k] = 0


cdef void scaled_run_backward(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """The gradient of each x whose element of y has the number 0 without being 0."""
    cdef size_t k, to
    cdef double x
    if not kept and s.more[o] != 0:
        return
    for k in range(n):
        to = o + k if kept else o
        if s.more[to] == 0 and s.y[to] != 0:
            x = s.x[i + k] / <double>s.y[to]
            s.dx[i + k] += <float>(s.scale * s.dy[to] * copysign(pow(fabs(x), s.p - 1), x))


cdef void greatest_backward(const Call* c) noexcept nogil:
    cdef size_t k, at
    cdef float x
    cdef const double* places = <double*>c.saved
    if not c.accumulate:
        K.fill(total_of(&c.dx.dim), 0, c.dx.v)
    for k in range(total_of(&c.y.dim)):
        at = <size_t>places[k]
        x = c.x[0].v[at]
        c.dx.v[at] += c.dy.v[k] if x > 0 else -c.dy.v[k] if x < 0 else 0


cdef void line_backward(const Call* c, size_t n, float weight) noexcept nogil:
    """dx = x dy / y for each line of n elements."""
    cdef size_t k, j, at
    cdef double slope
    cdef bint added
    for k in range(total_of(&c.y.dim)):
        at = k * n % total_of(&c.x[0].dim)
        slope = weight * c.dy.v[k] / <double>c.y.v[k] if c.y.v[k] != 0 else 0
        added = c.accumulate or k * n > at
        if is_usual(c.y.v[k]):
            put_scaled(n, <float>slope, c.x[0].v + at, c.dx.v + at, added)
        else:                                       # the slope may not fit in a float
            for j in range(at, at + n):
                c.dx.v[j] = (c.dx.v[j] if added else 0) + <float>(slope * c.x[0].v[j])


cdef void norm_backward(const Call* c, uint32_t i) noexcept nogil:
    """dx = dy sign(x) (|x| / y)^(p - 1)."""
    cdef float p = c.attrs[1].f, weight = weight_of_powers(c)
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.x[0].dim), k
    cdef float* factor = c.work
    cdef float* to = c.work + total
    cdef bint moderate = True
    cdef Sweep s
    if isinf(p):
        greatest_backward(c)
        return
    if p == 2 and line_length(c):
        line_backward(c, line_length(c), weight)
        return
    memset(&s, 0, sizeof(Sweep))
    s.x = c.x[0].v
    s.y = c.y.v
    s.more = factor
    s.dy = c.dy.v
    s.dx = c.dx.v
    s.p = p
    s.scale = weight
    s.acc = c.accumulate
    if p == 1:
        s.dx = to
        s.acc = False
        sweep(c, &s, sum_run_backward)
        K.unary_bwd[DY_UNARY_abs](n, s.x, s.x, to, 0, 0, c.dx.v, c.accumulate)
        return
    memcpy(factor, c.y.v, total * sizeof(float))
    if p != 2:
        K.unary_fwd[DY_UNARY_pow_const](total, factor, p - 1, 0, factor)
    for k in range(total):
        if is_moderate(<double>factor[k] * c.y.v[k]):
            factor[k] = weight * c.dy.v[k] / factor[k]
        else:
            factor[k] = 0
            moderate = moderate and c.y.v[k] == 0
    if p != 2:
        powers(c, p - 1, to)
        K.unary_bwd[DY_UNARY_abs](n, s.x, s.x, to, 0, 0, to, 0)
        s.x = to
    elif not moderate:
        memcpy(to, s.x, n * sizeof(float))
        s.x = to
    if not moderate:
        s.dx = to
        sweep(c, &s, clear_run)
        s.dx = c.dx.v
    sweep(c, &s, product_run_backward)
    if not moderate:
        s.x = c.x[0].v
        sweep(c, &s, scaled_run_backward)


cdef size_t norm_saved(const Call* c) noexcept nogil:
    return 2 * total_of(&c.y.dim) if isinf(c.attrs[1].f) else 0


cdef size_t norm_work(const Call* c, int i) noexcept nogil:
    """Forward: sums, and the powers or the greatest; backward: a factor for each y, and powers with the signs of x."""
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.x[0].dim)
    if c.attrs[1].f == 2 and line_length(c):
        return 0
    return total + n if i >= 0 else 2 * total + max(total, n)


cdef Op* NORM = register(b"norm", b"x", norm_dim, norm_forward, norm_backward, ASSIGNS | RAGGED, norm_work, norm_saved)


cdef Expression normed(object x, uint32_t mask, float p, bint averaged, str name):
    cdef Extra extra = of_words(mask, 0, averaged)
    extra.attrs[1].f = p
    return apply1_for(name, NORM, x, &extra)


def l2_norm(x):
    """Square root of the sum of the squares of all elements; its gradient at zero is zero.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.l2_norm(dy.inputVector([3, 4])).value()
        5.0
    """
    return normed(x, ALL_AXES, 2, False, "l2_norm")


def norm(x, p: float = 2, axis: _Int | _Ints | None = None, keepdims: bool = False):
    """The p-norm ``(sum abs(x)^p)^(1/p)`` along some axes.

    It neither overflows nor underflows where the result is a float.  If all elements are 0, the gradient is 0.

    Args:
        x: any expression.
        p: at least 1; `math.inf` for the greatest absolute value, of which the first has the gradient. Default: 2.
        axis: one or several axes, which may count from the end; all of them when None.
        keepdims: whether the axes stay, with one element each (default: False).

    Returns:
        An expression of the axes that are left, ``{1}`` if none is.

    Raises:
        DimensionError: there is no such axis, or p is infinite and there are no elements along it.
        ValueError: p is less than 1.

    Example:
        >>> dy.norm(dy.inputVector([3, 4])).value()
        5.0
    """
    cdef Expression all_of = expression(x, "norm", "x")
    if not p >= 1:
        raise ValueError(f"norm: p must be at least 1, not {p!r}")
    axes = axes_of(all_of, list(axis) if is_list(axis) or isinstance(axis, range) else axis, "norm")
    mask = mask_of(all_of, axes, False, "norm") if axes else ALL_AXES
    return with_axes(all_of, normed(all_of, mask, p, False, "norm"), axes, keepdims)


# ==== moments =====================================================================================
#
# Moments and deviations, made of means and norms.

# ---- moments: the mean of x^r ------------------------------------------------

cdef Expression moment(object x, uint32_t mask, object r, str name, int n=0):
    cdef Expression power = expression(x, name, "x")
    cdef Expression y = None
    cdef int left = <int>whole(r, name, "r")
    if left < 1:
        raise ValueError(f"{name}: r is {r}, the order of a moment must be at least 1")
    while left:                                     # x, x^2, x^4...
        if left & 1:
            y = power if y is None else cmult(y, power)
        left >>= 1
        if left:
            power = square(power)
    return reduced(MEAN, y, mask, name, n)


def moment_elems(x, r: int):
    """Mean of the r-th powers of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.
        r: which power, 1 or more.

    Raises:
        ValueError: r is less than 1.

    Example:
        >>> dy.moment_elems(dy.inputVector([1, 3]), 2).value()
        5.0
    """
    return moment(x, ALL_AXES, r, "moment_elems")


def moment_dim(x, d: Sequence[int], r: int, b=False, n: int = 0):
    """Mean of the r-th powers along some axes; see `mean_dim`.

    Args:
        x: the expression.
        d: the axes, a list or one number; they vanish from the shape.
        r: the power, a whole number of at least 1.
        b: whether to take the mean over the batch too (default: False).
        n: if above 0, divide by it instead of the number of elements (default: 0).

    Raises:
        DimensionError: there is no such axis, or nothing to reduce.
        ValueError: r is less than 1, or n is negative.

    Example:
        >>> dy.moment_dim(dy.inputTensor([[1, 4], [3, 2]]), [0], 2).npvalue()
        array([ 5., 10.])
    """
    return moment(x, mask_of(x, d, b, "moment_dim"), r, "moment_dim", number_of(n, "moment_dim"))


def moment_batches(x, r: int):
    """Mean of the r-th powers of all batch elements: one batch element of the same shape.

    Args:
        x: an expression of any shape.
        r: which power, 1 or more.

    Raises:
        ValueError: r is less than 1.

    Example:
        >>> dy.moment_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True), 2).npvalue()
        array([ 5., 10.])
    """
    return moment(x, BATCH_BIT, r, "moment_batches")


# ---- std: the norm of x - mean x, with a mean in place of the sum ---------------

cdef Expression deviation(object of, uint32_t mask, str name):
    cdef Expression x = expression(of, name, "x")
    cdef Expression mean = reduced(MEAN, x, mask, name)
    if 0 < mask & ALL_AXES < ALL_AXES:
        mean = with_axes(x, mean, [i for i in range(7) if mask >> i & 1], True)
    return normed(x - mean, mask, 2, True, name)


def std_elems(x):
    """Standard deviation of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.std_elems(dy.inputVector([1, 3])).value()
        1.0
    """
    return deviation(x, ALL_AXES, "std_elems")


def std_dim(x, d: Sequence[int], b=False, n: int = 0):
    """Population standard deviation along some axes.

    The gradient is 0 where all elements are equal.

    Args:
        x: the expression.
        d: the axes, a list or one number; they vanish from the shape.
        b: whether to reduce the batch too (default: False).
        n: without effect, as in DyNet.

    Raises:
        DimensionError: there is no such axis, or nothing to reduce.

    Example:
        >>> dy.std_dim(dy.inputTensor([[1, 4], [3, 2]]), [0]).npvalue()
        array([1., 1.])
    """
    number_of(n, "std_dim")
    return deviation(x, mask_of(x, d, b, "std_dim"), "std_dim")


def std_batches(x):
    """Standard deviation over the batch elements; see `std_dim`.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.std_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True)).npvalue()
        array([1., 1.])
    """
    return deviation(x, BATCH_BIT, "std_batches")
