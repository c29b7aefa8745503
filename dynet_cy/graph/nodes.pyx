"""The nodes of a graph, for inspection."""

import warnings
from typing import NamedTuple

import numpy as np

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport INTEGERS
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport ComputationGraph, Expression, claimed, owned, owner_of, parameter_here
from dynet_cy.graph.making cimport add_node, wrap
from dynet_cy.graph.origin cimport origin_at, scope_at
from dynet_cy.graph.structs cimport (
    COMPUTED, DROPPED, NO_BATCH, SHARED, TRAINABLE, Extra, Graph, Node, args_of, device_of, is_dropped, items_of,
    no_extra, nodes_of, origin_of, state_of,
)
from dynet_cy.graph.table cimport Table, claim, current_graph, graph_table, release
from dynet_cy.kernels.lazy_rows cimport all_current
from dynet_cy.memory.bridge cimport array_of, shape_of
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport op_at

from dynet_cy.core.devices import device_name
from dynet_cy.graph.structs import carriers, operators, results
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
        computed: whether it has been computed. The graph may have dropped its value, and computes it again if asked.
        batch: the call that computed it, counted from 0 in the order of execution; nodes with the same number ran
            together. None for parameters, and for nodes that have not been computed.
        origin: the line of the program that made it, an Origin of file, line and function, if `record_lines` or
            `detect_anomaly` recorded it, else None.
        scope: the scopes in which it was made, outermost first: "encoder/attention"; "" outside of any (`name_scope`).
        integers: whether its elements are integers (int32) rather than floats.
    """

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
    integers: bool = False


def nodes(ComputationGraph graph not None) -> list[GraphNode]:
    """All nodes of a graph, in the order in which they were made, as a list of GraphNode."""
    return list_of(graph)


def nodes_around(expressions not None: Iterable[Expression]) -> list[GraphNode]:
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


def graph_node(ComputationGraph graph not None, uint32_t number) -> GraphNode:
    """One node of a graph.

    Raises:
        IndexError: the graph has no such node.
    """
    claim(table_of_graphs, &graph.g)
    try:
        if number >= graph.g.n_nodes:
            raise IndexError(f"graph_node: the graph has {graph.g.n_nodes} nodes, and none with number {number}")
        return described_node(&graph.g, number)
    finally:
        release(table_of_graphs, &graph.g)


cdef list list_of(ComputationGraph graph):
    claim(table_of_graphs, &graph.g)
    try:
        return described(&graph.g)
    finally:
        release(table_of_graphs, &graph.g)


cdef list described(Graph* g):
    cdef uint32_t i
    return [described_node(g, i) for i in range(g.n_nodes)]


cdef object described_node(Graph* g, uint32_t i):
    cdef Node* x = nodes_of(g) + i
    cdef uint32_t k
    args = tuple([args_of(g, x)[k] for k in range(x.nargs)])
    name, rows = None, ()
    if x.object != NULL:
        name = parameter_names.get((<Param*>x.object).id, "?")
        if not state_of(g)[i] & SHARED and x.item_count == 1:
            rows = tuple([items_of(g, x)[k] for k in range(x.dim.bd)])
    return GraphNode(
        i, op_at(x.op).name.decode(), args, shape_of(&x.dim), x.dim.bd, name, rows,
        bool(state_of(g)[i] & COMPUTED) or is_dropped(g, i),
        None if x.batch == NO_BATCH else x.batch, origin_at(origin_of(g, i)),
        scope_at(origin_of(g, i)), x.dim.type == INTEGERS)


class NodeContents(NamedTuple):
    """The data of a node besides its arguments.

    Attributes:
        attrs: the words of its attributes, as whole numbers; floats as their bits.
        items: its list, such as the indices of a selection, `item_count` words for each batch element.
        item_count: the number of words for each batch element.
        entry: the unique number of the parameter or table that it reads; None if it reads none.
    """

    attrs: tuple[int, ...]
    items: tuple[int, ...]
    item_count: int
    entry: int | None


def contents(ComputationGraph graph not None, uint32_t number) -> NodeContents:
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
        None if x.object == NULL else (<Param*>x.object).id)


def table(ComputationGraph graph not None, uint32_t number) -> npt.NDArray[np.float32]:
    """The lookup table from which a node takes rows, as a new array with the rows first.

    Raises:
        ValueError: the node is not a lookup.
    """
    cdef Node* x
    cdef Param* p
    if number >= graph.g.n_nodes or nodes_of(&graph.g)[number].object == NULL:
        raise ValueError(f"table: node {number} is not a lookup")
    x = nodes_of(&graph.g) + number
    p = <Param*>x.object
    all_current(p)
    # Stored row by row, so as one array with the rows last.
    array = array_of(parameter_here(p, False), (*shape_of(&p.dim), p.rows))
    return np.moveaxis(array, -1, 0) * np.float32(p.factor)


def expression(ComputationGraph graph not None, uint32_t number) -> Expression:
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


# ---- paths from an expression to others ----------------------------------------------

class PathNode(NamedTuple):
    """A node on a path from an expression to others that it depends on.

    Attributes:
        number: the number of the node; its arguments have smaller ones.
        op: the name of its operation.
        args: the numbers of its arguments.
        live: the places of the arguments through which it depends on the others.
        shape: of its value, without the batch.
        batch_size: number of batch elements.
        attrs, items, item_count: see `NodeContents`.
    """

    number: int
    op: str
    args: tuple[int, ...]
    live: tuple[int, ...]
    shape: tuple[int, ...]
    batch_size: int
    attrs: tuple[int, ...]
    items: tuple[int, ...]
    item_count: int


cdef enum:
    ON_THE_WAY = 1                  # one of the others, or depends on one
    NEEDED = 2


def path(Expression y not None, others: Iterable[Expression], uint32_t first=0) -> list[PathNode]:
    """The nodes through which an expression depends on others, the last one first.

    Args:
        y: the expression.
        others: expressions of the same graph.
        first: nodes with smaller numbers are left out.

    Returns:
        A list of PathNode.

    Raises:
        RuntimeError: the graph was renewed with ``forward_only=True``.
        StaleExpressionError: the graph of an expression was renewed.
        ValueError: an expression belongs to another graph, or the graph is not the current one.
    """
    own = owned(y)
    cdef Graph* g = own.graph()
    cdef Expression other
    cdef list ends = []
    if g.forward_only:
        raise RuntimeError("gradients: a graph with forward_only=True does not keep the data for it")
    if g != current_graph():
        raise ValueError("gradients: the expression belongs to another graph than the current one")
    for x in others:
        other = owned(x)
        if other.graph() != g:
            raise ValueError("gradients: the expressions belong to several graphs")
        ends.append(other.index)
    claim(table_of_graphs, g)
    try:
        return path_between(g, own.index, ends, first)
    finally:
        release(table_of_graphs, g)


cdef list path_between(Graph* g, uint32_t y, list ends, uint32_t first):
    cdef uint8_t[::1] marks = bytearray(y + 1)
    cdef const uint32_t* args
    cdef Node* x
    cdef uint32_t end, i, k, back
    cdef list found = []
    for end in ends:
        if end <= y:
            marks[end] = ON_THE_WAY
    for i in range(first, y + 1):
        x = nodes_of(g) + i
        args = args_of(g, x)
        for k in range(x.nargs):
            marks[i] |= marks[args[k]]
    marks[y] |= NEEDED
    for back in range(y + 1 - first if y >= first else 0):
        i = y - back
        if marks[i] != (ON_THE_WAY | NEEDED):
            continue
        x = nodes_of(g) + i
        args = args_of(g, x)
        live = tuple([k for k in range(x.nargs) if marks[args[k]]])
        for k in live:
            marks[args[k]] |= NEEDED
        if live:
            found.append(PathNode(
                i, op_at(x.op).name.decode(), tuple([args[k] for k in range(x.nargs)]), live, shape_of(&x.dim),
                x.dim.bd, tuple([x.attrs[k].u for k in range(4)]),
                tuple([items_of(g, x)[k] for k in range(x.item_count * x.dim.bd)]), x.item_count))
    return found


def trained_rows(Expression table not None, Expression y not None) -> list[Expression]:
    """The expressions of rows of a lookup table, made before y in its graph, whose gradients reach the table.

    Args:
        table: the expression of the whole table.
        y: an expression of the same graph.
    """
    own, last = owned(table), owned(y)
    cdef Graph* g = own.graph()
    cdef Node* x
    cdef uint32_t i
    cdef list found = []
    claim(table_of_graphs, g)
    try:
        for i in range(last.index + 1):
            x = nodes_of(g) + i
            if x.object == nodes_of(g)[own.index].object and (x.nargs or x.item_count) and state_of(g)[i] & TRAINABLE:
                found.append(wrap(g, i))
        return found
    finally:
        release(table_of_graphs, g)


def drawn_again(ComputationGraph graph not None, uint32_t number, Expression x not None) -> Expression:
    """The operation of a node that draws random numbers, with the same attributes and draws, of another argument.

    Args:
        graph: the graph.
        number: a node of one argument.
        x: an expression of the shape and batch size of that argument.
    """
    cdef Graph* g = &graph.g
    cdef uint32_t a
    cdef uint32_t draws
    cdef uint64_t key
    cdef Extra extra = no_extra()
    cdef const uint32_t* items
    own = owned(x)
    claim(table_of_graphs, g)
    try:
        memcpy(extra.attrs, nodes_of(g)[number].attrs, sizeof(extra.attrs))
        items = items_of(g, nodes_of(g) + number)
        draws, key = g.draws, g.draw_key
        g.draws, g.draw_key = items[0], items[1] | <uint64_t>items[2] << 32
        a = own.index
        try:
            return wrap(g, add_node(g, op_at(nodes_of(g)[number].op), &a, 1, &extra))
        finally:
            g.draws, g.draw_key = draws, key
    finally:
        release(table_of_graphs, g)


def number(Expression x not None) -> int:
    """The number of an expression's node in its graph; see `GraphNode`.

    Raises:
        StaleExpressionError: the expression's graph was renewed.
    """
    own = owned(x)
    own.graph()
    return own.index


def device(Expression x not None) -> str:
    """The device of an expression's node, for inputs beside it; "": that of its graph, where all nodes are."""
    own = owned(x)
    cdef Graph* g = own.graph()
    return device_name(device_of(g, own.index)) if g.multi_device else ""


