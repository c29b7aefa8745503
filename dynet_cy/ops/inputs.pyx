"""Inputs, constants and indices from Python."""

import numbers

import numpy as np

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport DY_MAX_ND, FLOATS, INTEGERS, MOST_ALONG, Call, Dim, size_of, total_of
from dynet_cy.graph.expressions cimport Expression, dim_of, forget_to_set
from dynet_cy.graph.making cimport (
    apply1x, claim_current, expression, leaf_index, place, refer, release_current, wrap,
)
from dynet_cy.graph.structs cimport COMPUTED, Extra, Graph, no_extra, nodes_of
from dynet_cy.graph.table cimport asked_device
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.bridge cimport copy_floats, dim_from_shape, floats_in, shape_of
from dynet_cy.ops.index cimport function_number, is_position, need_positions, refuse, refused
from dynet_cy.ops.registry cimport FIRST, Op, Shapes, register

from dynet_cy.graph.structs import operators
from dynet_cy.ops.registry import DimensionError


# ==== indices =====================================================================================
#
# Whole numbers given from Python, and indices as the unsigned words of a node.

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
        raise DimensionError(f"{op}: {what} must be an axis of x, not {i}")
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


cdef int set_index(Extra* extra, uint32_t* word, object value, str op) except -1:
    """One index, for every batch element; it is stored at `word`."""
    cdef Py_ssize_t index = whole(value, op)
    if index < 0:
        raise IndexError(f"{op}: index {index} is out of range")
    word[0] = <uint32_t>index
    set_item(extra, word)
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
    cdef bytes held = words_of(values, op)
    extra.items = <const uint32_t*><const char*>held
    extra.n_items = <uint32_t>(len(held) // sizeof(uint32_t))
    extra.item_count = 1
    return held


cdef bytes set_shared_indices(Extra* extra, object values, str op, str what):
    """The same for a list that all batch elements share; `what`: its elements, for errors."""
    cdef bytes held = set_indices(extra, values, op)
    if extra.n_items >= 2**16:
        raise ValueError(f"{op}: {extra.n_items} {what} are given, at most 65535 are possible")
    extra.item_count = extra.n_items
    return held


cdef bytes words_of(object values, str op):
    """Indices as 32-bit words."""
    if type(values) is list or type(values) is tuple:
        return index_words(values, op)
    array = whole_where_possible(np.asarray(values), op)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise TypeError(f"{op}: a list of indices is needed, not {values!r}")
    if array.min() < 0 or array.max() > MOST_ALONG:
        worst = array.min() if array.min() < 0 else array.max()
        raise IndexError(f"{op}: index {worst} is out of range: from 0 to {MOST_ALONG} - 1 are possible (2^31 - 2)")
    return array.astype(np.uint32).tobytes()


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


# ==== inputs ======================================================================================
#
# Inputs and constants: leaves whose values come from Python.

cdef Op* INPUT = register(b"input", b"", NULL, NULL, NULL)
INPUT.no_gradient_because = b"a leaf that is not trained"


cdef Expression new_leaf(Graph* g, const Dim* dim, float** v, int on=0):
    """A computed leaf of the current graph `g`, which the caller has claimed; it writes the floats at v."""
    cdef Extra extra = no_extra()
    v[0] = place(g, total_of(dim))
    extra.val = v[0]
    extra.state = COMPUTED
    extra.device = extra.attrs[0].i = on
    return wrap(g, leaf_index(g, INPUT, dim, &extra))


cdef int dim_with_batch(object shape, object batch_size, Dim* dim, str op) except -1:
    if not isinstance(shape, (tuple, list)):
        shape = (shape,)
    dim_from_shape(tuple(shape), dim, op)
    n = int(batch_size)
    if n < 1 or n != batch_size or n > MOST_ALONG:
        raise ValueError(
            f"{op}: the batch size must be a positive whole number up to {MOST_ALONG} (2^31 - 1), not {batch_size}")
    dim.bd = n
    return 0


cdef Expression filled(object shape, object batch_size, float value, str op):
    cdef Dim dim
    cdef float* v
    cdef Graph* g
    dim_with_batch(shape, batch_size, &dim, op)
    g = claim_current()
    try:
        x = new_leaf(g, &dim, &v)
        K.fill(total_of(&dim), value, v)
    finally:
        release_current(g)
    return x


def constant(dim: _Shape, val: _Number, batch_size=1):
    """A tensor with the same number everywhere.

    Args:
        dim: shape, a tuple or one number.
        val: the number.
        batch_size: number of batch elements (default: 1).

    Example:
        >>> dy.constant((2, 2), 3).npvalue()
        array([[3., 3.],
               [3., 3.]])
    """
    return filled(dim, batch_size, val, "constant")


def zeros(dim: _Shape, batch_size=1):
    """A tensor of zeros; see `constant`.

    Args:
        dim: the shape, a tuple or one number.
        batch_size: number of batch elements (default: 1).

    Raises:
        ValueError: the shape or the batch size is not possible.

    Example:
        >>> dy.zeroes(2).npvalue()
        array([0., 0.])

    Example:
        >>> dy.zeros(2).npvalue()
        array([0., 0.])
    """
    return filled(dim, batch_size, 0, "zeros")


# DyNet's other spelling.
zeroes = zeros


def ones(dim: _Shape, batch_size=1):
    """A tensor of ones; see `constant`.

    Args:
        dim: the shape, a tuple or one number.
        batch_size: number of batch elements (default: 1).

    Raises:
        ValueError: the shape or the batch size is not possible.

    Example:
        >>> dy.ones((2, 2)).npvalue()
        array([[1., 1.],
               [1., 1.]])
    """
    return filled(dim, batch_size, 1, "ones")


cdef class InputExpression(Expression):
    """An input whose value can be changed; values that depend on it are then computed again.

    Example:
        >>> x = dy.inputVector([3, 4])
        >>> y = dy.squared_norm(x)
        >>> x.set([1, 2])
        >>> y.value()
        5.0
    """

    cdef tuple whole_shape

    def set(self, values: npt.ArrayLike):
        """Set the value.

        Args:
            values: a number for `scalarInput`, else an array with as many numbers as the input has.

        Raises:
            ValueError: there are more or fewer numbers than the input has.

        Example:
            >>> x = dy.inputVector([3, 4])
            >>> x.set([1, 2])
            >>> x.npvalue()
            array([1., 2.])
        """
        cdef Graph* g = self.graph()
        cdef bint of_integers = nodes_of(g)[self.index].dim.type == INTEGERS
        array = integers_in(values, "set") if of_integers else floats_in(values, "set", "the value", 8)
        if array.size != np.prod(self.whole_shape, dtype=int):
            raise ValueError(
                f"set: the value has shape {array.shape}, the input has {self.whole_shape}")
        forget_to_set(g, self.index, "set")
        copy_floats(array.reshape(-1, order="F"), nodes_of(g)[self.index].val, array.size)


cdef enum:
    MOST_QUICK = 0x7FFFFFFF         # numbers up to this one need no array


cdef Expression settable(object array, const Dim* dim, int on):
    cdef float* v
    cdef Expression x
    cdef Graph* g = claim_current()
    try:
        x = new_leaf(g, dim, &v, on)
        copy_floats(array, v, total_of(dim))
        return x if g.forward_only else with_shape(g, x, array.shape)
    finally:
        release_current(g)


cdef Expression with_shape(Graph* g, Expression plain, tuple shape):
    """The input as an expression that can be set to numbers of this shape."""
    cdef InputExpression x = InputExpression.__new__(InputExpression)
    refer(x, g, plain.index)
    x.whole_shape = shape
    return x


cdef Expression one_number(uint8_t type, const void* number, int on):
    """An input of one number, a float or an int32: the same as from an array, but sooner made."""
    cdef float* v
    cdef Dim dim
    cdef Expression x
    cdef Graph* g = claim_current()
    try:
        memset(&dim, 0, sizeof(dim))
        dim.nd = dim.d[0] = dim.bd = 1
        dim.type = type
        x = new_leaf(g, &dim, &v, on)
        memcpy(v, number, sizeof(float))
        return x if g.forward_only else with_shape(g, x, (1,))
    finally:
        release_current(g)


cdef Expression from_values(object values, str op, bint batched, int on=0):
    return from_array(floats_in(values, op, "the value", 8 if batched else 7), op, batched, on)


cdef Expression from_array(object array, str op, bint batched, int on):
    """An input of float32 or int32."""
    cdef Dim dim
    shape = array.shape
    if batched:
        if not shape:
            raise ValueError(f"{op}: a single number has no batch axis")
        dim_with_batch(shape[:-1] or (1,), shape[-1], &dim, op)
    else:
        dim_with_batch(shape, 1, &dim, op)
    dim.type = <uint8_t>(INTEGERS if array.dtype.kind == "i" else FLOATS)
    return settable(array, &dim, on)


def scalarInput(s: npt.ArrayLike, device="") -> InputExpression:
    """One number as an input of shape ``{1}``; `set` changes it later.

    Args:
        s: the number.
        device: as for `inputVector`.

    Raises:
        TypeError: s is not a number.
        ValueError: s is more than one number.

    Example:
        >>> dy.scalarInput(3).value()
        3.0
    """
    cdef int on = asked_device(device, "scalarInput")
    cdef float number
    if (type(s) is float or type(s) is int) and -MOST_QUICK <= s <= MOST_QUICK:
        number = s
        return one_number(FLOATS, &number, on)
    array = floats_in(s, "scalarInput", "s", 7)
    if array.size != 1:
        raise ValueError(f"scalarInput: s has shape {array.shape}, one number is needed")
    return from_values(array.reshape(1), "scalarInput", False, on)


def inputVector(v: npt.ArrayLike, device="") -> InputExpression:
    """A list of n numbers as an input of shape ``{n}``; `set` changes it later.

    Args:
        v: the numbers.
        device: "CPU" or "GPU:0" and so on; "", the default: the device where it is first used.

    Raises:
        TypeError: v holds something other than numbers.
        ValueError: v is not a list, or is a list of lists.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> x.npvalue()
        array([1., 2.])
        >>> x.set([3, 4])
        >>> dy.tanh(x).dim()
        ((2,), 1)
    """
    cdef int on = asked_device(device, "inputVector")
    array = floats_in(v, "inputVector", "v", 1)
    if array.ndim != 1:
        raise ValueError("inputVector: v must be a list of numbers")
    return from_values(array, "inputVector", False, on)


cdef zeros_of(tuple shape, str op):
    cdef Dim dim
    dim_from_shape(shape, &dim, op)
    return np.zeros([int(n) for n in shape], np.float32)


def vecInput(dim: int, device="") -> InputExpression:
    """An input of shape ``{dim}``, zeros until `set` is called.

    Args:
        dim: how many numbers.
        device: as for `inputVector`.

    Raises:
        ValueError: dim is negative.

    Example:
        >>> x = dy.vecInput(2)
        >>> x.set([1, 2])
        >>> x.npvalue()
        array([1., 2.])
    """
    cdef int on = asked_device(device, "vecInput")
    return from_values(zeros_of((dim,), "vecInput"), "vecInput", False, on)


def inputTensor(arr: npt.ArrayLike, batched=False, device="", reusable_expr=False) -> InputExpression:
    """An array as an input.

    Args:
        arr: numbers: an array, or nested lists; a list of arrays is a batch of them.
        batched: whether the last axis is the batch (default: False).
        device: "CPU" or "GPU:0" and so on; "": the device where it is first used.
        reusable_expr: ignored; DyNet needs it for `set`, which always works here.

    Returns:
        Expression with the shape of the array.

    Raises:
        TypeError, ValueError: arr does not hold numbers, or has too many axes.

    Example:
        >>> dy.inputTensor([[1, 2], [3, 4]]).npvalue()
        array([[1., 2.],
               [3., 4.]])
        >>> dy.inputTensor([[1, 2], [3, 4]], batched=True).dim()
        ((2,), 2)
    """
    cdef int on = asked_device(device, "inputTensor")
    if isinstance(arr, (list, tuple)) and arr and all([isinstance(x, np.ndarray) for x in arr]):
        shapes = {x.shape for x in arr}
        if len(shapes) > 1:
            raise ValueError(f"inputTensor: the arrays of a batch differ in shape: {sorted(shapes)}")
        arr = np.stack(arr, axis=-1)
        batched = True
    return from_values(arr, "inputTensor", batched, on)


def inputTensorTranspose(arr: npt.ArrayLike, dim: _Shape | None = None, batch_size=1, device="") -> InputExpression:
    """A flat list of numbers as an input of any shape, column by column and then batch by batch.

    Args:
        arr: the numbers, an array or a list of one axis.
        dim: shape of one batch element; ``{n}`` for n numbers when omitted.
        batch_size: number of batch elements (default: 1).
        device: "CPU" or "GPU:0" and so on; "": the device where it is first used.

    Raises:
        ValueError: arr has more or fewer numbers than shape and batch size need, or
            more than one axis.

    Example:
        >>> dy.inputTensorTranspose([1, 2, 3, 4, 5, 6], (3,), batch_size=2).dim()
        ((3,), 2)
    """
    cdef Dim size
    on = asked_device(device, "inputTensorTranspose")
    array = floats_in(arr, "inputTensorTranspose", "arr", 7)
    if array.ndim != 1:
        raise ValueError(f"inputTensorTranspose: arr must have one axis, not {array.ndim}")
    dim_with_batch(array.shape if dim is None else dim, batch_size, &size, "inputTensorTranspose")
    if array.size != total_of(&size):
        raise ValueError(f"inputTensorTranspose: arr has {array.size} numbers, shape "
                         f"{shape_of(&size)} with batch size {size.bd} needs {total_of(&size)}")
    shape = shape_of(&size) + ((size.bd,) if size.bd > 1 else ())
    return settable(array.reshape(shape, order="F"), &size, on)


def sparse_inputTensor(idxs: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]], values: npt.ArrayLike,
                       shape: _Shape, batched=False, defval: _Number = 0, device="") -> InputExpression:
    """An input that is constant except for a few elements.

    Args:
        idxs: the positions: for each axis, the batch included, a list with one index
            for each value.  Where positions are equal, the last value counts.
        values: a list of numbers.
        shape: the shape; its last axis is the batch if `batched`.
        batched: whether the last axis is the batch (default: False).
        defval: the number everywhere else (default: 0).
        device: "CPU" or "GPU:0" and so on; "": the device where it is first used.

    Returns:
        Expression whose method `set` sets all of its elements.

    Raises:
        IndexError: an index is out of range.
        TypeError: indices or values are not lists of numbers.
        ValueError: the number of lists is not that of axes, or the number of indices not that of values.

    Example:
        >>> dy.sparse_inputTensor([[0, 2]], [5, 6], (4,)).npvalue()
        array([5., 0., 6., 0.])
    """
    op = "sparse_inputTensor"
    cdef Dim size_of_result
    on = asked_device(device, op)
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    dim_from_shape(shape, &size_of_result, op)
    floats = floats_in(values, op, "values", 1)
    if len(idxs) != len(shape):
        raise ValueError(f"{op}: idxs has {len(idxs)} lists, shape {shape} has {len(shape)} axes")
    places = []
    for axis, (axis_indices, size) in enumerate(zip(idxs, shape)):
        indices = np.asarray(axis_indices)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise TypeError(f"{op}: idxs[{axis}] must be a list of whole numbers, not {axis_indices!r}")
        if indices.shape != floats.shape:
            raise ValueError(f"{op}: idxs[{axis}] has {indices.size} indices for {floats.size} values")
        for i in indices[(indices < 0) | (indices >= size)]:
            raise IndexError(f"{op}: index {i} is not from 0 to {size - 1} along axis {axis}")
        places.append(indices)
    array = np.full([int(n) for n in shape], defval, np.float32)
    array[tuple(places)] = floats
    return from_values(array, op, batched, on)


