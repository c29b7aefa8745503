"""Elementwise functions of one argument: one row each in `include/dynet_cy/unary.def`."""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply1, apply1x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport DY_UNARY_COUNT, DY_UNARY_ceil, DY_UNARY_floor, DY_UNARY_round, K, dy_kernels
from dynet_cy.kernels.ranges cimport InRanges, in_ranges
from dynet_cy.ops.registry cimport FLAT, Backward, Forward, register, same_dim

from dynet_cy.graph.hooks import operators


cdef extern from "dynet_cy/unary.h" nogil:
    const dy_kernels* dy_unary_kernels
    InRanges dy_unary_in_ranges
    const char* const dy_unary_op_names[]
    Forward dy_unary_forward[]
    Backward dy_unary_backward[]

dy_unary_kernels = K
dy_unary_in_ranges = in_ranges

cdef int which
for which in range(DY_UNARY_COUNT):
    UNARY[which] = register(dy_unary_op_names[which], b"x", same_dim, dy_unary_forward[which],
                            dy_unary_backward[which])
    UNARY[which].batching = FLAT
    UNARY[which].assigns = True


cdef Expression apply_unary(int which, object x, float p0, float p1):
    """A node of a function with up to two constants."""
    cdef Extra extra = no_extra()
    extra.attrs[0].f = p0
    extra.attrs[1].f = p1
    return apply1x(UNARY[which], x, &extra)


# ---- derived: functions of the rows of unary.def, by tools/derive.py
from dynet_cy.kernels.kernels cimport (
    DY_UNARY_abs, DY_UNARY_acos, DY_UNARY_acosh, DY_UNARY_asin, DY_UNARY_asinh, DY_UNARY_atan, DY_UNARY_atanh,
    DY_UNARY_clip, DY_UNARY_cos, DY_UNARY_cosh, DY_UNARY_cube, DY_UNARY_elu, DY_UNARY_erf, DY_UNARY_exp, DY_UNARY_expm1,
    DY_UNARY_gelu, DY_UNARY_hard_swish, DY_UNARY_hard_tanh, DY_UNARY_huber, DY_UNARY_leaky_relu, DY_UNARY_lgamma,
    DY_UNARY_log, DY_UNARY_log1p, DY_UNARY_log_sigmoid, DY_UNARY_logistic, DY_UNARY_mish, DY_UNARY_rectify,
    DY_UNARY_safe_sqrt, DY_UNARY_selu, DY_UNARY_silu, DY_UNARY_sin, DY_UNARY_sinh, DY_UNARY_softplus, DY_UNARY_softsign,
    DY_UNARY_sqrt, DY_UNARY_square, DY_UNARY_tan, DY_UNARY_tanh,
)


def tanh(x):
    """Hyperbolic tangent of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.tanh(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 0.762])
    """
    return apply1(UNARY[DY_UNARY_tanh], x)


def exp(x):
    """e to the power of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.exp(dy.inputVector([0, 1])).npvalue().round(3)
        array([1.   , 2.718])
    """
    return apply1(UNARY[DY_UNARY_exp], x)


def expm1(x):
    """e^x - 1 of each element, accurate near 0 too.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.expm1(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 1.718])
    """
    return apply1(UNARY[DY_UNARY_expm1], x)


def log(x):
    """Natural logarithm of each element; -inf at 0 and nan below.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.log(dy.inputVector([1, 2])).npvalue().round(3)
        array([0.   , 0.693])
    """
    return apply1(UNARY[DY_UNARY_log], x)


def log1p(x):
    """log(1 + x) of each element, accurate near 0 too.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.log1p(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 0.693])
    """
    return apply1(UNARY[DY_UNARY_log1p], x)


def logistic(x):
    """Logistic sigmoid 1 / (1 + e^-x) of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.logistic(dy.inputVector([0, 2])).npvalue().round(3)
        array([0.5  , 0.881])
    """
    return apply1(UNARY[DY_UNARY_logistic], x)


