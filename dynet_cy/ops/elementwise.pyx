"""Elementwise functions of one and two arguments, with rows in `include/dynet_cy/*.def`, of floats and of integers, and
sums of many."""

import numbers

import numpy as np

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport INTEGERS, Call, Dim, axis_of, element, size_of, total_of
from dynet_cy.graph.expressions cimport (
    OPERATOR_ADD, OPERATOR_DIV, OPERATOR_GREATER, OPERATOR_GREATER_EQUAL, OPERATOR_LESS, OPERATOR_LESS_EQUAL,
    OPERATOR_MUL, OPERATOR_NEG, OPERATOR_POW, OPERATOR_SUB, Expression, dim_of, number_in, set_operator,
)
from dynet_cy.graph.making cimport (
    add_node, apply, apply1, apply1x, apply2, claim_current, convert_by, expression, release_current, wrap,
)
from dynet_cy.graph.origin cimport describe_dim
from dynet_cy.graph.structs cimport Extra, Graph, no_extra, nodes_of
from dynet_cy.graph.table cimport Table, graph_at, graph_table, hold, let_go
from dynet_cy.kernels.kernels cimport (
    DY_BINARY_COUNT, DY_UNARY_COUNT, K, DY_BINARY_add, DY_BINARY_div, DY_BINARY_equal, DY_BINARY_less,
    DY_BINARY_less_equal, DY_BINARY_logit_loss, DY_BINARY_max, DY_BINARY_min, DY_BINARY_mul, DY_BINARY_not_equal,
    DY_BINARY_pow, DY_BINARY_sub, DY_BINARY_where_false, DY_BINARY_where_true, DY_UNARY_ceil, DY_UNARY_equal_const,
    DY_UNARY_floor, DY_UNARY_gelu, DY_UNARY_gelu_tanh, DY_UNARY_greater_const, DY_UNARY_greater_equal_const,
    DY_UNARY_less_const, DY_UNARY_less_equal_const, DY_UNARY_max_const, DY_UNARY_min_const, DY_UNARY_negate,
    DY_UNARY_not_equal_const, DY_UNARY_pow_const, DY_UNARY_reciprocal_scale, DY_UNARY_round, DY_UNARY_scale,
    DY_UNARY_shift, dy_kernels,
)
from dynet_cy.kernels.product cimport InRanges, in_ranges
from dynet_cy.ops.inputs cimport of_numbers
from dynet_cy.ops.linalg cimport MATMUL
from dynet_cy.ops.loops cimport pass_on
from dynet_cy.ops.registry cimport (
    ADDS, ALL, ASSIGNS, BY_ELEMENT, FIRST, FLAT, MULTIPLIES, UNCHANGED, UNREAD, Backward, Forward, Op, Shapes,
    as_many_as_y, broadcast_dim, equal_dim, op_at, register, same_dim,
)

from dynet_cy.graph.structs import carriers, operators
from dynet_cy.ops.inputs import constant, inputTensor, input_indices
from dynet_cy.ops.registry import DimensionError


cdef uint8_t not_in_slopes(const char* slopes, const char* names) noexcept:
    """What backward does not read, by the formulas of its derivatives.

    Args:
        names: the letters that stand there for the two arguments, for none, and for the result; 0: there is none.
    """
    cdef uint8_t unread = UNREAD
    cdef int k, at = 0
    cdef bint within = False                        # a longer name
    while slopes[at]:
        for k in range(4):
            if slopes[at] == names[k] and not within and not continues_name(slopes[at + 1]):
                unread &= <uint8_t>~(1 << k)
        within = continues_name(slopes[at])
        at += 1
    return unread


cdef inline bint continues_name(char c) noexcept:
    return c == b"_" or b"a" <= c <= b"z" or b"A" <= c <= b"Z" or b"0" <= c <= b"9"


# ==== integers ====================================================================================
#
# Integer functions and conversions; their rows are in `include/dynet_cy/integers.def`.

cdef extern from "dynet_cy/integers.h" nogil:
    const Forward dy_integer_forwards[]
    # derived: variables of dy_integer_names, dy_integer_results
    const char* const dy_integer_names[]
    const uint8_t dy_integer_results[]
    # end of variables
    void dy_to_float_forward(const void* c) noexcept
    void dy_to_int_forward(const void* c) noexcept


cdef int integers_dim(const Shapes* s, Dim* y) except -1:
    """Shapes broadcast as those of floats do."""
    return same_dim(s, y) if s.n == 1 else broadcast_dim(s, y)


cdef int which
for which in range(DY_INTEGER_COUNT):
    INTEGER[which] = register(dy_integer_names[which], b"a b", integers_dim, dy_integer_forwards[which], NULL,
                              BY_ELEMENT)
    INTEGER[which].integers = ALL
    INTEGER[which].result = dy_integer_results[which]
    INTEGER[which].truth = dy_integer_results[which] != INTEGERS
    INTEGER[which].no_gradient_because = b"integers have no gradient"


# ---- conversions --------------------------------------------------------------------------------