def _input_sparse_tensor(idxs, v, dim, batch_size, defval, device):
    """See `ComputationGraph.inputSparseTensor`."""
    cdef Dim size
    op = "inputSparseTensor"
    dim_with_batch(dim, batch_size, &size, op)
    total = total_of(&size)
    values = floats_in(v, op, "v", 1)
    places = np.asarray(idxs, np.int64 if len(idxs) == 0 else None)
    if places.ndim != 1 or places.dtype.kind not in "iu":
        raise TypeError(f"{op}: idxs must be a list of whole numbers")
    if places.shape != values.shape:
        raise ValueError(f"{op}: idxs has {places.size} places for {values.size} numbers")
    for i in places[(places < 0) | (places >= total)]:
        raise IndexError(f"{op}: place {i} is not from 0 to {total - 1}")
    array = np.full(total, defval, np.float32)
    array[places] = values
    return inputTensorTranspose(array, dim, batch_size, device)


operators["inputMatrixLiteral"] = inputTensorTranspose
operators["inputSparseTensor"] = _input_sparse_tensor


def inputMatrix(v: npt.ArrayLike, d: Iterable[int]) -> InputExpression:
    """A flat list of numbers as a matrix, column by column.

    Args:
        v: the numbers.
        d: shape.

    Example:
        >>> dy.inputMatrix([1, 2, 3, 4], (2, 2)).npvalue()
        array([[1., 3.],
               [2., 4.]])
    """
    array = floats_in(v, "inputMatrix", "v", 1)
    shape = tuple(int(n) for n in d)
    if array.size != np.prod(shape, dtype=int):
        raise ValueError(f"inputMatrix: v has {array.size} numbers, shape {shape} needs "
                         f"{np.prod(shape, dtype=int)}")
    return from_values(array.reshape(shape, order="F"), "inputMatrix", False)


