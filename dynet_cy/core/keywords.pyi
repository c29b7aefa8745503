from collections.abc import Callable
from typing import Any

def watch(called: Callable[..., Any]) -> None:
    """Let errors of a function or method say what to write, if it is one of C that takes keywords."""
