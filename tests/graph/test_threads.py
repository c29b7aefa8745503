"""Threads: each with a graph of its own, parameters shared or not."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph import StaleExpressionError

N_THREADS = 4
SETTINGS = ("autobatch", "threads", "flush_denormals", "check", "batch_requests", "precision")


@pytest.fixture(autouse=True)
def often_switched():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def has_gil() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


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
    """The results of work(i) in thread number i; all threads start together."""
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
        for k in range(20):
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
        for k in range(30):
            dy.renew_cg(autobatching=k % 3)
            values.append(step(*model[1:], k))
        return values, model[1].grad_as_array().tolist()

    desired = [work(i) for i in range(N_THREADS)]
    assert all_threads(work) == desired
    dy.renew_cg()


def test_random_graphs_are_made_and_closed_in_threads() -> None:
    def work(i):
        for k in range(40):
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


def test_a_graph_goes_on_in_a_worker_that_enters_it(graph) -> None:
    """As docs/differences.md has it: a worker of a pool, so that there is a timeout."""
    W = dy.ParameterCollection().add_parameters((2, 2), init=2.0)

    def work(x):
        with graph:
            y = W * x
            return y, y.value()

    with ThreadPoolExecutor(1) as pool:
        for i in range(3):
            dy.renew_cg()
            y, value = pool.submit(work, dy.inputVector([i, 1])).result(timeout=600)
            assert dy.cg() is graph
            assert value == [2 * i + 2] * 2
            assert dy.sum_elems(y).value() == 4 * i + 4


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


@pytest.mark.usefixtures("nothing_held")
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


@contextmanager
def meanwhile(*works):
    """Do each of some works over and over, in a thread of its own, until the block ends; errors are raised then."""
    ended = threading.Event()

    def repeat(work):
        while not ended.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        repeated = [pool.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            ended.set()
        for future in repeated:
            future.result()


def until_done(*works) -> list:
    """Run some works side by side until each has ended; what they return, or the first error."""
    barrier = threading.Barrier(len(works))

    def begin(work):
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(begin, work) for work in works]]


def test_a_parameter_is_in_the_graphs_of_all_threads_at_once() -> None:
    """The number of a parameter's node differs from graph to graph, so no thread may read the number that another one
    has found."""
    w = dy.ParameterCollection().parameters_from_numpy(np.full(3, 2.0))

    def work(i):
        dy.renew_cg()
        others = [dy.inputVector([1] * 5) for _ in range(4 * i)]  # so that numbers differ, and shapes at these numbers
        for _ in range(5000):
            assert len(w + 1) == 3
            assert w.dim() == ((3,), 1)
        return w.value(), dy.esum([w] * 10).value(), len(others)

    assert all_threads(work) == [([2] * 3, [20] * 3, 4 * i) for i in range(N_THREADS)]
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


def test_uses_are_counted_while_expressions_die_in_another_thread() -> None:
    """One thread adds uses of a node, another one lets go of chains that use it: in the end, nothing uses it."""
    from dynet_cy.graph.nodes import expression, number

    def let_go(chains, taken, left, ended):
        own = chains.copy()
        taken.set()
        left.wait()  # now these are the last references, which end here
        while own:
            own.pop()
            time.sleep(1e-4)
        ended.set()

    for _ in range(5):
        graph = dy.renew_cg(forward_only=True)
        x = dy.inputVector([1, 2])
        chains = []
        for _ in range(100):
            chain = x
            for _ in range(500):
                chain = chain + x
            chains.append(chain)
        del chain
        events = taken, left, ended = threading.Event(), threading.Event(), threading.Event()
        thread = threading.Thread(target=let_go, args=(chains, *events))
        thread.start()
        taken.wait()
        chains.clear()
        left.set()
        while not ended.is_set():
            x + x
            sum(range(100))  # the graph is not in use all the time
        thread.join()
        assert (x + 1).value() == [2, 3]  # with so many nodes, those that are not needed are left out
        assert len(graph) == 2
        last = number(x)
        del x
        with pytest.raises(IndexError, match="has been dropped"):
            expression(graph, last)
    dy.renew_cg()


def test_memory_is_given_back_while_other_threads_add_nodes() -> None:
    from dynet_cy.memory import arena

    def work(i):
        for k in range(25):
            dy.renew_cg(forward_only=bool((i + k) % 2))
            numbers = np.full(300 * (1 + k % 7), i + k, np.float32)
            xs = [dy.inputTensor(numbers) + 1 for _ in range(60)]
            assert dy.sum_elems(dy.esum(xs)).value() == 60 * len(numbers) * (i + k + 1)
        return True

    with meanwhile(arena.give_back):
        assert all(all_threads(work))
    dy.renew_cg()


def test_states_are_taken_and_settings_changed_while_other_threads_work() -> None:
    """Random streams of all graphs are read, and restarted, at any time; values are those of some setting."""
    from dynet_cy.graph.expressions import random_state

    collection = dy.ParameterCollection()
    table = collection.lookup_parameters_from_numpy(np.ones((50, 8)))
    before = dy.config.get()["autobatch"]
    seeds = itertools.count(1)

    def change():
        k = next(seeds)
        dy.reset_random_seed(k)
        assert random_state()["seed"] == k
        dy.config.set(autobatch=k % 3)
        np.testing.assert_array_equal(table.as_array(), 1)
        [p.name() for p in collection.parameters_list()]

    def work(i):
        for _ in range(25):
            dy.renew_cg()
            xs = [dy.dropout(table[(i + j) % 50], 0.5) for j in range(10)]
            for x in xs:  # one by one: what is requested next is learned
                assert set(x.value()) <= {0.0, 2.0}
            graphs = [dy.ComputationGraph() for _ in range(3)]
            assert len({id(graph) for graph in graphs}) == 3
        return True

    try:
        with meanwhile(change):
            assert all(all_threads(work))
    finally:
        dy.config.set(autobatch=before)
    dy.renew_cg()


def test_lazy_rows_are_read_by_all_threads() -> None:
    """Reading a whole table applies the deferred updates of its rows once, on whatever thread."""
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


def test_expressions_are_read_while_another_thread_adds_nodes() -> None:
    """Reads are right, although the lists of nodes move as they grow."""
    for r in range(6):
        graph = dy.ComputationGraph()
        with graph:
            made = [(dy.inputVector([k, r, 1]), 2 * dy.scalarInput(k), dy.rectify(dy.ones((3, 2)))) for k in range(20)]
            dy.forward([x for xs in made for x in xs])

        def read(r=r, made=made):
            for k, (vector, scalar, matrix) in enumerate(made):
                assert vector.value() == vector.vec_value() == [k, r, 1]
                assert scalar.value() == scalar.scalar_value() == 2 * k
                assert (vector.dim(), matrix.shape, matrix.batch_size) == (((3,), 1), (3, 2), 1)
                np.testing.assert_array_equal(matrix.npvalue(), np.ones((3, 2)))
                assert repr(matrix).endswith("rectify {3,2}>")

        with meanwhile(read, read), graph:
            x = made[0][0]
            for k in range(3000):
                x = dy.esum([x] * 20) - 19 * x if k % 50 == 0 else dy.rectify(x)
        with graph:
            assert x.value() == [0, r, 1]
    dy.renew_cg()


def test_expressions_are_read_while_another_thread_renews_their_graph() -> None:
    """A read returns the expression's value, or raises an error."""
    graph = dy.ComputationGraph()
    refused: list[str] = []

    def made(k):
        with graph:
            graph.renew()
            for _ in range(k % 2):
                dy.ones(1)
            return dy.constant((1 + k % 3, 30000), k), (1 + k % 3, 30000), k

    def read():
        x, shape, k = last[0]
        try:
            assert (x.npvalue() == k).all()
            x, shape, k = last[0]
            assert x.dim() == (shape, 1)
        except RuntimeError as error:
            refused.append(str(error))

    last = [made(0)]
    with meanwhile(read, read):
        for k in range(1, 12000):
            try:
                last[0] = made(k)
            except RuntimeError as error:
                refused.append(str(error))
    assert all("stale" in message or "another thread" in message for message in refused)


