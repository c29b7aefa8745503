"""C structs of a graph, and tables of functions that higher layers fill in, so that graphs need not import
executors, scheduler or profiler."""

from cpython.object cimport PyTypeObject
from cpython.type cimport PyType_Modified

# Functions of higher layers that are methods and operators of expressions and graphs, by name.
operators = {}
# What the numbers of a result are, by the number of the op, where that is known: "probabilities" or "scores".
results = {}
# Ops whose results are numbers like their arguments, by the number of the op: whether all arguments must be alike.
carriers = {}

cdef Engine[ENGINE_COUNT] engines
cdef Speculation speculation
cdef PassHooks passes


cdef Engine* engine(int kind) noexcept:
    return &engines[kind]


cdef Speculation* speculation_hooks() noexcept:
    return &speculation


cdef PassHooks* pass_hooks() noexcept:
    return &passes


cdef Engine* engine_of(const Graph* g) noexcept:
    return &engines[ENGINE_MULTI_DEVICE if g.multi_device else ENGINE_GPU if g.device else ENGINE_CPU]


def give_attributes(cls, dict attributes):
    """Set attributes of a class, also of one of Cython, where Python's `setattr` refuses."""
    (<dict>(<PyTypeObject*>cls).tp_dict).update(attributes)
    PyType_Modified(cls)


cdef list place_names = []          # C strings that classes refer to


def set_place(cls, str place):
    """Set the module that a class says it is of, also of one of Cython, where Python's `setattr` refuses."""
    try:
        cls.__module__ = place
    except TypeError:
        place_names.append(f"{place}.{cls.__name__}".encode())
        (<PyTypeObject*>cls).tp_name = place_names[len(place_names) - 1]
        PyType_Modified(cls)
