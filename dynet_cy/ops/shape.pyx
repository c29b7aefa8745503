"""Reshape, transpose, concatenate; and ops that only change the gradient."""

from math import prod

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport (
    Attr, Call, Dim, axis_of, element, rows_of, same_shape, size_of, total_of,
)
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply, apply1, apply1_for, apply1x, expression
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.ops.loops cimport matrix, pass_on, split_at
from dynet_cy.ops.index cimport index_op
from dynet_cy.ops.inputs cimport axis_in, axis_word, of_numbers, of_words, whole
from dynet_cy.ops.registry cimport (
    ALONE, ASSIGNS, BY_ELEMENT, CPU, FIRST, UNCHANGED, UNREAD, Op, Shapes, register, same_dim,
)

from dynet_cy.graph.structs import carriers, operators
from dynet_cy.ops.registry import DimensionError


# ---- copies ------------------------------------------------------------------

cdef void copy_forward(const Call* c) noexcept nogil:
    """Copy the elements of x, once for each node that shares x."""
    cdef size_t n = total_of(&c.x[0].dim), total = total_of(&c.y.dim), i = 0
    while i < total:
        memcpy(c.y.v + i, c.x[0].v, n * sizeof(float))
        i += n


cdef void copy_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, 1)


# ---- reshape: y has the elements of x, in their order ---------------------------

cdef int reshape_dim(const Shapes* s, Dim* y) except -1:
    # The items hold the requested shape, for this rule only: item_count is 0, so nodes do not keep it.
    cdef const Dim* x = s.x[0]
    cdef uint32_t i
    cdef uint32_t batch = s.items[7]
    cdef uint32_t asked = batch if batch else 1
    y.nd = s.attrs[0].u
    for i in range(y.nd):
        y.d[i] = s.items[i]
    if size_of(y) == size_of(x) and asked == 1:
        return 0                                    # each batch element is reshaped separately
    if size_of(y) * <size_t>asked != total_of(x):
        raise DimensionError(
            f"x has {total_of(x)} elements, the new shape has {size_of(y)} in each of {asked} "
            f"batch elements")
    y.bd = asked
    return 0


cdef Op* RESHAPE = register(b"reshape", b"x", reshape_dim, copy_forward, copy_backward, UNREAD | ASSIGNS)
RESHAPE.moves = FIRST
RESHAPE.in_place = UNCHANGED


cdef Expression reshaped(object x, const unsigned int* sizes, unsigned int nd,
                         unsigned int bd):
    cdef uint32_t[8] items
    cdef uint32_t i
    cdef Extra extra = no_extra()
    for i in range(nd):
        items[i] = sizes[i]
    for i in range(nd, 7):
        items[i] = 0
    items[7] = bd
    extra.attrs[0].u = nd
    extra.items = items
    extra.n_items = 8
    return apply1x(RESHAPE, x, &extra)


