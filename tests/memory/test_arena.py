"""Arenas: alignment, growth, limits, and every allocation made to fail."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy
from dynet_cy.core.amounts import size_text
from dynet_cy.memory import arena

pytestmark = pytest.mark.usefixtures("nothing_held")

MIB = 1 << 20


def test_values_of_any_length(graph, strategy) -> None:
    """Vectors of every length, adjacent to each other, so that aligned and unaligned starts occur."""
    xs = [np.linspace(-1, 1, n, dtype=np.float32) for n in range(1, 70)]
    ys = [dy.tanh(dy.inputVector(x)) for x in xs]
    zs = [dy.square(y) for y in ys]
    dy.esum([dy.dot_product(z, z) for z in zs]).forward()
    for x, z in zip(xs, zs):
        np.testing.assert_allclose(z.npvalue(), np.tanh(x) ** 2, rtol=1e-5, atol=1e-7)


def test_growth_keeps_what_is_there() -> None:
    with dy.ComputationGraph():
        first = dy.tanh(dy.ones(1000))
        first.forward()
        value = first.npvalue()
        used = arena.used_bytes()
        for _ in range(100):
            dy.tanh(dy.ones(100_000)).forward()  # 80 MB
        assert arena.used_bytes() - used >= 70 * MIB
        np.testing.assert_array_equal(first.npvalue(), value)


def test_renewal_uses_the_same_memory_again() -> None:
    def step():
        dy.renew_cg()
        dy.tanh(dy.ones(500_000)).forward()

    for _ in range(2):  # the segments of the first become one
        step()
    used = arena.used_bytes()
    for _ in range(20):
        step()
    assert arena.used_bytes() == used


def test_graphs_that_grow_skip_no_memory() -> None:
    """A block that no longer fits where that of an earlier graph was leaves nothing behind."""

    def held_after(sizes: list[int]) -> int:
        used = arena.used_bytes()
        with dy.ComputationGraph() as graph:
            for n in sizes:
                graph.renew()
                loss = dy.sum_elems(dy.tanh(dy.ones(100_000))) + dy.sum_elems(dy.tanh(dy.ones(n)))
                loss.backward(full=True)
            return arena.used_bytes() - used

    once = held_after([3_000_000])
    assert held_after([k * 200_000 for k in range(1, 16)]) <= 1.05 * once


def test_closing_a_graph_gives_its_memory_back() -> None:
    used = arena.used_bytes()
    for _ in range(3):
        with dy.ComputationGraph():
            dy.tanh(dy.ones(MIB)).forward()
            assert arena.used_bytes() >= used + 8 * MIB
        assert arena.used_bytes() == used


def test_revert_gives_memory_back(graph) -> None:
    x = dy.ones(100_000)
    x.forward()
    dy.cg_checkpoint()
    dy.tanh(x).forward()
    used = arena.used_bytes()
    for _ in range(50):
        dy.cg_revert()
        dy.cg_checkpoint()
        dy.tanh(x).forward()
    assert arena.used_bytes() == used


def test_limit_is_read_back(memory_limit) -> None:
    assert arena.limit() == 0
    memory_limit(123 * MIB)
    assert arena.limit() == 123 * MIB


def test_message_of_a_full_arena(memory_limit, memory_left) -> None:
    with dy.ComputationGraph():
        x = dy.ones(1000)
        y = dy.tanh(x)
        y.forward()
        memory_left(3 * MIB)
        with pytest.raises(MemoryError) as raised:
            dy.ones(10 * MIB)
        match = re.fullmatch(
            r"out of memory for an input: ([\d,]+) bytes needed, ([\d,]+) left of the limit of ([\d,]+) "
            r"\(([\d.]+ MiB)\); "
            r"raise it with --dynet-mem MB or dynet_cy\.config\.set\(mem=MB\); "
            r"renew_cg\(\) gives back the memory of expressions that are no longer needed",
            str(raised.value),
        )
        assert match
        needed, left, limit = (int(match[k].replace(",", "")) for k in range(1, 4))
        assert needed == 40 * MIB
        assert 3 * MIB <= left < 4 * MIB
        assert limit == arena.limit()
        assert match[4] == size_text(limit)
        assert y.npvalue()[0] == pytest.approx(np.tanh(1))
        memory_limit(0)
        assert dy.ones(10 * MIB).dim() == ((10 * MIB,), 1)


def test_parameters_out_of_memory(memory_limit, memory_left, graph) -> None:
    collection = dy.ParameterCollection()
    p = collection.parameters_from_numpy(np.ones(100))
    memory_left(MIB)
    with pytest.raises(MemoryError, match="out of memory for add_parameters"):
        collection.add_parameters((3 * MIB,), init=0.0)
    memory_limit(0)
    assert [q.name() for q in collection.parameters_list()] == [p.name()]
    q = collection.add_parameters((3 * MIB,), init=2.0)
    assert p.as_array().tolist() == [1] * 100
    assert q.as_array()[-1] == 2
    assert collection.parameter_count() == 100 + 3 * MIB


def model(collection):
    """The loss of a graph in which every value is larger than a step of the limit."""
    w, table = collection.parameters_list()[0], collection.lookup_parameters_list()[0]
    x = dy.inputTensor(np.linspace(-1, 1, 300_000))
    rows = [table[k % 3] for k in range(2)]
    ys = [dy.tanh(dy.cmult(w, r) + x) for r in rows]
    ys += [dy.cmult(dy.logistic(y), x) for y in ys]
    return dy.dot_product(dy.esum(ys), dy.average(ys))


def new_collection():
    rng = np.random.default_rng(3)
    collection = dy.ParameterCollection()
    collection.parameters_from_numpy(rng.normal(size=300_000))
    collection.lookup_parameters_from_numpy(rng.normal(size=(3, 300_000)))
    return collection


def zero_gradients(collection) -> None:
    for p in [*collection.parameters_list(), *collection.lookup_parameters_list()]:
        p.scale_gradient(0)


@pytest.mark.parametrize("autobatching", [0, 1, 2])
def test_each_allocation_fails_once(autobatching: int, memory_limit) -> None:
    """As the limit rises step by step, every stage of a run fails once with an error, and does no harm."""
    gc.collect()  # free the graphs of other tests before memory is counted
    collection = new_collection()
    with dy.ComputationGraph(autobatching=autobatching):
        loss = model(collection)
        value = loss.value()
        loss.backward()
        needed = arena.used_bytes()
    desired = [p.grad_as_array() for p in [*collection.parameters_list(), *collection.lookup_parameters_list()]]
    base = arena.used_bytes()
    failed = {"build": 0, "forward": 0, "backward": 0}
    for limit in [*range(base, needed, MIB // 2), needed]:
        zero_gradients(collection)
        with dy.ComputationGraph(autobatching=autobatching) as graph:
            memory_limit(max(limit, 1))
            stage = "build"
            loss = None
            try:
                loss = model(collection)
                stage = "forward"
                assert loss.value() == value
                stage = "backward"
                loss.backward()
                stage = "done"
            except MemoryError as error:
                failed[stage] += 1
                message = str(error)
                n = len(graph)
                memory_limit(0)
                assert len(graph.op_names()) == n
                if stage == "build":
                    loss = model(collection)  # the graph accepts more nodes after the half that was made
                assert loss.value() == value
                zero_gradients(collection)  # a backward that failed may have added to some
                loss.backward()
            memory_limit(0)
        assert stage == "done" or "left of the limit" in message
        del graph
        found = [p.grad_as_array() for p in [*collection.parameters_list(), *collection.lookup_parameters_list()]]
        for actual, expected in zip(found, desired):  # a plan that is divided adds up in another order
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        assert arena.used_bytes() == base
    assert stage == "done"
    assert failed["build"] >= 3
    assert failed["forward"] >= 3
    assert failed["backward"] >= 3


def test_poison_fills_what_is_freed(tmp_path) -> None:
    """With DYNET_CY_POISON=1 a training step gives the same numbers as without: it reads no freed memory."""
    code = (
        "import numpy as np, dynet_cy as dy\n"
        "c = dy.ParameterCollection(); p = c.parameters_from_numpy(np.ones(5))\n"
        "for k in range(4):\n"
        "    for s in (0, 1, 2):\n"
        "        dy.renew_cg(autobatching=s)\n"
        "        ys = [dy.tanh(p * float(k)) for k in range(6)]\n"
        "        l = dy.dot_product(dy.esum(ys), dy.average([dy.square(y) for y in ys])); l.backward()\n"
        "        print(l.value(), p.grad_as_array().tolist())\n"
    )
    printed = []
    for poison in ("0", "1"):
        done = run_python(tmp_path, code, DYNET_CY_POISON=poison)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert "nan" not in printed[0]
    assert printed[0] == printed[1]
