"""`checkpoint` on a device: values are dropped and computed again, to the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes, set_autobatching, set_default_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "execute"))

from test_recompute import PROGRAMS, gradients, images, plainly

N = 32


def found(checkpoint: bool, autobatching: int, again: Callable[[list[dy.Expression]], None] | None = None) -> list:
    """Values and gradients, also of expressions inside, with dropout."""
    set_default_device(1)
    dy.reset_random_seed(7)
    with dy.ComputationGraph(autobatching=autobatching):
        collection = dy.ParameterCollection()
        W = collection.parameters_from_numpy(np.random.default_rng(1).uniform(-0.2, 0.2, (N, N)))
        b = collection.parameters_from_numpy(np.random.default_rng(2).uniform(-1, 1, N))
        made = [dy.inputVector(np.linspace(-1, 1, N) + i) for i in range(3)]

        def layer(hs: list[dy.Expression]) -> list[dy.Expression]:
            made.extend(dy.dropout(dy.tanh(dy.affine_transform([b, W, h])), 0.2) for h in hs)
            return made[-3:]

        hs = made[:]
        for _ in range(6):
            hs = dy.checkpoint(layer, hs) if checkpoint else layer(hs)
        loss = dy.esum([dy.squared_norm(h) for h in hs])
        loss.backward()
        if again is not None:
            again(made)
        return [loss.npvalue(), W.grad_as_array(), b.grad_as_array(), made[5].npvalue(), made[5].gradient()]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    """Gradients of weights are sums of other parts, the others are equal to the bit."""
    for i, (x, y) in enumerate(zip(a, b)):
        if i in (1, 2):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.fixture
def poisoned(on_device):
    with engine.tuned({"memory.arena.poisoning": True}):
        yield


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_the_same_numbers(poisoned, autobatching: int) -> None:
    engine.stats("execute.rematerialize", reset=True)
    same(found(True, autobatching), found(False, autobatching))
    assert engine.stats("execute.rematerialize")["nodes"]


@pytest.mark.parametrize("autobatching", [0, 1])
def test_less_memory(on_device, autobatching: int) -> None:
    """A chain of layers takes memory of the order of a square root."""
    taken = []
    for checkpoint in (True, False):
        w = dy.ParameterCollection().parameters_from_numpy(np.eye(N) / 2)

        def cell(h: dy.Expression, w: dy.Parameters = w) -> dy.Expression:
            return dy.tanh(w * h)

        with dy.ComputationGraph(autobatching=autobatching):
            h = dy.inputVector(np.ones(N))
            for _ in range(100):
                h = dy.checkpoint(cell, h) if checkpoint else cell(h)
            dy.sum_elems(h).backward()
            taken.append(arena_bytes()["values"])
    assert taken[0] < 0.5 * taken[1]


def test_twice_and_after_a_change(poisoned) -> None:
    """Backward may run twice; after a parameter has changed it cannot."""
    with dy.ComputationGraph(autobatching=0):
        w = dy.ParameterCollection().parameters_from_numpy(np.eye(N) / 2)
        h = dy.inputVector(np.ones(N))
        for _ in range(12):
            h = dy.checkpoint(lambda x: dy.tanh(w * x), h)
        loss = dy.sum_elems(h)
        loss.backward()
        once = w.grad_as_array().copy()
        loss.backward()
        np.testing.assert_allclose(w.grad_as_array(), 2 * once, rtol=1e-6)
        w.set_value(np.eye(N))
        with pytest.raises(RuntimeError, match="changed"):
            loss.backward()


@pytest.mark.parametrize("autobatching", [0, 1])
def test_cells_of_recurrent_networks(poisoned, autobatching: int) -> None:
    """Steps of LSTM cells, which run as one without checkpoints."""
    got = []
    for every in (0, 3):
        set_default_device(1)
        dy.reset_random_seed(3)
        collection = dy.ParameterCollection()
        builder = dy.LSTMBuilder(1, N, N, collection, **({"checkpoint": every} if every else {}))
        with dy.ComputationGraph(autobatching=autobatching):
            xs = [[dy.inputVector(np.sin(np.arange(N) + i * j)) for i in range(8)] for j in range(3)]
            loss = dy.esum([dy.squared_norm(y) for x in xs for y in builder.transduce(x)])
            loss.backward()
            got.append([loss.value(), *(p.grad_as_array() for p in collection.parameters_list())])
    assert got[0][0] == pytest.approx(got[1][0], rel=1e-6)
    all_close(got[0][1:], got[1][1:], rtol=1e-4, atol=1e-5)


def test_factors_are_multiplied_before_they_hold_much_memory(on_device) -> None:
    """In several products, of the same sum."""
    got = []
    for most in (engine.tune("gpu.commands.most_collected", 1), None):
        got.append(found(False, 1))
        if most is not None:
            engine.tune("gpu.commands.most_collected", most)
    same(*got)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("autobatching", [0, 1])
def test_programs(poisoned, program: Callable, autobatching: int) -> None:
    """Nested calls, random ops, batch normalization, results that are asked for outside."""
    set_autobatching(autobatching)
    try:
        expected = gradients(program, plainly)
        engine.stats("execute.rematerialize", reset=True)
        got = gradients(program, dy.checkpoint)
    finally:
        set_autobatching(1)
    assert (engine.stats("execute.rematerialize")["nodes"] > 0) == (program is not images)
    np.testing.assert_array_equal(got[0], expected[0])
    for x, y in zip(got, expected):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(y).max(initial=0))))