def log_sigmoid(x):
    """log(logistic(x)) of each element, without overflow.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.log_sigmoid(dy.inputVector([0, 2])).npvalue().round(3)
        array([-0.693, -0.127])
    """
    return apply1(UNARY[DY_UNARY_log_sigmoid], x)


def softplus(x):
    """log(1 + e^x) of each element, without overflow.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.softplus(dy.inputVector([0, 2])).npvalue().round(3)
        array([0.693, 2.127])
    """
    return apply1(UNARY[DY_UNARY_softplus], x)


def rectify(x):
    """Rectifier max(x, 0) of each element (ReLU).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.rectify(dy.inputVector([-1, 2])).npvalue().round(3)
        array([0., 2.])
    """
    return apply1(UNARY[DY_UNARY_rectify], x)


def square(x):
    """Square of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.square(dy.inputVector([-1, 3])).npvalue().round(3)
        array([1., 9.])
    """
    return apply1(UNARY[DY_UNARY_square], x)


def cube(x):
    """Third power of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.cube(dy.inputVector([-1, 3])).npvalue().round(3)
        array([-1., 27.])
    """
    return apply1(UNARY[DY_UNARY_cube], x)


def sqrt(x):
    """Square root of each element; its gradient is infinite at 0.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.sqrt(dy.inputVector([4, 9])).npvalue().round(3)
        array([2., 3.])
    """
    return apply1(UNARY[DY_UNARY_sqrt], x)


def abs(x):
    """Absolute value of each element; its gradient is taken to be 0 at 0.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.abs(dy.inputVector([-1, 2])).npvalue().round(3)
        array([1., 2.])
    """
    return apply1(UNARY[DY_UNARY_abs], x)


def softsign(x):
    """x / (1 + abs(x)) of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.softsign(dy.inputVector([-1, 3])).npvalue().round(3)
        array([-0.5 ,  0.75])
    """
    return apply1(UNARY[DY_UNARY_softsign], x)


def erf(x):
    """Gauss error function of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.erf(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 0.843])
    """
    return apply1(UNARY[DY_UNARY_erf], x)


def gelu(x):
    """Gaussian error linear unit: x times the normal distribution function (Hendrycks and Gimpel 2016).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.gelu(dy.inputVector([-1, 2])).npvalue().round(3)
        array([-0.159,  1.954])
    """
    return apply1(UNARY[DY_UNARY_gelu], x)


def lgamma(x):
    """Logarithm of the absolute value of the gamma function of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.lgamma(dy.inputVector([1, 4])).npvalue().round(3)
        array([0.   , 1.792])
    """
    return apply1(UNARY[DY_UNARY_lgamma], x)


def sin(x):
    """Sine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.sin(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 0.841])
    """
    return apply1(UNARY[DY_UNARY_sin], x)


def cos(x):
    """Cosine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.cos(dy.inputVector([0, 1])).npvalue().round(3)
        array([1.  , 0.54])
    """
    return apply1(UNARY[DY_UNARY_cos], x)


def tan(x):
    """Tangent of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.tan(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 1.557])
    """
    return apply1(UNARY[DY_UNARY_tan], x)


def asin(x):
    """Inverse sine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.asin(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 1.571])
    """
    return apply1(UNARY[DY_UNARY_asin], x)


def acos(x):
    """Inverse cosine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.acos(dy.inputVector([0, 1])).npvalue().round(3)
        array([1.571, 0.   ])
    """
    return apply1(UNARY[DY_UNARY_acos], x)


def atan(x):
    """Inverse tangent of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.atan(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 0.785])
    """
    return apply1(UNARY[DY_UNARY_atan], x)


def sinh(x):
    """Hyperbolic sine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.sinh(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 1.175])
    """
    return apply1(UNARY[DY_UNARY_sinh], x)


