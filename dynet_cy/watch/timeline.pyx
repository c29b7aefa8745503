"""Timelines: spans of time, recorded while one is being measured (`dynet_cy.profiling.measure(timeline=True)`).

Times are those of the monotonic clock, which all processes of a machine share.
"""

from contextlib import contextmanager
from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.tensor cimport Dim, total_of
from dynet_cy.core.threads cimport Unlocked, acquire_lock, now, release_lock
from dynet_cy.graph.origin cimport making_since, origin_at, scope_at, time_making
from dynet_cy.graph.structs cimport Graph, Node, args_of, nodes_of, order_of, origin_of
from dynet_cy.ops.registry cimport op_at


cdef extern from "spans.h" nogil:
    # derived: variables of seen_renewal, seen_nodes
    uint64_t seen_renewal "dy_seen_renewal"
    uint32_t seen_nodes "dy_seen_nodes"
    # end of variables
    # derived: functions of this_thread = dy_number_of_thread
    uint32_t this_thread "dy_number_of_thread"()
    # end of functions


cdef enum:
    MOST_SPANS = 1 << 19            # about 130 MB; further spans are only counted
    LINES = 4                       # recorded for a span
    ARGUMENTS = 3                   # whose shapes are recorded

cdef struct Noted:
    uint64_t begin
    uint64_t end
    uint64_t bytes                  # of the results of a batch
    uint64_t values                 # of its graph, in bytes
    uint64_t gradients
    uint64_t scratch
    uint64_t held                   # by all graphs, and parameters
    uint32_t thread
    uint32_t kind
    uint32_t op                     # of a batch; the name of a NAMED one
    uint32_t nodes
    uint32_t origins[LINES]         # different ones, 0 for none
    uint32_t more_lines
    uint32_t other_shapes           # nodes of other shapes than the first
    uint32_t n_args
    Dim y
    Dim x[ARGUMENTS]

cdef Noted* spans = NULL
cdef size_t n_spans = 0, span_capacity = 0, n_dropped = 0
cdef pthread_mutex_t lock
pthread_mutex_init(&lock, NULL)

cdef list names = []
cdef Unlocked names_lock

KINDS: tuple[str, ...] = (
    "forward", "backward", "again", "weight gradients", "making nodes", "scheduling", "forward pass", "backward pass",
    "update", "exchange", "",
)


class Span(NamedTuple):
    """An activity with its start and end.

    Attributes:
        kind: "forward", "backward" and "again" (values that were dropped) for batches of nodes, "weight gradients",
            "making nodes", "scheduling", "forward pass", "backward pass", "update", "exchange"; for other spans, their
            name
        begin, end: seconds, of the monotonic clock
        thread: the number of the thread, from 1
        op: the operation of a batch, else empty
        nodes: how many nodes ran, or were made
        bytes: size of the results of a batch
        shape: shape of the result of the first node of a batch, as a text such as "{64} x 8"; else empty
        arguments: the shapes of its first three arguments
        other_shapes: how many of the nodes have another shape
        origins: the lines of the program that made the nodes, four at most, and None for nodes without a line
        more_lines: how many nodes were made by further lines
        scope: the scope of the first node
        values, gradients, scratch: bytes of values, of gradients, and of gathered arguments, saved and temporary
            numbers in the graph, after the batch
        held: bytes of all memory that graphs, parameters and trainers hold
    """

    kind: str
    begin: float
    end: float
    thread: int
    op: str
    nodes: int
    bytes: int
    shape: str
    arguments: tuple[str, ...]
    other_shapes: int
    origins: tuple[Origin | None, ...]
    more_lines: int
    scope: str
    values: int
    gradients: int
    scratch: int
    held: int


cdef uint64_t begin_span() noexcept nogil:
    return now() if tracing else 0


cdef Noted* next_span(uint64_t begun, uint64_t ended) noexcept nogil:
    """Room for a span, with the lock held; NULL where there is none left."""
    global spans, n_spans, span_capacity, n_dropped
    cdef size_t capacity
    cdef Noted* more
    cdef Noted* s
    if n_spans == span_capacity:
        capacity = max(2 * span_capacity, <size_t>1024)
        more = <Noted*>realloc(spans, capacity * sizeof(Noted)) if capacity <= MOST_SPANS else NULL
        if more == NULL:
            n_dropped += 1
            return NULL
        spans = more
        span_capacity = capacity
    s = &spans[n_spans]
    n_spans += 1
    memset(s, 0, sizeof(Noted))
    s.begin = begun
    s.end = ended
    s.thread = this_thread()
    return s


cdef void note_span(Kind kind, uint64_t begun, uint32_t nodes, uint32_t name) noexcept nogil:
    cdef Noted* s
    cdef uint64_t ended = now()
    if begun == 0 or not tracing:
        return
    pthread_mutex_lock(&lock)
    s = next_span(begun, ended)
    if s != NULL:
        s.kind = kind
        s.nodes = nodes
        s.op = name
    pthread_mutex_unlock(&lock)


