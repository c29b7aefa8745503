"""Products of tensors with three and more axes, circular convolutions, inverses and determinants."""

from libc.math cimport INFINITY, NAN, fabs, log
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport (
    MOST_ALONG, Call, Dim, Tensor, axis_of, cols_of, element, rows_of, same_shape, size_of, total_of,
)
from dynet_cy.graph.expressions cimport OPERATOR_MATMUL, Expression, dim_of, set_operator
from dynet_cy.graph.making cimport apply, apply1, apply2, apply2_for, apply2x, expression
from dynet_cy.graph.origin cimport describe_dim
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport K, DY_BINARY_add
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.elementwise cimport BINARY, operand
from dynet_cy.ops.inputs cimport of_words
from dynet_cy.ops.linalg cimport (
    AFFINE, MATMUL, Algebra, algebra_of, multiply, multiply_backward_a, multiply_backward_b, product_op,
)
from dynet_cy.ops.loops cimport matrix, scalar, vector
from dynet_cy.ops.registry cimport (
    ASSIGNS, SHARE, UNREAD, UNREAD_ARGUMENTS, UNREAD_RESULT, Op, Shapes, register, same_dim,
)

from dynet_cy.ops.linalg import dot_product
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape, transpose


# ==== contract ====================================================================================
#
# Tensors of three axes times vectors, and circular convolutions of vectors.

# ---- contract3d_1d: z_ij = sum_k x_ijk y_k ------------------------------
# The tensor is treated as a matrix of i * j rows and k columns, which multiplies y.

cdef int contract_dim(const Shapes* s, Dim* z) except -1:
    if s.x[0].nd > 3:
        raise DimensionError("x must have three axes")
    if cols_of(s.x[1]) != 1:
        raise DimensionError("y must be a vector")
    if axis_of(s.x[0], 2) != rows_of(s.x[1]):
        raise DimensionError(
            f"x has {axis_of(s.x[0], 2)} elements along axis 2 but y has {rows_of(s.x[1])}")
    matrix(z, axis_of(s.x[0], 0), axis_of(s.x[0], 1))
    if size_of(z) > MOST_ALONG:                 # they are the rows of a matrix
        raise DimensionError(
            f"the first two axes of x have {size_of(z)} elements, at most {MOST_ALONG} (2^31 - 1) are possible")
    return 0


cdef inline Tensor as_matrix(const Tensor* x, const Call* c, size_t cols) noexcept nogil:
    """x with the first two axes of the result as one."""
    cdef Tensor m = x[0]
    m.dim.d[0] = <uint32_t>size_of(&c.y.dim)
    m.dim.d[1] = <uint32_t>cols
    m.dim.nd = 2
    return m


cdef void contract_forward(const Call* c) noexcept nogil:
    cdef Tensor x = as_matrix(&c.x[0], c, rows_of(&c.x[1].dim)), z = as_matrix(&c.y, c, 1)
    multiply(c.on, &x, &c.x[1], &z, 0)


cdef void contract_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Tensor dz = as_matrix(&c.dy, c, 1), x = as_matrix(&c.x[0] if i else &c.dx, c, rows_of(&c.x[1].dim))
    if i == 0:
        multiply_backward_a(c.on, &c.x[0], &c.x[1], &dz, &x, c.accumulate)
    else:
        multiply_backward_b(c.on, &x, &dz, &c.dx, c.accumulate)


cdef Op* CONTRACT = product_op(b"contract3d_1d", b"x y", contract_dim, contract_forward, contract_backward)
CONTRACT.rule[0] = SHARE                    # nodes with the same tensor run as one product
CONTRACT.unread = UNREAD_RESULT


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
    cdef Extra extra = no_extra()
    cdef const Dim* own = dim_of(expression(b, "contract3d_1d_bias", "b"))
    cdef Expression z = apply2_for("contract3d_1d_bias", NULL, CONTRACT, x, y, &extra)
    cdef const Dim* d = dim_of(z)
    if not same_shape(own, d):
        raise DimensionError(
            f"contract3d_1d_bias: b must be a matrix of {d.d[0]} x {d.d[1]}\n    b  {describe_dim(own)}")
    return apply2_for("contract3d_1d_bias", b"xy b", BINARY[DY_BINARY_add], z, b, &extra)


