"""Elementwise functions of two arguments, constants, and sums of many.

One row each in `include/dynet_cy/binary.def`.  Shapes broadcast as in numpy,
axis by axis from the first: where one argument has size 1, its element serves
for all of the other's.
"""

import numbers

import numpy as np

from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport (
    Call, Dim, Tensor, axis_of, element, same_shape, size_of, total_of,
)
from dynet_cy.graph.graph cimport (
    OPERATOR_ADD, OPERATOR_DIV, OPERATOR_MUL, OPERATOR_NEG, OPERATOR_SUB, Expression, apply,
    apply1, apply2, describe_dim, dim_of, set_operator,
)
from dynet_cy.kernels.kernels cimport (
    BINARY_COUNT, BINARY_add, BINARY_div, BINARY_max, BINARY_min, BINARY_mul, BINARY_pow,
    BINARY_sub, UNARY_negate, UNARY_pow_const, UNARY_reciprocal_scale, UNARY_scale,
    UNARY_shift, K, binary_names, kernels,
)
from dynet_cy.ops.linalg cimport MATMUL
from dynet_cy.ops.registry cimport FLAT, Backward, Forward, Op, Shapes, register
from dynet_cy.ops.unary cimport UNARY, apply_unary

from dynet_cy.ops.registry import DimensionError


# ---- functions of two arguments ----------------------------------------------

cdef extern from *:
    """
    #include "dynet_cy/tensor.h"
    #include "dynet_cy/kernels.h"

    static const dy_kernels *dy_binary_kernels;

    /* Runs of a broadcast call: `inner` elements along which each argument
     * either moves by one or stands still, `outer` times. */
    typedef struct {
        uint32_t nd;
        size_t size[DY_MAX_ND + 1], a[DY_MAX_ND + 1], b[DY_MAX_ND + 1];
    } dy_runs;

    static void dy_runs_init(dy_runs *r, const dy_call *c) {
        size_t sa = 1, sb = 1;
        r->nd = 0;
        for (uint32_t k = 0; k <= c->y.dim.nd; k++) {
            int batch = k == c->y.dim.nd;
            size_t n = batch ? c->y.dim.bd : c->y.dim.d[k];
            size_t na = batch ? c->x[0].dim.bd : dy_axis(&c->x[0].dim, k);
            size_t nb = batch ? c->x[1].dim.bd : dy_axis(&c->x[1].dim, k);
            if (n == 1 && k)
                continue;
            size_t ma = na == 1 ? 0 : sa, mb = nb == 1 ? 0 : sb;
            sa *= na;
            sb *= nb;
            /* An axis goes on where the one before it ends: one longer run. */
            if (r->nd && (ma == 0) == (r->a[r->nd - 1] == 0) && (mb == 0) == (r->b[r->nd - 1] == 0)) {
                r->size[r->nd - 1] *= n;
                continue;
            }
            r->size[r->nd] = n;
            r->a[r->nd] = ma;
            r->b[r->nd] = mb;
            r->nd++;
        }
    }

    static size_t dy_runs_outer(const dy_runs *r) {
        size_t n = 1;
        for (uint32_t k = 1; k < r->nd; k++)
            n *= r->size[k];
        return n;
    }

    /* Offsets of run number `i` in a and b. */
    static void dy_runs_at(const dy_runs *r, size_t i, size_t *a, size_t *b) {
        *a = *b = 0;
        for (uint32_t k = 1; k < r->nd; k++) {
            *a += i % r->size[k] * r->a[k];
            *b += i % r->size[k] * r->b[k];
            i /= r->size[k];
        }
    }

    static void dy_binary_run(const dy_call *c, int which) {
        dy_runs r;
        dy_runs_init(&r, c);
        size_t outer = dy_runs_outer(&r), n = r.size[0], a, b;
        for (size_t i = 0; i < outer; i++) {
            dy_runs_at(&r, i, &a, &b);
            dy_binary_kernels->binary_fwd[which](n, c->x[0].v + a, r.a[0] != 0, c->x[1].v + b,
                                                 r.b[0] != 0, c->y.v + i * n);
        }
    }

    static void dy_binary_run_backward(const dy_call *c, uint32_t arg, int which) {
        dy_runs r;
        dy_runs_init(&r, c);
        size_t outer = dy_runs_outer(&r), n = r.size[0], a, b;
        dy_binary_bwd run = arg ? dy_binary_kernels->binary_bwd_b[which]
                                : dy_binary_kernels->binary_bwd_a[which];
        /* Runs that come back to the same place must add there. */
        int comes_back = 0;
        for (uint32_t k = 1; k < r.nd; k++)
            comes_back |= (arg ? r.b[k] : r.a[k]) == 0;
        int add = c->accumulate;
        if (!add && comes_back) {
            dy_binary_kernels->fill(dy_total(&c->dx.dim), 0.f, c->dx.v);
            add = 1;
        }
        for (size_t i = 0; i < outer; i++) {
            dy_runs_at(&r, i, &a, &b);
            run(n, c->x[0].v + a, r.a[0] != 0, c->x[1].v + b, r.b[0] != 0, c->y.v + i * n,
                c->dy.v + i * n, c->dx.v + (arg ? b : a), add);
        }
    }

    #define BINARY(name, y, da, db)                                                     \
        static void dy_forward_##name(const dy_call *c) {                               \
            dy_binary_run(c, DY_BINARY_##name);                                         \
        }                                                                               \
        static void dy_backward_##name(const dy_call *c, uint32_t i) {                  \
            dy_binary_run_backward(c, i, DY_BINARY_##name);                             \
        }
    #include "dynet_cy/binary.def"
    #undef BINARY

    #define BINARY(name, y, da, db) dy_forward_##name,
    static void (*const dy_binary_forward[])(const dy_call *) = {
    #include "dynet_cy/binary.def"
    };
    #undef BINARY
    #define BINARY(name, y, da, db) dy_backward_##name,
    static void (*const dy_binary_backward[])(const dy_call *, uint32_t) = {
    #include "dynet_cy/binary.def"
    };
    #undef BINARY
    """
    const kernels* dy_binary_kernels
    Forward dy_binary_forward[]
    Backward dy_binary_backward[]

