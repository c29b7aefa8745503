"""Counts of nodes and calls, and the time they took, by operation and, if lines are recorded, by line."""

import sys
from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from dynet_cy.core.atomic cimport Number, add_to
from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.graph.hooks cimport PassHooks, pass_hooks
from dynet_cy.graph.messages cimport describe_dim, made_at
from dynet_cy.graph.structs cimport LIVE, Batch, Node, batches_of, nodes_of, order_of, origin_of, state_of
from dynet_cy.graph.origin cimport current_line, origin_at, release_code, scope_at
from dynet_cy.graph.timeline cimport WEIGHTS, end_span, span_of_call, tracing
from dynet_cy.ops.registry cimport MAX_OPS, op_at
from dynet_cy.schedule.siblings cimport was_waiting, track_requests


cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec* t)


cdef enum:
    PLACES = MAX_OPS + 1            # the last one is for WEIGHT_GRADIENTS

# Graphs of several threads add to the same entry.
cdef struct Entry:
    Number nodes
    Number calls
    Number nanoseconds

cdef Entry* entries = NULL          # for each op forward, then backward

# Counts of one line for one operation in one direction.
cdef struct Line:
    uint64_t key                    # number of line and scope, op, direction; 0: the slot is empty
    uint64_t last_call              # the last call that was counted, since a call counts once for each line
    Entry of

# A hash table, at most half full. The lock is held while it is read or changed.
cdef Line* lines = NULL
cdef size_t n_lines = 0, room_for_lines = 0
cdef uint64_t n_calls = 0
cdef pthread_mutex_t lines_lock
pthread_mutex_init(&lines_lock, NULL)


class Counts(NamedTuple):
    """Counts for an operation in one direction."""

    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float


class LineCounts(NamedTuple):
    """Counts for an operation in one direction, made by one line of the program within one scope."""

    origin: object
    scope: str
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float


class RequestCounts(NamedTuple):
    """The passes that a line of the program asked for."""

    origin: object
    passes: int
    values: int
    nodes: int
    seconds: float
    waited: int
    graphs: int
    of_map: bool


cdef class _Requests:
    """The passes that one line asked for."""

    cdef uint64_t passes, values, nodes, nanoseconds, waited, graphs, renewal
    cdef bint of_map

cdef dict requests = {}             # by the number of the line
cdef Unlocked requests_lock


