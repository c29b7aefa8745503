"""Values that no backward reads, on a device: the tests of tests/schedule/test_transient.py with their graphs there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "schedule"))

from kept import Weights, layers, same
from test_transient import *  # noqa: F403 - all run on a device, but for those below

del globals()["test_sums_before_an_activation_take_turns"]  # its values are small
del globals()["test_concatenations_are_copied_from_their_parts"]  # they are kept there
for _name in ("gradients_of_scores_lie_over_the_scores", "gradients_use_the_memory_of_values_that_were_read"):
    del globals()[f"test_{_name}"]
_again = "an_update_before_backward_runs_again"
for _name in ("same_bits_with_spent_values", "backward_twice", _again, f"{_again}_within_a_limit"):
    del globals()[f"test_{_name}"]  # backward takes no memory of values there


@pytest.fixture(autouse=True)
def graphs_on_the_device(on_device):
    """Parameters and graphs of all tests of this file are on it."""


@pytest.mark.parametrize("copies", [False, True])
def test_copies_and_cells(drops, copies: bool) -> None:
    """Copies that run together later, and the steps of cells that run as one, read values that are transient."""
    found = []
    for on in (False, True):
        drops(on)
        dy.reset_random_seed(3)
        collection = dy.ParameterCollection()
        builder = dy.LSTMBuilder(1, 16, 16, collection)
        scores = collection.add_parameters((8, 32))
        with dy.ComputationGraph(autobatching=1):
            sums = []
            for k in range(4):
                xs = [dy.inputVector(np.sin(np.arange(16) + i * k)) for i in range(5 + k)]
                ys = builder.transduce(xs)
                back = builder.transduce(xs[::-1])[::-1] if copies else ys
                both = [dy.concatenate([y, dy.reshape(z + y, (16,))]) for y, z in zip(ys, back)]
                sums += [dy.sum_elems(dy.tanh(scores * dy.concatenate([x]))) for x in both]
            loss = dy.esum(sums)
            del sums, both, xs, ys, back
            loss.backward()
            found.append([loss.npvalue(), *(p.grad_as_array() for p in collection.parameters_list())])
    same(*found)


def test_large_sums_take_turns(drops) -> None:
    taken, found = [], []
    for least in (1 << 60, 1 << 20):
        engine.tune("schedule.transient.least_of_plan", least)
        weights = Weights(256)
        with dy.ComputationGraph(autobatching=0):
            h = dy.inputTensor(np.sin(np.arange(256 * 300)).reshape(256, 300), batched=True)
            for _ in range(12):
                h = dy.tanh(dy.affine_transform([weights.b, weights.w, h]))
            dy.sum_batches(dy.sum_elems(h)).backward()
            taken.append(arena_bytes()["values"])
        found.append(weights.gradients())
    assert taken[1] < 0.7 * taken[0]
    same(*found)


def test_small_values_are_kept(drops) -> None:
    """A bias is copied to them in advance, which saves a launch."""
    launches = []
    for least in (1 << 60, 1 << 10):
        engine.tune("schedule.transient.least_of_plan", least)
        weights = Weights(64)
        with dy.ComputationGraph(autobatching=1):
            loss = layers(weights, 20)
            before = engine.stats("gpu.0")["launches"]
            loss.value()
            launches.append(engine.stats("gpu.0")["launches"] - before)
            assert arena_bytes()["values"]
    assert launches[0] == launches[1]


def test_node_by_node(drops) -> None:
    """The bias of a sum that is transient is not copied in advance, for nodes of a batch that is too long either."""
    found = []
    for on in (False, True):
        drops(on)
        collection = dy.ParameterCollection()
        b, W = (collection.parameters_from_numpy(np.cos(np.arange(n).reshape(4, -1) * n)) for n in (4, 16))
        with engine.tuned({"execute.walk.most_along": 1}), dy.ComputationGraph(autobatching=1):
            sums = []
            for k in range(4):
                x = dy.inputTensor(np.sin(np.arange(4.0) + k).reshape(4, 1))
                for _ in range(3):
                    x = dy.tanh(dy.affine_transform([b, W, x]))
                sums.append(dy.squared_norm(x))
            loss = dy.esum(sums)
            del sums, x
            loss.backward()
            found.append([loss.npvalue(), b.grad_as_array(), W.grad_as_array()])
    same(*found)
