"""All graphs that are open, by slot."""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph

cdef enum:
    MAX_GRAPHS = 65536

cdef struct Table:
    Graph* graphs[MAX_GRAPHS]       # NULL: the slot is free
    void* owners[MAX_GRAPHS]        # the ComputationGraph of each, borrowed
    uint32_t n_slots                # slots from this one on have never been used

cdef Table* graph_table() noexcept


cdef inline Graph* graph_at(const Table* table, uint32_t slot) noexcept:
    """The graph in a slot, or NULL."""
    return table.graphs[slot] if slot < table.n_slots else NULL


cdef int enter_table(Graph* g, void* owner) except -1
cdef void leave_table(Graph* g) noexcept
# Mark a graph as running, so that no other thread uses it.
cdef int lock_graph(Graph* g) except -1
cdef void unlock_graph(Graph* g) noexcept nogil
cdef int raise_running() except -1
# Let a graph without nodes give back its memory.
cdef void give_back_all(Graph* g) noexcept
