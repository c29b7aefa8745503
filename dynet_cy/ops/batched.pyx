"""Products of tensors of three and more axes."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, axis_of, element, size_of
from dynet_cy.graph.expressions cimport OPERATOR_MATMUL, Expression, dim_of, set_operator
from dynet_cy.graph.making cimport apply2, apply2x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.product cimport gemm
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.arithmetic cimport operand
from dynet_cy.ops.linalg cimport MATMUL
from dynet_cy.ops.registry cimport Shapes, register

from dynet_cy.ops.linalg import dot_product
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape, transpose


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
    return p


cdef void nth_product(const Products* p, size_t i, size_t* a, size_t* b) noexcept nogil:
    cdef uint32_t k
    a[0] = b[0] = 0
    for k in range(p.axes):
        a[0] += i % p.size[k] * p.a[k]
        b[0] += i % p.size[k] * p.b[k]
        i //= p.size[k]


cdef void batched_matmul_forward(const Call* c) noexcept nogil:
    cdef Products p = products_of(c)
    cdef size_t i, a, b
    cdef uint32_t e
    for e in range(c.y.dim.bd):
        for i in range(p.count):
            nth_product(&p, i, &a, &b)
            gemm(p.ta, p.tb, p.m, p.n, p.k, 1, element(&c.x[0], e) + a * p.m * p.k, p.k if p.ta else p.m,
                 element(&c.x[1], e) + b * p.k * p.n, p.n if p.tb else p.k, 0,
                 element(&c.y, e) + i * p.m * p.n, p.m)


cdef void batched_matmul_backward(const Call* c, uint32_t side) noexcept nogil:
    cdef Products p = products_of(c)
    cdef size_t i, at_a, at_b
    cdef const float* a
    cdef const float* b
    cdef const float* dy
    cdef float* dx
    cdef uint32_t e
    cdef float beta = c.accumulate
    if not c.accumulate and (p.spread[side] or c.dx.dim.bd < c.y.dim.bd):
        K.fill(size_of(&c.dx.dim) * c.dx.dim.bd, 0, c.dx.v)
        beta = 1
    for e in range(c.y.dim.bd):
        for i in range(p.count):
            nth_product(&p, i, &at_a, &at_b)
            a = element(&c.x[0], e) + at_a * p.m * p.k
            b = element(&c.x[1], e) + at_b * p.k * p.n
            dy = element(&c.dy, e) + i * p.m * p.n
            dx = element(&c.dx, e) + (at_b * p.k * p.n if side else at_a * p.m * p.k)
            if side == 0 and not p.ta:
                gemm(False, not p.tb, p.m, p.k, p.n, 1, dy, p.m, b, p.n if p.tb else p.k, beta, dx, p.m)
            elif side == 0:
                gemm(p.tb, True, p.k, p.m, p.n, 1, b, p.n if p.tb else p.k, dy, p.m, beta, dx, p.k)
            elif not p.tb:
                gemm(not p.ta, False, p.k, p.n, p.m, 1, a, p.k if p.ta else p.m, dy, p.m, beta, dx, p.k)
            else:
                gemm(True, p.ta, p.n, p.k, p.m, 1, dy, p.m, a, p.k if p.ta else p.m, beta, dx, p.n)


BATCHED_MATMUL = register(b"batched_matmul", b"a b", batched_matmul_dim, batched_matmul_forward,
                          batched_matmul_backward)
BATCHED_MATMUL.assigns = True
BATCHED_MATMUL.ragged = True


cdef Expression products(Expression a, Expression b, bint transpose_a, bint transpose_b):
    cdef Extra extra = no_extra()
    extra.attrs[0].u = transpose_a | transpose_b << 1
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
