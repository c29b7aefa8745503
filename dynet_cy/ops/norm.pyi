# Written by tools/derive.py
from collections.abc import Sequence

from dynet_cy.graph.expressions import Expression

def layer_norm(
    x: Expression, g: Expression, b: Expression, axis: int | Sequence[int] | None = None, eps: float | None = None
) -> Expression: ...
def residual_layer_norm(
    x: Expression, r: Expression, g: Expression, b: Expression, dropout: float = 0.0, eps: float | None = None
) -> Expression: ...
def weight_norm(w: Expression, g: Expression) -> Expression: ...
