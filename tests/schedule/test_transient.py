"""Values that no backward reads, or that backward has read: their memory is reused, and they are computed again if the
program asks for them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
from kept import N, Script, Stored, Weights, layers, node_of, same, with_and_without
from random_graphs import Model, build

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

CLASSES, STEPS = 3000, 12
CHARGED = 1 << 16  # the step in which arenas count what they hold
Switch = Callable[[bool], None]
Found = Iterator[np.ndarray]


class Scores(Stored):
    """Scores of many classes at each step of a chain."""

    def __init__(self) -> None:
        super().__init__(5)
        self.w, self.b = self.parameter(0.2, N, N), self.parameter(1, N)
        self.scores, self.bias = self.parameter(0.2, CLASSES, N), self.parameter(1, CLASSES)
        self.first = self.parameter(1, N)

    def states(self) -> list[dy.Expression]:
        states = [self.first + self.b]
        for _ in range(STEPS):
            states.append(dy.tanh(dy.affine_transform([self.b, self.w, states[-1]])))
        return states[1:]

    def of(self, h: dy.Expression) -> dy.Expression:
        return dy.affine_transform([self.bias, self.scores, h])

    def loss(self, kind: str = "pickneglogsoftmax") -> dy.Expression:
        return dy.esum([getattr(dy, kind)(self.of(h), 100 + i) for i, h in enumerate(self.states())])


class Pairs(Weights):
    """Scores of pairs of states, which are read twice, so that they are copied; parts of some are a parameter."""

    def __init__(self, n: int = N, pairs: int = 60) -> None:
        super().__init__(n)
        self.none, self.v = self.parameter(1, n), self.parameter(0.2, n, 2 * n)
        self.pairs = [tuple(map(int, self.rng.integers(-3, 20, 2))) for _ in range(pairs)]

    def loss(self) -> dy.Expression:
        states = [dy.tanh(self.sum(self.table[i])) for i in range(20)]
        seen = [dy.concatenate([self.none if i < 0 else states[i] for i in pair]) for pair in self.pairs]
        return dy.esum([dy.sum_elems(dy.tanh(dy.affine_transform([self.b, self.v, x]))) for x in seen + seen])


# ---- memory ------------------------------------------------------------------


@pytest.mark.parametrize("autobatching", [0, 1])
def test_sums_before_an_activation_take_turns(drops: Switch, autobatching: int) -> None:
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


def test_large_values_find_room_beside_small_ones(drops: Switch) -> None:
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
def test_small_graphs_keep_all(drops: Switch, poison: bool) -> None:
    engine.tune("schedule.transient.least_of_plan", 1 << 20)
    engine.tune("memory.arena.poisoning", poison)
    with dy.ComputationGraph(autobatching=1) as graph:
        layers(Weights(), 2).value()
        engine.stats("execute.rematerialize", reset=True)
        with contextlib.redirect_stdout(io.StringIO()):
            graph.dump()
        assert engine.stats("execute.rematerialize")["nodes"] == 0


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["pickneglogsoftmax", "hinge"])
@pytest.mark.parametrize("autobatching", [0, 1])
def test_gradients_of_scores_lie_over_the_scores(drops: Switch, kind: str, autobatching: int) -> None:
    """Those of all steps are as large as the scores; other gradients are small."""

    def script(graph: dy.ComputationGraph, model: Scores) -> Found:
        model.loss(kind).backward()
        yield from model.gradients()

    (whole, less), _ = with_and_without(drops, autobatching, script, Scores)
    assert less["gradients"] <= whole["gradients"] - (0.9 * STEPS * CLASSES * 4 if autobatching else 0)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_gradients_use_the_memory_of_values_that_were_read(drops: Switch, autobatching: int) -> None:
    """Each layer of a pyramid is as large as the two above it, so their values make room for its gradients."""
    stored = Stored(1)
    w = stored.parameter(1, 1 << 15, 1)

    def script(graph: dy.ComputationGraph, model: Stored) -> Found:
        layers = [dy.tanh(w * dy.inputVector([0.1 * (k + 1)])) for k in range(8)]
        while len(layers) > 1:
            layers = [dy.tanh(dy.cmult(a, b)) for a, b in zip(layers[::2], layers[1::2])]
        dy.sum_elems(layers[0]).backward()
        yield from model.gradients()

    (whole, less), _ = with_and_without(drops, autobatching, script, lambda: stored)
    # With a batch for each layer, the gradients of the first one take most: no values before it are as large.
    saved = 0 if autobatching else 6 << 17  # six of fifteen results of 128 KiB
    assert less["gradients"] <= whole["gradients"] - saved + CHARGED


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_nodes_that_are_called_one_by_one_read_the_same_values(drops: Switch, autobatching: int) -> None:
    """Scores of several states over one memory, in one batch for two lengths: no gradients may lie over a memory that
    the next node reads."""

    def script(graph: dy.ComputationGraph, model: Weights) -> Found:
        losses = []
        for n in (3, 4):
            memory = dy.concatenate_cols([dy.tanh(model.sum(model.table[i])) for i in range(n)])
            h = model.table[n]
            for _ in range(3):
                h = dy.tanh(model.sum(h))
                losses.append(dy.squared_norm(dy.transpose(h) * memory))
            del memory
        dy.esum(losses).backward()
        yield from model.gradients()

    with_and_without(drops, autobatching, script, Weights)


@pytest.mark.parametrize("autobatching", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("usual_threads")
def test_concatenations_are_copied_from_their_parts(drops: Switch, autobatching: int, threads: int) -> None:
    config.set(threads=threads)
    taken = []

    def script(graph: dy.ComputationGraph, model: Pairs) -> Found:
        loss = model.loss()
        loss.forward()
        taken.append(arena_bytes()["values"])
        for _ in range(2):
            loss.backward()
            yield from model.gradients()

    with_and_without(drops, autobatching, script, lambda: Pairs(256, 500))
    assert taken[1] < 0.6 * taken[0]


# ---- what can be asked for: the same bits as if all was kept ------------------------------------

SCRIPTS: dict[Script, tuple[Callable[[], Any], bool | None]] = {}


def script(model: Callable[[], Any] = Weights, again: bool | None = None) -> Callable[[Script], Script]:
    """A script for this model, and whether it computes something again."""

    def add(function: Script) -> Script:
        SCRIPTS[function] = model, again
        return function

    return add


@script(again=True)
def values_by_number(graph: dy.ComputationGraph, weights: Weights) -> Found:
    """A value that was dropped is computed again, and those that it needs; new nodes may read it."""
    x = weights.table[3]
    for _ in range(4):
        x = dy.tanh(weights.sum(x + weights.b))
    dy.sum_elems(x).backward()
    inner = node_of(graph, "affine_transform", 2)
    yield inner.npvalue()
    yield dy.sum_elems(node_of(graph, "affine_transform", 1) * 2.0).npvalue()
    again = dy.dot_product(node_of(graph, "add", 1), inner)
    again.backward()
    yield from (again.npvalue(), inner.gradient(), *weights.gradients())


@script(lambda: Weights(256))
def products_with_a_packed_matrix(graph: dy.ComputationGraph, weights: Weights) -> Found:
    """A product that was the first with its matrix, which is packed later, is computed again without packing."""
    layers(weights, 3).backward()
    yield from (node_of(graph, "affine_transform", i).npvalue() for i in range(60))
    yield from weights.gradients()


@script()
def gradients_of_all_nodes(graph: dy.ComputationGraph, weights: Weights) -> Found:
    layers(weights, 3).backward(full=True)
    yield from (node_of(graph, "affine_transform", i).gradient() for i in range(50))


@script()
def checkpoints_and_reverts(graph: dy.ComputationGraph, weights: Weights) -> Found:
    first = layers(weights, 2)
    first.value()
    for i in range(3):
        dy.cg_checkpoint()
        loss = first * layers(weights, 2)
        if i:  # it lies behind the checkpoint
            loss += dy.sum_elems(node_of(graph, "affine_transform", i))
        loss.backward()
        yield from (loss.npvalue(), *weights.gradients())
        dy.cg_revert()
    first.backward()
    yield from weights.gradients()


@script()
def inputs_that_change(graph: dy.ComputationGraph, weights: Weights) -> Found:
    x = dy.vecInput(N)
    x.set(np.linspace(-1, 1, N))
    y = dy.tanh(weights.sum(x + weights.b))
    loss = dy.sum_elems(dy.tanh(weights.w * y + weights.b))
    yield loss.npvalue()
    x.set(np.linspace(1, 2, N))
    yield np.array(loss.value(recalculate=True))
    loss.backward()
    yield from weights.gradients()


@script()
def second_derivatives(graph: dy.ComputationGraph, weights: Weights) -> Found:
    """Their nodes read values of the graph by number."""
    x = weights.table[3]
    y = dy.tanh(weights.sum(x + weights.b))
    loss = dy.sum_elems(dy.square(y))
    loss.value()
    del y
    penalty = dy.squared_norm(dy.gradients(loss, [x])[0])
    penalty.backward()
    yield from (penalty.npvalue(), *weights.gradients())


@script(Pairs)
def parameters_that_are_parts_may_change_before_backward(graph: dy.ComputationGraph, pairs: Pairs) -> Found:
    loss = pairs.loss()
    loss.forward()
    pairs.none.set_value(np.full(N, 7.0))
    loss.backward()
    yield from pairs.gradients()


@script(Pairs)
def a_concatenation_that_was_dropped(graph: dy.ComputationGraph, pairs: Pairs) -> Found:
    """By its number, as a derivative, and joined with another pass."""
    one = pairs.loss()
    one.forward()
    (one + pairs.loss()).backward()
    yield from pairs.gradients()
    concatenated = node_of(graph, "concatenate", 5)
    yield from (concatenated.npvalue(), concatenated.gradient())
    dy.sum_elems(dy.square(node_of(graph, "concatenate", 7))).backward()
    yield from pairs.gradients()


@script(Scores, again=True)
def values_that_were_spent(graph: dy.ComputationGraph, model: Scores) -> Found:
    model.loss().backward()
    yield from (node_of(graph, "affine_transform", i).npvalue() for i in (1, 5, STEPS + 2, 2 * STEPS - 1))
    yield from (node_of(graph, "affine_transform", 2 * STEPS - 2).gradient(), *model.gradients())


@script(Scores, again=False)
def what_another_loss_needs_is_not_spent(graph: dy.ComputationGraph, model: Scores) -> Found:
    """Two losses of the same states: an update between their backward passes."""
    states = model.states()
    first = dy.esum([dy.squared_norm(h) for h in states])
    second = dy.pickneglogsoftmax(model.of(dy.esum(states)), 3)
    del states
    dy.forward([first, second])
    first.backward()
    yield from model.gradients()
    model.b.set_value(np.ones(N))
    second.backward()
    yield from model.gradients()


@script(Scores)
def kept_gradients_stay_when_values_are_computed_again(graph: dy.ComputationGraph, model: Scores) -> Found:
    scores = [model.of(h) for h in model.states()]
    loss = dy.esum([dy.pickneglogsoftmax(x, 1) for x in scores])
    del scores[1:]
    loss.backward()
    yield scores[0].gradient()
    yield from (node_of(graph, "tanh", i).npvalue() for i in range(STEPS))
    yield from (scores[0].gradient(), scores[0].npvalue(), *model.gradients())


@pytest.mark.parametrize("autobatching", [0, 1, 2])
@pytest.mark.parametrize("script", [s for s in SCRIPTS if SCRIPTS[s][0] is not Scores], ids=lambda s: s.__name__)
def test_same_bits(script: Script, autobatching: int, drops: Switch) -> None:
    check(script, autobatching, drops)


@pytest.mark.filterwarnings("ignore:.*the graph .* an update:RuntimeWarning")
@pytest.mark.parametrize("autobatching", [0, 1, 2])
@pytest.mark.parametrize("script", [s for s in SCRIPTS if SCRIPTS[s][0] is Scores], ids=lambda s: s.__name__)
def test_same_bits_with_spent_values(script: Script, autobatching: int, drops: Switch) -> None:
    check(script, autobatching, drops)


def check(script: Script, autobatching: int, drops: Switch) -> None:
    model, expected = SCRIPTS[script]
    _, again = with_and_without(drops, autobatching, script, model)
    if expected is not None:
        assert [n > 0 for n in again] == [False, expected]


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_backward_twice(drops: Switch, autobatching: int) -> None:
    """Then the graph donates nothing for some renewals."""
    for renewed in (False, True):

        def script(graph: dy.ComputationGraph, model: Scores, renewed: bool = renewed) -> Found:
            for _ in range(1 + renewed):
                graph.renew()
                engine.stats("execute.rematerialize", reset=True)
                loss = model.loss()
                for _ in range(2):
                    loss.backward()
                    yield from model.gradients()

        _, again = with_and_without(drops, autobatching, script, Scores)
        assert [n > 0 for n in again] == [False, not renewed]


@pytest.mark.parametrize("structure", range(25))
@pytest.mark.parametrize("look", [0.0, 0.1])
def test_random_programs(structure: int, look: float, drops: Switch) -> None:
    """The same gradients, to the last bit, in graphs of one pass and of several, with plans that are reused."""
    m = Model()

    def script(graph: dy.ComputationGraph, model: Model) -> Found:
        for numbers in (5, 6, 7):
            graph.renew()
            loss = dy.esum(build(m, structure, numbers, look=look))
            for _ in range(2):
                loss.backward()
                yield from m.gradients()
            yield loss.npvalue()

    for autobatching in (0, 1, 2):
        with_and_without(drops, autobatching, script, lambda: m)


@pytest.mark.parametrize("show", ["dump", "report"])
def test_what_is_shown(drops: Switch, show: str) -> None:
    """Dumps of graphs and reports of memory have values that were dropped or spent."""
    texts = []
    for on in (False, True):
        drops(on)
        with dy.ComputationGraph(autobatching=1) as graph, contextlib.redirect_stdout(io.StringIO()) as text:
            if show == "dump":
                layers(Weights(), 3).backward()
                graph.dump()
            else:
                Scores().loss().backward()
                print(*[row for row in str(dy.memory_report()).splitlines() if "tanh" in row], sep="\n")
        texts.append(text.getvalue())
    assert texts[0] == texts[1] != ""


def test_a_graph_that_was_asked_keeps_all(drops: Switch) -> None:
    drops(True)
    weights = Weights()
    with dy.ComputationGraph(autobatching=1) as graph:
        for _ in range(3):
            graph.renew()
            engine.stats("execute.rematerialize", reset=True)
            layers(weights, 3).backward()
            node_of(graph, "affine_transform", 30).npvalue()
        assert engine.stats("execute.rematerialize")["nodes"] == 0


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("autobatching", [0, 1])
def test_after_an_update(drops: Switch, autobatching: int) -> None:
    drops(True)
    weights = Weights()
    with dy.ComputationGraph(autobatching=autobatching) as graph:
        loss = layers(weights, 3)
        loss.backward()
        weights.w.set_value(np.zeros((N, N)))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="have changed"):
                node_of(graph, "affine_transform", 30).npvalue()


@pytest.mark.parametrize("autobatching", [0, 1])
def test_an_update_before_backward_runs_again(drops: Switch, autobatching: int) -> None:
    """Spent values are gone then; what an expression refers to is there."""
    drops(True)
    model = Scores()
    with dy.ComputationGraph(autobatching=autobatching):
        states = model.states()
        held = states[3]
        value = held.npvalue()
        loss = dy.pickneglogsoftmax(model.of(states[-1]), 7) + dy.squared_norm(held)
        del states
        loss.backward()
        assert np.any(model.gradients()[0])
        model.w.set_value(np.zeros((N, N)))
        with pytest.raises(RuntimeError, match=r"parameter /_0 have changed.*whose memory backward has used"):
            loss.backward()
        assert not any(np.any(x) for x in model.gradients())
        np.testing.assert_array_equal(held.npvalue(), value)


@pytest.mark.filterwarnings("ignore:.*the graph .* an update:RuntimeWarning")
@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_an_update_before_backward_runs_again_within_a_limit(drops: Switch, limit: int | None) -> None:
    """A plan whose values all fit is planned by another function, and donates values all the same."""
    drops(True)
    w = dy.ParameterCollection().add_parameters((N, N))
    before = arena.limit()
    if limit is not None:
        arena.set_limit(limit)
    try:
        with dy.ComputationGraph():
            loss = dy.squared_norm(reduce(lambda x, _: dy.tanh(x), range(6), w))
            loss.backward()
            w.set_value(np.zeros((N, N)))
            with pytest.raises(RuntimeError, match="have changed"):
                loss.backward()
    finally:
        arena.set_limit(before)


def test_an_error_in_the_middle_of_a_pass(drops: Switch) -> None:
    """What ran before it, and was to be read after it, is computed again."""
    drops(True)
    weights = Weights()
    with dy.ComputationGraph(autobatching=0):
        y = dy.tanh(weights.sum(weights.table[3]))
        before = arena.limit()
        z = dy.tanh(weights.sum(y))
        loss = dy.sum_elems(z)
        try:
            arena.set_limit(1)
            with pytest.raises(MemoryError):
                dy.sum_elems(dy.concatenate([z] * 100000)).value()
        finally:
            arena.set_limit(before)
        loss.backward()
        assert np.all(np.isfinite(weights.gradients()[0]))


def test_anomalies_are_looked_for_in_all_values(drops: Switch) -> None:
    drops(True)
    weights = Weights()
    with dy.ComputationGraph(autobatching=1), dy.detect_anomaly():
        layers(weights, 2).backward()
        x = dy.log(weights.table[3] * 0.0 - 1.0)
        with pytest.raises(dy.AnomalyError):
            dy.sum_elems(dy.scale_gradient(x, 2.0)).value()