TO_FLOAT = register(b"to_float", b"x", same_dim, <Forward>dy_to_float_forward, NULL)
TO_FLOAT.integers = ALL
TO_INT = register(b"to_int", b"x", same_dim, <Forward>dy_to_int_forward, NULL)
TO_INT.result = INTEGERS
TO_FLOAT.batching = TO_INT.batching = FLAT
TO_FLOAT.no_gradient_because = TO_INT.no_gradient_because = b"integers have no gradient"
convert_by(TO_FLOAT)


def to_float(x):
    """Convert integers to floats; numbers beyond 2^24 are rounded. Floats are returned unchanged.

    Operations on floats do this by themselves to arguments that are integers.

    Args:
        x: an expression of any shape.

    Example:
        >>> (dy.to_float(dy.argmax(dy.inputVector([1, 5, 3]))) / 2).value()
        0.5
    """
    return apply1(TO_FLOAT, x) if is_integer(x) else expression(x, "to_float", "x")


def to_int(x):
    """Convert floats to integers (int32) without fractions. Integers are returned unchanged.

    Numbers beyond the range become the least or the greatest integer, and NaN 0. There is no gradient.

    Args:
        x: an expression of any shape.

    Example:
        >>> dy.to_int(dy.inputVector([1.5, -2.5])).npvalue()
        array([ 1, -2], dtype=int32)
    """
    return expression(x, "to_int", "x") if is_integer(x) else apply1(TO_INT, x)


# ---- for operators --------------------------------------------------------------------------------

cdef Table* table = graph_table()


cdef bint is_integer(object x) except -1:
    return isinstance(x, Expression) and type_of(<Expression>x) == INTEGERS


cdef inline uint8_t type_of(Expression x) except? 255:
    """The type of an expression, as `dim_of` has it, but quicker for a node of a graph that has not changed."""
    cdef uint8_t found = 255
    cdef Graph* g
    hold(table, x.slot)
    g = graph_at(table, x.slot)
    if g != NULL and x.version == g.version:
        found = nodes_of(g)[x.index].dim.type
    let_go(table, x.slot)
    return found if found != 255 else dim_of(x).type


cdef bint is_whole(object x) except -1:
    """Whether it is a whole number that int32 holds."""
    return isinstance(x, (int, np.integer)) and -0x80000000 <= x <= 0x7FFFFFFF


cdef object as_integers(object x):
    """Whole numbers that int32 holds as an expression, but 0, and anything else, as it is."""
    if isinstance(x, np.ndarray):
        return input_indices(x) if x.dtype.kind in "iub" else x
    return input_indices(int(x)) if is_whole(x) and x else x


cdef Expression of_integers(int which, object a, object b):
    cdef Extra extra
    if is_integer(a):
        b = as_integers(b) if isinstance(b, np.ndarray) and b.ndim else b
    elif is_integer(b):
        a = as_integers(a) if isinstance(a, np.ndarray) and a.ndim else a
    else:
        return None
    if is_integer(a) and is_integer(b):
        return apply2(INTEGER[which], a, b)
    extra = no_extra()
    if is_integer(a) and is_whole(b):
        extra.attrs[0].u = <uint32_t>CONSTANT_B
        extra.attrs[1].i = <int32_t>b
        return apply1x(INTEGER[which], a, &extra)
    if is_integer(b) and is_whole(a):
        extra.attrs[0].u = <uint32_t>CONSTANT_A
        extra.attrs[1].i = <int32_t>a
        return apply1x(INTEGER[which], b, &extra)
    return None


# ==== unary =======================================================================================
#
# Elementwise functions of one argument: one row each in `include/dynet_cy/unary.def`.

cdef extern from "dynet_cy/unary.h" nogil:
    Forward dy_unary_forward[]
    Backward dy_unary_backward[]
    InRanges dy_unary_in_ranges
    # derived: variables of dy_unary_kernels, dy_unary_op_names, dy_unary_slopes
    const dy_kernels* dy_unary_kernels
    const char* const dy_unary_op_names[]
    const char* const dy_unary_slopes[]
    # end of variables
dy_unary_kernels = K
dy_unary_in_ranges = in_ranges

for which in range(DY_UNARY_COUNT):
    UNARY[which] = register(dy_unary_op_names[which], b"x", same_dim, dy_unary_forward[which],
                            dy_unary_backward[which])
    UNARY[which].batching = FLAT
    UNARY[which].assigns = True
    UNARY[which].unread = not_in_slopes(dy_unary_slopes[which], b"x\0\0y")
    UNARY[which].in_place = True


cdef Expression apply_unary(int which, object x, float p0, float p1):
    """A node of a function with up to two constants."""
    cdef Extra extra = of_numbers(p0, p1)
    return apply1x(UNARY[which], x, &extra)


