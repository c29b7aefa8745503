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


# ---- what is shared without a lock of Python's: each of these is a race where there is no GIL -----------------------


def until_done(*works) -> list:
    """Run some works side by side until each has ended; what they return, or the first error."""
    barrier = threading.Barrier(len(works))

    def begin(work):
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(begin, work) for work in works]]


def test_a_parameter_is_in_the_graphs_of_all_threads_at_once() -> None:
    """Its number differs from graph to graph, so no thread may read the number that another one has found."""
    collection = dy.ParameterCollection()
    ws = [collection.parameters_from_numpy(np.full(3, float(i))) for i in range(4)]

    def work(i):
        for k in range(300):
            dy.renew_cg()
            first = dy.inputVector([1] * (1 + (i + k) % 5))  # so that numbers differ
            assert len(first) == 1 + (i + k) % 5
            for j in range(4):
                w = ws[(i + j) % 4]
                assert (w + 1).value() == [(i + j) % 4 + 1] * 3
                assert w.value() == [(i + j) % 4] * 3
                assert dy.esum([w] * 10).value() == [10 * ((i + j) % 4)] * 3
                assert w.dim() == ((3,), 1)
        return True

    assert all(all_threads(work))
    dy.renew_cg()


def test_expressions_of_graphs_that_only_go_forward_die_in_other_threads() -> None:
    """The last reference may go in any thread, while the graph's own adds nodes, computes and renumbers them."""
    from queue import SimpleQueue

    dropped: SimpleQueue = SimpleQueue()
    w = dy.ParameterCollection().parameters_from_numpy(np.eye(4))

    def drop():
        while dropped.get() is not None:
            pass
        return True

    def make():
        for _ in range(3):
            dy.renew_cg(forward_only=True)
            x = dy.inputVector([1, 2, 3, 4])
            for k in range(3000):
                x = w * x
                dropped.put(x)
                dropped.put(w + x)
                dropped.put(dy.inputVector([k] * 4))
                if k % 50 == 0:
                    assert x.value() == [1, 2, 3, 4]
            assert x.value() == [1, 2, 3, 4]
        dropped.put(None)
        return True

    assert until_done(drop, make) == [True, True]
    dy.renew_cg()


def test_memory_is_given_back_while_other_threads_add_nodes() -> None:
    from dynet_cy.memory import arena

    ended = threading.Event()

    def give_back():
        while not ended.is_set():
            arena.give_back()

    def work(i):
        for k in range(60):
            dy.renew_cg(forward_only=bool((i + k) % 2))
            numbers = np.full(300 * (1 + k % 7), i + k, np.float32)
            xs = [dy.inputTensor(numbers) + 1 for _ in range(60)]
            assert dy.sum_elems(dy.esum(xs)).value() == 60 * len(numbers) * (i + k + 1)
        return True

    giving = threading.Thread(target=give_back)
    giving.start()
    try:
        assert all(all_threads(work))
    finally:
        ended.set()
        giving.join()
    dy.renew_cg()


def test_states_are_taken_and_settings_changed_while_other_threads_work() -> None:
    """Random streams of all graphs are read, and restarted, at any time; values are those of some setting."""
    from dynet_cy.graph.random_state import random_state

    ended = threading.Event()
    collection = dy.ParameterCollection()
    table = collection.lookup_parameters_from_numpy(np.ones((50, 8)))
    before = dy.config.get()["autobatch"]

    def change():
        k = 0
        while not ended.is_set():
            k += 1
            dy.reset_random_seed(k)
            assert random_state()["seed"] == k
            dy.config.set(autobatch=k % 3)
            np.testing.assert_array_equal(table.as_array(), 1)
            [p.name() for p in collection.parameters_list()]

    def work(i):
        for _ in range(60):
            dy.renew_cg()
            xs = [dy.dropout(table[(i + j) % 50], 0.5) for j in range(10)]
            for x in xs:  # one by one: what is asked for next is learned
                assert set(x.value()) <= {0.0, 2.0}
            graphs = [dy.ComputationGraph() for _ in range(3)]
            assert len({id(graph) for graph in graphs}) == 3
        return True

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert all(all_threads(work))
    finally:
        ended.set()
        changing.join()
        dy.config.set(autobatch=before)
    dy.renew_cg()


