# Written by tools/derive.py
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Literal, TypeVar, overload

from dynet_cy.graph.expressions import ComputationGraph, SharedRequests

_Result = TypeVar("_Result")

@overload
def batched_map(
    function: Callable[..., _Result],
    *iterables: Iterable[Any],
    width: int | None = None,
    return_exceptions: Literal[False] = False,
) -> list[_Result]:
    """Call a function for each item, and compute the values that the calls request together."""

@overload
def batched_map(
    function: Callable[..., _Result], *iterables: Iterable[Any], width: int | None = None, return_exceptions: bool
) -> list[_Result | Exception]:
    """Call a function for each item, and compute the values that the calls request together."""

class Fibers(SharedRequests):
    """Calls that run as fibers on one graph, and the values they wait for, which `Expression.value` and others request."""

    @property
    def passes(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def cut(self) -> bool: ...
    def __init__(self, graph: ComputationGraph, longest_pass: float = 0) -> None: ...
    def leave(self) -> None:
        """Make the graph an ordinary one again, which computes values when they are requested."""
    def begin_call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: Context,
        receiver: Callable[[Any, BaseException | None], object],
    ) -> Any:
        """Call a function as a fiber, up to the first value that it requests."""
    def stop(self, item: Any) -> None:
        """End a call with `GreenletExit`, which runs its ``finally`` blocks; its receiver is not called."""
    def turn(self) -> None:
        """Run all items that can continue, and then compute the values they wait for in one pass."""
    def finish(self) -> None:
        """Compute what a pass that ended early has left."""
