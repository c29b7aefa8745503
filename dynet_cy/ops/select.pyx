"""Selections: elements, ranges, rows, columns, batch elements, indexing; and sorting."""

import numpy as np

from libc.math cimport INFINITY, fabs
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, uint32_t

from dynet_cy.core.tensor cimport Attr, Call, Dim, element, integers, size_of, total_of
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport Expression, dim_of, forget_to_set, number_in
from dynet_cy.graph.making cimport (
    apply1x, apply2_for, apply2x, claim_current, expression, refer, release_current,
)
from dynet_cy.graph.origin cimport describe_dim
from dynet_cy.graph.structs cimport Extra, Graph, items_of, no_extra, nodes_of
from dynet_cy.graph.table cimport current_graph
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.index cimport (
    BARRED, ONE_POSITION, OWN_POSITIONS, SHARED_POSITIONS, chooser_number, chooses, function_number, index_op,
    need_one, need_positions, refuse,
)
from dynet_cy.ops.inputs cimport (
    axis_in, axis_word, check_count, of_words, set_indices, set_item, whole, whole_where_possible,
)
from dynet_cy.ops.loops cimport Split, add_where, split_at, vector, without
from dynet_cy.ops.registry cimport (
    ALONE, RAGGED, UNREAD, Op, Shapes, as_many_as_y, need_d, op_at, register, same_dim, twice_as_many,
)
from dynet_cy.ops.shape cimport concatenated

from dynet_cy.graph.structs import carriers, operators
from dynet_cy.ops.elementwise import equal, esum
from dynet_cy.ops.elementwise import where as where_mask
from dynet_cy.ops.inputs import constant
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape


# ==== select ======================================================================================
#
# Selections: elements, ranges, rows, columns, batch elements, and indexing.

cdef extern from "Python.h":
    int PySlice_GetIndicesEx(object slice, Py_ssize_t length, Py_ssize_t* start,
                             Py_ssize_t* stop, Py_ssize_t* step, Py_ssize_t* count) except -1

cdef enum:
    MOST_ITEMS = 0x3FFFFF           # words per batch element: 22 bits of a node


cdef inline uint32_t word_of(Py_ssize_t i) noexcept:
    """An index as a word; a negative one becomes larger than any axis."""
    return <uint32_t><int32_t>i


cdef int need_indices(const Shapes* s, uint32_t n) except -1:
    """All indices must be from 0 to n - 1."""
    cdef uint32_t i
    for i in range(s.n_items):
        if s.items[i] >= n:
            raise IndexError(f"index {<int32_t>s.items[i]} is not from 0 to {<int>n - 1}")
    return 0


# ---- pick: y = x[..., items[0], ...] ------------------------------------------

cdef int need_one_axis(const Shapes* s) except -1:
    """Attribute 0 must be an axis of x; functions name it differently."""
    if s.attrs[0].u >= s.x[0].nd:
        raise DimensionError(f"the axis must be one of x, from 0 to {<int>s.x[0].nd - 1}")
    return 0


cdef int pick_dim(const Shapes* s, Dim* y) except -1:
    need_one_axis(s)
    if s.bd == 1:
        y.bd = s.n_items                            # one batch element per index; all share x
    else:
        check_count(s, 1)
    need_indices(s, s.x[0].d[s.attrs[0].u])
    without(s.x[0], <uint32_t>1 << s.attrs[0].u, y)
    return 0


cdef Op* PICK = index_op(b"pick", b"x", pick_dim)


cdef class PickedExpression(Expression):
    """The result of `pick` and `pick_batch`; its indices can be changed.

    Example:
        >>> x = dy.pick(dy.inputVector([5, 7]), 0)
        >>> x.set_index(1)
        >>> x.value()
        7.0
    """

    cdef int set_items(self, const uint32_t* items, uint32_t n) except -1:
        cdef Graph* g = self.graph()
        cdef uint32_t i
        cdef uint32_t* own
        if nodes_of(g)[self.index].nargs > 1:
            raise TypeError("set_index: the index is an expression; a number cannot replace it")
        cdef const Dim* x = &nodes_of(g)[(<uint32_t*>g.args.base)[nodes_of(g)[self.index].args]].dim
        cdef uint32_t longest = x.d[nodes_of(g)[self.index].attrs[0].u]
        for i in range(n):
            if items[i] >= longest:
                raise IndexError(
                    f"set_index: index {<int32_t>items[i]} is not from 0 to {<int>longest - 1}")
        forget_to_set(g, self.index, "set_index")
        own = items_of(g, &nodes_of(g)[self.index])         # other items may have added nodes
        for i in range(nodes_of(g)[self.index].dim.bd):
            own[i] = items[i if n > 1 else 0]
        return 0

    def set_index(self, index: _Int | _Ints):
        """Pick another index; what depends on it is then recomputed.

        Args:
            index: a number, or a list of numbers, one for each batch element.

        Raises:
            IndexError: an index is out of range, or the number of indices is not that of batch elements.

        Example:
            >>> x = dy.pick(dy.inputVector([3, 4]), 0)
            >>> x.set_index(1)
            >>> x.value()
            4.0
        """
        cdef Extra extra
        cdef uint32_t item
        cdef const Dim* d
        if isinstance(index, (list, tuple)) or getattr(index, "ndim", 0):
            held = set_indices(&extra, index, "set_index")
            d = dim_of(self)
            if extra.n_items != d.bd:
                raise IndexError(f"set_index: {extra.n_items} indices given where {d.bd} are needed")
            self.set_items(extra.items, extra.n_items)
            del held
            return
        item = word_of(whole(index, "set_index"))
        self.set_items(&item, 1)


cdef Expression picked(object x, Extra* extra, Py_ssize_t axis):
    extra.attrs[0].u = axis_word(axis)
    return apply1x(PICK, x, extra)


cdef Expression settable(Expression y):
    cdef PickedExpression z
    if current_graph().forward_only:
        return y
    z = PickedExpression.__new__(PickedExpression)
    refer(z, current_graph(), y.index)
    return z


cdef Expression picked_at(object x, Py_ssize_t index, Py_ssize_t axis):
    cdef uint32_t item = word_of(index)
    cdef Extra extra = no_extra()
    set_item(&extra, &item)
    return picked(x, &extra, axis)


def pick(e, index: Expression | _Int = 0, dim=0) -> PickedExpression:
    """The part of e at one index along an axis, which is removed.

    Args:
        e: the expression.
        index: counted from 0; the same in every batch element. Default: 0. Or an expression of one whole number for
            each batch element, such as ``dy.argmax(scores)``, which gets no gradient.
        dim: the axis (default: 0).

    Returns:
        The part; its method `set_index` changes a number later.

    Raises:
        DimensionError: e has no such axis.
        IndexError: the index is out of range; if it is an expression, when the value is computed.

    Example:
        >>> dy.pick(dy.inputVector([1, 2, 3]), 2).value()
        3.0
        >>> dy.pick(dy.inputTensor([[1, 2], [3, 4]]), 1).npvalue()
        array([3., 4.])
    """
    cdef Py_ssize_t axis = axis_in(e, dim, "pick", "dim")
    if isinstance(index, Expression):
        return settable(taken(e, index, axis, ONE_POSITION, "pick"))
    return settable(picked_at(e, whole(index, "pick"), axis))


