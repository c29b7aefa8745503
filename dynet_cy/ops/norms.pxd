"""Norms and normalization: what CPU and GPU share."""

from libc.math cimport sqrt
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Attr, Dim, axis_of, size_of
from dynet_cy.kernels.kernels cimport K
from dynet_cy.ops.axes cimport Split


# ---- norms, also of vectors whose squares do not fit in a float ---------------

cdef inline bint is_usual(double norm) noexcept nogil:
    """Whether the sum of squares is far from overflow and underflow in float."""
    return 1e-15 < norm < 1e15


cdef inline double norm_of(size_t n, const float* x) noexcept nogil:
    cdef double norm = sqrt(K.sumsq(n, x)), total = 0
    cdef size_t i
    if is_usual(norm):
        return norm
    for i in range(n):
        total += <double>x[i] * x[i]
    return sqrt(total)


# ---- lines of layer_norm ---------------------------------------------------------

# attrs of layer_norm: the first axis, and the number of axes (0: those of g and b); the number added to the variance
# (0: 1e-8 is added to the deviation instead).  attrs of residual_layer_norm: dropout rate, unused, EPSILON as above.
cdef enum:
    FIRST
    COUNT
    EPSILON
    DROPPED = 0
    NONE = 8                                    # result of `covered`: the shape does not fit


cdef inline Split columns_of(const Dim* x) noexcept nogil:
    """x as lines along its first axis."""
    cdef Split s
    s.pre = 1
    s.len = axis_of(x, 0)
    s.post = size_of(x) // s.len if s.len else 0
    return s


cdef inline uint32_t covered(const Dim* part, const Dim* x, uint32_t first, uint32_t last) noexcept nogil:
    """How many axes of x, from `first` up to `last`, part has; NONE if it has any other axis of a size above 1."""
    cdef uint32_t k = 0, i
    while first + k < last and axis_of(part, k) == x.d[first + k]:
        k += 1
    for i in range(k, part.nd):
        if part.d[i] != 1:
            return NONE
    return k


cdef inline Split lines_of(const Dim* x, const Dim* g, const Attr* attrs) noexcept nogil:
    """x as lines: `len` elements that are `pre` apart, pre x post times."""
    cdef uint32_t first = attrs[FIRST].u, last = first + attrs[COUNT].u, k
    cdef Split s
    if first == last:
        last = covered(g, x, 0, x.nd)
    s.pre = s.len = s.post = 1
    for k in range(x.nd):
        if k < first:
            s.pre *= x.d[k]
        elif k < last:
            s.len *= x.d[k]
        else:
            s.post *= x.d[k]
    return s