dy_binary_kernels = K


cdef int broadcast_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, m, n
    y.nd = max(s.x[0].nd, s.x[1].nd)
    for i in range(y.nd):
        m = axis_of(s.x[0], i)
        n = axis_of(s.x[1], i)
        if m != n and m != 1 and n != 1:
            raise DimensionError(f"a has {m} elements along axis {i} but b has {n}")
        y.d[i] = n if m == 1 else m
    return 0


cdef int which
for which in range(BINARY_COUNT):
    BINARY[which] = register(binary_names[which], b"a b", broadcast_dim,
                             dy_binary_forward[which], dy_binary_backward[which])
    BINARY[which].batching = FLAT
    BINARY[which].assigns = True


def cmult(Expression x not None, Expression y not None):
    """Product element by element; shapes broadcast."""
    return apply2(BINARY[BINARY_mul], x, y)


def cdiv(Expression x not None, Expression y not None):
    """Quotient element by element; shapes broadcast."""
    return apply2(BINARY[BINARY_div], x, y)


def colwise_add(Expression x not None, Expression y not None):
    """Add a vector to every column of a matrix.

    Shapes: ``x {m,n}``, ``y {m}`` -> ``{m,n}``.
    """
    cdef const Dim* a = dim_of(x)
    cdef const Dim* b = dim_of(y)
    if a.nd > 2 or size_of(b) != axis_of(b, 0) or axis_of(a, 0) != axis_of(b, 0):
        raise DimensionError(
            f"colwise_add: x must be a matrix and y a vector of as many rows\n"
            f"    x  {describe_dim(a)}\n    y  {describe_dim(b)}")
    return apply2(BINARY[BINARY_add], x, y)


def bmin(Expression x not None, Expression y not None):
    """The smaller of two elements; of equal ones y has the gradient."""
    return apply2(BINARY[BINARY_min], x, y)


def bmax(Expression x not None, Expression y not None):
    """The larger of two elements; of equal ones y has the gradient."""
    return apply2(BINARY[BINARY_max], x, y)


def pow(Expression x not None, y):
    """x to the power of y, a number or an expression; shapes broadcast."""
    if isinstance(y, Expression):
        return apply2(BINARY[BINARY_pow], x, y)
    return apply_unary(UNARY_pow_const, x, number(y, "pow", "y"), 0)


# ---- operators ---------------------------------------------------------------

cdef float number(object value, str op, str argument) except? -1:
    """The value as a float, or a clear error."""
    if isinstance(value, (float, int)):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0 and value.dtype.kind in "fiub":
        return float(value)
    raise TypeError(
        f"{op}: {argument} must be an Expression or a number, not {type(value).__name__}")


cdef object add(object a, object b):
    if isinstance(a, Expression):
        if isinstance(b, Expression):
            return apply2(BINARY[BINARY_add], a, b)
        return apply_unary(UNARY_shift, a, number(b, "+", "the right side"), 0)
    return apply_unary(UNARY_shift, b, number(a, "+", "the left side"), 0)


cdef object subtract(object a, object b):
    if isinstance(a, Expression):
        if isinstance(b, Expression):
            return apply2(BINARY[BINARY_sub], a, b)
        return apply_unary(UNARY_shift, a, -number(b, "-", "the right side"), 0)
    return apply_unary(UNARY_shift, apply1(UNARY[UNARY_negate], b), number(a, "-", "the left side"), 0)


