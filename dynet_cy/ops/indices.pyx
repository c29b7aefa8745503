"""Whole numbers given from Python, and indices as the unsigned words of a node."""

import numbers

import numpy as np

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from dynet_cy.core.limits cimport MOST_ALONG
from dynet_cy.graph.expressions cimport dim_of
from dynet_cy.graph.making cimport expression

from dynet_cy.ops.registry import DimensionError

cdef extern from "Python.h":
    # NULL: numbers that are too large become the largest.
    Py_ssize_t as_size "PyNumber_AsSsize_t"(object value, PyObject* error) except? -1


cdef Py_ssize_t whole(object value, str op, str what="an index") except? -1:
    """An index, an axis or a size, which may be given as a float such as the result of a division."""
    cdef Py_ssize_t i
    if type(value) is not int and not hasattr(value, "__index__"):
        if not isinstance(value, numbers.Real) or value != value // 1:
            raise TypeError(f"{op}: {what} must be a whole number, not {value!r}")
        value = int(value)
    i = as_size(value, NULL)
    if not -MOST_ALONG <= i <= MOST_ALONG:
        raise (IndexError if what == "an index" else DimensionError)(
            f"{op}: {what} is {value}, but no axis has more than {MOST_ALONG} elements (2^31 - 1)")
    return i


cdef Py_ssize_t axis_in(object x, object axis, str op, str what="d") except -1:
    """An axis of x; a negative one counts from the end."""
    cdef Py_ssize_t i = whole(axis, op, what)
    cdef Py_ssize_t n
    if i > 0xFF:
        raise DimensionError(f"{op}: {what} is {i}, which is not an axis of x")
    if i >= 0:
        return i
    n = dim_of(expression(x, op, "x")).nd
    if i < -n:
        raise DimensionError(f"{op}: {what} is {i}, but x has {n} axes")
    return i + n


cdef object whole_where_possible(object array, str op):
    """An array of indices: floats that are whole numbers, such as results of a division, as integers."""
    if array.dtype.kind not in "fu" or not np.isfinite(array).all() or (array != np.floor(array)).any():
        return array
    for value in array[np.abs(array) > MOST_ALONG].ravel():
        raise IndexError(
            f"{op}: an index is {int(value)}, but no axis has more than {MOST_ALONG} elements (2^31 - 1)")
    return array.astype(np.int64)


cdef int set_index(Extra* extra, uint32_t* place, object value, str op) except -1:
    """One index, for every batch element; it is stored at `place`."""
    cdef Py_ssize_t index = whole(value, op)
    if index < 0:
        raise IndexError(f"{op}: index {index} is out of range")
    place[0] = <uint32_t>index
    extra.items = place
    extra.n_items = 1
    extra.item_count = 1
    return 0


cdef bytes index_words(object values, str op):
    """The numbers of a list or a tuple as 32-bit words."""
    cdef Py_ssize_t i = 0, n = len(values)
    cdef Py_ssize_t index
    cdef bytes held = PyBytes_FromStringAndSize(NULL, n * sizeof(uint32_t))
    cdef uint32_t* words = <uint32_t*><char*>held
    if n == 0:
        raise TypeError(f"{op}: a list of indices is needed, not {values!r}")
    for value in values:
        index = whole(value, op)
        if index < 0:
            raise IndexError(f"{op}: index {index} is out of range")
        words[i] = <uint32_t>index
        i += 1
    return held


cdef bytes set_indices(Extra* extra, object values, str op):
    """A list of indices, one for each batch element.

    Returns:
        The object that owns their memory, which must live until the node is made.
    """
    cdef bytes held
    if type(values) is list or type(values) is tuple:
        held = index_words(values, op)
        extra.items = <const uint32_t*><const char*>held
        extra.n_items = <uint32_t>len(values)
        extra.item_count = 1
        return held
    array = whole_where_possible(np.asarray(values), op)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise TypeError(f"{op}: a list of indices is needed, not {values!r}")
    if array.min() < 0 or array.max() > MOST_ALONG:
        worst = array.min() if array.min() < 0 else array.max()
        raise IndexError(f"{op}: index {worst} is out of range: from 0 to {MOST_ALONG} - 1 are possible (2^31 - 2)")
    held = array.astype(np.uint32).tobytes()
    extra.items = <const uint32_t*><const char*>held
    extra.n_items = len(array)
    extra.item_count = 1
    return held


cdef bint is_list(object values):
    """Whether there are several numbers rather than one."""
    return isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) > 0


cdef int check_count(const Shapes* s, uint32_t item_count) except -1:
    """There must be `item_count` indices, or that many for each batch element."""
    if s.n_items != item_count and s.n_items != item_count * s.bd:
        text = f"{s.n_items} indices given where {item_count} are needed"
        if s.bd > 1:
            text += f", or {item_count} for each of the {s.bd} batch elements"
        raise IndexError(text)
    return 0
