"""Memory stays flat over many graphs and collections."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.memory import arena

pytestmark = pytest.mark.usefixtures("nothing_held")

MIB = 1 << 20


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")
    import resource

    return int(statm.read_text().split()[1]) * resource.getpagesize()


def assert_flat(work, times: int, allowed: int = 2 * MIB) -> None:
    """Resident memory does not grow over `times` runs, after a tenth as many to warm up."""
    for k in range(times // 10):
        work(k)
    gc.collect()
    resident, used = resident_bytes(), arena.used_bytes()
    for k in range(times):
        work(k)
    gc.collect()
    assert arena.used_bytes() == used
    assert resident_bytes() - resident <= allowed


@pytest.fixture
def model():
    collection = dy.ParameterCollection()
    w = collection.parameters_from_numpy(np.eye(8) / 2)
    table = collection.lookup_parameters_from_numpy(np.ones((20, 8)))
    return collection, w, table


@pytest.mark.slow
def test_renewals(model) -> None:
    _, w, table = model

    def work(k):
        dy.renew_cg(autobatching=k % 3)
        x = dy.inputVector([k % 5] * 8)
        loss = dy.dot_product(dy.tanh(w * table[k % 20] + x), x)
        loss.backward()

    assert_flat(work, 100_000)
    dy.renew_cg()


def test_graphs_opened_and_closed(model) -> None:
    _, w, _ = model

    def work(k):
        with dy.ComputationGraph(autobatching=k % 3):
            dy.dot_product(w * dy.ones(8), dy.ones(8)).backward()

    assert_flat(work, 3000)


def test_many_graphs_open_at_once(model) -> None:
    _, w, _ = model

    def work(k):
        graphs = [dy.ComputationGraph() for _ in range(100)]
        values = []
        for n, graph in enumerate(graphs):
            with graph:
                values.append((w * dy.ones(8)) * float(n))
        for n, y in enumerate(values):
            assert y.npvalue()[0] == n / 2

    assert_flat(work, 20)


def test_failed_ops(graph) -> None:
    x, y = dy.ones(3), dy.ones(4)
    nodes = len(graph)

    def work(_):
        with pytest.raises(ValueError, match="add: a has 3"):
            x + y
        with pytest.raises(ValueError, match="esum: xs"):
            dy.esum([x, y])

    assert_flat(work, 2000)
    assert len(graph) == nodes


def test_checkpoints(graph) -> None:
    x = dy.ones(100)

    def work(k):
        dy.cg_checkpoint()
        (x * float(k)).forward()
        dy.cg_revert()

    assert_flat(work, 20_000)


def test_collections(graph) -> None:
    def work(k):
        dy.renew_cg()
        collection = dy.ParameterCollection()
        p = collection.add_parameters((50, 50), init=0.5)
        table = collection.add_lookup_parameters((50, 50), init=0.5)
        dy.dot_product(p * table[3], dy.ones(50)).backward()

    assert_flat(work, 500)


def test_values_do_not_leak(graph) -> None:
    x = dy.inputTensor(np.ones((100, 100)))

    def work(_):
        x.npvalue()
        x.vec_value()
        x.value()

    assert_flat(work, 500)


def test_reference_counts_of_what_is_shared(model, graph) -> None:
    collection, w, _ = model
    before = sys.getrefcount(w), sys.getrefcount(collection.storage)
    for _ in range(100):
        dy.renew_cg()
        y = dy.tanh(w)
        y.dim()
        del y
    dy.renew_cg()
    assert (sys.getrefcount(w), sys.getrefcount(collection.storage)) == before
