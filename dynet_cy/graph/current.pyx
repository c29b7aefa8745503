"""The current graph: that of the innermost `with` of a task or thread, else one that the thread has of itself."""

import contextvars
import threading

from libc.stdint cimport uint64_t

from dynet_cy.graph.structs cimport Graph


cdef extern from *:
    """
    /* The current graph where this thread was when the version of its context was that; NULL: none was made yet. */
    static _Thread_local dy_graph *dy_current = NULL;
    static _Thread_local uint64_t dy_context_version = 0;

    /* The value of a context variable with a default of None.  This needs no memory. */
    static PyObject *dy_context_value(PyObject *variable) {
        PyObject *value = NULL;
        PyContextVar_Get(variable, NULL, &value);
        return value;
    }

    static inline uint64_t dy_context_version_now(void) { return PyThreadState_Get()->context_ver; }

    /* Whether this runs in a context that something has entered, such as a task of asyncio, and not in that which a
     * thread or greenlet has of itself: only the latter can be entered. */
    static int dy_context_entered(void) {
        PyObject *context = PyThreadState_Get()->context;
        if (context == NULL)
            return 0;
        if (PyContext_Enter(context) == 0)
            return PyContext_Exit(context);
        PyErr_Clear();
        return 1;
    }
    """
    Graph* dy_current
    uint64_t dy_context_version
    uint64_t dy_context_version_now()
    object context_value "dy_context_value"(object variable)
    bint context_entered "dy_context_entered"() except -1


class _Local(threading.local):
    entered = None                          # the innermost graph that was entered in this thread
    implicit = None                         # its graph outside of those


_local = _Local()

# The innermost graph that was entered, or None.  A task of asyncio, or what else has entered a context of its own, has
# one there; it goes before that of the thread in `_local.entered`.
_entered = contextvars.ContextVar("dynet_cy.entered", default=None)

cdef NewGraph new_graph = NULL


cdef void set_new_graph(NewGraph make) noexcept:
    global new_graph
    new_graph = make


cdef class _Entered:
    """A graph that was entered, and the one around it."""

    cdef object owner
    cdef Graph* g
    cdef _Entered outer
    cdef bint left                          # there was no memory to put the one around it in its place


cdef _Entered entering(object owner, Graph* g, _Entered outer):
    cdef _Entered x = _Entered.__new__(_Entered)
    x.owner = owner
    x.g = g
    x.outer = outer
    return x


cdef _Entered innermost(_Entered x):
    """The innermost of the graphs from x outwards that was not left; None: there is none."""
    while x is not None and x.left:
        x = x.outer
    return x


cdef void look_around() noexcept:
    """Find the current graph: the context may be another one than before."""
    global dy_current, dy_context_version
    cdef _Entered inner = innermost(context_value(_entered))
    if inner is None:
        inner = innermost(_local.entered)
    if inner is None:
        inner = _local.implicit
    dy_current = NULL if inner is None else inner.g
    dy_context_version = dy_context_version_now()


cdef Graph* graph_here() noexcept:
    if dy_context_version != dy_context_version_now():
        look_around()
    return dy_current


cdef Graph* current_graph() except NULL:
    global dy_current
    cdef Graph* implicit = NULL
    if graph_here() == NULL:
        owner = new_graph(&implicit)
        _local.implicit = entering(owner, implicit, None)       # lives as long as the thread
        dy_current = implicit
    return dy_current


cdef int enter_graph(object owner, Graph* g) except -1:
    global dy_current, dy_context_version
    outer = innermost(context_value(_entered))
    if outer is None and not context_entered():
        _local.entered = entering(owner, g, innermost(_local.entered))
    else:
        _entered.set(entering(owner, g, outer))
    dy_context_version = dy_context_version_now()
    dy_current = g
    return 0


cdef int leave_graph(object owner) except -1:
    cdef _Entered inner = innermost(context_value(_entered))
    cdef bint of_context = inner is not None
    if not of_context:
        inner = innermost(_local.entered)
    if inner is None or inner.owner is not owner:
        raise RuntimeError("graphs must be left in the reverse order of entering, "
                           "in the thread and the task that entered them")
    try:
        if of_context:
            _entered.set(inner.outer)
        else:
            _local.entered = inner.outer
    except MemoryError:
        inner.left = True
    look_around()
    return 0


cdef void forget_current(Graph* g) noexcept:
    global dy_current
    if dy_current == g:
        dy_current = NULL
