from typing import NamedTuple

from dynet_cy.graph.expressions import ComputationGraph
from dynet_cy.graph.origin import Origin

class ValueUsage(NamedTuple):
    """The values of one operation that one line of the program made within one scope."""

    op: str
    bytes: int
    nodes: int
    shape: tuple[int, ...]
    origin: Origin | None
    scope: str

class DroppedUsage(NamedTuple):
    """The values of one operation and line that were dropped after forward, and those computed again since."""

    op: str
    bytes: int
    nodes: int
    again: int
    shape: tuple[int, ...]
    origin: Origin | None
    scope: str

class GraphUsage(NamedTuple):
    """Memory usage of a graph, in bytes."""

    values: int
    gradients: int
    scratch: int
    nodes: int
    kept: int
    by_value: list[ValueUsage]
    dropped: list[DroppedUsage] = ...
    again_seconds: float = ...
    missing: int = ...
    limit: int = ...

def graph_usage(graph: ComputationGraph) -> GraphUsage:
    """The current memory usage of a graph, as a GraphUsage."""

def watch_peak() -> None:
    """Forget the peak so far."""

def peak() -> GraphUsage | None:
    """The largest memory usage of a graph since `watch_peak`, as a GraphUsage; None if no pass was profiled."""
