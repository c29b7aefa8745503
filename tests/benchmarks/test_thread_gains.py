"""The benchmark of threads, with tiny programs and products."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import dynet_cy as dy
from dynet_cy import config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import threads
import workloads

sys.path.pop(0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = config.get()
    load = workloads.load
    monkeypatch.setattr(workloads, "load", lambda name: load(name, tiny=True))
    monkeypatch.setattr(threads, "PRODUCTS", [(3, 4, 5), (20, 8, 2)])
    monkeypatch.setattr(threads, "SECONDS", 0.001)
    yield
    config.set(autobatch=before["autobatch"], threads=before["threads"])
    dy.renew_cg()


def test_products() -> None:
    times = threads.dynet_cy_products(2)
    assert config.get()["threads"] == 2
    kinds = [f"{size} {kind}" for size in ("(3, 4, 5)", "(20, 8, 2)") for kind in ("parameter", "matrix")]
    assert list(times) == kinds
    assert all(seconds > 0 for seconds in times.values())


def test_products_of_torch() -> None:
    pytest.importorskip("torch", reason="compares with PyTorch, which is optional")
    assert list(threads.torch_products(1)) == ["(3, 4, 5) matrix", "(20, 8, 2) matrix"]


def test_graphs_in_threads_train_as_in_one() -> None:
    """Two steps of one thread, or one step of each of two threads, give the same update."""
    rounds = [threads.graphs("dynet_cy", "tagger", "autobatch", count, 2) for count in (1, 2)]
    one, two = ([round()["loss"] for _ in range(4)] for round in rounds)
    assert two == pytest.approx(one, rel=1e-5)
    assert one[0] > one[-1]


def test_losses_of_other_bits_fail() -> None:
    def child(loss: float) -> SimpleNamespace:
        return SimpleNamespace(rounds=[{"loss": loss}])

    threads.same_bits({("dynet_cy", 1): child(1.0), ("dynet_cy", 2): child(1.0), ("torch", 2): child(1.1)})
    with pytest.raises(RuntimeError, match="depend on the number of threads"):
        threads.same_bits({("dynet_cy", 1): child(1.0), ("dynet_cy", 2): child(1.0000001)})


def test_table() -> None:
    rows = [
        threads.measured("a", "GFLOP/s", {"dynet_cy": [2.0, 1.0], "torch": [3.0, 2.0]}, lambda s: 6 / s),
        threads.measured("b", "x/s", {"dynet_cy": [1.0, 1.0]}, lambda s: 100 / s),
    ]
    lines = threads.table(rows, {"dynet_cy": "", "torch": ""}, 2).splitlines()
    assert lines[2] == "| a | GFLOP/s | 3.00 | 6.00 | 2.00 | 2.00 | 3.00 | 1.50 |"
    assert lines[3] == "| b | x/s | 100 | 100 | 1.00 |  |  |  |"
