# Written by tools/derive.py
from typing import Any, overload

class DimensionError(ValueError):
    """Shapes of arguments that do not fit an op."""

@overload
def describe(name: None = None) -> list[dict[str, Any]]:
    """Facts about one op, or about all of them, as dictionaries."""

@overload
def describe(name: str) -> dict[str, Any]:
    """Facts about one op, or about all of them, as dictionaries."""