def test_values_are_computed_while_another_thread_adds_nodes() -> None:
    """The one that collides with the other gets an error; all values are right."""
    graph = dy.ComputationGraph()
    with graph:
        xs = [dy.inputVector([k, 1]) + 1 for k in range(400)]
    refused = []

    def until_it_can(use):
        while True:
            try:
                return use()
            except RuntimeError as error:
                refused.append(str(error))

    def read():
        return [until_it_can(x.value) for x in xs]

    def add():
        with graph:
            y = until_it_can(lambda: dy.inputVector([0, 0]))
            for k in range(2000):
                y = until_it_can(lambda y=y, k=k: dy.rectify(y) if k % 100 else y + xs[k // 10])
            return until_it_can(y.value)

    values, total = until_done(read, add)
    assert all("another thread" in message for message in refused)
    assert values == [[k + 1, 2] for k in range(400)]
    assert total == [sum(k // 10 + 1 for k in range(0, 2000, 100)), 40]


def test_settings_are_changed_while_passes_run() -> None:
    """Passes read them without the lock of Python."""
    from dynet_cy.kernels import kernels, pool
    from dynet_cy.schedule import speculation
    from dynet_cy.watch import instruments as profile

    precisions = ["float32", "float32" if kernels.bf16_missing() else "bf16"]
    rounds = itertools.count()
    before = dy.config.get()
    w = dy.ParameterCollection().parameters_from_numpy(np.full((128, 128), 1 / 128))

    def change():
        k = next(rounds)
        engine.tune("schedule.rewrite.sums.on", bool(k % 2))
        speculation.switch(bool(k // 2 % 2))
        profile.set_level(k % 2)
        kernels.set_precision(precisions[k // 3 % 2])
        dy.config.set(autobatch=k % 3, check=bool(k % 4 == 1), flush_denormals=bool(k % 2))
        pool.set_threads(1 + k % 2)
        engine.tune("schedule.plan.most_plans", 32 + k % 2)
        engine.tune("schedule.joining.least_size", 1000 if k % 2 else 1 << 17)
        profile.reset()
        engine.stats(reset=True)

    def work(_):
        for _ in range(30):
            dy.renew_cg()
            xs = [dy.inputVector(np.ones(128)) for _ in range(4)]
            for _ in range(5):
                xs = [dy.rectify(w * x + w * x) * 0.5 for x in xs]
            y = dy.sum_elems(dy.esum(xs))
            y.backward()
            assert y.value() == pytest.approx(512)
            assert [x.value()[0] for x in xs] == [pytest.approx(1)] * 4
        return True

    at_first = {"schedule.rewrite.sums.on": 1, "schedule.plan.most_plans": 64, "schedule.joining.least_size": 1 << 17}
    try:
        with engine.tuned(at_first), meanwhile(change):
            assert all(all_threads(work))
    finally:
        profile.set_level(0)
        dy.config.set(**{key: before[key] for key in SETTINGS})
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
            for k in range(40000):
                try:
                    made.append((dy.inputVector([i, k]) + 1, [i + 1, k + 1]))
                except RuntimeError as error:
                    errors.append(error)
        return made

    made = [pair for pairs in until_done(lambda: work(1), lambda: work(2)) for pair in pairs]
    assert len(made) + len(errors) == 80000
    assert all("another thread" in str(error) for error in errors)
    with graph:
        assert [y.value() for y, _ in made] == [right for _, right in made]


def test_nodes_are_made_while_another_thread_renews_the_graph() -> None:
    """A node has the arguments that it was made of, or there is an error in one of the threads."""
    graph = dy.ComputationGraph()
    w = dy.ParameterCollection().parameters_from_numpy(np.ones(2))
    table = dy.ParameterCollection().lookup_parameters_from_numpy(np.arange(8).reshape(4, 2))

    def renew():
        with graph:
            try:
                graph.renew()
                for _ in range(20):  # other nodes, at the same numbers
                    dy.inputVector([-1, -1])
            except RuntimeError as error:
                refused.append(str(error))

    refused: list[str] = []
    with meanwhile(renew), graph:
        for k in range(5000):
            try:
                x = dy.inputVector([k, 1])
                y = dy.esum([x + 1, w, table[3], dy.cmult(x, x)])
                found = y.value()
            except RuntimeError as error:
                refused.append(str(error))
            else:
                assert found == pytest.approx([k + 8 + k * k, 11])
    assert all(any(word in error for word in ("another thread", "stale", "another graph")) for error in refused)


def test_gradients_are_those_of_the_graph_before_another_thread_renews_it() -> None:
    """Between the passes of one call, no other thread may renew the graph."""
    graph = dy.ComputationGraph()
    collection = dy.ParameterCollection()
    w = collection.parameters_from_numpy(np.ones(2))
    refused: list[str] = []

    def renew():
        with graph:
            try:
                graph.renew()
                for _ in range(20):  # other nodes, at the same numbers
                    dy.inputVector([-1, -1])
            except RuntimeError as error:
                refused.append(str(error))

    with meanwhile(renew), graph:
        for k in range(5000):
            try:
                dy.dot_product(dy.inputVector([k, 1]), w).backward()
            except RuntimeError as error:
                refused.append(str(error))
            else:
                assert w.grad_as_array().tolist() == [k, 1]
            collection.zero_gradients()
    assert all(any(word in error for word in ("another thread", "stale", "another graph")) for error in refused)


USES = {
    "value": lambda graph, y: y.value(),
    "backward": lambda graph, y: dy.sum_elems(y).backward(),
    "add": lambda graph, y: 2 * y,
    "input": lambda graph, y: dy.inputVector([1]),
    "renew": lambda graph, y: graph.renew(),
    "revert": lambda graph, y: graph.revert(),
}


@pytest.mark.parametrize("use", USES)
def test_a_graph_is_claimed_while_a_node_is_made(use: str) -> None:
    """Another thread that changes it meanwhile gets an error; with a lock of Python's, the node is not made."""
    errors = []

    def other():
        try:
            with graph:
                USES[use](graph, y)
        except RuntimeError as error:
            errors.append(str(error))

    def shape(of):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return of

    op = dy.custom_op(f"meanwhile_{use}", lambda x: x + 1, shape=shape)
    with dy.ComputationGraph() as graph:
        x = dy.inputVector([1, 2])
        graph.checkpoint()
        y = 2 * x
        if has_gil():
            with pytest.raises(RuntimeError, match="the graph changed") if use != "value" else nullcontext():
                op(x)
            assert not errors
        else:
            assert op(x).value() == [2, 3]
            assert len(errors) == 1
            assert "another thread" in errors[0]


def step_in_new_graph(w, table, k: int) -> float:
    dy.renew_cg()
    return step(w, table, k)


def test_everything_at_once(tmp_path) -> None:
    """Threads train on shared parameters while others save, change settings, give back memory and drop expressions.

    An update writes values, so nobody reads them meanwhile: the one that saves waits.
    """
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
    updating = threading.Lock()
    seeds = itertools.count(1)

    def save():
        with updating:
            dy.save(str(tmp_path / "model"), [w, table])
            w.save(str(tmp_path / "w"))  # its gradient too, to which others are adding
        restored = dy.load(str(tmp_path / "model"), dy.ParameterCollection())
        assert [x.shape() for x in restored] == [(4, 4), (9, 4)]

    def change():
        k = next(seeds)
        dy.config.set(autobatch=k % 3)
        dy.reset_random_seed(k)
        arena.give_back()

    def drop():
        while not dropped.empty():
            dropped.get()

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

    try:
        with meanwhile(save, change, drop):
            for _ in range(3):
                found = all_threads(work)
                desired = [
                    [step_in_new_graph(own_w, own_table, 100 * i + k) for k in range(20)] for i in range(N_THREADS)
                ]
                assert found == desired
                np.testing.assert_array_equal(w.grad_as_array(), own_w.grad_as_array())
                np.testing.assert_array_equal(table.grad_as_array(), own_table.grad_as_array())
                with updating:
                    trainer.update()
                own_trainer.update()
    finally:
        dy.config.set(autobatch=before)
    dy.renew_cg()