# ---- derived: unary, functions of the rows of unary.def, by tools/derive.py
from dynet_cy.kernels.kernels cimport (
    DY_UNARY_abs, DY_UNARY_acos, DY_UNARY_acosh, DY_UNARY_asin, DY_UNARY_asinh, DY_UNARY_atan, DY_UNARY_atanh,
    DY_UNARY_clip, DY_UNARY_cos, DY_UNARY_cosh, DY_UNARY_cube, DY_UNARY_elu, DY_UNARY_erf, DY_UNARY_exp, DY_UNARY_expm1,
    DY_UNARY_hard_swish, DY_UNARY_hard_tanh, DY_UNARY_huber, DY_UNARY_leaky_relu, DY_UNARY_lgamma, DY_UNARY_log,
    DY_UNARY_log1p, DY_UNARY_log_sigmoid, DY_UNARY_logistic, DY_UNARY_mish, DY_UNARY_rectify, DY_UNARY_safe_sqrt,
    DY_UNARY_selu, DY_UNARY_silu, DY_UNARY_sin, DY_UNARY_sinh, DY_UNARY_softplus, DY_UNARY_softsign, DY_UNARY_sqrt,
    DY_UNARY_square, DY_UNARY_tan, DY_UNARY_tanh,
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
    if not (low <= high):
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
    if not (c > 0):
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
    if not (alpha == alpha):
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
# ---- end of unary


# The names that most programs use today, beside DyNet's.
relu = rectify
sigmoid = logistic


def gelu(x, approximate="none"):
    """Gaussian error linear unit: x times the normal distribution function (Hendrycks and Gimpel 2016).

    The names that `transformers` gives to activations are: "gelu" for this function, "gelu_new" and "gelu_pytorch_tanh"
    for that with ``approximate="tanh"``, and "quick_gelu" for ``silu(x, 1.702)``.

    Args:
        x: an expression of any shape, which the result has too.
        approximate: "none", or "tanh" for ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``, which is at most
            0.0005 from it (default: "none").

    Raises:
        ValueError: there is no such approximation.

    Example:
        >>> dy.gelu(dy.inputVector([-1, 2])).npvalue().round(4)
        array([-0.1587,  1.9545])
        >>> dy.gelu(dy.inputVector([-1, 2]), approximate="tanh").npvalue().round(4)
        array([-0.1588,  1.9546])
    """
    if approximate == "none":
        return apply1(UNARY[<int>DY_UNARY_gelu], x)
    if approximate == "tanh":
        return apply1(UNARY[<int>DY_UNARY_gelu_tanh], x)
    raise ValueError(f'gelu: approximate must be "none" or "tanh", not {approximate!r}')


# ---- floor, ceil, round: the gradient is zero, or passes straight through ------------

cdef list through_names = []            # keeps the names alive: ops point to them


cdef void straight_through_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, 1)


for which in (DY_UNARY_floor, DY_UNARY_ceil, DY_UNARY_round):
    through_names.append(dy_unary_op_names[which] + b"_straight_through")
    THROUGH[which] = register(through_names[-1], b"x", same_dim, dy_unary_forward[which], straight_through_backward)
    THROUGH[which].batching = FLAT
    THROUGH[which].assigns = True
    THROUGH[which].unread = UNREAD


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


# ==== arithmetic ==================================================================================
#
# Elementwise functions of two arguments, constants, and sums of many.
#
# One row each in `include/dynet_cy/binary.def`.  Shapes broadcast as in NumPy, but
# aligned at the first axis: an axis of size 1 is repeated to match the other argument.

# ---- functions of two arguments ----------------------------------------------

cdef extern from "dynet_cy/binary.h" nogil:
    Forward dy_binary_forward[]
    Backward dy_binary_backward[]
    InRanges dy_binary_in_ranges
    # derived: variables of dy_binary_kernels, dy_binary_op_names, dy_binary_slopes
    const dy_kernels* dy_binary_kernels
    const char* const dy_binary_op_names[]
    const char* const dy_binary_slopes[]
    # end of variables
dy_binary_kernels = K
dy_binary_in_ranges = in_ranges


for which in range(DY_BINARY_COUNT):
    if dy_binary_op_names[which] == NULL:               # used only inside other ops
        continue
    BINARY[which] = register(dy_binary_op_names[which], b"a b", broadcast_dim,
                             dy_binary_forward[which], dy_binary_backward[which])
    BINARY[which].batching = FLAT
    BINARY[which].columns = True
    BINARY[which].one_column[0] = BINARY[which].one_column[1] = True
    BINARY[which].ragged = True
    BINARY[which].assigns = True
    BINARY[which].unread = not_in_slopes(dy_binary_slopes[which], b"ab\0y")
    BINARY[which].in_place = True
BINARY[DY_BINARY_add].role = ADDS
BINARY[DY_BINARY_add].in_place = UNCHANGED
BINARY[DY_BINARY_mul].role = MULTIPLIES
BINARY[DY_BINARY_add].of_integers = INTEGER[INT_ADD]
BINARY[DY_BINARY_sub].of_integers = INTEGER[INT_SUB]
BINARY[DY_BINARY_mul].of_integers = INTEGER[INT_MUL]
BINARY[DY_BINARY_min].of_integers = INTEGER[INT_MIN]
BINARY[DY_BINARY_max].of_integers = INTEGER[INT_MAX]
BINARY[DY_BINARY_less].of_integers = INTEGER[INT_LESS]
BINARY[DY_BINARY_less_equal].of_integers = INTEGER[INT_LESS_EQUAL]
BINARY[DY_BINARY_equal].of_integers = INTEGER[INT_EQUAL]
BINARY[DY_BINARY_not_equal].of_integers = INTEGER[INT_NOT_EQUAL]
BINARY[DY_BINARY_where_true].moves = BINARY[DY_BINARY_where_false].moves = FIRST


