"""Normalization of layers and weights."""

from libc.math cimport sqrt
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, axis_of, element, size_of
from dynet_cy.graph.graph cimport apply, apply2
from dynet_cy.kernels.kernels cimport K
from dynet_cy.ops.registry cimport SHARE, Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


# ---- layer_norm: y = g z + b, z = (x - mean x) / (deviation of x + 1e-8) ------------
# g and b have the leading axes of x; along the others they repeat.  The mean and
# the factor of every batch element are kept.

cdef double TINY = 1e-8


cdef bint leads(const Dim* part, const Dim* x) noexcept nogil:
    """Whether part has the leading axes of x, and size 1 along the others."""
    cdef uint32_t k = 0, i
    while k < x.nd and axis_of(part, k) == x.d[k]:
        k += 1
    for i in range(k, max(part.nd, x.nd)):
        if axis_of(part, i) != 1:
            return False
    return True


cdef int layer_norm_dim(const Shapes* s, Dim* y) except -1:
    if not leads(s.x[1], s.x[0]) or not leads(s.x[2], s.x[0]):
        raise DimensionError("g and b must have the shape of x, or of its first axes")
    return same_dim(s, y)


cdef inline void moments(const Call* c, uint32_t b, size_t n, double* mean,
                         double* deviation) noexcept nogil:
    cdef float* x = element(&c.x[0], b)
    cdef double total = 0, t
    cdef size_t j
    for j in range(n):
        total += x[j]
    mean[0] = total / n
    total = 0
    for j in range(n):
        t = x[j] - mean[0]
        total += t * t
    deviation[0] = sqrt(total / n)


cdef void layer_norm_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), j, k
    cdef size_t ng = size_of(&c.x[1].dim), nb = size_of(&c.x[2].dim)
    cdef uint32_t e
    cdef double mean, deviation
    cdef float middle, factor
    cdef float* x
    cdef float* g
    cdef float* b
    cdef float* y
    if n == 0:
        return
    for e in range(c.y.dim.bd):
        moments(c, e, n, &mean, &deviation)
        middle = <float>mean
        factor = <float>(1 / (deviation + TINY))
        c.kept[3 * e] = middle
        c.kept[3 * e + 1] = factor
        c.kept[3 * e + 2] = <float>(1 / deviation) if deviation > 0 else 0
        x = element(&c.x[0], e)
        g = element(&c.x[1], e)
        b = element(&c.x[2], e)
        y = element(&c.y, e)
        for j in range(n // ng):
            for k in range(ng):
                y[j * ng + k] = g[k] * ((x[j * ng + k] - middle) * factor)
        for j in range(n // nb):
            K.add(nb, b, y + j * nb)


cdef void layer_norm_backward_x(const Call* c) noexcept nogil:
    # dz = g dy;  dx = factor (dz - mean dz - (x - mean x) mean(dz z) / deviation)
    cdef size_t n = size_of(&c.y.dim), j, k, ng = size_of(&c.x[1].dim)
    cdef uint32_t e
    cdef float* x
    cdef float* g
    cdef float* dy
    cdef float* dx
    cdef float* dz = c.work
    cdef float middle, factor, mean
    cdef double total, along, slope
    if n == 0:
        return
    for e in range(c.y.dim.bd):
        x = element(&c.x[0], e)
        g = element(&c.x[1], e)
        dy = element(&c.dy, e)
        dx = element(&c.dx, e)
        middle = c.kept[3 * e]
        factor = c.kept[3 * e + 1]
        total = along = 0
        for j in range(n // ng):
            for k in range(ng):
                dz[j * ng + k] = g[k] * dy[j * ng + k]
        for j in range(n):
            total += dz[j]
            along += <double>dz[j] * (x[j] - middle)
        mean = <float>(total / n)
        slope = along * factor * c.kept[3 * e + 2] / n
        for j in range(n):
            dx[j] += factor * (dz[j] - mean - <float>slope * (x[j] - middle))


cdef void layer_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), j, k, m, at
    cdef uint32_t e
    cdef float* x
    cdef float* dy
    cdef float* dx
    if i == 0:
        layer_norm_backward_x(c)
        return
    m = size_of(&c.dx.dim)
    if n == 0:
        return
    for e in range(c.y.dim.bd):
        x = element(&c.x[0], e)
        dy = element(&c.dy, e)
        dx = element(&c.dx, e)
        for j in range(n // m):
            if i == 2:
                K.add(m, dy + j * m, dx)
                continue
            for k in range(m):
                at = j * m + k
                dx[k] += dy[at] * ((x[at] - c.kept[3 * e]) * c.kept[3 * e + 1])


cdef size_t layer_norm_kept(const Call* c) noexcept nogil:
    return 3 * <size_t>c.y.dim.bd


cdef size_t layer_norm_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.y.dim) if i == 0 else 0


cdef Op* LAYER_NORM = register(b"layer_norm", b"x g b", layer_norm_dim, layer_norm_forward,
                               layer_norm_backward)
LAYER_NORM.rule[1] = SHARE
LAYER_NORM.rule[2] = SHARE
LAYER_NORM.kept = layer_norm_kept
LAYER_NORM.work = layer_norm_work


def layer_norm(x, g, b):
    """Layer normalization: all elements to mean 0 and deviation 1, then g and b
    (Ba et al. 2016).

    Args:
        x: any expression; each batch element is normalized by itself.
        g: factors, of the shape of x, or of its first axes.
        b: summands, likewise.

    Raises:
        DimensionError: the shapes do not fit.
    """
    return apply(LAYER_NORM, (x, g, b), NULL)


# ---- weight_norm: y = g w / |w| -------------------------------------------------------

cdef int weight_norm_dim(const Shapes* s, Dim* y) except -1:
    if size_of(s.x[1]) != 1:
        raise DimensionError("g must be a scalar")
    return same_dim(s, y)


cdef void weight_norm_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t b
    cdef float* w
    for b in range(c.y.dim.bd):
        w = element(&c.x[0], b)
        K.scale(n, <float>(element(&c.x[1], b)[0] / sqrt(K.sumsq(n, w))), w, element(&c.y, b))


cdef void weight_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t b
    cdef float* w
    cdef float* dx
    cdef double norm, g, along
    for b in range(c.y.dim.bd):
        w = element(&c.x[0], b)
        dx = element(&c.dx, b)
        g = element(&c.x[1], b)[0]
        norm = sqrt(K.sumsq(n, w))
        along = K.dot(n, w, element(&c.dy, b)) / norm
        if i == 1:
            dx[0] += <float>along
            continue
        K.axpy(n, <float>(g / norm), element(&c.dy, b), dx)
        K.axpy(n, <float>(-g * along / (norm * norm)), w, dx)


cdef Op* WEIGHT_NORM = register(b"weight_norm", b"w g", weight_norm_dim, weight_norm_forward,
                                weight_norm_backward)


def weight_norm(w, g):
    """Weight normalization: w scaled to the norm g (Salimans and Kingma 2016).

    Args:
        w: any expression, not all zeros.
        g: a scalar.

    Raises:
        DimensionError: g is not a scalar.
    """
    return apply2(WEIGHT_NORM, w, g)
