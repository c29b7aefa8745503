"""Graphs on devices drop values and compute them again, with the same bits as if everything was kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_close, all_equal

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu.graphs import device_bytes
from dynet_cy.graph.expressions import arena_bytes, set_autobatching, set_default_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "execute"))

from test_recompute import PROGRAMS, gradients, images

N = 48
MIB = 1 << 20
# The devices of every other layer.
PLACES = [("GPU:0", "GPU:0"), ("CPU", "GPU:0"), ("GPU:0", "CPU"), ("GPU:0", "GPU:1")]

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def usual_settings(device: str) -> Iterator[None]:
    engine.tune("schedule.budget.percent", 107)
    set_default_device(0)
    dy.renew_cg()
    yield
    set_default_device(0)
    set_autobatching(1)
    dy.renew_cg()
    engine.tune("schedule.budget.percent", 107)


@pytest.fixture(params=PLACES, ids="-".join)
def places(request: pytest.FixtureRequest) -> tuple[str, str]:
    missing = set(request.param) - set(dy.available_devices())
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}")
    return request.param


@pytest.fixture
def poisoned() -> Iterator[None]:
    with engine.tuned({"memory.arena.poisoning": True}):
        yield


def plainly(function: Call, *args: Any) -> Any:
    return function(*args)


class Layers:
    """Layers that are on two devices in turn, with dropout, for some examples."""

    def __init__(self, places: tuple[str, str], n: int = N) -> None:
        rng = np.random.default_rng(3)
        self.places = places
        self.collection = dy.ParameterCollection()
        self.W = [self.collection.parameters_from_numpy(rng.uniform(-0.3, 0.3, (n, n)), device=p) for p in places]
        self.b = [self.collection.parameters_from_numpy(rng.uniform(-1, 1, n), device=p) for p in places]
        self.made: list[dy.Expression] = []

    def layer(self, k: int, x: dy.Expression) -> dy.Expression:
        """The copy and the sum before tanh are read by no backward."""
        x = dy.tanh(dy.to_device(x, self.places[k % 2]))
        return dy.dropout(dy.tanh(dy.affine_transform([self.b[k % 2], self.W[k % 2], x])), 0.2)

    def loss(self, call: Call, count: int = 3, depth: int = 6, keeps: bool = False) -> dy.Expression:
        losses = []
        for i in range(count):
            x = dy.inputVector(np.sin(np.arange(N) + i), device=self.places[0])
            for k in range(depth):
                x = call(self.layer, k, x)
                if keeps and k == 2:
                    self.made.append(x)
            losses.append(dy.to_device(dy.squared_norm(x), self.places[0]))
        return dy.esum(losses)

    def gradients(self) -> list[np.ndarray]:
        found = [p.grad_as_array().copy() for p in [*self.W, *self.b]]
        self.collection.zero_gradients()
        return found


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    all_equal(a, b)
    assert any(np.any(x) for x in a)


def close(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    """Gradients of weights are sums of other parts."""
    all_close(a, b, rtol=1e-5, atol=1e-5)


# ---- values that no backward reads -------------------------------------------------


def nodes_of(graph: dy.ComputationGraph, op: str) -> list[dy.Expression]:
    return [graph._node(k) for k, name in enumerate(graph.op_names()) if name == op]


def asked(places: tuple[str, str], autobatching: int) -> list[np.ndarray]:
    """Values by the numbers of their nodes, after backward, and what a new node finds that reads them."""
    dy.reset_random_seed(5)
    layers = Layers(places)
    with dy.ComputationGraph(autobatching=autobatching) as graph:
        layers.loss(plainly).backward()
        values = [x.npvalue() for op in ("affine_transform", "to_device") for x in nodes_of(graph, op)[:4]]
        again = dy.dot_product(nodes_of(graph, "affine_transform")[0], nodes_of(graph, "tanh")[0])
        again.backward()
        return [*values, again.npvalue(), *layers.gradients()]


@pytest.mark.parametrize("autobatching", [0, 1])
def test_dropped_values_by_their_numbers(
    places: tuple[str, str], drops: Callable[[bool], None], autobatching: int
) -> None:
    """They are computed again, copies between devices too."""
    found = []
    for on in (False, True):
        drops(on)
        engine.stats("execute.rematerialize", reset=True)
        found.append(asked(places, autobatching))
        assert (engine.stats("execute.rematerialize")["nodes"] > 0) == on
    same(*found)


def test_a_graph_that_goes_to_a_second_device_later(drops: Callable[[bool], None]) -> None:
    """Values that were dropped on the first one are computed again there."""
    found = []
    for on in (False, True):
        drops(on)
        weights = Layers(("GPU:0", "CPU"))
        set_default_device(1)
        with dy.ComputationGraph(autobatching=1) as graph:
            x = dy.inputVector(np.sin(np.arange(N)))
            for _ in range(4):
                x = dy.tanh(dy.affine_transform([weights.b[0], weights.W[0], x]))
            x.value()
            y = dy.to_device(nodes_of(graph, "affine_transform")[1], "CPU")
            loss = dy.sum_elems(dy.tanh(weights.W[1] * y)) + dy.to_device(dy.sum_elems(x), "CPU")
            loss.backward()
            found.append([loss.npvalue(), *weights.gradients()])
        set_default_device(0)
    same(*found)


# ---- checkpoints --------------------------------------------------------------------


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_checkpoints(places: tuple[str, str], autobatching: int) -> None:
    found = []
    for call in (plainly, dy.checkpoint):
        dy.reset_random_seed(5)
        engine.stats("execute.rematerialize", reset=True)
        layers = Layers(places)
        with dy.ComputationGraph(autobatching=autobatching):
            loss = layers.loss(call, keeps=True)
            loss.backward()
            held = [array for x in layers.made for array in (x.npvalue(), x.gradient())]
            found.append([loss.npvalue(), *held, *layers.gradients()])
            assert (engine.stats("execute.rematerialize")["nodes"] > 0) == (call is dy.checkpoint)
            loss.backward()
            close(layers.gradients(), found[-1][-4:])
            layers.made.clear()
    same(found[0][:-4], found[1][:-4])
    close(found[0][-4:], found[1][-4:])


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("autobatching", [0, 1])
def test_programs(program: Call, autobatching: int) -> None:
    """Nested calls, random ops, batch normalization, results that are asked for outside."""
    set_default_device(1)
    set_autobatching(autobatching)
    expected = gradients(program, plainly)
    engine.stats("execute.rematerialize", reset=True)
    got = gradients(program, dy.checkpoint)
    assert (engine.stats("execute.rematerialize")["nodes"] > 0) == (program is not images)
    np.testing.assert_array_equal(got[0], expected[0])
    for x, y in zip(got, expected):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(y).max(initial=0))))


def random_program(seed: int, places: tuple[str, str], call: Call) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random nodes on random devices in random calls, some of which are asked for; values, then gradients."""
    rng = np.random.default_rng(seed)
    dy.reset_random_seed(seed)
    layers = Layers(places)
    values = []
    with dy.ComputationGraph(autobatching=int(rng.integers(3))):
        pools = [[dy.inputVector(np.sin(np.arange(N) * (k + 1)), device=p) for k in range(2)] for p in places]

        def some(depth: int) -> None:
            for _ in range(int(rng.integers(2, 9))):
                here = int(rng.integers(2))
                kind = int(rng.integers(6 if depth < 3 else 5))
                x, y = (pools[here][-1 - int(rng.integers(2))] for _ in range(2))
                if kind == 5:
                    call(some, depth + 1)
                elif kind == 4:
                    pools[1 - here].append(dy.to_device(x, places[1 - here]))
                else:
                    both = dy.concatenate([x[: N // 2], y[N // 2 :]])
                    made = (
                        dy.tanh(layers.W[here] * x),
                        dy.cmult(x, dy.logistic(y)),
                        dy.dropout(x + y, 0.3),
                        dy.affine_transform([layers.b[here], layers.W[here], both]),
                    )
                    pools[here].append(made[kind])

        for _ in range(int(rng.integers(2, 6))):
            call(some, 0)
            if rng.random() < 0.4:
                values.append(pools[0][-1].npvalue())
        ends = [dy.to_device(dy.squared_norm(dy.tanh(x)), "CPU") for pool in pools for x in pool[-3:]]
        loss = dy.esum(ends)
        loss.backward()
        gradients = layers.gradients()
        kept = pools[1][int(rng.integers(2, len(pools[1]))) if len(pools[1]) > 2 else 0]
        return [*values, loss.npvalue(), kept.npvalue()], gradients


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(places: tuple[str, str], drops: Callable[[bool], None], seed: int) -> None:
    drops(False)
    expected = random_program(seed, places, plainly)
    drops(True)
    for call in (plainly, dy.checkpoint):
        values, gradients = random_program(seed, places, call)
        all_equal(values, expected[0])
        for x, y in zip(gradients, expected[1]):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(y).max())))


