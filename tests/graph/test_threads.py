"""Threads: each with a graph of its own, parameters shared or not."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError

N_THREADS = 4


@pytest.fixture(autouse=True)
def often_switched():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def new_model(seed: int):
    rng = np.random.default_rng(seed)
    collection = dy.ParameterCollection()
    w = collection.parameters_from_numpy(rng.integers(-2, 3, (4, 4)) / 4)
    table = collection.lookup_parameters_from_numpy(rng.integers(-2, 3, (9, 4)) / 4)
    return collection, w, table


def step(w, table, k: int) -> float:
    """One loss and its gradient, whose numbers are exact in float32 however they are added up."""
    xs = [table[(k + i) % 9] for i in range(5)]
    ys = [dy.rectify(w * x) for x in xs]
    loss = dy.dot_product(dy.esum(ys), dy.inputVector([1, 2, 1, 2]))
    loss.backward()
    return loss.value()


def all_threads(work):
    """What work(i) returns in thread number i, all begun together."""
    barrier = threading.Barrier(N_THREADS)

    def begin(i):
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(N_THREADS) as pool:
        return list(pool.map(begin, range(N_THREADS)))


@pytest.mark.parametrize("explicit", [True, False], ids=["with", "implicit"])
@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_shared_parameters(explicit: bool, autobatching: int) -> None:
    def work(model, i):
        values = []
        for k in range(60):
            if explicit:
                with dy.ComputationGraph(autobatching=autobatching):
                    values.append(step(*model[1:], 100 * i + k))
            else:
                dy.renew_cg(autobatching=autobatching)
                values.append(step(*model[1:], 100 * i + k))
        return values

    one, many = new_model(1), new_model(1)
    desired = [work(one, i) for i in range(N_THREADS)]
    assert all_threads(lambda i: work(many, i)) == desired
    np.testing.assert_array_equal(many[1].grad_as_array(), one[1].grad_as_array())
    np.testing.assert_array_equal(many[2].grad_as_array(), one[2].grad_as_array())
    dy.renew_cg()


def test_own_parameters() -> None:
    def work(i):
        model = new_model(i)
        values = []
        for k in range(60):
            dy.renew_cg(autobatching=k % 3)
            values.append(step(*model[1:], k))
        return values, model[1].grad_as_array().tolist()

    desired = [work(i) for i in range(N_THREADS)]
    assert all_threads(work) == desired
    dy.renew_cg()


def test_random_graphs_are_made_and_closed_in_threads() -> None:
    def work(i):
        for k in range(100):
            graphs = [dy.ComputationGraph() for _ in range(3)]
            for graph in graphs:
                with graph:
                    assert (dy.ones(3) * float(i + k)).value() == [i + k] * 3
        return True

    assert all(all_threads(work))


def test_the_implicit_graph_belongs_to_the_thread(graph) -> None:
    x = dy.ones(3)

    def work(_):
        assert dy.cg() is not graph
        with pytest.raises(StaleExpressionError, match="another graph"):
            dy.tanh(x)
        return x.value()

    assert all_threads(work) == [[1, 1, 1]] * N_THREADS


def test_entered_graphs_belong_to_the_thread() -> None:
    def work(i):
        with dy.ComputationGraph() as own:
            for _ in range(100):
                assert dy.cg() is own
                own.renew()
                assert dy.ones(i + 1).value() == ([1] * (i + 1) if i else 1)
        assert dy.cg() is not own
        return True

    assert all(all_threads(work))


def test_a_running_graph_cannot_be_used() -> None:
    """While one thread runs a graph without the lock of Python, every use by others raises."""
    graph = dy.ComputationGraph()
    n = 700
    collection = dy.ParameterCollection()
    p = collection.parameters_from_numpy(np.ones(3))
    with graph:
        x = dy.inputVector([1, 2, 3])
        m = dy.inputTensor(np.full((n, n), 1 / n))
        y = m
        for _ in range(60):
            y = m * y

    uses = {
        "value": lambda: x.value(),
        "dim": lambda: x.dim(),
        "op": lambda: dy.tanh(x),
        "list": lambda: dy.esum([x]),
        "input": lambda: dy.ones(3),
        "parameter": lambda: dy.tanh(p),
        "set": lambda: x.set([1, 1, 1]),
        "renew": lambda: graph.renew(),
        "checkpoint": lambda: graph.checkpoint(),
        "revert": lambda: graph.revert(),
    }
    caught = set()
    others: list[BaseException] = []
    nodes = len(graph)
    running = threading.Thread(target=y.forward)
    running.start()
    with graph:
        # From its first call on, and well before its last, it is certain to be running.
        while running.is_alive() and caught != set(uses) and graph.n_batches() < 50:
            if graph.n_batches() == 0:
                time.sleep(0.001)
                continue
            for name, use in uses.items():
                try:
                    use()
                except RuntimeError as error:
                    if "running in another thread" in str(error):
                        caught.add(name)
                    else:
                        others.append(error)
                except BaseException as error:
                    others.append(error)
    running.join()
    assert not others
    assert caught == set(uses)
    assert len(graph) == nodes
    with graph:
        assert dy.tanh(x).npvalue() == pytest.approx(np.tanh([1, 2, 3]))
        np.testing.assert_allclose(y.npvalue(), 1 / n, rtol=1e-4)


def test_memory_of_threads_that_have_ended_is_given_back() -> None:
    from dynet_cy.memory import arena

    def work():
        dy.tanh(dy.ones(1 << 20)).forward()

    work()
    used = arena.used_bytes()
    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert arena.used_bytes() == used
    dy.renew_cg()
