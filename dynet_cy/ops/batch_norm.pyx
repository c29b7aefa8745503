"""Channels normalized by the statistics of a minibatch."""

from libc.math cimport sqrt
from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, axis_of, element, size_of
from dynet_cy.graph.making cimport apply, apply1x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.ops.axes cimport Split, split_at
from dynet_cy.ops.indices cimport axis_in
from dynet_cy.ops.registry cimport SHARE, Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError

# Attributes: the axis of the channels; the number added to variances.
cdef enum:
    AXIS
    EPS


cdef int check_axis(const Shapes* s) except -1:
    if s.attrs[AXIS].i < 0 or s.attrs[AXIS].u >= max(s.x[0].nd, <uint32_t>1):
        raise DimensionError(f"x has no axis {s.attrs[AXIS].i}")
    return 0


# ---- batch_moments: mean and variance of each channel, over all batch elements of a node -----------
# Nodes without a batch are put side by side: each batch element is then a separate minibatch.

cdef int batch_moments_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t channels
    check_axis(s)
    channels = axis_of(s.x[0], s.attrs[AXIS].u)
    if size_of(s.x[0]) == 0:
        raise DimensionError("x has no elements")
    y.nd = 2
    y.d[0] = channels
    y.d[1] = 2
    y.bd = 1
    return 0


cdef void add_channels(const Split* s, const float* x, const float* middle, double* total) noexcept nogil:
    """Add up the elements of each channel or, given the means, their squared distances from the means."""
    cdef size_t k, p
    cdef double sum, t
    for _ in range(s.post):
        for k in range(s.len):
            sum = 0
            for p in range(s.pre):
                if middle == NULL:
                    sum += x[p]
                else:
                    t = x[p] - middle[k]
                    sum += t * t
            total[k] += sum
            x += s.pre


cdef void batch_moments_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t e, b, uses = c.x[0].dim.bd // c.y.dim.bd
    cdef size_t k
    cdef double n = <double>(s.pre * s.post) * uses
    cdef double* total = <double*>c.work
    cdef float* y
    for e in range(c.y.dim.bd):
        y = element(&c.y, e)
        memset(total, 0, s.len * sizeof(double))
        for b in range(e * uses, (e + 1) * uses):
            add_channels(&s, element(&c.x[0], b), NULL, total)
        for k in range(s.len):
            y[k] = <float>(total[k] / n)
        memset(total, 0, s.len * sizeof(double))
        for b in range(e * uses, (e + 1) * uses):
            add_channels(&s, element(&c.x[0], b), y, total)
        for k in range(s.len):
            y[s.len + k] = <float>(total[k] / n)