def matInput(d1: int, d2: int) -> InputExpression:
    """An input of shape ``{d1,d2}``, zeros until `set` is called.

    Raises:
        ValueError: a size is negative.

    Example:
        >>> x = dy.matInput(2, 2)
        >>> x.set([1, 2, 3, 4])
        >>> x.npvalue()
        array([[1., 3.],
               [2., 4.]])
    """
    return from_values(zeros_of((d1, d2), "matInput"), "matInput", False)


# ---- input_indices, one_hot ------------------------------------------------------------

def input_indices(indices: npt.ArrayLike, batched=False, device=""):
    """Integers (int32) as an input, to be used as indices, labels or masks: values of the graph, which `set` changes.

    Args:
        indices: a number, a list of numbers, or an array of them.
        batched: whether the last axis is the batch: a list then becomes one number for each batch element. Default: no.
        device: as for `inputVector`.

    Returns:
        Expression of shape ``{1}`` for a number, or of the shape of the array.

    Raises:
        TypeError: something is not a whole number.
        ValueError: a number is not from -2^31 to 2^31 - 1.

    Example:
        >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4], [5, 6]]))
        >>> words = dy.input_indices([2, 0])
        >>> table[words].npvalue()
        array([[5., 1.],
               [6., 2.]])
        >>> dy.input_indices([2, 0], batched=True).dim()
        ((1,), 2)
    """
    cdef int on = asked_device(device, "input_indices")
    cdef int32_t index
    if type(indices) is int and not batched and -MOST_QUICK <= indices <= MOST_QUICK:
        index = indices
        return one_number(INTEGERS, &index, on)
    array = integers_in(indices, "input_indices")
    if array.ndim > (8 if batched else 7):
        raise ValueError(f"input_indices: the array has {array.ndim} axes, at most {8 if batched else 7} are possible")
    return from_array(array.reshape(1) if array.ndim == 0 else array, "input_indices", batched, on)


