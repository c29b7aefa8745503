"""Random streams of graphs: one for each graph and renewal, by the number of the graph in the order of making."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.graph.hooks cimport beside_hooks
from dynet_cy.graph.structs cimport RUNNING, Graph
from dynet_cy.graph.table cimport Table, graph_table

from dynet_cy.kernels import draws

cdef Table* table = graph_table()
cdef uint32_t streams = 0

# Streams of a state that was put back, with their renewals, for graphs that are not made yet.
cdef list awaited = []


cdef int take_stream(Graph* g) except -1:
    """Give a new graph its stream.  Random streams count the renewals that the program asks for."""
    global streams
    with cython.critical_section(awaited):
        if awaited:
            g.stream_number, g.n_renewals = awaited.pop(0)
        else:
            g.stream_number, g.n_renewals = streams, 0
            streams += 1
    g.stream = <uint64_t>g.stream_number << 32 | g.n_renewals
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
    cdef uint32_t slot
    draws.set_seed(seed)
    awaited.clear()
    streams = 0
    for slot in range(table.n_slots):
        if table.graphs[slot] != NULL:
            table.graphs[slot].n_renewals = 0
            table.graphs[slot].draws = 0
            forget_requests(table.graphs[slot])
            table.graphs[slot].stream = <uint64_t>table.graphs[slot].stream_number << 32
            streams = max(streams, table.graphs[slot].stream_number + 1)


cdef void forget_requests(Graph* g) noexcept:
    """Clear what a graph has learned from values that were read one at a time.

    It decides which nodes run together, and so in which order sums are rounded. Training resumed from a saved state,
    here or in another process, must get the same bits.
    """
    if g.beside != NULL and g.version != RUNNING:
        beside_hooks().cut(g, 0, True)


def random_state():
    """The state of all random streams, as plain data for `set_random_state`."""
    cdef uint32_t slot
    renewals = list(awaited)
    for slot in range(table.n_slots):
        if table.graphs[slot] != NULL:
            forget_requests(table.graphs[slot])
            renewals.append((table.graphs[slot].stream_number, table.graphs[slot].n_renewals))
    return {"seed": draws.seed(), "host": draws.host_position(), "streams": streams,
            "renewals": sorted(renewals)}


def set_random_state(state):
    """Restore all random streams to their state when `random_state` was called.

    Graphs are told from each other by the order in which they were made: those that
    are there now come first, and the next that are made after them.  It holds from
    the next renewal on.
    """
    global streams
    cdef uint32_t slot
    set_seed(state["seed"])
    draws.set_host_position(state["host"])
    streams = state["streams"]
    awaited[:] = [(number, count) for number, count in state["renewals"]]
    there = [(table.graphs[slot].stream_number, slot) for slot in range(table.n_slots) if table.graphs[slot] != NULL]
    for _, slot in sorted(there):
        if awaited:
            table.graphs[slot].stream_number, table.graphs[slot].n_renewals = awaited.pop(0)
        else:
            table.graphs[slot].stream_number, table.graphs[slot].n_renewals = streams, 0
            streams += 1