def pick_batch(e, indices: Expression | _Ints, dim=0) -> PickedExpression:
    """`pick` with a separate index for each batch element.

    Args:
        e: the expression; a single batch element is used for all indices.
        indices: a list or an array, one index for each batch element; or a vector of them as an expression, or an
            expression of one for each batch element, which gets no gradient.
        dim: the axis (default: 0).

    Returns:
        The parts, one batch element each.

    Raises:
        DimensionError: e has no such axis.
        IndexError: the number of indices is not that of batch elements, or one
            is out of range.

    Example:
        >>> dy.pick_batch(dy.inputTensor([[1, 3], [2, 4]], batched=True), [0, 1]).npvalue()
        array([[1., 4.]])
    """
    cdef const Dim* d = dim_of(expression(e, "pick_batch", "e"))
    cdef Extra extra = no_extra()
    if isinstance(indices, Expression):
        index = one_each(indices, "pick_batch")
        return settable(taken(e, index, axis_in(e, dim, "pick_batch", "dim"), ONE_POSITION, "pick_batch"))
    held = set_indices(&extra, indices, "pick_batch")
    if extra.n_items == 1 and d.bd > 1:
        raise IndexError(f"pick_batch: 1 index given for {d.bd} batch elements")
    y = settable(picked(e, &extra, axis_in(e, dim, "pick_batch", "dim")))
    del held
    return y


# ---- pick_range: y = x[..., items[0] : items[0] + length, ...] -----------------

cdef int pick_range_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t d = s.attrs[0].u, n = s.attrs[1].u
    need_one_axis(s)
    check_count(s, 1)
    if s.items[0] > 0x7FFFFFFF or s.items[0] + n > s.x[0].d[d]:
        raise IndexError(
            f"the range {<int32_t>s.items[0]} to {<int32_t>(s.items[0] + n)} is not within 0 to "
            f"{s.x[0].d[d]}")
    same_dim(s, y)
    y.d[d] = n
    return 0


cdef Op* PICK_RANGE = index_op(b"pick_range", b"x", pick_range_dim)


cdef ptrdiff_t range_view(const Dim* x, const Dim* y, const Attr* attrs, const uint32_t* items) noexcept nogil:
    """A range along the last axis is contiguous."""
    cdef Split s = split_at(x, attrs[0].u)
    return <ptrdiff_t>(items[0] * s.pre) if s.post == 1 and x.bd == 1 and y.bd == 1 else -1


PICK_RANGE.view = range_view


cdef Expression range_of(object x, Py_ssize_t start, Py_ssize_t end, Py_ssize_t axis):
    cdef uint32_t item = word_of(start)
    cdef Extra extra = of_words(axis_word(axis), word_of(end - start))
    if end < start:
        raise IndexError(f"pick_range: the end {end} of the range is before its start {start}")
    set_item(&extra, &item)
    return apply1x(PICK_RANGE, x, &extra)


def pick_range(x, s: Expression | int, e: int | None = None, d=0, length: int | None = None):
    """The part of x from index s up to, but not including, e along an axis.

    Args:
        x: the expression.
        s, e: the range; if they are equal, the result has no elements.
        d: the axis (default: 0).
        length: how many indices from s on, instead of e. It is needed if s is an expression of one whole number for
            each batch element, which gets no gradient.

    Raises:
        DimensionError: x has no such axis.
        IndexError: the range is not within the axis; if s is an expression, when the value is computed.
        TypeError: neither e nor length is given, or both; or s is an expression, and length is not given.

    Example:
        >>> dy.pick_range(dy.inputVector([1, 2, 3, 4]), 1, 3).npvalue()
        array([2., 3.])
        >>> dy.pick_range(dy.inputVector([1, 2, 3, 4]), dy.input_indices(2), length=2).npvalue()
        array([3., 4.])
    """
    cdef Py_ssize_t axis = axis_in(expression(x, "pick_range", "x"), d, "pick_range")
    if (e is None) == (length is None):
        raise TypeError("pick_range: either e or length must be given")
    count = whole(length, "pick_range", "length") if e is None else 0
    if isinstance(s, Expression):
        if e is not None:
            raise TypeError("pick_range: s is an expression, so give length, and not e")
        if count < 0:
            raise IndexError(f"pick_range: length must be a number of elements, not {count}")
        if count == 0:
            return range_of(x, 0, 0, axis)
        if size_of(dim_of(expression(s, "pick_range", "s"))) != 1:
            raise DimensionError("pick_range: s must be one number for each batch element")
        return taken(x, s + np.arange(count), axis, SHARED_POSITIONS, "pick_range")
    start = whole(s, "pick_range")
    return range_of(x, start, start + count if e is None else whole(e, "pick_range"), axis)


def pickrange(x, s: int, e: int):
    """DyNet's old name for `pick_range`, along axis 0.

    Args:
        x: an expression.
        s, e: the first row, and the row after the last.

    Raises:
        IndexError: the range is not within x.

    Example:
        >>> dy.pickrange(dy.inputVector([1, 2, 3, 4]), 1, 3).npvalue()
        array([2., 3.])
    """
    return range_of(x, whole(s, "pickrange"), whole(e, "pickrange"), 0)


# ---- pick_batch_elems: y = batch elements items[0], items[1], ... of x -----------

cdef int pick_batch_elems_dim(const Shapes* s, Dim* y) except -1:
    need_indices(s, s.bd)
    same_dim(s, y)
    y.bd = s.n_items
    return 0


cdef Op* PICK_BATCH_ELEMS = index_op(b"pick_batch_elems", b"x", pick_batch_elems_dim)
PICK_BATCH_ELEMS.batching = ALONE
PICK_BATCH_ELEMS.alone_because = b"it selects from the batch of its argument"


cdef Expression batch_elem(object x, Py_ssize_t index):
    cdef uint32_t item = word_of(index)
    cdef Extra extra = no_extra()
    set_item(&extra, &item)
    return apply1x(PICK_BATCH_ELEMS, x, &extra)


cdef Expression batch_elems_at(object x, object indices, str name):
    """Batch elements whose numbers are values of the graph: columns of x as one matrix."""
    cdef Dim d = dim_of(expression(x, name, "x"))[0]     # nodes move when others are made
    cdef size_t count = total_of(dim_of(indices))
    if count == 0:
        raise IndexError(f"{name}: there are no indices")
    columns = reshape(x, (size_of(&d), d.bd))
    chosen = taken(columns, reshape(indices, (count,)), 1, SHARED_POSITIONS, name)
    return reshape(chosen, shape_of(&d), count)


def pick_batch_elem(x, v: Expression | int):
    """Batch element v of x, as an expression of one batch element.

    Args:
        x: the expression.
        v: its number; or an expression of one whole number, which gets no gradient.

    Raises:
        DimensionError: v is an expression of several numbers.
        IndexError: x has no such batch element; if v is an expression, when the value is computed.

    Example:
        >>> dy.pick_batch_elem(dy.inputTensor([[1, 3], [2, 4]], batched=True), 1).npvalue()
        array([3., 4.])
    """
    if isinstance(v, Expression):
        if total_of(dim_of(v)) != 1:
            raise DimensionError("pick_batch_elem: v must be one number")
        return batch_elems_at(x, v, "pick_batch_elem")
    return batch_elem(x, whole(v, "pick_batch_elem"))


def pick_batch_elems(x, vs: Expression | _Ints):
    """Batch elements of x, in the given order; each may occur several times.

    Args:
        x: the expression.
        vs: their numbers, a list or an array; or an expression of as many whole numbers, in a vector or one in each
            batch element, which gets no gradient.

    Raises:
        IndexError: x has no such batch element; if vs is an expression, when the value is computed.

    Example:
        >>> dy.pick_batch_elems(dy.inputTensor([[1, 3], [2, 4]], batched=True), [1, 1]).dim()
        ((2,), 2)
    """
    cdef Extra extra = no_extra()
    if isinstance(vs, Expression):
        return batch_elems_at(x, vs, "pick_batch_elems")
    held = set_indices(&extra, vs, "pick_batch_elems")
    y = apply1x(PICK_BATCH_ELEMS, x, &extra)
    del held
    return y


# ---- select_rows, select_cols: y = x[items] along axis 0, along axis 1 -----------