def test_late_rows_are_read_by_all_threads() -> None:
    """Reading a table whole stores the updates that its rows are late by: once, whoever reads."""
    collection = dy.ParameterCollection()
    table = collection.lookup_parameters_from_numpy(np.ones((400, 64)))
    trainer = dy.AdamTrainer(collection)
    for k in range(5):
        dy.renew_cg()
        dy.squared_norm(table[k]).backward()
        trainer.update()
        one_by_one = [table.row_as_array(r) for r in range(400)]

        def work(_):
            dy.renew_cg()
            return dy.transpose(dy.reshape(table, (64, 400))).npvalue()

        for found in all_threads(work):
            np.testing.assert_array_equal(found, np.stack(one_by_one))
    dy.renew_cg()


def test_ops_are_defined_in_threads() -> None:
    def work(i):
        ops = [dy.custom_op(f"threads_{i}_{k}", lambda x, k=k: x + k) for k in range(5)]
        dy.renew_cg()
        return [op(dy.inputVector([i, i])).value() for op in ops]

    assert all_threads(work) == [[[i + k] * 2 for k in range(5)] for i in range(N_THREADS)]
    dy.renew_cg()


def test_two_threads_that_add_to_one_graph() -> None:
    """One of them gets an error where they collide; a node is never made of two."""
    graph = dy.ComputationGraph()
    errors: list[RuntimeError] = []

    def work(i):
        made = []
        with graph:
            for k in range(300):
                try:
                    made.append((dy.inputVector([i, k]) + 1, [i + 1, k + 1]))
                except RuntimeError as error:
                    errors.append(error)
        return made

    made = [pair for pairs in until_done(lambda: work(1), lambda: work(2)) for pair in pairs]
    assert len(made) + len(errors) == 600
    assert all("another thread" in str(error) for error in errors)
    with graph:
        assert [y.value() for y, _ in made] == [right for _, right in made]


def step_in_new_graph(w, table, k: int) -> float:
    dy.renew_cg()
    return step(w, table, k)


def test_everything_at_once(tmp_path) -> None:
    """Threads train on shared parameters while others save, change settings, give back memory and drop expressions."""
    from queue import SimpleQueue

    from dynet_cy.memory import arena

    collection, w, table = new_model(1)
    trainer = dy.SimpleSGDTrainer(collection, 0.0)
    trainer.set_clip_threshold(0)
    alone, own_w, own_table = new_model(1)
    own_trainer = dy.SimpleSGDTrainer(alone, 0.0)
    own_trainer.set_clip_threshold(0)
    before = dy.config.get()["autobatch"]
    dropped: SimpleQueue = SimpleQueue()
    ended = threading.Event()

    def save():
        while not ended.is_set():
            dy.save(str(tmp_path / "model"), [w, table])
            restored = dy.load(str(tmp_path / "model"), dy.ParameterCollection())
            assert [x.shape() for x in restored] == [(4, 4), (9, 4)]

    def change():
        k = 0
        while not ended.is_set():
            k += 1
            dy.config.set(autobatch=k % 3)
            dy.reset_random_seed(k)
            arena.give_back()

    def drop():
        while dropped.get() is not None:
            pass

    def work(i):
        found = []
        for k in range(20):
            found.append(step_in_new_graph(w, table, 100 * i + k))
            dy.renew_cg(forward_only=True)
            x = dy.inputVector([1, 2, 3, 4])
            for _ in range(30):
                x = dy.rectify(w * x) * 0.25
                dropped.put(x)
            assert np.isfinite(x.npvalue()).all()
        return found

    with ThreadPoolExecutor(3) as beside:
        others = [beside.submit(other) for other in (save, change, drop)]
        try:
            for _ in range(3):
                found = all_threads(work)
                desired = [
                    [step_in_new_graph(own_w, own_table, 100 * i + k) for k in range(20)] for i in range(N_THREADS)
                ]
                assert found == desired
                np.testing.assert_array_equal(w.grad_as_array(), own_w.grad_as_array())
                np.testing.assert_array_equal(table.grad_as_array(), own_table.grad_as_array())
                trainer.update()
                own_trainer.update()
        finally:
            ended.set()
            dropped.put(None)
            dy.config.set(autobatch=before)
        for other in others:
            other.result()
    dy.renew_cg()