cdef object integers_in(object values, str op):
    """An int32 array, column-major, of whole numbers."""
    array = whole_where_possible(np.asarray(values), op)
    if array.dtype.kind not in "iub":
        raise TypeError(f"{op}: whole numbers are needed, not {values!r:.80}")
    if array.dtype.kind != "b":
        for i in array[(array > 0x7FFFFFFF) | (array < -0x80000000)].ravel():
            raise ValueError(f"{op}: {i} is not from -2^31 to 2^31 - 1, as int32 needs")
    return np.asarray(array, np.int32, order="F")


cdef int one_hot_at_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i
    need_positions(s.x[0], s.attrs[0].u)
    y.nd = 1
    y.d[0] = s.attrs[0].u
    if size_of(s.x[0]) != 1:
        if s.x[0].nd == <uint32_t>DY_MAX_ND:
            raise DimensionError(f"the result would have more than {DY_MAX_ND} axes")
        for i in range(s.x[0].nd):
            y.d[1 + i] = s.x[0].d[i]
        y.nd += s.x[0].nd
    return 0


cdef void one_hot_at_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim), k
    cdef uint32_t b, at = 0, d = c.y.dim.d[0]
    cdef float* y = c.y.v
    K.fill(total_of(&c.y.dim), 0, y)
    for b in range(c.y.dim.bd):
        for k in range(n):
            if is_position(&c.x[0], b, k, d, &at):
                y[at] = 1
            else:
                refuse(c.attrs[3].u, &c.x[0], b, k, d)
            y += d