cdef int select_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t d = s.attrs[0].u
    need_one_axis(s)
    need_indices(s, s.x[0].d[d])
    same_dim(s, y)
    y.d[d] = s.n_items
    return 0


cdef Op* SELECT_ROWS = index_op(b"select_rows", b"x", select_dim)
cdef Op* SELECT_COLS = index_op(b"select_cols", b"x", select_dim)


cdef Py_ssize_t length_of(object indices, str name) except -1:
    if not hasattr(indices, "__len__"):
        raise TypeError(f"{name}: a list of indices is needed, not {indices!r}")
    return len(indices)


cdef Expression selected(const Op* op, object x, object indices, uint32_t axis, str name):
    cdef Py_ssize_t n = length_of(indices, name)
    cdef Py_ssize_t i
    if n == 0:
        return range_of(x, 0, 0, axis)
    if n > MOST_ITEMS:
        parts = []
        for i in range(0, n, MOST_ITEMS):
            parts.append(selected(op, x, indices[i:i + MOST_ITEMS], axis, name))
        return concatenated(parts, axis)
    cdef Extra extra = no_extra()
    held = set_indices(&extra, indices, name)
    extra.item_count = extra.n_items
    extra.attrs[0].u = axis
    y = apply1x(op, x, &extra)
    del held
    return y


def select_rows(x, rs: Expression | _Ints):
    """Rows of x, in the given order; each may occur several times.

    Args:
        x: a vector, a matrix, or more: rows are along axis 0.
        rs: their numbers, a list or an array; or a vector of them as an expression, which gets no gradient.

    Raises:
        IndexError: x has no such row.

    Example:
        >>> dy.select_rows(dy.inputTensor([[1, 2], [3, 4]]), [1]).npvalue()
        array([[3., 4.]])
    """
    if isinstance(rs, Expression):
        return taken(x, rs, 0, SHARED_POSITIONS, "select_rows")
    return selected(SELECT_ROWS, x, rs, 0, "select_rows")


def select_cols(x, cs: Expression | _Ints):
    """Columns of x, in the given order; each may occur several times.

    Args:
        x: a matrix, or more: columns are along axis 1.
        cs: their numbers, a list or an array; or a vector of them as an expression, which gets no gradient.

    Raises:
        DimensionError: x is a vector.
        IndexError: x has no such column.

    Example:
        >>> dy.select_cols(dy.inputTensor([[1, 2], [3, 4]]), [1]).npvalue()
        array([[2.],
               [4.]])
    """
    if isinstance(cs, Expression):
        return taken(x, cs, 1, SHARED_POSITIONS, "select_cols")
    return selected(SELECT_COLS, x, cs, 1, "select_cols")


# ---- scatter_rows, scatter_cols: y[items[k]] += x[k], the reverse of select_rows, select_cols ----

# Attributes: the axis, its length in y.
cdef int scatter_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t d = s.attrs[0].u
    cdef str what = "column" if d else "row"
    if d >= s.x[0].nd or s.x[0].d[d] != s.n_items:
        raise DimensionError(f"x must have {s.n_items} {what}s, as many as there are positions")
    need_indices(s, s.attrs[1].u)
    same_dim(s, y)
    y.d[d] = s.attrs[1].u
    return 0


cdef Op* SCATTER_ROWS = index_op(b"scatter_rows", b"x", scatter_dim)
cdef Op* SCATTER_COLS = index_op(b"scatter_cols", b"x", scatter_dim)


cdef Expression scattered(const Op* op, object x, object indices, object n, uint32_t axis, str name):
    cdef Py_ssize_t k, end, count = length_of(indices, name), size = whole(n, name, "n")
    cdef Extra extra = no_extra()
    if size < 0:
        raise DimensionError(f"{name}: n must be a number of {'columns' if axis else 'rows'}, not {n}")
    if count == 0:
        shape = list(shape_of(dim_of(expression(x, name, "x"))))
        if len(shape) <= axis or shape[axis]:
            raise DimensionError(f"{name}: x has shape {tuple(shape)}, but there are no positions")
        shape[axis] = size
        return constant(tuple(shape), 0, dim_of(x).bd)
    if count > MOST_ITEMS:
        parts = []
        for k in range(0, count, MOST_ITEMS):
            end = min(k + MOST_ITEMS, count)
            parts.append(scattered(op, range_of(x, k, end, axis), indices[k:end], n, axis, name))
        return esum(parts)
    held = set_indices(&extra, indices, name)
    extra.item_count = extra.n_items
    extra.attrs[0].u = axis
    extra.attrs[1].u = <uint32_t>size
    y = apply1x(op, x, &extra)
    del held
    return y


def scatter_rows(x, rs: Expression | _Ints, n: int):
    """Add the rows of x to n rows of zeros, at given positions: the reverse of `select_rows`.

    Shapes: ``x {k, ...}`` and k positions -> ``{n, ...}``. No gradient is taken of the positions.

    Args:
        x: a vector, a matrix, or more: rows are along axis 0.
        rs: the position of each row of x; rows with the same position are added up. A list, an array, or a vector as
            an expression.
        n: the number of rows of the result.

    Raises:
        DimensionError: the number of positions is not that of the rows of x.
        IndexError: a position is not from 0 to n - 1.

    Example:
        >>> dy.scatter_rows(dy.inputVector([1, 2, 3]), [0, 2, 0], 4).npvalue()
        array([4., 0., 2., 0.])
    """
    if isinstance(rs, Expression):
        return put(x, rs, 0, n, SHARED_POSITIONS, "scatter_rows")
    return scattered(SCATTER_ROWS, x, rs, n, 0, "scatter_rows")


def scatter_cols(x, cs: Expression | _Ints, n: int):
    """Add the columns of x to n columns of zeros, at given positions: the reverse of `select_cols`.

    With both, one matrix holds the states of all nodes of a sparse graph, and two lists its edges (Gilmer et al. 2017,
    Neural message passing for quantum chemistry): ``dy.scatter_cols(dy.select_cols(h, sources), targets, n)`` is the
    sum of what each node gets. Both copy columns as fast as memory allows.

    Shapes: ``x {d, k, ...}`` and k positions -> ``{d, n, ...}``. No gradient is taken of the positions.

    Args:
        x: a matrix, or more: columns are along axis 1.
        cs: the position of each column of x; columns with the same position are added up. A list, an array, or a
            vector as an expression.
        n: the number of columns of the result.

    Raises:
        DimensionError: x is a vector, or the number of positions is not that of its columns.
        IndexError: a position is not from 0 to n - 1.

    Example:
        >>> dy.scatter_cols(dy.inputTensor([[1, 2, 3], [4, 5, 6]]), [0, 2, 0], 3).npvalue()
        array([[ 4.,  0.,  2.],
               [10.,  0.,  5.]])
    """
    if isinstance(cs, Expression):
        return put(x, cs, 1, n, SHARED_POSITIONS, "scatter_cols")
    return scattered(SCATTER_COLS, x, cs, n, 1, "scatter_cols")


# ---- take: y = x at positions along an axis that are values of the graph ---------------
# Attributes: the axis; how the positions are meant; the number of the public function.


cdef int own_positions(const Shapes* s, uint32_t axis, const Dim* x) except -1:
    """Argument 1 must have the sizes of x along all other axes."""
    cdef uint32_t i
    if s.x[1].nd != x.nd:
        raise DimensionError(f"the indices have {s.x[1].nd} axes, they need {x.nd}")
    for i in range(x.nd):
        if i != axis and s.x[1].d[i] != x.d[i]:
            raise DimensionError(f"the indices have {s.x[1].d[i]} elements along axis {i}, they need {x.d[i]}")
    return 0