cdef void drop_last_ones(Dim* y) noexcept:
    """Drop trailing axes of size 1, as DyNet does, but never the first axis."""
    while y.nd > 1 and y.d[y.nd - 1] == 1:
        y.nd -= 1


cdef int pow_dim(const Shapes* s, Dim* y) except -1:
    broadcast_dim(s, y)
    drop_last_ones(y)
    return 0


cdef int pow_const_dim(const Shapes* s, Dim* y) except -1:
    same_dim(s, y)
    drop_last_ones(y)
    return 0


BINARY[DY_BINARY_pow].dim = pow_dim
UNARY[DY_UNARY_pow_const].dim = pow_const_dim


cdef void is_comparison(Op* op) noexcept:
    op.truth = True
    op.backward = NULL
    op.no_gradient_because = b"it is constant almost everywhere"


for which in (DY_BINARY_less, DY_BINARY_less_equal, DY_BINARY_equal, DY_BINARY_not_equal):
    is_comparison(BINARY[which])
for which in (DY_UNARY_less_const, DY_UNARY_less_equal_const, DY_UNARY_greater_const, DY_UNARY_greater_equal_const,
              DY_UNARY_equal_const, DY_UNARY_not_equal_const):
    is_comparison(UNARY[which])


def _logit_loss(x, y):
    """The negative log-likelihood of yes-or-no decisions, element by element: see binary.def."""
    return apply2(BINARY[DY_BINARY_logit_loss], x, y)


operators["logit_loss"] = _logit_loss


# ---- derived: binary, functions of the rows of binary.def, by tools/derive.py
from dynet_cy.kernels.kernels cimport (
    DY_BINARY_div, DY_BINARY_prelu,
)


def cdiv(x, y):
    """Quotient element by element; shapes broadcast.

    Args:
        x, y: expressions whose shapes broadcast.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.cdiv(dy.inputVector([1, 6]), dy.inputVector([2, 3])).npvalue()
        array([0.5, 2. ])
    """
    return apply2(BINARY[DY_BINARY_div], x, y)


def prelu(x, alpha):
    """Each element of x above 0, alpha times it below (He et al. 2015); shapes broadcast.

    Args:
        x, alpha: expressions whose shapes broadcast.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.prelu(dy.inputVector([-4, 2]), dy.scalarInput(0.25)).npvalue()
        array([-1.,  2.])
    """
    return apply2(BINARY[DY_BINARY_prelu], x, alpha)
# ---- end of binary


def colwise_add(x, y):
    """Add a vector to every column of a matrix.

    Shapes: ``x {m,n}``, ``y {m}`` -> ``{m,n}``.

    Raises:
        DimensionError: x is not a matrix, or y is not a vector with one element per row of x.

    Example:
        >>> dy.colwise_add(dy.inputTensor([[1, 2], [3, 4]]), dy.inputVector([10, 20])).npvalue()
        array([[11., 12.],
               [23., 24.]])
    """
    cdef const Dim* a = dim_of(expression(x, "colwise_add", "x"))
    cdef const Dim* b = dim_of(expression(y, "colwise_add", "y"))
    if a.nd > 2 or size_of(b) != axis_of(b, 0) or axis_of(a, 0) != axis_of(b, 0):
        raise DimensionError(
            f"colwise_add: x must be a matrix and y a vector of as many rows\n"
            f"    x  {describe_dim(a)}\n    y  {describe_dim(b)}")
    return apply2(BINARY[DY_BINARY_add], expression(x, "colwise_add", "x"), expression(y, "colwise_add", "y"))


cdef object with_number(int which, int which_const, int whole, object x, object y, str op, bint turned=False):
    """Row `which` of x and y, an expression, a number or an array; `turned`: of y and x."""
    z = integers_of(whole, y, x) if turned else integers_of(whole, x, y)
    if z is not None:
        return z
    y = operand(y, op, "y")
    if isinstance(y, Expression):
        return apply2(BINARY[which], y, x) if turned else apply2(BINARY[which], x, y)
    return apply_unary(which_const, x, y, 0)


def bmin(x, y: Expression | _Number):
    """Elementwise minimum; shapes broadcast.  Where the two are equal, y gets the gradient, or x if y is a number.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.bmin(dy.inputVector([1, 5]), dy.inputVector([3, 4])).npvalue()
        array([1., 4.])
    """
    return with_number(DY_BINARY_min, DY_UNARY_min_const, INT_MIN, x, y, "bmin")


