"""Random streams of graphs: one for each graph and renewal; graphs are numbered in the order in which they are made."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.graph.hooks cimport sibling_hooks
from dynet_cy.graph.structs cimport RUNNING, Graph
from dynet_cy.graph.table cimport Table, graph_table, hold, let_go

from dynet_cy.kernels import draws

cdef extern from *:
    void atomic_store "__atomic_store_n"(uint64_t* p, uint64_t n, int order) nogil
    int RELAXED "__ATOMIC_RELAXED"

cdef Table* table = graph_table()
cdef uint32_t streams = 0

# Streams of a restored state, with their renewals, for graphs that do not exist yet.
cdef list awaited = []
cdef Unlocked streams_lock              # guards both


cdef int take_stream(Graph* g) except -1:
    """Give a new graph its stream.  Only renewals by the program count, not that of the constructor."""
    global streams
    cdef uint32_t number, count
    take(&streams_lock)
    try:
        if awaited:
            number, count = awaited.pop(0)
        else:
            number, count = streams, 0
            streams += 1
    finally:
        drop(&streams_lock)
    hold(table, g.slot)
    g.stream_number = number
    g.n_renewals = count
    g.stream = <uint64_t>number << 32 | count
    let_go(table, g.slot)
    return 0


def set_seed(seed):
    """Set the seed of all random streams, and restart them.

    Dropout masks, noise and initial values follow from it and from the order in
    which graphs, nodes and parameters are made, not from batching.

    Example:
        >>> dy.reset_random_seed(3)
        >>> first = dy.random_normal(2).npvalue()
        >>> _ = dy.renew_cg()
        >>> dy.reset_random_seed(3)
        >>> bool((dy.random_normal(2).npvalue() == first).all())
        True
    """
    global streams
    cdef Graph* g
    cdef uint32_t slot, n = 0
    draws.set_seed(seed)
    for slot in range(table.n_slots):
        hold(table, slot)
        g = table.graphs[slot]
        if g != NULL:
            g.n_renewals = 0
            g.draws = 0
            forget_requests(g)
            atomic_store(&g.stream, <uint64_t>g.stream_number << 32, RELAXED)   # the graph may be running
            n = max(n, g.stream_number + 1)
        let_go(table, slot)
    take(&streams_lock)
    try:
        awaited.clear()
        streams = n
    finally:
        drop(&streams_lock)


cdef void forget_requests(Graph* g) noexcept:
    """Clear what a graph has learned from values that were read one at a time.

    It decides which nodes run together, and so in which order sums are rounded. Training resumed from a saved state,
    here or in another process, must get the same bits.
    """
    if g.siblings != NULL and g.version != RUNNING:
        sibling_hooks().cut(g, 0, True)


cdef list streams_of_graphs(bint forget):
    """The stream number, number of renewals, and slot of each graph."""
    cdef Graph* g
    cdef uint32_t slot, number = 0, count = 0
    found = []
    for slot in range(table.n_slots):
        hold(table, slot)
        g = table.graphs[slot]
        if g != NULL:
            if forget:
                forget_requests(g)
            number = g.stream_number
            count = g.n_renewals
        let_go(table, slot)
        if g != NULL:
            found.append((number, count, slot))
    return found


def random_state():
    """The state of all random streams, as plain data for `set_random_state`."""
    renewals = [(number, count) for number, count, _ in streams_of_graphs(True)]
    take(&streams_lock)
    try:
        renewals += awaited
        n = streams
    finally:
        drop(&streams_lock)
    return {"seed": draws.seed(), "host": draws.host_position(), "streams": n, "renewals": sorted(renewals)}


def set_random_state(state):
    """Restore all random streams to their state when `random_state` was called.

    Graphs are identified by the order in which they were made: first those that exist
    now, then those made next.  The state takes effect at the next renewal.
    """
    global streams
    cdef uint32_t slot, number, count
    set_seed(state["seed"])
    draws.set_host_position(state["host"])
    restored = [(number, count) for number, count in state["renewals"]]
    existing = sorted((number, slot) for number, _, slot in streams_of_graphs(False))
    take(&streams_lock)
    try:
        streams = state["streams"]
        awaited[:] = restored
        for _, slot in existing:
            if awaited:
                number, count = awaited.pop(0)
            else:
                number, count = streams, 0
                streams += 1
            hold(table, slot)
            if table.graphs[slot] != NULL:
                table.graphs[slot].stream_number = number
                table.graphs[slot].n_renewals = count
            let_go(table, slot)
    finally:
        drop(&streams_lock)
