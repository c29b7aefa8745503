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
) -> Expression: ...
def conv2d_bias(
    x: Expression,
    f: Expression,
    b: Expression,
    stride: Sequence[int],
    is_valid: bool = True,
    dilation: Sequence[int] = (1, 1),
    groups: _Int = 1,
    padding: Sequence[int] = (0, 0),
) -> Expression: ...
def conv_transpose2d(
    x: Expression,
    f: Expression,
    stride: Sequence[int],
    is_valid: bool = True,
    dilation: Sequence[int] = (1, 1),
    groups: _Int = 1,
) -> Expression: ...
def maxpooling2d(
    x: Expression, ksize: Sequence[int], stride: Sequence[int], is_valid: bool = True, padding: Sequence[int] = (0, 0)
) -> Expression: ...
def filter1d_narrow(x: Expression, y: Expression) -> Expression: ...
def kmax_pooling(x: Expression, k: int, d: int = 1) -> Expression: ...
def kmh_ngram(x: Expression, v: int) -> Expression: ...
def avgpooling2d(
    x: Expression, ksize: Sequence[int], stride: Sequence[int], is_valid: bool = True, padding: Sequence[int] = (0, 0)
) -> Expression: ...
def adaptive_avgpooling2d(x: Expression, size: Sequence[int]) -> Expression: ...
def adaptive_maxpooling2d(x: Expression, size: Sequence[int]) -> Expression: ...