cdef void batch_moments_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t b, uses = c.x[0].dim.bd // c.y.dim.bd
    cdef size_t k, p
    cdef float n = <float>(<double>(s.pre * s.post) * uses), d_mean, slope
    cdef const float* x
    cdef const float* y
    cdef const float* dy
    cdef float* dx
    for b in range(c.x[0].dim.bd):
        y, dy = element(&c.y, b // uses), element(&c.dy, b // uses)
        x, dx = element(&c.x[0], b), element(&c.dx, b)
        for _ in range(s.post):
            for k in range(s.len):
                d_mean = dy[k] / n
                slope = 2 * dy[s.len + k] / n
                for p in range(s.pre):
                    dx[p] += d_mean + slope * (x[p] - y[k])
                x += s.pre
                dx += s.pre


cdef size_t doubles_of_channels(const Call* c, int i) noexcept nogil:
    return 2 * axis_of(&c.x[0].dim, c.attrs[AXIS].u) if i < 0 else 0


cdef Op* BATCH_MOMENTS = register(b"batch_moments", b"x", batch_moments_dim, batch_moments_forward,
                                  batch_moments_backward)
BATCH_MOMENTS.work = doubles_of_channels


def batch_moments(x, axis: _Int = 0):
    """Mean and variance of each channel, over all batch elements and all other axes.

    Shapes: ``x {..., c, ...}`` -> ``{c,2}``, batch size 1.

    Args:
        x: any expression.
        axis: the axis of the channels; a negative one counts from the end.

    Raises:
        DimensionError: there is no such axis.

    Example:
        >>> dy.batch_moments(dy.inputTensor([[1, 3], [2, 6]], batched=True)).npvalue()
        array([[2., 1.],
               [4., 4.]])
    """
    cdef Extra extra = no_extra()
    extra.attrs[AXIS].i = <int>axis_in(x, axis, "batch_moments")
    return apply1x(BATCH_MOMENTS, x, &extra)


# ---- channel_norm: y = g (x - mean) / sqrt(var + eps) + b, channel by channel -------------------------

cdef enum:
    X
    MEAN
    VARIANCE
    FACTOR
    SUMMAND


cdef int channel_norm_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, channels
    check_axis(s)
    channels = axis_of(s.x[0], s.attrs[AXIS].u)
    for i in range(1, 5):
        if size_of(s.x[i]) != channels or axis_of(s.x[i], 0) != channels:
            raise DimensionError(f"mean, var, g and b must be vectors of {channels} elements, one for each channel")
    return same_dim(s, y)


cdef void channel_norm_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t b
    cdef size_t k, p
    cdef float factor
    cdef const float* x
    cdef const float* mean
    cdef const float* summand
    cdef float* factors = c.work
    cdef float* y
    for b in range(c.y.dim.bd):
        set_factors(c, b, s.len, factors)
        x, mean, summand, y = element(&c.x[X], b), element(&c.x[MEAN], b), element(&c.x[SUMMAND], b), element(&c.y, b)
        for _ in range(s.post):
            if s.pre == 1:
                for k in range(s.len):
                    y[k] = (x[k] - mean[k]) * factors[k] + summand[k]
                x += s.len
                y += s.len
                continue
            for k in range(s.len):
                factor = factors[k]
                for p in range(s.pre):
                    y[p] = (x[p] - mean[k]) * factor + summand[k]
                x += s.pre
                y += s.pre


cdef inline void set_factors(const Call* c, uint32_t b, size_t channels, float* factors) noexcept nogil:
    """The factor of each channel: g / sqrt(var + eps)."""
    cdef const float* variance = element(&c.x[VARIANCE], b)
    cdef const float* g = element(&c.x[FACTOR], b)
    cdef size_t k
    for k in range(channels):
        factors[k] = <float>(g[k] / sqrt(<double>variance[k] + c.attrs[EPS].f))


cdef void channel_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t b, uses = c.y.dim.bd // c.dx.dim.bd
    cdef size_t k, p
    cdef const float* dy
    cdef float* factors = c.work
    cdef float* dx
    cdef double* total = <double*>c.work
    cdef double* sum = total + s.len
    if i != X:
        for b in range(c.y.dim.bd):
            if b % uses == 0:
                memset(total, 0, s.len * sizeof(double))
            memset(sum, 0, s.len * sizeof(double))
            add_slopes(c, b, i, &s, sum)
            scale_slopes(c, b, i, s.len, sum, total)
            if (b + 1) % uses == 0:
                dx = element(&c.dx, b // uses)
                for k in range(s.len):
                    dx[k] += <float>total[k]
        return
    for b in range(c.y.dim.bd):
        set_factors(c, b, s.len, factors)
        dy, dx = element(&c.dy, b), element(&c.dx, b)
        for _ in range(s.post):
            for k in range(s.len):
                for p in range(s.pre):
                    dx[p] += dy[p] * factors[k]
                dx += s.pre
                dy += s.pre


cdef void add_slopes(const Call* c, uint32_t b, uint32_t i, const Split* s, double* sum) noexcept nogil:
    """The sum over each channel of a batch element: of dy (x - mean) for the variance and the factor, else of dy."""
    cdef const float* x = element(&c.x[X], b)
    cdef const float* mean = element(&c.x[MEAN], b)
    cdef const float* dy = element(&c.dy, b)
    cdef size_t k, p
    cdef double t
    for _ in range(s.post):
        for k in range(s.len):
            t = 0
            if i == VARIANCE or i == FACTOR:
                for p in range(s.pre):
                    t += <double>dy[p] * (x[p] - mean[k])
            else:
                for p in range(s.pre):
                    t += dy[p]
            sum[k] += t
            x += s.pre
            dy += s.pre


cdef void scale_slopes(const Call* c, uint32_t b, uint32_t i, size_t channels, const double* sum,
                       double* total) noexcept nogil:
    """Add the contribution of a batch element's sums to the gradient of argument i."""
    cdef const float* variance = element(&c.x[VARIANCE], b)
    cdef const float* g = element(&c.x[FACTOR], b)
    cdef size_t k
    cdef double root
    for k in range(channels):
        root = sqrt(<double>variance[k] + c.attrs[EPS].f)
        if i == MEAN:
            total[k] -= sum[k] * g[k] / root
        elif i == VARIANCE:
            total[k] -= sum[k] * g[k] / (2 * root * root * root)
        elif i == FACTOR:
            total[k] += sum[k] / root
        else:
            total[k] += sum[k]


cdef size_t channel_norm_work(const Call* c, int i) noexcept nogil:
    return 4 * axis_of(&c.x[0].dim, c.attrs[AXIS].u)


cdef Op* CHANNEL_NORM = register(b"channel_norm", b"x mean var g b", channel_norm_dim, channel_norm_forward,
                                 channel_norm_backward)
CHANNEL_NORM.rule[1] = SHARE
CHANNEL_NORM.rule[2] = SHARE
CHANNEL_NORM.work = channel_norm_work


def channel_norm(x, mean, var, g, b, axis: _Int = 0, float eps=1e-5):
    """Normalize each channel with given statistics: ``(x - mean) / sqrt(var + eps) * g + b``; see `batch_norm`.

    Args:
        x: any expression.
        mean, var, g, b: vectors with one element for each channel.
        axis: the axis of the channels; a negative one counts from the end.
        eps: added to variances. Default: 1e-5.

    Raises:
        DimensionError: the shapes do not fit, or there is no such axis.
        ValueError: eps is negative or not a number.

    Example:
        >>> one, zero = dy.ones(2), dy.zeros(2)
        >>> dy.channel_norm(dy.inputVector([3, 5]), one, dy.inputVector([4, 16]), one, zero).npvalue().round(3)
        array([1., 1.])
    """
    if not eps >= 0:
        raise ValueError(f"channel_norm: eps must be at least 0, not {eps}")
    cdef Extra extra = no_extra()
    extra.attrs[AXIS].i = <int>axis_in(x, axis, "channel_norm")
    extra.attrs[EPS].f = eps
    return apply(CHANNEL_NORM, (x, mean, var, g, b), &extra)