cdef Expression contracted_twice(tuple xs, str op):
    """Contract once, then multiply the resulting matrix, which the gradients need too."""
    cdef const Dim* d[4]
    cdef Py_ssize_t i
    for i in range(len(xs)):
        d[i] = dim_of(expression(xs[i], op, "xyzb"[i]))
    if d[0].nd > 3 or cols_of(d[1]) != 1 or cols_of(d[2]) != 1 or axis_of(
            d[0], 2) != rows_of(d[1]) or axis_of(d[0], 1) != rows_of(d[2]) or (
            len(xs) == 4 and (cols_of(d[3]) != 1 or rows_of(d[3]) != axis_of(d[0], 0))):
        shapes = "\n".join([f"    {'xyzb'[i]}  {describe_dim(d[i])}" for i in range(len(xs))])
        b = ", b {i}" if len(xs) == 4 else ""
        raise DimensionError(f"{op}: x {{i,j,k}}, y {{k}}, z {{j}}{b} are needed\n{shapes}")
    once = apply2(CONTRACT, xs[0], xs[1])
    if len(xs) == 4:
        return apply(AFFINE, (xs[3], once, xs[2]), NULL)
    return apply2(MATMUL, once, xs[2])


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
    return vector(y, rows_of(s.x[0]))


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


cdef void add_each(const Call* c, void (*add)(size_t, const float*, const float*, float*) noexcept nogil,
                   const Tensor* u, const Tensor* v, const Tensor* y) noexcept nogil:
    """The same for each batch element."""
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        add(rows_of(&c.y.dim), element(u, b), element(v, b), element(y, b))


cdef void convolution_forward(const Call* c) noexcept nogil:
    K.fill(total_of(&c.y.dim), 0, c.y.v)
    add_each(c, add_convolution, &c.x[0], &c.x[1], &c.y)


cdef void convolution_backward(const Call* c, uint32_t i) noexcept nogil:
    add_each(c, add_correlation, &c.x[1 - i], &c.dy, &c.dx)     # the two arguments are interchangeable


cdef void correlation_forward(const Call* c) noexcept nogil:
    K.fill(total_of(&c.y.dim), 0, c.y.v)
    add_each(c, add_correlation, &c.x[0], &c.x[1], &c.y)


cdef void correlation_backward(const Call* c, uint32_t i) noexcept nogil:
    add_each(c, add_convolution if i else add_correlation, &c.dy, &c.x[1 - i], &c.dx)


cdef Op* CIRC_CONV = register(b"circ_conv", b"u v", circular_dim, convolution_forward, convolution_backward,
                              UNREAD_RESULT)
cdef Op* CIRC_CORR = register(b"circ_corr", b"u v", circular_dim, correlation_forward, correlation_backward,
                              UNREAD_RESULT)


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


# ==== batched =====================================================================================
#
# Products of tensors of three and more axes.

# ---- batched_matmul: y[:, :, i, ...] = a[:, :, i, ...] b[:, :, i, ...] -------------
# The matrices are along the first two axes; the others broadcast.  Attributes: bit 0 says that a is stored as its
# transpose, bit 1 that b is.

