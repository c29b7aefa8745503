"""Errors of calls with a wrong or missing argument: they list the arguments of the function, and say what to write.

Python calls a function that is written in C through a pointer in its object (PEP 590).  Those that are watched have a
pointer to a function here, which calls the former one and looks at its error, if there is one.  So what succeeds costs
nothing: a wrapper in Python would take longer than most functions; those that are written in Python have one
(`known_arguments` in functions/arguments).  In code that has run often, and methods up to
Python 3.10, Python calls in another way, and errors are its own; but a wrong argument fails when its line runs first.
"""

from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_SetObject
from cpython.ref cimport PyObject, Py_XDECREF

from dynet_cy.hints.equivalents import of_arguments


cdef extern from "keywords.h":
    void dy_watch(PyObject* called, void (*explain)(PyObject*, size_t, PyObject*) noexcept)


def watch(called: Callable[..., Any]) -> None:
    """Add advice to the errors of a function or method in C that takes keywords."""
    dy_watch(<PyObject*>called, explain)


cdef void explain(PyObject* called, size_t given, PyObject* names) noexcept:
    """Replace the error that is raised, if the call has an argument that the function does not have, or lacks one."""
    cdef PyObject* kind
    cdef PyObject* value
    cdef PyObject* traceback
    PyErr_Fetch(&kind, &value, &traceback)
    try:
        text = of_arguments(<object>called, () if names == NULL else <object>names, given=given)
    except Exception:  # Python's own error is raised then
        text = ""
    if not text:
        PyErr_Restore(kind, value, traceback)
        return
    Py_XDECREF(kind)
    Py_XDECREF(value)
    Py_XDECREF(traceback)
    PyErr_SetObject(TypeError, text)
