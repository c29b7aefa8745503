"""Sorting, cumulative products and cumulative sums of exponentials."""

from libc.math cimport exp, log
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, element, total_of
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply1x, expression
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.ops.axes cimport Split, split_at
from dynet_cy.ops.indices cimport axis_in, whole
from dynet_cy.ops.registry cimport Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


# ---- sort: y = the first elements of x in order along an axis; argsort: their positions ------------
# Attributes: the axis, the number of elements, whether the greatest comes first.  The sort is stable, and NaN comes
# last, as in NumPy.

cdef int sort_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t axis = s.attrs[0].u
    if axis >= s.x[0].nd:
        raise DimensionError(f"d must be an axis of x, from 0 to {<int>s.x[0].nd - 1}")
    if s.attrs[1].u > s.x[0].d[axis]:
        raise DimensionError(f"x has {s.x[0].d[axis]} elements along axis {axis}, {s.attrs[1].u} are asked for")
    same_dim(s, y)
    y.d[axis] = s.attrs[1].u
    return 0


cdef inline bint goes_first(float a, float b, bint descending) noexcept nogil:
    """Whether a comes strictly before b."""
    if b != b:
        return a == a
    return a > b if descending else a < b


cdef uint32_t* order_line(const float* x, size_t step, size_t n, bint descending, uint32_t* a,
                          uint32_t* b) noexcept nogil:
    """The positions of n elements in sorted order, by merge sort; the result is a or b."""
    cdef size_t width = 1, start, middle, end, i, j, k
    cdef uint32_t* other
    for k in range(n):
        a[k] = <uint32_t>k
    while width < n:
        start = 0
        while start < n:
            middle = min(start + width, n)
            end = min(start + 2 * width, n)
            i = start
            j = middle
            for k in range(start, end):
                if i < middle and (j >= end or not goes_first(x[a[j] * step], x[a[i] * step], descending)):
                    b[k] = a[i]
                    i += 1
                else:
                    b[k] = a[j]
                    j += 1
            start += 2 * width
        other = a
        a = b
        b = other
        width *= 2
    return a


