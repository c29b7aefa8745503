"""Regions of a graph: nodes whose values are dropped after forward, and computed again in backward."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.structs cimport Graph, add_region
from dynet_cy.graph.table cimport Table, current_graph, graph_table, hold, let_go
from dynet_cy.memory.arena cimport out_of_memory

cdef Table* table = graph_table()


def checkpoint(
    function: Callable[_Arguments, _Result], /, *args: _Arguments.args, **settings: _Arguments.kwargs
) -> _Result:
    """Call a function, and let the graph drop the values that it computes until backward needs them.

    The result is that of the call, to the last bit, and so are gradients. But of the nodes that the
    function makes, only those values are kept that other nodes read, and some between, so that memory
    is least. Backward computes the others again, a part of them at a time: that takes one more forward
    pass over them. Calls nest.

    A value inside that the program asks for after forward is computed again, and kept from then on.
    That needs unchanged parameters, and so does backward: call it before an update. Gradients are
    there after backward, as without `checkpoint`.

    Nothing is dropped of what runs before the function returns (`value()` inside it, graphs that
    compute immediately), and there is nothing to drop in forward-only graphs. On a GPU, and in graphs of
    several passes, gradients are sums of other parts, so they may round differently (docs/memory.md).

    Args:
        function: makes expressions of the current graph.
        args: its arguments.
        settings: its keyword arguments.

    Returns:
        What the function returns.

    Raises:
        RuntimeError: by `backward` and `value()`: parameters have changed since the values were dropped.

    Example:
        >>> W = model.add_parameters((4, 4))
        >>> def layer(x):
        ...     return dy.tanh(W * dy.tanh(W * x))
        >>> h = dy.inputVector([1, 2, 3, 4])
        >>> for _ in range(3):
        ...     h = dy.checkpoint(layer, h)
        >>> dy.squared_norm(h).backward()
    """
    cdef Graph* g = current_graph()
    cdef uint64_t renewal = g.renewal
    cdef uint32_t slot = g.slot, first = g.n_nodes
    cdef bint noted = True
    result = function(*args, **settings)
    hold(table, slot)
    if table.graphs[slot] == g and g.renewal == renewal and not g.forward_only:
        noted = add_region(g, first, g.n_nodes)
    let_go(table, slot)
    if not noted:
        out_of_memory("a region of the graph")
    return result


def drop_between(uint32_t first, kept: Iterable[int]):
    """Let the current graph drop the values of its nodes from number `first` on, except some, as `checkpoint` does.

    Args:
        first: the number of a node.
        kept: the numbers of the nodes that are kept, in rising order.
    """
    cdef Graph* g = current_graph()
    cdef uint32_t slot = g.slot, end
    cdef bint noted = True
    if g.forward_only:
        return
    for number in (*kept, g.n_nodes):
        end = number
        if first < end:
            hold(table, slot)
            noted = noted and add_region(g, first, end)
            let_go(table, slot)
        first = end + 1
    if not noted:
        out_of_memory("a region of the graph")
