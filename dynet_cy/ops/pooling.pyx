"""Average and adaptive pooling.  Images are rows x columns x channels."""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, element, total_of
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply1x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport dy_window
from dynet_cy.ops.conv cimport check_image, set_pair
from dynet_cy.ops.windows cimport Pooling, adaptive, pool_window, pooled, sized
from dynet_cy.ops.registry cimport Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


cdef int image_dim(const Shapes* s, const Pooling* p, Dim* y) except -1:
    """The shape of an image with the channels of x and the given rows and columns."""
    same_dim(s, y)
    y.nd = max(s.x[0].nd, <uint32_t>2)
    y.d[0] = p.out[0]
    y.d[1] = p.out[1]
    return 0


# ---- averages: y = mean of the part of each window that is inside the image ----------

cdef void average(const Call* c, const Pooling* p) noexcept nogil:
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], j
    cdef uint32_t b, o, t, i, low, high, first, last
    cdef double total
    cdef const float* x
    cdef float* y
    for b in range(c.y.dim.bd):
        y = element(&c.y, b)
        for channel in range(p.channels):
            x = element(&c.x[0], b) + channel * pixels
            for o in range(p.out[1]):
                pooled(p, 1, o, &first, &last)
                for t in range(p.out[0]):
                    pooled(p, 0, t, &low, &high)
                    total = 0
                    for i in range(first, last):
                        for j in range(low, high):
                            total += x[i * <size_t>p.inputs[0] + j]
                    y[0] = <float>(total / ((last - first) * <size_t>(high - low)))
                    y += 1


cdef void average_backward(const Call* c, const Pooling* p) noexcept nogil:
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], j
    cdef uint32_t b, o, t, i, low, high, first, last
    cdef float g
    cdef const float* dy
    cdef float* dx
    for b in range(c.y.dim.bd):
        dy = element(&c.dy, b)
        for channel in range(p.channels):
            dx = element(&c.dx, b) + channel * pixels
            for o in range(p.out[1]):
                pooled(p, 1, o, &first, &last)
                for t in range(p.out[0]):
                    pooled(p, 0, t, &low, &high)
                    g = dy[0] / ((last - first) * <size_t>(high - low))
                    dy += 1
                    for i in range(first, last):
                        for j in range(low, high):
                            dx[i * <size_t>p.inputs[0] + j] += g


# ---- avgpooling2d: attributes: size, stride; valid is the sign of the first size --------

cdef int avgpooling2d_dim(const Shapes* s, Dim* y) except -1:
    cdef dy_window w = pool_window(s.x[0], s.attrs)
    cdef Pooling p
    check_image(s.x[0], &w, s.attrs[0].i > 0, "window")
    p = sized(s.x[0], s.attrs)
    return image_dim(s, &p, y)


cdef void avgpooling2d_forward(const Call* c) noexcept nogil:
    cdef Pooling p = sized(&c.x[0].dim, c.attrs)
    average(c, &p)


cdef void avgpooling2d_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = sized(&c.x[0].dim, c.attrs)
    average_backward(c, &p)


cdef Op* AVGPOOLING2D = register(b"avgpooling2d", b"x", avgpooling2d_dim, avgpooling2d_forward, avgpooling2d_backward)


def avgpooling2d(x, ksize: Sequence[int], stride: Sequence[int], bint is_valid=True):
    """Mean of each window of an image, channel by channel.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        ksize: rows and columns of the window.
        stride: steps along rows and columns.
        is_valid: whether windows stay inside the image; else those at its edges may reach beyond it, and the mean is
            over the part inside. Default: True.

    Raises:
        DimensionError: the window does not fit.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4]), (2, 2, 1))
        >>> dy.avgpooling2d(image, [2, 2], [2, 2]).npvalue()
        array([[[2.5]]])
    """
    cdef Extra extra = no_extra()
    set_pair(&extra, 0, ksize, "avgpooling2d", "ksize")
    set_pair(&extra, 2, stride, "avgpooling2d", "stride")
    if not is_valid:
        extra.attrs[0].i = -extra.attrs[0].i
    return apply1x(AVGPOOLING2D, x, &extra)


# ---- adaptive pooling: attributes: rows and columns of the result -----------------------
# Along an axis of m elements, window o of n goes from floor(o m / n) up to ceil((o + 1) m / n).

