"""Ops along one axis: extremes, cumulative sums, log-sum-exp."""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, cols_of, element, rows_of, size_of, total_of
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply1, apply1x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport DY_BINARY_max, DY_BINARY_sub, DY_UNARY_exp, K
from dynet_cy.ops.axes cimport Split, split_at, without
from dynet_cy.ops.indices cimport axis_in
from dynet_cy.ops.log_sums cimport logs_of
from dynet_cy.ops.reduce cimport SUM, axes_of, reduced, with_axes
from dynet_cy.ops.registry cimport Op, Shapes, register, same_dim
from dynet_cy.ops.sweeps cimport ALL_AXES

from dynet_cy.graph.hooks import operators
from dynet_cy.ops.registry import DimensionError


cdef Expression along(const Op* op, object x, Py_ssize_t d):
    cdef Extra extra = no_extra()
    extra.attrs[0].u = <uint32_t>d if 0 <= d < 7 else 7
    return apply1x(op, x, &extra)


cdef int need_axis(const Shapes* s) except -1:
    if s.attrs[0].u >= s.x[0].nd:
        raise DimensionError(f"d must be an axis of x, from 0 to {<int>s.x[0].nd - 1}")
    return 0


# ---- max_dim, min_dim: y = max_i x_i; of equal ones the first gets the gradient --
# As in DyNet, max_dim and min_dim ignore NaN.

cdef int extreme_dim(const Shapes* s, Dim* y) except -1:
    need_axis(s)
    if s.x[0].d[s.attrs[0].u] == 0:
        raise DimensionError("x has no elements along d")
    without(s.x[0], <uint32_t>1 << s.attrs[0].u, y)
    return 0


cdef size_t extreme_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef void extreme(const Call* c, float sign) noexcept nogil:
    """The maximum of sign x, and its position in c.saved."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, k, p, best
    cdef float top
    cdef const float* x
    cdef float* y = c.y.v
    cdef uint32_t* where = <uint32_t*>c.saved
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], <uint32_t>b)
        for _ in range(s.post):
            best = K.argmax(s.len, x) if s.pre == 1 and sign > 0 else 0
            if s.pre == 1 and (sign < 0 or x[best] != x[best]):
                best = 0
                top = -sign * INFINITY
                for k in range(s.len):
                    if sign * x[k] > sign * top:
                        top = x[k]
                        best = k
                y[0] = top
                where[0] = <uint32_t>best
            elif s.pre == 1:
                y[0] = x[best]
                where[0] = <uint32_t>best
            else:
                K.fill(s.pre, -sign * INFINITY, y)
                memset(where, 0, s.pre * sizeof(uint32_t))
                for k in range(s.len):
                    for p in range(s.pre):
                        top = x[k * s.pre + p]
                        if sign * top > sign * y[p]:
                            y[p] = top
                            where[p] = <uint32_t>k
            x += s.pre * s.len
            y += s.pre
            where += s.pre


cdef void max_dim_forward(const Call* c) noexcept nogil:
    extreme(c, 1)


cdef void min_dim_forward(const Call* c) noexcept nogil:
    extreme(c, -1)


cdef void extreme_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, p
    cdef float* dx
    cdef const float* dy = c.dy.v
    cdef const uint32_t* where = <uint32_t*>c.saved
    for b in range(c.y.dim.bd):
        dx = element(&c.dx, <uint32_t>b)
        for _ in range(s.post):
            for p in range(s.pre):
                dx[where[p] * s.pre + p] += dy[p]
            dx += s.pre * s.len
            dy += s.pre
            where += s.pre


cdef Op* MAX_DIM = register(b"max_dim", b"x", extreme_dim, max_dim_forward, extreme_backward)
MAX_DIM.saved = extreme_saved
MAX_DIM.ragged = True
cdef Op* MIN_DIM = register(b"min_dim", b"x", extreme_dim, min_dim_forward, extreme_backward)
MIN_DIM.saved = extreme_saved
MIN_DIM.ragged = True


def max_dim(x, d=0):
    """Greatest element along axis d, which is removed; if several are equal, the first gets the gradient.

    NaN is ignored; where all elements are NaN, the result is -inf (inf for `min_dim`).

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