def bmax(x, y: Expression | _Number):
    """Elementwise maximum; see `bmin`.

    Args:
        x, y: expressions whose shapes broadcast.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.bmax(dy.inputVector([1, 5]), dy.inputVector([3, 4])).npvalue()
        array([3., 5.])
    """
    return with_number(DY_BINARY_max, DY_UNARY_max_const, INT_MAX, x, y, "bmax")


def pow(x: Expression | _Number, y: Expression | _Number):
    """x to the power of y: expressions, whose shapes broadcast, or one of them a number.

    Trailing axes of size 1 are dropped from the result, as in DyNet: a matrix of one column becomes a vector.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.pow(dy.inputVector([2, 3]), 2).npvalue()
        array([4., 9.])
    """
    return power(x, y, "pow")


# ---- comparisons and choices ---------------------------------------------------

def less(x, y: Expression | _Number | npt.ArrayLike):
    """1 where an element of x is less than that of y, else 0; shapes broadcast.  Also written ``x < y``.

    There is no gradient.  In an ``if``, the value is computed; it must have one element.

    Args:
        x: an expression.
        y: an expression, a number, or an array.

    Example:
        >>> dy.less(dy.inputVector([1, 2, 3]), 2).npvalue()
        array([1., 0., 0.])
    """
    return with_number(DY_BINARY_less, DY_UNARY_less_const, INT_LESS, x, y, "less")


def less_equal(x, y: Expression | _Number | npt.ArrayLike):
    """1 where an element of x is not greater than that of y, else 0: ``x <= y``; see `less`.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.less_equal(dy.inputVector([1, 2, 3]), 2).npvalue()
        array([1., 1., 0.])
    """
    return with_number(DY_BINARY_less_equal, DY_UNARY_less_equal_const, INT_LESS_EQUAL, x, y, "less_equal")


def greater(x, y: Expression | _Number | npt.ArrayLike):
    """1 where an element of x is greater than that of y, else 0: ``x > y``; see `less`.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.greater(dy.inputVector([1, 2, 3]), 2).npvalue()
        array([0., 0., 1.])
    """
    return with_number(DY_BINARY_less, DY_UNARY_greater_const, INT_LESS, x, y, "greater", True)


def greater_equal(x, y: Expression | _Number | npt.ArrayLike):
    """1 where an element of x is not less than that of y, else 0: ``x >= y``; see `less`.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.greater_equal(dy.inputVector([1, 2, 3]), 2).npvalue()
        array([0., 1., 1.])
    """
    return with_number(DY_BINARY_less_equal, DY_UNARY_greater_equal_const, INT_LESS_EQUAL, x, y, "greater_equal", True)


def equal(x, y: Expression | _Number | npt.ArrayLike):
    """1 where the elements of x and y are equal, else 0; see `less`.  (``x == y`` compares identity.)

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.equal(dy.inputVector([1, 2, 3]), 2).npvalue()
        array([0., 1., 0.])
    """
    return with_number(DY_BINARY_equal, DY_UNARY_equal_const, INT_EQUAL, x, y, "equal")


def not_equal(x, y: Expression | _Number | npt.ArrayLike):
    """1 where the elements of x and y differ, else 0; see `equal`.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.not_equal(dy.inputVector([1, 2, 3]), 2).npvalue()
        array([1., 0., 1.])
    """
    return with_number(DY_BINARY_not_equal, DY_UNARY_not_equal_const, INT_NOT_EQUAL, x, y, "not_equal")


cdef Expression as_expression(object value, str op, str argument):
    """An expression as it is; a number, an array or a list of numbers as an input."""
    if isinstance(value, (list, tuple)) and not any(isinstance(part, Expression) for part in value):
        value = np.asarray(value)
    value = operand(value, op, argument)
    return value if isinstance(value, Expression) else constant(1, value)


def where(condition: Expression | npt.ArrayLike, x: Expression | _Number | npt.ArrayLike,
          y: Expression | _Number | npt.ArrayLike):
    """x where the condition is not 0, else y; shapes broadcast.

    Elements that are not chosen affect neither the value nor the gradient, so they may be infinite or NaN.

    Args:
        condition: an expression or array of 0 and other numbers, such as ``e > 0``.
        x, y: expressions, numbers or arrays.

    Example:
        >>> e = dy.inputVector([-1, 1])
        >>> dy.where(e > 0, dy.log(e), 0).npvalue()
        array([0., 0.])
    """
    x, y = numbers_beside(x, y), numbers_beside(y, x)
    return chosen(as_expression(condition, "where", "condition"), as_expression_or_zero(x, "where", "x"),
                  as_expression_or_zero(y, "where", "y"))


cdef object numbers_beside(object x, object other):
    """Whole numbers as integers, if they stand beside such; all else as it is."""
    return as_integers(x) if is_integer(other) else x


cdef Expression chosen(Expression condition, Expression x, Expression y):
    """x where the condition is not 0, else y; None stands for 0."""
    if y is None:
        y = x if x is not None else constant(1, 0)
        return apply2(BINARY[DY_BINARY_where_true], y, condition)
    y = apply2(BINARY[DY_BINARY_where_false], y, condition)
    return y if x is None else apply2(BINARY[DY_BINARY_add], apply2(BINARY[DY_BINARY_where_true], x, condition), y)