cdef object multiply(object a, object b):
    cdef const Dim* m
    cdef const Dim* n
    if isinstance(a, Expression):
        if isinstance(b, Expression):
            m = dim_of(a)
            n = dim_of(b)
            # A scalar scales; all else is a product of matrices.
            if (size_of(m) == 1 or size_of(n) == 1) and axis_of(m, 1) != axis_of(n, 0):
                return apply2(BINARY[BINARY_mul], a, b)
            return apply2(MATMUL, a, b)
        return apply_unary(UNARY_scale, a, number(b, "*", "the right side"), 0)
    return apply_unary(UNARY_scale, b, number(a, "*", "the left side"), 0)


cdef object divide(object a, object b):
    if isinstance(a, Expression):
        if isinstance(b, Expression):
            return apply2(BINARY[BINARY_div], a, b)
        divisor = number(b, "/", "the right side")
        if divisor == 0:
            raise ZeroDivisionError("/: an expression is divided by the number 0")
        return apply_unary(UNARY_scale, a, 1.0 / divisor, 0)
    return apply_unary(UNARY_reciprocal_scale, b, number(a, "/", "the left side"), 0)


cdef object negate(object a, object _):
    return apply1(UNARY[UNARY_negate], a)


set_operator(OPERATOR_ADD, add)
set_operator(OPERATOR_SUB, subtract)
set_operator(OPERATOR_MUL, multiply)
set_operator(OPERATOR_DIV, divide)
set_operator(OPERATOR_NEG, negate)


# ---- sums of many: y = sum xs, y = mean xs, y = max xs ------------------------

cdef int equal_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i
    for i in range(1, s.n):
        if not same_shape(s.x[i], s.x[0]):
            raise DimensionError(f"xs[{i}] differs in shape from xs[0]")
    y.nd = s.x[0].nd
    for i in range(y.nd):
        y.d[i] = s.x[0].d[i]
    return 0


cdef void add_scaled(const Call* c, float scale) noexcept nogil:
    cdef uint32_t i, b
    cdef size_t n = size_of(&c.y.dim)
    K.fill(total_of(&c.y.dim), 0, c.y.v)
    for i in range(c.n):
        for b in range(c.y.dim.bd):
            K.axpy(n, scale, element(&c.x[i], b), element(&c.y, b))


cdef void pass_scaled(const Call* c, float scale) noexcept nogil:
    cdef uint32_t b
    cdef size_t n = size_of(&c.y.dim)
    if c.dx.dim.bd == c.y.dim.bd:
        n *= c.y.dim.bd
        if c.accumulate:
            K.axpy(n, scale, c.dy.v, c.dx.v)
        else:
            K.scale(n, scale, c.dy.v, c.dx.v)
        return
    if not c.accumulate:
        K.fill(n, 0, c.dx.v)
    for b in range(c.y.dim.bd):
        K.axpy(n, scale, element(&c.dy, b), c.dx.v)


cdef void esum_forward(const Call* c) noexcept nogil:
    add_scaled(c, 1)


cdef void esum_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_scaled(c, 1)


cdef void average_forward(const Call* c) noexcept nogil:
    add_scaled(c, <float>(1.0 / c.n))


cdef void average_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_scaled(c, <float>(1.0 / c.n))


cdef Op* ESUM = register(b"esum", b"xs...", equal_dim, esum_forward, esum_backward)
ESUM.batching = FLAT
ESUM.assigns = True

cdef Op* AVERAGE = register(b"average", b"xs...", equal_dim, average_forward, average_backward)
AVERAGE.batching = FLAT
AVERAGE.assigns = True


cdef void emax_forward(const Call* c) noexcept nogil:
    cdef uint32_t i, b
    cdef size_t n = size_of(&c.y.dim)
    for b in range(c.y.dim.bd):
        memcpy(element(&c.y, b), element(&c.x[0], b), n * sizeof(float))
        for i in range(1, c.n):
            K.binary_fwd[BINARY_max](n, element(&c.y, b), 1, element(&c.x[i], b), 1,
                                     element(&c.y, b))


cdef void emax_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b, k
    cdef size_t j, n = size_of(&c.y.dim)
    cdef float y
    for b in range(c.y.dim.bd):
        for j in range(n):
            y = element(&c.y, b)[j]
            if element(&c.x[i], b)[j] != y:
                continue
            for k in range(i):                      # the first of equal ones has the gradient
                if element(&c.x[k], b)[j] == y:
                    break
            else:
                element(&c.dx, b)[j] += element(&c.dy, b)[j]


cdef Op* EMAX = register(b"emax", b"xs...", equal_dim, emax_forward, emax_backward)
EMAX.batching = FLAT


def esum(xs):
    """Sum of expressions of one shape.

    Args:
        xs: a list; those with batch size 1 count for every batch element of the others.

    Raises:
        ValueError: the list is empty, or shapes differ.
    """
    return apply(ESUM, xs, NULL)


def average(xs):
    """Mean of expressions of one shape; see `esum`."""
    return apply(AVERAGE, xs, NULL)


def emax(xs):
    """Greatest of expressions of one shape, element by element; of equal ones
    the first has the gradient.  See `esum`."""
    return apply(EMAX, xs, NULL)
