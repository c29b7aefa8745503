"""Memory usage of graphs: arenas, and values by operation and line of the program."""

from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.tensor cimport total_of
from dynet_cy.graph.expressions cimport ComputationGraph
from dynet_cy.graph.origin cimport origin_at, scope_at
from dynet_cy.graph.structs cimport (
    COMPUTED, DONATED, DROPPED, GRAPH_ARENAS, GRAPH_ARRAYS, NO_BATCH, TRANSIENT, VIEWS, Graph, Node, batches_of,
    is_dropped, nodes_of, origin_of, state_of,
)
from dynet_cy.graph.table cimport claim, graph_table, release
from dynet_cy.memory.arena cimport out_of_memory
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.registry cimport op_at

from dynet_cy.core.amounts import size_text
from dynet_cy.graph.origin import shown_file


cdef enum:
    NAMED = 3           # largest values that an error names


class ValueUsage(NamedTuple):
    """The values of one operation that one line of the program made within one scope.

    Attributes:
        op: the name of the operation.
        bytes: what the values take in all.
        nodes: how many they are.
        shape: the shape of the largest of them; a batch size is its last number.
        origin: the line of the program (`dynet_cy.graph.origin.Origin`); None if lines were not recorded.
        scope: the scope (`name_scope`); empty outside of any.
    """

    op: str
    bytes: int
    nodes: int
    shape: tuple[int, ...]
    origin: Origin | None
    scope: str


class DroppedUsage(NamedTuple):
    """The values of one operation and line that were dropped after forward, and those computed again since.

    Attributes:
        op: the name of the operation.
        bytes: what the values would take if they were kept.
        nodes: how many they are.
        again: how many were computed again; one that was computed twice counts twice.
        shape, origin, scope: as those of ValueUsage.
    """

    op: str
    bytes: int
    nodes: int
    again: int
    shape: tuple[int, ...]
    origin: Origin | None
    scope: str


class GraphUsage(NamedTuple):
    """Memory usage of a graph, in bytes.

    Attributes:
        values: results of operations, and inputs.
        gradients: gradients of results.
        scratch: gathered arguments, numbers that forward saves for backward, and working memory.
        nodes: nodes, their arguments and indices, the plan, and tables for devices.
        kept: memory above the bump pointers, which the next graph uses.
        by_value: the values by operation and line, the largest first: a list of ValueUsage.
        dropped: values that were dropped after forward, in the same way: a list of DroppedUsage.
        again_seconds: how long computing them again has taken.
        missing: how many more bytes would have let all values be kept, if they were dropped for a lack of memory.
        limit: the limit of the graph itself (``renew_cg(mem=...)``); 0 if it has none.
    """

    values: int
    gradients: int
    scratch: int
    nodes: int
    kept: int
    by_value: list[ValueUsage]
    dropped: list[DroppedUsage] = []
    again_seconds: float = 0.0
    missing: int = 0
    limit: int = 0


cdef inline bint has_own_value(const Graph* g, uint32_t i) noexcept nogil:
    """Whether a node has a value in the memory of the graph: no parameter, no view, nothing that has been dropped."""
    cdef const Node* x = &nodes_of(g)[i]
    if x.val == NULL or state_of(g)[i] & DROPPED:
        return False
    if x.batch == NO_BATCH:
        return state_of(g)[i] & COMPUTED
    # Backward may have donated it, but it has the memory.
    return batches_of(g)[x.batch].form != VIEWS and (not is_dropped(g, i) or batches_of(g)[x.batch].lifetime & DONATED)


cdef inline bint was_dropped(const Graph* g, uint32_t i) noexcept nogil:
    """Whether the plan has had the value of a node dropped, to compute it again, wherever it is now."""
    cdef uint32_t b = nodes_of(g)[i].batch
    if b == NO_BATCH or batches_of(g)[b].form == VIEWS:
        return False
    return batches_of(g)[b].planned != 0 and batches_of(g)[b].planned != TRANSIENT


cdef list value_usage(const Graph* g):
    """The values of a graph by operation and line, the largest first."""
    return [usage_of(g, row) for row in by_line(g, False)]


cdef list dropped_usage(const Graph* g):
    """The dropped values of a graph by operation and line, the largest first."""
    found = []
    if g.stretches.top:
        for row in by_line(g, True):
            x = usage_of(g, row)
            found.append(DroppedUsage(x.op, x.bytes, x.nodes, row[3], x.shape, x.origin, x.scope))
    return found


cdef list by_line(const Graph* g, bint dropped):
    """By op and line: bytes, nodes, the largest node, how many were computed again; the largest first."""
    cdef dict found = {}
    cdef const Node* x
    cdef uint32_t i
    cdef size_t size
    for i in range(g.n_nodes):
        if not (was_dropped(g, i) if dropped else has_own_value(g, i)):
            continue
        x = &nodes_of(g)[i]
        size = total_of(&x.dim) * sizeof(float)
        key = <uint64_t>origin_of(g, i) << 10 | x.op
        again = batches_of(g)[x.batch].again if dropped else 0
        so_far = found.get(key)
        if so_far is None:
            found[key] = [size, 1, i, again]
        else:
            so_far[0] += size
            so_far[1] += 1
            so_far[3] += again
            if size > total_of(&nodes_of(g)[<uint32_t>so_far[2]].dim) * sizeof(float):
                so_far[2] = i
    return sorted(found.values(), key=_largest_first)