cdef Expression as_expression_or_zero(object x, str op, str argument):
    """None for the number 0, which needs no node."""
    return None if is_zero(x) else as_expression(x, op, argument)


cdef bint is_zero(object x):
    return isinstance(x, (int, float)) and x == 0


def masked_fill(x, mask: Expression | npt.ArrayLike, value: _Number):
    """Replace the masked elements of x by a number.

    Args:
        x: an expression.
        mask: an expression or array that is nonzero at the elements to replace; shapes broadcast.
        value: the number; -inf before a softmax.

    Example:
        >>> scores = dy.inputVector([1, 2, 3])
        >>> dy.softmax(dy.masked_fill(scores, np.array([0, 0, 1]), -np.inf)).npvalue().round(3)
        array([0.269, 0.731, 0.   ])
    """
    if not isinstance(value, int):
        value = number(value, "masked_fill", "value")
    return chosen(as_expression(mask, "masked_fill", "mask"),
                  as_expression_or_zero(numbers_beside(value, x), "masked_fill", "value"),
                  expression(x, "masked_fill", "x"))


# ---- operators ---------------------------------------------------------------

cdef float number(object value, str op, str argument) except? -1:
    """The value as a float, or a clear error."""
    if isinstance(value, (float, int)):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0 and value.dtype.kind in "fiub":
        return float(value)
    if value is None:
        expression(None, op, argument)                  # it raises
    raise TypeError(
        f"{op}: {argument} must be an Expression, a number or an array, not {type(value).__name__}")


cdef object operand(object value, str op, str argument):
    """The other operand of an operator: an expression, or a number as a float; an array becomes an input."""
    if isinstance(value, (Expression, float, int)):
        return value
    if getattr(value, "ndim", 0) and hasattr(value, "__array__"):
        return inputTensor(np.asarray(value))
    return number(value, op, argument)


cdef inline Expression integers_of(int which, object a, object b):
    """Row `which` of integers, if one is an expression of them and the other fits; else None."""
    # Floats, the most frequent numbers, are not looked at further.
    return None if type(b) is float or type(a) is float else of_integers(which, a, b)


cdef object add(object a, object b):
    if isinstance(a, Expression) and isinstance(b, Expression):
        return apply2(BINARY[DY_BINARY_add], a, b)
    z = integers_of(INT_ADD, a, b)
    if z is not None:
        return z
    a, b = operand(a, "+", "the left side"), operand(b, "+", "the right side")
    if not isinstance(b, Expression):
        return apply_unary(DY_UNARY_shift, a, b, 0)
    return apply2(BINARY[DY_BINARY_add], a, b) if isinstance(a, Expression) else apply_unary(DY_UNARY_shift, b, a, 0)


cdef object subtract(object a, object b):
    if isinstance(a, Expression) and isinstance(b, Expression):
        return apply2(BINARY[DY_BINARY_sub], a, b)
    z = integers_of(INT_SUB, a, b)
    if z is not None:
        return z
    a, b = operand(a, "-", "the left side"), operand(b, "-", "the right side")
    if not isinstance(b, Expression):
        return apply_unary(DY_UNARY_shift, a, -b, 0)
    if isinstance(a, Expression):
        return apply2(BINARY[DY_BINARY_sub], a, b)
    return apply_unary(DY_UNARY_shift, apply1(UNARY[DY_UNARY_negate], b), a, 0)


cdef object multiply(object a, object b):
    if isinstance(a, Expression) and isinstance(b, Expression):
        return times(a, b)
    z = integers_of(INT_MUL, a, b)
    if z is not None:
        return z
    a, b = operand(a, "*", "the left side"), operand(b, "*", "the right side")
    if not isinstance(b, Expression):
        return apply_unary(DY_UNARY_scale, a, b, 0)
    return times(a, b) if isinstance(a, Expression) else apply_unary(DY_UNARY_scale, b, a, 0)


def cmult(x, y):
    """Product element by element; shapes broadcast.

    Args:
        x, y: expressions whose shapes broadcast.

    Raises:
        DimensionError: the shapes do not broadcast.

    Example:
        >>> dy.cmult(dy.inputVector([1, 2]), dy.inputVector([3, 4])).npvalue()
        array([3., 8.])
    """
    return apply2(BINARY[DY_BINARY_mul], x, y)


cdef Expression times(Expression a, Expression b):
    cdef Graph* g = claim_current()
    cdef uint32_t[2] args
    cdef const Dim* m
    cdef const Dim* n
    cdef bint scales
    try:
        args[0] = number_in(g, a)
        args[1] = number_in(g, b)
        m, n = &nodes_of(g)[args[0]].dim, &nodes_of(g)[args[1]].dim
        # A scalar factor scales; anything else is a matrix product.
        scales = (size_of(m) == 1 or size_of(n) == 1) and axis_of(m, 1) != axis_of(n, 0)
        return wrap(g, add_node(g, BINARY[<int>DY_BINARY_mul] if scales else MATMUL, args, 2, NULL))
    finally:
        release_current(g)


