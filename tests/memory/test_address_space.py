"""Memory is reserved as needed: large programs run in little address space, and unused memory can be used elsewhere."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from own_process import SANITIZED, environment

import dynet_cy as dy
from dynet_cy.memory import arena

pytestmark = pytest.mark.usefixtures("nothing_held")

MIB = 1 << 20


def address_space() -> int:
    """The size of the address space in use, in bytes."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")
    return int(statm.read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


def run_within(limit: int, code: str, folder: Path) -> str:
    """The output of a program that runs with a limited address space."""
    resource = pytest.importorskip("resource")
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits the address space")
    if SANITIZED:
        pytest.skip("sanitizers reserve the whole address space")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(OPENBLAS_NUM_THREADS="1"),
        cwd=folder,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_in_a_gibibyte_of_addresses(tmp_path) -> None:
    code = """
import dynet_cy as dy
assert dy.inputVector([1, 2]).value() == [1, 2]
c = dy.ParameterCollection()
w, t = c.add_parameters((50, 50)), dy.AdamTrainer(c)
for k in range(20):
    dy.renew_cg()
    dy.squared_norm(dy.tanh(w * dy.inputVector([k / 20] * 50))).backward()
    t.update()
x = dy.inputTensor([1.0] * 1000)
for _ in range(30_000):                     # 120 MB
    x = x + 1.0
print(x.npvalue()[0])
"""
    assert float(run_within(1 << 30, code, tmp_path)) == 30_001


def test_ten_thousand_graphs_and_collections(tmp_path) -> None:
    code = """
import dynet_cy as dy
graphs = [dy.ComputationGraph() for _ in range(10_000)]
xs = []
for k, g in enumerate(graphs):
    with g:
        xs.append(dy.inputVector([k, 1]) + 1.0)
        xs[-1].forward()
assert all(x.value() == [k + 1, 2] for k, x in enumerate(xs))
collections = []
for k in range(10_000):
    c = dy.ParameterCollection()
    collections.append((c, c.add_parameters((3,), init=float(k))))
assert all(p.as_array().tolist() == [k] * 3 for k, (_, p) in enumerate(collections))
print("done")
"""
    assert run_within(1 << 30, code, tmp_path) == "done\n"


def test_threads_take_little_and_give_it_back() -> None:
    """Each thread that computes has a graph, which is freed with the thread."""
    gc.collect()
    arena.give_back()
    used = arena.used_bytes()
    wrong: list[BaseException | int] = []
    n = 100
    together = threading.Barrier(n)

    def work(k: int) -> None:
        try:
            value = (dy.inputVector([k, 1]) + 1.0).value()
            together.wait(600)
            if value != [k + 1, 2]:
                wrong.append(k)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert arena.used_bytes() == used


def test_a_graph_takes_addresses_by_need() -> None:
    before = address_space()
    graphs = []
    for _ in range(200):
        with dy.ComputationGraph() as graph:
            dy.tanh(dy.ones(100)).forward()
        graphs.append(graph)
    assert address_space() - before < 100 * MIB


def chain(length: int, size: int) -> dy.Expression:
    x = dy.constant(size, 0.5)
    for _ in range(length):
        x = dy.tanh(x)
    return dy.sum_elems(x)


def fits(length: int) -> bool:
    """Whether a chain fits into a new graph."""
    try:
        with dy.ComputationGraph():
            chain(length, 1000).backward(full=True)
    except MemoryError:
        return False
    return True


def test_what_fits_in_a_fresh_process_fits_after_an_error(memory_left) -> None:
    memory_left(4 * MIB)
    low, high = 1, 2_500
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    assert low > 250
    dy.renew_cg()
    with pytest.raises(MemoryError, match=r"left of the limit of .* renew_cg\(\)"):
        chain(10 * low, 1000).backward(full=True)
    dy.renew_cg()
    loss = chain(low, 1000)
    loss.backward(full=True)
    assert loss.value() > 0
    dy.renew_cg()
    assert (dy.ones(3) + 1.0).value() == [2, 2, 2]


def test_graphs_give_back_what_they_do_not_use(memory_left) -> None:
    """Unused memory of a graph is available to parameters and other graphs, without an error first."""
    memory_left(8 * MIB)
    idle = dy.ComputationGraph()
    for _ in range(3):
        with idle:
            idle.renew()
            dy.tanh(dy.ones(3 * MIB // 4)).forward()  # 6 MiB
            idle.renew()
        with dy.ComputationGraph():
            assert dy.sum_elems(dy.ones(3 * MIB // 4) + 1.0).value() == 1.5 * MIB
        with idle:
            kept = dy.tanh(dy.ones(1000))
            kept.forward()
        collection = dy.ParameterCollection()
        p = collection.add_parameters(3 * MIB // 4, init=2.0)
        assert p.as_array().min() == 2
        with idle:
            np.testing.assert_allclose(kept.npvalue(), np.tanh(1), rtol=1e-6)
        del collection, p


def test_a_run_takes_what_its_own_graph_does_not_use(memory_left) -> None:
    memory_left(8 * MIB)
    with dy.ComputationGraph() as graph:
        xs = [dy.ones(1) for _ in range(20_000)]  # nodes take most
        del xs
        graph.renew()
        assert dy.sum_elems(dy.ones(3 * MIB // 4) + 1.0).value() == 1.5 * MIB


def test_sizes_are_checked_before_numbers_are_drawn(memory_left, monkeypatch) -> None:
    class Never(dy.PyInitializer):
        def fill(self, out, rng, lookup=False):
            raise AssertionError("drawn")

    never = Never()
    collection = dy.ParameterCollection()
    memory_left(64 * MIB)
    for add, what in (
        (collection.add_parameters, "add_parameters"),
        (collection.add_lookup_parameters, "add_lookup_parameters"),
    ):
        with pytest.raises(MemoryError, match=rf"{what} \(134217728, 2\): 2,147,483,648 bytes needed"):
            add((2**27, 2), init=never)
    arena.set_limit(0)
    with pytest.raises(MemoryError, match=r"add_parameters \(2147483647, 4096\): .* left of what this machine has"):
        collection.add_parameters((2**31 - 1, 4096), init=never)
    assert collection.parameter_count() == 0
    assert collection.add_parameters(3, init=1.0).as_array().tolist() == [1, 1, 1]


def test_sizes_of_a_pickle_are_checked_before_the_first_is_added(memory_left) -> None:
    collection = dy.ParameterCollection()
    for _ in range(4):
        collection.add_parameters((2**18,), init=1.0)
    pickled = pickle.dumps(collection)
    memory_left(7 * MIB)
    used = arena.used_bytes()
    with pytest.raises(MemoryError, match=r"the parameters of a pickle: 8,388,608 bytes needed, 7,340,032 left"):
        pickle.loads(pickled)
    assert arena.used_bytes() == used
    arena.set_limit(0)
    assert pickle.loads(pickled).parameter_count() == 2**20


def test_parameters_stay_where_they_are() -> None:
    """Entries do not move when others are added, so graphs may run meanwhile; states of trainers stay in step."""
    collection = dy.ParameterCollection()
    trainer = dy.MomentumSGDTrainer(collection, 0.5)
    added = []
    for k in range(60):
        added.append(collection.add_parameters((k * k + 1,), init=float(k)))
    late = dy.AdamTrainer(collection)
    dy.renew_cg()
    dy.esum([dy.sum_elems(p) for p in added]).backward()
    trainer.update()
    for k, p in enumerate(added):
        value = p.as_array()
        assert value.min() == value.max() < k
    dy.renew_cg()
    dy.esum([dy.sum_elems(p) for p in added]).backward()
    late.update()
    for k, p in enumerate(added):
        value = p.as_array()
        assert value.min() == value.max() < k


def test_gradients_over_many_segments() -> None:
    """Values of very different sizes are in many segments of an arena; each gets its gradient."""
    sizes = [1, 5, 3000, 17, 40_000, 2, 200_000, 900, 1, 70_000]
    for strategy in (0, 1, 2):
        with dy.ComputationGraph(autobatching=strategy):
            xs = [dy.inputVector(np.linspace(0, 1, n)) for n in sizes]
            ys = [dy.square(dy.tanh(x)) for x in xs]
            dy.esum([dy.sum_elems(y) for y in ys]).backward(full=True)
            for x, n in zip(xs, sizes):
                t = np.tanh(np.linspace(0, 1, n))
                np.testing.assert_allclose(x.gradient(), 2 * t * (1 - t * t), rtol=2e-5, atol=1e-6)


def test_what_the_machine_has() -> None:
    available = arena.available_bytes()
    if available is None:
        pytest.skip("the size of memory is unknown")
    assert MIB < available < 1 << 60
