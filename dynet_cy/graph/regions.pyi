from collections.abc import Callable, Iterable
from typing import TypeVar

from typing_extensions import ParamSpec

_P = ParamSpec("_P")
_R = TypeVar("_R")

def checkpoint(function: Callable[_P, _R], /, *args: _P.args, **settings: _P.kwargs) -> _R: ...
def drop_between(first: int, kept: Iterable[int]) -> None: ...
