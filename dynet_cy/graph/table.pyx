"""All graphs that are open, by slot, and the memory that they can give back."""

import os

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.unlocked cimport HAS_GIL, try_take
from dynet_cy.graph.structs cimport GRAPH_ARENAS, GRAPH_ARRAYS, RUNNING, Graph
from dynet_cy.memory.arena cimport arena_trim, array_close, array_open, array_trim, set_reclaim, shortages
from dynet_cy.memory.changes cimport see_whole
from dynet_cy.memory.storage cimport give_back_panels

cdef extern from *:
    # Of the version of a graph, which is _Atomic.
    uint64_t atomic_exchange "atomic_exchange_explicit"(uint64_t* p, uint64_t n, int order) nogil
    void atomic_store "atomic_store_explicit"(uint64_t* p, uint64_t n, int order) nogil
    int ACQUIRE "memory_order_acquire"
    int RELEASE "memory_order_release"

cdef Table table
table.n_slots = 0
# Held while slots are taken and freed.
cdef pthread_mutex_t slots_lock
pthread_mutex_init(&slots_lock, NULL)


def _unlock():
    """In a child that was just forked: threads that no longer exist may have held locks."""
    cdef uint32_t slot
    pthread_mutex_init(&slots_lock, NULL)
    if not HAS_GIL:
        for slot in range(table.n_slots):
            memset(&table.guards[slot], 0, sizeof(Guard))


os.register_at_fork(after_in_child=_unlock)


cdef Table* graph_table() noexcept:
    return &table


cdef int enter_table(Graph* g, void* owner) except -1:
    """Put a graph into the first free slot."""
    cdef uint32_t slot = 0
    pthread_mutex_lock(&slots_lock)
    while slot < table.n_slots and table.graphs[slot] != NULL:
        slot += 1
    if slot < <uint32_t>MAX_GRAPHS:
        g.slot = slot
        table.graphs[slot] = g
        table.owners[slot] = owner
        table.n_slots = max(table.n_slots, slot + 1)
    pthread_mutex_unlock(&slots_lock)
    if slot == <uint32_t>MAX_GRAPHS:
        raise RuntimeError(f"more than {MAX_GRAPHS} graphs are open")
    return 0


cdef void leave_table(Graph* g) noexcept:
    """Free the slot of a graph, if it has one.  Afterwards no other thread can find the graph."""
    hold(&table, g.slot)
    pthread_mutex_lock(&slots_lock)
    if table.graphs[g.slot] == g:
        table.graphs[g.slot] = NULL
        table.owners[g.slot] = NULL
    pthread_mutex_unlock(&slots_lock)
    let_go(&table, g.slot)


# ---- one thread at a time ------------------------------------------------------

cdef int raise_running() except -1:
    raise RuntimeError("this graph is running in another thread, or in this one below the handler of a signal")


cdef int lock_graph(Graph* g) except -1:
    """Mark the graph as running: no other thread may use it."""
    cdef bint used
    if g.version == RUNNING:
        raise_running()
    see_whole()
    hold(&table, g.slot)
    used = is_used(&table, g) or atomic_exchange(&g.version, RUNNING, ACQUIRE) == RUNNING
    let_go(&table, g.slot)
    return raise_running() if used else 0           # another thread was faster


cdef void unlock_graph(Graph* g) noexcept nogil:
    atomic_store(&g.version, g.renewal, RELEASE)


# ---- giving back memory --------------------------------------------------------

cdef void give_back_unused(const void* asking) noexcept with gil:
    """Free the memory above the bump pointers of all graphs that no other thread is running, and packed weights.

    `asking` is the arena or array that has run out of room, perhaps of a running graph.
    """
    cdef Graph* g
    cdef uint32_t slot
    for slot in range(table.n_slots):
        if is_part(table.graphs[slot], asking):     # this thread owns it: it is running, or its slot is held
            trim(table.graphs[slot])
        elif try_take(&table.guards[slot].lock):    # waiting could deadlock; the lock is only held briefly
            g = table.graphs[slot]
            if g != NULL and g.version != RUNNING:
                trim(g)
            let_go(&table, slot)
    give_back_panels()


cdef void trim(Graph* g) noexcept:
    """Free the memory above the bump pointers, except that of a node that is being added beyond the last one."""
    cdef int i
    for i in range(GRAPH_ARRAYS):
        array_trim(&g.arrays[i])
    for i in range(GRAPH_ARENAS):
        arena_trim(&g.arenas[i])


cdef inline bint is_part(const Graph* g, const void* p) noexcept nogil:
    return g != NULL and <const char*>g <= <const char*>p < <const char*>(g + 1)


cdef void give_back_all(Graph* g) noexcept:
    """Free all memory of a graph without nodes, after a shortage of memory."""
    cdef bint poison = g.nodes.poison
    cdef int i
    for i in range(GRAPH_ARRAYS):
        array_close(&g.arrays[i])
        array_open(&g.arrays[i], poison)
    for i in range(GRAPH_ARENAS):
        arena_trim(&g.arenas[i])
    g.shortages = shortages()


set_reclaim(give_back_unused)