cdef void cumsum_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, p
    cdef const float* x
    cdef float* y = c.y.v
    cdef double* sums = <double*>c.work
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], <uint32_t>b)
        for _ in range(s.post):
            memset(sums, 0, s.pre * sizeof(double))
            for _ in range(s.len):
                for p in range(s.pre):
                    sums[p] += x[p]
                    y[p] = <float>sums[p]
                x += s.pre
                y += s.pre


cdef size_t cumsum_work(const Call* c, int i) noexcept nogil:
    return 2 * split_at(&c.x[0].dim, c.attrs[0].u).pre


cdef void cumsum_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, k, p, at
    cdef float* dx
    cdef const float* dy = c.dy.v
    cdef double* sums = <double*>c.work
    for b in range(c.y.dim.bd):
        dx = element(&c.dx, <uint32_t>b)
        for _ in range(s.post):
            memset(sums, 0, s.pre * sizeof(double))
            for k in range(s.len):
                at = (s.len - 1 - k) * s.pre
                for p in range(s.pre):
                    sums[p] += dy[at + p]
                    dx[at + p] += <float>sums[p]
            dx += s.pre * s.len
            dy += s.pre * s.len


cdef Op* CUMSUM = register(b"cumsum", b"x", cumsum_dim, cumsum_forward, cumsum_backward)
CUMSUM.work = cumsum_work


def cumsum(x, d=0):
    """Cumulative sums of the elements along axis d; the result has the shape of x.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.cumsum(dy.inputVector([1, 2, 3])).npvalue()
        array([1., 3., 6.])
    """
    return along(CUMSUM, x, axis_in(x, d, "cumsum"))


# ---- logsumexp_dim: y = log sum_i e^x_i ---------------------------------------
# The pairs of log_sums.pxd are saved.

cdef int logsumexp_dim_dim(const Shapes* s, Dim* y) except -1:
    need_axis(s)
    without(s.x[0], <uint32_t>1 << s.attrs[0].u, y)
    return 0


cdef size_t logsumexp_dim_work(const Call* c, int i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    return s.pre * (s.len + 2) if s.pre > 1 else 0


cdef inline bint is_infinite(float x) noexcept nogil:
    return x - x != 0 and x == x


cdef void logsumexp_dim_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, k, p
    cdef const float* x
    cdef float* pairs = c.saved
    cdef float* top = c.work
    cdef float* sums = c.work + s.pre
    cdef float* e = sums + s.pre
    if s.pre == 1 and c.x[0].dim.bd == c.y.dim.bd:
        K.logsumexp(s.len, s.post * c.y.dim.bd, c.x[0].v, pairs)
        logs_of(total_of(&c.y.dim), pairs, c.y.v)
        return
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], <uint32_t>b)
        if s.pre == 1:
            K.logsumexp(s.len, s.post, x, pairs)
            pairs += 2 * s.post
            continue
        for _ in range(s.post):
            K.fill(s.pre, -3.4e38, top)
            for k in range(s.len):
                K.binary_fwd[DY_BINARY_max](s.pre, top, 1, x + k * s.pre, 1, top)
            for k in range(s.len):
                K.binary_fwd[DY_BINARY_sub](s.pre, x + k * s.pre, 1, top, 1, e + k * s.pre)
            K.unary_fwd[DY_UNARY_exp](s.pre * s.len, e, 0, 0, e)
            K.bias_bwd(s.pre, s.len, e, sums, 0)
            for p in range(s.pre):
                pairs[2 * p] = top[p]
                pairs[2 * p + 1] = 1 if is_infinite(top[p]) else sums[p]
            x += s.pre * s.len
            pairs += 2 * s.pre
    logs_of(total_of(&c.y.dim), c.saved, c.y.v)


