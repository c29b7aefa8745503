"""Elementwise functions of one argument: one row each in `include/dynet_cy/unary.def`."""

from libc.string cimport memset

from dynet_cy.graph.graph cimport Expression, Extra, apply1, apply1x
from dynet_cy.kernels.kernels cimport (
    UNARY_COUNT, UNARY_abs, UNARY_acos, UNARY_acosh, UNARY_asin, UNARY_asinh, UNARY_atan,
    UNARY_atanh, UNARY_cos, UNARY_cosh, UNARY_cube, UNARY_elu, UNARY_erf, UNARY_exp,
    UNARY_lgamma, UNARY_log, UNARY_log_sigmoid, UNARY_logistic, UNARY_rectify, UNARY_selu,
    UNARY_silu, UNARY_sin, UNARY_sinh, UNARY_softsign, UNARY_sqrt, UNARY_square, UNARY_tan,
    UNARY_tanh, K, kernels, unary_names,
)
from dynet_cy.ops.registry cimport FLAT, Backward, Forward, register, same_dim


cdef extern from *:
    """
    #include "dynet_cy/tensor.h"
    #include "dynet_cy/kernels.h"

    static const dy_kernels *dy_unary_kernels;

    #define UNARY(name, y, dx)                                                          \
        static void dy_forward_##name(const dy_call *c) {                               \
            dy_unary_kernels->unary_fwd[DY_UNARY_##name](                               \
                dy_total(&c->y.dim), c->x[0].v, c->attrs[0].f, c->attrs[1].f, c->y.v);  \
        }                                                                               \
        static void dy_backward_##name(const dy_call *c, uint32_t i) {                  \
            (void)i;                                                                    \
            dy_unary_kernels->unary_bwd[DY_UNARY_##name](                               \
                dy_total(&c->y.dim), c->x[0].v, c->y.v, c->dy.v, c->attrs[0].f,         \
                c->attrs[1].f, c->dx.v, c->accumulate);                                 \
        }
    #include "dynet_cy/unary.def"
    #undef UNARY

    #define UNARY(name, y, dx) dy_forward_##name,
    static void (*const dy_unary_forward[])(const dy_call *) = {
    #include "dynet_cy/unary.def"
    };
    #undef UNARY
    #define UNARY(name, y, dx) dy_backward_##name,
    static void (*const dy_unary_backward[])(const dy_call *, uint32_t) = {
    #include "dynet_cy/unary.def"
    };
    #undef UNARY
    """
    const kernels* dy_unary_kernels
    Forward dy_unary_forward[]
    Backward dy_unary_backward[]

dy_unary_kernels = K

cdef int which
for which in range(UNARY_COUNT):
    UNARY[which] = register(unary_names[which], b"x", same_dim, dy_unary_forward[which],
                            dy_unary_backward[which])
    UNARY[which].batching = FLAT
    UNARY[which].assigns = True


cdef Expression apply_unary(int which, Expression x, float p0, float p1):
    """The node of a function with constants."""
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    extra.attrs[0].f = p0
    extra.attrs[1].f = p1
    return apply1x(UNARY[which], x, &extra)


def tanh(Expression x not None):
    """Hyperbolic tangent of each element."""
    return apply1(UNARY[UNARY_tanh], x)


def exp(Expression x not None):
    """e to the power of each element."""
    return apply1(UNARY[UNARY_exp], x)


def log(Expression x not None):
    """Natural logarithm of each element; -inf at 0 and nan below."""
    return apply1(UNARY[UNARY_log], x)


def logistic(Expression x not None):
    """Logistic sigmoid 1 / (1 + e^-x) of each element."""
    return apply1(UNARY[UNARY_logistic], x)


def rectify(Expression x not None):
    """Rectifier max(x, 0) of each element (ReLU)."""
    return apply1(UNARY[UNARY_rectify], x)


def square(Expression x not None):
    """Square of each element."""
    return apply1(UNARY[UNARY_square], x)


def cube(Expression x not None):
    """Third power of each element."""
    return apply1(UNARY[UNARY_cube], x)


def sqrt(Expression x not None):
    """Square root of each element; its gradient is infinite at 0."""
    return apply1(UNARY[UNARY_sqrt], x)


def abs(Expression x not None):
    """Absolute value of each element; its gradient is taken to be 0 at 0."""
    return apply1(UNARY[UNARY_abs], x)


def erf(Expression x not None):
    """Gauss error function of each element."""
    return apply1(UNARY[UNARY_erf], x)


def lgamma(Expression x not None):
    """Logarithm of the absolute value of the gamma function of each element."""
    return apply1(UNARY[UNARY_lgamma], x)


def log_sigmoid(Expression x not None):
    """log(logistic(x)) of each element, without overflow."""
    return apply1(UNARY[UNARY_log_sigmoid], x)


def softsign(Expression x not None):
    """x / (1 + abs(x)) of each element."""
    return apply1(UNARY[UNARY_softsign], x)


def sin(Expression x not None):
    """Sine of each element."""
    return apply1(UNARY[UNARY_sin], x)


def cos(Expression x not None):
    """Cosine of each element."""
    return apply1(UNARY[UNARY_cos], x)


def tan(Expression x not None):
    """Tangent of each element."""
    return apply1(UNARY[UNARY_tan], x)


def asin(Expression x not None):
    """Inverse sine of each element."""
    return apply1(UNARY[UNARY_asin], x)


def acos(Expression x not None):
    """Inverse cosine of each element."""
    return apply1(UNARY[UNARY_acos], x)


def atan(Expression x not None):
    """Inverse tangent of each element."""
    return apply1(UNARY[UNARY_atan], x)


def sinh(Expression x not None):
    """Hyperbolic sine of each element."""
    return apply1(UNARY[UNARY_sinh], x)


def cosh(Expression x not None):
    """Hyperbolic cosine of each element."""
    return apply1(UNARY[UNARY_cosh], x)


def asinh(Expression x not None):
    """Inverse hyperbolic sine of each element."""
    return apply1(UNARY[UNARY_asinh], x)


def acosh(Expression x not None):
    """Inverse hyperbolic cosine of each element."""
    return apply1(UNARY[UNARY_acosh], x)


def atanh(Expression x not None):
    """Inverse hyperbolic tangent of each element."""
    return apply1(UNARY[UNARY_atanh], x)


def selu(Expression x not None):
    """Scaled exponential linear unit of each element (Klambauer et al. 2017)."""
    return apply1(UNARY[UNARY_selu], x)


def elu(Expression x not None, float alpha=1.0):
    """Exponential linear unit: x above 0, alpha (e^x - 1) below (Clevert et al. 2016)."""
    return apply_unary(UNARY_elu, x, alpha, 0)


def silu(Expression x not None, float beta=1.0):
    """Sigmoid linear unit x logistic(beta x) of each element (Elfwing et al. 2018)."""
    return apply_unary(UNARY_silu, x, beta, 0)
