from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.memory.storage import Plane

def squared_norm(stored: list[Expression]) -> float: ...
def update(
    stored: list[Expression],
    moves: list[bool],
    rule: int,
    hyper: dict[str, Any],
    states: list[Plane],
    sparse: bool,
    decay: float,
) -> None: ...
