"""The op as a compiled one: its functions are called without the GIL, for all nodes of a batch at once."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.extension cimport SHARE, Call, Dim, Extra, Op, Shapes, add_cuda, apply2x, axis_of, element, register

from dynet_cy import DimensionError
from rbf.cuda import KERNELS


cdef extern from "kernels.h" nogil:
    void rbf_forward(size_t d, size_t k, float gamma, const float* x, const float* c, float* y)
    void rbf_add_dx(size_t d, size_t k, float gamma, const float* x, const float* c, const float* y, const float* dy,
                    float* dx)
    void rbf_add_dc(size_t d, size_t k, float gamma, const float* x, const float* c, const float* y, const float* dy,
                    float* dc)


cdef int dim(const Shapes* s, Dim* y) except -1:
    if s.x[0].nd != 1 or s.x[1].nd != 2 or s.x[0].d[0] != s.x[1].d[0]:
        raise DimensionError("x must be a vector of as many elements as c has rows")
    y.nd = 1
    y.d[0] = s.x[1].d[1]
    return 0


cdef void forward(const Call* c) noexcept nogil:
    cdef size_t d = axis_of(&c.x[0].dim, 0), k = axis_of(&c.y.dim, 0)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        rbf_forward(d, k, c.attrs[0].f, element(&c.x[0], b), element(&c.x[1], b), element(&c.y, b))


cdef void backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t d = axis_of(&c.x[0].dim, 0), k = axis_of(&c.y.dim, 0)
    cdef uint32_t b
    cdef float* x
    cdef float* centers
    cdef float* dx
    for b in range(c.y.dim.bd):
        x, centers, dx = element(&c.x[0], b), element(&c.x[1], b), element(&c.dx, b)
        if i == 0:
            rbf_add_dx(d, k, c.attrs[0].f, x, centers, element(&c.y, b), element(&c.dy, b), dx)
        else:
            rbf_add_dc(d, k, c.attrs[0].f, x, centers, element(&c.y, b), element(&c.dy, b), dx)


cdef Op* RBF = register(b"rbf_compiled", b"x c", dim, forward, backward)
RBF.rule[1] = SHARE                             # nodes with the same centers run together
add_cuda(RBF, KERNELS, ["float gamma"])         # the first attribute, which the kernels get as a number


def rbf(x, c, float gamma=1.0):
    """exp(-gamma |x - c_k|^2) for each column c_k of c."""
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    extra.attrs[0].f = gamma
    return apply2x(RBF, x, c, &extra)
