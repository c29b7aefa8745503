"""The model of how training scales: known limits, the formula against the simulation, and the page."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import scaling

sys.path.pop(0)

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "scaling.md"
WORK = scaling.Workload(
    compute_ms=50,
    compute_2_ms=52,
    spread=0.1,
    update_ms=2,
    exchange_ms=1,
    dense_bytes=1e6,
    sparse_bytes=5e4,
    table_bytes=5e6,
    one_ms=52,
    two_ms=58,
)
NET = scaling.Network("test", 10, 1.0)


def test_one_process_waits_for_nobody() -> None:
    assert scaling.formula(WORK, 1, 1, NET) == WORK.compute_ms + WORK.update_ms
    assert scaling.simulate(WORK, 1, 1, NET, updates=2000) == pytest.approx(52, rel=0.01)


def test_allreduce() -> None:
    """With two hosts, each sends and receives all bytes once."""
    free = scaling.Network("free", 0, 1e9)
    for cost in (scaling.ring, scaling.halving):
        assert cost(1e6, 2, NET) == pytest.approx(2 * 0.01 + 1e6 * (1e-6 + scaling.GAMMA / 2))
        assert cost(1e6, 64, free) == pytest.approx(63 / 64 * 1e6 * scaling.GAMMA, rel=1e-3)
    assert scaling.doubling(8, 2, NET) == pytest.approx(0.01, rel=1e-2)
    assert scaling.best(8, 64, NET) == scaling.doubling(8, 64, NET)
    assert scaling.best(1e9, 64, NET) == scaling.halving(1e9, 64, NET)
    assert scaling.best(0, 64, NET) == scaling.best(1e6, 1, NET) == 0


def test_rows_cost_no_more_than_the_table() -> None:
    many = dataclasses.replace(WORK, dense_bytes=0)
    assert scaling.between(many, 2, 1, NET) == scaling.rows(5e4, 2, NET)
    assert scaling.between(many, 512, 1, NET) == scaling.best(5e6, 512, NET)


@pytest.mark.parametrize("processes", [2, 8, 64, 512])
def test_waiting(processes: int) -> None:
    drawn = np.random.default_rng(1).normal(size=(4000, processes)).max(1).mean()
    assert scaling.waiting(WORK, processes, 2) == pytest.approx(drawn * 5.2, rel=0.06)


def test_a_ring_message_by_message() -> None:
    for hosts in (2, 5, 64):
        assert scaling.ring_of(np.zeros(hosts), 1e6, NET) == pytest.approx(
            np.full(hosts, scaling.ring(1e6, hosts, NET))
        )
    # A late process delays the others by at most as much.
    late = np.zeros(8)
    late[3] = 5
    ends = scaling.ring_of(late, 1e6, NET)
    assert ends.max() <= 5 + scaling.ring(1e6, 8, NET) + 1e-9
    assert ends.min() >= 5


@pytest.mark.parametrize(("hosts", "local"), [(1, 2), (8, 1), (64, 1), (8, 8)])
def test_formula_and_simulation_agree(hosts: int, local: int) -> None:
    steady = dataclasses.replace(WORK, spread=1e-9)
    for work, exactness in ((steady, 1e-6), (WORK, 0.05)):
        expected = scaling.formula(work, hosts, local, NET)
        assert scaling.simulate(work, hosts, local, NET) == pytest.approx(expected, rel=exactness)


def test_overlap_hides_the_dense_exchange_only() -> None:
    slow = scaling.Network("slow", 10, 0.1)
    steady = dataclasses.replace(WORK, spread=1e-9)
    apart = scaling.simulate(steady, 8, 1, slow, 20)
    beside = scaling.simulate(steady, 8, 1, slow, 20, overlap=0.5)
    assert beside == pytest.approx(max(apart - scaling.best(1e6, 8, slow), apart - 0.5 * WORK.compute_ms))


def test_the_page_is_made_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    path.write_text(json.dumps({"tagger": dataclasses.asdict(WORK), "measured_on": "an abacus"}))
    made = scaling.tables(path, [NET])
    page = scaling.insert(PAGE.read_text(encoding="utf-8"), made)
    assert "Measured on: an abacus." in page
    assert "| tagger | test | " in page
    assert scaling.insert(page, made) == page
    with pytest.raises(ValueError, match="no marks"):
        scaling.insert("nothing", made)
    path.write_text(json.dumps({"tagger": {"compute_ms": 1}}))
    with pytest.raises(ValueError, match="workload tagger has no compute_2_ms"):
        scaling.read(path)


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = scaling.check_table(*scaling.read(scaling.MEASURED))
    for line in made[: made.index("", 2)]:
        assert line in page


def test_the_simulation_reproduces_two_processes() -> None:
    for workload in scaling.read(scaling.MEASURED)[0].values():
        assert scaling.simulate(workload, 1, 2, NET, 4000) == pytest.approx(workload.two_ms, rel=0.15)
        assert math.isfinite(workload.spread)