def _largest_first(row):
    return -row[0], row[2]


cdef object usage_of(const Graph* g, list row):
    cdef uint32_t largest = row[2]
    cdef const Node* x = &nodes_of(g)[largest]
    cdef tuple shape = shape_of(&x.dim)
    if x.dim.bd > 1:
        shape += (x.dim.bd,)
    return ValueUsage(op_at(x.op).name.decode(), row[0], row[1], shape, origin_at(origin_of(g, largest)),
                      scope_at(origin_of(g, largest)))


cdef inline bint has_tables(const Graph* g) noexcept nogil:
    return g.device != 0 or g.multi_device


cdef inline size_t bytes_of_values(const Graph* g) noexcept nogil:
    """Those of all values, and on the CPU those that are reserved for copies of views."""
    return g.values.top + (0 if has_tables(g) else g.tables.top)


cdef object usage(const Graph* g):
    cdef size_t held = 0, arrays = g.tables.top if has_tables(g) else 0
    cdef uint32_t k
    cdef int i
    for i in range(GRAPH_ARENAS):
        for k in range(g.arenas[i].n):
            held += g.arenas[i].segments[k].charged
    for i in range(GRAPH_ARRAYS):
        held += g.arrays[i].capacity
        arrays += g.arrays[i].top
    used = bytes_of_values(g) + g.grads.top + g.scratch.top + arrays
    # A bump pointer may be in a gap between segments, which counts for nothing.
    return GraphUsage(bytes_of_values(g), g.grads.top, g.scratch.top, arrays, max(held - used, 0), value_usage(g),
                      dropped_usage(g), g.again_ns / 1e9, g.missing, g.memory.limit)


def graph_usage(ComputationGraph graph not None) -> GraphUsage:
    """The current memory usage of a graph, as a GraphUsage."""
    claim(graph_table(), &graph.g)
    try:
        return usage(&graph.g)
    finally:
        release(graph_table(), &graph.g)


cdef str largest_values(const Graph* g):
    words = []
    for x in value_usage(g)[:NAMED]:
        where = f", {shown_file(x.origin.file)}:{x.origin.line}" if x.origin is not None else ""
        shape = ",".join(map(str, x.shape))
        number = "1 node" if x.nodes == 1 else f"{x.nodes:,} nodes, the largest"
        words.append(f"{x.op} {size_text(x.bytes)} ({number} {{{shape}}}{where})")
    if words and not g.origins.top:
        words.append("whose lines dy.record_lines() adds")
    return ", ".join(words)


cdef int raise_no_memory(const Graph* g, str what) except -1:
    try:
        out_of_memory(what)
    except MemoryError as error:
        raise_with_largest(g, error)
    return 0


cdef int raise_with_largest(const Graph* g, object error) except -1:
    words = largest_values(g)
    if not words:
        raise error
    raise MemoryError(f"{error}.  The largest values of the graph: {words}") from None


# ==== peak ========================================================================================
#
# What the graph held that held most, while a profile is measured.  Sizes are those after a batch; values are listed at
# the end of its pass.

cdef struct Level:
    const Graph* of
    size_t values
    size_t gradients
    size_t scratch
    bint listed

cdef Level highest
cdef object at_peak = None
cdef pthread_mutex_t peak_lock                      # guards the level
pthread_mutex_init(&peak_lock, NULL)


cdef void note_level(const Graph* g) noexcept nogil:
    global highest
    pthread_mutex_lock(&peak_lock)
    if bytes_of_values(g) + g.grads.top + g.scratch.top > highest.values + highest.gradients + highest.scratch:
        highest = Level(g, bytes_of_values(g), g.grads.top, g.scratch.top, False)
    pthread_mutex_unlock(&peak_lock)


cdef int note_peak(const Graph* g) except -1:
    global at_peak
    cdef Level level
    pthread_mutex_lock(&peak_lock)
    level = highest
    if highest.of == g:
        highest.listed = True
    pthread_mutex_unlock(&peak_lock)
    if level.of == g and not level.listed:
        at_peak = usage(g)._replace(values=level.values, gradients=level.gradients, scratch=level.scratch)
    return 0


def watch_peak():
    """Forget the peak so far."""
    global at_peak
    pthread_mutex_lock(&peak_lock)
    memset(&highest, 0, sizeof(Level))
    pthread_mutex_unlock(&peak_lock)
    at_peak = None


def peak() -> GraphUsage | None:
    """The largest memory usage of a graph since `watch_peak`, as a GraphUsage; None if no pass was profiled."""
    return at_peak