cdef int need_places(const Dim* x) except -1:
    """Elements that are chosen one by one are counted in 32 bits."""
    if size_of(x) > 0xFFFFFFFF:
        raise DimensionError("tensors of more than 2^32 elements cannot be indexed element by element")
    return 0


cdef int take_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t axis = s.attrs[0].u
    need_one_axis(s)
    need_positions(s.x[1], s.x[0].d[axis])
    if s.attrs[1].u == <uint32_t>ONE_POSITION:
        need_one(s, 1)
        without(s.x[0], <uint32_t>1 << axis, y)
        return 0
    same_dim(s, y)
    if s.attrs[1].u == <uint32_t>OWN_POSITIONS:
        own_positions(s, axis, s.x[0])
        y.d[axis] = s.x[1].d[axis]
        need_places(s.x[0])
    elif s.x[1].nd != 1:
        raise DimensionError("the indices must be a vector")
    else:
        y.d[axis] = s.x[1].d[0]
    return 0


cdef Op* TAKE = index_op(b"take", b"x indices", take_dim)


# What functions that index one axis call their arguments, where it is not "x indices".
cdef dict arguments_of = {
    "pick": b"x index", "select_rows": b"x rs", "select_cols": b"x cs", "hinge": b"x v", "hinge_batch": b"x vs",
}


cdef Expression taken(object x, object indices, Py_ssize_t axis, uint32_t mode, str name, str barred=None):
    cdef Extra extra = of_words(axis_word(axis), mode, 0, function_number(name, barred))
    cdef bytes arguments = arguments_of.get(name, b"x indices")
    return apply2_for(name, arguments, TAKE, x, indices, &extra)


cdef Expression one_each(Expression indices, str name):
    cdef const Dim* d = dim_of(indices)
    if size_of(d) == 1:
        return indices
    if d.nd > 1 or d.bd > 1:
        raise DimensionError(
            f"{name}: the indices must be a vector, or one number for each batch element, not {describe_dim(d)}")
    return reshape(indices, (1,), d.d[0])


cdef Expression taken_at(object x, Expression index, Py_ssize_t axis, str name):
    """The part of x at one index, or the parts at several in a vector."""
    if is_comparison(index):
        raise TypeError(
            "a comparison cannot be an index: the number of elements that it selects is not known when the graph is "
            "made; use where, or masked_fill")
    return taken(x, index, axis, ONE_POSITION if size_of(dim_of(index)) == 1 else SHARED_POSITIONS, name)


# ---- put: the reverse: zeros with x added at positions along an axis ---------------------
# Attributes as for `take`; attribute 2 is the length of the axis in y.

cdef int put_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t axis = s.attrs[0].u
    need_one_axis(s)
    need_positions(s.x[1], s.attrs[2].u)
    same_dim(s, y)
    if s.attrs[1].u == <uint32_t>OWN_POSITIONS:
        own_positions(s, 7, s.x[0])
    elif s.x[1].nd != 1 or s.x[1].d[0] != y.d[axis]:
        raise DimensionError(f"the indices must be a vector of {y.d[axis]}, one for each part of x along axis {axis}")
    y.d[axis] = s.attrs[2].u
    if s.attrs[1].u == <uint32_t>OWN_POSITIONS:
        need_places(y)
    return 0


cdef Op* PUT = index_op(b"put", b"x indices", put_dim)


cdef Expression put(object x, object indices, Py_ssize_t axis, object n, uint32_t mode, str name):
    cdef Py_ssize_t size = whole(n, name, "n")
    cdef Extra extra = of_words(axis_word(axis), mode, <uint32_t>size, function_number(name))
    if size < 0:
        raise DimensionError(f"{name}: n must be a number of elements, not {n}")
    return apply2_for(name, NULL, PUT, x, indices, &extra)


def _gathered(x, indices, axis, name):
    """The elements of x at positions of the shape of the result: for `gather`."""
    return taken(x, indices, axis, OWN_POSITIONS, name)


def _labelled(x, labels, barred, name, what):
    """The rows of x at labels that may not be the whole number `barred`: for losses. `what`: what is wrong then."""
    indices = where_mask(equal(labels, barred), BARRED, labels)
    return taken(x, indices, 0, SHARED_POSITIONS, name, what)


def _scattered(x, indices, axis, n, bint own, name):
    """Zeros, n along the axis, with x added at positions: of the shape of x if `own`, or else a vector."""
    return put(x, indices, axis, n, OWN_POSITIONS if own else SHARED_POSITIONS, name)


# ---- strided_select: y_ij = x[from_0 + i step_0, from_1 + j step_1], ... ---------

# items, for each axis of x: start, step, number of elements.
cdef int strided_select_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i
    cdef long long first, last
    y.nd = s.x[0].nd
    check_count(s, 3 * y.nd)
    for i in range(y.nd):
        y.d[i] = s.items[3 * i + 2]
        if y.d[i] == 0:
            continue
        first = s.items[3 * i]
        last = first + (<long long>y.d[i] - 1) * <int32_t>s.items[3 * i + 1]
        if first >= s.x[0].d[i] or last < 0 or last >= s.x[0].d[i]:
            raise IndexError(f"{first} to {last} is not within axis {i}, 0 to {s.x[0].d[i]}")
    return 0


cdef Op* STRIDED_SELECT = index_op(b"strided_select", b"x", strided_select_dim)


cdef Expression strided(Expression x, list ranges):
    """x[range, range, ...] for Python ranges, of which the last may select batch elements."""
    cdef uint32_t[21] items
    cdef uint32_t nd = dim_of(x).nd
    cdef uint32_t i, changed = 0, last = 0
    if <uint32_t>len(ranges) > nd:
        if ranges[nd] != range(dim_of(x).bd):
            x = pick_batch_elems(x, list(ranges[nd]))
    cdef Extra extra = no_extra()
    for i in range(nd):
        r = ranges[i]
        items[3 * i] = r.start if len(r) else 0
        items[3 * i + 1] = <uint32_t><int32_t>(r.step if len(r) > 1 else 1)     # else it may be any number
        items[3 * i + 2] = len(r)
        if r != range(dim_of(x).d[i]):
            changed += 1
            last = i
    if changed == 0:
        return x if nd == 0 else range_of(x, 0, dim_of(x).d[0], 0)     # a new node, with its own gradient
    r = ranges[last]
    if changed == 1 and (r.step == 1 or len(r) == 1):
        return range_of(x, r.start if len(r) else 0, r.start + len(r) if len(r) else 0, last)
    extra.items = items
    extra.n_items = extra.item_count = 3 * nd
    return apply1x(STRIDED_SELECT, x, &extra)


def strided_select(x, strides: Sequence[int], range_from: Sequence[int], range_to: Sequence[int]):
    """A range of elements with a step along each axis: NumPy's ``x[from:to:stride, ...]``.

    Args:
        x: the expression.
        strides: a list with one number, at least 1, for each axis; missing ones are 1.
        range_from: where to begin along each axis; missing ones are 0.
        range_to: where to end along each axis, exclusive; missing ones are
            the length of the axis.

    In all three, the batch counts as one more axis.

    Raises:
        DimensionError: there are more numbers than axes.
        ValueError: a stride is below 1, or a range is not within its axis.

    Example:
        >>> dy.strided_select(dy.inputVector([1, 2, 3, 4]), [2], [0], [4]).npvalue()
        array([1., 3.])
    """
    cdef const Dim* d = dim_of(expression(x, "strided_select", "x"))
    cdef uint32_t nd = d.nd
    sizes = [d.d[i] for i in range(nd)] + [d.bd]
    for what, requested in (("strides", strides), ("range_from", range_from), ("range_to", range_to)):
        if len(requested) > nd + 1:
            raise DimensionError(
                f"strided_select: {what} has {len(requested)} numbers, x has {nd} axes and the batch")
    n = max(len(strides), len(range_from), len(range_to))
    ranges = []
    for i in range(max(n, <Py_ssize_t>nd)):
        step = whole(strides[i], "strided_select", "a stride") if i < len(strides) else 1
        start = whole(range_from[i], "strided_select") if i < len(range_from) else 0
        end = whole(range_to[i], "strided_select") if i < len(range_to) else sizes[i]
        if step < 1:
            raise ValueError(f"strided_select: the stride of axis {i} is {step}, it must be at least 1")
        if start < 0 or end < 0 or end > sizes[i]:
            raise ValueError(
                f"strided_select: the range {start} to {end} is not within axis {i}, 0 to {sizes[i]}")
        ranges.append(range(start, end, step))
    return strided(x, ranges)


