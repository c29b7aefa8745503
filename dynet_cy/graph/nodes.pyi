from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import ComputationGraph, Expression
from dynet_cy.graph.origin import Origin

class GraphNode(NamedTuple):
    number: int
    op: str
    args: tuple[int, ...]
    shape: tuple[int, ...]
    batch_size: int
    parameter: str | None
    rows: tuple[int, ...]
    computed: bool
    batch: int | None
    origin: Origin | None
    scope: str
    integers: bool = ...

class NodeContents(NamedTuple):
    attrs: tuple[int, ...]
    items: tuple[int, ...]
    item_count: int
    entry: int | None

class PathNode(NamedTuple):
    number: int
    op: str
    args: tuple[int, ...]
    live: tuple[int, ...]
    shape: tuple[int, ...]
    batch_size: int
    attrs: tuple[int, ...]
    items: tuple[int, ...]
    item_count: int

def path(y: Expression, others: Iterable[Expression], first: int = 0) -> list[PathNode]: ...
def trained_rows(table: Expression, y: Expression) -> list[Expression]: ...
def drawn_again(graph: ComputationGraph, number: int, x: Expression) -> Expression: ...
def contents(graph: ComputationGraph, number: int) -> NodeContents: ...
def table(graph: ComputationGraph, number: int) -> npt.NDArray[np.float32]: ...
def nodes(graph: ComputationGraph) -> list[GraphNode]: ...
def graph_node(graph: ComputationGraph, number: int) -> GraphNode: ...
def nodes_around(expressions: Iterable[Expression]) -> list[GraphNode]: ...
def expression(graph: ComputationGraph, number: int) -> Expression: ...
def number(x: Expression) -> int: ...
def is_of(graph: ComputationGraph, x: Expression) -> bool: ...
def expect(x: object, needed: str, function: str, name: str) -> None: ...
