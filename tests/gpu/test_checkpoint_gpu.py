"""`checkpoint` on a device: it has no effect yet, and does no harm."""

from __future__ import annotations

import numpy as np

import dynet_cy as dy
from dynet_cy.execute import recompute
from dynet_cy.graph.expressions import set_default_device


def test_the_same_numbers(on_device) -> None:
    """Values and gradients, also of expressions inside."""

    def found(checkpoint: bool) -> list[np.ndarray]:
        set_default_device(1)
        dy.reset_random_seed(7)
        dy.renew_cg()
        W = dy.ParameterCollection().add_parameters((32, 32))
        made = [dy.inputVector(np.ones(32))]

        def layer(h: dy.Expression) -> dy.Expression:
            made.append(dy.dropout(dy.tanh(W * h), 0.2))
            return made[-1]

        for _ in range(4):
            dy.checkpoint(layer, made[-1]) if checkpoint else layer(made[-1])
        loss = dy.squared_norm(made[-1])
        loss.backward()
        return [loss.npvalue(), W.grad_as_array(), made[2].npvalue(), made[2].gradient()]

    recompute.reset()
    for x, y in zip(found(True), found(False)):
        np.testing.assert_array_equal(x, y)
    assert recompute.counts() == 0
