"""Positions of words: added sinusoids, rotations of queries and keys, and biases of scores by distance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters, ParameterCollection
from dynet_cy.nn.layer import Layer
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError
from dynet_cy.rnn.builder import positive_integer

__all__ = ["RelativeBias", "SinusoidalPositions", "alibi", "rotate"]

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
Base = Union[float, Sequence[float], npt.NDArray[np.floating]]


@lru_cache(maxsize=256)
def angles(dim: int, first: int, count: int, base: float | tuple[float, ...] = 10000.0) -> npt.NDArray[np.float64]:
    """The angle of each pair of elements at each position: shape (dim / 2, count)."""
    frequencies = np.array(base) if isinstance(base, tuple) else base ** (-np.arange(0, dim, 2) / dim)
    found: npt.NDArray[np.float64] = frequencies[:, None] * np.arange(first, first + count)
    return found


class SinusoidalPositions(Layer):
    """Adds an encoding of its position to each column: sines and cosines of many wavelengths (Vaswani et al.,
    "Attention is all you need", NeurIPS 2017). Elements 2i and 2i + 1 of column t get the sine and cosine of
    t / 10000^(2i/dim).

    Args:
        dim: length of a column, an even number

    Raises:
        TypeError: `dim` is not an integer
        ValueError: `dim` is not even, or less than 1

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.SinusoidalPositions(4)(dy.zeros((4, 2))).npvalue()[:, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, dim: int) -> None:
        self.dim = self._size(dim, "dim")
        if self.dim % 2:
            raise ValueError(f"SinusoidalPositions: argument dim: expected an even number, got {dim}")
        super().__init__(None, (self.dim,))

    def __call__(self, x: Input, first: int = 0) -> Expression:
        """x with positions.

        Args:
            x: shape ``{dim}`` or ``{dim,n}``
            first: the position of the first column: the number of previous words, when a decoder continues

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
            ValueError: `first` is negative
        """
        x = self._checked(x, self.dim)
        shape, _ = x.dim()
        if first < 0:
            raise ValueError(f"SinusoidalPositions: argument first: expected a position from 0 on, got {first!r}")
        table = _sinusoids(self.dim, int(first), shape[1] if len(shape) > 1 else 1)
        return x + ops.inputTensor(table.reshape(shape))


@lru_cache(maxsize=256)
def _sinusoids(dim: int, first: int, count: int) -> Floats:
    rotated = angles(dim, first, count)
    table = np.empty((dim, count), dtype=np.float32)
    table[0::2], table[1::2] = np.sin(rotated), np.cos(rotated)
    return table


