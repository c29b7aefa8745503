"""A step of backward from a node to its arguments, and helpers of the rules."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import ComputationGraph, Expression
from dynet_cy.graph.nodes import PathNode, expression
from dynet_cy.ops.elementwise import cmult, esum
from dynet_cy.ops.inputs import ones
from dynet_cy.ops.products import matmul
from dynet_cy.ops.reduce import sum_batches, sum_dim, sum_elems
from dynet_cy.ops.select import scatter_rows
from dynet_cy.ops.shape import concatenate, concatenate_cols, reshape, transpose

Dim = tuple[tuple[int, ...], int]
Places = npt.NDArray[np.signedinteger[Any]]

# The axes of a reduction are bits of a word: all axes, and the batch.
ALL_AXES, BATCH = 0x7F, 1 << 31


class Outer(NamedTuple):
    """The gradient left right' of a matrix.

    Those of all uses of the matrix are multiplied at once, side by side: the gradient of the weight of a recurrent
    network then takes one product, not one for each step.

    Attributes:
        left, right: matrices with the same number of columns, or a column each, without a batch.
    """

    left: Expression
    right: Expression


class Placed(NamedTuple):
    """The elements of an expression at some places of a gradient that is zero elsewhere.

    Those of all selections from one expression are put there at once: a loop over the columns of a matrix then makes
    one matrix, not one for each column.

    Attributes:
        e: the elements.
        places: makes the place of each, counted from 0 over all batch elements of the gradient.
        alone: makes the gradient if there are no others; None: as if there were.
    """

    e: Expression
    places: Callable[[], Places]
    alone: Callable[[], Expression] | None = None


MOST_PLACES = 0xFFFF  # of a call of `scatter_rows`

# To the gradient of an argument: an expression that has its shape, or broadcasts to it, or to which it was broadcast;
# None for zero.
Contribution = Union[Expression, Outer, Placed, None]


class Step:
    """A node whose gradient is known.

    Attributes:
        graph: its graph.
        node: what it is.
        dy: its gradient, of its shape and batch size.
        shared: expressions that several steps of the walk need, by a name for each.
    """

    def __init__(self, graph: ComputationGraph, node: PathNode, dy: Expression, shared: dict[Any, Expression]) -> None:
        self.graph, self.node, self.dy, self.shared = graph, node, dy, shared

    @property
    def y(self) -> Expression:
        """The node itself."""
        return expression(self.graph, self.node.number)

    def x(self, i: int) -> Expression:
        """Argument number i."""
        return expression(self.graph, self.node.args[i])

    @property
    def xs(self) -> list[Expression]:
        """All arguments."""
        return [self.x(i) for i in range(len(self.node.args))]

    def transposed(self, i: int) -> Expression:
        """The transpose of argument number i, a matrix or a vector; nodes that multiply by the same one run as one
        product."""
        return self.once(("transpose", self.node.args[i]), lambda: transpose(self.x(i)))

    def once(self, name: Any, make: Callable[[], Expression]) -> Expression:
        """An expression that is made only by the first step that needs it."""
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]

    def word(self, i: int) -> int:
        """Attribute number i as a whole number."""
        word = self.node.attrs[i]
        return word - (1 << 32) if word >> 31 else word

    def halves(self, i: int) -> tuple[list[int], list[int]]:
        """The lower and the upper halves of attributes number i and i + 1."""
        words = self.node.attrs[i : i + 2]
        return [word & 0xFFFF for word in words], [word >> 16 for word in words]

    def number(self, i: int) -> float:
        """Attribute number i as a float."""
        return float(struct.unpack("f", struct.pack("I", self.node.attrs[i]))[0])

    @property
    def items(self) -> npt.NDArray[np.int64]:
        """The items: a row for each batch element."""
        return np.array(self.node.items, np.int64).reshape(self.node.batch_size, self.node.item_count)


def kept(x: Expression, shape: Sequence[int], axes: Sequence[int]) -> Expression:
    """A reduction with the axes that it lost: those of the shape, with size 1 where they were reduced."""
    return reshape(x, tuple(1 if a in axes else n for a, n in enumerate(shape)), x.batch_size)


def reduced(x: Expression, mask: int) -> Expression:
    """The sum along the axes of a mask."""
    mask &= 0xFFFFFFFF
    if mask & ALL_AXES == ALL_AXES:
        return sum_batches(sum_elems(x)) if mask & BATCH else sum_elems(x)
    axes = axes_of(mask, len(x.dim()[0]))
    return sum_dim(x, axes, bool(mask & BATCH)) if axes else sum_batches(x)


def axes_of(mask: int, n: int) -> list[int]:
    """The axes of a mask, of an expression that has n."""
    return [a for a in range(n) if mask >> a & 1]


def fit(e: Expression, dim: Dim) -> Expression:
    """A contribution in the shape and batch size of the argument: summed where the argument was repeated, and repeated
    where the contribution is the same for all elements."""
    if e.dim() == dim:
        return e
    (shape, batch), (own, own_batch) = dim, e.dim()
    n = max(len(shape), len(own))
    wide, target = (*own, *[1] * (n - len(own))), (*shape, *[1] * (n - len(shape)))
    summed = [a for a in range(n) if wide[a] != target[a] == 1]
    if summed:
        e = sum_dim(reshape(e, wide, own_batch), summed, own_batch != batch == 1)
        wide = tuple(1 if a in summed else s for a, s in enumerate(wide))
    elif own_batch != batch == 1:
        e = sum_batches(e)
    if wide == target and e.batch_size == batch:
        return reshape(e, shape, batch)
    return cmult(reshape(e, wide[: len(shape)], e.batch_size), ones(shape, batch))


def total(contributions: list[Contribution], dim: Dim) -> Expression | None:
    """The sum of contributions to the gradient of an expression, in its shape; None if it is zero."""
    parts = [fit(c, dim) for c in contributions if isinstance(c, Expression)]
    products = [c for c in contributions if isinstance(c, Outer)]
    if products:
        left, right = (side_by_side([p[k] for p in products]) for k in range(2))
        parts.append(fit(matmul(left, transpose(right)), dim))
    parts += put([c for c in contributions if isinstance(c, Placed)], dim)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else esum(parts)


def put(placed: list[Placed], dim: Dim) -> list[Expression]:
    """Sums of contributions that are elements at places of a gradient."""
    sizes = [math.prod(p.e.dim()[0]) * p.e.batch_size for p in placed]
    if len(placed) <= -(-sum(sizes) // MOST_PLACES):  # fewer than calls that put all of them
        return [p.alone() if p.alone else scattered([p.e], [size], p.places(), dim) for p, size in zip(placed, sizes)]
    return [scattered([p.e for p in placed], sizes, np.concatenate([p.places() for p in placed]), dim)]


def scattered(es: list[Expression], sizes: list[int], places: Places, dim: Dim) -> Expression:
    """An expression with the elements of some others added at places, and 0 elsewhere."""
    shape, batch = dim
    parts = [reshape(e, (size,)) for e, size in zip(es, sizes)]
    elements = parts[0] if len(parts) == 1 else concatenate(parts)
    return reshape(scatter_rows(elements, places, math.prod(shape) * batch), shape, batch)


def as_matrix(x: Expression) -> Expression:
    """An expression of at most two axes besides those of size 1 as a matrix."""
    shape, batch = x.dim()
    return x if len(shape) == 2 else reshape(x, (*shape, 1, 1)[:2], batch)


def side_by_side(parts: list[Expression]) -> Expression:
    return as_matrix(parts[0]) if len(parts) == 1 else concatenate_cols(parts)


def columns(e: Expression, rows: int) -> Expression:
    """All columns of an expression, those of the whole batch, as one matrix; a single column as it is."""
    shape, batch = e.dim()
    if batch == 1 and len(shape) in (1, 2):
        return e
    return reshape(e, (rows, math.prod(shape) // rows * batch if rows else 0), 1)


def flat(x: Expression) -> Expression:
    """Each batch element as a vector."""
    shape, batch = x.dim()
    return x if len(shape) == 1 else reshape(x, (math.prod(shape),), batch)


Rule = Callable[[Step], Sequence[Contribution]]
Composition = Callable[[Step, list[Expression]], Expression]