cdef Op* ONE_HOT_AT = register(b"one_hot_at", b"idx", one_hot_at_dim, one_hot_at_forward, NULL)
ONE_HOT_AT.raised = refused
ONE_HOT_AT.integers = FIRST
ONE_HOT_AT.no_gradient_because = b"indices have no gradient"


cdef Expression one_hot_at(object d, Expression idx):
    cdef Extra extra
    cdef Py_ssize_t n = whole(d, "one_hot", "d")
    if n < 0:
        raise DimensionError(f"one_hot: d must be a number of elements from 0 on, not {d}")
    extra = of_words(<uint32_t>n, 0, 0, function_number("one_hot"))
    return apply1x(ONE_HOT_AT, idx, &extra)


def one_hot(d: int, idx: Expression | int | Sequence[int], device=""):
    """Vectors with a single 1 and otherwise zeros.

    Args:
        d: number of elements.
        idx: the position of the 1, or a list of positions, one for each batch element; or an expression of whole
            numbers, such as ``dy.argmax(scores)``, which gets no gradient.
        device: "CPU" or "GPU:0" and so on; "": the device where it is first used. If idx is an expression, where it is.

    Returns:
        Expression of shape ``{d}``; for an expression of shape ``{n...}`` that has several numbers, ``{d,n...}``.

    Raises:
        IndexError: a position is not from 0 to d - 1; if idx is an expression, when the value is computed.

    Example:
        >>> dy.one_hot(3, 1).npvalue()
        array([0., 1., 0.])
        >>> dy.one_hot(3, dy.input_indices([0, 2])).npvalue()
        array([[1., 0.],
               [0., 0.],
               [0., 1.]])
    """
    cdef Dim dim
    cdef float* v
    cdef Graph* g
    on = asked_device(device, "one_hot")
    if isinstance(idx, Expression):
        return one_hot_at(d, idx)
    places = np.atleast_1d(idx)
    if places.ndim != 1 or places.size == 0 or places.dtype.kind not in "iu":
        raise TypeError(f"one_hot: idx must be a number or a list of them, not {idx!r}")
    if not isinstance(d, numbers.Real):
        raise TypeError(f"one_hot: d must be a number, not {d!r}")
    dim_with_batch(d, len(places), &dim, "one_hot")
    for i in places.tolist():
        if i < 0 or i >= d:
            raise IndexError(f"one_hot: index {i} is not from 0 to {d - 1}")
    g = claim_current()
    try:
        x = new_leaf(g, &dim, &v, on)
        K.fill(total_of(&dim), 0, v)
        for b, i in enumerate(places.tolist()):
            v[<size_t>b * dim.d[0] + <size_t>i] = 1
    finally:
        release_current(g)
    return x
