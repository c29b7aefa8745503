# Written by tools/derive.py
from collections.abc import Sequence

from dynet_cy.graph.graph import Expression

def layer_norm(
    x: Expression, g: Expression, b: Expression, axis: int | Sequence[int] | None = None, eps: float | None = None
) -> Expression: ...
def weight_norm(w: Expression, g: Expression) -> Expression: ...