cdef object divide(object a, object b):
    a, b = operand(a, "/", "the left side"), operand(b, "/", "the right side")
    if not isinstance(b, Expression):
        if b == 0:
            raise ZeroDivisionError("/: an expression is divided by the number 0")
        return apply_unary(DY_UNARY_scale, a, 1.0 / <double>b, 0)
    if isinstance(a, Expression):
        return apply2(BINARY[DY_BINARY_div], a, b)
    return apply_unary(DY_UNARY_reciprocal_scale, b, a, 0)


cdef object power(object a, object b, str op):
    b = operand(b, op, "y")
    if isinstance(b, Expression):
        a = operand(a, op, "x")
        return apply2(BINARY[DY_BINARY_pow], a if isinstance(a, Expression) else constant(1, a), b)
    return apply_unary(DY_UNARY_pow_const, a, b, 0)


cdef object raise_to(object a, object b):
    return power(a, b, "**")


cdef object negate(object a, object _):
    if is_integer(a):
        return of_integers(INT_SUB, 0, a)
    return apply1(UNARY[DY_UNARY_negate], a)


cdef object is_less(object a, object b):
    return less(a, b)


cdef object is_less_equal(object a, object b):
    return less_equal(a, b)


cdef object is_greater(object a, object b):
    return greater(a, b)


cdef object is_greater_equal(object a, object b):
    return greater_equal(a, b)


set_operator(OPERATOR_LESS, is_less)
set_operator(OPERATOR_LESS_EQUAL, is_less_equal)
set_operator(OPERATOR_GREATER, is_greater)
set_operator(OPERATOR_GREATER_EQUAL, is_greater_equal)
set_operator(OPERATOR_ADD, add)
set_operator(OPERATOR_SUB, subtract)
set_operator(OPERATOR_MUL, multiply)
set_operator(OPERATOR_DIV, divide)
set_operator(OPERATOR_POW, raise_to)
set_operator(OPERATOR_NEG, negate)


# ---- masks and whole numbers --------------------------------------------------

cdef Expression as_truth(object x, str op, str argument):
    """1 where x is not 0, else 0: x itself if it is a comparison."""
    cdef Expression e = as_expression(x, op, argument)
    cdef Graph* g = claim_current()
    cdef bint known
    try:
        known = op_at(nodes_of(g)[number_in(g, e)].op).truth
    finally:
        release_current(g)
    return e if known else apply_unary(DY_UNARY_not_equal_const, e, 0, 0)


cdef Expression how_many_hold(object a, object b, str op):
    return apply2(BINARY[DY_BINARY_add], as_truth(a, op, "the left side"), as_truth(b, op, "the right side"))


def _and(a, b):
    """a & b: 1 where neither is 0, else 0."""
    return apply_unary(DY_UNARY_greater_const, how_many_hold(a, b, "&"), 1, 0)


def _or(a, b):
    """a | b: 1 where a or b is not 0, else 0."""
    return apply_unary(DY_UNARY_greater_const, how_many_hold(a, b, "|"), 0, 0)


def _not(a):
    """~a: 1 where a is 0, else 0."""
    return apply_unary(DY_UNARY_equal_const, a, 0, 0)


def _floor_divide(a, b):
    """a // b, rounded down: of integers, or of floats, exact for whole numbers below 2^24, since a quotient of two of
    them rounds to no other whole number."""
    if is_zero(b):
        raise ZeroDivisionError("//: an expression is divided by the number 0")
    z = integers_of(INT_FLOOR_DIVIDE, a, b)
    if z is not None:
        return z
    return apply1(UNARY[DY_UNARY_floor], apply2(BINARY[DY_BINARY_div], as_expression(a, "//", "the left side"),
                                                as_expression(b, "//", "the right side")))


def _remainder(a, b):
    """a % b: a - a // b * b, of the sign of b, as in Python."""
    if is_zero(b):
        raise ZeroDivisionError("%: an expression is divided by the number 0")
    z = integers_of(INT_REMAINDER, a, b)
    if z is not None:
        return z
    a, b = as_expression(a, "%", "the left side"), as_expression(b, "%", "the right side")
    return apply2(BINARY[DY_BINARY_sub], a, apply2(BINARY[DY_BINARY_mul], _floor_divide(a, b), b))


operators.update({"and": _and, "or": _or, "not": _not, "//": _floor_divide, "%": _remainder})


# ---- sums of many: y = sum xs, y = mean xs, y = max xs ------------------------

# Rounding errors grow with the number of terms: more than this many are summed in double precision.
cdef enum:
    MOST_TERMS = 1024


cdef size_t add_work(const Call* c, int i) noexcept nogil:
    return 2 * size_of(&c.y.dim) if i < 0 and c.n > MOST_TERMS else 0


