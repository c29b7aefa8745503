"""Parameters and lookup tables: entries of a storage that are expressions in whichever graph is current."""

import numbers
import os
import re
from collections.abc import Mapping

import numpy as np

from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.core.tensor cimport DY_MAX_ND, Call, Dim, dim_with_rows, size_of, total_of
from dynet_cy.core.threads cimport HAS_GIL, RELEASE, Unlocked, acquire_lock, fence, follows_dynet, release_lock
from dynet_cy.graph.expressions cimport ComputationGraph, Expression, dim_of, forget_to_set, owner_of
from dynet_cy.graph.making cimport apply1x, claim_current, leaf_index, refer, release_current, wrap
from dynet_cy.graph.structs cimport COMPUTED, SHARED, TRAINABLE, Extra, Graph, Node, items_of, no_extra, nodes_of
from dynet_cy.graph.table cimport current_graph
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.lazy_rows cimport (
    all_current, catch_up_all, is_row_behind, lazy_state, part_current, read_current, read_lazy_row, read_lazy_state,
)
from dynet_cy.memory.bridge cimport array_of, capsule_of, copy_floats, floats_in, memory_of, shape_of
from dynet_cy.memory.storage cimport (
    Param, Plane, Storage, check_change, forget_gradient, keep_read, lend, see_whole, touch, value_changed,
)
from dynet_cy.ops.index cimport function_number, is_position, need_positions, refuse, refused
from dynet_cy.ops.registry cimport FIRST, UNREAD, Op, Shapes, register

from dynet_cy.core.devices import device_name
from dynet_cy.files.textfile import LOOKUP, PARAMETER, ModelMismatchError, read_text_model, write_text_model
from dynet_cy.graph.structs import operators
from dynet_cy.memory.storage import parameter_names
from dynet_cy.model.initializers import NumpyInitializer
from dynet_cy.model.matching import ParameterShape
from dynet_cy.ops.registry import DimensionError


# ==== leaves ======================================================================================
#
# Leaves of graphs that belong to parameters: values of parameters, and rows of lookup tables.

cdef Unlocked settling


# ---- parameters --------------------------------------------------------------

# A parameter's node need not run: its value is in the storage.
cdef Op* PARAMETER_LEAF = register(b"parameter", b"", NULL, NULL, NULL)
PARAMETER_LEAF.no_gradient_because = b"a leaf: gradients are added to its storage"


cdef uint32_t parameter_leaf(Param* p, Storage storage, bint update) except? 0xFFFFFFFF:
    """The node of a parameter in the current graph; its value is in the storage."""
    cdef Graph* g = claim_current()
    try:
        return leaf_in(owner_of(g), p, storage, update)
    finally:
        release_current(g)


cdef uint32_t constant_leaf(Param* p, Storage storage) except? 0xFFFFFFFF:
    """A constant; in a program written for DyNet each has a gradient of its own, and the value that the graph has."""
    cdef Graph* g
    cdef uint32_t trained, index
    if not follows_dynet():
        return parameter_leaf(p, storage, False)
    g = claim_current()
    try:
        trained = leaf_in(owner_of(g), p, storage, True)
        index = new_leaf_in(owner_of(g), p, storage, False)
        nodes_of(g)[index].object = nodes_of(g)[trained].object
        return index
    finally:
        release_current(g)


cdef uint32_t leaf_in(ComputationGraph graph, Param* p, Storage storage, bint update) except? 0xFFFFFFFF:
    key = (p.id, update)
    index = graph.leaves.get(key)
    if index is None:
        index = graph.leaves[key] = new_leaf_in(graph, p, storage, update)
    return index


cdef uint32_t new_leaf_in(ComputationGraph graph, Param* p, Storage storage, bint update) except? 0xFFFFFFFF:
    cdef Dim dim = dim_with_rows(&p.dim, p.rows)
    cdef uint32_t index
    cdef Extra extra = no_extra()
    extra.attrs[0].u = update
    extra.object = p
    extra.state = COMPUTED | SHARED | (TRAINABLE if update else 0)
    extra.device = 1 + p.device
    settle(p)
    p.in_place = 1
    index = leaf_index(&graph.g, PARAMETER_LEAF, &dim, &extra)
    graph.keep.setdefault(storage)
    return index


# ---- rows of tables ----------------------------------------------------------

# With weight decay, every update multiplies all values by 1 - lambda.  For parameters this happens in the
# pass over the values that an update makes anyway.  In a table, an update visits only a few rows, so the
# table has a factor instead, by which values are multiplied when they are read.

cdef int settle(Param* p) except -1:
    if p.device:                        # there, weight decay is deferred too: the factor is always 1
        return all_current(p)
    settle_here(p)
    return 0


