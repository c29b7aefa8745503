"""Reductions: sums, means, moments and standard deviations."""

from libc.math cimport sqrt
from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, total_of
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply1x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.ops.axes cimport without
from dynet_cy.ops.indices cimport axis_in, whole
from dynet_cy.ops.registry cimport Op, Shapes, register
from dynet_cy.ops.sweeps cimport (
    ALL_AXES, BATCH_BIT, Sweep, count_of, power, power_run, sum_run, sum_run_backward, sums_of, sweep_backward,
    sweep_forward, sweep_work,
)

from dynet_cy.graph.hooks import operators
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape


# ---- which axes ------------------------------------------------------------------

cdef int reduced_dim(const Shapes* s, Dim* y) except -1:
    """x without the axes of the mask, and without its batch if that bit is set."""
    cdef uint32_t mask = s.attrs[0].u
    cdef uint32_t i
    if mask & BATCH_BIT:
        y.bd = 1
    if mask & ALL_AXES == ALL_AXES:                 # however many there are
        y.nd = 1
        y.d[0] = 1
        return 0
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


cdef Expression reduced(const Op* op, object x, uint32_t mask, int n, int r):
    cdef Extra extra = no_extra()
    extra.attrs[0].u = mask
    extra.attrs[1].i = n
    extra.attrs[2].i = r
    return apply1x(op, x, &extra)


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


# ---- sum: y = sum_i x_i -------------------------------------------------------

cdef void sum_forward(const Call* c) noexcept nogil:
    sweep_forward(c, sum_run, 1, 1, c.y.v, sums_of(c))


cdef void sum_backward(const Call* c, uint32_t i) noexcept nogil:
    sweep_backward(c, sum_run_backward, 1, 1)


cdef Op* SUM = register(b"sum", b"x", reduced_dim, sum_forward, sum_backward)
SUM.assigns = True
SUM.ragged = True
SUM.work = sweep_work


def sum_elems(x):
    """Sum of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.sum_elems(dy.inputVector([1, 2, 6])).value()
        9.0
    """
    return reduced(SUM, x, ALL_AXES, 0, 1)


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
    return reduced(SUM, x, mask_of(x, d, b, "sum_dim"), 0, 1)


def sum_batches(x):
    """Sum of all batch elements: one batch element of the same shape.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.sum_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True)).npvalue()
        array([4., 6.])
    """
    return reduced(SUM, x, BATCH_BIT, 0, 1)


# ---- moment: y = 1/n sum_i x_i^r ----------------------------------------------

