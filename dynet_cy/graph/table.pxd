"""All graphs that are open, by slot."""

from libc.stdint cimport uint32_t, uintptr_t

from dynet_cy.core.interrupts cimport dy_this_thread
from dynet_cy.core.unlocked cimport HAS_GIL, Unlocked, drop, take
from dynet_cy.graph.structs cimport RUNNING, Graph

cdef enum:
    MAX_GRAPHS = 65536

# Synchronizes threads when Python has no GIL; on its own cache line.  A graph belongs to one thread at a time, so waits
# are short: other threads only read its values, free its unused memory, drop its expressions and read its random state.
cdef struct Guard:
    Unlocked lock                   # held while a graph that is not running is changed or read: briefly, without Python
    uintptr_t user                  # the thread that does something in several steps, perhaps in Python; 0: none
    uint32_t depth                  # how many of its claims are not released yet
    char[40] rest

cdef struct Table:
    Graph* graphs[MAX_GRAPHS]       # NULL: the slot is free
    void* owners[MAX_GRAPHS]        # the ComputationGraph of each, borrowed
    uint32_t n_slots                # slots from this one on have never been used
    Guard guards[MAX_GRAPHS]        # of slots: they outlive graphs

cdef Table* graph_table() noexcept


cdef inline Graph* graph_at(const Table* table, uint32_t slot) noexcept nogil:
    """The graph in a slot, or NULL."""
    return table.graphs[slot] if slot < table.n_slots else NULL


# Keep other threads from a slot, briefly: no Python code may run before `let_go`.
cdef inline void hold(Table* table, uint32_t slot) noexcept nogil:
    take(&table.guards[slot].lock)


cdef inline void let_go(Table* table, uint32_t slot) noexcept nogil:
    drop(&table.guards[slot].lock)


cdef int raise_running() except -1


cdef inline bint is_used(Table* table, Graph* g) noexcept nogil:
    """Whether a graph, whose slot is held, is running, or another thread has claimed it."""
    cdef uintptr_t user
    if g.version == RUNNING:
        return True
    if HAS_GIL:
        return False
    user = table.guards[g.slot].user
    return user != 0 and user != dy_this_thread()


cdef inline int check_unused(Table* table, Graph* g) except -1:
    cdef bint used
    hold(table, g.slot)
    used = is_used(table, g)
    let_go(table, g.slot)
    return raise_running() if used else 0


# Claim a graph for this thread, for what takes several steps, such as making a node; an error if it is in use.
# Claims of one thread nest.
cdef inline int claim(Table* table, Graph* g) except -1:
    cdef bint used
    hold(table, g.slot)
    used = is_used(table, g)
    if not (HAS_GIL or used):
        table.guards[g.slot].user = dy_this_thread()
        table.guards[g.slot].depth += 1
    let_go(table, g.slot)
    return raise_running() if used else 0


cdef inline void release(Table* table, Graph* g) noexcept nogil:
    if not HAS_GIL:
        hold(table, g.slot)
        if table.guards[g.slot].user == dy_this_thread():
            table.guards[g.slot].depth -= 1
            if table.guards[g.slot].depth == 0:
                table.guards[g.slot].user = 0
        let_go(table, g.slot)


cdef int enter_table(Graph* g, void* owner) except -1
cdef void leave_table(Graph* g) noexcept
# Mark a graph as running, so that no other thread uses it.
cdef int lock_graph(Graph* g) except -1
cdef void unlock_graph(Graph* g) noexcept nogil
# Let a graph without nodes give back its memory.
cdef void give_back_all(Graph* g) noexcept
