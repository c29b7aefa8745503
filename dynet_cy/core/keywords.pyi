from collections.abc import Callable
from typing import Any

def watch(called: Callable[..., Any]) -> None: ...
