"""Memory of values that backward uses for gradients, once it has read them; such values are computed again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes

CLASSES, N, STEPS = 3000, 64, 12
CHARGED = 1 << 16  # the step in which arenas count what they hold
Switch = Callable[[bool], None]


class Model:
    """Scores of many classes at each step of a chain."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.collection = dy.ParameterCollection()
        self.w = self.collection.parameters_from_numpy(rng.uniform(-0.2, 0.2, (N, N)))
        self.b = self.collection.parameters_from_numpy(rng.uniform(-1, 1, N))
        self.scores = self.collection.parameters_from_numpy(rng.uniform(-0.2, 0.2, (CLASSES, N)))
        self.bias = self.collection.parameters_from_numpy(rng.uniform(-1, 1, CLASSES))
        self.first = self.collection.parameters_from_numpy(rng.uniform(-1, 1, N))

    def states(self) -> list[dy.Expression]:
        states = [self.first + self.b]
        for _ in range(STEPS):
            states.append(dy.tanh(dy.affine_transform([self.b, self.w, states[-1]])))
        return states[1:]

    def loss(self, kind: str = "pickneglogsoftmax") -> dy.Expression:
        scores = [dy.affine_transform([self.bias, self.scores, h]) for h in self.states()]
        return dy.esum([getattr(dy, kind)(x, 100 + i) for i, x in enumerate(scores)])

    def gradients(self) -> list[np.ndarray]:
        """Those of all parameters, which are set to zero."""
        found = [p.grad_as_array().copy() for p in self.collection.parameters_list()]
        self.collection.zero_gradients()
        return found


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)
    assert any(np.any(x) for x in a)


def node_of(graph: dy.ComputationGraph, op: str, i: int) -> dy.Expression:
    """Expression of the i-th node of an op."""
    return graph._node([k for k, name in enumerate(graph.op_names()) if name == op][i])


# ---- memory -----------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["pickneglogsoftmax", "hinge"])
@pytest.mark.parametrize("autobatching", [0, 1])
def test_gradients_of_scores_lie_over_the_scores(drops: Switch, kind: str, autobatching: int) -> None:
    """Those of all steps are as large as the scores; other gradients are small."""
    found, taken = [], []
    for on in (False, True):
        drops(on)
        model = Model()
        with dy.ComputationGraph(autobatching=autobatching):
            model.loss(kind).backward()
            taken.append(arena_bytes()["gradients"])
            found.append(model.gradients())
    same(*found)
    assert taken[1] <= taken[0] - (0.9 * STEPS * CLASSES * 4 if autobatching else 0)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_gradients_use_the_memory_of_values_that_were_read(drops: Switch, autobatching: int) -> None:
    """Each layer of a pyramid is as large as the two above it, so their values make room for its gradients."""
    found, taken = [], []
    w = dy.ParameterCollection().parameters_from_numpy(np.random.default_rng(1).uniform(-1, 1, (1 << 15, 1)))
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=autobatching):
            layers = [dy.tanh(w * dy.inputVector([0.1 * (k + 1)])) for k in range(8)]
            while len(layers) > 1:
                layers = [dy.tanh(dy.cmult(a, b)) for a, b in zip(layers[::2], layers[1::2])]
            dy.sum_elems(layers[0]).backward()
            taken.append(arena_bytes()["gradients"])
            found.append([w.grad_as_array().copy()])
            w.scale_gradient(0)
    same(*found)
    # With a batch for each layer, the gradients of the first one take most: no values before it are as large.
    saved = 0 if autobatching else 6 << 17  # six of fifteen results of 128 KiB
    assert taken[1] <= taken[0] - saved + CHARGED


