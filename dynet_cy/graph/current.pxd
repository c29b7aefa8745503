"""The current graph: that of the innermost `with` of a task or thread, else the implicit graph: the thread's own or, in
programs written for DyNet, that of all threads."""

from libc.stdint cimport uint64_t

from dynet_cy.core.atomic cimport Number
from dynet_cy.graph.structs cimport Graph


cdef extern from *:
    """
    #include "dynet_cy/graph.h"

    /* A cache of the current graph of this thread, and what invalidates it: the version of the context, and the number
     * of times a graph was entered, left or closed.  Each module has its own cache, so that a lookup costs no call. */
    typedef struct {
        dy_graph *graph;            /* NULL: none was made yet */
        uint64_t context_version, changes;
        const dy_number *counter;
    } dy_seen;

    static const dy_number dy_no_changes = 0;

    static inline dy_seen *dy_seen_here(void) {
        static _Thread_local dy_seen seen = {NULL, 0, 1, &dy_no_changes};
        return &seen;
    }

    static inline uint64_t dy_context_version_now(void) { return PyThreadState_Get()->context_ver; }
    """
    ctypedef struct Seen "dy_seen":
        Graph* graph
        uint64_t context_version
        uint64_t changes
        const Number* counter

    Seen* seen_here "dy_seen_here"()
    uint64_t context_version_now "dy_context_version_now"()

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
