"""Norms."""

from libc.math cimport INFINITY, NAN, copysign, fabs, isinf, pow
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Call, Dim, Tensor, element, size_of, total_of
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply1, apply1x, expression
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport (
    DY_BINARY_mul, DY_UNARY_abs, DY_UNARY_pow_const, DY_UNARY_sqrt, DY_UNARY_square, K,
)
from dynet_cy.ops.indices cimport is_list
from dynet_cy.ops.norms cimport norm_of
from dynet_cy.ops.reduce cimport axes_of, mask_of, reduced_dim, with_axes
from dynet_cy.ops.registry cimport Op, Shapes, register
from dynet_cy.ops.sweeps cimport (
    ALL_AXES, Sweep, Walk, power_run, sum_run, sum_run_backward, sums_of, sweep, sweep_forward, walk_of,
)

from dynet_cy.ops.registry import DimensionError


# ---- squared_norm: y = sum_i x_i^2 --------------------------------------------

cdef int scalar_dim(const Shapes* s, Dim* y) except -1:
    y.nd = 1
    y.d[0] = 1
    return 0


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


cdef Op* SQUARED_NORM = register(b"squared_norm", b"x", scalar_dim, squared_norm_forward,
                                 squared_norm_backward)


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


# ---- l2_norm: y = sqrt(sum_i x_i^2) -------------------------------------------

cdef void l2_norm_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        c.y.v[b] = <float>norm_of(n, element(&c.x[0], b))


cdef void l2_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        if c.y.v[b] != 0:
            K.axpy(n, c.dy.v[b] / c.y.v[b], element(&c.x[0], b), element(&c.dx, b))


cdef Op* L2_NORM = register(b"l2_norm", b"x", scalar_dim, l2_norm_forward, l2_norm_backward)


def l2_norm(x):
    """Square root of the sum of the squares of all elements; its gradient at zero is zero.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.l2_norm(dy.inputVector([3, 4])).value()
        5.0
    """
    return apply1(L2_NORM, x)


# ---- norm: y = (sum_i |x_i|^p)^(1/p); max_i |x_i| if p is infinite ----------------
# attrs[1]: p.  Where the sum of the powers is far from 1, they are taken of x divided by the greatest.  An infinite p
# saves the places of the greatest, as doubles.

cdef int norm_dim(const Shapes* s, Dim* y) except -1:
    reduced_dim(s, y)
    if isinf(s.attrs[1].f) and size_of(s.x[0]) == 0 and size_of(y):
        raise DimensionError("x has no elements, so that none is the greatest")
    return 0


cdef inline bint is_moderate(double sum_of_powers) noexcept nogil:
    """Whether none of the powers that count overflows or underflows."""
    return 1e-30 < sum_of_powers < 1e30


cdef bint are_neighbours(const Call* c) noexcept nogil:
    """Whether the terms of a sum lie side by side."""
    cdef Walk w
    walk_of(&c.x[0], &c.y, c.attrs[0].u, &w)
    return w.stride[0] == 0


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


cdef void top_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """The greatest |x|, where y is not known yet; a NaN stays."""
    cdef size_t k, to
    cdef float x
    if not kept and s.y[o] == s.y[o]:
        return
    for k in range(n):
        to = o + k if kept else o
        x = <float>fabs(s.x[i + k])
        if s.y[to] != s.y[to] and (x > s.more[to] or x != x):
            s.more[to] = x


cdef void scaled_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    """The sums of powers of x divided by the greatest, where that is a number above 0."""
    cdef size_t k, to
    if not kept and not 0 < s.more[o] < INFINITY:
        return
    for k in range(n):
        to = o + k if kept else o
        if 0 < s.more[to] < INFINITY:
            s.sums[to] += pow(fabs(s.x[i + k] / <double>s.more[to]), s.p)


cdef void norm_forward(const Call* c) noexcept nogil:
    cdef float p = c.attrs[1].f
    cdef size_t total = total_of(&c.y.dim), k
    cdef double* sums = <double*>c.work
    cdef float* top = c.work + 2 * total
    cdef float* y = c.y.v
    cdef Tensor x = c.x[0]
    cdef Call of_powers = c[0]
    cdef bint all_known = True
    cdef Sweep s
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
    if p == 2 and are_neighbours(c):
        sweep_forward(c, power_run, 1, 2, y, sums_of(c))
    else:
        of_powers.x = &x
        x.v = top
        powers(c, p, top)
        sweep_forward(&of_powers, sum_run, 1, 1, y, sums_of(c))
    if p == 1:
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
    sweep(c, &s, top_run)
    sweep(c, &s, scaled_run)
    for k in range(total):
        if y[k] != y[k]:
            y[k] = <float>(top[k] * pow(sums[k], 1 / <double>p)) if 0 < top[k] < INFINITY else top[k]


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
    elif s.acc:
        K.axpy(n, g, x, dx)
    else:
        K.scale(n, g, x, dx)


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
            s.dx[i + k] += <float>(s.dy[to] * copysign(pow(fabs(x), s.p - 1), x))


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


cdef void norm_backward(const Call* c, uint32_t i) noexcept nogil:
    """dx = dy sign(x) (|x| / y)^(p - 1)."""
    cdef float p = c.attrs[1].f
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.x[0].dim), k
    cdef float* factor = c.work
    cdef float* to = c.work + total
    cdef bint moderate = True
    cdef Sweep s
    if isinf(p):
        greatest_backward(c)
        return
    memset(&s, 0, sizeof(Sweep))
    s.x = c.x[0].v
    s.y = c.y.v
    s.more = factor
    s.dy = c.dy.v
    s.dx = c.dx.v
    s.p = p
    s.scale = 1
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
            factor[k] = c.dy.v[k] / factor[k]
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
    return total + n if i >= 0 else 2 * total + max(total, n)


cdef Op* NORM = register(b"norm", b"x", norm_dim, norm_forward, norm_backward)
NORM.saved = norm_saved
NORM.work = norm_work
NORM.assigns = True
NORM.ragged = True


def norm(x, p: float = 2, axis: _Int | _Ints | None = None, keepdims: bool = False):
    """The p-norm ``(sum abs(x)^p)^(1/p)`` along some axes.

    It neither overflows nor underflows where the result is a float.  Where all elements are 0 its gradient is 0.

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
    cdef Expression whole = expression(x, "norm", "x")
    if not p >= 1:
        raise ValueError(f"norm: p must be at least 1, not {p!r}")
    cdef Extra extra = no_extra()
    axes = axes_of(whole, list(axis) if is_list(axis) or isinstance(axis, range) else axis, "norm")
    extra.attrs[0].u = mask_of(whole, axes, False, "norm") if axes else ALL_AXES
    extra.attrs[1].f = p
    return with_axes(whole, apply1x(NORM, whole, &extra), axes, keepdims)
