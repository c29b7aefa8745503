from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.memory.storage import Plane

class Clipping:
    def __new__(cls, device: int) -> Clipping: ...
    def forget(self) -> None: ...
    def wait(self) -> None: ...
    def clips(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def norm(self) -> float: ...

def squared_norm(stored: list[Expression]) -> float: ...
def update(
    stored: list[Expression],
    moves: list[bool],
    rule: int,
    hyper: dict[str, Any],
    states: list[Plane],
    sparse: bool,
    decay: float,
    clipping: Clipping | None = None,
    scale: float = 1,
    threshold: float = 0,
) -> None: ...
def blend(
    stored: list[Expression], a: float, b: float, source: Plane, target: Plane, clipping: Clipping | None = None
) -> None: ...
