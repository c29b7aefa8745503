# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

def squared_distance(x: Expression, y: Expression) -> Expression:
    """Sum of the squared differences of two expressions of one shape."""

def l1_distance(x: Expression, y: Expression) -> Expression:
    """Sum of the absolute differences of two expressions of one shape."""

def binary_log_loss(x: Expression, y: Expression | npt.ArrayLike) -> Expression:
    """Negative log-likelihood of yes-or-no decisions: -sum y log x + (1 - y) log(1 - x)."""

def huber_distance(x: Expression, y: Expression, c: float = 1.345) -> Expression:
    """Huber loss: quadratic for small differences, linear for large ones."""

def pairwise_rank_loss(x: Expression, y: Expression, m: float = 1.0) -> Expression:
    """Margin loss max(m - x + y, 0) of each pair of elements."""

def poisson_loss(
    log_lambda: Expression, x: int | np.integer[Any] | Sequence[int] | npt.NDArray[np.integer[Any]]
) -> Expression:
    """Negative log-likelihood of a count under a Poisson distribution."""

def crf_log_partition(x: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression:
    """Logarithm of the sum of e^score over all sequences of tags (Lafferty et al. 2001)."""

def crf_loss(
    x: Expression, tags: Expression | _Ints, transitions: Expression, start: Expression, end: Expression
) -> Expression:
    """Negative log-likelihood of a sequence of tags in a linear-chain conditional random field (Lafferty et al. 2001)."""

def crf_marginals(x: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression:
    """The marginal probability of each tag for each word; see `crf_log_partition`."""

def crf_viterbi(x: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression:
    """The sequence of tags with the greatest score (Viterbi 1967), as a vector of integers; the first if several are equal."""

def label_chain(x: Expression, skips: _Ints) -> Expression:
    """Logarithm of the sum of e^score over all ways through a chain of states, as in `ctc_loss` (Graves et al. 2006)."""
