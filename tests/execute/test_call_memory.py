"""What calls keep from forward to backward: no copies of arguments, and no memory that backward will need."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

LENGTH, COUNT, LAYERS = 4096, 16, 6


def train(model: dy.ParameterCollection) -> tuple[float, list[np.ndarray]]:
    """Layer norms of sums, which save a mean and a deviation, over arguments that are not side by side."""
    dy.renew_cg()
    xs = [dy.tanh(dy.inputVector(np.sin(np.arange(LENGTH) + i))) for i in range(COUNT)]
    for gain, bias in zip(*[iter(model.parameters_list())] * 2):
        others = [dy.sin(x) for x in xs]
        xs = [dy.residual_layer_norm(x, others[i * 5 % COUNT], gain, bias) for i, x in enumerate(xs)]
    loss = dy.esum([dy.squared_norm(x - 0.1) for x in xs])
    for p in model.parameters_list():
        p.scale_gradient(0)
    value = loss.value()
    loss.backward()
    return value, [p.grad_as_array().copy() for p in model.parameters_list()]


@pytest.mark.usefixtures("nothing_held", "one_thread")
def test_saved_numbers_take_the_place_of_copies() -> None:
    model = dy.ParameterCollection()
    for _ in range(LAYERS):
        model.add_parameters(LENGTH, init=1)
        model.add_parameters(LENGTH, init=0.5)
    config.set(autobatch=0)
    expected, gradients = train(model)
    config.set(autobatch=1)
    dy.renew_cg()
    arena.give_back()
    value, again = train(model)
    assert value == pytest.approx(expected, rel=1e-5)
    for x, y in zip(gradients, again):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    assert arena_bytes()["scratch"] < 3.5e6  # 5.0 MB with the copies of all layers


@pytest.mark.usefixtures("nothing_held", "one_thread")
def test_attention_saves_no_gradients() -> None:
    """Those of its queries, keys and values take memory while it runs backward."""
    dy.renew_cg()
    arena.give_back()
    x = dy.tanh(dy.inputTensor(np.sin(np.arange(64.0 * 2048)).reshape(64, 2048)))
    y = dy.scaled_dot_product_attention(x, x, x)
    y.forward()
    assert arena_bytes()["scratch"] < 1.5 * 64 * 2048 * 4  # 0.6 MB; 2.2 with gradients
    dy.squared_norm(y).backward()
    assert np.abs(x.gradient()).sum() > 0