def rotate(x: Expression, heads: int, first: int = 0, base: Base = 10000.0) -> Expression:
    """Rotary positions (Su et al., "RoFormer", 2021): for each head, pairs of one element from each half of its rows
    are rotated by angles that grow with the position of the column, so that the product of two columns depends on their
    distance. `MultiHeadAttention(positions="rotary")` applies it to queries and keys.

    Args:
        x: queries or keys of all heads below each other, shape ``{rows,n}`` or ``{rows}``
        heads: the number of heads
        first: the position of the first column
        base: pair i of heads of d rows is rotated by position * base ** (-2i / d), so the greater `base`, the slower
            most pairs turn (default: 10,000). Or d / 2 numbers: the angle by which each pair turns from one position to
            the next

    Returns:
        Expression of the shape of x.

    Raises:
        DimensionError: heads do not divide the rows, their size is odd, or there is another number of angles

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.rotate(dy.ones((2, 3)), heads=1).npvalue().round(2)
        array([[ 1.  , -0.3 , -1.33],
               [ 1.  ,  1.38,  0.49]])
    """
    shape, batch = x.dim()
    size, columns = shape[0] // heads, shape[1] if len(shape) > 1 else 1
    turns = float(base) if isinstance(base, (int, float)) else tuple(float(angle) for angle in base)
    if shape[0] % (2 * heads) or (isinstance(turns, tuple) and len(turns) != size // 2):
        what = f"{len(turns)} angles" if isinstance(turns, tuple) else "pairs"
        raise DimensionError(f"rotate: argument x: {shape[0]} rows of {heads} heads do not have {what} each")
    cosines, sines = _rotation(size, heads, first, columns, turns)
    half = size // 2
    parts = ops.reshape(x, cosines.shape, batch)
    upper, lower = parts[:half], parts[half:]
    rotated = ops.concatenate([-lower, upper])
    y = ops.cmult(parts, ops.inputTensor(cosines)) + ops.cmult(rotated, ops.inputTensor(sines))
    return ops.reshape(y, shape, batch)


@lru_cache(maxsize=256)
def _rotation(size: int, heads: int, first: int, count: int, turns: float | tuple[float, ...]) -> tuple[Floats, Floats]:
    """Cosines and sines for each head of each column: shape (size, heads * count)."""
    rotated = angles(size, first, count, turns)
    both = np.repeat(np.concatenate([rotated, rotated]), heads, axis=1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def bias_of_rows(table: LookupParameters, rows: Numbers) -> Expression:
    """Entries of a table for each key and query, ``{keys,queries,heads}``.

    Args:
        table: rows with a number for each head
        rows: the row for each key and query, shape (keys, queries)
    """
    if not rows.size:
        return ops.zeros((*rows.shape, table.shape[1]))
    # As values of the graph, indices that grow with a text may be exported.
    found = ops.reshape(table[ops.input_indices(rows)], (table.shape[1], *rows.shape), 1)
    return ops.transpose(found, (1, 2, 0))


def distances(keys: int, queries: int, first: int) -> Numbers:
    """The position of each key less that of each query, of which the first is at position `first`."""
    return np.arange(keys)[:, None] - (first + np.arange(queries))


def alibi(heads: int, keys: int, queries: int | None = None, first: int = 0) -> Expression:
    """Attention with linear biases (Press, Smith and Lewis, "Train short, test long", ICLR 2022): each score gets less
    by the distance of its key from its query, times a number of the head. It takes the place of positions, and texts
    may be longer than those of training.

    With a power of 2 heads, head i from 1 on has the factor 2 ** (-8 i / heads); with another number, those of the next
    lower power, and then every second one of twice as many heads.

    Args:
        heads: the number of heads
        keys: the number of keys
        queries: the number of queries; None, the default: as many as keys
        first: the position of the first query

    Returns:
        Expression of shape ``{keys,queries,heads}``, for the argument `bias` of layers and of
        `scaled_dot_product_attention`.

    Raises:
        ValueError: a number is less than 1, or `first` less than 0

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.alibi(1, 3).npvalue()[:, :, 0].round(4)
        array([[ 0.    , -0.0039, -0.0078],
               [-0.0039,  0.    , -0.0039],
               [-0.0078, -0.0039,  0.    ]])
        >>> encoder = dy.nn.TransformerEncoder(2, 8, 2, 16, dy.ParameterCollection())
        >>> encoder(dy.zeros((8, 5)), causal=True, bias=dy.nn.alibi(2, 5)).dim()
        ((8, 5), 1)
    """
    queries = keys if queries is None else queries
    return ops.inputTensor(_alibi(*_counts("alibi", keys, queries, first), positive_integer(heads, "alibi", "heads")))


@lru_cache(maxsize=64)
def _alibi(keys: int, queries: int, first: int, heads: int) -> Floats:
    power = 1 << (heads.bit_length() - 1)
    factors = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    factors += [2.0 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)]
    found: Floats = (-np.abs(distances(keys, queries, first))[:, :, None] * np.array(factors)).astype(np.float32)
    return found


def _counts(name: str, keys: int, queries: int, first: int) -> tuple[int, int, int]:
    """Numbers of keys and queries and a position, checked."""
    if isinstance(first, bool) or not isinstance(first, (int, np.integer)) or first < 0:
        raise ValueError(f"{name}: argument first: expected a position from 0 on, got {first!r:.80}")
    return positive_integer(keys, name, "keys"), positive_integer(queries, name, "queries"), int(first)


class RelativeBias(Layer):
    """A learnt bias of each score for its head and the distance of its key from its query (Raffel et al., "T5", JMLR
    2020). Distances are sorted into buckets: half of the buckets are for one distance each, and the others get wider.

    Parameters: table (buckets, heads), zeros.

    Args:
        heads: the number of heads
        model: where the table goes
        buckets: their number, at least 4 (default: 32)
        farthest: greater distances count as this one (default: 128)
        both_directions: whether keys after the query have half of the buckets, as an encoder needs it (default: yes);
            else all buckets are for keys before the query, for causal attention

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, `buckets` less than 4, or `farthest` less than `buckets`

    Example:
        >>> import dynet_cy as dy
        >>> model = dy.ParameterCollection()
        >>> bias, encoder = dy.nn.RelativeBias(2, model), dy.nn.TransformerEncoder(3, 8, 2, 16, model)
        >>> encoder(dy.zeros((8, 5)), bias=bias(5)).dim()  # one bias for all layers
        ((8, 5), 1)
    """

    def __init__(
        self,
        heads: int,
        model: ParameterCollection,
        buckets: int = 32,
        farthest: int = 128,
        both_directions: bool = True,
    ) -> None:
        self.heads = self._size(heads, "heads")
        self.buckets = self._size(buckets, "buckets")
        self.farthest = self._size(farthest, "farthest")
        self.both_directions = bool(both_directions)
        if not 4 <= self.buckets <= self.farthest:
            expected = f"expected at least 4, and at most farthest={farthest}"
            raise ValueError(f"RelativeBias: argument buckets: {expected}, got {buckets!r}")
        super().__init__(model, (self.heads, self.buckets, self.farthest, self.both_directions))
        self.table = self.collection.add_lookup_parameters((self.buckets, self.heads), init=0.0, name="table")

    def __call__(self, keys: int, queries: int | None = None, first: int = 0) -> Expression:
        """The bias of all scores.

        Args:
            keys: the number of keys
            queries: the number of queries; None, the default: as many as keys
            first: the position of the first query: the number of previous columns, when a decoder continues

        Returns:
            Expression of shape ``{keys,queries,heads}``, for the argument `bias` of layers and of
            `scaled_dot_product_attention`.

        Raises:
            ValueError: a number is less than 1, or `first` less than 0
        """
        sizes = _counts("RelativeBias", keys, keys if queries is None else queries, first)
        return bias_of_rows(self.table, _t5_buckets(*sizes, self.buckets, self.farthest, self.both_directions))


@lru_cache(maxsize=256)
def _t5_buckets(keys: int, queries: int, first: int, buckets: int, farthest: int, both_directions: bool) -> Numbers:
    """The bucket of each key and query."""
    away = distances(keys, queries, first)
    begin: Numbers = np.zeros_like(away)
    if both_directions:
        buckets //= 2
        begin = np.where(away > 0, buckets, 0)
        lengths = np.abs(away)
    else:
        lengths = np.maximum(-away, 0)
    single = buckets // 2
    ratios = np.log(np.maximum(lengths, 1).astype(np.float32) / np.float32(single)) / np.float32(
        math.log(farthest / single)
    )
    wide = np.minimum(single + (ratios * np.float32(buckets - single)).astype(np.int64), buckets - 1)
    return begin + np.where(lengths < single, lengths, wide)
