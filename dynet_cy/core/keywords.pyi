# Written by tools/derive.py
from collections.abc import Callable
from typing import Any

def watch(called: Callable[..., Any]) -> None:
    """Add advice to the errors of a function or method in C that takes keywords."""
