"""Layers that drop the values within them: the same numbers, and the same layer after it was copied."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

nn = dy.nn


def encoder(model: dy.ParameterCollection, checkpoint: bool) -> dy.Expression:
    stack = nn.TransformerEncoder(4, 16, 2, 64, model, 0.1, norm_first=True, checkpoint=checkpoint)
    return stack(dy.inputTensor(np.sin(np.arange(160)).reshape(16, 10)), causal=True)


def decoder(model: dy.ParameterCollection, checkpoint: bool) -> dy.Expression:
    stack = nn.TransformerDecoder(4, 16, 2, 64, model, checkpoint=checkpoint)
    return stack(dy.inputTensor(np.sin(np.arange(160)).reshape(16, 10)), dy.ones((16, 7)))


def sequential(model: dy.ParameterCollection, checkpoint: bool) -> dy.Expression:
    layers = [(nn.Linear, 32, 32), "tanh", (nn.Dropout, 0.2), (nn.LayerNorm, 32)] * 4
    return nn.Sequential(layers, model, checkpoint=checkpoint)(dy.inputTensor(np.cos(np.arange(320)).reshape(32, 10)))


@pytest.mark.parametrize("made", [encoder, decoder, sequential])
def test_the_same_bits(made):
    """In training, with dropout."""

    def gradients(checkpoint: bool) -> list[np.ndarray]:
        dy.reset_random_seed(4)
        dy.renew_cg()
        model = dy.ParameterCollection()
        loss = dy.squared_norm(made(model, checkpoint))
        value = loss.npvalue()
        loss.backward()
        return [value, *(p.grad_as_array() for p in model.parameters_list())]

    expected = gradients(False)
    engine.stats("execute.rematerialize", reset=True)
    found = gradients(True)
    assert engine.stats("execute.rematerialize")["nodes"] > 0
    assert all(np.array_equal(x, y) for x, y in zip(found, expected))


@pytest.mark.parametrize("made", [nn.TransformerEncoder, nn.TransformerDecoder])
def test_the_setting_belongs_to_the_layer(made):
    """It is in `spec`, so that copies have it; and `spec` is what it was where it is not used."""
    model = dy.ParameterCollection()
    plain, dropping = made(2, 8, 2, 16, model), made(2, 8, 2, 16, model, checkpoint=True)
    assert made.from_spec(dropping.spec, model).checkpoint
    assert not made.from_spec(plain.spec, model).checkpoint
    assert dropping.spec == (*plain.spec, True)


def test_sequential_keeps_the_setting():
    """As above."""
    model = dy.ParameterCollection()
    layers = nn.Sequential([(nn.Linear, 4, 4), "tanh"], model, checkpoint=True)
    assert nn.Sequential.from_spec(layers.spec, model).checkpoint


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("builder", [dy.LSTMBuilder, dy.GRUBuilder, dy.SimpleRNNBuilder])
def test_builders_keep_some_states(builder):
    """A sentence in one call."""

    def run(dropping: bool) -> tuple[int, np.ndarray]:
        dy.reset_random_seed(4)
        dy.renew_cg(autobatching=0)  # with fewer values that are kept
        arena.give_back()
        model = dy.ParameterCollection()
        rnn = builder(1, 64, 256, model)
        xs = [dy.inputVector(np.sin(np.arange(64) + i)) for i in range(200)]
        last = dy.checkpoint(lambda xs: rnn.transduce(xs)[-1], xs) if dropping else rnn.transduce(xs)[-1]
        dy.squared_norm(last).backward()
        held = arena_bytes()  # gradients take as much in both
        return held["values"] + held["scratch"], model.parameters_list()[0].grad_as_array()

    (most, expected), (least, found) = run(False), run(True)
    assert np.array_equal(found, expected)
    assert least < 0.75 * most
