"""Values of several expressions, computed together."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from dynet_cy.graph.computing cimport any_uncomputed, compute_nodes, forget_values
from dynet_cy.graph.expressions cimport Expression, claimed, compact_if_due, owned
from dynet_cy.graph.graph cimport ComputationGraph
from dynet_cy.graph.structs cimport Graph
from dynet_cy.graph.table cimport Table, graph_table, release

from dynet_cy.graph.expressions import StaleExpressionError

cdef Table* table = graph_table()


cdef list compute_all(object expressions, str op, bint recalculate):
    """Compute expressions of one graph together, so that they batch with each other."""
    cdef list xs = list(expressions)
    cdef uint32_t i, n = len(xs)
    cdef uint32_t* targets
    cdef ComputationGraph graph
    cdef Graph* g
    for i in range(n):
        if not isinstance(xs[i], Expression):
            raise TypeError(f"{op}: argument {i} must be an Expression, not {type(xs[i]).__name__}")
    if n == 0:
        return xs
    xs = [owned(x) for x in xs]
    targets = <uint32_t*>malloc(n * sizeof(uint32_t))
    if targets == NULL:
        raise MemoryError(f"{op}: {n} expressions")
    try:
        graph = claimed(xs[0])
    except BaseException:
        free(targets)
        raise
    g = &graph.g
    try:
        find(g, xs, targets, op)
        if recalculate:
            forget_values(g)
        while compute_nodes(g, targets, n, xs):
            find(g, xs, targets, op)
            if not any_uncomputed(g, targets, n):
                return xs
        compact_if_due(g)
    finally:
        release(table, g)
        free(targets)
    return xs


cdef int find(Graph* g, list xs, uint32_t* targets, str op) except -1:
    """The numbers that expressions have in their graph now."""
    cdef uint32_t i
    for i in range(<uint32_t>len(xs)):
        if (<Expression>xs[i]).graph() != g:
            raise StaleExpressionError(f"{op}: argument {i} is of another graph than argument 0")
        targets[i] = (<Expression>xs[i]).index
    return 0


def forward(exps, recalculate=False):
    """Compute expressions of one graph together.

    Args:
        exps: a list of expressions.
        recalculate: compute all of the graph again (default: False).

    Example:
        >>> x, y = dy.inputVector([1, 2]), dy.inputVector([3, 4])
        >>> dy.forward([dy.sum_elems(x), dy.sum_elems(y)])
    """
    compute_all(exps, "forward", recalculate)


def npvalues(exps, recalculate=False):
    """The values of expressions of one graph, computed together, as arrays: see `npvalue`.

    Args:
        exps: the expressions, of one graph.
        recalculate: compute all nodes again, even those that have values (default: no).

    Raises:
        TypeError: one of them is not an expression.

    Example:
        >>> dy.npvalues([dy.inputVector([1, 2]), dy.inputVector([3])])
        [array([1., 2.]), array([3.])]
    """
    return [x.npvalue() for x in compute_all(exps, "npvalues", recalculate)]


def values(exps, recalculate=False):
    """The values of expressions of one graph, computed together: see `value`.

    Args:
        exps: the expressions, of one graph.
        recalculate: compute all nodes again, even those that have values (default: no).

    Raises:
        TypeError: one of them is not an expression.

    Example:
        >>> dy.values([dy.sum_elems(dy.inputVector([1, 2])), dy.scalarInput(3)])
        [3.0, 3.0]
    """
    return [x.value() for x in compute_all(exps, "values", recalculate)]