cdef void end_span(Kind kind, uint64_t begun) noexcept nogil:
    note_span(kind, begun, 0, 0)


cdef uint64_t begin_pass_span(const Graph* g) noexcept:
    global seen_renewal, seen_nodes
    cdef uint32_t made
    if not tracing:
        return 0
    made = g.n_nodes - seen_nodes if g.renewal == seen_renewal and g.n_nodes >= seen_nodes else g.n_nodes
    seen_renewal = g.renewal
    seen_nodes = g.n_nodes
    note_span(MAKING, making_since(), made, 0)
    return now()


cdef void span_of_call(const Graph* g, uint32_t first, uint32_t count, Kind kind, uint32_t nodes,
                       uint64_t begun, uint64_t ended) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + first
    cdef const Node* node = &nodes_of(g)[ids[0]]
    cdef const Node* other
    cdef Noted* s
    cdef uint32_t i, k, number
    if not tracing:
        return
    pthread_mutex_lock(&lock)
    s = next_span(begun, ended)
    if s != NULL:
        s.kind = kind
        s.op = node.op
        s.nodes = nodes
        s.y = node.dim
        s.values = g.values.top
        s.gradients = g.grads.top
        s.scratch = g.scratch.top
        s.held = g.memory.around.used
        s.n_args = min(node.nargs, <uint32_t>ARGUMENTS)
        for k in range(s.n_args):
            s.x[k] = nodes_of(g)[args_of(g, node)[k]].dim
        for i in range(count):
            other = &nodes_of(g)[ids[i]]
            s.bytes += total_of(&other.dim) * sizeof(float)
            s.other_shapes += total_of(&other.dim) != total_of(&node.dim) or other.dim.nd != node.dim.nd
            number = origin_of(g, ids[i])
            k = 0
            while k < LINES and s.origins[k] and s.origins[k] != number:
                k += 1
            if k == LINES:
                s.more_lines += 1
            else:
                s.origins[k] = number
    pthread_mutex_unlock(&lock)


cdef str shape_text(const Dim* d):
    text = "{" + ",".join([str(d.d[i]) for i in range(d.nd)]) + "}"
    return f"{text} x {d.bd}" if d.bd > 1 else text


def recorded_spans() -> tuple[list[Span], int]:
    """The spans recorded since `switch`, as a list of Span in the order of their ends, and how many did not fit."""
    cdef Noted* all = NULL
    cdef Noted* s
    cdef size_t i, n
    cdef uint32_t k
    pthread_mutex_lock(&lock)
    n = n_spans
    dropped = n_dropped
    all = <Noted*>realloc(NULL, (n + 1) * sizeof(Noted))
    if all != NULL and n:
        memcpy(all, spans, n * sizeof(Noted))           # creating objects below may run any Python code
    pthread_mutex_unlock(&lock)
    if all == NULL:
        raise MemoryError("the timeline")
    found = []
    try:
        for i in range(n):
            s = &all[i]
            batch = s.kind <= BATCH_AGAIN
            found.append(Span(
                names[s.op] if s.kind == NAMED else KINDS[s.kind], s.begin / 1e9, s.end / 1e9, s.thread,
                op_at(s.op).name.decode() if batch else "", s.nodes, s.bytes, shape_text(&s.y) if batch else "",
                tuple([shape_text(&s.x[k]) for k in range(s.n_args)]), s.other_shapes,
                tuple([origin_at(s.origins[k]) for k in range(<uint32_t>LINES) if s.origins[k]]), s.more_lines,
                scope_at(s.origins[0]), s.values, s.gradients, s.scratch, s.held))
    finally:
        free(all)
    return found, dropped


def switch(on: bool):
    """Start recording spans, with an empty list, or stop."""
    global tracing, n_spans, n_dropped, spans, span_capacity
    if bool(on) == tracing:
        raise RuntimeError("a timeline is being measured already" if on else "no timeline is being measured")
    pthread_mutex_lock(&lock)
    n_spans = n_dropped = 0
    if not on:
        free(spans)
        spans = NULL
        span_capacity = 0
    pthread_mutex_unlock(&lock)
    tracing = on
    making_since()
    time_making(on)


@contextmanager
def span(str name not None) -> AbstractContextManager[None]:
    """Record the block as a span of that name, if a timeline is being measured."""
    cdef uint64_t begun = begin_span()
    cdef uint32_t number = 0
    if begun:
        acquire_lock(&names_lock)
        try:
            if name not in names:
                names.append(name)
            number = names.index(name)
        finally:
            release_lock(&names_lock)
    try:
        yield
    finally:
        note_span(NAMED, begun, 0, number)
