"""Parameters, lookup tables and the collections that own them."""

import contextlib
import difflib
import html
import math
import numbers
import os
import weakref
from math import prod

import numpy as np

from cpython.long cimport PyLong_AsLongAndOverflow
from libc.math cimport isfinite
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Call, Dim, dim_with_rows, size_of
from dynet_cy.graph.graph cimport (
    COMPUTED, SHARED, TRAINABLE, ComputationGraph, Expression, Extra, Graph, Node, current, current_graph,
    forget, items_of, leaf_index, nodes_of, wrap,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.bridge cimport array_of, copy_floats, dim_from_shape, floats_in, shape_of
from dynet_cy.memory.changes cimport see_whole
from dynet_cy.memory.mirror cimport default_device
from dynet_cy.memory.storage cimport Param, Plane, Storage, forget_gradient, pthread_mutex_t, touch, value_changed
from dynet_cy.ops.registry cimport Op, register

from dynet_cy.devices import check_device, device_name
from dynet_cy.initializers import NumpyInitializer, as_initializer
from dynet_cy.kernels.draws import HostRandom
from dynet_cy.model.matching import ParameterShape, complaint, matches
from dynet_cy.memory.storage import parameter_names
from dynet_cy.textfile import (
    LOOKUP, PARAMETER, ModelMismatchError, populate_entries, read_text_model, write_text_model,
)


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)


# ---- leaves of graphs --------------------------------------------------------

