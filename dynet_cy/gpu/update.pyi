from typing import Any

from dynet_cy.gpu.clips import Clipping
from dynet_cy.graph import Expression
from dynet_cy.memory.storage import Plane

def prepare(stored: list[Expression], n_groups: int) -> None: ...
def squared_norm(stored: list[Expression]) -> float: ...
def update(
    stored: list[Expression],
    updated: list[bool],
    group_of: list[int],
    groups: list[dict[str, Any]],
    rule: int,
    states: list[Plane],
    sparse: bool,
    clipping: Clipping | None = None,
    scale: float = 1,
    skips: bool = False,
    rates: list[list[tuple[float, float]]] | None = None,
    late: bool = False,
) -> None: ...
def axpby(
    stored: list[Expression], a: float, b: float, source: Plane, target: Plane, clipping: Clipping | None = None
) -> None: ...
