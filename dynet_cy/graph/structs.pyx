"""C structs of a graph, and tables of functions that higher layers fill in, so that graphs need not import
executors, scheduler or profiler."""

from cpython.object cimport PyTypeObject
from cpython.type cimport PyType_Modified

# Functions of higher layers that are methods and operators of expressions and graphs, by name.
operators: dict[str, Callable[..., Any]] = {}
# What the numbers of a result are, by the number of the op, where that is known: "probabilities" or "scores".
results: dict[int, str] = {}
# Ops that carry numbers over, as a selection does: their results are probabilities or scores if their arguments are.
# By the number of the op: whether all arguments must be alike.
carriers: dict[int, bool] = {}

cdef Engine executors
cdef Speculation speculation
cdef PassHooks passes


cdef Engine* engine() noexcept nogil:
    return &executors


cdef Speculation* speculation_hooks() noexcept:
    return &speculation


cdef PassHooks* pass_hooks() noexcept:
    return &passes


def give_attributes(cls: type, dict attributes: dict[str, Any]):
    """Set attributes of a class, also of one of Cython, where Python's `setattr` refuses."""
    (<dict>(<PyTypeObject*>cls).tp_dict).update(attributes)
    PyType_Modified(cls)


cdef list place_names = []          # C strings that classes refer to


def set_place(cls: type, str place):
    """Set the module that a class says it is of, also of one of Cython, where Python's `setattr` refuses."""
    try:
        cls.__module__ = place
    except TypeError:
        place_names.append(f"{place}.{cls.__name__}".encode())
        (<PyTypeObject*>cls).tp_name = place_names[len(place_names) - 1]
        PyType_Modified(cls)