# ---- indexing ------------------------------------------------------------------

cdef Py_ssize_t wrapped(Py_ssize_t index, uint32_t n, uint32_t axis) except -1:
    """The index counted from the start; a negative one counts from the end."""
    if index >= <Py_ssize_t>n:
        raise IndexError(f"Index too large: {index} > {<int>n - 1} along axis {axis}")
    if index < -<Py_ssize_t>n:
        raise IndexError(f"Index too small: {index} < {-<int>n} along axis {axis}")
    return index if index >= 0 else index + n


cdef bint is_number(object key):
    """Whether an index is a single whole number; all arrays have `__index__`, so that alone does not tell."""
    return hasattr(key, "__index__") and not getattr(key, "ndim", 0)


cdef object sliced(object index):
    """A slice whose limits may be whole floats."""
    ends = [end if end is None else whole(end, "[]", "a limit of a slice")
            for end in (index.start, index.stop, index.step)]
    if ends[2] == 0:
        raise ValueError("the step of a slice must not be 0")
    return slice(*ends)


cdef object listed(object key):
    """A list or an array of indices, or of bools, as an array; None for anything else."""
    if not isinstance(key, list) and not (getattr(key, "ndim", 0) and hasattr(key, "__array__")):
        return None
    if isinstance(key, list):  # the numbers of a class of ints too, such as those that a function to be exported gets
        key = [int.__int__(k) if isinstance(k, int) and type(k) is not bool else k for k in key]
    array = whole_where_possible(np.asarray(key), "[]")
    if array.dtype.kind not in "iub":
        raise TypeError(f"a list of indices must hold whole numbers or bools, not {key!r}")
    return array


cdef list by_axis(object index, tuple shape):
    """The keys of an index, one for each axis that it names: a number, a slice, an array of positions, or None for a
    new axis.  A mask of several axes becomes one array per axis."""
    cdef Py_ssize_t named = 0
    keys = []
    requested = index if isinstance(index, tuple) else (index,)
    for key in requested:
        array = listed(key)
        if array is None:
            keys.append(sliced(key) if isinstance(key, slice) else key)
            named += key is not None and key is not Ellipsis
        elif array.dtype.kind == "b":
            keys.append(array)
            named += array.ndim
        else:
            keys.append(array)
            named += 1
    if named > <Py_ssize_t>len(shape):
        raise IndexError(f"{named} indices for {len(shape) - 1} axes and the batch")
    found = []
    axis = 0
    for key in keys:
        if key is Ellipsis:
            more = max(0, <Py_ssize_t>len(shape) - 1 - named)
            found += [slice(None)] * more
            axis += more
            named += more
        elif isinstance(key, np.ndarray) and key.dtype.kind == "b":
            sizes = shape[axis:axis + key.ndim]
            if key.shape != sizes:
                raise IndexError(f"a mask of shape {key.shape} does not fit axes of sizes {sizes}")
            found += list(np.nonzero(key))
            axis += key.ndim
        elif isinstance(key, np.ndarray):
            found.append(np.vectorize(lambda k, n=shape[axis], a=axis: wrapped(k, n, a), otypes=[np.int64])(key))
            axis += 1
        else:
            if key is not None and not isinstance(key, slice) and not is_number(key):
                raise TypeError(
                    "an index must be a number, a slice, a list of numbers or bools, None, or a tuple of them, not "
                    f"{type(key).__name__}")
            found.append(key)
            axis += key is not None
    return found


cdef Expression placed(Expression x, list arrays, uint32_t axis):
    """The elements at the positions given by arrays, one for each axis from `axis` on; the axes of the arrays replace
    those."""
    shape = shape_of(dim_of(x))
    try:
        arrays = list(np.broadcast_arrays(*arrays))
    except ValueError:
        raise IndexError(f"index lists of shapes {[a.shape for a in arrays]} do not broadcast") from None
    if len(arrays) > 1:                             # merge the axes into one
        places, step = np.zeros(arrays[0].shape, np.int64), 1
        for k, array in enumerate(arrays):
            places += array * step
            step *= shape[axis + k]
        x = reshape(x, (*shape[:axis], step, *shape[axis + len(arrays):]))
    else:
        places = arrays[0]
    y = selected(SELECT_COLS if axis else SELECT_ROWS, x, places.ravel(order="F"), axis, "[]")
    if places.ndim == 1:
        return y
    return reshape(y, (*shape[:axis], *places.shape, *shape[axis + len(arrays):]))


cdef bint is_comparison(Expression x) except -1:
    cdef Graph* g = claim_current()
    try:
        return op_at(nodes_of(g)[number_in(g, x)].op).truth
    finally:
        release_current(g)


cdef Expression taken_beside(Expression e, tuple index):
    """e[i, 2, :]: expressions beside other indices, which are applied first."""
    keys = list(index)
    places = [at for at, key in enumerate(keys) if key is Ellipsis]
    if places:
        keys[places[0]:places[0] + 1] = [slice(None)] * max(0, <Py_ssize_t>dim_of(e).nd - len(keys) + 1)
    found = [axis for axis, key in enumerate(keys) if isinstance(key, Expression)]
    if len([axis for axis in found if size_of(dim_of(keys[axis])) != 1]) > 1:
        raise TypeError(
            "of the expressions in an index, only one may have several numbers; gather takes elements one by one")
    if not all([isinstance(key, (slice, Expression)) or is_number(key) for key in keys]):
        raise TypeError("an expression as an index may stand beside numbers, slices and other expressions only")
    others = tuple([slice(None) if isinstance(key, Expression) else key for key in keys])
    x = e if all([key == slice(None) for key in others]) else _getitem(e, others)
    for axis in reversed(found):                    # the last first, so that the numbers of the others stay valid
        if axis == <Py_ssize_t>dim_of(e).nd:
            x = pick_batch_elems(x, keys[axis])
        else:
            x = taken_at(x, keys[axis], axis - len([key for key in others[:axis] if is_number(key)]), "[]")
    return x


