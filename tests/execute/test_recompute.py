"""Values that are dropped after forward and computed again in backward: the same bits, and less memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.execute import recompute
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

Call = Callable[..., Any]


def plainly(function: Call, *args: Any) -> Any:
    """What `checkpoint` does, without dropping anything."""
    return function(*args)


def chain(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Sentences of different lengths through cells, some at a time, and a layer over all states."""
    cells = dy.LSTMBuilder(2, 24, 128, model)
    out = model.add_parameters((10, 128))
    table = model.add_lookup_parameters((30, 24))

    def run(state, words):
        states = []
        for word in words:
            state = state.add_input(dy.tanh(table[word]))
            states.append(state.output())
        return state, states

    losses = []
    for n in (12, 7, 9):
        state = cells.initial_state()
        words = [(7 * i + n) % 30 for i in range(n)]
        for i in range(0, n, 4):
            state, states = call(run, state, words[i : i + 4])
            losses += [dy.pickneglogsoftmax(out * h, k % 10) for k, h in enumerate(states)]
    return dy.esum(losses)


def layers(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Layers of a Transformer with dropout, each of them called for every sentence."""
    encoders = [dy.nn.TransformerEncoderLayer(32, 4, 64, model, dropout=0.2) for _ in range(3)]
    table = model.add_lookup_parameters((40, 32))
    losses = []
    for n in (5, 9, 5):
        x = dy.concatenate_cols([table[(3 * i + n) % 40] for i in range(n)])
        for encoder in encoders:
            x = call(encoder, x)
        losses.append(dy.squared_norm(x))
    return dy.esum(losses)


def images(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Convolutions with batch normalization, whose statistics change once."""
    first = dy.nn.Conv2d(3, 4, 3, model, padding="same")
    norm = dy.nn.BatchNorm(4, model, axis=-1)
    second = dy.nn.Conv2d(4, 2, 3, model)

    def block(x):
        return dy.rectify(norm(first(x)))

    x = dy.inputTensor(np.linspace(-1, 1, 8 * 8 * 3 * 2).reshape(8, 8, 3, 2), batched=True)
    y = dy.maxpooling2d(call(block, x), (2, 2), (2, 2))
    return dy.sum_batches(dy.squared_norm(call(second, y)))


def nested(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Calls within calls within calls, with results of the inner ones used outside."""
    W = [model.add_parameters((100, 100)) for _ in range(3)]
    noisy = []

    def inner(h, i):
        a = dy.tanh(W[i] * h)
        b = dy.dropout(dy.logistic(a + h), 0.3)
        return dy.cmult(a, b) + h

    def middle(h):
        for i in range(3):
            h = call(inner, h, i)
            noisy.append(h)
        return dy.tanh(h)

    def outer(h):
        return call(middle, call(middle, h)) + dy.noise(h, 0.1)

    losses = []
    for k in range(3):
        h = dy.inputVector(np.sin(np.arange(100) + k))
        losses.append(dy.squared_norm(call(outer, call(outer, h))))
    return dy.esum([*losses, dy.squared_norm(noisy[1]), dy.sum_elems(noisy[-1])])


def parts(model: dy.ParameterCollection, call: Call) -> dy.Expression:
    """Long vectors, which run in pieces and tiles, and parts of them, which are views."""
    W = model.add_parameters((4 * 160, 160))
    b = model.add_parameters(4 * 160)

    def cell(h, c):
        gates = dy.affine_transform([b, W, h])
        i, f, o, u = (dy.pick_range(gates, 160 * k, 160 * k + 160) for k in range(4))
        c = dy.cmult(dy.logistic(i), dy.tanh(u)) + dy.cmult(dy.logistic(f), c)
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def cells(h, c):
        for _ in range(3):
            h, c = cell(h, c)
        return h, c

    losses = []
    for k in range(4):
        h, c = dy.inputVector(np.cos(np.arange(160) + k)), dy.zeros(160)
        for _ in range(3):
            h, c = call(cells, h, c)
        losses.append(dy.squared_norm(h) + dy.sum_elems(c))
    return dy.esum(losses)


PROGRAMS = [chain, layers, images, nested, parts]


def gradients(program: Call, call: Call) -> list[np.ndarray]:
    """The loss and the gradients of all parameters."""
    dy.reset_random_seed(11)
    dy.renew_cg()
    model = dy.ParameterCollection()
    loss = program(model, call)
    value = loss.npvalue()
    loss.backward()
    return [value, *(p.grad_as_array() for p in [*model.parameters_list(), *model.lookup_parameters_list()])]


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_have_the_same_bits(program, strategy):
    """With every schedule, on fresh parameters."""
    expected = gradients(program, plainly)
    recompute.reset()
    assert same_bits(gradients(program, dy.checkpoint), expected)
    assert recompute.counts() > 0
