"""The current graph: that of the innermost `with` of a task or thread, else the thread's implicit graph.

Programs written for DyNet have one implicit graph, which all threads share (`share_implicit_graph`).
"""

import contextvars
import threading

from dynet_cy.core.atomic cimport Number, add_to
from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.graph.structs cimport RUNNING, Graph


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


class _Shared:
    """What `_local` has for each thread, for all threads of a program written for DyNet."""

    implicit = None
    left_running = ()                       # implicit graphs that were replaced while another thread ran them


_shared = _Shared()
_making = threading.RLock()                 # held while a shared graph is made

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
        inner = home().implicit
    seen.graph = NULL if inner is None else inner.g
    seen.context_version = context_version_now()


cdef object home():
    """Where the implicit graph of this thread is kept."""
    return _shared if follows_dynet() else _local


cdef Graph* make_implicit() except NULL:
    cdef _Entered made
    if not follows_dynet():
        made = new_implicit()
        _local.implicit = made                              # lives as long as the thread
    else:
        with _making:
            made = _shared.implicit
            if made is None:
                made = new_implicit()
                _shared.implicit = made
    changed()
    return made.g


cdef _Entered new_implicit():
    cdef Graph* g = NULL
    owner = new_graph(&g)
    return entering(owner, g, None)


def share_implicit_graph():
    """Make the implicit graph of this thread that of all threads; `follow_dynet` comes before this."""
    if _shared.implicit is None:
        _shared.implicit = _local.implicit
    changed()


cdef int leave_running(Graph* g) except -1:
    """Replace the shared implicit graph, which another thread is running, by a new one.

    The other thread finds its expressions stale when it has finished.  The graph lives until the next one is replaced.
    """
    cdef _Entered left, x
    with _making:
        left = _shared.implicit
        if left is None or left.g != g:
            return 0
        made = new_implicit()
        running = [left]
        for x in _shared.left_running:
            if x.g.version == RUNNING:
                running.append(x)
        _shared.left_running = running
        _shared.implicit = made
    changed()
    return 0


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