cdef int adaptive_dim(const Shapes* s, Dim* y) except -1:
    cdef Pooling p
    if s.x[0].nd > 3:
        raise DimensionError("x must have at most 3 axes: rows, columns, channels")
    p = adaptive(s.x[0], s.attrs)
    if p.inputs[0] == 0 or p.inputs[1] == 0:
        raise DimensionError("x must have rows and columns")
    return image_dim(s, &p, y)


cdef void adaptive_avg_forward(const Call* c) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    average(c, &p)


cdef void adaptive_avg_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    average_backward(c, &p)


cdef Op* ADAPTIVE_AVG = register(b"adaptive_avgpooling2d", b"x", adaptive_dim, adaptive_avg_forward,
                                 adaptive_avg_backward)


cdef Expression apply_adaptive(const Op* op, object x, object size, str function):
    cdef Extra extra = no_extra()
    set_pair(&extra, 0, size, function, "size")
    return apply1x(op, x, &extra)


def adaptive_avgpooling2d(x, size: Sequence[int]):
    """Means of a given number of windows that cover an image evenly, channel by channel.

    Along an axis of m elements, window o of n goes from ``floor(o m / n)`` up to ``ceil((o + 1) m / n)``; with
    ``[1, 1]`` there is one, the whole image. Images of all sizes give results of the same size.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        size: rows and columns of the result.

    Raises:
        DimensionError: x is no image.
        ValueError: a size is below 1.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4, 5, 6]), (3, 2, 1))
        >>> dy.adaptive_avgpooling2d(image, [2, 1]).npvalue().ravel()
        array([3., 4.])
    """
    return apply_adaptive(ADAPTIVE_AVG, x, size, "adaptive_avgpooling2d")


# For each window, the position of its greatest element in the channel is saved: the first of equal ones, or the first
# NaN.

cdef void adaptive_max_forward(const Call* c) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], j
    cdef uint32_t b, o, t, i, low, high, first, last
    cdef uint32_t* where = <uint32_t*>c.saved
    cdef float top, v
    cdef const float* x
    cdef float* y
    for b in range(c.y.dim.bd):
        y = element(&c.y, b)
        for channel in range(p.channels):
            x = element(&c.x[0], b) + channel * pixels
            for o in range(p.out[1]):
                pooled(&p, 1, o, &first, &last)
                for t in range(p.out[0]):
                    pooled(&p, 0, t, &low, &high)
                    top = -INFINITY
                    where[0] = <uint32_t>(first * <size_t>p.inputs[0] + low)
                    for i in range(first, last):
                        for j in range(i * <size_t>p.inputs[0] + low, i * <size_t>p.inputs[0] + high):
                            v = x[j]
                            if v > top or (v != v and top == top):
                                top = v
                                where[0] = <uint32_t>j
                    y[0] = top
                    y += 1
                    where += 1


cdef void adaptive_max_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = adaptive(&c.x[0].dim, c.attrs)
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], outputs = <size_t>p.out[0] * p.out[1]
    cdef const uint32_t* where = <const uint32_t*>c.saved
    cdef uint32_t b
    cdef const float* dy
    cdef float* dx
    for b in range(c.y.dim.bd):
        dy = element(&c.dy, b)
        for channel in range(p.channels):
            dx = element(&c.dx, b) + channel * pixels
            for _ in range(outputs):
                dx[where[0]] += dy[0]
                where += 1
                dy += 1


cdef size_t as_many_as_y(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef Op* ADAPTIVE_MAX = register(b"adaptive_maxpooling2d", b"x", adaptive_dim, adaptive_max_forward,
                                 adaptive_max_backward)
ADAPTIVE_MAX.saved = as_many_as_y


def adaptive_maxpooling2d(x, size: Sequence[int]):
    """The greatest elements of windows that cover an image evenly, channel by channel: see `adaptive_avgpooling2d`.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        size: rows and columns of the result.

    Raises:
        DimensionError: x is no image.
        ValueError: a size is below 1.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4, 5, 6]), (3, 2, 1))
        >>> dy.adaptive_maxpooling2d(image, [2, 1]).npvalue().ravel()
        array([5., 6.])
    """
    return apply_adaptive(ADAPTIVE_MAX, x, size, "adaptive_maxpooling2d")
