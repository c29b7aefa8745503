# Written by tools/derive.py
from collections.abc import Callable
from typing import Any

operators: dict[str, Callable[..., Any]]
results: dict[int, str]
carriers: dict[int, bool]

def give_attributes(cls: type, attributes: dict[str, Any]) -> None:
    """Set attributes of a class, also of one of Cython, where Python's `setattr` refuses."""

def set_place(cls: type, place: str) -> None:
    """Set the module that a class says it is of, also of one of Cython, where Python's `setattr` refuses."""