cdef void logsumexp_dim_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t b, p
    cdef const float* x
    cdef float* dx
    cdef const float* pairs = c.saved
    cdef const float* dy = c.dy.v
    cdef float* e = c.work
    if s.pre == 1 and c.x[0].dim.bd == c.y.dim.bd:
        K.logsumexp_bwd(s.len, s.post * c.y.dim.bd, c.x[0].v, pairs, dy, c.dx.v, 1)
        return
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], <uint32_t>b)
        dx = element(&c.dx, <uint32_t>b)
        if s.pre == 1:
            K.logsumexp_bwd(s.len, s.post, x, pairs, dy, dx, 1)
            pairs += 2 * s.post
            dy += s.post
            continue
        for _ in range(s.post):
            for _ in range(s.len):
                for p in range(s.pre):
                    e[p] = x[p] - pairs[2 * p]
                K.unary_fwd[DY_UNARY_exp](s.pre, e, 0, 0, e)
                for p in range(s.pre):
                    if not is_infinite(x[p]):
                        dx[p] += e[p] * (dy[p] / pairs[2 * p + 1])
                x += s.pre
                dx += s.pre
            pairs += 2 * s.pre
            dy += s.pre


cdef size_t logsumexp_dim_saved(const Call* c) noexcept nogil:
    return 2 * total_of(&c.y.dim)


cdef Op* LOGSUMEXP_DIM = register(b"logsumexp_dim", b"x", logsumexp_dim_dim,
                                  logsumexp_dim_forward, logsumexp_dim_backward)
LOGSUMEXP_DIM.work = logsumexp_dim_work
LOGSUMEXP_DIM.saved = logsumexp_dim_saved


def logsumexp_dim(x, d=0):
    """Logarithm of the sum of e^x over the elements along axis d, which is removed.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> round(dy.logsumexp_dim(dy.inputVector([1, 1])).value(), 3)
        1.693
    """
    return along(LOGSUMEXP_DIM, x, axis_in(x, d, "logsumexp_dim"))


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
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.add(size_of(&c.y.dim), element(&c.dy, b), element(&c.dx, b))


cdef Op* ARGMAX = register(b"argmax", b"x", argmax_dim, argmax_forward, NULL)
ARGMAX.no_gradient_because = b"the gradient is zero almost everywhere"
cdef Op* ARGMAX_STRAIGHT_THROUGH = register(b"argmax_straight_through", b"x", argmax_dim,
                                            argmax_forward, straight_through_backward)


def argmax(x, gradient_mode: str):
    """One-hot vector of the greatest element of a vector; the first if several are equal.

    Args:
        x: a vector.
        gradient_mode: "zero_gradient", or "straight_through_gradient": the
            gradient passes as if the op did nothing (Bengio et al. 2013).

    Raises:
        DimensionError: x is not a vector.
        ValueError: there is no such gradient mode.

    Example:
        >>> dy.argmax(dy.inputVector([1, 5, 3]), gradient_mode="zero_gradient").npvalue()
        array([0., 1., 0.])
    """
    if gradient_mode == "zero_gradient":
        return apply1(ARGMAX, x)
    if gradient_mode == "straight_through_gradient":
        return apply1(ARGMAX_STRAIGHT_THROUGH, x)
    raise ValueError('argmax: gradient_mode must be "zero_gradient" or '
                     f'"straight_through_gradient", not {gradient_mode!r}')


# ---- methods of expressions ------------------------------------------------------

cdef Expression extreme_of(Expression x, const Op* op, object axis, object keepdims, str name):
    cdef Expression y = x
    axes = axes_of(x, axis, name)
    for i in reversed(axes):                        # so that the remaining axes keep their numbers
        y = along(op, y, i)
    return with_axes(x, y if axes else reduced(SUM, x, ALL_AXES, 0, 1), axes, keepdims)


def _max(Expression x, axis, keepdims):
    return extreme_of(x, MAX_DIM, axis, keepdims, "max")


def _min(Expression x, axis, keepdims):
    return extreme_of(x, MIN_DIM, axis, keepdims, "min")


operators.update(max=_max, min=_min)
