"""Tensors of three axes times vectors, and circular convolutions of vectors."""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.limits cimport MOST_ALONG
from dynet_cy.core.tensor cimport (
    Call, Dim, Tensor, axis_of, cols_of, element, rows_of, same_shape, size_of,
)
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply, apply2, expression
from dynet_cy.graph.messages cimport describe_dim
from dynet_cy.kernels.kernels cimport K
from dynet_cy.ops.linalg cimport (
    AFFINE, MATMUL, multiply, multiply_backward_a, multiply_backward_b,
)
from dynet_cy.ops.registry cimport SHARE, Op, Shapes, register

from dynet_cy.ops.registry import DimensionError


# ---- contract3d_1d: z_ij = sum_k x_ijk y_k (+ b_ij) ------------------------------
# The tensor is treated as a matrix of i * j rows and k columns, which multiplies y.

cdef int contract_dim(const Shapes* s, Dim* z) except -1:
    if s.x[0].nd > 3:
        raise DimensionError("x must have three axes")
    if cols_of(s.x[1]) != 1:
        raise DimensionError("y must be a vector")
    if axis_of(s.x[0], 2) != rows_of(s.x[1]):
        raise DimensionError(
            f"x has {axis_of(s.x[0], 2)} elements along axis 2 but y has {rows_of(s.x[1])}")
    z.nd = 2
    z.d[0] = axis_of(s.x[0], 0)
    z.d[1] = axis_of(s.x[0], 1)
    if size_of(z) > MOST_ALONG:                 # they are the rows of a matrix
        raise DimensionError(
            f"the first two axes of x have {size_of(z)} elements, at most {MOST_ALONG} (2^31 - 1) are possible")
    if s.n == 3 and not same_shape(s.x[2], z):
        raise DimensionError(f"b must be a matrix of {z.d[0]} x {z.d[1]}")
    return 0


