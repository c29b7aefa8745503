"""Indices from the graph: errors for indices out of range."""

from typing import NamedTuple

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport FLOATS, Dim, Tensor, number_at, size_of
from dynet_cy.ops.registry cimport Shapes

from dynet_cy.ops.registry import DimensionError


cdef extern from "refusal.h":
    # derived: structs of Refusal
    ctypedef struct Refusal "dy_refusal":
        uint32_t function
        uint32_t b
        uint32_t n
        uint32_t any
        size_t k
        double v
        uint32_t node
    # end of structs
    # derived: variables of last = dy_refused
    Refusal last "dy_refused"
    # end of variables


cdef list functions = [None]                    # by number: a function from a refusal to its error


cdef uint32_t number_of(object function) except 0:
    if function not in functions:
        functions.append(function)
    return <uint32_t>functions.index(function)


cdef uint32_t function_number(str name, str barred=None) except 0:
    return number_of(_BadIndex(name, barred))


cdef uint32_t chooser_number(str name, str never=None, tuple arguments=("x",)) except 0:
    return number_of(_NoChoice(name, never, arguments))


class _BadIndex(NamedTuple):
    name: str
    barred: str                                 # what is wrong with the index BARRED, or None

    def error(self, k, batch, v, n):
        at = f"element {k}{batch}"
        if self.barred is not None and v == BARRED:
            return IndexError(f"{self.name}: {self.barred}, at {at}")
        value = str(int(v)) if v == v and abs(v) < 2**31 and v == int(v) else repr(float(v))
        needed = f"it must be a whole number from 0 to {n - 1}" if n else "there is nothing to choose from"
        return IndexError(f"{self.name}: the index is {value} at {at}; {needed}")


class _NoChoice(NamedTuple):
    name: str
    never: str                                  # what is said if the best is -inf; may have {k} and {batch}
    arguments: tuple                            # names

    def error(self, k, batch, v, n):
        if v < 0:
            return ValueError(f"{self.name}: {self.never.format(k=k, batch=batch)}")
        return ValueError(f"{self.name}: {self.arguments[n]} is {'NaN' if v != v else v} at element {k}{batch}")


cdef void refuse(uint32_t function, const Tensor* x, uint32_t b, size_t k, uint32_t n) noexcept nogil:
    refuse_number(function, number_at(x, b, k), b, k, n)


cdef void refuse_number(uint32_t function, double v, uint32_t b, size_t k, uint32_t n) noexcept nogil:
    global last
    if last.any:
        return
    last.any = True
    last.function = function
    last.b = b
    last.k = k
    last.v = v
    last.n = n


cdef void* refused() noexcept nogil:
    if not last.any:
        return NULL
    last.any = False
    return error_of_refusal()


cdef uint32_t refused_element() noexcept nogil:
    return last.b


cdef void locate(uint32_t node, uint32_t b) noexcept nogil:
    global last
    last.node = 1 + node
    last.b = b


cdef uint32_t located() noexcept nogil:
    cdef uint32_t node = last.node
    last.node = 0
    return node - 1


cdef object located_refusal():
    return refusal(last.function, last.b, last.k, last.v, last.n)


cdef void* error_of_refusal() noexcept with gil:
    error = refusal(last.function, last.b, last.k, last.v, last.n)
    Py_INCREF(error)
    return <void*>error


cdef object refusal(uint32_t function, uint32_t b, size_t k, double v, uint32_t n):
    return functions[function].error(k, f" of batch element {b}" if b else "", v, n)


cdef int need_positions(const Dim* indices, size_t n) except -1:
    if n > MOST_POSITIONS and indices.type == FLOATS:
        raise DimensionError(
            f"an index in floats reaches {<int>MOST_POSITIONS} elements (2^24), but there are {n}; integers reach all, "
            "such as those of argmax, input_indices and to_int")
    return 0


cdef int need_one(const Shapes* s, uint32_t i) except -1:
    if size_of(s.x[i]) != 1:
        raise DimensionError("the index must be one number for each batch element")
    return 0
