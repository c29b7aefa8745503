from typing import NamedTuple

from dynet_cy.graph.expressions import ComputationGraph
from dynet_cy.graph.origin import Origin

class ValueUsage(NamedTuple):
    op: str
    bytes: int
    nodes: int
    shape: tuple[int, ...]
    origin: Origin | None
    scope: str

class DroppedUsage(NamedTuple):
    op: str
    bytes: int
    nodes: int
    again: int
    shape: tuple[int, ...]
    origin: Origin | None
    scope: str

class GraphUsage(NamedTuple):
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

def graph_usage(graph: ComputationGraph) -> GraphUsage: ...
def watch_peak() -> None: ...
def peak() -> GraphUsage | None: ...
