# Written by tools/derive.py
from typing import Any

def describe() -> list[dict[str, Any]]:
    """The ops that have a GPU op, as a list of dictionaries with their name and modules."""

def kernels() -> list[tuple[str, str]]:
    """The kernels that launchers use, as a list of (module, name)."""
