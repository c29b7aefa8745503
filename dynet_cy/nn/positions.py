"""Positions of words: added sinusoids, rotations of queries and keys, and biases of scores by distance."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters
from dynet_cy.nn.layer import Layer
from dynet_cy.ops import api as ops

__all__ = ["SinusoidalPositions"]

Floats = npt.NDArray[np.float32]


@lru_cache(maxsize=256)
def angles(dim: int, first: int, count: int, base: float = 10000.0) -> npt.NDArray[np.float64]:
    """The angle of each pair of elements at each position: shape (dim / 2, count)."""
    frequencies = base ** (-np.arange(0, dim, 2) / dim)
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


def rotate(x: Expression, heads: int, first: int, base: float = 10000.0) -> Expression:
    """Rotary positions: for each head, pairs of one element from each half of its rows are rotated by angles that grow
    with the position of the column, so that the product of two columns depends on their distance. The greater `base`,
    the slower most of them grow.
    """
    shape, batch = x.dim()
    size, columns = shape[0] // heads, shape[1] if len(shape) > 1 else 1
    cosines, sines = _rotation(size, heads, first, columns, base)
    half = size // 2
    parts = ops.reshape(x, cosines.shape, batch)
    upper, lower = parts[:half], parts[half:]
    rotated = ops.concatenate([-lower, upper])
    y = ops.cmult(parts, ops.inputTensor(cosines)) + ops.cmult(rotated, ops.inputTensor(sines))
    return ops.reshape(y, shape, batch)


@lru_cache(maxsize=256)
def _rotation(size: int, heads: int, first: int, count: int, base: float) -> tuple[Floats, Floats]:
    """Cosines and sines for each head of each column: shape (size, heads * count)."""
    rotated = angles(size, first, count, base)
    both = np.repeat(np.concatenate([rotated, rotated]), heads, axis=1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def distance_bias(table: LookupParameters, heads: int, keys: int, queries: int, first: int) -> Expression:
    """The bias of each score by the distance of its key from its query, as ``{keys,queries,heads}``."""
    if not keys * queries:
        return ops.zeros((keys, queries, heads))
    farthest = (len(table) - 1) // 2
    distances = np.arange(keys)[:, None] - (first + np.arange(queries))[None, :]
    rows = np.clip(distances, -farthest, farthest) + farthest
    bias = ops.reshape(table.batch(np.ascontiguousarray(rows.ravel(order="F"))), (heads, keys, queries), 1)
    return ops.transpose(bias, (1, 2, 0))
