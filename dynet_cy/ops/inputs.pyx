"""Inputs and constants: leaves whose values come from Python."""

import numpy as np

from libc.string cimport memset

from dynet_cy.core.tensor cimport Dim, total_of
from dynet_cy.graph.graph cimport COMPUTED, Expression, Extra, Graph, forget, leaf, place
from dynet_cy.graph.graph cimport nodes_of
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.bridge cimport copy_floats, dim_from_shape, floats_in
from dynet_cy.ops.registry cimport Op, register

from dynet_cy.devices import check_device


cdef Op* INPUT = register(b"input", b"", NULL, NULL, NULL)
INPUT.no_gradient_because = b"a leaf that is not trained"


cdef Expression new_leaf(const Dim* dim, float** v):
    """A computed leaf of that shape, whose floats are still to be written at v."""
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    v[0] = place(total_of(dim))
    extra.val = v[0]
    extra.state = COMPUTED
    return leaf(INPUT, dim, &extra)


cdef int dim_with_batch(object shape, object batch_size, Dim* dim, str op) except -1:
    if not isinstance(shape, (tuple, list)):
        shape = (shape,)
    dim_from_shape(tuple(shape), dim, op)
    n = int(batch_size)
    if n < 1 or n != batch_size or n >= 2**32:
        raise ValueError(f"{op}: the batch size must be a positive whole number, not {batch_size}")
    dim.bd = n
    return 0


cdef Expression filled(object shape, object batch_size, float value, str op):
    cdef Dim dim
    cdef float* v
    dim_with_batch(shape, batch_size, &dim, op)
    x = new_leaf(&dim, &v)
    K.fill(total_of(&dim), value, v)
    return x


def constant(dim, val, batch_size=1):
    """A tensor with the same number everywhere.

    Args:
        dim: shape, a tuple or one number.
        val: the number.
        batch_size: number of batch elements.
    """
    return filled(dim, batch_size, val, "constant")


def zeros(dim, batch_size=1):
    """A tensor of zeros; see `constant`."""
    return filled(dim, batch_size, 0, "zeros")


def ones(dim, batch_size=1):
    """A tensor of ones; see `constant`."""
    return filled(dim, batch_size, 1, "ones")


cdef class _SettableInput(Expression):
    """An input whose value can be set anew; what depends on it is then computed again."""

    cdef tuple shape

    def set(self, values):
        """Set the value.

        Args:
            values: a number for `scalarInput`, else as many numbers as before.

        Raises:
            ValueError: there are more or fewer numbers than the input has.
        """
        cdef Graph* g = self.graph()
        array = floats_in(values, "set", "the value", 8)
        if array.size != np.prod(self.shape, dtype=int):
            raise ValueError(
                f"set: the value has shape {array.shape}, the input has {self.shape}")
        forget(g)
        copy_floats(array.reshape(-1, order="F"), nodes_of(g)[self.index].val, array.size)


cdef _SettableInput settable(object array, const Dim* dim):
    cdef float* v
    cdef Expression plain = new_leaf(dim, &v)
    cdef _SettableInput x = _SettableInput.__new__(_SettableInput)
    copy_floats(array, v, total_of(dim))
    x.version = plain.version
    x.slot = plain.slot
    x.index = plain.index
    x.shape = array.shape
    return x


cdef _SettableInput from_values(object values, str op, bint batched):
    cdef Dim dim
    array = floats_in(values, op, "the value", 8 if batched else 7)
    shape = array.shape
    if batched:
        if not shape:
            raise ValueError(f"{op}: a single number has no batch axis")
        dim_with_batch(shape[:-1], shape[-1], &dim, op)
    else:
        dim_with_batch(shape, 1, &dim, op)
    return settable(array, &dim)


def scalarInput(s, device=""):
    """One number as an input of shape ``{1}``; `set` changes it later."""
    check_device(device, "scalarInput")
    array = floats_in(s, "scalarInput", "s", 7)
    if array.size != 1:
        raise ValueError(f"scalarInput: s has shape {array.shape}, one number is needed")
    return from_values(array.reshape(1), "scalarInput", False)


def inputVector(v, device=""):
    """A list of n numbers as an input of shape ``{n}``; `set` changes it later."""
    check_device(device, "inputVector")
    array = floats_in(v, "inputVector", "v", 1)
    if array.ndim != 1:
        raise ValueError("inputVector: v must be a list of numbers")
    return from_values(array, "inputVector", False)


def vecInput(dim, device=""):
    """An input of shape ``{dim}``, zeros until `set` is called."""
    check_device(device, "vecInput")
    return from_values(np.zeros(int(dim), np.float32), "vecInput", False)


def inputTensor(arr, batched=False, device="", reusable_expr=False):
    """An array as an input.

    Args:
        arr: numbers: an array, or nested lists.
        batched: whether the last axis is the batch.
        device: only "" and "CPU" so far.
        reusable_expr: accepted for DyNet's sake: `set` is always there.

    Returns:
        Expression with the shape of the array.

    Raises:
        TypeError, ValueError: arr does not hold numbers, or has too many axes.
    """
    check_device(device, "inputTensor")
    return from_values(arr, "inputTensor", batched)


def inputMatrix(v, d):
    """A flat list of numbers as a matrix, column by column.

    Args:
        v: the numbers.
        d: shape.
    """
    array = floats_in(v, "inputMatrix", "v", 1)
    shape = tuple(int(n) for n in d)
    if array.size != np.prod(shape, dtype=int):
        raise ValueError(f"inputMatrix: v has {array.size} numbers, shape {shape} needs "
                         f"{np.prod(shape, dtype=int)}")
    return from_values(array.reshape(shape, order="F"), "inputMatrix", False)


def matInput(d1, d2):
    """An input of shape ``{d1,d2}``, zeros until `set` is called."""
    return from_values(np.zeros((int(d1), int(d2)), np.float32), "matInput", False)


def one_hot(d, idx, device=""):
    """Vectors with a 1 in one place and 0 in all others.

    Args:
        d: number of elements.
        idx: the place of the 1, or a list of places, one for each batch element.
        device: only "" and "CPU" so far.

    Returns:
        Expression of shape ``{d}``.

    Raises:
        IndexError: a place is not from 0 to d - 1.
    """
    cdef Dim dim
    cdef float* v
    check_device(device, "one_hot")
    places = np.atleast_1d(idx)
    if places.ndim != 1 or places.size == 0 or places.dtype.kind not in "iu":
        raise TypeError(f"one_hot: idx must be a number or a list of them, not {idx!r}")
    dim_with_batch(d, len(places), &dim, "one_hot")
    for i in places.tolist():
        if i < 0 or i >= d:
            raise IndexError(f"one_hot: index {i} is not from 0 to {d - 1}")
    x = new_leaf(&dim, &v)
    K.fill(total_of(&dim), 0, v)
    for b, i in enumerate(places.tolist()):
        v[<size_t>b * dim.d[0] + <size_t>i] = 1
    return x
