from typing import Any

from dynet_cy.memory.storage import Plane
from dynet_cy.model.parameters import Parameters

CONSTANTS: tuple[str, ...]

def check_constants(cls: type) -> list[tuple[int, str]]: ...

class Plan:
    def __new__(cls, stored: list[Parameters], planes: list[Plane]) -> Plan: ...
    def set(self, roles: list[int], group: list[int], settings: list[dict[str, Any]], skips: bool) -> None: ...