def cosh(x):
    """Hyperbolic cosine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.cosh(dy.inputVector([0, 1])).npvalue().round(3)
        array([1.   , 1.543])
    """
    return apply1(UNARY[DY_UNARY_cosh], x)


def asinh(x):
    """Inverse hyperbolic sine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.asinh(dy.inputVector([0, 1])).npvalue().round(3)
        array([0.   , 0.881])
    """
    return apply1(UNARY[DY_UNARY_asinh], x)


def acosh(x):
    """Inverse hyperbolic cosine of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.acosh(dy.inputVector([1, 2])).npvalue().round(3)
        array([0.   , 1.317])
    """
    return apply1(UNARY[DY_UNARY_acosh], x)


def atanh(x):
    """Inverse hyperbolic tangent of each element.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.atanh(dy.inputVector([0, 0.5])).npvalue().round(3)
        array([0.   , 0.549])
    """
    return apply1(UNARY[DY_UNARY_atanh], x)


def elu(x, float alpha=1.0):
    """Exponential linear unit: x above 0, alpha (e^x - 1) below (Clevert et al. 2016).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.elu(dy.inputVector([-1, 2])).npvalue().round(3)
        array([-0.632,  2.   ])
    """
    return apply_unary(DY_UNARY_elu, x, alpha, 0)


def selu(x):
    """Scaled exponential linear unit of each element (Klambauer et al. 2017).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.selu(dy.inputVector([-1, 2])).npvalue().round(3)
        array([-1.111,  2.101])
    """
    return apply1(UNARY[DY_UNARY_selu], x)


def silu(x, float beta=1.0):
    """Sigmoid linear unit x logistic(beta x) of each element (Elfwing et al. 2018).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.silu(dy.inputVector([-1, 2])).npvalue().round(3)
        array([-0.269,  1.762])
    """
    return apply_unary(DY_UNARY_silu, x, beta, 0)


def clip(x, float low, float high):
    """Each element, or the bound that it exceeds; the gradient is 0 there.

    Args:
        x: an expression of any shape, which the result has too.

    Raises:
        ValueError: low is greater than high, or one of them is nan.

    Example:
        >>> dy.clip(dy.inputVector([-2, 0.5, 3]), -1, 1).npvalue()
        array([-1. ,  0.5,  1. ])
    """
    if not low <= high:
        raise ValueError(f"clip: low must not be greater than high, but they are {low} and {high}")
    return apply_unary(DY_UNARY_clip, x, low, high)


def huber(x, float c=1.345):
    """Huber's function of each element: x^2 where abs(x) <= c, c (2 abs(x) - c) elsewhere.

    Args:
        x: an expression of any shape, which the result has too.

    Raises:
        ValueError: c is not positive.

    Example:
        >>> dy.huber(dy.inputVector([1, 3])).npvalue().round(3)
        array([1.   , 6.261])
    """
    if not c > 0:
        raise ValueError(f"huber: c must be positive, not {c}")
    return apply_unary(DY_UNARY_huber, x, c, 0)


def leaky_relu(x, float alpha=0.01):
    """Each element above 0, alpha (0.01 if not given) times it below (Maas et al. 2013).

    Args:
        x: an expression of any shape, which the result has too.

    Raises:
        ValueError: alpha is not a number.

    Example:
        >>> dy.leaky_relu(dy.inputVector([-2, 3])).npvalue()
        array([-0.02,  3.  ])
    """
    if not alpha == alpha:
        raise ValueError(f"leaky_relu: alpha must be a number, not {alpha}")
    return apply_unary(DY_UNARY_leaky_relu, x, alpha, 0)


def mish(x):
    """x tanh(softplus(x)) of each element (Misra 2020).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.mish(dy.inputVector([-1, 2])).npvalue().round(3)
        array([-0.303,  1.944])
    """
    return apply1(UNARY[DY_UNARY_mish], x)