cdef void order(const Call* c, uint32_t* where) noexcept nogil:
    """The sorted values in y and their positions in `where`; if that is NULL, the positions in y."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t count = c.attrs[1].u, o, p, k
    cdef uint32_t b
    cdef uint32_t* found
    cdef uint32_t* work = <uint32_t*>c.work
    cdef const float* x
    cdef float* y = c.y.v
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            for p in range(s.pre):
                x = element(&c.x[0], b) + o * s.pre * s.len + p
                found = order_line(x, s.pre, s.len, c.attrs[2].u, work, work + s.len)
                for k in range(count):
                    if where != NULL:
                        y[k * s.pre + p] = x[found[k] * s.pre]
                        where[k * s.pre + p] = found[k]
                    else:
                        y[k * s.pre + p] = <float>found[k]
            y += s.pre * count
            if where != NULL:
                where += s.pre * count


cdef void sort_forward(const Call* c) noexcept nogil:
    order(c, <uint32_t*>c.saved)


cdef void argsort_forward(const Call* c) noexcept nogil:
    order(c, NULL)


cdef void sort_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t count = c.attrs[1].u, o, p
    cdef uint32_t b
    cdef const uint32_t* where = <const uint32_t*>c.saved
    cdef const float* dy = c.dy.v
    cdef float* dx
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            dx = element(&c.dx, b) + o * s.pre * s.len
            for _ in range(count):
                for p in range(s.pre):
                    dx[where[p] * s.pre + p] += dy[p]
                where += s.pre
                dy += s.pre


cdef size_t sort_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef size_t sort_work(const Call* c, int i) noexcept nogil:
    return 2 * split_at(&c.x[0].dim, c.attrs[0].u).len if i < 0 else 0


cdef Op* SORT = register(b"sort", b"x", sort_dim, sort_forward, sort_backward)
SORT.saved = sort_saved
SORT.work = sort_work
SORT.ragged = True
cdef Op* ARGSORT = register(b"argsort", b"x", sort_dim, argsort_forward, NULL)
ARGSORT.work = sort_work
ARGSORT.ragged = True
ARGSORT.no_gradient_because = b"positions are constant almost everywhere"


cdef Expression ordered(const Op* op, object x, object axis, object count, bint descending, str name):
    cdef Py_ssize_t d = axis_in(x, axis, name)
    cdef Py_ssize_t k
    cdef const Dim* dim = dim_of(expression(x, name, "x"))
    cdef Extra extra = no_extra()
    extra.attrs[0].u = <uint32_t>d
    if count is None:
        extra.attrs[1].u = dim.d[d] if d < <Py_ssize_t>dim.nd else 0
    else:
        k = whole(count, name, "k")
        if k < 0:
            raise DimensionError(f"{name}: k is {k}, which is not a number of elements")
        extra.attrs[1].u = <uint32_t>k
    extra.attrs[2].u = descending
    return apply1x(op, x, &extra)


def sort(x, d=0, bint descending=False):
    """The elements sorted along an axis; gradients go back to the original positions.

    The sort is stable, and NaN comes last.

    Args:
        x: any expression.
        d: the axis (default: 0).
        descending: whether the greatest comes first (default: False).

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.sort(dy.inputVector([3, 1, 2]), descending=True).npvalue()
        array([3., 2., 1.])
    """
    return ordered(SORT, x, d, None, descending, "sort")


def argsort(x, d=0, bint descending=False):
    """The positions of the elements along an axis, in the order of `sort`: whole numbers, without gradient.

    Args:
        x: any expression of fewer than 2^24 elements along the axis.
        d: the axis (default: 0).
        descending: whether the position of the greatest comes first (default: False).

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.argsort(dy.inputVector([3, 1, 2])).npvalue()
        array([1., 2., 0.])
    """
    return ordered(ARGSORT, x, d, None, descending, "argsort")


def topk(x, k: int, d=0, bint largest=True) -> tuple[Expression, Expression]:
    """The k greatest elements along an axis, the greatest first, and their positions.

    Args:
        x: any expression.
        k: how many.
        d: the axis (default: 0).
        largest: False for the k least, the least first (default: True).

    Returns:
        Two expressions of k elements along the axis: the values, whose gradients go to their original
        positions; and these positions, whole numbers without gradient.

    Raises:
        DimensionError: x has no axis d, or fewer than k elements along it.

    Example:
        >>> values, indices = dy.topk(dy.inputVector([3, 1, 2]), 2)
        >>> values.npvalue(), indices.npvalue()
        (array([3., 2.]), array([0., 2.]))
    """
    return ordered(SORT, x, d, k, largest, "topk"), ordered(ARGSORT, x, d, k, largest, "topk")


# ---- cumulative ops ---------------------------------------------------------------
# They run block by block: `len` rows of `pre` elements, that is `pre` adjacent lines along the axis.

ctypedef void (*BlockForward)(const Split* s, const float* x, float* y, float* saved) noexcept nogil


cdef int cumulative_dim(const Shapes* s, Dim* y) except -1:
    if s.attrs[0].u >= s.x[0].nd:
        raise DimensionError(f"d must be an axis of x, from 0 to {<int>s.x[0].nd - 1}")
    return same_dim(s, y)


cdef void cumulative_forward(const Call* c, BlockForward forward) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t o, size = s.pre * s.len
    cdef uint32_t b
    cdef float* saved = c.saved
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            forward(&s, element(&c.x[0], b) + o * size, element(&c.y, b) + o * size, saved)
            if saved != NULL:
                saved += 2 * size


cdef inline double ratio_of_exponentials(float a, float b) noexcept nogil:
    """exp(a) / exp(b), which is 1 for equal infinities."""
    return 1 if a == b else exp(<double>a - b)


cdef inline void cumulative_backward(const Call* c, bint logs) noexcept nogil:
    """The gradient of logcumsumexp, or else of cumprod, from the end of each line to its beginning.

    cumprod: dx_k = y_{k-1} s_k, where s_k = dy_k + x_{k+1} s_{k+1}: no division, so zeros are numbers like others.
    logcumsumexp: dx_k = exp(x_k - y_k) s_k, where s_k = dy_k + exp(y_k - y_{k+1}) s_{k+1}: no exponent is above 0.
    exp(y) is exp(greatest) * total, the saved pair of each element.
    """
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t o, k, p, at, size = s.pre * s.len
    cdef uint32_t b
    cdef double total, next_by_own, own_by_x
    cdef const float* own
    cdef const float* after
    cdef const float* x
    cdef const float* y
    cdef const float* dy
    cdef float* dx
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            x = element(&c.x[0], b) + o * size
            y = element(&c.y, b) + o * size
            dy = element(&c.dy, b) + o * size
            dx = element(&c.dx, b) + o * size
            for p in range(s.pre):
                total = 0
                for k in range(s.len, 0, -1):
                    at = (k - 1) * s.pre + p
                    next_by_own = own_by_x = 0
                    if logs:
                        own = c.saved + 2 * ((b * s.post + o) * size + at)
                        after = own + 2 * s.pre
                        if k < s.len:
                            next_by_own = ratio_of_exponentials(own[0], after[0]) * own[1] / after[1]
                        own_by_x = ratio_of_exponentials(x[at], own[0]) / own[1]
                    else:
                        if k < s.len:
                            next_by_own = x[at + s.pre]
                        own_by_x = y[at - s.pre] if k > 1 else 1
                    total = dy[at] + next_by_own * total
                    dx[at] += <float>(total * own_by_x)


# ---- cumprod: y_i = prod_{j<=i} x_j -----------------------------------------------

cdef void cumprod_block(const Split* s, const float* x, float* y, float* saved) noexcept nogil:
    cdef size_t i
    for i in range(s.pre):
        y[i] = x[i]
    for i in range(s.pre, s.pre * s.len):
        y[i] = x[i] * y[i - s.pre]


cdef void cumprod_forward(const Call* c) noexcept nogil:
    cumulative_forward(c, cumprod_block)


cdef void cumprod_backward(const Call* c, uint32_t i) noexcept nogil:
    cumulative_backward(c, False)


cdef Op* CUMPROD = register(b"cumprod", b"x", cumulative_dim, cumprod_forward, cumprod_backward)
CUMPROD.ragged = True


def cumprod(x, d=0):
    """Cumulative products of the elements along axis d; the result has the shape of x.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.cumprod(dy.inputVector([2, 3, 4])).npvalue()
        array([ 2.,  6., 24.])
    """
    cdef Extra extra = no_extra()
    extra.attrs[0].u = <uint32_t>axis_in(x, d, "cumprod")
    return apply1x(CUMPROD, x, &extra)


# ---- logcumsumexp: y_i = log(sum_{j<=i} exp(x_j)) ------------------------------------

cdef void logcumsumexp_block(const Split* s, const float* x, float* y, float* saved) noexcept nogil:
    """The sum is kept as exp(greatest) * total, in double precision, so that no exponential overflows.

    Both are saved: y has too few digits next to a large maximum.
    """
    cdef size_t k, p, at
    cdef double greatest, total
    for p in range(s.pre):
        greatest = x[p]
        total = 1
        y[p] = saved[2 * p] = x[p]
        saved[2 * p + 1] = 1
        for k in range(1, s.len):
            at = k * s.pre + p
            if x[at] > greatest:
                total = total * exp(greatest - x[at]) + 1
                greatest = x[at]
            else:  # equal elements may be infinite, and their difference NaN
                total += 1 if x[at] == greatest else exp(x[at] - greatest)
            y[at] = <float>(greatest + log(total))
            saved[2 * at] = <float>greatest
            saved[2 * at + 1] = <float>total


cdef void logcumsumexp_forward(const Call* c) noexcept nogil:
    cumulative_forward(c, logcumsumexp_block)


cdef void logcumsumexp_backward(const Call* c, uint32_t i) noexcept nogil:
    cumulative_backward(c, True)


cdef size_t two_per_result(const Call* c) noexcept nogil:
    return 2 * total_of(&c.y.dim)


cdef Op* LOGCUMSUMEXP = register(b"logcumsumexp", b"x", cumulative_dim, logcumsumexp_forward, logcumsumexp_backward)
LOGCUMSUMEXP.ragged = True
LOGCUMSUMEXP.saved = two_per_result


def logcumsumexp(x, d=0):
    """Logarithms of cumulative sums of exp(x) along axis d; the result has the shape of x.

    For log-probabilities of ordered outcomes, such as lengths, the result is the logarithm of the cumulative
    distribution function.  Infinite elements are allowed.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.exp(dy.logcumsumexp(dy.log(dy.inputVector([0.5, 0.25, 0.25])))).npvalue()
        array([0.5 , 0.75, 1.  ])
    """
    cdef Extra extra = no_extra()
    extra.attrs[0].u = <uint32_t>axis_in(x, d, "logcumsumexp")
    return apply1x(LOGCUMSUMEXP, x, &extra)