def is_of(ComputationGraph graph not None, Expression x not None) -> bool:
    """Whether an expression belongs to a graph."""
    return owned(x).version == graph.g.version


cdef object kind_of(Graph* g, uint32_t index, dict known):
    """What the numbers of a result are, "probabilities" or "scores"; None if that is not known.

    Results of ops that carry the numbers of their arguments are what these are. Sums are scores if one argument is.
    """
    cdef const Node* x = nodes_of(g) + index
    cdef const uint32_t* args = args_of(g, x)
    cdef list waiting = [index]
    cdef uint32_t i, k
    while waiting:
        i = waiting[len(waiting) - 1]
        x = nodes_of(g) + i
        op_id = op_at(x.op).id
        if op_id in carriers and i not in known:
            args = args_of(g, x)
            later = [args[k] for k in range(x.nargs) if args[k] not in known]
            if later:
                waiting += later
                continue
            kinds = {known[args[k]] for k in range(x.nargs)}
            if carriers[op_id]:
                known[i] = kinds.pop() if len(kinds) == 1 else None
            else:
                known[i] = "scores" if "scores" in kinds else None
        else:
            known.setdefault(i, results.get(op_id))
        waiting.pop()
    return known[index]


def expect(x: object, str needed, str function, str name):
    """Warn once if an argument is the result of an op that gives other numbers than the function needs, also if such
    results have been added, joined, cut or given another shape in between.

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
        given = kind_of(&graph.g, own.index, {})
    finally:
        release(table_of_graphs, &graph.g)
    if given is None or given == needed or (function, name, given) in said:
        return
    said.add((function, name, given))
    warnings.warn(
        f"{function}: {name} should be {needed}, and is an expression of {given}: {x!r}; write {ADVICE[needed]}",
        RuntimeWarning, stacklevel=1)
