"""The nodes of a graph, for inspection."""

import warnings
from typing import NamedTuple

import numpy as np

from libc.stdint cimport uint32_t

from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport ComputationGraph, Expression, claimed, owned, owner_of, parameter_here
from dynet_cy.graph.making cimport wrap
from dynet_cy.graph.origin cimport origin_at, scope_at
from dynet_cy.graph.structs cimport (
    COMPUTED, DROPPED, NO_BATCH, SHARED, Graph, Node, args_of, items_of, nodes_of, origin_of, state_of,
)
from dynet_cy.graph.table cimport Table, claim, graph_table, release
from dynet_cy.kernels.lazy_rows cimport all_current
from dynet_cy.memory.bridge cimport array_of, shape_of
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport op_at

from dynet_cy.graph.structs import operators, results
from dynet_cy.memory.storage import parameter_names

cdef Table* table_of_graphs = graph_table()

cdef dict ADVICE = {
    "scores": "the function with the scores themselves, without a softmax",
    "log-probabilities": "`dy.log_softmax(scores)`",
}
cdef set said = set()


class GraphNode(NamedTuple):
    """A node of a graph.

    Attributes:
        number: its number, counted from 0 in the order in which nodes are made.
        op: the name of its operation.
        args: the numbers of the nodes that are its arguments.
        shape: of its value, without the batch.
        batch_size: number of batch elements.
        parameter: the name of the parameter, or of the lookup table from which the node takes rows, else None.
        rows: these rows, one for each batch element; empty if it is not a lookup.
        computed: whether it has a value.
        batch: the call that computed it, counted from 0 in the order of execution; nodes with the same number ran
            together. None for parameters, and for nodes that have not been computed.
        origin: the line of the program that made it, an Origin of file, line and function, if `record_lines` or
            `detect_anomaly` recorded it, else None.
        scope: the scopes in which it was made, outermost first: "encoder/attention"; "" outside of any (`name_scope`).
    """

    number: int
    op: str
    args: tuple
    shape: tuple
    batch_size: int
    parameter: object
    rows: tuple
    computed: bool
    batch: object
    origin: object
    scope: str


def nodes(ComputationGraph graph not None):
    """All nodes of a graph, in the order in which they were made, as a list of GraphNode."""
    return list_of(graph)


def nodes_around(expressions not None):
    """All nodes of the graph to which some expressions belong, as from `nodes`.

    Raises:
        StaleExpressionError: an expression's graph was renewed.
        ValueError: there is no expression, or they belong to several graphs.
    """
    cdef Graph* g = NULL
    cdef Expression x
    for x in expressions:
        if g != NULL and g != x.graph():
            raise ValueError("the expressions belong to several graphs")
        g = x.graph()
    if g == NULL:
        raise ValueError("there is no expression")
    return list_of(owner_of(g))


cdef list list_of(ComputationGraph graph):
    claim(table_of_graphs, &graph.g)
    try:
        return described(&graph.g)
    finally:
        release(table_of_graphs, &graph.g)


cdef list described(Graph* g):
    cdef Node* x
    cdef uint32_t i, k
    found = []
    for i in range(g.n_nodes):
        x = nodes_of(g) + i
        args = tuple([args_of(g, x)[k] for k in range(x.nargs)])
        name, rows = None, ()
        if x.nargs == 0 and x.object != NULL:
            name = parameter_names.get((<Param*>x.object).id, "?")
            if not state_of(g)[i] & SHARED and x.item_count == 1:
                rows = tuple([items_of(g, x)[k] for k in range(x.dim.bd)])
        found.append(GraphNode(
            i, op_at(x.op).name.decode(), args, shape_of(&x.dim), x.dim.bd, name, rows,
            bool(state_of(g)[i] & COMPUTED), None if x.batch == NO_BATCH else x.batch, origin_at(origin_of(g, i)),
            scope_at(origin_of(g, i))))
    return found


class NodeContents(NamedTuple):
    """The data of a node besides its arguments.

    Attributes:
        attrs: the words of its attributes, as whole numbers; floats as their bits.
        items: its list, such as the indices of a selection, `item_count` words for each batch element.
        item_count: the number of words for each batch element.
        entry: the unique number of the parameter or table that it reads; None if it reads none.
    """

    attrs: tuple
    items: tuple
    item_count: int
    entry: object


def contents(ComputationGraph graph not None, uint32_t number):
    """The data of a node besides its arguments, as NodeContents.

    Raises:
        IndexError: the graph has no such node.
    """
    cdef Graph* g = &graph.g
    cdef Node* x
    cdef uint32_t i
    if number >= g.n_nodes:
        raise IndexError(f"contents: the graph has {g.n_nodes} nodes, and none with number {number}")
    x = nodes_of(g) + number
    return NodeContents(
        tuple([x.attrs[i].u for i in range(4)]),
        tuple([items_of(g, x)[i] for i in range(x.item_count * x.dim.bd)]),
        x.item_count,
        None if x.nargs or x.object == NULL else (<Param*>x.object).id)


def table(ComputationGraph graph not None, uint32_t number):
    """The lookup table from which a node takes rows, as a new array with the rows first.

    Raises:
        ValueError: the node is not a lookup.
    """
    cdef Node* x
    cdef Param* p
    if number >= graph.g.n_nodes or nodes_of(&graph.g)[number].nargs or nodes_of(&graph.g)[number].object == NULL:
        raise ValueError(f"table: node {number} is not a lookup")
    x = nodes_of(&graph.g) + number
    p = <Param*>x.object
    all_current(p)
    # Stored row by row, so as one array with the rows last.
    array = array_of(parameter_here(p, False), (*shape_of(&p.dim), p.rows))
    return np.moveaxis(array, -1, 0) * np.float32(p.factor)


def expression(ComputationGraph graph not None, uint32_t number):
    """The expression of a node.

    Raises:
        IndexError: the graph has no such node, or has dropped it.
    """
    claim(table_of_graphs, &graph.g)
    try:
        if number >= graph.g.n_nodes:
            raise IndexError(f"expression: the graph has {graph.g.n_nodes} nodes, and none with number {number}")
        if state_of(&graph.g)[number] & DROPPED:
            raise IndexError(f"expression: node {number} has been dropped; its graph only goes forward")
        return wrap(&graph.g, number)
    finally:
        release(table_of_graphs, &graph.g)


operators["node"] = expression


def number(Expression x not None):
    """The number of an expression's node in its graph; see `GraphNode`.

    Raises:
        StaleExpressionError: the expression's graph was renewed.
    """
    own = owned(x)
    own.graph()
    return own.index


def expect(x, str needed, str function, str name):
    """Warn once if an argument is the result of an op that gives other numbers than the function needs.

    Args:
        x: the argument; anything but an expression passes.
        needed: "scores" or "log-probabilities".
        function, name: the function and its argument, for the message.
    """
    cdef ComputationGraph graph
    cdef Expression own
    if follows_dynet() or not isinstance(x, Expression) or not results:
        return
    own = owned(x)
    graph = claimed(own)
    try:
        given = results.get(op_at(nodes_of(&graph.g)[own.index].op).id)
    finally:
        release(table_of_graphs, &graph.g)
    if given is None or given == needed or (function, name, given) in said:
        return
    said.add((function, name, given))
    warnings.warn(
        f"{function}: {name} should be {needed}, and is an expression of {given}: {x!r}; write {ADVICE[needed]}",
        RuntimeWarning, stacklevel=1)
