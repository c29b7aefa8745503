"""Random numbers depend on the seed and the order in which nodes are made, not on batching."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.graph.expressions import random_state
from dynet_cy.graph.expressions import reset_random_seed as set_seed

# Ops that draw.
DRAWS = {
    "dropout": lambda x: dy.dropout(x, 0.5),
    "dropout_dim": lambda x: dy.dropout_dim(x, 0, 0.5),
    "dropout_batch": lambda x: dy.dropout_batch(x, 0.5),
    "noise": lambda x: dy.noise(x, 0.3),
    "random_normal": lambda x: dy.random_normal(7) + x,
    "random_uniform": lambda x: dy.random_uniform(7, -1.0, 1.0) + x,
    "random_bernoulli": lambda x: dy.random_bernoulli(7, 0.5) + x,
}
each_op = pytest.mark.parametrize("name", list(DRAWS))


@pytest.fixture(autouse=True)
def seed_is_set_again():
    yield
    set_seed(1)


def draw(name: str, autobatching: int = 0, batch_size: int = 1) -> list[np.ndarray]:
    dy.renew_cg(autobatching=autobatching)
    w = dy.ones((7,), batch_size=batch_size)
    ys = [DRAWS[name](dy.tanh(w * float(k + 1))) for k in range(40)]
    dy.esum(ys).forward()
    return [y.npvalue() for y in ys]


@each_op
def test_same_whatever_the_batching(name: str) -> None:
    drawn = []
    for autobatching in (0, 1, 2):
        set_seed(5)
        drawn.append(draw(name, autobatching, batch_size=3))
    for other in drawn[1:]:
        all_close(other, drawn[0], rtol=1e-6)


@each_op
def test_seed(name: str) -> None:
    set_seed(5)
    first, second = draw(name), draw(name)
    set_seed(5)
    np.testing.assert_array_equal(draw(name), first)
    np.testing.assert_array_equal(draw(name), second)
    set_seed(6)
    assert not np.array_equal(draw(name), first)
    assert not np.array_equal(first, second)
    assert len({x.tobytes() for x in first}) > 1


@each_op
def test_graphs_of_their_own(name: str) -> None:
    def drawn():
        set_seed(5)
        out = []
        for _ in range(2):
            with dy.ComputationGraph():
                out.append(draw(name))
        return out

    dy.renew_cg()
    first = drawn()
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(drawn(), first)


@pytest.fixture
def leave_a_graph():
    """A function that leaves a graph in a cycle of references, which Python does not free by itself before the end."""

    def leave() -> None:
        cycle: list[object] = [dy.ComputationGraph()]
        cycle.append(cycle)

    enabled = gc.isenabled()
    gc.disable()
    yield leave
    if enabled:
        gc.enable()


def test_graphs_that_nothing_refers_to_do_not_count(leave_a_graph: Callable[[], None]) -> None:
    def drawn():
        set_seed(5)
        with dy.ComputationGraph():
            return draw("dropout")

    dy.renew_cg()
    first = drawn()
    leave_a_graph()
    np.testing.assert_array_equal(drawn(), first)
    held = dy.ComputationGraph()
    assert not np.array_equal(drawn(), first)
    del held
    np.testing.assert_array_equal(drawn(), first)


def test_the_random_state_has_graphs_that_something_refers_to(leave_a_graph: Callable[[], None]) -> None:
    dy.renew_cg()
    before = random_state()["renewals"]
    leave_a_graph()
    assert random_state()["renewals"] == before
    held = dy.ComputationGraph()
    assert len(random_state()["renewals"]) == len(before) + 1
    del held


@pytest.mark.parametrize("init", ["glorot", "uniform", "normal", "he", "saxe"])
def test_initial_values(init: str) -> None:
    def made():
        set_seed(9)
        collection = dy.ParameterCollection()
        return [collection.add_parameters((4, 4), init=init).as_array() for _ in range(2)]

    first = made()
    np.testing.assert_array_equal(made(), first)
    assert not np.array_equal(first[0], first[1])
    set_seed(10)
    assert not np.array_equal(dy.ParameterCollection().add_parameters((4, 4), init=init).as_array(), first[0])


def test_seeds_of_any_size() -> None:
    for seed in (0, -1, 2**64 + 3, np.int64(7)):
        set_seed(seed)
    with pytest.raises((TypeError, ValueError)):
        set_seed("x")