def hard_tanh(x):
    """Each element, or -1 below and 1 above, where its gradient is 0 (Collobert 2004).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.hard_tanh(dy.inputVector([-2, 0.5, 2])).npvalue()
        array([-1. ,  0.5,  1. ])
    """
    return apply1(UNARY[DY_UNARY_hard_tanh], x)


def hard_swish(x):
    """x clip(x + 3, 0, 6) / 6 of each element, which is close to silu (Howard et al. 2019).

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.hard_swish(dy.inputVector([-4, 1, 4])).npvalue().round(3)
        array([0.   , 0.667, 4.   ])
    """
    return apply1(UNARY[DY_UNARY_hard_swish], x)


def safe_sqrt(x):
    """Square root of each element, whose gradient at 0 is 0, as for the length of a vector.

    Args:
        x: an expression of any shape, which the result has too.

    Example:
        >>> dy.safe_sqrt(dy.inputVector([0, 4])).npvalue()
        array([0., 2.])
    """
    return apply1(UNARY[DY_UNARY_safe_sqrt], x)
# ---- end of functions


# The names that most programs use today, beside DyNet's.
relu = rectify
sigmoid = logistic


# ---- floor, ceil, round: the gradient is zero, or passes straight through ------------

cdef list through_names = []            # keeps the names alive: ops point to them


cdef void straight_through_backward(const Call* c, uint32_t i) noexcept nogil:
    if c.accumulate:
        K.add(total_of(&c.dx.dim), c.dy.v, c.dx.v)
    else:
        memcpy(c.dx.v, c.dy.v, total_of(&c.dx.dim) * sizeof(float))


for which in (DY_UNARY_floor, DY_UNARY_ceil, DY_UNARY_round):
    through_names.append(dy_unary_op_names[which] + b"_straight_through")
    THROUGH[which] = register(through_names[-1], b"x", same_dim, dy_unary_forward[which], straight_through_backward)
    THROUGH[which].batching = FLAT
    THROUGH[which].assigns = True


cdef Expression rounded(int which, object x, object gradient_mode):
    if gradient_mode == "zero_gradient":
        return apply1(UNARY[which], x)
    if gradient_mode == "straight_through_gradient":
        return apply1(THROUGH[which], x)
    raise ValueError(f'{UNARY[which].name.decode()}: gradient_mode must be "zero_gradient" or '
                     f'"straight_through_gradient", not {gradient_mode!r}')


def floor(x, gradient_mode="zero_gradient"):
    """The greatest whole number that is not greater than each element.

    Args:
        x: any expression.
        gradient_mode: "zero_gradient", or "straight_through_gradient": the
            gradient passes as if the op did nothing (Bengio et al. 2013).

    Raises:
        ValueError: there is no such gradient mode.

    Example:
        >>> dy.floor(dy.inputVector([0.2, 1.7])).npvalue()
        array([0., 1.])
    """
    return rounded(DY_UNARY_floor, x, gradient_mode)


def ceil(x, gradient_mode="zero_gradient"):
    """The smallest whole number that is not smaller than each element; see `floor`.

    Args:
        x: an expression of any shape.
        gradient_mode: see `floor`.

    Raises:
        ValueError: there is no such mode.

    Example:
        >>> dy.ceil(dy.inputVector([0.2, 1.7])).npvalue()
        array([1., 2.])
    """
    return rounded(DY_UNARY_ceil, x, gradient_mode)


def round(x, gradient_mode="zero_gradient"):
    """The whole number nearest to each element; halves go away from zero.  See `floor`.

    Args:
        x: an expression of any shape.
        gradient_mode: see `floor`.

    Raises:
        ValueError: there is no such mode.

    Example:
        >>> dy.round(dy.inputVector([0.2, 1.7])).npvalue()
        array([0., 2.])
    """
    return rounded(DY_UNARY_round, x, gradient_mode)


operators["abs"] = abs