# ---- memory ---------------------------------------------------------------------------


def wide(places: tuple[str, str], depth: int, **how: Any) -> tuple[list[np.ndarray], dict[str, int]]:
    """Layers over a minibatch, on two devices in turn: what it finds, the bytes of arenas, those "held" on GPU:0."""
    dy.reset_random_seed(5)
    layers = Layers(places)
    before = arena_bytes()
    with dy.ComputationGraph(autobatching=1, **how) as graph:
        x = dy.inputTensor(np.sin(np.arange(N * 256)).reshape(N, 256), batched=True, device=places[0])
        for k in range(depth):
            x = layers.layer(k // 4, x)
        loss = dy.to_device(dy.sum_batches(dy.squared_norm(x)), "CPU")
        del x
        loss.backward()
        taken = {name: n - before[name] for name, n in arena_bytes().items()}
        taken["held"] = device_bytes(graph, 0)["held"]
        return [loss.npvalue(), *layers.gradients()], taken


@pytest.mark.parametrize("autobatching", [0, 1])
def test_checkpoints_take_less_memory(autobatching: int) -> None:
    """A chain of layers takes memory of the order of a square root."""
    set_default_device(1)
    taken = []
    for call in (dy.checkpoint, plainly):
        w = dy.ParameterCollection().parameters_from_numpy(np.eye(N) / 2)
        with dy.ComputationGraph(autobatching=autobatching):
            h = dy.inputVector(np.ones(N))
            for _ in range(100):
                h = call(lambda h, w=w: dy.tanh(w * h), h)
            dy.sum_elems(h).backward()
            taken.append(arena_bytes()["values"])
    assert taken[0] < 0.5 * taken[1]


def test_factors_are_multiplied_before_they_hold_much_memory() -> None:
    """In several products, of the same sum."""
    got = []
    for most in (1, 1 << 40):
        dy.reset_random_seed(5)
        layers = Layers(("GPU:0", "GPU:0"))
        with engine.tuned({"gpu.commands.most_collected": most}), dy.ComputationGraph(autobatching=1):
            layers.loss(plainly).backward()
            got.append(layers.gradients())
    close(*got)


@pytest.mark.usefixtures("small_graphs_keep_all")
def test_gradients_take_turns(places: tuple[str, str]) -> None:
    _, taken = wide(places, 32)
    assert taken["gradients"] < 0.5 * taken["values"]


@pytest.mark.usefixtures("small_graphs_keep_all")
def test_within_a_limit_of_a_graph(places: tuple[str, str]) -> None:
    expected, taken = wide(places, 48)
    most = (taken["values"] + taken["gradients"] + taken["scratch"]) / MIB / 3
    engine.stats("execute.rematerialize", reset=True)
    got, less = wide(places, 48, mem=most)
    assert engine.stats("execute.rematerialize")["nodes"]
    assert less["values"] + less["gradients"] + less["scratch"] <= most * MIB
    np.testing.assert_array_equal(got[0], expected[0])
    for x, y in zip(got[1:], expected[1:]):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * float(np.abs(y).max()))
