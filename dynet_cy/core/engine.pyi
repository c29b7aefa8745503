# Written by tools/derive.py
from collections.abc import Mapping
from contextlib import AbstractContextManager

def stats(of: str = "", reset: bool = False) -> dict[str, int]:
    """What the engine has counted, in all threads."""

def tune(name: str, value: int) -> int:
    """Set a number that decides how the engine works, for passes that begin later, in all threads."""

def tuned(values: Mapping[str, int]) -> AbstractContextManager[None]:
    """Set numbers as `tune` does, by name, within a `with` block."""
