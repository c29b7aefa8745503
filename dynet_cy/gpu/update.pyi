# Written by tools/derive.py
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.gpu.memory import Clipping
from dynet_cy.graph.expressions import Expression
from dynet_cy.memory.storage import Plane
from dynet_cy.train.interfaces import Plan

def prepare(stored: list[Expression], n_groups: int) -> None:
    """Load the kernels and allocate the tables for an update of these parameters, which are on one device."""

def squared_norm(stored: list[Expression]) -> float:
    """The sum of the squares of the gradients of parameters of one storage on a device."""

def update(plan: Plan, clipping: Clipping | None, rates: list[list[tuple[float, float]]] | None) -> None:
    """Make the part of an update that is on the device of its first entry that is not frozen."""

def axpby(
    stored: list[Expression], a: float, b: float, source: Plane, target: Plane, clipping: Clipping | None = None
) -> None:
    """target = a target + b source, for the numbers of parameters in two planes."""

class FlatBuffer:
    """Parts of a plane, and a buffer in which they are laid side by side."""

    @property
    def size(self) -> int: ...
    @property
    def starts(self) -> list[int]: ...
    def __init__(self, parts: list[tuple[Expression, npt.NDArray[np.uint32] | None]]) -> None: ...
    def fetch(self, plane: Plane) -> npt.NDArray[np.float32]:
        """The numbers, as a new float32 array."""
    def send(self, plane: Plane, numbers: Any) -> None:
        """Write numbers, in the order of `fetch`, back to the plane."""