cdef inline Tensor as_matrix(const Tensor* x, size_t cols) noexcept nogil:
    """x with all axes but the last as one, where the last has `cols` elements."""
    cdef Tensor m = x[0]
    m.dim.d[0] = <uint32_t>(size_of(&x.dim) // cols) if cols else 0
    m.dim.d[1] = <uint32_t>cols
    m.dim.nd = 2
    return m


cdef void contract_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef Tensor x = as_matrix(&c.x[0], rows_of(&c.x[1].dim))
    cdef Tensor z = as_matrix(&c.y, 1)
    cdef uint32_t b
    if c.n == 3:
        for b in range(c.y.dim.bd):
            memcpy(element(&c.y, b), element(&c.x[2], b), n * sizeof(float))
    x.dim.d[0] = z.dim.d[0]                 # also if k is 0
    multiply(&x, &c.x[1], &z, c.n == 3)


cdef void contract_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef Tensor x, dz = as_matrix(&c.dy, 1)
    if i == 0:
        x = as_matrix(&c.dx, rows_of(&c.x[1].dim))
        x.dim.d[0] = dz.dim.d[0]
        multiply_backward_a(&c.x[0], &c.x[1], &dz, &x, c.accumulate)
    elif i == 1:
        x = as_matrix(&c.x[0], rows_of(&c.x[1].dim))
        x.dim.d[0] = dz.dim.d[0]
        multiply_backward_b(&x, &dz, &c.dx, c.accumulate)
    elif c.dx.dim.bd == c.y.dim.bd:
        K.bias_bwd(n * c.y.dim.bd, 1, c.dy.v, c.dx.v, c.accumulate)
    else:
        K.bias_bwd(n, c.y.dim.bd, c.dy.v, c.dx.v, c.accumulate)


cdef Op* new_contraction(const char* name, const char* args) except NULL:
    cdef Op* op = register(name, args, contract_dim, contract_forward, contract_backward)
    op.rule[0] = SHARE                      # nodes with the same tensor run as one product
    op.assigns = True
    return op


cdef Op* CONTRACT = new_contraction(b"contract3d_1d", b"x y")
cdef Op* CONTRACT_BIAS = new_contraction(b"contract3d_1d_bias", b"x y b")


def contract3d_1d(x, y):
    """A tensor of three axes times a vector, over the last axis: z_ij = sum_k x_ijk y_k.

    Shapes: ``x {i,j,k}``, ``y {k}`` -> ``{i,j}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.contract3d_1d(dy.ones((2, 3, 4)), dy.inputVector([1, 2, 3, 4])).npvalue()
        array([[10., 10., 10.],
               [10., 10., 10.]])
    """
    return apply2(CONTRACT, x, y)


def contract3d_1d_bias(x, y, b):
    """`contract3d_1d` plus a matrix b.

    Shapes: ``x {i,j,k}``, ``y {k}``, ``b {i,j}`` -> ``{i,j}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.contract3d_1d_bias(dy.ones((1, 2, 2)), dy.inputVector([1, 2]), dy.inputTensor([[10, 20]])).npvalue()
        array([[13., 23.]])
    """
    return apply(CONTRACT_BIAS, (x, y, b), NULL)


cdef Expression contracted_twice(tuple xs, str op):
    """Contract once, then multiply the resulting matrix, which the gradients need too."""
    cdef const Dim* d[4]
    cdef Py_ssize_t i
    for i in range(len(xs)):
        d[i] = dim_of(expression(xs[i], op, "xyzb"[i]))
    if d[0].nd > 3 or cols_of(d[1]) != 1 or cols_of(d[2]) != 1 or axis_of(
            d[0], 2) != rows_of(d[1]) or axis_of(d[0], 1) != rows_of(d[2]) or (
            len(xs) == 4 and (cols_of(d[3]) != 1 or rows_of(d[3]) != axis_of(d[0], 0))):
        given = "\n".join([f"    {'xyzb'[i]}  {describe_dim(d[i])}" for i in range(len(xs))])
        b = ", b {i}" if len(xs) == 4 else ""
        raise DimensionError(f"{op}: x {{i,j,k}}, y {{k}}, z {{j}}{b} are needed\n{given}")
    matrix = apply2(CONTRACT, xs[0], xs[1])
    if len(xs) == 4:
        return apply(AFFINE, (xs[3], matrix, xs[2]), NULL)
    return apply2(MATMUL, matrix, xs[2])


def contract3d_1d_1d(x, y, z):
    """A tensor of three axes times two vectors: t_i = sum_jk x_ijk y_k z_j.

    Shapes: ``x {i,j,k}``, ``y {k}``, ``z {j}`` -> ``{i}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.contract3d_1d_1d(dy.ones((2, 2, 2)), dy.inputVector([1, 2]), dy.inputVector([3, 4])).npvalue()
        array([21., 21.])
    """
    return contracted_twice((x, y, z), "contract3d_1d_1d")


def contract3d_1d_1d_bias(x, y, z, b):
    """`contract3d_1d_1d` plus a vector b.

    Shapes: ``x {i,j,k}``, ``y {k}``, ``z {j}``, ``b {i}`` -> ``{i}``.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> y, z, b = dy.inputVector([1, 2]), dy.inputVector([3, 4]), dy.inputVector([100, 200])
        >>> dy.contract3d_1d_1d_bias(dy.ones((2, 2, 2)), y, z, b).npvalue()
        array([121., 221.])
    """
    return contracted_twice((x, y, z, b), "contract3d_1d_1d_bias")


# ---- circ_conv: y_k = sum_i u_i v_(k-i mod n) --------------------------------------
# ---- circ_corr: y_k = sum_i u_i v_(i+k mod n) --------------------------------------

cdef int circular_dim(const Shapes* s, Dim* y) except -1:
    if cols_of(s.x[0]) != 1 or cols_of(s.x[1]) != 1:
        raise DimensionError("u and v must be vectors")
    if rows_of(s.x[0]) != rows_of(s.x[1]):
        raise DimensionError(f"u has {rows_of(s.x[0])} elements but v has {rows_of(s.x[1])}")
    y.nd = 1
    y.d[0] = rows_of(s.x[0])
    return 0


cdef void add_convolution(size_t n, const float* u, const float* v, float* y) noexcept nogil:
    cdef size_t i
    for i in range(n):
        K.axpy(n - i, u[i], v, y + i)
        K.axpy(i, u[i], v + (n - i), y)


cdef void add_correlation(size_t n, const float* u, const float* v, float* y) noexcept nogil:
    cdef size_t i
    for i in range(n):
        K.axpy(n - i, u[i], v + i, y)
        K.axpy(i, u[i], v, y + (n - i))


cdef void convolution_forward(const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    K.fill(n * c.y.dim.bd, 0, c.y.v)
    for b in range(c.y.dim.bd):
        add_convolution(n, element(&c.x[0], b), element(&c.x[1], b), element(&c.y, b))


cdef void convolution_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b
    for b in range(c.y.dim.bd):             # the two arguments are interchangeable
        add_correlation(rows_of(&c.y.dim), element(&c.x[1 - i], b), element(&c.dy, b),
                        element(&c.dx, b))


cdef void correlation_forward(const Call* c) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    K.fill(n * c.y.dim.bd, 0, c.y.v)
    for b in range(c.y.dim.bd):
        add_correlation(n, element(&c.x[0], b), element(&c.x[1], b), element(&c.y, b))


cdef void correlation_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        if i == 0:
            add_correlation(n, element(&c.dy, b), element(&c.x[1], b), element(&c.dx, b))
        else:
            add_convolution(n, element(&c.dy, b), element(&c.x[0], b), element(&c.dx, b))


cdef Op* CIRC_CONV = register(b"circ_conv", b"u v", circular_dim, convolution_forward,
                              convolution_backward)
cdef Op* CIRC_CORR = register(b"circ_corr", b"u v", circular_dim, correlation_forward,
                              correlation_backward)


def circ_conv(u, v):
    """Circular convolution of two vectors of n elements: y_k = sum_i u_i v_(k-i mod n).

    Computed directly, in n^2 multiplications.

    Shapes: ``u {n}``, ``v {n}`` -> ``{n}``.

    Raises:
        DimensionError: u and v are not vectors of the same size.

    Example:
        >>> dy.circ_conv(dy.inputVector([1, 2, 3]), dy.inputVector([0, 1, 0])).npvalue().round(3)
        array([3., 1., 2.])
    """
    return apply2(CIRC_CONV, u, v)


def circ_corr(u, v):
    """Circular correlation of two vectors of n elements: y_k = sum_i u_i v_(i+k mod n).

    Shapes: ``u {n}``, ``v {n}`` -> ``{n}``.

    Raises:
        DimensionError: u and v are not vectors of the same size.

    Example:
        >>> dy.circ_corr(dy.inputVector([1, 2, 3]), dy.inputVector([0, 1, 0])).npvalue().round(3)
        array([2., 1., 3.])
    """
    return apply2(CIRC_CORR, u, v)
