# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]

def layer_norm(
    x: Expression, g: Expression, b: Expression, axis: int | Sequence[int] | None = None, eps: float | None = None
) -> Expression: ...
def residual_layer_norm(
    x: Expression, r: Expression, g: Expression, b: Expression, dropout: float = 0.0, eps: float | None = None
) -> Expression: ...
def weight_norm(w: Expression, g: Expression) -> Expression: ...
def batch_moments(x: Expression, axis: _Int = 0) -> Expression: ...
def channel_norm(
    x: Expression, mean: Expression, var: Expression, g: Expression, b: Expression, axis: _Int = 0, eps: float = 1e-5
) -> Expression: ...
