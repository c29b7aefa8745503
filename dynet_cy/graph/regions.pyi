from collections.abc import Callable, Iterable
from typing import TypeVar

from typing_extensions import ParamSpec

_P = ParamSpec("_P")
_R = TypeVar("_R")

def checkpoint(function: Callable[_P, _R], /, *args: _P.args, **settings: _P.kwargs) -> _R:
    """Call a function, and let the graph drop the values that it computes until backward needs them."""

def drop_between(first: int, kept: Iterable[int]) -> None:
    """Let the current graph drop the values of its nodes from number `first` on, except some, as `checkpoint` does."""
