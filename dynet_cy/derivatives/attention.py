"""The derivative of attention, composed of products and a softmax."""

from __future__ import annotations

import math

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
NOT_CAUSAL, FROM_FIRST, TO_LAST, FROM = range(4)


@composed("scaled_dot_product_attention")
def attention(step: Step, xs: list[Expression]) -> Expression:
    """V softmax(K' Q scale + bias) in each head; a query that may attend to no key has the result 0."""
    heads, causal, scale = step.word(0), step.word(1), step.number(3)

    def divided(x: Expression) -> Expression:
        """The heads along the last axis."""
        (rows, n), batch = as_matrix(x).dim()
        return transpose(reshape(x, (rows // heads, heads, n), batch), (0, 2, 1))

    q, k, v = map(divided, xs[:3])
    scores = scale * matmul(k, q, True)
    shape = scores.dim()[0]
    if len(xs) > 3:
        scores = scores + reshape(xs[3], (*xs[3].dim()[0], 1, 1)[:3], xs[3].batch_size)
    if causal != NOT_CAUSAL:
        first = {FROM_FIRST: 0, TO_LAST: shape[0] - shape[1]}.get(causal, causal - FROM)
        keys, queries = np.arange(shape[0])[:, None, None], np.arange(shape[1])[None, :, None]
        scores = masked_fill(scores, inputTensor((keys > first + queries).astype(np.float32)), -math.inf)
    alone = kept(equal(max_dim(scores, 0), -math.inf), shape, [0])
    weights = masked_fill(softmax(masked_fill(scores, alone, 0), 0), alone, 0)
    y = transpose(matmul(v, weights), (0, 2, 1))
    return reshape(y, step.node.shape, y.batch_size)