cdef void add_many(const Call* c, float scale) noexcept nogil:
    cdef uint32_t i, b
    cdef size_t k, n = size_of(&c.y.dim)
    cdef double* sums = <double*>c.work
    cdef const float* x
    cdef float* y
    for b in range(c.y.dim.bd):
        memset(sums, 0, n * sizeof(double))
        for i in range(c.n):
            x = element(&c.x[i], b)
            for k in range(n):
                sums[k] += x[k]
        y = element(&c.y, b)
        for k in range(n):
            y[k] = <float>(scale * sums[k])


cdef void add_scaled(const Call* c, float scale) noexcept nogil:
    cdef uint32_t i, b
    cdef size_t n = size_of(&c.y.dim)
    if c.n > MOST_TERMS:
        add_many(c, scale)
        return
    K.fill(total_of(&c.y.dim), 0, c.y.v)
    for i in range(c.n):
        for b in range(c.y.dim.bd):
            K.axpy(n, scale, element(&c.x[i], b), element(&c.y, b))


cdef void esum_forward(const Call* c) noexcept nogil:
    add_scaled(c, 1)


cdef void esum_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, 1)


cdef void average_forward(const Call* c) noexcept nogil:
    add_scaled(c, <float>(1.0 / c.n))


cdef void average_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, <float>(1.0 / c.n))


cdef Op* ESUM = register(b"esum", b"xs...", equal_dim, esum_forward, esum_backward,
                         UNREAD | ASSIGNS | BY_ELEMENT, add_work)
ESUM.in_place = UNCHANGED

cdef Op* AVERAGE = register(b"average", b"xs...", equal_dim, average_forward, average_backward,
                            UNREAD | ASSIGNS | BY_ELEMENT, add_work)
AVERAGE.in_place = True


cdef uint32_t* winners(const Call* c, uint32_t b) noexcept nogil:
    """For each number of a batch element, the argument it came from; of equal ones, the first."""
    return <uint32_t*>c.saved + b * size_of(&c.y.dim)


cdef void emax_forward(const Call* c) noexcept nogil:
    cdef uint32_t i, b
    cdef size_t j, n = size_of(&c.y.dim)
    cdef uint32_t* winner
    cdef const float* x
    cdef const float* y
    for b in range(c.y.dim.bd):
        memcpy(element(&c.y, b), element(&c.x[0], b), n * sizeof(float))
        for i in range(1, c.n):
            K.binary_fwd[DY_BINARY_max](n, element(&c.y, b), 1, element(&c.x[i], b), 1,
                                        element(&c.y, b))
        winner, y = winners(c, b), element(&c.y, b)
        memset(winner, 0xFF, n * sizeof(uint32_t))      # NaN comes from none of them
        for i in range(c.n):
            x = element(&c.x[c.n - 1 - i], b)
            for j in range(n):
                if x[j] == y[j]:
                    winner[j] = c.n - 1 - i


cdef void emax_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b
    cdef size_t j, n = size_of(&c.y.dim)
    cdef const uint32_t* winner
    cdef const float* dy
    cdef float* dx
    for b in range(c.y.dim.bd):
        winner, dy, dx = winners(c, b), element(&c.dy, b), element(&c.dx, b)
        for j in range(n):
            if winner[j] == i:
                dx[j] += dy[j]


cdef Op* EMAX = register(b"emax", b"xs...", equal_dim, emax_forward, emax_backward, UNREAD | BY_ELEMENT, NULL,
                         as_many_as_y)


def esum(xs: Iterable[Expression]):
    """Sum of expressions of one shape.

    Args:
        xs: a list; those with batch size 1 are added to every batch element of the others.

    Raises:
        ValueError: the list is empty, or shapes differ.

    Example:
        >>> dy.esum([dy.inputVector([1, 2]), dy.inputVector([3, 4]), dy.inputVector([5, 6])]).npvalue()
        array([ 9., 12.])
    """
    return apply(ESUM, xs, NULL)


def average(xs: Iterable[Expression]):
    """Mean of expressions of one shape; see `esum`.

    Args:
        xs: expressions of one shape.

    Raises:
        ValueError: the list is empty.
        DimensionError: the shapes differ.

    Example:
        >>> dy.average([dy.inputVector([1, 2]), dy.inputVector([3, 4])]).npvalue()
        array([2., 3.])
    """
    return apply(AVERAGE, xs, NULL)


def emax(xs: Iterable[Expression]):
    """Maximum of expressions of one shape, element by element; if several are
    equal, the first gets the gradient.  See `esum`.

    Args:
        xs: expressions of one shape.

    Raises:
        ValueError: the list is empty.
        DimensionError: the shapes differ.

    Example:
        >>> dy.emax([dy.inputVector([1, 5]), dy.inputVector([3, 4])]).npvalue()
        array([3., 5.])
    """
    return apply(EMAX, xs, NULL)


# A product of matrices is scores also with a bias or another scale.
carriers.update({
    op_id: False for op_id in (
        BINARY[DY_BINARY_add].id, BINARY[DY_BINARY_sub].id, ESUM.id, UNARY[DY_UNARY_shift].id,
        UNARY[DY_UNARY_scale].id)})
