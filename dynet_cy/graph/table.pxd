"""The open graphs: all of them by slot, the current one, the nodes that they forget, and the devices of nodes."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from dynet_cy.core.threads cimport HAS_GIL, Number, Unlocked, acquire_lock, dy_this_thread, release_lock
from dynet_cy.graph.structs cimport RUNNING, Extra, Graph
from dynet_cy.ops.registry cimport Op


# ==== table =======================================================================================
#
# All graphs that are open, by slot.

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
    acquire_lock(&table.guards[slot].lock)


cdef inline void let_go(Table* table, uint32_t slot) noexcept nogil:
    release_lock(&table.guards[slot].lock)


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
# Free the memory of a graph without nodes.
cdef void give_back_all(Graph* g) noexcept


# ==== current =====================================================================================
#
# The current graph: that of the innermost `with` of a task or thread, else the implicit graph: the thread's own or, in
# programs written for DyNet, that of all threads.

cdef extern from "dynet_cy/seen.h":
    # derived: structs of Seen
    ctypedef struct Seen "dy_seen":
        Graph* graph
        uint64_t context_version
        uint64_t changes
        const Number* counter
    # end of structs
    # derived: functions of seen_here, context_version_now
    Seen* seen_here "dy_seen_here"()
    uint64_t context_version_now "dy_context_version_now"()
    # end of functions


# Look up the current graph again.
cdef void look_around(Seen* seen) noexcept
# Make the implicit graph of this thread.
cdef Graph* make_implicit() except NULL


cdef inline Graph* graph_here() noexcept:
    """The current graph, or NULL if there is none yet."""
    cdef Seen* seen = seen_here()
    if seen.context_version != context_version_now() or seen.changes != seen.counter[0]:
        look_around(seen)
    return seen.graph


cdef inline Graph* current_graph() except NULL:
    """The current graph; the thread's implicit graph is created if needed."""
    cdef Graph* g = graph_here()
    return g if g != NULL else make_implicit()


# Creates a graph: returns the object that owns it, and sets g.
ctypedef object (*NewGraph)(Graph** g)

# Set how implicit graphs are created; called by the module of the class.
cdef void set_new_graph(NewGraph make) noexcept
cdef int enter_graph(object owner, Graph* g) except -1
cdef int leave_graph(object owner) except -1
# Replace the implicit graph that threads share, if it is g, which another thread is running.
cdef int leave_running(Graph* g) except -1
# Must be called when a graph is closed.
cdef void forget_current() noexcept


# ==== forgetting ==================================================================================
#
# Release of nodes and values of a graph, and renumbering of the remaining nodes.

cdef enum:
    # A forward-only graph renumbers its nodes when at least half of them are not needed, and there are this many.
    LEAST_TO_COMPACT = 4096

# Sets the new number of a node in the expression that refers to it.
ctypedef void (*Renumber)(void* holder, uint32_t index, uint64_t version) noexcept

# Release all computed values, so that inputs may change.
cdef int release_values(Graph* g) except -1
cdef void release_values_since(Graph* g, uint32_t n_batches, uint32_t n_order, size_t values_top,
                               size_t scratch_top, size_t tables_top) noexcept
cdef uint32_t* compact_nodes(Graph* g, Renumber renumber) noexcept
cdef void truncate_nodes(Graph* g, size_t nodes_top, size_t args_top, size_t items_top) noexcept
cdef uint64_t epochs_left(const Graph* g) noexcept
cdef void next_epoch(Graph* g) noexcept


# ==== placing =====================================================================================
#
# The placement of nodes on devices.

cdef int place_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1
cdef void let_move(Graph* g) noexcept
# The `device` of an Extra: 1 + the number of the named device, or 0 for "".
cdef int asked_device(object name, str where) except -1


cdef inline int placed(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """The device of a node, on multi-device graphs."""
    if g.multi_device or (extra != NULL and extra.device and extra.device - 1 != g.device):
        return place_node(g, op, args, n, extra)
    return 0