cdef int batched_matmul_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* a = s.x[0]
    cdef const Dim* b = s.x[1]
    cdef uint32_t ta = s.attrs[0].u & 1, tb = s.attrs[0].u >> 1, i, m, n
    if axis_of(a, 1 - ta) != axis_of(b, tb):
        raise DimensionError(
            f"the matrices of a have {axis_of(a, 1 - ta)} columns but those of b have {axis_of(b, tb)} rows")
    y.nd = max(a.nd, b.nd, 2)
    y.d[0] = axis_of(a, ta)
    y.d[1] = axis_of(b, 1 - tb)
    for i in range(2, y.nd):
        m = axis_of(a, i)
        n = axis_of(b, i)
        if m != n and m != 1 and n != 1:
            raise DimensionError(f"a has {m} elements along axis {i} but b has {n}")
        y.d[i] = n if m == 1 else m
    return 0


# The products of a call: `count` for each batch element, of m x k and k x n.
cdef struct Products:
    bint ta
    bint tb
    size_t m
    size_t n
    size_t k
    size_t lda
    size_t ldb
    uint32_t axes               # beyond the first two, those of the matrices
    size_t[5] size
    size_t[5] a                 # stride of a along each axis, in matrices; 0: one matrix for all positions
    size_t[5] b
    size_t count
    bint[2] spread              # whether an argument has fewer matrices than y
    bint in_step                # the matrices of all batch elements are at constant strides in both arguments


cdef Products products_of(const Call* c) noexcept nogil:
    cdef Products p
    cdef const Dim* a = &c.x[0].dim
    cdef const Dim* b = &c.x[1].dim
    cdef uint32_t i
    cdef size_t at_a = 1, at_b = 1
    p.ta = c.attrs[0].u & 1
    p.tb = c.attrs[0].u >> 1 & 1
    p.m = c.y.dim.d[0]
    p.n = c.y.dim.d[1]
    p.k = axis_of(a, 1 - p.ta)
    p.lda = p.k if p.ta else p.m
    p.ldb = p.n if p.tb else p.k
    p.axes = c.y.dim.nd - 2
    p.count = 1
    p.spread[0] = p.spread[1] = False
    for i in range(p.axes):
        p.size[i] = c.y.dim.d[i + 2]
        p.a[i] = at_a if axis_of(a, i + 2) > 1 else 0
        p.b[i] = at_b if axis_of(b, i + 2) > 1 else 0
        p.spread[0] |= axis_of(a, i + 2) < p.size[i]
        p.spread[1] |= axis_of(b, i + 2) < p.size[i]
        at_a *= axis_of(a, i + 2)
        at_b *= axis_of(b, i + 2)
        p.count *= p.size[i]
    p.in_step = not (p.spread[0] or p.spread[1]) and a.bd == c.y.dim.bd and b.bd == c.y.dim.bd
    return p


cdef void nth_product(const Products* p, size_t i, size_t* a, size_t* b) noexcept nogil:
    """Where the matrices of product i are in the two arguments, in floats."""
    cdef uint32_t k
    a[0] = b[0] = 0
    for k in range(p.axes):
        a[0] += i % p.size[k] * p.a[k] * p.m * p.k
        b[0] += i % p.size[k] * p.b[k] * p.k * p.n
        i //= p.size[k]


cdef void batched_matmul_forward(const Call* c) noexcept nogil:
    cdef const Algebra* la = algebra_of(c.on)
    cdef Products p = products_of(c)
    cdef size_t i, a, b
    cdef uint32_t e
    if p.in_step:
        la.gemm(c.on, p.ta, p.tb, p.m, p.n, p.k, 1, c.x[0].v, p.lda, p.m * p.k, c.x[1].v, p.ldb, p.k * p.n, 0, c.y.v,
                p.m, p.m * p.n, p.count * c.y.dim.bd)
        return
    for e in range(c.y.dim.bd):
        for i in range(p.count):
            nth_product(&p, i, &a, &b)
            la.gemm(c.on, p.ta, p.tb, p.m, p.n, p.k, 1, element(&c.x[0], e) + a, p.lda, 0,
                    element(&c.x[1], e) + b, p.ldb, 0, 0, element(&c.y, e) + i * p.m * p.n, p.m, 0, 1)


