# Written by tools/derive.py
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import ComputationGraph, Expression
from dynet_cy.graph.origin import Origin

class GraphNode(NamedTuple):
    """A node of a graph."""

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

def nodes(graph: ComputationGraph) -> list[GraphNode]:
    """All nodes of a graph, in the order in which they were made, as a list of GraphNode."""

def nodes_around(expressions: Iterable[Expression]) -> list[GraphNode]:
    """All nodes of the graph to which some expressions belong, as from `nodes`."""

def graph_node(graph: ComputationGraph, number: int) -> GraphNode:
    """One node of a graph."""

class NodeContents(NamedTuple):
    """The data of a node besides its arguments."""

    attrs: tuple[int, ...]
    items: tuple[int, ...]
    item_count: int
    entry: int | None

def contents(graph: ComputationGraph, number: int) -> NodeContents:
    """The data of a node besides its arguments, as NodeContents."""

def table(graph: ComputationGraph, number: int) -> npt.NDArray[np.float32]:
    """The lookup table from which a node takes rows, as a new array with the rows first."""

def expression(graph: ComputationGraph, number: int) -> Expression:
    """The expression of a node."""

class PathNode(NamedTuple):
    """A node on a path from an expression to others that it depends on."""

    number: int
    op: str
    args: tuple[int, ...]
    live: tuple[int, ...]
    shape: tuple[int, ...]
    batch_size: int
    attrs: tuple[int, ...]
    items: tuple[int, ...]
    item_count: int

def path(y: Expression, others: Iterable[Expression], first: int = 0) -> list[PathNode]:
    """The nodes through which an expression depends on others, the last one first."""

def trained_rows(table: Expression, y: Expression) -> list[Expression]:
    """The expressions of rows of a lookup table, made before y in its graph, whose gradients reach the table."""

def drawn_again(graph: ComputationGraph, number: int, x: Expression) -> Expression:
    """The operation of a node that draws random numbers, with the same attributes and draws, of another argument."""

def number(x: Expression) -> int:
    """The number of an expression's node in its graph; see `GraphNode`."""

def device(x: Expression) -> str:
    """The device of an expression's node, for inputs beside it; "": that of its graph, where all nodes are."""

def is_of(graph: ComputationGraph, x: Expression) -> bool:
    """Whether an expression belongs to a graph."""

def expect(x: object, needed: str, function: str, name: str) -> None:
    """Warn once if an argument is the result of an op that gives other numbers than the function needs, also if such results have been added, joined, cut or given another shape in between."""
