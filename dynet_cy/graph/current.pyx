"""The current graph: that of the innermost `with` of a task or thread, else the thread's implicit graph."""

import contextvars
import threading

from dynet_cy.core.atomic cimport Number, add_to
from dynet_cy.graph.structs cimport Graph


cdef extern from *:
    """
    /* The value of a context variable with a default of None.  This needs no memory. */
    static PyObject *dy_context_value(PyObject *variable) {
        PyObject *value = NULL;
        PyContextVar_Get(variable, NULL, &value);
        return value;
    }

    /* Whether the current context was entered explicitly, as by a task of asyncio, rather than being the thread's or
     * greenlet's own: only the latter can be entered. */
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
    object context_value "dy_context_value"(object variable)
    bint context_entered "dy_context_entered"() except -1


class _Local(threading.local):
    entered = None                          # the innermost graph that was entered in this thread
    implicit = None                         # its graph outside of those


_local = _Local()

# The innermost graph that was entered, or None.  Code in a context of its own, such as a task of asyncio, enters graphs
# here; they take precedence over those of the thread, in `_local.entered`.
_entered = contextvars.ContextVar("dynet_cy.entered", default=None)

cdef NewGraph new_graph = NULL
cdef Number changes = 0               # times that a graph was entered, left or closed, in any thread


cdef void set_new_graph(NewGraph make) noexcept:
    global new_graph
    new_graph = make


cdef class _Entered:
    """A graph that was entered, and the one around it."""

    cdef object owner
    cdef Graph* g
    cdef _Entered outer
    cdef bint left                          # it was left, but there was no memory to restore the outer one


cdef _Entered entering(object owner, Graph* g, _Entered outer):
    cdef _Entered x = _Entered.__new__(_Entered)
    x.owner = owner
    x.g = g
    x.outer = outer
    return x


cdef _Entered innermost(_Entered x):
    """The innermost of the graphs from x outwards that has not been left, or None."""
    while x is not None and x.left:
        x = x.outer
    return x


cdef void look_around(Seen* seen) noexcept:
    """Look up the current graph again; the context may have changed."""
    cdef _Entered inner
    seen.counter = &changes
    seen.changes = changes
    inner = innermost(context_value(_entered))
    if inner is None:
        inner = innermost(_local.entered)
    if inner is None:
        inner = _local.implicit
    seen.graph = NULL if inner is None else inner.g
    seen.context_version = context_version_now()


cdef Graph* make_implicit() except NULL:
    cdef Graph* g = NULL
    owner = new_graph(&g)
    _local.implicit = entering(owner, g, None)              # lives as long as the thread
    changed()
    return g


cdef int enter_graph(object owner, Graph* g) except -1:
    outer = innermost(context_value(_entered))
    if outer is None and not context_entered():
        _local.entered = entering(owner, g, innermost(_local.entered))
    else:
        _entered.set(entering(owner, g, outer))
    changed()
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
    changed()
    return 0


cdef void changed() noexcept:
    """Make all threads look up their current graph again."""
    add_to(&changes, 1)


cdef void forget_current() noexcept:
    changed()