cdef void batched_back(void* on, const Products* p, uint32_t side, const float* a, const float* b, const float* dy,
                       float beta, float* dx, size_t count) noexcept nogil:
    """The gradients of one argument of `count` products, whose matrices follow each other."""
    cdef const Algebra* la = algebra_of(on)
    cdef size_t step_a = p.m * p.k, step_b = p.k * p.n, step_y = p.m * p.n
    if side == 0 and not p.ta:
        la.gemm(on, False, not p.tb, p.m, p.k, p.n, 1, dy, p.m, step_y, b, p.ldb, step_b, beta, dx, p.m, step_a,
                count)
    elif side == 0:
        la.gemm(on, p.tb, True, p.k, p.m, p.n, 1, b, p.ldb, step_b, dy, p.m, step_y, beta, dx, p.k, step_a, count)
    elif not p.tb:
        la.gemm(on, not p.ta, False, p.k, p.n, p.m, 1, a, p.lda, step_a, dy, p.m, step_y, beta, dx, p.k, step_b,
                count)
    else:
        la.gemm(on, True, p.ta, p.n, p.k, p.m, 1, dy, p.m, step_y, a, p.lda, step_a, beta, dx, p.n, step_b, count)


cdef void batched_matmul_backward(const Call* c, uint32_t side) noexcept nogil:
    cdef Products p = products_of(c)
    cdef size_t i, a, b
    cdef uint32_t e
    cdef float beta = c.accumulate
    if p.in_step:
        batched_back(c.on, &p, side, c.x[0].v, c.x[1].v, c.dy.v, beta, c.dx.v, p.count * c.y.dim.bd)
        return
    if not c.accumulate and (p.spread[side] or c.dx.dim.bd < c.y.dim.bd):
        algebra_of(c.on).zero(c.on, size_of(&c.dx.dim) * c.dx.dim.bd, c.dx.v)
        beta = 1
    for e in range(c.y.dim.bd):
        for i in range(p.count):
            nth_product(&p, i, &a, &b)
            batched_back(c.on, &p, side, element(&c.x[0], e) + a, element(&c.x[1], e) + b,
                         element(&c.dy, e) + i * p.m * p.n, beta, element(&c.dx, e) + (b if side else a), 1)


cdef Op* BATCHED_MATMUL = product_op(b"batched_matmul", b"a b", batched_matmul_dim, batched_matmul_forward,
                                     batched_matmul_backward)
BATCHED_MATMUL.unread = UNREAD_RESULT
BATCHED_MATMUL.ragged = True


cdef Expression products(Expression a, Expression b, bint transpose_a, bint transpose_b):
    cdef Extra extra = of_words(transpose_a | transpose_b << 1)
    return apply2x(BATCHED_MATMUL, a, b, &extra)


