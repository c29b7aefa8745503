# Written by tools/derive.py
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Number: TypeAlias = float | np.floating[Any] | np.integer[Any]

def to_float(x: Expression) -> Expression:
    """Convert integers to floats; numbers beyond 2^24 are rounded."""

def to_int(x: Expression) -> Expression:
    """Convert floats to integers (int32) without fractions."""

def tanh(x: Expression) -> Expression:
    """Hyperbolic tangent of each element."""

def exp(x: Expression) -> Expression:
    """e to the power of each element."""

def expm1(x: Expression) -> Expression:
    """e^x - 1 of each element, accurate near 0 too."""

def log(x: Expression) -> Expression:
    """Natural logarithm of each element; -inf at 0 and nan below."""

def log1p(x: Expression) -> Expression:
    """log(1 + x) of each element, accurate near 0 too."""

def logistic(x: Expression) -> Expression:
    """Logistic sigmoid 1 / (1 + e^-x) of each element."""

def log_sigmoid(x: Expression) -> Expression:
    """log(logistic(x)) of each element, without overflow."""

def softplus(x: Expression) -> Expression:
    """log(1 + e^x) of each element, without overflow."""

def rectify(x: Expression) -> Expression:
    """Rectifier max(x, 0) of each element (ReLU)."""

def square(x: Expression) -> Expression:
    """Square of each element."""

def cube(x: Expression) -> Expression:
    """Third power of each element."""

def sqrt(x: Expression) -> Expression:
    """Square root of each element; its gradient is infinite at 0."""

def abs(x: Expression) -> Expression:
    """Absolute value of each element; its gradient is taken to be 0 at 0."""

def softsign(x: Expression) -> Expression:
    """x / (1 + abs(x)) of each element."""

def erf(x: Expression) -> Expression:
    """Gauss error function of each element."""

def lgamma(x: Expression) -> Expression:
    """Logarithm of the absolute value of the gamma function of each element."""

def sin(x: Expression) -> Expression:
    """Sine of each element."""

def cos(x: Expression) -> Expression:
    """Cosine of each element."""

def tan(x: Expression) -> Expression:
    """Tangent of each element."""

def asin(x: Expression) -> Expression:
    """Inverse sine of each element."""

def acos(x: Expression) -> Expression:
    """Inverse cosine of each element."""

def atan(x: Expression) -> Expression:
    """Inverse tangent of each element."""

def sinh(x: Expression) -> Expression:
    """Hyperbolic sine of each element."""

def cosh(x: Expression) -> Expression:
    """Hyperbolic cosine of each element."""

def asinh(x: Expression) -> Expression:
    """Inverse hyperbolic sine of each element."""

def acosh(x: Expression) -> Expression:
    """Inverse hyperbolic cosine of each element."""

def atanh(x: Expression) -> Expression:
    """Inverse hyperbolic tangent of each element."""

def elu(x: Expression, alpha: float = 1.0) -> Expression:
    """Exponential linear unit: x above 0, alpha (e^x - 1) below (Clevert et al. 2016)."""

def selu(x: Expression) -> Expression:
    """Scaled exponential linear unit of each element (Klambauer et al. 2017)."""

def silu(x: Expression, beta: float = 1.0) -> Expression:
    """Sigmoid linear unit x logistic(beta x) of each element (Elfwing et al. 2018)."""

def clip(x: Expression, low: float, high: float) -> Expression:
    """Each element, or the bound that it exceeds; the gradient is 0 there."""

def huber(x: Expression, c: float = 1.345) -> Expression:
    """Huber's function of each element: x^2 where abs(x) <= c, c (2 abs(x) - c) elsewhere."""

def leaky_relu(x: Expression, alpha: float = 0.01) -> Expression:
    """Each element above 0, alpha (0.01 if not given) times it below (Maas et al. 2013)."""

def mish(x: Expression) -> Expression:
    """x tanh(softplus(x)) of each element (Misra 2020)."""

