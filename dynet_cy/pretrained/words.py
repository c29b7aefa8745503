"""Word vectors from vectors of pieces, and mixtures of layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Layer
from dynet_cy.ops import api as ops

POOLS = ("first", "mean", "last")


def pooled(x: Expression, spans: Sequence[tuple[int, int]], pool: str) -> Expression:
    """A column for each word.

    Args:
        x: shape ``{dim,pieces}``
        spans: for each word, its first piece and the one after its last
        pool: one of `POOLS`
    """
    if pool == "first":
        return ops.select_cols(x, [begin for begin, _ in spans])
    if pool == "last":
        return ops.select_cols(x, [end - 1 for _, end in spans])
    if all(end - begin == 1 for begin, end in spans):
        return ops.select_cols(x, [begin for begin, _ in spans])
    shares = np.zeros((x.dim()[0][1], len(spans)), dtype=np.float32)
    for word, (begin, end) in enumerate(spans):
        shares[begin:end, word] = 1 / (end - begin)
    return x * ops.inputTensor(shares)


class Mixture(Layer):
    """A sum of layers, each times its learnt share, times a learnt number (Peters et al., "Deep contextualized word
    representations", NAACL 2018).

    Parameters: weights (count,), zeros, whose softmax are the shares; scale (1,), one.

    Args:
        count: the number of layers
        model: where the parameters go
    """

    def __init__(self, count: int, model: ParameterCollection) -> None:
        super().__init__(model, (self._size(count, "count"),))
        self.weights = self._vector(count, 0.0, "weights")
        self.scale = self._vector(1, 1.0, "scale")

    def __call__(self, states: Sequence[Expression]) -> Expression:
        """The sum of the layers, each in the same shape."""
        shares = ops.cmult(ops.softmax(self.weights), self.scale)
        shape, batch = states[0].dim()
        flat = ops.concatenate_cols([ops.reshape(x, (int(np.prod(shape)),), batch) for x in states])
        return ops.reshape(flat * shares, shape, batch)
