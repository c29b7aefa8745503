"""Inverse and determinant of square matrices, from LAPACK's LU factorization."""

from libc.math cimport INFINITY, NAN, fabs, log
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport Call, Dim, axis_of, element, rows_of, size_of
from dynet_cy.graph.making cimport apply1
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.product cimport gemm
from dynet_cy.ops.registry cimport Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError

cdef extern from *:
    """
    extern void scipy_sgetrf_(int *m, int *n, float *a, int *lda, int *pivots, int *info);
    extern void scipy_sgetri_(int *n, float *a, int *lda, int *pivots, float *work, int *lwork, int *info);
    """
    void scipy_sgetrf_(int* m, int* n, float* a, int* lda, int* pivots, int* info) nogil
    void scipy_sgetri_(int* n, float* a, int* lda, int* pivots, float* work, int* lwork,
                       int* info) nogil

cdef enum:
    BLOCK = 32                      # LAPACK's block size, in columns


cdef int square_dim(const Shapes* s) except -1:
    if s.x[0].nd > 2 or axis_of(s.x[0], 0) != axis_of(s.x[0], 1):
        raise DimensionError("x must be a square matrix")
    if axis_of(s.x[0], 0) > 0x7FFF:
        raise DimensionError("x has more than 32767 rows")
    return 0


cdef bint factors(int n, float* a, int* pivots) noexcept nogil:
    """Replace a by its LU factors; False if it is singular."""
    cdef int info = 0
    if n:
        scipy_sgetrf_(&n, &n, a, &n, pivots, &info)
    return info == 0


cdef void invert(int n, float* a, int* pivots, float* work) noexcept nogil:
    """Replace LU factors by the inverse of the matrix."""
    cdef int info = 0, size = n * BLOCK
    if n:
        scipy_sgetri_(&n, a, &n, pivots, work, &size, &info)


# ---- inverse -------------------------------------------------------------------------

cdef int inverse_dim(const Shapes* s, Dim* y) except -1:
    square_dim(s)
    return same_dim(s, y)


cdef void inverse_forward(const Call* c) noexcept nogil:
    cdef int n = <int>rows_of(&c.y.dim)
    cdef size_t size = size_of(&c.y.dim)
    cdef int* pivots = <int*>c.work
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        memcpy(element(&c.y, b), element(&c.x[0], b), size * sizeof(float))
        if factors(n, element(&c.y, b), pivots):
            invert(n, element(&c.y, b), pivots, c.work + n)
        else:
            K.fill(size, NAN, element(&c.y, b))


cdef void inverse_backward(const Call* c, uint32_t i) noexcept nogil:
    """dx = - y' dy y'."""
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        gemm(1, 0, n, n, n, 1, element(&c.y, b), n, element(&c.dy, b), n, 0, c.work, n)
        gemm(0, 1, n, n, n, -1, c.work, n, element(&c.y, b), n, 1, element(&c.dx, b), n)


cdef size_t inverse_work(const Call* c, int i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    return n + n * BLOCK if i < 0 else n * n


cdef Op* INVERSE = register(b"inverse", b"x", inverse_dim, inverse_forward, inverse_backward)
INVERSE.work = inverse_work


def inverse(x):
    """Inverse of a square matrix.

    The inverse of a singular matrix, one whose LU factors have a zero on the
    diagonal, is nan everywhere.

    Shapes: ``x {n,n}`` -> ``{n,n}``.

    Raises:
        DimensionError: x is not a square matrix.

    Example:
        >>> dy.inverse(dy.inputTensor([[2, 1], [1, 1]])).npvalue().round(3)
        array([[ 1., -1.],
               [-1.,  2.]])
    """
    return apply1(INVERSE, x)


# ---- logdet: y = log det x -------------------------------------------------------------
# The factors are saved: the gradient is the transposed inverse.

cdef int logdet_dim(const Shapes* s, Dim* y) except -1:
    square_dim(s)
    y.nd = 1
    y.d[0] = 1
    return 0


cdef void logdet_forward(const Call* c) noexcept nogil:
    cdef int n = <int>rows_of(&c.x[0].dim)
    cdef size_t size = <size_t>n * n
    cdef float* lu = c.saved
    cdef int* pivots
    cdef bint negative
    cdef double total
    cdef uint32_t b
    cdef int k
    for b in range(c.y.dim.bd):
        pivots = <int*>(lu + size)
        memcpy(lu, element(&c.x[0], b), size * sizeof(float))
        if factors(n, lu, pivots):
            total = 0
            negative = False
            for k in range(n):
                total += log(fabs(<double>lu[k * (n + 1)]))
                negative ^= (lu[k * (n + 1)] < 0) ^ (pivots[k] != k + 1)
            c.y.v[b] = NAN if negative else <float>total
        else:
            c.y.v[b] = -INFINITY
        lu += size + n


cdef void logdet_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = rows_of(&c.x[0].dim), size = n * n, j, k
    cdef float* inverse = c.work
    cdef const float* lu = c.saved
    cdef float* dx
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        dx = element(&c.dx, b)
        memcpy(inverse, lu, size * sizeof(float))
        if c.y.v[b] == -INFINITY:
            K.fill(size, NAN, inverse)
        else:
            invert(<int>n, inverse, <int*>(lu + size), c.work + size)
        for j in range(n):
            for k in range(n):
                dx[j * n + k] += c.dy.v[b] * inverse[k * n + j]
        lu += size + n


cdef size_t logdet_saved(const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.x[0].dim)
    return c.y.dim.bd * (n * n + n)


cdef size_t logdet_work(const Call* c, int i) noexcept nogil:
    cdef size_t n = rows_of(&c.x[0].dim)
    return n * n + n * BLOCK if i >= 0 else 0


cdef Op* LOGDET = register(b"logdet", b"x", logdet_dim, logdet_forward, logdet_backward)
LOGDET.saved = logdet_saved
LOGDET.work = logdet_work


def logdet(x):
    """Natural logarithm of the determinant of a square matrix.

    It is -inf for a singular matrix, whose gradient is nan, and nan for a
    negative determinant.

    Shapes: ``x {n,n}`` -> ``{1}``.

    Raises:
        DimensionError: x is not a square matrix.

    Example:
        >>> round(dy.logdet(dy.inputTensor([[2, 0], [0, 4]])).value(), 3)
        2.079
    """
    return apply1(LOGDET, x)