def hard_tanh(x: Expression) -> Expression:
    """Each element, or -1 below and 1 above, where its gradient is 0 (Collobert 2004)."""

def hard_swish(x: Expression) -> Expression:
    """x clip(x + 3, 0, 6) / 6 of each element, which is close to silu (Howard et al. 2019)."""

def safe_sqrt(x: Expression) -> Expression:
    """Square root of each element, whose gradient at 0 is 0, as for the length of a vector."""

relu = rectify
sigmoid = logistic

def gelu(x: Expression, approximate: str = "none") -> Expression:
    """Gaussian error linear unit: x times the normal distribution function (Hendrycks and Gimpel 2016)."""

def floor(x: Expression, gradient_mode: str = "zero_gradient") -> Expression:
    """The greatest whole number that is not greater than each element."""

def ceil(x: Expression, gradient_mode: str = "zero_gradient") -> Expression:
    """The smallest whole number that is not smaller than each element; see `floor`."""

def round(x: Expression, gradient_mode: str = "zero_gradient") -> Expression:
    """The whole number nearest to each element; halves go away from zero."""

def cdiv(x: Expression, y: Expression) -> Expression:
    """Quotient element by element; shapes broadcast."""

def prelu(x: Expression, alpha: Expression) -> Expression:
    """Each element of x above 0, alpha times it below (He et al. 2015); shapes broadcast."""

def colwise_add(x: Expression, y: Expression) -> Expression:
    """Add a vector to every column of a matrix."""

def bmin(x: Expression, y: Expression | _Number) -> Expression:
    """Elementwise minimum; shapes broadcast."""

def bmax(x: Expression, y: Expression | _Number) -> Expression:
    """Elementwise maximum; see `bmin`."""

def pow(x: Expression | _Number, y: Expression | _Number) -> Expression:
    """x to the power of y: expressions, whose shapes broadcast, or one of them a number."""

def less(x: Expression, y: Expression | _Number | npt.ArrayLike) -> Expression:
    """1 where an element of x is less than that of y, else 0; shapes broadcast."""

def less_equal(x: Expression, y: Expression | _Number | npt.ArrayLike) -> Expression:
    """1 where an element of x is not greater than that of y, else 0: ``x <= y``; see `less`."""

def greater(x: Expression, y: Expression | _Number | npt.ArrayLike) -> Expression:
    """1 where an element of x is greater than that of y, else 0: ``x > y``; see `less`."""

def greater_equal(x: Expression, y: Expression | _Number | npt.ArrayLike) -> Expression:
    """1 where an element of x is not less than that of y, else 0: ``x >= y``; see `less`."""

def equal(x: Expression, y: Expression | _Number | npt.ArrayLike) -> Expression:
    """1 where the elements of x and y are equal, else 0; see `less`. (``x == y`` compares identity.)"""

def not_equal(x: Expression, y: Expression | _Number | npt.ArrayLike) -> Expression:
    """1 where the elements of x and y differ, else 0; see `equal`."""

def where(
    condition: Expression | npt.ArrayLike,
    x: Expression | _Number | npt.ArrayLike,
    y: Expression | _Number | npt.ArrayLike,
) -> Expression:
    """x where the condition is not 0, else y; shapes broadcast."""

def masked_fill(x: Expression, mask: Expression | npt.ArrayLike, value: _Number) -> Expression:
    """Replace the masked elements of x by a number."""

def cmult(x: Expression, y: Expression) -> Expression:
    """Product element by element; shapes broadcast."""

def esum(xs: Iterable[Expression]) -> Expression:
    """Sum of expressions of one shape."""

def average(xs: Iterable[Expression]) -> Expression:
    """Mean of expressions of one shape; see `esum`."""

def emax(xs: Iterable[Expression]) -> Expression:
    """Maximum of expressions of one shape, element by element; if several are equal, the first gets the gradient."""
