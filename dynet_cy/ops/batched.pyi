# Written by tools/derive.py
import numpy.typing as npt

from dynet_cy.graph.expressions import Expression

def matmul(
    x: Expression | npt.ArrayLike, y: Expression | npt.ArrayLike, transpose_x: bool = False, transpose_y: bool = False
) -> Expression: ...
