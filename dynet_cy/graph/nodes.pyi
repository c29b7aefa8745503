from typing import NamedTuple

from dynet_cy.graph.graph import ComputationGraph, Expression

class GraphNode(NamedTuple):
    number: int
    op: str
    args: tuple[int, ...]
    shape: tuple[int, ...]
    batch_size: int
    parameter: str | None
    computed: bool

def nodes(graph: ComputationGraph) -> list[GraphNode]: ...
def expression(graph: ComputationGraph, number: int) -> Expression: ...
def number(x: Expression) -> int: ...