def _getitem(Expression e not None, index):
    """The meaning of e[index]: numbers, slices, lists, masks, ``...``, None, and tuples of them."""
    cdef const Dim* d = dim_of(e)
    cdef uint32_t nd = d.nd
    cdef uint32_t i
    cdef Py_ssize_t start, stop, step, count
    if type(index) is int or is_number(index):
        if nd == 0:
            raise IndexError("an expression of shape {} has no elements")
        return picked_at(e, wrapped(index, d.d[0], 0), 0)
    if isinstance(index, Expression):
        return taken_at(e, index, 0, "[]")
    if type(index) is tuple and any([isinstance(key, Expression) for key in index]):
        return taken_beside(e, index)
    if type(index) is slice:
        index = sliced(index)
        if nd and (index.step is None or index.step == 1):
            PySlice_GetIndicesEx(index, d.d[0], &start, &stop, &step, &count)
            return range_of(e, start, start + count, 0)
    shape = shape_of(d)
    keys = by_axis(index, (*shape, d.bd))
    named = [key for key in keys if key is not None]
    x = e
    if <uint32_t>len(named) > nd and isinstance(named[nd], np.ndarray):
        x = pick_batch_elems(x, named[nd].tolist())
        named[nd] = slice(None)
    ranges = []
    picks = []
    for i, key in enumerate(named):
        size = shape[i] if i < nd else dim_of(x).bd
        if is_number(key):
            start = wrapped(key, size, i)
            ranges.append(range(start, start + 1))
            if i < nd:
                picks.append(i)
        else:
            ranges.append(range(size) if isinstance(key, np.ndarray) else range(*key.indices(size)))
    for i in range(<uint32_t>len(ranges), nd):
        ranges.append(range(shape[i]))
    # Axes indexed by a number are removed, the last first, so that the numbers of the others stay valid.
    for i in reversed(picks):
        if dim_of(x).nd > 1:
            x = picked_at(x, ranges[i].start, i)
            del ranges[i]
    if len(named) == len(keys) and not any([isinstance(key, np.ndarray) for key in keys]):
        return strided(x, ranges)
    if any([ranges[i] != range(dim_of(x).d[i]) for i in range(dim_of(x).nd)]) or len(ranges) > dim_of(x).nd:
        x = strided(x, ranges)
    return rearranged(x, keys, <uint32_t>len(picks) == nd)


cdef Expression rearranged(Expression x, list keys, bint scalar):
    """Apply the arrays and new axes of an index, after its numbers and slices; `scalar`: these left no axis."""
    cdef uint32_t axis = 0
    cdef Py_ssize_t i = 0
    groups = 0
    new = []
    while i < len(keys):
        key = keys[i]
        if isinstance(key, np.ndarray):
            arrays = []
            while i < len(keys) and isinstance(keys[i], np.ndarray):
                arrays.append(keys[i])
                i += 1
            groups += 1
            if groups > 1:
                raise TypeError("lists and masks of an index must stand side by side")
            if axis < dim_of(x).nd:
                before = dim_of(x).nd
                x = placed(x, arrays, axis)
                axis += dim_of(x).nd - before + <uint32_t>len(arrays)
            continue
        if key is None:
            new.append(axis + len(new))
        else:
            axis += isinstance(key, slice)
        i += 1
    if new:
        shape = [] if scalar else list(shape_of(dim_of(x)))
        for at in new:
            shape.insert(at, 1)
        x = reshape(x, shape)
    return x


operators.update({"getitem": _getitem, "gather": _gathered, "labelled": _labelled, "scatter": _scattered})


# ==== order =======================================================================================
#
# Sorting, cumulative products and cumulative sums of exponentials.

# ---- sort: y = the first elements of x in order along an axis; argsort: their positions ------------
# Attributes: the axis, the number of elements, the order; the number of a function that refuses a NaN that comes first,
# or 0.  The sort is stable.  NaN comes last, as in NumPy, or first, where only the first elements are kept and a NaN
# must not get lost.

cdef enum:
    DESCENDING = 1                  # the greatest comes first
    BEST_FIRST = DESCENDING | NAN_FIRST
    AS_IN_X = 4                     # the elements that come first, as they lie in x

cdef int sort_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t axis = s.attrs[0].u
    need_d(s)
    if s.attrs[1].u > s.x[0].d[axis]:
        raise DimensionError(f"k is {s.attrs[1].u}, but axis {axis} of x has {s.x[0].d[axis]} elements")
    same_dim(s, y)
    y.d[axis] = s.attrs[1].u
    return 0


cdef inline bint goes_first(float a, float b, uint32_t order) noexcept nogil:
    """Whether a comes strictly before b."""
    if b != b:
        return a == a and not order & NAN_FIRST
    if a != a:
        return order & NAN_FIRST
    return a > b if order & DESCENDING else a < b


cdef uint32_t* order_line(const float* x, size_t step, size_t n, uint32_t order, uint32_t* a,
                          uint32_t* b) noexcept nogil:
    """The positions of n elements in sorted order, by merge sort; the result is a or b."""
    cdef size_t width = 1, start, middle, end, i, j, k
    cdef uint32_t* other
    for k in range(n):
        a[k] = <uint32_t>k
    while width < n:
        start = 0
        while start < n:
            middle = min(start + width, n)
            end = min(start + 2 * width, n)
            i = start
            j = middle
            for k in range(start, end):
                if i < middle and (j >= end or not goes_first(x[a[j] * step], x[a[i] * step], order)):
                    b[k] = a[i]
                    i += 1
                else:
                    b[k] = a[j]
                    j += 1
            start += 2 * width
        other = a
        a = b
        b = other
        width *= 2
    return a


# An element of one of several lines, and what it is ranked by.
cdef struct Ranked:
    float score
    uint32_t line, at


cdef inline bint is_better(const Ranked* a, const Ranked* b, uint32_t order) noexcept nogil:
    """Whether a comes before b: by its score, or if they are equal by its line and place."""
    if goes_first(a.score, b.score, order):
        return True
    if goes_first(b.score, a.score, order):
        return False
    return a.line < b.line or (a.line == b.line and a.at < b.at)


cdef void sift(Ranked* heap, size_t n, size_t i, uint32_t order) noexcept nogil:
    """Move element i of a heap down to its place; the worst is on top."""
    cdef Ranked moved = heap[i]
    cdef size_t child
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and is_better(&heap[child], &heap[child + 1], order):
            child += 1
        if not is_better(&moved, &heap[child], order):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = moved


cdef void sort_heap(Ranked* heap, size_t n, uint32_t order) noexcept nogil:
    cdef size_t i
    cdef Ranked worst
    for i in range(n, 1, -1):                       # the worst goes to the end
        worst = heap[0]
        heap[0] = heap[i - 1]
        heap[i - 1] = worst
        sift(heap, i - 1, 0, order)


cdef inline float sum_with(float x, float total) noexcept nogil:
    """A score and the total of its line, which does not go on if that is -inf, whatever the score is."""
    return total if total == -INFINITY else x + total


cdef inline float below(float worst, float total) noexcept nogil:
    """A number that every score exceeds whose sum with `total`, rounded, exceeds `worst`; NaN: there is none."""
    return <float>(<double>worst - total - 2e-7 * (fabs(<double>worst) + fabs(<double>total))) if total else worst