cdef void lookup_forward(const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        if p.factor == 1:
            memcpy(c.y.v + b * n, p.value + c.items[b] * n, n * sizeof(float))
        else:
            K.scale(n, <float>p.factor, p.value + c.items[b] * n, c.y.v + b * n)


cdef void lookup_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        touch(p, c.items[b])
    K.add_rows(c.y.dim.bd, n, c.items, c.dy.v, p.grad)


# A parameter needs no running: its value is in storage.
cdef Op* PARAMETER_LEAF = register(b"parameter", b"", NULL, NULL, NULL)
PARAMETER_LEAF.no_gradient_because = b"a leaf: gradients are added to its storage"

cdef Op* LOOKUP_LEAF = register(b"lookup", b"", NULL, lookup_forward, lookup_backward)


# ---- weight decay ------------------------------------------------------------

# Trainers multiply all values by 1 - lambda, update after update.  For parameters they do so in the
# pass that they make anyway.  Of a table they visit a few rows only, so it has a factor instead,
# which is multiplied into what is read.

cdef void fold_scale(Param* p) noexcept nogil:
    """Multiply the factor of a table into its numbers."""
    if p.factor != 1:
        K.scale(p.size, <float>p.factor, p.value, p.value)
        p.factor = 1
        value_changed(p)


cdef object shown(_Stored x, tuple shape, size_t start=0):
    """The value, from a place on, as a new array."""
    array = x.part(x.storage.values, start, shape)
    if x.p.factor != 1:
        array *= np.float32(x.p.factor)
    return array


cdef double default_weight_decay = 0
# Shares less than this are collected: taken off one by one, much of them would be lost in rounding.
LEAST_DECAY = 2.0 ** -20


def _checked_weight_decay(value):
    cdef double decay = value
    if not (isfinite(decay) and decay >= 0):
        raise ValueError(f"weight decay must be a number of at least 0, not {value!r}")
    return decay


def set_default_weight_decay(value):
    """Set the weight decay of root collections that are made from now on."""
    global default_weight_decay
    default_weight_decay = _checked_weight_decay(value)


def get_default_weight_decay():
    """The weight decay of new root collections."""
    return default_weight_decay


# ---- parameters --------------------------------------------------------------

cdef class _Stored(Expression):
    """What parameters and lookup tables share: an entry of a storage."""

    cdef int check_made(self) except -1:
        if self.storage is None:
            raise TypeError(
                f"{type(self).__name__} are made by a ParameterCollection, not by calling the class")
        return see_whole()

    cdef int leaf_in_current(self, bint update) except -1:
        """Let the expression be the node of this parameter in the current graph."""
        cdef ComputationGraph graph
        cdef Extra extra
        cdef Dim dim
        self.check_made()
        graph = current()
        key = (self.p.id, update)
        index = graph.leaves.get(key)
        if index is None:
            memset(&extra, 0, sizeof(Extra))
            extra.attrs[0].u = update
            extra.object = self.p
            extra.state = COMPUTED | SHARED | (TRAINABLE if update else 0)
            dim = dim_with_rows(&self.p.dim, self.p.rows)
            extra.device = 1 + self.p.device
            fold_scale(self.p)
            self.p.in_place = 1
            index = leaf_index(PARAMETER_LEAF, &dim, &extra)
            graph.leaves[key] = index
            graph.keep.setdefault(self.storage)
        self.version = graph.g.version
        self.slot = graph.g.slot
        self.index = index
        return 0

    cdef int enter(self) except -1:
        if current_graph().version != self.version:
            self.leaf_in_current(True)
        return 0

    cdef Graph* graph(self) except NULL:
        self.enter()
        return current_graph()

    def name(self):
        """Full name: the names of the collections that it is in, then its own.

        Example:
            >>> model.add_subcollection("layer").add_parameters(2, name="W").name()
            '/layer/W'
        """
        self.check_made()
        return self.full_name

    def expr(self, update=False):
        """An expression of the current graph with this value.

        Args:
            update: whether gradients reach the parameter; it is a constant when False. Default: False.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W.expr(update=False)).backward()
            >>> W.grad_as_array()
            array([0., 0.], dtype=float32)
        """
        cdef _Stored constant = _stored(type(self), self.storage, self.p, self.full_name)
        constant.leaf_in_current(bool(update))
        return wrap(current_graph(), constant.index)

    def set_updated(self, b):
        """Set whether this parameter is trained.

        A parameter that is not, a frozen one, is a constant: `backward` collects no gradient
        for it, so it has no place in the norm of gradients, and trainers leave its value as it
        is, weight decay included.  What trainers keep for it (momentum, moments) stays as it is
        and is used again when the parameter is trained again.  What has been collected of
        its gradient is dropped.

        This holds for graphs that are there already too, from their next `backward` on.

        Args:
            b: False to freeze it, True to train it again.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.set_updated(False)        # for the first epochs
            >>> table.set_updated(True)
        """
        self.check_made()
        self.p.updated = bool(b)
        if not b:
            zero_gradient(self)

    def is_updated(self):
        """Whether this parameter is trained: see `set_updated`.

        Example:
            >>> W = model.add_parameters(2)
            >>> W.set_updated(False)
            >>> W.is_updated()
            False
        """
        self.check_made()
        return bool(self.p.updated)

    def zero(self):
        """Set the value to zero.

        Example:
            >>> W = model.add_parameters(2)
            >>> W.zero()
            >>> W.npvalue()
            array([0., 0.])
        """
        self.check_made()
        memset(self.p.value, 0, self.p.size * sizeof(float))
        self.storage.values.clear(self.p.offset, self.p.size)
        value_changed(self.p)
        self.p.factor = 1

    def scale(self, s):
        """Multiply the value by s.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> W.scale(0.5)
            >>> W.npvalue()
            array([1.5, 1.5])
        """
        self.check_made()
        self.multiply(self.storage.values, s)
        value_changed(self.p)

    def scale_gradient(self, s):
        """Multiply the gradient by s.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> W.scale_gradient(0.5)
            >>> W.grad_as_array()
            array([3., 3.], dtype=float32)
        """
        self.check_made()
        self.multiply(self.storage.grads, s)

    cdef int multiply(self, Plane plane, float s) except -1:
        cdef float* v = plane.at(self.p.offset)
        plane.pull(self.p.offset, self.p.size)
        K.scale(self.p.size, s, v, v)
        return plane.push(self.p.offset, self.p.size)

    def save(self, fname, key="", append=False):
        """Write this parameter to a text model file.

        Args:
            fname: name of the file; it is replaced whole or not at all.  Or a binary file
                that is open for writing.
            key: name in the file; the full name when empty, the default.
            append: add to the file instead (default: no).

        Raises:
            ValueError: the key has a blank or "#".
            OSError: the file cannot be written.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> W.save("W.model", key="/W")
            >>> model.load_param("W.model", "/W").npvalue()
            array([3., 3.])
        """
        self.check_made()
        _check_key(key)
        write_text_model(fname, [_entry(self, key or self.full_name)], append)

    def populate(self, fname, key=""):
        """Read the value from a text model file.

        Args:
            fname: name of the file.
            key: name of the parameter in the file.

        Raises:
            ValueError: the key is empty.
            ModelFileError: the file has no such parameter, or one of another shape.

        Example:
            >>> W, V = model.add_parameters(2, init=3), model.add_parameters(2)
            >>> W.save("W.model", key="/W")
            >>> V.populate("W.model", "/W")
            >>> V.npvalue()
            array([3., 3.])
        """
        self.check_made()
        _fill_entry(self, _find(fname, key, isinstance(self, LookupParameters)), fname)

    def write_to_textfile(self, fname, key="", append=False):
        """DyNet's other name of `save`.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> W.write_to_textfile("W.model", key="/W")
            >>> model.load_param("W.model", "/W").npvalue()
            array([3., 3.])
        """
        self.save(fname, key, append)

    def populate_from_textfile(self, fname, key=""):
        """DyNet's other name of `populate`.

        Example:
            >>> W, V = model.add_parameters(2, init=3), model.add_parameters(2)
            >>> W.write_to_textfile("W.model", key="/W")
            >>> V.populate_from_textfile("W.model", "/W")
            >>> V.npvalue()
            array([3., 3.])
        """
        self.populate(fname, key)

    cdef object part(self, Plane plane, size_t start, tuple shape):
        """Numbers of a plane, from a place in this parameter on, as a new array."""
        cdef size_t n = 1
        for d in shape:
            n *= <size_t>d
        plane.pull(self.p.offset + start, n)
        return array_of(plane.at(self.p.offset + start), shape)

    cdef int put(self, Plane plane, size_t start, object array, size_t n) except -1:
        """The way back: n numbers, column-major."""
        copy_floats(array, plane.at(self.p.offset + start), n)
        return plane.push(self.p.offset + start, n)

    cdef object array(self, Plane plane):
        """Numbers of a plane as a new array of the shape that users see."""
        array = self.part(plane, 0, _file_dim(self))
        return np.moveaxis(array, -1, 0) if self.p.rows else array

    cdef int fill(self, object array, Plane plane) except -1:
        """The way back."""
        if self.p.rows:
            array = np.moveaxis(array, 0, -1)
        return self.put(plane, 0, np.asfortranarray(array, np.float32), self.p.size)

    def __reduce__(self):
        self.check_made()
        return _restored_member, (self.members, [(<_Stored>x).p.id for x in self.members.entries].index(self.p.id))

    def __repr__(self):
        if self.storage is None:
            return f"<{type(self).__name__} of no collection>"
        return (f"<{type(self).__name__} {self.full_name} {tuple(self.shape)}"
                + ("" if self.p.updated else ", frozen") + ">")


cdef _Stored _stored(cls, Storage storage, Param* p, str name):
    cdef _Stored x = cls.__new__(cls)
    x.storage = storage
    x.p = p
    x.full_name = name
    return x


cdef tuple _file_dim(_Stored x):
    """Shape as model files have it: for a table the rows come last."""
    shape = shape_of(&x.p.dim)
    return shape + (x.p.rows,) if x.p.rows else shape


cdef object _floats_like(object values, str op, tuple shape):
    """Values of exactly that shape as column-major floats, or a clear error."""
    array = floats_in(values, op, "the value", 8)
    if array.ndim == 0 and shape == (1,):
        array = array.reshape(1)
    if array.shape != shape:
        raise ValueError(f"{op}: the value has shape {array.shape}, {shape} is needed")
    return array


cdef int zero_gradient(_Stored x) except -1:
    """Set the gradient to zero."""
    cdef Param* p = x.p
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t i
    see_whole()
    with nogil:
        pthread_mutex_lock(&p.lock)
        if p.rows:
            for i in range(p.n_touched):
                memset(p.grad + p.touched[i] * n, 0, n * sizeof(float))
        elif p.has_gradient:
            memset(p.grad, 0, p.size * sizeof(float))
        forget_gradient(p)
        pthread_mutex_unlock(&p.lock)
    # What an update on a device has left out is there without a note.
    return x.storage.grads.clear(p.offset, p.size)


cdef int _add_gradient_flag(_Stored x) except -1:
    cdef uint32_t r
    x.p.has_gradient = 1
    for r in range(x.p.rows):
        touch(x.p, r)
    return 0


cdef class Parameters(_Stored):
    """A parameter: a tensor that is trained.  It can be used wherever an expression can.

    Made by `ParameterCollection.add_parameters`.

    Example:
        >>> W = model.add_parameters((2, 2), init=dy.IdentityInitializer())
        >>> (W * dy.inputVector([3, 4])).npvalue()
        array([3., 4.])
        >>> W.shape(), W.name()
        ((2, 2), '/_0')
    """

    @property
    def shape(self):
        """Shape, a tuple.  It may be called too, as in DyNet: ``W.shape()`` is ``W.shape``.

        Example:
            >>> model.add_parameters((3, 2)).shape
            (3, 2)
        """
        self.check_made()
        return ParameterShape(shape_of(&self.p.dim))

    def as_array(self):
        """The value as a new float32 array.

        Example:
            >>> model.add_parameters(2, init=3).as_array()
            array([3., 3.], dtype=float32)
        """
        self.check_made()
        return self.array(self.storage.values)

    def grad_as_array(self):
        """The gradient that has been added up since the last update, as a new float32 array.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> W.grad_as_array()
            array([6., 6.], dtype=float32)
        """
        self.check_made()
        return self.array(self.storage.grads)

    def set_value(self, arr):
        """Set the value from numbers of the same shape.

        Raises:
            ValueError: the shapes differ.

        Example:
            >>> W = model.add_parameters((2, 2))
            >>> W.set_value([[1, 2], [3, 4]])
            >>> W.npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        self.check_made()
        array = _floats_like(arr, f"set_value of {self.full_name}", shape_of(&self.p.dim))
        self.put(self.storage.values, 0, array, self.p.size)
        value_changed(self.p)

    def clip_inplace(self, left, right):
        """Bring every element of the value into [left, right].

        Raises:
            ValueError: left is greater than right, or one of them is nan.

        Example:
            >>> W = model.parameters_from_numpy(np.array([-3, 0.5, 3]))
            >>> W.clip_inplace(-1, 1)
            >>> W.as_array()
            array([-1. ,  0.5,  1. ], dtype=float32)
        """
        if not left <= right:
            raise ValueError(f"clip_inplace of {self.full_name}: left must not be greater than right, "
                             f"but they are {left} and {right}")
        self.set_value(np.clip(self.as_array(), left, right))


cdef class LookupParameters(_Stored):
    """A lookup table: rows of trained parameters, of which a graph uses a few.

    Made by `ParameterCollection.add_lookup_parameters`.

    Example:
        >>> table = model.add_lookup_parameters((100, 3))
        >>> table[7].dim(), len(table)
        (((3,), 1), 100)
        >>> table.init_row(7, [1, 2, 3])
        >>> table[7].npvalue()
        array([1., 2., 3.])
    """

    @property
    def shape(self):
        """Number of rows, then the shape of a row, which is also that of `as_array`; as an expression, a table has its
        rows along the last axis (`dim`).  It may be called too, as in DyNet.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.shape, table.dim()
            ((10, 2), ((2, 10), 1))
        """
        self.check_made()
        return ParameterShape((self.p.rows,) + shape_of(&self.p.dim))

    def expr(self, update=True):
        """An expression of the current graph with the whole table, rows as the last axis.

        Args:
            update: whether gradients reach the table; it is a constant when False. Default: True.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.expr(update=False).dim()
            ((2, 10), 1)
        """
        return _Stored.expr(self, update)

    def __len__(self):
        self.check_made()
        return self.p.rows

    def __getitem__(self, index):
        self.check_made()
        return _row(self, index, True)

    def __iter__(self):
        for i in range(len(self)):
            yield self[i]

    def batch(self, i, update=True):
        """The rows of the numbers in `i` as a minibatch; see `lookup_batch`.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.batch([7, 3, 7]).dim()
            ((2,), 3)
        """
        return lookup_batch(self, i, update)

    def as_array(self):
        """All rows as a new float32 array, the row number first.

        Example:
            >>> model.add_lookup_parameters((2, 3), init=1).as_array()
            array([[1., 1., 1.],
                   [1., 1., 1.]], dtype=float32)
        """
        self.check_made()
        array = self.array(self.storage.values)
        if self.p.factor != 1:
            array *= np.float32(self.p.factor)
        return array

    def grad_as_array(self):
        """Gradients of all rows since the last update, as a new float32 array.

        Example:
            >>> table = model.add_lookup_parameters((3, 2), init=1)
            >>> dy.squared_norm(table[1]).backward()
            >>> table.grad_as_array()
            array([[0., 0.],
                   [2., 2.],
                   [0., 0.]], dtype=float32)
        """
        self.check_made()
        return self.array(self.storage.grads)

    def row_as_array(self, row):
        """One row as a new float32 array.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
            >>> table.row_as_array(1)
            array([3., 4.], dtype=float32)
        """
        return shown(self, shape_of(&self.p.dim), self.start_of(row, "row_as_array"))

    def row_grad_as_array(self, row):
        """The gradient of one row since the last update, as a new float32 array.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.add_lookup_parameters((3, 2), init=1)
            >>> dy.squared_norm(table[1]).backward()
            >>> table.row_grad_as_array(1)
            array([2., 2.], dtype=float32)
        """
        start = self.start_of(row, "row_grad_as_array")
        return self.part(self.storage.grads, start, shape_of(&self.p.dim))

    def rows_as_array(self, rows):
        """Some rows as a new float32 array, the row number first.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
            >>> table.rows_as_array([1, 0])
            array([[3., 4.],
                   [1., 2.]], dtype=float32)
        """
        return np.stack([self.row_as_array(r) for r in rows])

    def rows_grad_as_array(self, rows):
        """Gradients of some rows as a new float32 array, the row number first.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.add_lookup_parameters((3, 2), init=1)
            >>> dy.squared_norm(table[1]).backward()
            >>> table.rows_grad_as_array([0, 1])
            array([[0., 0.],
                   [2., 2.]], dtype=float32)
        """
        return np.stack([self.row_grad_as_array(r) for r in rows])

    cdef size_t start_of(self, object row, str op) except? 0xFFFFFFFF:
        self.check_made()
        return checked_row(self, row, op) * size_of(&self.p.dim)

    def init_row(self, i, row):
        """Set one row.

        Args:
            i: its number.
            row: numbers of the shape of a row, or as many in a flat list (column-major).

        Raises:
            IndexError: there is no such row.
            ValueError: the shape is wrong.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.init_row(7, [1, 2])
            >>> table[7].npvalue()
            array([1., 2.])
        """
        self.check_made()
        cdef size_t n = size_of(&self.p.dim)
        r = checked_row(self, i, "init_row")
        what = f"init_row of {self.full_name}"
        array = floats_in(row, what, "the value", 7)
        if array.shape != (n,):
            array = _floats_like(array, what, shape_of(&self.p.dim))
        fold_scale(self.p)
        self.put(self.storage.values, <size_t>r * n, array, n)
        value_changed(self.p)

    def init_from_array(self, arr):
        """Set all rows from an array, the row number first.

        Raises:
            ValueError: the shape is wrong.

        Example:
            >>> table = model.add_lookup_parameters((2, 2))
            >>> table.init_from_array([[1, 2], [3, 4]])
            >>> table[1].npvalue()
            array([3., 4.])
        """
        self.check_made()
        array = _floats_like(arr, f"init_from_array of {self.full_name}", tuple(self.shape))
        self.fill(array, self.storage.values)
        self.p.factor = 1
        value_changed(self.p)


cdef inline uint32_t checked_row(LookupParameters table, row, str op) except? 0xFFFFFFFF:
    return row_number(table.p, table.full_name, row, op)


cdef uint32_t row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF:
    """The row as a number that is in range, or a clear error."""
    cdef int overflows = 0
    cdef long quick
    if type(row) is int:
        quick = PyLong_AsLongAndOverflow(row, &overflows)
        if not overflows and 0 <= quick < p.rows:
            return <uint32_t>quick
    elif not hasattr(row, "__index__") and not (isinstance(row, numbers.Real) and row == int(row)):
        raise TypeError(f"{op}: index {row!r} of {name} must be a whole number")
    r = int(row)
    if not 0 <= r < p.rows:
        raise IndexError(f"{op}: index {r} is out of range for {name} with {p.rows} rows")
    return r


cdef LookupParameters as_table(object table, str op):
    if not isinstance(table, LookupParameters):
        raise TypeError(f"{op}: the table must be LookupParameters, not {type(table).__name__}")
    (<LookupParameters>table).check_made()
    return table


def lookup(p, index=0, update=True):
    """One row of a table.

    Args:
        p: lookup table with rows of shape ``{d...}``.
        index: number of the row (default: 0).
        update: whether the row is trained; it is a constant when False. Default: True.

    Returns:
        Expression of shape ``{d...}``.

    Raises:
        IndexError: there is no such row.

    Example:
        >>> table = model.add_lookup_parameters((10, 2), init=1.0)
        >>> dy.lookup(table, 7).npvalue()
        array([1., 1.])
    """
    return _row(as_table(p, "lookup"), index, update)


cdef Expression _row(LookupParameters table, object index, bint update):
    cdef uint32_t r
    if type(index) is not int and (isinstance(index, (list, tuple)) or getattr(index, "ndim", 0)):
        raise TypeError("lookup: the index must be a number; lookup_batch takes a list")
    r = checked_row(table, index, "lookup")
    return _lookup(table, &r, 1, update)


def lookup_batch(p, indices, update=True):
    """Rows of a table as a minibatch.

    Args:
        p: lookup table with rows of shape ``{d...}``.
        indices: numbers of n rows.
        update: whether the rows are trained; they are constants when False. Default: True.

    Returns:
        Expression of shape ``{d...}`` with batch size n.

    Raises:
        IndexError: there is no such row.
        ValueError: the list is empty.

    Example:
        >>> table = model.add_lookup_parameters((10, 2))
        >>> dy.lookup_batch(table, [7, 3, 7]).dim()
        ((2,), 3)
    """
    cdef LookupParameters t = as_table(p, "lookup_batch")
    cdef uint32_t* rows
    cdef uint32_t i, n
    if not hasattr(indices, "__len__"):
        raise TypeError(f"lookup_batch: a list of indices is needed, not {indices!r}")
    n = len(indices)
    if n == 0:
        raise ValueError("lookup_batch: the list of indices is empty")
    rows = <uint32_t*>malloc(n * sizeof(uint32_t))
    if rows == NULL:
        raise MemoryError(f"lookup_batch: {n} indices")
    try:
        for i in range(n):
            rows[i] = checked_row(t, indices[i], "lookup_batch")
        return _lookup(t, rows, n, update)
    finally:
        free(rows)


cdef class LookupExpression(Expression):
    """What `lookup` and `lookup_batch` make: their indices can be set anew.

    Example:
        >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
        >>> row = dy.lookup(table, 0)
        >>> row.set(1)
        >>> row.npvalue()
        array([3., 4.])
    """

    def set(self, index):
        """Look other rows up; what depends on them is then computed again.

        Args:
            index: of `lookup`, the number of a row; of `lookup_batch`, a list of as many as before.

        Raises:
            IndexError: there is no such row.
            ValueError: the list has more or fewer numbers than the expression has batch elements.

        Example:
            >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
            >>> rows = dy.lookup_batch(table, [0, 0])
            >>> rows.set([1, 0])
            >>> rows.npvalue()
            array([[3., 1.],
                   [4., 2.]])
        """
        cdef Graph* g = self.graph()
        cdef Node* x = nodes_of(g) + self.index
        cdef Param* p = <Param*>x.object
        cdef uint32_t* own = items_of(g, x)
        cdef uint32_t i
        several = hasattr(index, "__len__") and not isinstance(index, str)
        if several and len(index) != x.dim.bd:
            raise ValueError(f"set: {len(index)} indices given where {x.dim.bd} are needed")
        if not several and x.dim.bd > 1:
            raise TypeError(f"set: a list of {x.dim.bd} indices is needed, not {index!r}")
        rows = [row_number(p, parameter_names[p.id], row, "set") for row in (index if several else (index,))]
        forget(g)
        for i in range(x.dim.bd):
            own[i] = rows[i]


cdef Expression _lookup(LookupParameters table, const uint32_t* rows, uint32_t n, bint update):
    cdef Extra extra
    cdef Dim dim = table.p.dim
    cdef Graph* g
    cdef uint32_t index
    cdef LookupExpression x
    memset(&extra, 0, sizeof(Extra))
    extra.attrs[0].u = update                   # constants do not batch with the trained
    extra.items = rows
    extra.n_items = n
    extra.item_count = 1
    extra.object = table.p
    extra.state = TRAINABLE if update else 0
    extra.device = 1 + table.p.device
    dim.bd = n
    index = leaf_index(LOOKUP_LEAF, &dim, &extra)
    g = current_graph()
    current().keep.setdefault(table.storage)
    if g.forward_only:
        return wrap(g, index)
    x = LookupExpression.__new__(LookupExpression)
    x.version = g.version
    x.slot = g.slot
    x.index = index
    return x


def parameter(*parameters):
    """The parameters themselves: they are expressions, of whatever graph is current.

    There is no need to call this; older programs do.

    Returns:
        The parameter, or a tuple of them for several; a list for a list.

    Example:
        >>> W = model.add_parameters((2, 2))
        >>> dy.parameter(W) is W
        True
    """
    if len(parameters) == 1 and isinstance(parameters[0], (list, tuple)):
        made = [_checked(p, "parameter") for p in parameters[0]]
        return made if isinstance(parameters[0], list) else tuple(made)
    made = tuple([_checked(p, "parameter") for p in parameters])
    return made[0] if len(made) == 1 else made


def const_parameter(*parameters):
    """The expressions of parameters in the current graph as constants: without gradients.

    Returns:
        An expression, or a tuple of them for several parameters.

    Example:
        >>> W = model.add_parameters((2, 2))
        >>> dy.sum_elems(dy.const_parameter(W) * dy.inputVector([1, 2])).backward()
        >>> W.grad_as_array()
        array([[0., 0.],
               [0., 0.]], dtype=float32)
    """
    if not parameters:
        raise TypeError("const_parameter: no parameter was given")
    made = tuple([_constant(_checked(p, "const_parameter")) for p in parameters])
    return made[0] if len(made) == 1 else made


cdef _constant(_Stored p):
    p.enter()               # as in DyNet, so that the gradient of the parameter itself is known too: zero
    return p.expr(False)


cdef _Stored _checked(p, str op):
    if not isinstance(p, _Stored):
        raise TypeError(f"{op}: the argument must be Parameters, not {type(p).__name__}")
    (<_Stored>p).check_made()
    return p


# ---- model files -------------------------------------------------------------

def _check_key(key):
    if " " in key or "#" in key:
        raise ValueError(f"Key could not include ' ' or '#': {key}")


cdef tuple _entry(_Stored x, str name):
    """The parameter as an entry of a text model file."""
    kind = LOOKUP if isinstance(x, LookupParameters) else PARAMETER
    values = shown(x, (x.p.size,))
    grads = x.part(x.storage.grads, 0, (x.p.size,)) if x.p.has_gradient else None
    return kind, name, _file_dim(x), values, grads


cdef int _fill_entry(_Stored x, entry, fname) except -1:
    if entry.dim != _file_dim(x):
        raise ModelMismatchError(
            f"has dimensions {entry.dim} in the file, {_file_dim(x)} in the collection",
            os.fspath(fname), parameter=x.full_name)
    x.put(x.storage.values, 0, np.ascontiguousarray(entry.values, np.float32), x.p.size)
    value_changed(x.p)
    x.p.factor = 1
    if entry.grads is not None and x.p.updated:
        x.put(x.storage.grads, 0, np.ascontiguousarray(entry.grads, np.float32), x.p.size)
        _add_gradient_flag(x)
    return 0


def fill_entries(collection, entries, fname):
    """Fill a collection from entries of a text model file, matched by kind and position.

    Raises:
        ModelMismatchError: the entries are other ones; nothing is changed then.
    """
    left = {PARAMETER: collection.parameters_list(), LOOKUP: collection.lookup_parameters_list()}
    matched = []
    for entry in entries:
        if not left[entry.kind] or entry.dim != _file_dim(left[entry.kind][0]):
            raise ModelMismatchError(
                f"has dimensions {entry.dim}; "
                + (f"{_file_dim(left[entry.kind][0])} are needed for {left[entry.kind][0].name()}"
                   if left[entry.kind] else f"no {entry.kind} is left to be filled"),
                os.fspath(fname), parameter=entry.name)
        matched.append((left[entry.kind].pop(0), entry))
    for x, entry in matched:
        _fill_entry(x, entry, fname)


def add_entry(collection, entry):
    """Add an entry of a text model file to a collection."""
    cdef _Stored x
    values = entry.values.reshape(entry.dim, order="F")
    name = entry.name.rpartition("/")[2].partition("_")[0]
    if entry.kind == LOOKUP:
        x = collection.lookup_parameters_from_numpy(np.moveaxis(values, -1, 0), name)
    else:
        x = collection.parameters_from_numpy(values, name)
    _fill_entry(x, entry, "")
    return x


def _find(fname, key, lookup):
    kind = LOOKUP if lookup else PARAMETER
    if not key:
        raise ValueError("populate: the key of the parameter in the file must not be empty")
    for entry in read_text_model(fname, lambda k, name: k == kind and name == key):
        return entry
    raise ModelMismatchError(f"could not find key {key} in the model file", os.fspath(fname))


# ---- collections -------------------------------------------------------------

cdef class _Members:
    """What a root collection, those below it and all their parameters have in common.

    Each of them holds it, so that memory stays while anybody can ask for a part of it.  Entries hold no more than
    the storage: there is no cycle, and memory goes with its last user.
    """

    def __init__(self):
        self.storage = Storage(default_device())
        self.entries = []

    cdef _Stored add(self, int device, cls, const Dim* d, uint32_t rows, str name):
        """A new parameter or table of zeros."""
        cdef Storage storage = self.storage.on(device)
        entry = _stored(cls, storage, storage.add(d, rows, name), name)
        self.entries.append(entry)
        return self.shown(entry)

    cdef _Stored shown(self, _Stored entry):
        """An entry as users have it: always the same object, while somebody has it."""
        x = None if entry.user is None else entry.user()
        if x is None:
            x = _stored(type(entry), entry.storage, entry.p, entry.full_name)
            (<_Stored>x).members = self
            entry.user = weakref.ref(x)
        return x

    cdef list below(self, str name):
        """All whose names begin so, in the order of adding."""
        return [self.shown(x) for x in self.entries if (<_Stored>x).full_name.startswith(name)]

    def __reduce__(self):
        return _restored_members, ([_entry_state(x) for x in self.entries],)


class _Allowance:
    """How many parameters may be added, and how many numbers they may have together."""

    def __init__(self, count, size, error):
        self.count = count
        self.size = size
        self.error = error

    def take(self, shape):
        self.count -= 1
        self.size -= math.prod(shape)
        if self.count < 0 or self.size < 0:
            raise self.error


@contextlib.contextmanager
def adding(collection, count, size, error):
    """A block that may add so many parameters to a collection, of so many numbers together.

    One more raises the error, before anything is drawn.  Arrays, which are there already, do not count.
    """
    cdef _Members members = collection._members
    before = members.allowance
    members.allowance = _Allowance(count, size, error)
    try:
        yield
    finally:
        members.allowance = before


@contextlib.contextmanager
def taken_back(collection):
    """A block whose parameters and names leave the collection if it raises.  Their memory stays with the others'."""
    cdef _Members members = collection._members
    count = len(members.entries)
    taken, below = dict(collection._taken), dict(collection._taken_below)
    try:
        yield
    except BaseException:
        del members.entries[count:]
        collection._taken, collection._taken_below = taken, below
        raise


class ParameterCollection:
    """Parameters, lookup tables and sub-collections, under names.

    The memory of a root collection and of all below it stays for as long as one
    of them, or one of their parameters, does.

    Example:
        >>> W = model.add_parameters((2, 3), name="W")
        >>> words = model.add_subcollection("words").add_lookup_parameters((100, 3), name="E")
        >>> [p.name() for p in model.parameters_list()], words.name()
        (['/W'], '/words/E')
        >>> (W * words[7]).dim()
        ((2,), 1)
    """

    def __init__(self):
        self._name = "/"
        self._members = _Members()
        self._taken = {}
        self._taken_below = {}
        self._weight_decay = default_weight_decay
        self._decay_due = 0.0

    def name(self):
        """Full name, from "/" of the root on; ends with "/".

        Example:
            >>> model.name(), model.add_subcollection("layer").name()
            ('/', '/layer/')
        """
        return self._name

    @property
    def storage(self):
        """The flat memory of the parameters below the root: see `Storage.move`. Those on further devices are in the
        storages beside it.

        Example:
            >>> layer = model.add_subcollection()
            >>> layer.storage is model.storage
            True
        """
        return (<_Members>self._members).storage

    def add_subcollection(self, name=None):
        """A collection below this one; its parameters are also this one's.

        Args:
            name: without "/" and "_"; a number is appended when it is taken.

        Returns:
            ParameterCollection.

        Raises:
            ValueError: the name is not possible.

        Example:
            >>> layer = model.add_subcollection("layer")
            >>> W = layer.add_parameters(2, name="W")
            >>> W.name(), len(model.parameters_list())
            ('/layer/W', 1)
        """
        below = ParameterCollection.__new__(ParameterCollection)
        below._name = self._name + _free_name(name or "", self._taken_below, "Submodel") + "/"
        below._members = self._members
        below._taken = {}
        below._taken_below = {}
        below._weight_decay = self._weight_decay
        below._decay_due = 0.0
        return below

    def add_parameters(self, dim, init=None, name="", device="", scale=1.0, mean=0.0, std=1.0):
        """Add a parameter.

        Args:
            dim: shape, a tuple or one number; that of the array if `init` is one.
            init: an initializer, a number, an array, or one of "glorot" (the
                default), "uniform", "normal", "he", "identity", "saxe".
            name: without "/" and "_"; a number is appended when it is taken.
            device: "CPU" or "GPU:0" and so on; "" for the default device.
            scale: of "uniform" and "saxe" (default: 1).
            mean: of "normal" (default: 0).
            std: of "normal": the standard deviation (default: 1).

        Returns:
            Parameters.

        Raises:
            ValueError: the shape, name or initializer is not possible.

        Example:
            >>> model.add_parameters((2, 3), init="uniform", scale=0.1, name="W")
            <Parameters /W (2, 3)>
        """
        return self._add(Parameters, dim, init, name, device, scale, mean, std)

    def add_lookup_parameters(self, dim, init=None, name="", device="", scale=1.0, mean=0.0,
                              std=1.0):
        """Add a lookup table.

        Args:
            dim: number of rows, then the shape of a row.
            init, name, device, scale, mean, std: as for `add_parameters`.

        Returns:
            LookupParameters.

        Raises:
            ValueError: the shape, name or initializer is not possible.

        Example:
            >>> model.add_lookup_parameters((100, 3), name="words")[7].dim()
            ((3,), 1)
        """
        return self._add(LookupParameters, dim, init, name, device, scale, mean, std)

    def parameters_from_numpy(self, array, name="", device=""):
        """Add a parameter with the shape and values of an array.

        Raises:
            ValueError: the shape or name is not possible.

        Example:
            >>> model.parameters_from_numpy(np.array([[1, 2], [3, 4]])).npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        array = np.asarray(array)
        return self.add_parameters(array.shape, NumpyInitializer(array), name, device)

    def lookup_parameters_from_numpy(self, array, name="", device=""):
        """Add a lookup table with the shape and values of an array, the row number first.

        Raises:
            ValueError: the shape or name is not possible.

        Example:
            >>> model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))[1].npvalue()
            array([3., 4.])
        """
        array = np.asarray(array)
        return self.add_lookup_parameters(array.shape, NumpyInitializer(array), name, device)

    def _add(self, cls, dim, init, name, device, scale, mean, std):
        cdef Dim d
        cdef uint32_t rows = 0
        cdef _Stored made
        is_lookup = cls is LookupParameters
        what = "add_lookup_parameters" if is_lookup else "add_parameters"
        number = check_device(device, what) if device != "" else default_device()
        if isinstance(init, np.ndarray):
            dim = init.shape
        if isinstance(dim, numbers.Real):
            dim = (dim, 1) if is_lookup else (dim,)
        if not isinstance(dim, (tuple, list)):
            raise TypeError(f"{what}: the shape must be a tuple or a number, not {dim!r}")
        shape = tuple(int(n) if isinstance(n, numbers.Real) and isfinite(n) else n for n in dim)
        if is_lookup:
            if not shape or shape[0] == 0:
                raise ValueError(f"{what}: shape {shape} has no rows")
            dim_from_shape(shape[:1], &d, what)
            rows = d.d[0]
            if len(shape) > 7:
                raise ValueError(f"{what}: shape {shape} has {len(shape)} axes, at most 7 fit")
            dim_from_shape(shape[1:], &d, what)
            file_shape = shape[1:] + shape[:1]
        else:
            dim_from_shape(shape, &d, what)
            file_shape = shape
        allowance = (<_Members>self._members).allowance
        if allowance is not None and not isinstance(init, (np.ndarray, NumpyInitializer)):
            allowance.take(file_shape)
        initializer = as_initializer(init, shape, lookup=is_lookup, scale=scale, mean=mean, std=std)
        (<_Members>self._members).storage.check_room(f"{what} {shape}", prod(file_shape))
        values = np.empty(file_shape, np.float32, order="F")
        initializer.fill(values, HostRandom(), is_lookup)
        name = self._name + _free_name(name, self._taken, "Parameter")
        made = (<_Members>self._members).add(number, cls, &d, rows, name)
        made.put(made.storage.values, 0, values, made.p.size)
        return made

    def set_weight_decay(self, lam):
        """Let every update of a trainer multiply all values by 1 - lambda, after its step.

        It holds for trainers of this very collection, and for all parameters and
        all rows of all tables below it, but for those that are frozen (`set_updated`) or in a
        group with a decay of its own (`Trainer.group`).  A sub-collection begins with
        the lambda of the collection that it is made in.

        This is DyNet's decay.  The learning rate has no part in it, so a good lambda is that of
        `AdamWTrainer` times the learning rate: with a learning rate of 0.001, 0.01 there is
        0.00001 here.

        Args:
            lam: lambda, at least 0; 0 (the default, unless ``--dynet-weight-decay`` sets
                another) for none.

        Raises:
            ValueError: it is negative or not finite.

        Example:
            >>> W = model.add_parameters(2, init=1)
            >>> model.set_weight_decay(0.5)
            >>> dy.sum_elems(0 * W).backward()
            >>> dy.SimpleSGDTrainer(model).update()
            >>> W.npvalue()
            array([0.5, 0.5])
        """
        self._weight_decay = _checked_weight_decay(lam)

    def get_weight_decay(self):
        """The lambda of `set_weight_decay`.

        Example:
            >>> model.set_weight_decay(1e-5)
            >>> model.get_weight_decay()
            1e-05
        """
        return self._weight_decay

    # DyNet's other names.
    set_weight_decay_lambda = set_weight_decay
    get_weight_decay_lambda = get_weight_decay

    def _decay_state(self):
        """Lambda, and the share that is due but not taken off yet."""
        return self._weight_decay, self._decay_due

    def _set_decay_state(self, state):
        """Put back what `_decay_state` has returned."""
        self._weight_decay, self._decay_due = state

    def _take_decay(self, least):
        """The share that an update is to take off all values, for a trainer of this collection.

        Shares less than `least` are collected.
        """
        due = self._decay_due + self._weight_decay - self._decay_due * self._weight_decay
        taken = 0.0 if due < least else due
        self._decay_due = due - taken
        return taken

    def zero_gradients(self):
        """Set the gradients of all parameters and tables below to zero.

        So what was collected since the last update is dropped, such as the gradients of a batch
        that are not finite: `Trainer.update` keeps them when it raises its error.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> model.zero_gradients()
            >>> W.grad_as_array()
            array([0., 0.], dtype=float32)
        """
        for x in self._below():
            zero_gradient(x)

    def parameters_list(self):
        """All Parameters of this collection and those below it, in the order of adding.

        Example:
            >>> W = model.add_parameters((2, 3), name="W")
            >>> b = model.add_subcollection("layer").add_parameters(2, name="b")
            >>> model.parameters_list()
            [<Parameters /W (2, 3)>, <Parameters /layer/b (2,)>]
        """
        return [x for x in self._below() if isinstance(x, Parameters)]

    def lookup_parameters_list(self):
        """All LookupParameters of this collection and those below it, in the order of adding.

        Example:
            >>> words = model.add_lookup_parameters((100, 3), name="words")
            >>> model.lookup_parameters_list()
            [<LookupParameters /words (100, 3)>]
        """
        return [x for x in self._below() if isinstance(x, LookupParameters)]

    def _below(self):
        return (<_Members>self._members).below(self._name)

    def parameter_count(self):
        """Number of trained numbers, those of lookup tables included.

        Example:
            >>> W, words = model.add_parameters((2, 3)), model.add_lookup_parameters((100, 3))
            >>> model.parameter_count()
            306
        """
        return sum((<_Stored>x).p.size for x in self._below())

    # ---- by name

    def _by_name(self):
        """Parameters and tables by their names below this collection, in the order of adding."""
        return {x.name()[len(self._name):]: x for x in self._below()}

    def keys(self):
        """The names of all parameters and tables below, in the order of adding: "W", "encoder/W".

        Example:
            >>> W = model.add_subcollection("encoder").add_parameters(2, name="W")
            >>> model.keys()
            ['encoder/W']
        """
        return list(self._by_name())

    def named_parameters(self):
        """Name and parameter (or table) of all below, in the order of adding.

        Example:
            >>> for name, p in model.named_parameters():
            ...     print(name, p.shape)
        """
        yield from self._by_name().items()

    def __iter__(self):
        return iter(self._by_name())

    def __len__(self):
        return len(self._below())

    def __bool__(self):
        return True                         # also without parameters

    def __contains__(self, name):
        return name in self._by_name()

    def __getitem__(self, name):
        """The parameter or table of that name, such as "W", "encoder/W", or the full one, "/encoder/W".

        Raises:
            KeyError: there is none.
        """
        own = self._by_name()
        if not isinstance(name, str):
            raise TypeError(f"{self._name}: the name of a parameter is needed, not {name!r}")
        found = own.get(name, own.get(name[len(self._name):]) if name.startswith(self._name) else None)
        if found is None:
            near = difflib.get_close_matches(name, own, 3) or list(own)[:10]
            raise KeyError(f"{self._name} has no parameter {name!r}" + (f"; it has {', '.join(near)}" if near else ""))
        return found

    def state_dict(self):
        """The values of all parameters and tables below by name, as new arrays; of tables the rows come first.

        Example:
            >>> W = model.add_parameters(2, init=1, name="W")
            >>> np.savez("model.npz", **model.state_dict())
            >>> model.load_state_dict(np.load("model.npz"))
            Matched(loaded=['W'], missing=[], unexpected=[])
        """
        return {name: x.as_array() for name, x in self._by_name().items()}

    def load_state_dict(self, state, strict=True, prefix="", rename=None):
        """Set values from arrays with names, such as `state_dict` gives.  Nothing is changed unless all of it fits.

        Args:
            state: a mapping of names to arrays.
            strict: whether all names must be on both sides (default: True).
            prefix: only names that begin so count, and it is taken off.
            rename: a mapping of names in `state`, without the prefix, to names here, or a function of a name.

        Returns:
            A tuple ``(loaded, missing, unexpected)`` of lists of names.

        Raises:
            ValueError: names are missing or unexpected where `strict`, or a shape is another one.

        Example:
            >>> W, b = model.add_parameters(2, name="W"), model.add_parameters(1, name="b")
            >>> model.load_state_dict({"old/W": np.ones(2)}, strict=False, prefix="old/")
            Matched(loaded=['W'], missing=['b'], unexpected=[])
        """
        own = self._by_name()
        found, report = matches(state.keys(), own, prefix, rename)
        if strict and complaint(report):
            raise ValueError(f"load_state_dict of {self._name}: {complaint(report)}")
        arrays = {name: _floats_like(state[given], f"load_state_dict of {own[name].name()} from {given}",
                                     tuple(own[name].shape)) for name, given in found.items()}
        for name, array in arrays.items():
            if isinstance(own[name], LookupParameters):
                own[name].init_from_array(array)
            else:
                own[name].set_value(array)
        return report

    def copy_from(self, other, strict=True, rename=None):
        """Set values to those of the parameters of the same names in another collection; see `load_state_dict`.

        Example:
            >>> pretrained = dy.ParameterCollection()
            >>> V, W = (m.add_parameters(2, init=i, name="W") for i, m in enumerate([pretrained, model]))
            >>> model.copy_from(pretrained)
            Matched(loaded=['W'], missing=[], unexpected=[])
            >>> W.as_array()
            array([0., 0.], dtype=float32)
        """
        if not isinstance(other, ParameterCollection):
            raise TypeError(f"copy_from: a ParameterCollection is needed, not {type(other).__name__}")
        return self.load_state_dict(other.state_dict(), strict, "", rename)

    def save(self, fname, name="", append=False):
        """Write all parameters and tables to a text model file, which DyNet reads too.

        The file is replaced whole or not at all: an interrupted save leaves the
        old one.

        Args:
            fname: name of the file, or a binary file that is open for writing.
            name: takes the place of this collection's name in the file; begins with "/".
            append: add to the file instead (default: False).

        Raises:
            ValueError: the name is not possible.
            OSError: the file cannot be written.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> model.save("a.model")
            >>> W.zero()
            >>> model.populate("a.model")
            >>> W.npvalue()
            array([3., 3.])
        """
        if name and not name.startswith("/"):
            raise ValueError(f"Key should start with '/': {name}")
        _check_key(name)
        prefix = name if not name or name.endswith("/") else name + "/"

        def renamed(x):
            return prefix + x.name()[len(self._name):] if prefix else x.name()

        ordered = self.parameters_list() + self.lookup_parameters_list()
        write_text_model(fname, (_entry(x, renamed(x)) for x in ordered), append)

    def populate(self, fname, key=""):
        """Read all parameters and tables from a text model file, DyNet's too.

        Entries are matched by kind and position, as in DyNet, not by name.
        Nothing is changed unless the whole file fits.

        Args:
            fname: name of the file.
            key: read only what is below this collection in the file.

        Raises:
            ModelFileError: the file is not a model, is cut off, or does not fit.

        Example:
            >>> W = model.add_subcollection("layer").add_parameters(2, init=3)
            >>> model.save("a.model")
            >>> other = dy.ParameterCollection()
            >>> V = other.add_parameters(2)
            >>> other.populate("a.model", key="/layer/")
            >>> V.npvalue()
            array([3., 3.])
        """
        parameters, tables = self.parameters_list(), self.lookup_parameters_list()
        entries = list(populate_entries(
            fname, [(x.name(), _file_dim(x)) for x in parameters],
            [(x.name(), _file_dim(x)) for x in tables], key))
        for i, entry in entries:
            _fill_entry((tables if entry.kind == LOOKUP else parameters)[i], entry, fname)

    def populate_by_name(self, fname, key="", strict=True, rename=None):
        """Read parameters and tables from a text model file, DyNet's too, by their names.

        So a part of a model is read from a file of another one.  Nothing is changed unless all of it fits.

        Args:
            fname: name of the file.
            key: read only what is below this collection in the file; it is no part of the names.
            strict: whether all names must be on both sides (default: True).
            rename: a mapping of names in the file, below `key`, to names here, or a function of a name.

        Returns:
            A tuple ``(loaded, missing, unexpected)`` of lists of names.

        Raises:
            ModelFileError: the file is not a model or is cut off, names are missing or unexpected where
                `strict`, or a shape is another one.

        Example:
            >>> pretrained = dy.ParameterCollection()
            >>> V = pretrained.add_parameters(2, name="W")
            >>> pretrained.save("pretrained.model")
            >>> W, out = model.add_parameters(2, name="W"), model.add_parameters((3, 2), name="out")
            >>> report = model.populate_by_name("pretrained.model", strict=False)
            >>> report.loaded, report.missing
            (['W'], ['out'])
        """
        own = self._by_name()
        prefix = key if key.endswith("/") else key + "/"
        entries = {entry.name: entry for entry in read_text_model(fname, lambda kind, name: name.startswith(prefix))}
        found, report = matches(entries, own, prefix, rename)
        if strict and complaint(report):
            raise ModelMismatchError(complaint(report), os.fspath(fname))
        for name, given in found.items():
            kind = LOOKUP if isinstance(own[name], LookupParameters) else PARAMETER
            if (entries[given].kind, entries[given].dim) != (kind, _file_dim(own[name])):
                raise ModelMismatchError(
                    f"is a {entries[given].kind} of dimensions {entries[given].dim}, where a {kind} of "
                    f"{_file_dim(own[name])} is needed for {own[name].name()}", os.fspath(fname), parameter=given)
        for name, given in found.items():
            _fill_entry(own[name], entries[given], fname)
        return report

    def write_to_textfile(self, fname, key="", append=False):
        """DyNet's other name of `save`.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> model.write_to_textfile("a.model")
            >>> W.zero()
            >>> model.populate_from_textfile("a.model")
            >>> W.npvalue()
            array([3., 3.])
        """
        self.save(fname, key, append)

    def populate_from_textfile(self, fname, key=""):
        """DyNet's other name of `populate`.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> model.write_to_textfile("a.model")
            >>> W.zero()
            >>> model.populate_from_textfile("a.model")
            >>> W.npvalue()
            array([3., 3.])
        """
        self.populate(fname, key)

    def load_param(self, fname, key):
        """Add a parameter read from a text model file.

        Args:
            fname: name of the file.
            key: name of the parameter in the file; it keeps its last part, but for
                the number after it.

        Returns:
            Parameters.

        Raises:
            ModelFileError: the file has no such parameter, or is not a model.
            OSError: the file cannot be read.

        Example:
            >>> W = model.add_parameters(2, init=3, name="W")
            >>> model.save("a.model")
            >>> dy.ParameterCollection().load_param("a.model", "/W")
            <Parameters /W (2,)>
        """
        return add_entry(self, _find(fname, key, False))

    def load_lookup_param(self, fname, key):
        """Add a lookup table read from a text model file; see `load_param`.

        Example:
            >>> words = model.add_lookup_parameters((100, 3), name="words")
            >>> model.save("a.model")
            >>> dy.ParameterCollection().load_lookup_param("a.model", "/words")
            <LookupParameters /words (100, 3)>
        """
        return add_entry(self, _find(fname, key, True))

    def __reduce__(self):
        own = {k: v for k, v in self.__dict__.items() if k not in _RESTORED}
        return _restored_collection, (type(self), {k: self.__dict__[k] for k in _RESTORED}), own or None

    def __repr__(self):
        return f"<ParameterCollection {self._name} of {len(self)} parameters, {self.parameter_count():,} numbers>"

    def _repr_html_(self):
        """A table of names, shapes and sizes, for notebooks."""
        rows = "".join([
            f"<tr><td>{html.escape(name)}</td><td>{' x '.join(map(str, x.shape))}</td>"
            f"<td>{(<_Stored>x).p.size:,}</td><td>{type(x).__name__}{'' if x.is_updated() else ', frozen'}</td></tr>"
            for name, x in self._by_name().items()])
        return (f"<table><caption>{html.escape(repr(self))}</caption>"
                f"<tr><th>name</th><th>shape</th><th>numbers</th><th></th></tr>{rows}</table>")


def _free_name(name, taken, what):
    if not isinstance(name, str):
        raise TypeError(f"{what} name must be a string, not {type(name).__name__}")
    if set(name) & set("/_ #"):
        raise ValueError(f"{what} name could not include '/', '_', ' ' and '#': {name!r}")
    n = taken.get(name, 0)
    taken[name] = n + 1
    # The first of a name has it plain, but a name of nothing is always numbered.
    return f"{name}_{n}" if n or not name else name


# ---- pickling ----------------------------------------------------------------
#
# Collections and parameters pickle as the members that they have in common, and their place among them.
# So what is pickled together stays together.

# What this makes anew; other attributes are those of derived classes.
_RESTORED = ("_name", "_members", "_taken", "_taken_below", "_weight_decay", "_decay_due")


def _restored_collection(cls, state):
    """A collection from its pickle."""
    made = cls.__new__(cls)
    made.__dict__.update(state)
    return made


def _restored_members(entries):
    """The members of a root collection from their pickle."""
    members = _Members()
    members.storage.check_room("the parameters of a pickle", sum([value.size for _, _, value, *_ in entries]), False)
    for entry in entries:
        _add_restored(members, *entry)
    return members


def _restored_member(_Members members, number):
    """A parameter or table from its pickle."""
    return members.shown(members.entries[number])


def _entry_state(_Stored x):
    """Name, kind, value, gradient, settings and device of a parameter, for its pickle; "" for the default device."""
    return (x.name(), isinstance(x, LookupParameters), settled_array(x), gradient_state(x),
            bool(x.p.updated), "" if x.p.device == default_device() else device_name(x.p.device))


def settled_array(_Stored x not None):
    """The value as an array; the factor of a table is multiplied into it first, so that the table and
    its copy go on alike to the last bit."""
    x.check_made()
    fold_scale(x.p)
    return x.array(x.storage.values)


def _add_restored(_Members members, str name, bint is_lookup, value, gradient, bint updated, str device=""):
    """Add a parameter from its pickle, on its device or, where there is none, the default one."""
    cdef Dim d
    cdef _Stored made
    shape = value.shape
    dim_from_shape(shape[1:] if is_lookup else shape, &d, name)
    try:
        number = check_device(device, name) if device else default_device()
    except RuntimeError:
        number = default_device()
    made = members.add(number, LookupParameters if is_lookup else Parameters, &d, shape[0] if is_lookup else 0, name)
    made.fill(value, made.storage.values)
    made.p.updated = updated
    set_gradient_state(made, gradient)


def gradient_state(_Stored x not None):
    """What has been added up since the last update.

    Returns:
        None if there is nothing, the gradient of a parameter, or (rows, gradients of these
        rows) of a table.
    """
    cdef uint32_t i
    x.check_made()
    if not x.p.has_gradient:
        return None
    if not x.p.rows:
        return x.grad_as_array()
    rows = np.array([x.p.touched[i] for i in range(x.p.n_touched)], np.uint32)
    return rows, x.array(x.storage.grads)[rows]


def set_gradient_state(_Stored x not None, state):
    """Put back what `gradient_state` has returned, in place of the gradient that is there.

    What is frozen has none.
    """
    cdef uint32_t r
    zero_gradient(x)
    if state is None or not x.p.updated:
        return
    x.p.has_gradient = True
    if not x.p.rows:
        x.fill(state, x.storage.grads)
        return
    rows, gradients = state
    whole = np.zeros((<LookupParameters>x).shape, np.float32)
    whole[rows] = gradients
    x.fill(whole, x.storage.grads)
    for r in rows:
        touch(x.p, r)
