from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Indices: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

class LookupExpression(Expression):
    def set(self, index: int | np.integer[Any] | _Indices) -> None: ...
