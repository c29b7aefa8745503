# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]

def conv2d(
    x: Expression,
    f: Expression,
    stride: Sequence[int],
    is_valid: bool = True,
    dilation: Sequence[int] = (1, 1),
    groups: _Int = 1,
    padding: Sequence[int] = (0, 0),
) -> Expression:
    """Two-dimensional convolution (without flipping the filter)."""

def conv2d_bias(
    x: Expression,
    f: Expression,
    b: Expression,
    stride: Sequence[int],
    is_valid: bool = True,
    dilation: Sequence[int] = (1, 1),
    groups: _Int = 1,
    padding: Sequence[int] = (0, 0),
) -> Expression:
    """`conv2d` with a bias for each output channel."""

def conv_transpose2d(
    x: Expression,
    f: Expression,
    stride: Sequence[int],
    is_valid: bool = True,
    dilation: Sequence[int] = (1, 1),
    groups: _Int = 1,
) -> Expression:
    """Transposed convolution: each pixel of x adds the filters, times its value, to the result (Zeiler et al. 2010)."""

def maxpooling2d(
    x: Expression, ksize: Sequence[int], stride: Sequence[int], is_valid: bool = True, padding: Sequence[int] = (0, 0)
) -> Expression:
    """Greatest element of each window of an image, channel by channel."""

def filter1d_narrow(x: Expression, y: Expression) -> Expression:
    """One-dimensional convolution along columns, without padding."""

def kmh_ngram(x: Expression, v: int) -> Expression:
    """Sums of v adjacent columns of a matrix."""

def avgpooling2d(
    x: Expression, ksize: Sequence[int], stride: Sequence[int], is_valid: bool = True, padding: Sequence[int] = (0, 0)
) -> Expression:
    """Mean of each window of an image, channel by channel."""

def adaptive_avgpooling2d(x: Expression, size: Sequence[int]) -> Expression:
    """Average pooling with a given number of windows that cover an image evenly, channel by channel."""

def adaptive_maxpooling2d(x: Expression, size: Sequence[int]) -> Expression:
    """Max pooling with a given number of windows that cover an image evenly: see `adaptive_avgpooling2d`."""
