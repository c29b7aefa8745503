from typing import Any

from dynet_cy.memory.storage import Plane
from dynet_cy.model.parameters import Parameters

CONSTANTS: tuple[str, ...]

def check_constants(cls: type) -> None: ...

class Plan:
    def __init__(self, stored: list[Parameters], planes: list[Plane]) -> None: ...
    def set(self, roles: list[int], group: list[int], settings: list[dict[str, Any]], skips: bool) -> None: ...
