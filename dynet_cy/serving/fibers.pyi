from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Literal, TypeVar, overload

from dynet_cy.graph.expressions import ComputationGraph, SharedRequests

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

class Fibers(SharedRequests):
    def __init__(self, graph: ComputationGraph, longest_pass: float = 0) -> None: ...
    @property
    def passes(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def cut(self) -> bool: ...
    def leave(self) -> None: ...
    def begin_call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: Context,
        receiver: Callable[[Any, BaseException | None], object],
    ) -> Any: ...
    def stop(self, item: Any) -> None: ...
    def turn(self) -> None: ...
    def finish(self) -> None: ...