cdef void power_run_backward(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    cdef size_t k
    cdef float g
    for k in range(n):
        g = s.scale * s.dy[o + k if kept else o] * power(s.x[i + k], s.r - 1)
        s.dx[i + k] = s.dx[i + k] + g if s.acc else g


cdef float divisor(const Call* c) noexcept nogil:
    return c.attrs[1].i if c.attrs[1].i > 0 else count_of(c)


cdef void moment_forward(const Call* c) noexcept nogil:
    cdef int r = c.attrs[2].i
    sweep_forward(c, sum_run if r == 1 else power_run, 1 / divisor(c), r, c.y.v, sums_of(c))


cdef void moment_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef int r = c.attrs[2].i
    sweep_backward(c, sum_run_backward if r == 1 else power_run_backward, r / divisor(c), r)


cdef Op* MOMENT = register(b"moment", b"x", reduced_dim, moment_forward, moment_backward)
MOMENT.ragged = True
MOMENT.work = sweep_work
MOMENT.assigns = True


cdef int order(object r, str op) except -1:
    cdef int number = <int>whole(r, op, "r")
    if number < 1:
        raise ValueError(f"{op}: r is {r}, the order of a moment must be at least 1")
    return number


def mean_elems(x):
    """Mean of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.mean_elems(dy.inputVector([1, 2, 6])).value()
        3.0
    """
    return reduced(MOMENT, x, ALL_AXES, 0, 1)


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
    return reduced(MOMENT, x, mask_of(x, d, b, "mean_dim"), number_of(n, "mean_dim"), 1)


def mean_batches(x):
    """Mean of all batch elements: one batch element of the same shape.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.mean_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True)).npvalue()
        array([2., 3.])
    """
    return reduced(MOMENT, x, BATCH_BIT, 0, 1)


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
    return reduced(MOMENT, x, ALL_AXES, 0, order(r, "moment_elems"))


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
    return reduced(MOMENT, x, mask_of(x, d, b, "moment_dim"), number_of(n, "moment_dim"), order(r, "moment_dim"))


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
    return reduced(MOMENT, x, BATCH_BIT, 0, order(r, "moment_batches"))


# ---- std: y = sqrt(1/n sum_i (x_i - mean x)^2) --------------------------------

cdef void deviation_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    cdef size_t k
    cdef double d, total = 0
    for k in range(n):
        d = <double>s.x[i + k] - s.more[o + k if kept else o]
        if kept:
            s.sums[o + k] += s.scale * d * d
        else:
            total += d * d
    if not kept:
        s.sums[o] += s.scale * total


cdef void deviation_run_backward(const Sweep* s, size_t n, size_t i, size_t o,
                                 bint kept) noexcept nogil:
    cdef size_t k, to
    cdef float g
    for k in range(n):
        to = o + k if kept else o
        # Where the deviation is 0, so is the gradient.
        g = s.scale * s.dy[to] * (s.x[i + k] - s.more[to]) / s.y[to] if s.y[to] != 0 else 0
        s.dx[i + k] = s.dx[i + k] + g if s.acc else g


cdef size_t std_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef size_t std_work(const Call* c, int i) noexcept nogil:
    return 2 * total_of(&c.y.dim) if i < 0 else 0


cdef void std_forward(const Call* c) noexcept nogil:
    cdef size_t k, n = total_of(&c.y.dim)
    cdef float scale = 1 / count_of(c)
    cdef double* sums = <double*>c.work             # the squares may not fit in floats
    if total_of(&c.x[0].dim) == 0:
        memset(sums, 0, n * sizeof(double))
    sweep_forward(c, sum_run, scale, 1, c.saved, sums)
    sweep_forward(c, deviation_run, scale, 1, c.y.v, sums)
    for k in range(n):
        if c.y.v[k] == c.y.v[k]:                    # the mean of nothing stays NaN
            c.y.v[k] = <float>sqrt(sums[k])


cdef void std_backward(const Call* c, uint32_t i) noexcept nogil:
    sweep_backward(c, deviation_run_backward, 1 / count_of(c), 1)


cdef Op* STD = register(b"std", b"x", reduced_dim, std_forward, std_backward)
STD.saved = std_saved
STD.work = std_work
STD.assigns = True


def std_elems(x):
    """Standard deviation of all elements: a scalar for each batch element.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.std_elems(dy.inputVector([1, 3])).value()
        1.0
    """
    return reduced(STD, x, ALL_AXES, 0, 1)


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
    return reduced(STD, x, mask_of(x, d, b, "std_dim"), 0, 1)


def std_batches(x):
    """Standard deviation over the batch elements; see `std_dim`.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.std_batches(dy.inputTensor([[1, 3], [2, 4]], batched=True)).npvalue()
        array([1., 1.])
    """
    return reduced(STD, x, BATCH_BIT, 0, 1)


# ---- methods of expressions ------------------------------------------------------

cdef Expression summed(Expression x, const Op* op, object axis, object keepdims, str name):
    axes = axes_of(x, axis, name)
    return with_axes(x, reduced(op, x, mask_of(x, axes, False, name) if axes else ALL_AXES, 0, 1), axes, keepdims)


def _sum(Expression x, axis, keepdims):
    return summed(x, SUM, axis, keepdims, "sum")


def _mean(Expression x, axis, keepdims):
    return summed(x, MOMENT, axis, keepdims, "mean")


operators.update(sum=_sum, mean=_mean)
