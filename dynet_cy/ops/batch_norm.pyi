# Written by tools/derive.py
from typing import Any

import numpy as np
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]

def batch_moments(x: Expression, axis: _Int = 0) -> Expression: ...
def channel_norm(
    x: Expression, mean: Expression, var: Expression, g: Expression, b: Expression, axis: _Int = 0, eps: float = 1e-5
) -> Expression: ...
