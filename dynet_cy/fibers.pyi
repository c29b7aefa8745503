from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, overload

_R = TypeVar("_R")

@overload
def batched_map(
    function: Callable[..., _R],
    *iterables: Iterable[Any],
    width: int | None = None,
    return_exceptions: Literal[False] = False,
) -> list[_R]: ...
@overload
def batched_map(
    function: Callable[..., _R], *iterables: Iterable[Any], width: int | None = None, return_exceptions: bool
) -> list[_R | Exception]: ...
