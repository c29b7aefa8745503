from collections.abc import Callable
from typing import TypeVar

from typing_extensions import ParamSpec

P = ParamSpec("P")
R = TypeVar("R")

def checkpoint(function: Callable[P, R], /, *args: P.args, **settings: P.kwargs) -> R: ...
