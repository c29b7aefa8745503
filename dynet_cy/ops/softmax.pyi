# Written by tools/derive.py
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]
_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

def softmax(x: Expression, d: int = 0, mask: Expression | npt.ArrayLike | None = None) -> Expression:
    """Positive numbers that sum to one along an axis: e^x / sum e^x."""

def softmin(x: Expression, d: int = 0) -> Expression:
    """Softmax of -x along an axis: the smallest element gets the greatest weight."""

def log_softmax(
    x: Expression,
    restrict: Expression | _Ints | None = None,
    d: int = 0,
    mask: Expression | npt.ArrayLike | None = None,
) -> Expression:
    """Logarithm of the softmax along an axis."""

def pickneglogsoftmax(x: Expression, v: Expression | _Int | _Ints) -> Expression:
    """Negative log-likelihood of a class under the softmax of scores."""

def pickneglogsoftmax_list(xs: Iterable[Expression], vs: _Ints | Sequence[Expression]) -> list[Expression]:
    """`pickneglogsoftmax` for each element of a list, such as the scores of all words of a sentence, in one call."""

def pickneglogsoftmax_batch(x: Expression, vs: Expression | _Ints) -> Expression:
    """Negative log-likelihood of one class for each batch element."""

def logsumexp_dim(x: Expression, d: int = 0) -> Expression:
    """Logarithm of the sum of e^x over the elements along axis d, which is removed."""

def logsumexp(xs: Iterable[Expression]) -> Expression:
    """log(e^x1 + e^x2 + ...), element by element, without overflow."""

def sparsemax(x: Expression) -> Expression:
    """Projection of each column onto the simplex: like softmax, but with exact zeros (Martins and Astudillo 2016)."""

def hinge(x: Expression, v: Expression | _Int | _Ints, m: float = 1.0) -> Expression:
    """Hinge loss: the score of the true class must exceed all others by a margin."""

def hinge_batch(x: Expression, vs: Expression | _Ints, m: float = 1.0) -> Expression:
    """Hinge loss with one true class for each batch element; see `hinge`."""

def hinge_dim(x: Expression, v: Expression | _Ints | Sequence[_Ints], d: int = 0, m: float = 1.0) -> Expression:
    """Hinge loss of every line of a matrix along axis d."""

def constrained_softmax(x: Expression, y: Expression) -> Expression:
    """Softmax of scores with upper bounds on the probabilities (Martins and Kreutzer 2017)."""