cdef void settle_here(Param* p) noexcept nogil:
    catch_up_all(p)
    if p.factor == 1:
        return
    acquire_lock(&settling)             # only one of several threads that read the table does this
    if p.factor != 1:
        K.scale(p.size, <float>p.factor, p.value, p.value)
        fence(RELEASE)
        p.factor = 1
        value_changed(p)
    release_lock(&settling)


cdef inline void read_row(Param* p, uint32_t row, size_t n, float* y) noexcept nogil:
    if is_row_behind(p, row):
        read_lazy_row(p, row, y)
        if p.factor != 1:
            K.scale(n, <float>p.factor, y, y)
    elif p.factor == 1:
        memcpy(y, p.value + row * n, n * sizeof(float))
    else:
        K.scale(n, <float>p.factor, p.value + row * n, y)


cdef void lookup_forward(const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        read_row(p, c.items[b], n, c.y.v + b * n)


cdef void lookup_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        touch(p, c.items[b])
    K.add_rows(c.y.dim.bd, n, c.items, c.dy.v, p.grad)


cdef Op* LOOKUP_LEAF = register(b"lookup", b"", NULL, lookup_forward, lookup_backward)
LOOKUP_LEAF.unread = UNREAD


# ---- rows of tables whose numbers are values of the graph ---------------------------------

cdef int lookup_at_dim(const Shapes* s, Dim* y) except -1:
    """The shape of a row, then that of the indices if there are several."""
    cdef const Param* p = <const Param*>s.object
    cdef uint32_t i
    need_positions(s.x[0], p.rows)
    y.nd = p.dim.nd
    for i in range(y.nd):
        y.d[i] = p.dim.d[i]
    if size_of(s.x[0]) != 1:
        if y.nd + s.x[0].nd > <uint32_t>DY_MAX_ND:
            raise DimensionError(f"rows of {<int>y.nd} axes and indices of {<int>s.x[0].nd} have more than {DY_MAX_ND}")
        for i in range(s.x[0].nd):
            y.d[y.nd + i] = s.x[0].d[i]
        y.nd += s.x[0].nd
    return 0


cdef void lookup_at_forward(const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim), count = size_of(&c.x[0].dim), k
    cdef uint32_t b
    cdef uint32_t* row = <uint32_t*>c.saved
    cdef float* y = c.y.v
    for b in range(c.y.dim.bd):
        for k in range(count):
            if not is_position(&c.x[0], b, k, p.rows, row):
                refuse(c.attrs[3].u, &c.x[0], b, k, p.rows)
                return
            read_row(p, row[0], n, y)
            y += n
            row += 1


cdef void lookup_at_backward(const Call* c, uint32_t i) noexcept nogil:
    """The gradient of the rows, which are known now, goes to the table; none flows to the indices."""
    cdef Param* p = <Param*>c.object
    cdef size_t count = total_of(&c.x[0].dim), k
    cdef const uint32_t* rows = <const uint32_t*>c.saved
    if i < c.n:
        return
    for k in range(count):
        touch(p, rows[k])
    K.add_rows(count, size_of(&p.dim), rows, c.dy.v, p.grad)


cdef size_t lookup_at_saved(const Call* c) noexcept nogil:
    return total_of(&c.x[0].dim)


cdef Op* LOOKUP_AT = register(b"lookup_at", b"index", lookup_at_dim, lookup_at_forward, lookup_at_backward)
LOOKUP_AT.unread = UNREAD
LOOKUP_AT.saved = lookup_at_saved
LOOKUP_AT.raised = refused
LOOKUP_AT.integers = FIRST


cdef Expression lookup_at(LookupParameters table, Expression index, bint update, str name):
    """Rows of a table whose numbers are values of the graph."""
    cdef Extra extra = no_extra()
    cdef Graph* g = claim_current()
    try:
        extra.attrs[0].u = update
        extra.attrs[3].u = function_number(f"{name} of {table.full_name}")
        extra.object = table.p
        extra.state = TRAINABLE if update else 0
        extra.device = 1 + table.p.device
        owner_of(g).keep.setdefault(table.storage)
        return apply1x(LOOKUP_AT, index, &extra)
    finally:
        release_current(g)


cdef class LookupExpression(Expression):
    """The result of `lookup` and `lookup_batch`; its indices can be changed.

    Example:
        >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
        >>> row = dy.lookup(table, 0)
        >>> row.set(1)
        >>> row.npvalue()
        array([3., 4.])
    """

    def set(self, index: _Int | _Ints):
        """Look up other rows; values that depend on them are then computed again.

        Args:
            index: for `lookup`, the number of a row; for `lookup_batch`, a list with as many numbers as before.

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
        cdef uint32_t i, n = x.dim.bd
        cdef uint32_t* own
        several = hasattr(index, "__len__") and not isinstance(index, str)
        if several and len(index) != n:
            raise ValueError(f"set: {len(index)} indices given where {n} are needed")
        if not several and n > 1:
            raise TypeError(f"set: a list of {n} indices is needed, not {index!r}")
        rows = [row_number(p, parameter_names[p.id], row, "set") for row in (index if several else (index,))]
        forget_to_set(g, self.index, "set")
        own = items_of(g, &nodes_of(g)[self.index])         # other items may have added nodes
        for i in range(n):
            own[i] = rows[i]


cdef Expression lookup_rows(Param* p, Storage storage, const uint32_t* rows, uint32_t n, bint update):
    """Rows of a table as a node of the current graph; their numbers must be in range."""
    cdef Dim dim = p.dim
    cdef Graph* g = claim_current()
    cdef uint32_t index
    cdef LookupExpression x
    cdef Extra extra = no_extra()
    extra.attrs[0].u = update                   # constant rows do not batch with trained ones
    extra.items = rows
    extra.n_items = n
    extra.item_count = 1
    extra.object = p
    extra.state = TRAINABLE if update else 0
    extra.device = 1 + p.device
    dim.bd = n
    try:
        index = leaf_index(g, LOOKUP_LEAF, &dim, &extra)
        owner_of(g).keep.setdefault(storage)
        if g.forward_only:
            return wrap(g, index)
        x = LookupExpression.__new__(LookupExpression)
        refer(x, g, index)
        return x
    finally:
        release_current(g)


cdef uint32_t odd_row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF:
    """`row_number` for anything but a small int in range."""
    if not hasattr(row, "__index__") and not (isinstance(row, numbers.Real) and row == int(row)):
        raise TypeError(f"{op}: index {row!r} of {name} must be a whole number")
    r = int.__int__(row) if isinstance(row, int) else int(row)
    if not 0 <= r < p.rows:
        raise IndexError(f"{op}: index {r} is out of range for {name} with {p.rows} rows")
    return r


# ==== parameters ==================================================================================

cdef class _Stored(Expression):
    """The base class of parameters and lookup tables: an entry of a storage."""

    cdef int check_made(self) except -1:
        if self.storage is None:
            raise TypeError(
                f"{type(self).__name__} are made by a ParameterCollection, not by calling the class")
        return see_whole()

    cdef uint32_t leaf_in_current(self, bint update) except? 0xFFFFFFFF:
        """The number of the node of this parameter in the current graph."""
        self.check_made()
        return parameter_leaf(self.p, self.storage, update)

    cdef uint32_t enter(self) except? 0xFFFFFFFF:
        cdef Graph* g = current_graph()
        cdef uint32_t index
        if g.version == self.version:
            return self.index
        index = self.leaf_in_current(True)
        if HAS_GIL:
            self.version = g.version
            self.slot = g.slot
            self.index = index
        return index

    cdef Expression own(self):
        return self if HAS_GIL else self.expression_in_current(True)

    cdef Expression expression_in_current(self, bint update):
        cdef Graph* g = claim_current()
        try:
            return wrap(g, self.leaf_in_current(update))
        finally:
            release_current(g)

    cdef Graph* graph(self) except NULL:
        self.enter()
        return current_graph()

    def name(self) -> str:
        """Full name: the names of the collections that contain it, then its own.

        Example:
            >>> model.add_subcollection("layer").add_parameters(2, name="W").name()
            '/layer/W'
        """
        self.check_made()
        return self.full_name

    def expr(self, update=False) -> Expression:
        """An expression of the current graph with this value.

        Args:
            update: whether gradients reach the parameter; if False, it is a constant. Default: False.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W.expr(update=False)).backward()
            >>> W.grad_as_array()
            array([0., 0.], dtype=float32)
        """
        return self.expression_in_current(bool(update))

    def set_updated(self, b: bool):
        """Set whether this parameter is trained.

        A parameter that is not trained, called frozen, is a constant: `backward` computes no gradient
        for it, so it does not count in the norm of gradients, and trainers do not change its value, not
        even by weight decay.  The trainers' state for it (momentum, moments) does not change either,
        and is used again when the parameter is trained again.  Freezing drops the gradient that has been
        added up so far.

        This applies to existing graphs, too, from their next `backward` on.

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

    def is_updated(self) -> bool:
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
        about_to_change(self, "zero")
        all_current(self.p)
        memset(self.p.value, 0, self.p.size * sizeof(float))
        self.storage.values.clear(self.p.offset, self.p.size)
        value_changed(self.p)
        self.p.factor = 1

    def scale(self, s: float):
        """Multiply the value by s.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> W.scale(0.5)
            >>> W.npvalue()
            array([1.5, 1.5])
        """
        about_to_change(self, "scale")
        all_current(self.p)
        self.multiply(self.storage.values, s)
        value_changed(self.p)

    def scale_gradient(self, s: float):
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

    def save(self, fname: _File, key="", append=False):
        """Write this parameter to a text model file.

        Args:
            fname: name of the file, which is replaced completely or not at all; or a binary file
                that is open for writing.
            key: name in the file; if empty (the default), the full name.
            append: add to the file instead (default: no).

        Raises:
            ValueError: the key contains a blank or "#".
            OSError: the file cannot be written.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> W.save("W.model", key="/W")
            >>> model.load_param("W.model", "/W").npvalue()
            array([3., 3.])
        """
        self.check_made()
        write_entry(self, fname, key, append)

    def populate(self, fname: _FileName, key=""):
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
        read_entry(self, fname, key)

    def write_to_textfile(self, fname: _File, key="", append=False):
        """DyNet's other name of `save`.

        Args:
            fname, key, append: as `save` takes them.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> W.write_to_textfile("W.model", key="/W")
            >>> model.load_param("W.model", "/W").npvalue()
            array([3., 3.])
        """
        self.save(fname, key, append)

    def populate_from_textfile(self, fname: _FileName, key=""):
        """DyNet's other name of `populate`.

        Args:
            fname, key: as `populate` takes them.

        Example:
            >>> W, V = model.add_parameters(2, init=3), model.add_parameters(2)
            >>> W.write_to_textfile("W.model", key="/W")
            >>> V.populate_from_textfile("W.model", "/W")
            >>> V.npvalue()
            array([3., 3.])
        """
        self.populate(fname, key)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """The value for other libraries, without a copy: for `np.from_dlpack(p)` and `torch.from_dlpack(p)`.

        The result is the memory of the parameter itself: it shows updates, and what is written to it is used here from
        the next graph on. The array keeps the memory of the collection alive. After the first call, products read this
        parameter in place and no longer in packed order, so that nothing that is written gets lost; ``copy=True`` gives
        a copy, and changes nothing.

        Raises:
            BufferError: the parameter is on a GPU, or a device other than the CPU is requested.
        """
        self.check_made()
        cdef object shape, steps
        what = f"parameter {self.full_name}"
        if copy:
            return capsule_of(self.as_array(), what, stream, max_version, dl_device)
        if self.p.device:
            raise BufferError(f"{what} is on {device_name(self.p.device)}; only memory of the CPU can be shared. "
                              "as_array() gives a copy")
        see_whole()
        settle(self.p)
        self.p.in_place = 1                     # the numbers are read in place, without a factor
        shape = file_dim(self)
        steps = []
        for size in shape:
            steps.append(steps[-1] * previous if steps else 1)
            previous = size
        if self.p.rows:                         # for users, rows are the first axis
            shape = shape[-1:] + shape[:-1]
            steps = steps[-1:] + steps[:-1]
        array = np.asarray(lend(self.storage, self.storage.values, self.p, shape, tuple(steps)))
        found = capsule_of(array, what, stream, max_version, dl_device)
        self.p.pack.shared = 1
        return found

    def __dlpack_device__(self):
        """The CPU; parameters on GPUs are refused."""
        return (1, 0)

    cdef object part(self, Plane plane, size_t start, tuple shape):
        """Numbers of a plane, from number `start` of this parameter on, as a new array."""
        cdef size_t n = 1, row = size_of(&self.p.dim), k
        cdef int state = lazy_state(self.p, plane.memory())
        cdef float* now
        for d in shape:
            n *= <size_t>d
        if self.p.lazy != NULL and self.p.lazy.n and n and (state >= 0 or plane is self.storage.values):
            now = <float*>malloc(n * sizeof(float))
            if now == NULL:
                raise MemoryError(f"the value of {self.full_name}")
            try:
                if state < 0:
                    read_current(self.p, start // row, n // row, now)
                else:
                    for k in range(n // row):
                        read_lazy_state(self.p, state, start // row + k, now + k * row)
                return array_of(now, shape)
            finally:
                free(now)
        plane.pull(self.p.offset + start, n)
        if plane is self.storage.grads:
            return self.gradient_part(start, n, shape)
        return array_of(plane.at(self.p.offset + start), shape)

    cdef object gradient_part(self, size_t start, size_t n, tuple shape):
        """A part of the gradient, to which graphs of other threads may be adding, as a new array."""
        cdef Param* p = self.p
        array = np.empty(shape, np.float32, order="F")
        cdef float* to = <float*>memory_of(array.T, True)
        with nogil:
            pthread_mutex_lock(&p.lock)
            if n:
                memcpy(to, p.grad + start, n * sizeof(float))
            pthread_mutex_unlock(&p.lock)
        return array

    cdef bint has_gradient(self) noexcept:
        cdef Param* p = self.p
        cdef bint found
        with nogil:
            pthread_mutex_lock(&p.lock)
            found = p.has_gradient
            pthread_mutex_unlock(&p.lock)
        return found

    cdef int put(self, Plane plane, size_t start, object array, size_t n) except -1:
        """Write n numbers to a plane, in column-major order: the inverse of `part`."""
        part_current(self.p, start, n)
        copy_floats(array, plane.at(self.p.offset + start), n)
        return plane.push(self.p.offset + start, n)

    cdef object array(self, Plane plane):
        """Numbers of a plane as a new array, with the axes in the order for users, and row-major, as some writers of
        files assume."""
        array = self.part(plane, 0, file_dim(self))
        return np.asarray(np.moveaxis(array, -1, 0) if self.p.rows else array, order="C")

    cdef int fill(self, object array, Plane plane) except -1:
        """Write an array to a plane: the inverse of `array`."""
        if self.p.rows:
            array = np.moveaxis(array, 0, -1)
        return self.put(plane, 0, np.asfortranarray(array, np.float32), self.p.size)

    def __reduce__(self):
        self.check_made()
        return self.members.reduced(self)

    def __repr__(self):
        if self.storage is None:
            return f"<{type(self).__name__} of no collection>"
        return (f"<{type(self).__name__} {self.full_name} {tuple(self.shape)}"
                + ("" if self.p.updated else ", frozen") + ">")


cdef int about_to_change(_Stored x, str what) except -1:
    x.check_made()
    check_change(x.storage, f"{what} of {x.full_name}")
    return keep_read()


cdef _Stored new_stored(cls, Storage storage, Param* p, str name):
    cdef _Stored x = cls.__new__(cls)
    x.storage = storage
    x.p = p
    x.full_name = name
    return x


cdef tuple file_dim(_Stored x):
    """Shape in the order of model files: for a table, rows are the last axis."""
    shape = shape_of(&x.p.dim)
    return shape + (x.p.rows,) if x.p.rows else shape


cdef object stored_array(_Stored x, tuple shape, size_t start=0):
    """The value, from number `start` on, as a new array."""
    array = x.part(x.storage.values, start, shape)
    if x.p.factor != 1:
        array *= np.float32(x.p.factor)
    return array


cdef object floats_like(object values, str op, tuple shape):
    """Values of exactly this shape as column-major floats, or a clear error."""
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
    # An update on a device that was not made leaves gradients without marking them, so clear in any case.
    return x.storage.grads.clear(p.offset, p.size)


cdef int note_whole_gradient(_Stored x) except -1:
    """Note that the whole gradient has been written."""
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
    def shape(self) -> ParameterShape:
        """Shape, a tuple.  As in DyNet, it can also be called: ``W.shape()`` is ``W.shape``.

        Example:
            >>> model.add_parameters((3, 2)).shape
            (3, 2)
        """
        self.check_made()
        return ParameterShape(shape_of(&self.p.dim))

    def as_array(self) -> _Floats:
        """The value as a new float32 array.

        Example:
            >>> model.add_parameters(2, init=3).as_array()
            array([3., 3.], dtype=float32)
        """
        self.check_made()
        return self.members.decay.shown(self.p.id, self.array(self.storage.values))

    def grad_as_array(self) -> _Floats:
        """The gradient that has been added up since the last update, as a new float32 array.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> W.grad_as_array()
            array([6., 6.], dtype=float32)
        """
        self.check_made()
        return self.array(self.storage.grads)

    def __setitem__(self, index, value):
        raise TypeError(
            "elements of Parameters are not set by `p[i] = value`: p.set_value(values) sets all; values may be those "
            "of p.as_array() with other elements")

    def set_value(self, arr: npt.ArrayLike):
        """Set the value from numbers of the same shape.

        Args:
            arr: an array, or lists of numbers, of the parameter's shape.

        Raises:
            ValueError: the shapes differ.

        Example:
            >>> W = model.add_parameters((2, 2))
            >>> W.set_value([[1, 2], [3, 4]])
            >>> W.npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        about_to_change(self, "set_value")
        array = floats_like(arr, f"set_value of {self.full_name}", shape_of(&self.p.dim))
        self.put(self.storage.values, 0, self.members.decay.meant(self.p.id, array), self.p.size)
        value_changed(self.p)

    def clip_inplace(self, left: float, right: float):
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
        set_array(self, np.clip(settled_array(self), left, right))


cdef class LookupParameters(_Stored):
    """A lookup table: rows of trained parameters; a graph usually uses only a few of them.

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
    def shape(self) -> ParameterShape:
        """Number of rows, then the shape of a row, as in `as_array`.  As an expression (`dim`), a table has its rows
        along the last axis.  The shape can also be called, as in DyNet.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.shape, table.dim()
            ((10, 2), ((2, 10), 1))
        """
        self.check_made()
        return ParameterShape((self.p.rows,) + shape_of(&self.p.dim))

    def expr(self, update=True) -> Expression:
        """An expression of the current graph with the whole table, rows as the last axis.

        Args:
            update: whether gradients reach the table; if False, it is a constant. Default: True.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.expr(update=False).dim()
            ((2, 10), 1)
        """
        return _Stored.expr(self, update)

    def __len__(self) -> int:
        self.check_made()
        return self.p.rows

    # stub: (self, index: _Int, /) -> LookupExpression  # type: ignore[override]
    # stub: (self, index: Expression, /) -> Expression  # pyright: ignore[reportIncompatibleMethodOverride]
    def __getitem__(self, index):
        self.check_made()
        return _row(self, index, True)

    def __setitem__(self, index, value):
        raise TypeError(
            "rows of LookupParameters are not set by `table[i] = row`: table.init_row(i, row) sets one, and "
            "table.init_from_array(rows) all")

    def __iter__(self) -> Iterator[LookupExpression]:
        for i in range(len(self)):
            yield self[i]

    # stub: (self, i: _Ints, update: bool = True) -> LookupExpression
    # stub: (self, i: Expression, update: bool = True) -> Expression
    def batch(self, i, update=True):
        """The rows with the numbers in `i` as a minibatch; see `lookup_batch`.

        Args:
            i: the numbers of the rows, from 0.
            update: whether the rows get gradients (default: yes).

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.add_lookup_parameters((10, 2))
            >>> table.batch([7, 3, 7]).dim()
            ((2,), 3)
        """
        return lookup_batch(self, i, update)

    def as_array(self) -> _Floats:
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
        return self.members.decay.shown(self.p.id, array)

    def grad_as_array(self) -> _Floats:
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

    def row_as_array(self, row: _Int) -> _Floats:
        """One row as a new float32 array.

        Raises:
            IndexError: there is no such row.

        Example:
            >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
            >>> table.row_as_array(1)
            array([3., 4.], dtype=float32)
        """
        array = stored_array(self, shape_of(&self.p.dim), self.start_of(row, "row_as_array"))
        return self.members.decay.shown(self.p.id, np.asarray(array, order="C"))

    def row_grad_as_array(self, row: _Int) -> _Floats:
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
        return np.asarray(self.part(self.storage.grads, start, shape_of(&self.p.dim)), order="C")

    def rows_as_array(self, rows: _Ints) -> _Floats:
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

    def rows_grad_as_array(self, rows: _Ints) -> _Floats:
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

    def init_row(self, i: _Int, row: npt.ArrayLike):
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
        about_to_change(self, "init_row")
        cdef size_t n = size_of(&self.p.dim)
        r = checked_row(self, i, "init_row")
        what = f"init_row of {self.full_name}"
        array = floats_in(row, what, "the value", 7)
        if array.shape != (n,):
            array = floats_like(array, what, shape_of(&self.p.dim))
        settle(self.p)
        self.put(self.storage.values, <size_t>r * n, self.members.decay.meant(self.p.id, array), n)
        value_changed(self.p)

    def init_from_array(self, arr: npt.ArrayLike):
        """Set all rows from an array, the row number first.

        Args:
            arr: an array of the table's shape, of any type of numbers.

        Raises:
            ValueError: the shape is wrong.

        Example:
            >>> table = model.add_lookup_parameters((2, 2))
            >>> table.init_from_array([[1, 2], [3, 4]])
            >>> table[1].npvalue()
            array([3., 4.])
        """
        array = floats_like(arr, f"init_from_array of {self.full_name}", tuple(self.shape))
        set_array(self, self.members.decay.meant(self.p.id, array))


cdef inline uint32_t checked_row(LookupParameters table, row, str op) except? 0xFFFFFFFF:
    return row_number(table.p, table.full_name, row, op)


cdef LookupParameters as_table(object table, str op):
    if not isinstance(table, LookupParameters):
        raise TypeError(f"{op}: the table must be LookupParameters, not {type(table).__name__}")
    (<LookupParameters>table).check_made()
    return table


# stub: (p: LookupParameters, index: _Int = 0, update: bool = True) -> LookupExpression
# stub: (p: LookupParameters, index: Expression, update: bool = True) -> Expression
def lookup(p, index=0, update=True):
    """One row of a table.

    Args:
        p: lookup table with rows of shape ``{d...}``.
        index: number of the row (default: 0); or an expression of whole numbers, such as ``dy.argmax(scores)``, which
            gets no gradient.
        update: whether the row is trained; if False, it is a constant. Default: True.

    Returns:
        Expression of shape ``{d...}``; for an index of shape ``{n...}`` that has several numbers, ``{d...,n...}``.

    Raises:
        IndexError: there is no such row; if the index is an expression, when the value is computed.

    Example:
        >>> table = model.add_lookup_parameters((10, 2), init=1.0)
        >>> dy.lookup(table, 7).npvalue()
        array([1., 1.])
        >>> dy.lookup(table, dy.argmax(dy.inputVector([1, 5, 3]))).npvalue()
        array([1., 1.])
    """
    return _row(as_table(p, "lookup"), index, update)


cdef Expression _row(LookupParameters table, object index, bint update):
    cdef uint32_t r
    if isinstance(index, Expression):
        return lookup_at(table, index, update, "lookup")
    if type(index) is not int and (isinstance(index, (list, tuple)) or getattr(index, "ndim", 0)):
        raise TypeError("lookup: the index must be a number; lookup_batch takes a list")
    r = checked_row(table, index, "lookup")
    return lookup_rows(table.p, table.storage, &r, 1, update)


# stub: (p: LookupParameters, indices: _Ints, update: bool = True) -> LookupExpression
# stub: (p: LookupParameters, indices: Expression, update: bool = True) -> Expression
def lookup_batch(p, indices, update=True):
    """Rows of a table as a minibatch.

    Args:
        p: lookup table with rows of shape ``{d...}``.
        indices: numbers of n rows; or an expression of n whole numbers in all its elements and batch elements, which
            gets no gradient.
        update: whether the rows are trained; if False, they are constants. Default: True.

    Returns:
        Expression of shape ``{d...}`` with batch size n.

    Raises:
        IndexError: there is no such row; if the indices are an expression, when the value is computed.
        ValueError: the list is empty.

    Example:
        >>> table = model.add_lookup_parameters((10, 2))
        >>> dy.lookup_batch(table, [7, 3, 7]).dim()
        ((2,), 3)
    """
    cdef LookupParameters t = as_table(p, "lookup_batch")
    cdef uint32_t* rows
    cdef uint32_t i, n
    cdef const Dim* d
    if isinstance(indices, Expression):
        d = dim_of(indices)
        if size_of(d) != 1:
            indices = operators["reshape"](indices, (1,), size_of(d) * d.bd)
        return lookup_at(t, indices, update, "lookup_batch")
    if isinstance(indices, np.ndarray) and indices.ndim == 1:
        indices = indices.tolist()
    elif type(indices) is not list:
        if not hasattr(indices, "__getitem__") or isinstance(indices, Mapping) or getattr(indices, "ndim", 1) != 1:
            raise TypeError(f"lookup_batch: a list of indices is needed, not {indices!r}")
        indices = list(indices)                     # the items of a series of pandas by number are others
    n = len(indices)
    if n == 0:
        raise ValueError("lookup_batch: the list of indices is empty")
    rows = <uint32_t*>malloc(n * sizeof(uint32_t))
    if rows == NULL:
        raise MemoryError(f"lookup_batch: {n} indices")
    try:
        for i in range(n):
            rows[i] = checked_row(t, indices[i], "lookup_batch")
        return lookup_rows(t.p, t.storage, rows, n, update)
    finally:
        free(rows)


# stub: (parameter: _Kept, /) -> _Kept
# stub: (parameters: list[_Kept], /) -> list[_Kept]
# stub: (parameters: tuple[_Kept, ...] = (), /) -> tuple[_Kept, ...]
# stub: (first: _AnyParameters, second: _AnyParameters, /, *parameters: _AnyParameters)
#     -> tuple[_AnyParameters, ...]
def parameter(*parameters):
    """Return the parameters themselves: a parameter is an expression in whichever graph is current.

    Programs need not call this; it exists for older programs.

    Returns:
        The parameter, or a tuple of several; for a list, a list.

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


# stub: (parameter: _AnyParameters, /) -> Expression
# stub: (first: _AnyParameters, second: _AnyParameters, /, *parameters: _AnyParameters) -> tuple[Expression, ...]
def const_parameter(*parameters):
    """The expressions of parameters in the current graph as constants: without gradients.

    All constants of one parameter in a graph are one expression; in a program with ``import dynet``, this function
    makes a new one each time, as in DyNet, so that each has a gradient of its own.

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
    cdef Graph* g = claim_current()
    try:
        p.enter()           # as in DyNet, so that the parameter itself has a gradient in this graph, too: zero
        return wrap(g, constant_leaf(p.p, p.storage))
    finally:
        release_current(g)


cdef _Stored _checked(p, str op):
    if not isinstance(p, _Stored):
        raise TypeError(f"{op}: the argument must be Parameters, not {type(p).__name__}")
    (<_Stored>p).check_made()
    return p


# ---- values and gradients, for checkpoints and pickles -----------------------

def settled_array(_Stored x not None) -> _Floats:
    """The value as an array; the factor of a table is multiplied in first, so that the table and
    its copy stay equal to the last bit in further training."""
    x.check_made()
    settle(x.p)
    return x.array(x.storage.values)


def set_array(_Stored x not None, array: npt.ArrayLike):
    """Set the value from an array of its shape, such as that of `settled_array`."""
    about_to_change(x, "new value")
    x.fill(floats_like(array, f"the value of {x.full_name}", tuple(x.shape)), x.storage.values)
    x.p.factor = 1
    value_changed(x.p)


def deferred_updates(_Stored x not None) -> int:
    """The number of deferred updates of a table: see dynet_cy/kernels/lazy_rows.pxd.

    On a GPU, updates that the device has dropped count, too.
    """
    x.check_made()
    return 0 if x.p.lazy == NULL else x.p.lazy.n


def gradient_state(_Stored x not None) -> Any:
    """The gradient summed since the last update.

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


def set_gradient_state(_Stored x not None, state: Any):
    """Replace the gradient by what `gradient_state` returned.

    Frozen parameters have none.
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


# ==== entries =====================================================================================
#
# Parameters as entries of text model files.

def check_text(str function, str argument, given: object):
    """Refuse what is no name in a file, such as the list of parameters that `dynet_cy.save` takes."""
    if not isinstance(given, str):
        way = "dy.save(file, [W, builder])" if function == "save" else "W, builder = dy.load(file, collection)"
        raise TypeError(f"{function}: argument {argument}: expected a name in the file, such as \"/W\", got "
                        f"{type(given).__name__}; for parameters and builders of your choice, write {way}")


def check_key(str argument, key: object):
    check_text("save", argument, key)
    if " " in key or "#" in key:
        raise ValueError(f"Key could not include ' ' or '#': {key}")


def entry_of(_Stored x not None, str name) -> Any:
    """The parameter as an entry of a text model file."""
    kind = LOOKUP if isinstance(x, LookupParameters) else PARAMETER
    values = stored_array(x, (x.p.size,))
    grads = x.part(x.storage.grads, 0, (x.p.size,)) if x.has_gradient() else None
    return kind, name, file_dim(x), values, grads


def write_entry(_Stored x not None, fname: _File, key: str, append: bool):
    """Write one parameter to a text model file."""
    check_key("key", key)
    write_text_model(fname, [entry_of(x, key or x.name())], append)


def read_entry(_Stored x not None, fname: _FileName, key: str):
    """Read one parameter from a text model file."""
    check_text("populate", "key", key)
    fill_entry(x, find_entry(fname, key, isinstance(x, LookupParameters)), fname)


def fill_entry(_Stored x not None, entry: Entry, fname: _FileName):
    """Fill a parameter from an entry; `fname` is for messages.

    Raises:
        ModelMismatchError: the entry has another shape; nothing is changed then.
    """
    if entry.dim != file_dim(x):
        raise ModelMismatchError(
            f"has dimensions {entry.dim} in the file, {file_dim(x)} in the collection",
            os.fspath(fname), parameter=x.full_name)
    about_to_change(x, "populate")
    fill(x, entry)


cdef int fill(_Stored x, entry) except -1:
    values = np.ascontiguousarray(entry.values, np.float32)
    x.put(x.storage.values, 0, x.members.decay.meant(x.p.id, values), x.p.size)
    value_changed(x.p)
    x.p.factor = 1
    if entry.grads is not None and x.p.updated:
        x.put(x.storage.grads, 0, np.ascontiguousarray(entry.grads, np.float32), x.p.size)
        note_whole_gradient(x)
    return 0


def fill_entries(collection: ParameterCollection, entries: Iterable[Entry], fname: _FileName):
    """Fill a collection from entries of a text model file, matched by kind and position.

    Raises:
        ModelMismatchError: the entries differ from the collection's; nothing is changed then.
    """
    left = {PARAMETER: collection.parameters_list(), LOOKUP: collection.lookup_parameters_list()}
    matched = []
    for entry in entries:
        if not left[entry.kind] or entry.dim != file_dim(left[entry.kind][0]):
            raise ModelMismatchError(
                f"has dimensions {entry.dim}; "
                + (f"{file_dim(left[entry.kind][0])} are needed for {left[entry.kind][0].name()}"
                   if left[entry.kind] else f"no {entry.kind} is left to be filled"),
                os.fspath(fname), parameter=entry.name)
        matched.append((left[entry.kind].pop(0), entry))
    for x, entry in matched:
        fill_entry(x, entry, fname)


def add_entry(collection: ParameterCollection, entry: Entry) -> _AnyParameters:
    """Add an entry of a text model file to a collection."""
    cdef _Stored x
    values = entry.values.reshape(entry.dim, order="F")
    name = entry.name.rpartition("/")[2]
    without_number = re.sub(r"_\d+$", "", name)
    if follows_dynet():                     # such programs find parameters in files by names that DyNet has given
        cls, array = (LookupParameters, np.moveaxis(values, -1, 0)) if entry.kind == LOOKUP else (Parameters, values)
        x = collection._add(cls, array.shape, NumpyInitializer(array), "", "", None, None, None, name)
    elif entry.kind == LOOKUP:
        x = collection.lookup_parameters_from_numpy(np.moveaxis(values, -1, 0), without_number)
    else:
        x = collection.parameters_from_numpy(values, without_number)
    fill(x, entry)                          # it is new: no item has used it
    return x


def find_entry(fname: _FileName, key: str, lookup: bool) -> Entry:
    kind = LOOKUP if lookup else PARAMETER
    if not key:
        raise ValueError("populate: the key of the parameter in the file must not be empty")
    for entry in read_text_model(fname, lambda k, name: k == kind and name == key):
        return entry
    raise ModelMismatchError(f"could not find key {key} in the model file", os.fspath(fname))
