from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import Expression

def forward(exps: Iterable[Expression], recalculate: bool = False) -> None: ...
def npvalues(exps: Iterable[Expression], recalculate: bool = False) -> list[npt.NDArray[np.float64]]: ...
def values(exps: Iterable[Expression], recalculate: bool = False) -> list[Any]: ...
