# Written by tools/derive.py
from collections.abc import Callable, Iterable
from typing import TypeVar

from typing_extensions import ParamSpec

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

def checkpoint(
    function: Callable[_Arguments, _Result], /, *args: _Arguments.args, **settings: _Arguments.kwargs
) -> _Result:
    """Call a function, and let the graph drop the values that it computes until backward needs them."""

def drop_between(first: int, kept: Iterable[int]) -> None:
    """Let the current graph drop the values of its nodes from number `first` on, except some, as `checkpoint` does."""
