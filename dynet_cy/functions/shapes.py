"""Stacking, splitting, padding, indexing and filling of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import (
    MOST_ALONG,
    MOST_ELEMENTS,
    Number,
    axis_in,
    expression,
    integers,
    known_arguments,
    shape_of,
    size_in,
)
from dynet_cy.graph.expressions import Expression
from dynet_cy.graph.structs import operators
from dynet_cy.ops import select, shape
from dynet_cy.ops.elementwise import cmult, where
from dynet_cy.ops.inputs import constant, inputTensor, inputVector, ones, zeros
from dynet_cy.ops.registry import DimensionError

__all__ = ["arange", "eye", "gather", "index_add", "outer", "pad", "scatter", "scatter_add", "split", "stack"]

Integers = Union[Sequence[Any], "npt.NDArray[Any]"]


@known_arguments
def stack(xs: Iterable[Expression], axis: int = 0) -> Expression:
    """Put expressions of one shape side by side along a new axis.

    Args:
        xs: a list of expressions; those with batch size 1 are repeated for every batch element of the others.
        axis: the position of the new axis; a negative one counts from the end of the result's axes. Default: 0.

    Raises:
        DimensionError: shapes differ, or the axis is out of range.
        ValueError: the list is empty.

    Example:
        >>> dy.stack([dy.zeros(3), dy.ones(3)], 1).shape
        (3, 2)
    """
    parts = [expression(x, "stack", f"xs[{i}]") for i, x in enumerate(xs)]
    if not parts:
        raise ValueError("stack: the list of expressions is empty")
    own = shape_of(parts[0])
    if not -len(own) - 1 <= axis <= len(own):
        raise DimensionError(f"stack: axis is {axis}, but the result has {len(own) + 1} axes")
    place = axis % (len(own) + 1)
    for i, x in enumerate(parts):
        if shape_of(x) != own:
            raise DimensionError(f"stack: xs[{i}] has shape {shape_of(x)}, xs[0] has {own}")
    return shape.concatenate([shape.reshape(x, (*own[:place], 1, *own[place:])) for x in parts], place)


@known_arguments
def split(x: Expression, sizes: int | Sequence[int], axis: int = 0) -> list[Expression]:
    """Split x along an axis, like PyTorch's `split`.

    Args:
        x: any expression.
        sizes: the size of every part (the last may be smaller), or a list with the size of each.
        axis: the axis (default: 0).

    Raises:
        DimensionError: there is no such axis, or the sizes do not add up to its length.

    Example:
        >>> [p.shape for p in dy.split(dy.zeros(5), 2)]
        [(2,), (2,), (1,)]
    """
    k = axis_in(expression(x, "split"), axis, "split")
    n = shape_of(x)[k]
    if isinstance(sizes, (list, tuple)):
        lengths = [int(size) for size in sizes]
    else:
        if int(sizes) < 1:  # type: ignore[arg-type]
            raise DimensionError(f"split: parts must have at least one element, not {sizes}")
        each = int(sizes)  # type: ignore[arg-type]
        lengths = [min(each, n - start) for start in range(0, n, each)]
    if sum(lengths) != n or min(lengths, default=0) < 0:
        raise DimensionError(f"split: sizes {lengths} do not add up to the {n} elements along axis {k}")
    ends = np.cumsum([0, *lengths]).tolist()
    return [select.pick_range(x, start, end, k) for start, end in zip(ends, ends[1:])]


@known_arguments
def pad(x: Expression, widths: int | Sequence[int] | Sequence[Sequence[int]], value: Number = 0) -> Expression:
    """Add a border of a constant number to x, like NumPy's `pad`.

    Args:
        x: any expression.
        widths: the number of elements before and after along each axis: a list of pairs; one pair, or one number,
            for all axes.
        value: the number (default: 0).

    Raises:
        DimensionError: the number of pairs is not that of axes.
        ValueError: a width is negative.

    Example:
        >>> dy.pad(dy.ones((2, 3)), [(0, 0), (1, 2)]).shape
        (2, 6)
    """
    own = shape_of(expression(x, "pad"))
    try:
        pairs = np.broadcast_to(np.asarray(widths), (len(own), 2))
    except ValueError:
        raise DimensionError(f"pad: widths {widths} are no pairs for each of {len(own)} axes") from None
    if pairs.dtype.kind not in "iu" or (pairs < 0).any():
        raise ValueError(f"pad: widths must be whole numbers of at least 0, not {widths}")
    for axis, (before, behind) in enumerate(pairs.tolist()):
        own = shape_of(x)
        sides = [constant((*own[:axis], n, *own[axis + 1 :]), value) if n else None for n in (before, behind)]
        if before or behind:
            x = shape.concatenate([part for part in (sides[0], x, sides[1]) if part is not None], axis)
    return x


@known_arguments
def outer(x: Expression, y: Expression) -> Expression:
    """Outer product: each element of one vector times each element of another.

    Shapes: ``x {m}``, ``y {n}`` -> ``{m,n}``.

    Raises:
        DimensionError: x or y is not a vector.

    Example:
        >>> dy.outer(dy.inputVector([1, 2]), dy.inputVector([3, 4])).npvalue()
        array([[3., 4.],
               [6., 8.]])
    """
    for name, v in (("x", x), ("y", y)):
        if len(shape_of(expression(v, "outer", name))) != 1:
            raise DimensionError(f"outer: {name} must be a vector, but has shape {shape_of(v)}")
    return cmult(x, shape.reshape(y, (1, shape_of(y)[0])))


@known_arguments
def eye(n: int, m: int | None = None) -> Expression:
    """A matrix with 1 on its diagonal and 0 elsewhere, ``{n,n}`` or ``{n,m}``.

    Raises:
        TypeError: a size is not a whole number.
        ValueError: a size is negative or above 2^31 - 1, or the matrix would have 2^44 elements or more.

    Example:
        >>> dy.eye(2).npvalue()
        array([[1., 0.],
               [0., 1.]])
    """
    rows = size_in(n, "eye", "n")
    columns = rows if m is None else size_in(m, "eye", "m")
    if rows * columns >= MOST_ELEMENTS:
        raise ValueError(
            f"eye: {rows} x {columns} is too large: an expression has less than {MOST_ELEMENTS} elements (2^44)"
        )
    return inputTensor(np.eye(rows, columns, dtype=np.float32))


@known_arguments
def arange(start: Number, stop: Number | None = None, step: Number = 1) -> Expression:
    """The numbers from start up to, but not including, stop, as a vector; from 0 up to start if stop is not given.

    Raises:
        ValueError: step is 0, an argument is not finite, or there are more than 2^31 - 1 numbers.

    Example:
        >>> dy.arange(1, 4).npvalue()
        array([1., 2., 3.])
    """
    if step == 0:
        raise ValueError("arange: step must not be 0")
    first, end = (0, start) if stop is None else (start, stop)
    if not all(map(math.isfinite, (first, end, step))):
        raise ValueError(f"arange: start, stop and step must be finite, not {first}, {end} and {step}")
    if (end - first if step > 0 else first - end) > MOST_ALONG * abs(float(step)):
        raise ValueError(f"arange: {end} is more than {MOST_ALONG} steps of {step} from {first} (2^31 - 1)")
    # NumPy refuses large numbers also where there is nothing between them.
    numbers = np.arange(first, end, step) if (end - first) * step > 0 else np.empty(0)
    return inputVector(numbers.astype(np.float32)) if len(numbers) else zeros(0)


def places(x: Expression, indices: Integers, axis: int, function: str) -> tuple[npt.NDArray[np.int64], int]:
    """The flat position in x of each index, column by column and then batch by batch; and the number of batch elements
    of the indices, 0 if they are the same for all."""
    own = shape_of(x)
    array = integers(indices, function, "indices")
    batched = array.ndim == len(own) + 1
    expected = [n for i, n in enumerate(own) if i != axis]
    sizes = [n for i, n in enumerate(array.shape[: len(own)]) if i != axis]
    if array.ndim - batched != len(own) or sizes != expected:
        raise DimensionError(
            f"{function}: indices have shape {array.shape}, x has {own}; they may differ along axis {axis} only, and "
            "have the batch as a further axis"
        )
    if array.size and not (-own[axis] <= array.min() and array.max() < own[axis]):
        worst = array.max() if array.max() >= own[axis] else array.min()
        raise IndexError(f"{function}: index {worst} is not within axis {axis}, which has {own[axis]} elements")
    found = [np.arange(n).reshape([-1 if i == k else 1 for i in range(array.ndim)]) for k, n in enumerate(array.shape)]
    found[axis] = array % max(own[axis], 1)
    steps = np.cumprod([1, *own])
    at = sum((f.astype(np.int64) * int(step) for f, step in zip(found[: len(own)], steps)), np.int64(0))
    n_batch = array.shape[-1] if batched else 0
    if batched:
        if x.batch_size not in (1, n_batch):
            raise DimensionError(f"{function}: indices are for {n_batch} batch elements, x has {x.batch_size}")
        if x.batch_size > 1:
            at = at + found[-1] * math.prod(own)
    return np.broadcast_to(at, array.shape), n_batch


@known_arguments
def gather(x: Expression, indices: Expression | Integers, axis: int = 0) -> Expression:
    """Select elements of x by their positions along an axis: ``y[i, j] = x[indices[i, j], j]`` for axis 0 of a matrix.

    Like NumPy's `take_along_axis`.  Gradients are added up at the elements that were taken.

    Args:
        x: any expression.
        indices: an array of whole numbers with the axes of x, and the sizes of x along all but `axis`; with one more
            axis if each batch element has its own indices. Or an expression of such a shape, which gets no gradient.
        axis: the axis (default: 0).

    Returns:
        An expression of the shape of indices.

    Raises:
        DimensionError: the shapes do not fit.
        IndexError: an index is out of range; if they are an expression, when the value is computed.

    Example:
        >>> dy.gather(dy.inputTensor([[1, 2], [3, 4]]), [[1, 0]]).npvalue()
        array([[3., 2.]])
    """
    k = axis_in(expression(x, "gather"), axis, "gather")
    if isinstance(indices, Expression):
        found: Expression = operators["gather"](x, indices, k, "gather")
        return found
    at, n_batch = places(x, indices, k, "gather")
    n = math.prod(shape_of(x))
    if not n_batch:
        flat = select.select_rows(shape.reshape(x, n), at.ravel(order="F"))
        return shape.reshape(flat, at.shape)
    flat = select.select_rows(shape.reshape(x, n * x.batch_size), at.ravel(order="F"))
    return shape.reshape(flat, at.shape[:-1], n_batch)


def put(source: Expression, indices: Expression, axis: int, n: int, own: bool, function: str) -> Expression:
    """Zeros, n along the axis, with the source added at positions that are values of the graph: a vector of those of
    slices, or if `own` those of each element."""
    found: Expression = operators["scatter"](source, indices, axis, n, own, function)
    return found


def length_along(x: Expression, axis: int, function: str) -> int:
    """The number of elements of x along an axis."""
    own = shape_of(x)
    if axis >= len(own):
        raise DimensionError(f"{function}: x has no axis {axis}, its shape is {own}")
    return own[axis]


def added_at(x: Expression, indices: Integers, source: Expression, axis: int, function: str) -> tuple[Expression, Any]:
    """A tensor of the shape of x with the elements of the source at these positions, and 0 elsewhere; and the flat
    positions."""
    at, n_batch = places(x, indices, axis, function)
    own = shape_of(source)
    if own != at.shape[: at.ndim - bool(n_batch)]:
        raise DimensionError(f"{function}: the source has shape {own}, the indices have {at.shape}")
    if n_batch:
        raise DimensionError(f"{function}: the indices must be the same for all batch elements")
    n = math.prod(shape_of(x))
    y = select.scatter_rows(shape.reshape(source, at.size), at.ravel(order="F"), n)
    return shape.reshape(y, shape_of(x)), at


@known_arguments
def scatter_add(x: Expression, indices: Expression | Integers, source: Expression, axis: int = 0) -> Expression:
    """Add elements of another tensor to x at given positions: ``y[indices[i, j], j] += source[i, j]``.

    Args:
        x: any expression.
        indices: positions along the axis; see `gather`. Numbers are the same for all batch elements. At repeated
            positions, elements are added up.
        source: an expression of the shape of indices.
        axis: the axis (default: 0).

    Raises:
        DimensionError: the shapes do not fit.
        IndexError: an index is out of range.

    Example:
        >>> dy.scatter_add(dy.zeros(3), [0, 2, 0], dy.inputVector([1, 2, 3])).npvalue()
        array([4., 0., 2.])
    """
    k = axis_in(expression(x, "scatter_add"), axis, "scatter_add")
    if isinstance(indices, Expression):
        return x + put(source, indices, k, length_along(x, k, "scatter_add"), True, "scatter_add")
    return x + added_at(x, indices, expression(source, "scatter_add", "source"), k, "scatter_add")[0]


@known_arguments
def index_add(x: Expression, indices: Expression | Sequence[int], source: Expression, axis: int = 0) -> Expression:
    """Add rows or columns of another tensor to x at given positions: ``y[indices[i]] += source[i]``.

    For columns, with axis 1, ``y[:, indices[j]] += source[:, j]``; likewise for further axes.

    Shapes: ``x {..., n, ...}``, ``source {..., k, ...}`` and k indices -> that of x. Indices have no gradient.

    Args:
        x: any expression.
        indices: the position of each slice of the source along the axis, a list or an array, the same for all batch
            elements; or a vector as an expression.  At repeated positions, slices are added up.
        source: an expression with k slices along the axis; otherwise of the shape of x.
        axis: the axis: 0 (the default) for rows, 1 for columns.

    Raises:
        DimensionError: the shapes do not fit, or x has no such axis.
        IndexError: an index is not from 0 to n - 1.

    Example:
        >>> dy.index_add(dy.ones((2, 3)), [0, 2, 0], dy.inputTensor([[1, 2, 3], [4, 5, 6]]), axis=1).npvalue()
        array([[ 5.,  1.,  3.],
               [11.,  1.,  6.]])
    """
    k = axis_in(expression(x, "index_add"), axis, "index_add")
    if isinstance(indices, Expression):
        return x + put(source, indices, k, length_along(x, k, "index_add"), False, "index_add")
    whole, own = shape_of(x), shape_of(expression(source, "index_add", "source"))
    wanted = (*whole[:k], len(indices), *whole[k + 1 :])
    if k >= len(whole) or own != wanted:
        raise DimensionError(
            f"index_add: x has shape {whole} and the source {own}; with {len(indices)} indices along axis {k} the "
            f"source needs {wanted}"
        )
    if k == 0:
        return x + select.scatter_rows(source, indices, whole[0])
    if k == 1:
        return x + select.scatter_cols(source, indices, whole[1])
    before, after = math.prod(whole[:k]), math.prod(whole[k + 1 :])
    y = select.scatter_cols(shape.reshape(source, (before, len(indices), after)), indices, whole[k])
    return x + shape.reshape(y, whole)


@known_arguments
def scatter(x: Expression, indices: Expression | Integers, source: Expression, axis: int = 0) -> Expression:
    """Replace elements of x by elements of another tensor: ``y[indices[i, j], j] = source[i, j]``.

    Args:
        x: any expression.
        indices: positions along the axis, see `scatter_add`; none may be repeated. This is not checked if they are an
            expression: repeated elements are then added up.
        source: an expression of the shape of indices.
        axis: the axis (default: 0).

    Raises:
        DimensionError: the shapes do not fit.
        IndexError: an index is out of range.
        ValueError: a position is repeated.

    Example:
        >>> dy.scatter(dy.zeros(3), [2, 0], dy.inputVector([1, 2])).npvalue()
        array([2., 0., 1.])
    """
    k = axis_in(expression(x, "scatter"), axis, "scatter")
    if isinstance(indices, Expression):
        n = length_along(x, k, "scatter")
        chosen = put(ones(shape_of(source), source.batch_size), indices, k, n, True, "scatter")
        return where(chosen, put(source, indices, k, n, True, "scatter"), x)
    y, at = added_at(x, indices, expression(source, "scatter", "source"), k, "scatter")
    if len(np.unique(at)) < at.size:
        raise ValueError("scatter: a position is repeated among the indices; scatter_add allows that")
    selected = np.zeros(math.prod(shape_of(x)), np.float32)
    selected[at.ravel()] = 1
    return where(selected.reshape(shape_of(x), order="F"), y, x)
