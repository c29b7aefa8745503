# Written by tools/derive.py
from typing import Any

def describe() -> list[dict[str, Any]]:
    """The signatures that this process has met, as a list of dictionaries."""

def errors() -> list[str]:
    """Why a kernel could not be compiled or loaded."""

def forget_errors() -> None:
    """Try to compile kernels again."""
