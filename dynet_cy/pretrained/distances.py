"""Distances between columns, sorted into buckets that get wider with the distance."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters
from dynet_cy.ops import api as ops

__all__ = ["bias_of_buckets", "disentangled_buckets", "t5_buckets"]

Numbers = npt.NDArray[np.int64]


def t5_buckets(distances: Numbers, buckets: int = 32, farthest: int = 128, both_directions: bool = True) -> Numbers:
    """The bucket of each distance of a key from a query (Raffel et al., "T5", JMLR 2020): half of the buckets are for
    one distance each, and the others get wider up to `farthest`.

    Args:
        distances: positions of keys less those of queries
        buckets: their number
        farthest: greater distances count as this one
        both_directions: whether keys after the query have buckets of their own; else all of them are in the first
    """
    begin: Numbers = np.zeros_like(distances)
    if both_directions:
        buckets //= 2
        begin = np.where(distances > 0, buckets, 0)
        lengths = np.abs(distances)
    else:
        lengths = np.maximum(-distances, 0)
    single = buckets // 2
    ratios = np.log(np.maximum(lengths, 1).astype(np.float32) / np.float32(single)) / np.float32(
        math.log(farthest / single)
    )
    wide = np.minimum(single + (ratios * np.float32(buckets - single)).astype(np.int64), buckets - 1)
    return begin + np.where(lengths < single, lengths, wide)


def disentangled_buckets(distances: Numbers, buckets: int, farthest: int) -> Numbers:
    """The bucket of each distance, with its sign (He et al., "DeBERTa", ICLR 2021): up to half of the buckets are for
    one distance each, and the others get wider up to `farthest`.

    Args:
        distances: positions of queries less those of keys
        buckets: their number for each sign
        farthest: the greatest distance with a bucket of its own
    """
    middle = buckets // 2
    lengths = np.where(np.abs(distances) < middle, middle - 1, np.abs(distances)).astype(np.float32)
    ratios = np.log(lengths / np.float32(middle)) / np.log(np.float32((farthest - 1) / middle))
    wide = np.ceil(ratios * np.float32(middle - 1)) + middle
    found: Numbers = np.where(lengths <= middle, distances, wide * np.sign(distances)).astype(np.int64)
    return found


def bias_of_buckets(table: LookupParameters, rows: Numbers) -> Expression:
    """What a table has for the bucket of each key and query, ``{keys,queries,heads}``.

    Args:
        table: a row for each bucket, with a number for each head
        rows: the bucket of each key and query, shape (keys, queries)
    """
    # As values of the graph, indices that grow with a text may be exported.
    found = ops.reshape(table[ops.input_indices(rows)], (table.shape[1], *rows.shape), 1)
    return ops.transpose(found, (1, 2, 0))


@lru_cache(maxsize=256)
def square_of_t5_buckets(columns: int, buckets: int, farthest: int) -> Numbers:
    """The bucket of each key and query of a text."""
    numbers = np.arange(columns)
    return t5_buckets(numbers[:, None] - numbers, buckets, farthest)