cdef object known_sizes(object x, object d, object batch_size):
    """The sizes of a new shape, with the one that is -1 inferred."""
    cdef const Dim* own
    sizes = list(d) if isinstance(d, (tuple, list)) else [d]
    own = dim_of(expression(x, "reshape", "x"))
    n = size_of(own) if batch_size == 1 or batch_size == own.bd else total_of(own) // batch_size
    rest = prod([size for size in sizes if size != -1])
    if sizes.count(-1) > 1 or rest <= 0 or n % rest:
        raise DimensionError(f"reshape: the -1 of shape {d} cannot be inferred for {n} elements")
    return [n // rest if size == -1 else size for size in sizes]


def reshape(x, d: float | Sequence[float], batch_size: float = 1, str order="F"):
    """Change the shape; the elements keep their order, column by column.

    Args:
        x: the expression.
        d: the new shape: a tuple, a list, or one number.  One of its sizes may be -1, which is then inferred.
        batch_size: the new batch size.  When it is 1 and d has as many elements
            as one batch element of x, each batch element is reshaped separately. Default: 1.
        order: "F" (default) reads and writes by columns, "C" by rows, as NumPy and PyTorch do; each batch element is
            then reshaped separately.

    Raises:
        DimensionError: the new shape has more or fewer elements.
        ValueError: there is no such order, or a batch size with "C".

    Example:
        >>> dy.reshape(dy.inputVector([1, 2, 3, 4]), (2, 2)).npvalue()
        array([[1., 3.],
               [2., 4.]])
        >>> dy.reshape(dy.inputVector([1, 2, 3, 4]), (2, 2), order="C").npvalue()
        array([[1., 2.],
               [3., 4.]])
    """
    if order != "F":
        return reshaped_by_rows(x, d, batch_size, order)
    cdef unsigned int[7] sizes
    cdef unsigned int n = 0
    cdef Py_ssize_t size
    for axis in (d if isinstance(d, (tuple, list)) else (d,)):
        size = whole(axis, "reshape", "an axis of the shape")
        if size == -1:
            return reshape(x, known_sizes(x, d, batch_size), batch_size)
        if n == 7:
            raise DimensionError(f"reshape: shape {d} has more than 7 axes")
        if size < 0:
            raise DimensionError(f"reshape: axis {n} of shape {d} is out of range")
        sizes[n] = <unsigned int>size
        n += 1
    size = whole(batch_size, "reshape", "batch_size")
    if size < 1:
        raise DimensionError(f"reshape: batch_size must be at least 1, not {batch_size}")
    return reshaped(x, sizes, n, <unsigned int>size)


cdef Expression reshaped_by_rows(object x, object d, object batch_size, str order):
    """`reshape` in the order of NumPy: by columns it is that of the axes in the opposite order."""
    if order != "C":
        raise ValueError(f'reshape: order must be "F" or "C", not {order!r}')
    if batch_size != 1:
        raise ValueError('reshape: order="C" is within each batch element, so there is no batch_size')
    sizes = d if isinstance(d, (tuple, list)) else (d,)
    return _transposed(reshape(_transposed(expression(x, "reshape", "x")), sizes[::-1]))


# ---- transpose: y[i_0, i_1, ...] = x[j_0, j_1, ...] where j_dims[k] = i_k ---------

cdef int transpose_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, axis, seen = 0
    cdef uint32_t n = s.attrs[1].u
    for i in range(n, s.x[0].nd):
        if s.x[0].d[i] != 1:
            raise DimensionError(f"dims has {n} axes but x has {s.x[0].nd}")
    for i in range(n):
        axis = s.attrs[0].u >> 3 * i & 7
        if axis >= n or seen >> axis & 1:
            raise DimensionError(f"dims must have each of the axes 0 to {<int>n - 1} once")
        seen |= <uint32_t>1 << axis
        y.d[i] = axis_of(s.x[0], axis)
    y.nd = n
    return 0


cdef Op* TRANSPOSE = index_op(b"transpose", b"x", transpose_dim)
TRANSPOSE.ragged = True


def transpose(x, dims: Sequence[int] = (1, 0)):
    """The axes in another order; for a matrix, its transpose.

    Args:
        x: the expression; a vector counts as a matrix of one column, and trailing axes of size 1 need not be in
            dims.
        dims: axis i of the result is axis dims[i] of x (default: (1, 0)).

    Raises:
        DimensionError: dims does not have each axis of x once.

    Example:
        >>> dy.transpose(dy.inputTensor([[1, 2], [3, 4]])).npvalue()
        array([[1., 3.],
               [2., 4.]])
    """
    cdef Py_ssize_t axis
    cdef Extra extra = no_extra()
    for d in dims:
        axis = whole(d, "transpose", "an axis of dims")
        if axis < 0:
            axis += len(dims)
        if axis < 0 or axis > 6 or extra.attrs[1].u == 7:
            raise DimensionError(f"transpose: dims {dims} are not axes of x")
        extra.attrs[0].u |= <uint32_t>axis << 3 * extra.attrs[1].u
        extra.attrs[1].u += 1
    return apply1x(TRANSPOSE, x, &extra)


def _transposed(Expression x):
    """The axes of x in the opposite order."""
    cdef uint32_t n = dim_of(x).nd
    return x if n < 2 else transpose(x, list(range(n))[::-1])


operators["T"] = _transposed
operators["reshape"] = reshape


# ---- concatenate: y = xs side by side along an axis ------------------------------

cdef int concatenate_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, k
    cdef uint32_t d = s.attrs[0].u
    cdef uint32_t axes = d + 1
    cdef size_t total = 0
    if d >= 7:
        raise DimensionError("d must be from 0 to 6")
    for k in range(s.n):
        axes = max(axes, s.x[k].nd)
    y.nd = max(d + 1, s.x[0].nd)        # as in DyNet: the others may only add axes of size 1
    for i in range(axes):
        y.d[i] = axis_of(s.x[0], i)
    for k in range(s.n):
        for i in range(axes):
            if i != d and axis_of(s.x[k], i) != y.d[i]:
                raise DimensionError(
                    f"xs[{k}] has {axis_of(s.x[k], i)} elements along axis {i} but xs[0] has "
                    f"{y.d[i]}; only along axis {d} may they differ")
        total += axis_of(s.x[k], d)
    if total > 0xFFFFFFFF:
        raise DimensionError(f"the result has {total} elements along axis {d}")
    y.d[d] = <uint32_t>total
    return 0


cdef bint is_along_last_axis(const Dim* y, const Attr* attrs) noexcept nogil:
    return y.bd == 1 and split_at(y, attrs[0].u).post == 1


CONCATENATE = index_op(b"concatenate", b"xs...", concatenate_dim)
CONCATENATE.needs[CPU].laid = is_along_last_axis


cdef Expression concatenated(object xs, Py_ssize_t d):
    cdef Extra extra = of_words(axis_word(d))
    return apply(CONCATENATE, xs, &extra)


def concatenate(xs: Iterable[Expression], d=0):
    """Expressions side by side along one axis.

    Args:
        xs: a list of expressions, whose shapes differ along axis d only; those
            with batch size 1 are repeated for every batch element of the others.
        d: the axis, which may be a new one; a negative one counts from the end of the first
            expression's axes. Default: 0.

    Raises:
        ValueError: the list is empty, or shapes do not fit.

    Example:
        >>> dy.concatenate([dy.inputVector([1, 2]), dy.inputVector([3])]).npvalue()
        array([1., 2., 3.])
        >>> dy.concatenate([dy.inputVector([1, 2]), dy.inputVector([3, 4])], d=1).npvalue()
        array([[1., 3.],
               [2., 4.]])
    """
    if isinstance(d, Expression):
        raise TypeError("concatenate: xs is a list of all expressions: concatenate([x, y])")
    axis = whole(d, "concatenate", "d")
    if axis < 0:
        xs = list(xs)
        axis = axis_in(xs[0], axis, "concatenate") if xs else 0
    return concatenated(xs, axis)


# The name that most programs use today, beside DyNet's.
cat = concatenate


def concatenate_cols(xs: Iterable[Expression]):
    """Columns, and matrices column by column, side by side; see `concatenate`.

    Shapes: ``{m}`` or ``{m,n_i}`` each -> ``{m, sum of n_i}``.

    Args:
        xs: vectors and matrices with the same number of rows.

    Example:
        >>> dy.concatenate_cols([dy.inputVector([1, 2]), dy.inputVector([3, 4])]).npvalue()
        array([[1., 3.],
               [2., 4.]])
    """
    return concatenated(xs, 1)


# ---- concatenate_to_batch: y = xs side by side along the batch -------------------

cdef int concatenate_to_batch_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t k
    cdef size_t total = 0
    for k in range(s.n):
        if not same_shape(s.x[k], s.x[0]):
            raise DimensionError(f"xs[{k}] differs in shape from xs[0]")
        total += s.x[k].bd
    if total > 0xFFFFFFFF:
        raise DimensionError(f"the result has {total} batch elements")
    y.bd = <uint32_t>total
    return same_dim(s, y)


cdef Op* CONCATENATE_TO_BATCH = index_op(b"concatenate_to_batch", b"xs...", concatenate_to_batch_dim)
CONCATENATE_TO_BATCH.any_batch = True
CONCATENATE_TO_BATCH.batching = ALONE
CONCATENATE_TO_BATCH.alone_because = b"each batch element of y comes from one argument only"


def concatenate_to_batch(xs: Iterable[Expression]):
    """Expressions of one shape as the batch elements of one expression.

    Args:
        xs: a list of expressions; all batch elements of each are used.

    Raises:
        ValueError: the list is empty, or shapes differ.

    Example:
        >>> dy.concatenate_to_batch([dy.inputVector([1, 2]), dy.inputVector([3, 4])]).dim()
        ((2,), 2)
    """
    return apply(CONCATENATE_TO_BATCH, xs, NULL)


# ---- fold_rows: y_i = sum_k x_(i nrows + k), row by row ---------------------------

cdef int fold_rows_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t n = s.attrs[0].u
    if s.x[0].nd > 2:
        raise DimensionError("x must be a matrix or a vector")
    if n == 0 or rows_of(s.x[0]) % n:
        raise DimensionError(f"x has {rows_of(s.x[0])} rows, not a multiple of nrows={n}")
    return matrix(y, rows_of(s.x[0]) // n, axis_of(s.x[0], 1))


cdef void fold_rows_forward(const Call* c) noexcept nogil:
    cdef size_t n = c.attrs[0].u, size = size_of(&c.y.dim), i, k
    cdef uint32_t b
    cdef const float* x
    cdef float* y
    cdef double total
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        y = element(&c.y, b)
        for i in range(size):
            total = 0
            for k in range(n):
                total += x[i * n + k]
            y[i] = <float>total


cdef void fold_rows_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = c.attrs[0].u, size = size_of(&c.y.dim), j, k
    cdef uint32_t b
    cdef float* dx
    cdef const float* dy
    for b in range(c.y.dim.bd):
        dx = element(&c.dx, b)
        dy = element(&c.dy, b)
        for j in range(size):
            for k in range(n):
                dx[j * n + k] += dy[j]


cdef Op* FOLD_ROWS = register(b"fold_rows", b"x", fold_rows_dim, fold_rows_forward, fold_rows_backward, UNREAD)


def fold_rows(x, nrows: int = 2):
    """Sums of groups of nrows consecutive rows.

    Shapes: ``x {m,n}`` -> ``{m/nrows,n}``.

    Raises:
        DimensionError: m is not a multiple of nrows.

    Example:
        >>> dy.fold_rows(dy.inputVector([1, 2, 3, 4])).npvalue()
        array([[3.],
               [7.]])
    """
    cdef Py_ssize_t n = whole(nrows, "fold_rows", "nrows")
    if n < 1:
        raise DimensionError(f"fold_rows: nrows must be at least 1, not {nrows}")
    cdef Extra extra = of_words(<uint32_t>n)
    return apply1x(FOLD_ROWS, x, &extra)


# ---- nobackprop, flip_gradient, scale_gradient: y = x ------------------------------

cdef void scale_gradient_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, c.attrs[0].f)


cdef Op* NOBACKPROP = register(b"nobackprop", b"x", same_dim, copy_forward, NULL, BY_ELEMENT)
NOBACKPROP.moves = FIRST
NOBACKPROP.no_gradient_because = b"its purpose is to stop the gradient"

cdef Op* SCALE_GRADIENT = register(b"scale_gradient", b"x", same_dim, copy_forward, scale_gradient_backward,
                                   UNREAD | ASSIGNS | BY_ELEMENT)
SCALE_GRADIENT.moves = FIRST
SCALE_GRADIENT.in_place = True


cdef Expression scaled_gradient(str name, object x, float factor):
    cdef Extra extra = of_numbers(factor)
    return apply1_for(name, SCALE_GRADIENT, x, &extra)


def nobackprop(x):
    """x as a constant: no gradient passes through it.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> dy.sum_elems(x + dy.nobackprop(x)).backward(full=True)
        >>> x.gradient()
        array([1., 1.])
    """
    return apply1(NOBACKPROP, x)


def flip_gradient(x):
    """x, whose gradient is negated in backward (Ganin & Lempitsky 2015).

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> dy.sum_elems(dy.flip_gradient(x)).backward(full=True)
        >>> x.gradient()
        array([-1., -1.])
    """
    return scaled_gradient("flip_gradient", x, -1)


# The node that `to_device` makes if the device stays the same.
operators["copy"] = lambda x: scale_gradient(x)


def scale_gradient(x, float lambd=1.0):
    """x, whose gradient is multiplied by lambd in backward.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> dy.sum_elems(dy.scale_gradient(x, 3)).backward(full=True)
        >>> x.gradient()
        array([3., 3.])
    """
    return scaled_gradient("scale_gradient", x, lambd)


carriers.update({
    op_id: True for op_id in (
        RESHAPE.id, TRANSPOSE.id, CONCATENATE.id, CONCATENATE_TO_BATCH.id, NOBACKPROP.id,
        SCALE_GRADIENT.id)})