# ---- what can be asked for ------------------------------------------------------------


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_values_by_number(drops: Switch, autobatching: int) -> None:
    found = []
    for on in (False, True):
        drops(on)
        engine.stats("execute.recompute", reset=True)
        model = Model()
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            model.loss().backward()
            found.append([node_of(graph, "affine_transform", i).npvalue() for i in (1, 5, STEPS + 2, 2 * STEPS - 1)])
            found[-1] += [node_of(graph, "affine_transform", 2 * STEPS - 2).gradient(), *model.gradients()]
        assert (engine.stats("execute.recompute")["nodes"] > 0) == on
    same(*found)


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_backward_twice(drops: Switch, autobatching: int) -> None:
    """Then the graph donates nothing for some renewals."""
    found: list[list[np.ndarray]] = []
    for on in (False, True):
        drops(on)
        model = Model()
        found.append([])
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            for again in (False, True):
                graph.renew()
                engine.stats("execute.recompute", reset=True)
                loss = model.loss()
                for _ in range(2):
                    loss.backward()
                    found[-1] += model.gradients()
                assert (engine.stats("execute.recompute")["nodes"] > 0) == (on and not again)
    same(*found)


@pytest.mark.parametrize("autobatching", [0, 1])
def test_an_update_before_backward_runs_again(drops: Switch, autobatching: int) -> None:
    """Spent values are gone then; what an expression refers to is there."""
    drops(True)
    model = Model()
    with dy.ComputationGraph(autobatching=autobatching):
        states = model.states()
        held = states[3]
        value = held.npvalue()
        scores = dy.affine_transform([model.bias, model.scores, states[-1]])
        loss = dy.pickneglogsoftmax(scores, 7) + dy.squared_norm(held)
        del states, scores
        loss.backward()
        assert np.any(model.gradients()[0])
        model.w.set_value(np.zeros((N, N)))
        with pytest.raises(RuntimeError, match=r"parameter /_0 have changed.*whose memory backward has used"):
            loss.backward()
        assert not any(np.any(x) for x in model.gradients())
        np.testing.assert_array_equal(held.npvalue(), value)


@pytest.mark.filterwarnings("ignore:.*the graph .* an update:RuntimeWarning")
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_what_another_loss_needs_is_not_spent(drops: Switch, autobatching: int) -> None:
    """Two losses of the same states: an update between their backward passes."""
    found = []
    for on in (False, True):
        drops(on)
        engine.stats("execute.recompute", reset=True)
        model = Model()
        with dy.ComputationGraph(autobatching=autobatching):
            states = model.states()
            first = dy.esum([dy.squared_norm(h) for h in states])
            second = dy.pickneglogsoftmax(dy.affine_transform([model.bias, model.scores, dy.esum(states)]), 3)
            del states
            dy.forward([first, second])
            first.backward()
            found.append(model.gradients())
            model.b.set_value(np.ones(N))
            second.backward()
            found[-1] += model.gradients()
        assert engine.stats("execute.recompute")["nodes"] == 0
    same(*found)


def test_kept_gradients_stay_when_values_are_computed_again(drops: Switch) -> None:
    found = []
    for on in (False, True):
        drops(on)
        model = Model()
        with dy.ComputationGraph(autobatching=1) as graph:
            scores = [dy.affine_transform([model.bias, model.scores, h]) for h in model.states()]
            loss = dy.esum([dy.pickneglogsoftmax(x, 1) for x in scores])
            del scores[1:]
            loss.backward()
            found.append([scores[0].gradient()])
            for i in range(STEPS):
                found[-1].append(node_of(graph, "tanh", i).npvalue())
            found[-1] += [scores[0].gradient(), scores[0].npvalue(), *model.gradients()]
    same(*found)


def test_the_report_has_values_that_were_spent(drops: Switch) -> None:
    found = []
    for on in (False, True):
        drops(on)
        model = Model()
        with dy.ComputationGraph(autobatching=1):
            model.loss().backward()
            rows = [row for row in str(dy.memory_report()).splitlines() if "tanh" in row]
            found.append(rows)
    assert found[0] == found[1] != []
