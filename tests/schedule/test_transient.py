"""Values that no backward reads: their memory is reused, and they are computed again if the program asks for them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np
import pytest
from random_graphs import Model, build

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

N = 64


class Weights:
    def __init__(self, n: int = N) -> None:
        rng = np.random.default_rng(3)
        self.collection = dy.ParameterCollection()
        self.w = self.collection.parameters_from_numpy(rng.uniform(-0.2, 0.2, (n, n)))
        self.b = self.collection.parameters_from_numpy(rng.uniform(-1, 1, n))
        self.table = self.collection.lookup_parameters_from_numpy(rng.uniform(-1, 1, (20, n)))

    def gradients(self) -> list[np.ndarray]:
        """Those of all parameters, which are set to zero."""
        found = [p.grad_as_array().copy() for p in (self.w, self.b, self.table)]
        self.collection.zero_gradients()
        return found


@pytest.fixture
def weights() -> Weights:
    return Weights()


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)
    assert any(np.any(x) for x in a)


def layers(weights: Weights, n: int) -> dy.Expression:
    """tanh(W x + b) n times over the words of a table, as three ops that are not made into one."""
    states = [weights.table[i] for i in range(20)]
    for _ in range(n):
        states = [dy.tanh(dy.affine_transform([weights.b, weights.w, h])) for h in states]
    return dy.esum([dy.sum_elems(h) for h in states])


# ---- memory ------------------------------------------------------------------


@pytest.mark.parametrize("autobatching", [0, 1])
def test_sums_before_an_activation_take_turns(drops: Callable[[bool], None], autobatching: int) -> None:
    taken, found = [], []
    for least in (1 << 60, 1 << 20):
        engine.tune("schedule.transient.least_of_plan", least)
        weights = Weights(256)
        with dy.ComputationGraph(autobatching=autobatching):
            layers(weights, 100).backward()
            taken.append(arena_bytes()["values"])
        found.append(weights.gradients())
    assert taken[1] < 0.6 * taken[0]
    same(*found)


def test_large_values_find_room_beside_small_ones(drops: Callable[[bool], None]) -> None:
    """A small value that lies where two large ones would follow each other makes the block no longer."""
    engine.tune("schedule.transient.least_of_plan", 0)
    n = 128
    model = dy.ParameterCollection()
    reader = dy.BiRNNBuilder(2, n, 2 * n, model, dy.VanillaLSTMBuilder)
    table = model.add_lookup_parameters((20, n))
    rng = np.random.default_rng(4)
    sentences = [rng.integers(20, size=25 - k * 20 // 32) for k in range(32)]
    words = sum(map(len, sentences))
    with dy.ComputationGraph(autobatching=1):
        loss = dy.esum([dy.sum_elems(h) for s in sentences for h in reader.transduce([table[int(i)] for i in s])])
        loss.forward()
        taken = arena_bytes()["gradients"]
    projected, concatenated = 2 * 4 * n * words * 4, 2 * n * words * 4
    assert projected <= taken < 1.1 * (projected + concatenated)  # it was 1.3 times that


@pytest.mark.parametrize("poison", [False, True])
def test_small_graphs_keep_all(weights: Weights, drops: Callable[[bool], None], poison: bool) -> None:
    engine.tune("schedule.transient.least_of_plan", 1 << 20)
    engine.tune("memory.arena.poisoning", poison)
    with dy.ComputationGraph(autobatching=1) as graph:
        layers(weights, 2).value()
        engine.stats("execute.recompute", reset=True)
        with contextlib.redirect_stdout(io.StringIO()):
            graph.dump()
        assert engine.stats("execute.recompute")["nodes"] == 0


# ---- what can be asked for -----------------------------------------------------


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_what_an_expression_refers_to_is_kept(
    weights: Weights, drops: Callable[[bool], None], autobatching: int
) -> None:
    """Also after backward and an update of the parameters."""
    drops(True)
    with dy.ComputationGraph(autobatching=autobatching):
        x = weights.table[3] + weights.b
        held, sums = [], []
        for i in range(12):
            x = dy.affine_transform([weights.b, weights.w, x])
            held += [x] if i % 5 == 0 else []
            sums += [np.array(x.npvalue())] if i == 5 else []
            x = dy.tanh(x)
        loss = dy.sum_elems(x)
        loss.backward()
        values = [h.npvalue() for h in held]
        weights.w.set_value(np.zeros((N, N)))
        for h, value in zip(held, values):
            assert np.all(np.isfinite(value))
            np.testing.assert_array_equal(h.npvalue(), value)
        np.testing.assert_array_equal(held[1].npvalue(), sums[0])


def node_of(graph: dy.ComputationGraph, op: str, i: int) -> dy.Expression:
    """Expression of the i-th node of an op."""
    return graph._node([k for k, name in enumerate(graph.op_names()) if name == op][i])


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_by_its_number(weights: Weights, drops: Callable[[bool], None], autobatching: int) -> None:
    """A value that was dropped is computed again, and those that it needs; new nodes may read it."""
    found = []
    for on in (False, True):
        drops(on)
        engine.stats("execute.recompute", reset=True)
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            x = weights.table[3]
            for _ in range(4):
                x = dy.tanh(dy.affine_transform([weights.b, weights.w, x + weights.b]))
            loss = dy.sum_elems(x)
            loss.backward()
            inner = node_of(graph, "affine_transform", 2)
            values = [inner.npvalue(), dy.sum_elems(node_of(graph, "affine_transform", 1) * 2.0).npvalue()]
            assert (engine.stats("execute.recompute")["nodes"] > 0) == on
            again = dy.dot_product(node_of(graph, "add", 1), inner)
            again.backward()
            found.append([*values, again.npvalue(), inner.gradient(), *weights.gradients()])
    same(*found)


@pytest.mark.parametrize("autobatching", [0, 1])
def test_products_with_a_packed_matrix(drops: Callable[[bool], None], autobatching: int) -> None:
    """A product that was the first with its matrix, which is packed later, is computed again without packing."""
    found = []
    for on in (False, True):
        drops(on)
        weights = Weights(256)
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            layers(weights, 3).backward()
            found.append([node_of(graph, "affine_transform", i).npvalue() for i in range(60)])
            found[-1] += weights.gradients()
    same(*found)


def test_a_dump(weights: Weights, drops: Callable[[bool], None]) -> None:
    texts = []
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=1) as graph, contextlib.redirect_stdout(io.StringIO()) as text:
            layers(weights, 3).backward()
            graph.dump()
        texts.append(text.getvalue())
    assert texts[0] == texts[1]


def test_a_graph_that_was_asked_keeps_all(weights: Weights, drops: Callable[[bool], None]) -> None:
    drops(True)
    with dy.ComputationGraph(autobatching=1) as graph:
        for _ in range(3):
            graph.renew()
            engine.stats("execute.recompute", reset=True)
            layers(weights, 3).backward()
            node_of(graph, "affine_transform", 30).npvalue()
        assert engine.stats("execute.recompute")["nodes"] == 0


@pytest.mark.parametrize("autobatching", [0, 1])
def test_after_an_update(weights: Weights, drops: Callable[[bool], None], autobatching: int) -> None:
    drops(True)
    with dy.ComputationGraph(autobatching=autobatching) as graph:
        loss = layers(weights, 3)
        loss.backward()
        weights.w.set_value(np.zeros((N, N)))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="have changed"):
                node_of(graph, "affine_transform", 30).npvalue()


def test_gradients_of_all_nodes(weights: Weights, drops: Callable[[bool], None]) -> None:
    found = []
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=1) as graph:
            layers(weights, 3).backward(full=True)
            found.append([node_of(graph, "affine_transform", i).gradient() for i in range(50)])
    same(*found)


# ---- programs -------------------------------------------------------------------


@pytest.mark.parametrize("structure", range(25))
@pytest.mark.parametrize("look", [0.0, 0.1])
def test_random_programs(structure: int, look: float, drops: Callable[[bool], None]) -> None:
    """The same gradients, to the last bit, in graphs of one pass and of several, with plans that are reused."""
    m = Model()
    for autobatching in (0, 1, 2):
        found: list[list[np.ndarray]] = []
        for on in (False, True):
            drops(on)
            with dy.ComputationGraph(autobatching=autobatching) as graph:
                found.append([])
                for numbers in (5, 6, 7):
                    graph.renew()
                    loss = dy.esum(build(m, structure, numbers, look=look))
                    loss.backward()
                    found[-1] += m.gradients()
                    loss.backward()
                    found[-1] += [loss.npvalue(), *m.gradients()]
        same(*found)


def test_checkpoints_and_reverts(weights: Weights, drops: Callable[[bool], None]) -> None:
    found = []
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=1) as graph:
            first = layers(weights, 2)
            first.value()
            found.append([])
            for i in range(3):
                dy.cg_checkpoint()
                loss = first * layers(weights, 2)
                if i:  # it lies behind the checkpoint
                    loss += dy.sum_elems(node_of(graph, "affine_transform", i))
                loss.backward()
                found[-1] += [loss.npvalue(), *weights.gradients()]
                dy.cg_revert()
            first.backward()
            found[-1] += weights.gradients()
    same(*found)


def test_inputs_that_change(weights: Weights, drops: Callable[[bool], None]) -> None:
    found = []
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=1):
            x = dy.vecInput(N)
            x.set(np.linspace(-1, 1, N))
            y = dy.tanh(dy.affine_transform([weights.b, weights.w, x + weights.b]))
            loss = dy.sum_elems(dy.tanh(weights.w * y + weights.b))
            found.append([loss.npvalue()])
            x.set(np.linspace(1, 2, N))
            found[-1].append(np.array(loss.value(recalculate=True)))
            loss.backward()
            found[-1] += weights.gradients()
    same(*found)


def test_second_derivatives(weights: Weights, drops: Callable[[bool], None]) -> None:
    """Their nodes read values of the graph by number."""
    found = []
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=1):
            x = weights.table[3]
            y = dy.tanh(dy.affine_transform([weights.b, weights.w, x + weights.b]))
            loss = dy.sum_elems(dy.square(y))
            loss.value()
            del y
            penalty = dy.squared_norm(dy.gradients(loss, [x])[0])
            penalty.backward()
            found.append([penalty.npvalue(), *weights.gradients()])
    same(*found)


def test_an_error_in_the_middle_of_a_pass(weights: Weights, drops: Callable[[bool], None]) -> None:
    """What ran before it, and was to be read after it, is computed again."""
    drops(True)
    with dy.ComputationGraph(autobatching=0):
        x = dy.affine_transform([weights.b, weights.w, weights.table[3]])
        y = dy.tanh(x)
        del x
        before = arena.limit()
        z = dy.tanh(dy.affine_transform([weights.b, weights.w, y]))
        loss = dy.sum_elems(z)
        try:
            arena.set_limit(1)
            with pytest.raises(MemoryError):
                dy.sum_elems(dy.concatenate([z] * 100000)).value()
        finally:
            arena.set_limit(before)
        loss.backward()
        assert np.all(np.isfinite(weights.gradients()[0]))


def test_anomalies_are_looked_for_in_all_values(weights: Weights, drops: Callable[[bool], None]) -> None:
    drops(True)
    with dy.ComputationGraph(autobatching=1), dy.detect_anomaly():
        layers(weights, 2).backward()
        x = dy.log(weights.table[3] * 0.0 - 1.0)
        with pytest.raises(dy.AnomalyError):
            dy.sum_elems(dy.scale_gradient(x, 2.0)).value()


# ---- copies of arguments, and concatenations of which they are made -----------------------


class Pairs:
    """Scores of pairs of states, which are read twice, so that they are copied; parts of some are a parameter."""

    def __init__(self, n: int = N, pairs: int = 60) -> None:
        rng = np.random.default_rng(4)
        self.of_states = Weights(n)
        self.collection = self.of_states.collection
        self.none = self.collection.parameters_from_numpy(rng.uniform(-1, 1, n))
        self.w = self.collection.parameters_from_numpy(rng.uniform(-0.2, 0.2, (n, 2 * n)))
        self.pairs = [tuple(map(int, rng.integers(-3, 20, 2))) for _ in range(pairs)]

    def loss(self) -> dy.Expression:
        weights = self.of_states
        states = [dy.tanh(dy.affine_transform([weights.b, weights.w, weights.table[i]])) for i in range(20)]
        seen = [dy.concatenate([self.none if i < 0 else states[i] for i in pair]) for pair in self.pairs]
        return dy.esum([dy.sum_elems(dy.tanh(dy.affine_transform([weights.b, self.w, x]))) for x in seen + seen])

    def gradients(self) -> list[np.ndarray]:
        found = [p.grad_as_array().copy() for p in (self.none, self.w)] + self.of_states.gradients()
        self.collection.zero_gradients()
        return found


@pytest.mark.parametrize("autobatching", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("usual_threads")
def test_concatenations_are_copied_from_their_parts(
    drops: Callable[[bool], None], autobatching: int, threads: int
) -> None:
    taken, found = [], []
    config.set(threads=threads)
    for on in (False, True):
        drops(on)
        pairs = Pairs(256, 500)
        with dy.ComputationGraph(autobatching=autobatching):
            loss = pairs.loss()
            loss.forward()
            taken.append(arena_bytes()["values"])
            numbers = []
            for _ in range(2):
                loss.backward()
                numbers += pairs.gradients()
        found.append(numbers)
    assert taken[1] < 0.6 * taken[0]
    same(*found)


def test_parameters_that_are_parts_may_change_before_backward(drops: Callable[[bool], None]) -> None:
    found = []
    for on in (False, True):
        drops(on)
        pairs = Pairs()
        with dy.ComputationGraph(autobatching=1):
            loss = pairs.loss()
            loss.forward()
            pairs.none.set_value(np.full(N, 7.0))
            loss.backward()
        found.append(pairs.gradients())
    same(*found)


@pytest.mark.parametrize("autobatching", [1, 2])
def test_a_concatenation_that_was_dropped(drops: Callable[[bool], None], autobatching: int) -> None:
    """By its number, as a derivative, and joined with another pass."""
    found = []
    for on in (False, True):
        drops(on)
        pairs = Pairs()
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            one, two = pairs.loss(), None
            one.forward()
            two = pairs.loss()
            total = one + two
            total.backward()
            numbers = pairs.gradients()
            concatenated = node_of(graph, "concatenate", 5)
            numbers += [concatenated.npvalue(), concatenated.gradient()]
            dy.sum_elems(dy.square(node_of(graph, "concatenate", 7))).backward()
            found.append([*numbers, *pairs.gradients()])
    same(*found)