cdef inline void rank_line(const float* x, size_t step, size_t n, float total, uint32_t line, uint32_t order,
                           Ranked* heap, size_t count, size_t* filled) noexcept nogil:
    """Put the elements of a line, with a total added to each, into the heap of the best `count` so far.  The worst of
    these is on top, so that most elements take one comparison; adjacent ones are compared as vectors.  Without a total,
    elements may be `step` apart."""
    cdef size_t k = 0, i
    cdef float bound
    while k < n and filled[0] < count:
        heap[filled[0]] = Ranked(sum_with(x[k * step], total), line, <uint32_t>k)
        filled[0] += 1
        k += 1
        if filled[0] == count:
            for i in range(count // 2, 0, -1):
                sift(heap, count, i - 1, order)
    while k < n:
        bound = below(heap[0].score, total)
        if step == 1 and bound == bound:
            k += K.next_beyond(n - k, x + k, bound, order & DESCENDING)
        while step > 1 and k < n and not goes_first(x[k * step], bound, order):     # the bound is the worst score
            k += 1
        if k == n:
            break
        # Of equal ones, the first stays.
        if step > 1 or goes_first(sum_with(x[k], total), heap[0].score, order):
            heap[0] = Ranked(sum_with(x[k * step], total), line, <uint32_t>k)
            sift(heap, count, 0, order)
        k += 1


cdef uint32_t* select_line(const float* x, size_t step, size_t n, size_t count, uint32_t order,
                           uint32_t* work) noexcept nogil:
    """The positions of the first `count` of n elements in sorted order, or in that of x."""
    cdef Ranked* heap = <Ranked*>work
    cdef size_t filled = 0, k, i
    cdef uint32_t at
    rank_line(x, step, n, 0, 0, order, heap, count, &filled)
    if not order & AS_IN_X:
        sort_heap(heap, count, order)
    for k in range(count):                          # work[k] lies before what is read later
        at = heap[k].at
        i = k
        while order & AS_IN_X and i > 0 and work[i - 1] > at:
            work[i] = work[i - 1]
            i -= 1
        work[i] = at
    return work


# A heap is quicker than sorting if at most one of this many elements is asked for.
cdef enum:
    FEW_OF = 8


cdef void order(const Call* c, uint32_t* where) noexcept nogil:
    """The sorted values in y and their positions in `where`; if that is NULL, the positions in y."""
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t count = c.attrs[1].u, o, p, k, first
    cdef uint32_t b
    cdef uint32_t* found
    cdef uint32_t* work = <uint32_t*>c.work
    cdef const float* x
    cdef float* y = c.y.v
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            for p in range(s.pre):
                first = o * s.pre * s.len + p
                x = element(&c.x[0], b) + first
                if 0 < count <= s.len // FEW_OF or c.attrs[2].u & AS_IN_X:
                    found = select_line(x, s.pre, s.len, count, c.attrs[2].u, work)
                else:
                    found = order_line(x, s.pre, s.len, c.attrs[2].u, work, work + s.len)
                for k in range(count):
                    if where != NULL:
                        y[k * s.pre + p] = x[found[k] * s.pre]
                        where[k * s.pre + p] = found[k]
                    else:
                        integers(y)[k * s.pre + p] = <int32_t>found[k]
                if c.attrs[3].u and count and x[found[0] * s.pre] != x[found[0] * s.pre]:
                    refuse(c.attrs[3].u, &c.x[0], b, first + found[0] * s.pre, 0)
            y += s.pre * count
            if where != NULL:
                where += s.pre * count


cdef void sort_forward(const Call* c) noexcept nogil:
    order(c, <uint32_t*>c.saved)


cdef void argsort_forward(const Call* c) noexcept nogil:
    order(c, NULL)


cdef void sort_backward(const Call* c, uint32_t i) noexcept nogil:
    add_where(c, split_at(&c.x[0].dim, c.attrs[0].u), c.attrs[1].u)


cdef size_t sort_work(const Call* c, int i) noexcept nogil:
    return 2 * split_at(&c.x[0].dim, c.attrs[0].u).len if i < 0 else 0


cdef size_t kmax_work(const Call* c, int i) noexcept nogil:
    return c.attrs[1].u * sizeof(Ranked) // sizeof(float) if i < 0 else 0


cdef Op* SORT = register(b"sort", b"x", sort_dim, sort_forward, sort_backward, UNREAD | RAGGED, sort_work, as_many_as_y)
cdef Op* ARGSORT = register(b"argsort", b"x", sort_dim, argsort_forward, NULL, RAGGED, sort_work)
cdef Op* KMAX = register(b"kmax_pooling", b"x", sort_dim, sort_forward, sort_backward, UNREAD, kmax_work, as_many_as_y)
chooses(ARGSORT, b"positions are constant almost everywhere")


cdef Expression ordered(const Op* op, object x, object axis, object count, uint32_t order, str name,
                        uint32_t chooser=0):
    cdef Py_ssize_t d = axis_in(x, axis, name)
    cdef Py_ssize_t k
    cdef const Dim* dim = dim_of(expression(x, name, "x"))
    cdef Extra extra
    if count is None:
        k = dim.d[d] if d < <Py_ssize_t>dim.nd else 0
    else:
        k = whole(count, name, "k")
        if k < 0:
            raise DimensionError(f"{name}: k must be a number of elements, not {k}")
    extra = of_words(<uint32_t>d, <uint32_t>k, order, chooser)
    return apply1x(op, x, &extra)


def sort(x, d=0, bint descending=False):
    """The elements sorted along an axis; gradients go back to the original positions.

    The sort is stable, and NaN comes last.

    Args:
        x: any expression.
        d: the axis (default: 0).
        descending: whether the greatest comes first (default: False).

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.sort(dy.inputVector([3, 1, 2]), descending=True).npvalue()
        array([3., 2., 1.])
    """
    return ordered(SORT, x, d, None, DESCENDING if descending else 0, "sort")


def argsort(x, d=0, bint descending=False):
    """The positions of the elements along an axis, in the order of `sort`: integers, without gradient.

    Args:
        x: any expression.
        d: the axis (default: 0).
        descending: whether the position of the greatest comes first (default: False).

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.argsort(dy.inputVector([3, 1, 2])).npvalue()
        array([1, 2, 0], dtype=int32)
    """
    return ordered(ARGSORT, x, d, None, DESCENDING if descending else 0, "argsort")


def topk(x, k: int, d=0, bint largest=True) -> tuple[Expression, Expression]:
    """The k greatest elements along an axis, the greatest first, and their positions.

    A NaN comes first in the values. It has no position: the positions raise an error then.

    Args:
        x: any expression.
        k: how many.
        d: the axis (default: 0).
        largest: False for the k least, the least first (default: True).

    Returns:
        Two expressions of k elements along the axis: the values, whose gradients go to their original
        positions; and these positions, integers without gradient.

    Raises:
        DimensionError: x has no axis d, or fewer than k elements along it.
        ValueError: an element is NaN, when the positions are computed.

    Example:
        >>> values, indices = dy.topk(dy.inputVector([3, 1, 2]), 2)
        >>> values.npvalue(), indices.npvalue()
        (array([3., 2.]), array([0, 2], dtype=int32))
    """
    cdef uint32_t order = BEST_FIRST if largest else NAN_FIRST
    return (taken(x, ordered(ARGSORT, x, d, k, order, "topk"), axis_in(x, d, "topk"), OWN_POSITIONS, "topk"),
            ordered(ARGSORT, x, d, k, order, "topk", chooser_number("topk")))


def kmax_pooling(x, k: int, d=1):
    """The k greatest elements along an axis, in the order of x; of equal elements the first.

    NaN is above all numbers. With ``import dynet`` it is ignored, as in DyNet, if there are enough numbers.

    Args:
        x: any expression.
        k: how many.
        d: the axis (default: 1).

    Raises:
        DimensionError: x has no axis d, or fewer than k elements along it.

    Example:
        >>> dy.kmax_pooling(dy.inputTensor([[3, 1, 2]]), 2).npvalue()
        array([[3., 2.]])
    """
    cdef uint32_t order = (DESCENDING if follows_dynet() else BEST_FIRST) | AS_IN_X
    if whole(k, "kmax_pooling", "k") < 1:
        raise DimensionError(f"kmax_pooling: k must be at least 1, not {k}")
    return ordered(KMAX, x, d, k, order, "kmax_pooling")


def _best(x) -> tuple[Expression, Expression]:
    """The greatest number of each line of x and its position, as those of `topk`, but a NaN has a position too.

    For decoders, which say themselves what was NaN.
    """
    cdef Expression places = ordered(ARGSORT, x, 0, 1, BEST_FIRST, "topk")
    return taken(x, places, 0, OWN_POSITIONS, "topk"), places


# ---- continuations: for each beam, the best sums of a score and the total of its line -------------
# A line is a batch element of x and of the totals; those of a beam are adjacent.  Each chosen place of a line becomes a
# batch element of y: the sum, the number of the line, the place, and what goes on: the sum, or -inf at the place `end`,
# and the place, or `begin` there.  Attributes: the number of beams, how many places of each are chosen, end, begin.

cdef enum:
    CHOSEN = 5                      # numbers of a chosen place
    NO_END = 0xFFFFFFFF


cdef int continuations_dim(const Shapes* s, Dim* y) except -1:
    cdef size_t n = size_of(s.x[0]), beams = s.attrs[0].u, count = s.attrs[1].u
    if s.x[0].nd != 1 or size_of(s.x[1]) != 1:
        raise DimensionError("the scores must be a vector for each total")
    if beams == 0 or s.bd % beams:
        raise DimensionError(f"{s.bd} lines are not {beams} beams")
    if count > n * (s.bd // beams) or beams * count > 0xFFFFFFFF:
        raise DimensionError(f"k is {count}, but a line has {n * (s.bd // beams)} scores")
    need_positions(s.x[1], n)                       # numbers of places and lines are floats in the result
    need_positions(s.x[1], s.bd)
    y.bd = <uint32_t>(beams * count)
    return vector(y, CHOSEN)


cdef void continuations_forward(const Call* c) noexcept nogil:
    cdef uint32_t beams = c.attrs[0].u, line = 0, lines = max(c.x[0].dim.bd, c.x[1].dim.bd)
    cdef size_t n = size_of(&c.x[0].dim), count = c.attrs[1].u, filled, i
    cdef uint32_t beam
    cdef Ranked* heap = <Ranked*>c.work
    cdef float* y = c.y.v
    cdef bint ends
    for beam in range(beams):
        filled = 0
        for line in range(lines // beams * beam, lines // beams * (beam + 1)):
            if count:
                rank_line(element(&c.x[0], line), 1, n, element(&c.x[1], line)[0], line, BEST_FIRST, heap, count,
                          &filled)
        sort_heap(heap, count, BEST_FIRST)
        for i in range(count):
            ends = heap[i].at == c.attrs[2].u
            y[0] = heap[i].score
            y[1] = <float>heap[i].line
            y[2] = <float>heap[i].at
            y[3] = -INFINITY if ends else heap[i].score
            y[4] = <float>(c.attrs[3].u if ends else heap[i].at)
            y += CHOSEN


cdef size_t continuations_work(const Call* c, int i) noexcept nogil:
    return c.attrs[1].u * sizeof(Ranked) // sizeof(float) if i < 0 else 0


cdef Op* CONTINUATIONS = register(b"continuations", b"x totals", continuations_dim, continuations_forward, NULL, 0,
                                  continuations_work)
CONTINUATIONS.batching = ALONE
CONTINUATIONS.alone_because = b"it selects from the batch of its argument"
CONTINUATIONS.no_gradient_because = b"it is for decoding: the choices are constant almost everywhere"


def _continuations(x, totals, beams, count, end, begin):
    """For a beam search: the best `count` sums of each of `beams` beams, of a score and the total of its line.

    Args:
        x: scores, a vector in each batch element, whose lines are those of the beams side by side.
        totals: one number for each line.
        end: the place that is not continued, or None.
        begin: the place that is read instead.

    Returns:
        In each batch element, one for each chosen place: the sum, the number of the line, the place; and the sum, -inf
        at `end`, and the place that is read next.
    """
    cdef Extra extra = of_words(beams, count, <uint32_t>NO_END if end is None else end, begin)
    return apply2x(CONTINUATIONS, x, totals, &extra)


operators["continuations"] = _continuations


# ---- cumulative ops ---------------------------------------------------------------
# The loops run block by block: `len` rows of `pre` elements, that is `pre` adjacent lines along the axis.

cdef extern from "dynet_cy/cumulative.h" nogil:
    # derived: functions of dy_logcumsumexp, dy_cumulative_backward
    void dy_logcumsumexp(size_t n, size_t step, const float* x, float* y, float* saved)
    void dy_cumulative_backward(
        int logs, size_t n, size_t step, const float* x, const float* y, const float* saved, const float* dy,
        float* dx)
    # end of functions

ctypedef void (*BlockForward)(const Split* s, const float* x, float* y, float* saved) noexcept nogil


cdef int cumulative_dim(const Shapes* s, Dim* y) except -1:
    need_d(s)
    return same_dim(s, y)


cdef void cumulative_forward(const Call* c, BlockForward forward) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t o, size = s.pre * s.len
    cdef uint32_t b
    cdef float* saved = c.saved
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            forward(&s, element(&c.x[0], b) + o * size, element(&c.y, b) + o * size, saved)
            if saved != NULL:
                saved += 2 * size


cdef inline void cumulative_backward(const Call* c, bint logs) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t o, p, at
    cdef uint32_t b
    cdef const float* saved = c.saved
    for b in range(c.y.dim.bd):
        for o in range(s.post):
            for p in range(s.pre):
                at = o * s.pre * s.len + p
                dy_cumulative_backward(logs, s.len, s.pre, element(&c.x[0], b) + at, element(&c.y, b) + at,
                                       saved + 2 * p if logs else NULL, element(&c.dy, b) + at, element(&c.dx, b) + at)
            if logs:
                saved += 2 * s.pre * s.len


# ---- cumprod: y_i = prod_{j<=i} x_j -----------------------------------------------

cdef void cumprod_block(const Split* s, const float* x, float* y, float* saved) noexcept nogil:
    cdef size_t i
    for i in range(s.pre):
        y[i] = x[i]
    for i in range(s.pre, s.pre * s.len):
        y[i] = x[i] * y[i - s.pre]


cdef void cumprod_forward(const Call* c) noexcept nogil:
    cumulative_forward(c, cumprod_block)


cdef void cumprod_backward(const Call* c, uint32_t i) noexcept nogil:
    cumulative_backward(c, False)


cdef Op* CUMPROD = register(b"cumprod", b"x", cumulative_dim, cumprod_forward, cumprod_backward, RAGGED)


def cumprod(x, d=0):
    """Cumulative products of the elements along axis d; the result has the shape of x.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.cumprod(dy.inputVector([2, 3, 4])).npvalue()
        array([ 2.,  6., 24.])
    """
    cdef Extra extra = of_words(<uint32_t>axis_in(x, d, "cumprod"))
    return apply1x(CUMPROD, x, &extra)


# ---- logcumsumexp: y_i = log(sum_{j<=i} exp(x_j)) ------------------------------------

cdef void logcumsumexp_block(const Split* s, const float* x, float* y, float* saved) noexcept nogil:
    cdef size_t p
    for p in range(s.pre):
        dy_logcumsumexp(s.len, s.pre, x + p, y + p, saved + 2 * p)


cdef void logcumsumexp_forward(const Call* c) noexcept nogil:
    cumulative_forward(c, logcumsumexp_block)


cdef void logcumsumexp_backward(const Call* c, uint32_t i) noexcept nogil:
    cumulative_backward(c, True)


cdef Op* LOGCUMSUMEXP = register(b"logcumsumexp", b"x", cumulative_dim, logcumsumexp_forward, logcumsumexp_backward,
                                 RAGGED, NULL, twice_as_many)


def logcumsumexp(x, d=0):
    """Logarithms of cumulative sums of exp(x) along axis d; the result has the shape of x.

    For log-probabilities of ordered outcomes, such as lengths, the result is the logarithm of the cumulative
    distribution function.  Infinite elements are allowed.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dy.exp(dy.logcumsumexp(dy.log(dy.inputVector([0.5, 0.25, 0.25])))).npvalue()
        array([0.5 , 0.75, 1.  ])
    """
    cdef Extra extra = of_words(<uint32_t>axis_in(x, d, "logcumsumexp"))
    return apply1x(LOGCUMSUMEXP, x, &extra)


carriers.update({
    op_id: True for op_id in (
        PICK.id, PICK_RANGE.id, PICK_BATCH_ELEMS.id, SELECT_ROWS.id, SELECT_COLS.id, STRIDED_SELECT.id)})
