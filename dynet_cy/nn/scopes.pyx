"""Scopes of layers: while something watches, the nodes of a layer are in a scope with its name."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t

from dynet_cy.graph.origin cimport current_scope, enter_scope, noting, set_scope

# The C functions that Python calls for `layer(x)`. They are slots of the class, since a method that wraps `__call__`
# would cost every call more than a layer such as `Dropout` takes.
cdef extern from *:
    ctypedef PyObject* (*Call "ternaryfunc")(PyObject* layer, PyObject* args, PyObject* kwargs) noexcept
    ctypedef struct ClassObject "PyTypeObject":
        Call tp_call

cdef Call plain = NULL              # calls the method `__call__`


cdef PyObject* call(PyObject* layer, PyObject* args, PyObject* kwargs) noexcept:
    return call_in_scope(layer, args, kwargs) if noting else plain(layer, args, kwargs)


cdef PyObject* call_in_scope(PyObject* layer, PyObject* args, PyObject* kwargs) noexcept:
    cdef uint32_t outside = current_scope()
    cdef PyObject* result
    try:
        enter_scope(name_of(<object>layer))
    except Exception:               # a layer that is not finished has no name
        pass
    result = plain(layer, args, kwargs)
    set_scope(outside)
    return result


cdef str name_of(layer):
    """The name of a layer's collection, which is that of its attribute; the class where that is only a number."""
    name = layer.collection.name().rstrip("/").rpartition("/")[2]
    return f"{type(layer).__name__}.{name}".rstrip(".") if name.isdigit() or not name else name


def open_scopes(cls: type):
    """Let the calls of the instances of a class, which has a method `__call__`, open scopes."""
    global plain
    cdef ClassObject* of = <ClassObject*><PyObject*>cls
    if not isinstance(cls, type):
        raise TypeError(f"open_scopes: expected a class, got {type(cls).__name__}")
    if plain == NULL:
        plain = of.tp_call
    if of.tp_call == plain:
        of.tp_call = call