def matmul(x: Expression | npt.ArrayLike, y: Expression | npt.ArrayLike, bint transpose_x=False,
           bint transpose_y=False):
    """Product of matrices, along the first two axes; also written ``x @ y``.

    ======================  ======================  ========================================
    x                       y                       result
    ======================  ======================  ========================================
    ``{m,k}``               ``{k,n}``               ``{m,n}``
    ``{m,k}``               ``{k}``                 ``{m}``
    ``{k}``                 ``{k,n}``               ``{n}``: x is a row
    ``{k}``                 ``{k}``                 ``{1}``: the dot product
    ``{m,k,...}``           ``{k,n,...}``           ``{m,n,...}``: a product for each position along
                                                    the further axes, which broadcast
    ======================  ======================  ========================================

    One of the two may be an array.  Unlike ``*``, it never scales by a number.

    Args:
        x, y: the factors.
        transpose_x, transpose_y: whether to multiply by the transposes of the matrices of x or y.  With further axes
            this saves a copy. Default: False, both.

    Raises:
        DimensionError: the shapes do not fit.
        TypeError: one of the two is a number.

    Example:
        >>> keys, queries = dy.ones((4, 3)), dy.ones((4, 2))
        >>> scores = keys.T @ queries               # {d,n}, {d,m} -> {n,m}
        >>> scores.shape
        (3, 2)
    """
    cdef Expression a = tensor(x, "x")
    cdef Expression b = tensor(y, "y")
    cdef uint32_t na = dim_of(a).nd, nb = dim_of(b).nd
    if na > 1 and nb > 1 and (na > 2 or nb > 2 and transpose_y):
        return products(a, b, transpose_x, transpose_y)
    if transpose_x and na == 2:
        a = transpose(a)
    if transpose_y and nb == 2:
        b = transpose(b)
    if na == 1 and nb == 1:
        if dim_of(a).d[0] != dim_of(b).d[0]:
            raise DimensionError(f"matmul: x has {dim_of(a).d[0]} elements but y has {dim_of(b).d[0]}")
        return dot_product(a, b)
    if na == 1:
        product = matmul(reshape(a, (1, dim_of(a).d[0])), b, False, transpose_y and nb > 2)
        return reshape(product, shape_of(dim_of(product))[1:])
    if nb == 1 and na > 2:
        product = products(a, reshape(b, (dim_of(b).d[0], 1)), transpose_x, False)
        shape = shape_of(dim_of(product))
        return reshape(product, shape[:1] + shape[2:])
    if nb > 2:                                      # one matrix for all: all columns are one wide matrix
        shape = shape_of(dim_of(b))
        product = apply2(MATMUL, a, reshape(b, (shape[0], -1 if size_of(dim_of(b)) else 0)))
        return reshape(product, (dim_of(a).d[0], *shape[1:]))
    return apply2(MATMUL, a, b)


cdef Expression tensor(object x, str name):
    """An operand of `matmul` as an expression; a number is an error."""
    if not isinstance(x, Expression):
        x = operand(x, "matmul", name)
    if not isinstance(x, Expression) or dim_of(x).nd == 0:
        raise TypeError(f"matmul: {name} must be a vector, a matrix or more, not a number; * scales")
    return x


cdef object multiplied(object a, object b):
    return matmul(a, b)


set_operator(OPERATOR_MATMUL, multiplied)


# ==== inverse =====================================================================================
#
# Inverse and determinant of square matrices, from LAPACK's LU factorization.

cdef extern nogil:
    void scipy_sgetrf_(int* m, int* n, float* a, int* lda, int* pivots, int* info)
    void scipy_sgetri_(int* n, float* a, int* lda, int* pivots, float* work, int* lwork, int* info)

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


cdef void inverse_back(const Call* c, uint32_t i) noexcept nogil:
    """dx = - y' dy y', on every device."""
    cdef const Algebra* la = algebra_of(c.on)
    cdef size_t n = rows_of(&c.y.dim), size = n * n, batch = c.y.dim.bd
    la.gemm(c.on, 1, 0, n, n, n, 1, c.y.v, n, size, c.dy.v, n, size, 0, c.work, n, size, batch)
    la.gemm(c.on, 0, 1, n, n, n, -1, c.work, n, size, c.y.v, n, size, c.accumulate, c.dx.v, n, c.dx.bstride, batch)


cdef size_t inverse_work(const Call* c, int i) noexcept nogil:
    cdef size_t n = rows_of(&c.y.dim)
    return n + n * BLOCK if i < 0 else n * n * c.y.dim.bd


cdef Op* INVERSE = register(b"inverse", b"x", inverse_dim, inverse_forward, inverse_back,
                            UNREAD_ARGUMENTS | ASSIGNS, inverse_work)


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
    return scalar(y)


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


cdef Op* LOGDET = register(b"logdet", b"x", logdet_dim, logdet_forward, logdet_backward, UNREAD, logdet_work,
                           logdet_saved)


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