cdef uint64_t now() noexcept nogil:
    """Nanoseconds."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef void note_time(uint32_t op, bint backward, uint32_t nodes, uint64_t taken) noexcept nogil:
    cdef Entry* e = entries + 2 * min(op, <uint32_t>(PLACES - 1)) + backward
    add_to(&e.nodes, nodes)
    add_to(&e.calls, 1)
    add_to(&e.nanoseconds, taken)


cdef void note(uint32_t op, bint backward, uint32_t nodes, uint64_t since) noexcept nogil:
    """Count one call of an op with `nodes` nodes, which began at time `since`."""
    note_time(op, backward, nodes, now() - since)
    if tracing and op == <uint32_t>WEIGHT_GRADIENTS:
        end_span(WEIGHTS, since)


cdef void note_call(const Graph* g, uint32_t first, uint32_t count, bint backward, uint32_t nodes,
                    uint64_t since) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + first
    cdef uint32_t op = nodes_of(g)[ids[0]].op
    cdef uint64_t ended = now(), taken
    cdef Line* line
    cdef uint32_t j, n = 0
    note_time(op, backward, nodes, ended - since)
    if tracing:
        span_of_call(g, first, count, backward, nodes, since, ended)
    if g.origins.top == 0 or nodes == 0:
        return
    taken = (ended - since) // nodes
    pthread_mutex_lock(&lines_lock)
    add_call()
    for j in range(count):
        if n == nodes or (backward and not state_of(g)[ids[j]] & LIVE):
            continue
        n += 1
        line = line_for(<uint64_t>origin_of(g, ids[j]) << 32 | op << 1 | backward)
        if line == NULL:                # no memory: not counted
            continue
        line.of.nodes += 1
        line.of.nanoseconds += taken
        line.of.calls += line.last_call != n_calls
        line.last_call = n_calls
    pthread_mutex_unlock(&lines_lock)


cdef void add_call() noexcept nogil:
    global n_calls
    n_calls += 1


cdef Line* place_of(Line* table, size_t room, uint64_t key) noexcept nogil:
    cdef size_t i = (key * 0x9E3779B97F4A7C15u >> 32) & (room - 1)
    while table[i].key and table[i].key != key:
        i = (i + 1) & (room - 1)
    return &table[i]


cdef Line* line_for(uint64_t key) noexcept nogil:
    """The entry of a line, made if there is none; NULL if there is no memory, or if no line was recorded."""
    global lines, n_lines, room_for_lines
    cdef Line* found
    cdef Line* more
    cdef size_t i, room
    if key >> 32 == 0:
        return NULL
    if 2 * n_lines >= room_for_lines:
        room = max(2 * room_for_lines, <size_t>256)
        more = <Line*>calloc(room, sizeof(Line))
        if more == NULL:
            return NULL
        for i in range(room_for_lines):
            if lines[i].key:
                place_of(more, room, lines[i].key)[0] = lines[i]
        free(lines)
        lines = more
        room_for_lines = room
    found = place_of(lines, room_for_lines, key)
    n_lines += found.key == 0
    found.key = key
    return found


cdef void note_pass(Graph* g, uint32_t targets, uint32_t nodes, bint of_map, uint64_t begun) noexcept:
    cdef uint64_t taken = now() - begun
    cdef uint32_t line = current_line()
    cdef bint waited = targets == 1 and not of_map and was_waiting(g)
    cdef _Requests x
    take(&requests_lock)
    try:
        x = requests.get(line)
        if x is None:
            x = _Requests()
            requests[line] = x
        x.passes += 1
        x.values += targets
        x.nodes += nodes
        x.nanoseconds += taken
        x.waited += waited
        x.graphs += x.renewal != g.renewal
        x.renewal = g.renewal
        x.of_map = x.of_map or of_map
    finally:
        drop(&requests_lock)


cdef PassHooks* hooks = pass_hooks()
hooks.begin = now
hooks.end = note_pass


cdef int list_batches(Graph* g, uint32_t first) except -1:
    """Write the batches that have run, from number `first` on, to stderr, one per line."""
    cdef const Batch* batch
    cdef const Node* node
    lines = ["Forward Call"]
    for i in range(first, g.n_batches):
        batch = &batches_of(g)[i]
        node = &nodes_of(g)[order_of(g)[batch.first]]
        lines.append(f"BatchSize:{batch.count} {op_at(node.op).name.decode()} {describe_dim(&node.dim)}"
                     f"{made_at(g, order_of(g)[batch.first])}")
    print("\n".join(lines), file=sys.stderr)
    return 0


def request_counts():
    """The passes that each line has asked for, as a list of RequestCounts."""
    found = []
    for line, counted in list(requests.items()):
        x = <_Requests>counted
        found.append(RequestCounts(
            origin_at(<uint32_t>line), x.passes, x.values, x.nodes, x.nanoseconds / 1e9, x.waited, x.graphs, x.of_map))
    return found


def line_counts():
    """The counts by line, as a list of LineCounts."""
    cdef size_t i, room
    cdef Line* x
    cdef Line* all
    found = []
    pthread_mutex_lock(&lines_lock)
    room = room_for_lines
    all = <Line*>calloc(room + 1, sizeof(Line))
    if all != NULL and room:
        memcpy(all, lines, room * sizeof(Line))         # making objects may run any code, which may change the table
    pthread_mutex_unlock(&lines_lock)
    if all == NULL:
        raise MemoryError("the profile by line")
    try:
        for i in range(room):
            x = &all[i]
            if x.key:
                found.append(LineCounts(
                    origin_at(<uint32_t>(x.key >> 32)), scope_at(<uint32_t>(x.key >> 32)),
                    op_at(<uint32_t>x.key >> 1).name.decode(), bool(x.key & 1),
                    x.of.nodes, x.of.calls, x.of.nanoseconds / 1e9))
    finally:
        free(all)
    return found


def counts():
    """The counts by operation, as a list of Counts, without operations that did not run."""
    found = []
    if entries != NULL:
        for i in range(2 * PLACES):
            if entries[i].calls:
                name = "weight gradients" if i // 2 == PLACES - 1 else op_at(i // 2).name.decode()
                found.append(Counts(name, bool(i % 2), entries[i].nodes, entries[i].calls,
                                    entries[i].nanoseconds / 1e9))
    return found


def reset():
    """Count from zero again."""
    global n_lines
    for i in range(2 * PLACES if entries != NULL else 0):
        entries[i].nodes = entries[i].calls = entries[i].nanoseconds = 0
    requests.clear()
    pthread_mutex_lock(&lines_lock)
    if room_for_lines:
        memset(lines, 0, room_for_lines * sizeof(Line))
    n_lines = 0
    pthread_mutex_unlock(&lines_lock)


def set_level(int level):
    """Measure (1), list every batch on stderr too (2), or do neither (0)."""
    global profiling, entries
    if level > 0 and entries == NULL:
        entries = <Entry*>calloc(2 * PLACES, sizeof(Entry))
        if entries == NULL:
            raise MemoryError("the table of the profile")
    profiling = max(level, 0)
    hooks.on = profiling > 0
    track_requests(profiling > 0)
    release_code()


def level():
    """The level that `set_level` has set."""
    return profiling
