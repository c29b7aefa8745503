"""The table of pieces, in bfloat16 if it is not trained."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.model.weights import widened
from dynet_cy.nn import Embedding, Layer
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.settings import Settings


class HalfTable(Layer):
    """A table of vectors in bfloat16, half the bytes of an `Embedding`; the rows that are looked up become float32. It
    is not trained, and no parameter.

    Args:
        size: number of vectors
        dim: length of a vector
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(None, (size, dim))
        self.shape = size, dim
        self.numbers = np.zeros((0, dim), np.uint16)

    def __call__(self, ids: Sequence[int]) -> Expression:
        """The vectors of some numbers, ``{dim,n}``."""
        rows = np.asarray(ids)
        wrong = rows[(rows < 0) | (rows >= len(self.numbers))]
        if wrong.size:
            raise IndexError(f"HalfTable: argument ids: there is no vector {wrong[0]}, there are {len(self.numbers)}")
        return ops.inputTensor(widened(self.numbers[rows]).T)

    def set_updated(self, b: bool) -> None:
        if b:
            raise ValueError(
                "set_updated: a table in bfloat16 is not trained; load the encoder without tables='bfloat16' for that"
            )

    def resize(self, size: int) -> None:
        """Refused: new vectors would have to be trained."""
        raise ValueError(
            f"resize: a table in bfloat16 keeps its {self.shape[0]} vectors, and cannot have {size}; load the encoder "
            "without tables='bfloat16' for that"
        )


class NotWritten:
    """Stands among the arguments of an encoder with such a table, which `dy.save` and `pickle` refuse to write."""

    def __reduce__(self) -> str:
        raise pickle.PicklingError("a table in bfloat16 is written by the method `save` of the encoder only")

    def __deepcopy__(self, memo: object) -> NotWritten:
        return self


def piece_table(settings: Settings, model: ParameterCollection) -> Embedding | HalfTable:
    """The vectors of the pieces of an encoder."""
    s = settings
    if s.half_tables:
        return HalfTable(s.vocabulary, s.embedding_dim)
    return Embedding(s.vocabulary, s.embedding_dim, model)
