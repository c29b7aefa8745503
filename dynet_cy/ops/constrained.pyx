"""Softmax with upper bounds."""

from libc.math cimport expf
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, cols_of, element, rows_of, total_of
from dynet_cy.graph.making cimport apply2
from dynet_cy.ops.registry cimport Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


# ---- constrained_softmax: p_i = min(u_i, s q_i) ------------------------------------
# q is the softmax over the elements below their bounds, and s is 1 minus the sum of the others.
# q is saved, with -1 for elements at their bounds.

cdef float AT_BOUND = -1


cdef int constrained_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or cols_of(s.x[1]) != 1:
        raise DimensionError("x and y must be vectors")
    if rows_of(s.x[0]) != rows_of(s.x[1]):
        raise DimensionError(f"x has {rows_of(s.x[0])} elements but y has {rows_of(s.x[1])}")
    return same_dim(s, y)


cdef void normalize(size_t n, const float* x, float* q) noexcept nogil:
    """q becomes the softmax of x over the elements that are not at their bounds."""
    cdef size_t i
    cdef double z = 0
    cdef float top = 0
    cdef bint first = True
    for i in range(n):
        if q[i] != AT_BOUND and (first or x[i] > top):
            top = x[i]
            first = False
    for i in range(n):
        if q[i] != AT_BOUND:
            q[i] = expf(x[i] - top)
            z += q[i]
    for i in range(n):
        if q[i] != AT_BOUND:
            q[i] = <float>(q[i] / z)


cdef void constrained_forward(const Call* c) noexcept nogil:
    cdef size_t i, n = rows_of(&c.y.dim)
    cdef uint32_t b
    cdef const float* bound
    cdef float* p
    cdef float* q
    cdef double left
    cdef bint changed
    for b in range(c.y.dim.bd):
        bound = element(&c.x[1], b)
        p = element(&c.y, b)
        q = c.saved + b * n
        left = 1
        for i in range(n):
            q[i] = 0
        # Each round but the last takes at least one more element to its bound.
        changed = True
        while changed:
            changed = False
            normalize(n, element(&c.x[0], b), q)
            for i in range(n):
                p[i] = bound[i] if q[i] == AT_BOUND else <float>(left * q[i])
            for i in range(n):
                if q[i] != AT_BOUND and p[i] > bound[i]:
                    q[i] = AT_BOUND
                    left -= bound[i]
                    changed = True


cdef void constrained_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t k, n = rows_of(&c.y.dim)
    cdef uint32_t b
    cdef const float* p
    cdef const float* q
    cdef const float* dy
    cdef float* dx
    cdef double mean
    for b in range(c.y.dim.bd):
        p = element(&c.y, b)
        q = c.saved + b * n
        dy = element(&c.dy, b)
        dx = element(&c.dx, b)
        mean = 0
        for k in range(n):
            if q[k] != AT_BOUND:
                mean += q[k] * dy[k]
        for k in range(n):
            if i == 0 and q[k] != AT_BOUND:
                dx[k] += <float>(p[k] * (dy[k] - mean))
            elif i == 1 and q[k] == AT_BOUND:
                dx[k] += <float>(dy[k] - mean)


cdef size_t constrained_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef Op* CONSTRAINED = register(b"constrained_softmax", b"x y", constrained_dim,
                                constrained_forward, constrained_backward)
CONSTRAINED.saved = constrained_saved


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
