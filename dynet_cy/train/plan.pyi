# Written by tools/derive.py
from typing import Any

from typing_extensions import Self

from dynet_cy.memory.storage import Plane
from dynet_cy.model.parameters import Parameters

CONSTANTS: tuple[str, ...]

def check_constants(cls: type) -> list[tuple[int, str]]:
    """Check that a trainer class has a value for each constant that its rule reads, and for no other."""

class Plan:
    """An update of parameters and tables, given with the planes of the rule's state."""
    def __new__(cls, stored: list[Parameters], planes: list[Plane]) -> Self: ...
    def set(self, roles: list[int], group: list[int], settings: list[dict[str, Any]], skips: bool) -> None:
        """Set the role and the number of the group of each entry, and the settings of groups, as dicts: for tests."""
