"""The derivative of attention, from products and a softmax."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dynet_cy.derivatives.steps import Step, as_matrix, kept
from dynet_cy.derivatives.table import composed
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.elementwise import equal, masked_fill
from dynet_cy.ops.inputs import inputTensor
from dynet_cy.ops.products import matmul
from dynet_cy.ops.reduce import max_dim
from dynet_cy.ops.shape import reshape, transpose
from dynet_cy.ops.softmax import softmax

# Codes for the position of the first query among the keys; larger codes are FROM + the number of keys before it.
ANYWHERE, FROM_FIRST, TO_LAST, FROM = range(4)


class Seen(NamedTuple):
    """The first attribute of attention, in its parts."""

    heads: int
    before: int | None
    """The number of keys before its own position to which a query may attend; None: all."""
    after: int | None


def seen(word: int) -> Seen:
    """The parts of the first attribute, as `dynet_cy/ops/attention.pxd` defines them."""
    window = (word & 0xFFFFFFFF) >> 13
    before = window - 1 if window else None
    return Seen(word & 0xFFF, before, 0 if word & 0x1000 else before)


@composed("scaled_dot_product_attention")
def attention(step: Step, xs: list[Expression]) -> Expression:
    """V softmax(K' Q scale + bias) in each head; a query that may attend to no key has the result 0."""
    (heads, before, after), place, scale = seen(step.word(0)), step.word(1), step.number(3)

    def divided(x: Expression) -> Expression:
        """The heads along the last axis."""
        (rows, n), batch = as_matrix(x).dim()
        return transpose(reshape(x, (rows // heads, heads, n), batch), (0, 2, 1))

    q, k, v = map(divided, xs[:3])
    scores = scale * matmul(k, q, True)
    shape = scores.dim()[0]
    if len(xs) > 3:
        scores = scores + reshape(xs[3], (*xs[3].dim()[0], 1, 1)[:3], xs[3].batch_size)
    if place != ANYWHERE:
        first = {FROM_FIRST: 0, TO_LAST: shape[0] - shape[1]}.get(place, place - FROM)
        ahead = np.arange(shape[0])[:, None, None] - (first + np.arange(shape[1]))[None, :, None]
        hidden = np.zeros(ahead.shape, bool)
        if after is not None:
            hidden |= ahead > after
        if before is not None:
            hidden |= ahead < -before
        scores = masked_fill(scores, inputTensor(hidden.astype(np.float32)), -math.inf)
    alone = kept(equal(max_dim(scores, 0), -math.inf), shape, [0])
    weights = masked_fill(softmax(masked_fill(scores, alone, 0), 0), alone, 0)
    y = transpose(matmul(v, weights), (0, 2, 1))
    return reshape(y, step.node.shape, y.batch_size)
