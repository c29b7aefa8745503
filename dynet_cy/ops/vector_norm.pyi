# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]
_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

def squared_norm(x: Expression) -> Expression: ...
def l2_norm(x: Expression) -> Expression: ...
def norm(x: Expression, p: float = 2, axis: _Int | _Ints | None = None, keepdims: bool = False) -> Expression: ...
