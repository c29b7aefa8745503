"""Updates of all rows of large tables on a device: the tests of tests/train/test_lazy_rows.py, and more.

Here, a table of 4,096 numbers counts as large.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from arrays import all_close

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

from tables import trained_tables
from test_lazy_rows import *  # noqa: F403 - all run on a device; those that differ are below
from test_lazy_rows import ROWS, SIZE, Pair

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import lazy
from dynet_cy.gpu.driver import memory_info
from dynet_cy.graph.expressions import set_autobatching, set_default_device
from dynet_cy.model.parameters import deferred_updates


@pytest.fixture(autouse=True)
def large(on_device) -> Iterator[None]:
    with engine.tuned({"gpu.lazy.least": 4096}):
        yield


@pytest.mark.parametrize(
    "name", ["MomentumSGDTrainer", "AdamTrainer", "AmsgradTrainer", "RMSPropTrainer", "LionTrainer"]
)
def test_weight_decay(name: str) -> None:
    """Weight decay is logged with the updates, so no update visits the whole table."""
    pair = Pair(name, weight_decay=0.06)
    pair.run(60, lambda k: pair.check() if k % 10 == 4 else None)
    assert deferred_updates(pair.table) == 60
    pair.check()


def test_decoupled_weight_decay() -> None:
    pair = Pair("AdamWTrainer", alpha=0.002)
    pair.trainer.weight_decay = pair.decoupled = 20.0
    pair.run(60, lambda k: pair.check() if k % 10 == 4 else None)
    assert deferred_updates(pair.table) == 60
    pair.check()


def test_dropped_updates() -> None:
    """The host counts dropped updates too, because it does not know that they are dropped."""
    pair = Pair("AdamTrainer")
    pair.run(10)
    dy.renew_cg()
    (dy.sum_elems(dy.log(pair.table[3] * 0)) + dy.squared_norm(pair.table[0])).backward()
    pair.trainer.update(skip_nonfinite=True)
    pair.run(10)
    assert deferred_updates(pair.table) == 21
    pair.check()
    assert pair.trainer.skipped_updates == 1


@pytest.mark.parametrize("name", ["AdamWTrainer", "MomentumSGDTrainer", "LionTrainer"])
def test_rates_that_the_device_chooses(name: str) -> None:
    """The number of an update, and so its rate and decay, depends on how many updates before it were dropped."""

    def run(device: str) -> np.ndarray:
        set_default_device(int(device != "CPU"))
        rng = np.random.default_rng(3)
        model = dy.ParameterCollection()
        table = model.lookup_parameters_from_numpy(rng.normal(size=(ROWS, SIZE)))
        trainer = getattr(dy, name)(model)
        trainer.learning_rate = 0.02
        trainer.schedule = dy.WarmupSchedule(10, then=dy.CosineSchedule(30))
        if name == "AdamWTrainer":
            trainer.weight_decay = 3
        trainer.set_sparse_updates(False)
        for k in range(40):
            dy.renew_cg()
            factor = np.nan if k % 4 == 3 else 1.0
            x = dy.squared_norm(table[k % 7]) + dy.squared_norm(table[ROWS - 1 - k])
            (x * factor).backward()
            trainer.update(skip_nonfinite=True)
        assert device == "CPU" or deferred_updates(table) == 40
        return table.as_array()

    np.testing.assert_allclose(run("GPU:0"), run("CPU"), rtol=1e-4, atol=1e-6)


def test_updates_that_are_left_out() -> None:
    """Skipped updates are in the log of the host, not in that of the device; training goes on after the error."""
    pair = Pair("AdamTrainer")
    pair.run(10)
    dy.renew_cg()
    (dy.dot_product(pair.b, pair.table[3]) * np.nan).backward()
    pair.trainer.update()
    with pytest.raises(RuntimeError, match="not finite"):
        pair.trainer.status()
    pair.model.zero_gradients()
    pair.check()
    pair.run(10)
    assert deferred_updates(pair.table) == 21
    pair.check()


def test_values_that_are_read_where_they_lie() -> None:
    pair = Pair()
    pair.run(10)
    dy.renew_cg()
    np.testing.assert_allclose(pair.table.expr(update=False).npvalue().T, pair.wanted, rtol=2e-5, atol=5e-6)
    assert deferred_updates(pair.table) == 0
    pair.run(10)
    assert deferred_updates(pair.table) == 0
    pair.check()


@pytest.mark.parametrize("autobatch", [0, 1, 2])
def test_batching(on_the_cpu_again, autobatch: int) -> None:
    set_autobatching(autobatch)
    set_default_device(1)
    pair = Pair("AdamTrainer", weight_decay=0.01)
    pair.run(20, lambda k: pair.check() if k % 7 == 3 else None)
    assert deferred_updates(pair.table) == 20
    pair.check()


def test_a_lookup_that_is_set_anew() -> None:
    pair = Pair("AdamTrainer")
    pair.run(10)
    dy.renew_cg()
    row = pair.table[3]
    np.testing.assert_allclose(row.npvalue(), pair.wanted[3], rtol=2e-5, atol=5e-6)
    row.set(0)
    np.testing.assert_allclose(row.npvalue(), pair.wanted[0], rtol=2e-5, atol=5e-6)


def test_forward_only() -> None:
    pair = Pair("MomentumSGDTrainer")
    pair.run(10)
    dy.renew_cg(forward_only=True)
    rows = dy.lookup_batch(pair.table, [5, 0, 900])
    np.testing.assert_allclose(rows.npvalue().T, pair.wanted[[5, 0, 900]], rtol=2e-5, atol=5e-6)


def test_cuda_graphs() -> None:
    """Repeated passes are captured once, although rows are late by more updates each time."""
    rng = np.random.default_rng(4)
    start = rng.normal(size=(ROWS, SIZE)).astype(np.float32)
    W = rng.normal(size=(6, SIZE)).astype(np.float32)

    def run(device: str) -> tuple[np.ndarray, dict[str, int]]:
        set_default_device(int(device != "CPU"))
        rng = np.random.default_rng(5)
        model = dy.ParameterCollection()
        table, matrix = model.lookup_parameters_from_numpy(start), model.parameters_from_numpy(W)
        trainer = dy.AdamTrainer(model, 0.01)
        trainer.set_sparse_updates(False)
        before = engine.stats("gpu.0")
        for _ in range(30):
            dy.renew_cg()
            x = dy.lookup_batch(table, [int(i) for i in rng.integers(ROWS, size=8)])
            dy.sum_batches(dy.squared_norm(dy.tanh(matrix * x))).backward()
            trainer.update()
        after = engine.stats("gpu.0")
        assert deferred_updates(table) == 30
        return table.as_array(), {k: after[k] - before[k] for k in after}

    with dy.ComputationGraph():  # a new graph, with no CUDA graphs yet
        found, work = run("GPU:0")
    desired, _ = run("CPU")
    np.testing.assert_allclose(found, desired, rtol=1e-4, atol=1e-6)
    assert work["captures"] <= 4
    assert work["replays"] >= 40


def test_an_update_visits_rows_with_a_gradient() -> None:
    """On the device too, an update visits only rows with a gradient."""
    pair = Pair("AdamTrainer")
    visited = dict.fromkeys(range(ROWS), 0)
    for k in range(10):
        gb, rows = pair.gradients()
        pair.step(gb, rows)
        visited.update(dict.fromkeys(rows, k + 1))
        if k % 4 == 3:
            pair.check()
        assert lazy.updates_had(pair.table) == list(visited.values())
    assert visited[ROWS - 1] == 0
    pair.table.init_row(ROWS - 1, pair.table.row_as_array(ROWS - 1))
    assert deferred_updates(pair.table) == 0


@pytest.mark.parametrize("places", [("GPU:0", "GPU:1", "CPU"), ("GPU:0", "GPU:0", "GPU:1")])
@pytest.mark.parametrize("name", ["AdamWTrainer", "MomentumSGDTrainer", "AmsgradTrainer"])
def test_several_devices(name: str, places: tuple[str, ...]) -> None:
    if not set(places) <= set(dy.available_devices()):
        pytest.skip("needs as many GPUs as the case names")

    def read(tables: list[dy.LookupParameters]) -> None:
        """Read tables in place, which ends the deferral of their updates."""
        for table in tables:
            dy.renew_cg()
            table.expr(update=False).npvalue()

    def trainer_of(model: dy.ParameterCollection) -> dy.Trainer:
        model.set_weight_decay(0.001)
        return getattr(dy, name)(model)

    found, deferred, trainer = trained_tables(trainer_of, places, (ROWS, SIZE))
    np.testing.assert_array_equal(trainer._state_arrays()[0][0][900], 0)
    desired, none, trainer = trained_tables(trainer_of, places, (ROWS, SIZE), read)
    np.testing.assert_array_equal(trainer._state_arrays()[0][0][900], 0)
    assert deferred == [12] * 3
    assert none == [0] * 3
    all_close(found, desired, rtol=1e-5, atol=1e-6)


def test_tables_that_are_not_large() -> None:
    engine.tune("gpu.lazy.least", ROWS * SIZE + 1)
    pair = Pair()
    pair.run(3)
    assert deferred_updates(pair.table) == 0
    pair.check()


def test_large_parts_are_read_piece_by_piece() -> None:
    """A table larger than one piece is read with its rows in order."""
    model = dy.ParameterCollection()
    start = np.random.default_rng(0).normal(size=(3000, 1000)).astype(np.float32)
    table = model.lookup_parameters_from_numpy(start)
    trainer = dy.MomentumSGDTrainer(model, 0.1)
    trainer.set_sparse_updates(False)
    for row in (0, 2999):
        dy.renew_cg()
        dy.sum_elems(table[row]).backward()
        trainer.update()
    assert deferred_updates(table) == 2
    trainer.set_clip_threshold(0)
    start[0] -= 0.1 * 5 / np.sqrt(1000) * 1.9
    start[2999] -= 0.1 * 5 / np.sqrt(1000)
    np.testing.assert_allclose(table.as_array(), start, rtol=1e-5, atol=1e-6)


def test_memory_is_given_back() -> None:
    unused = []
    for _ in range(6):
        model = dy.ParameterCollection()
        table = model.add_lookup_parameters((3000, 2))
        trainer = dy.AdamTrainer(model)
        trainer.set_sparse_updates(False)
        dy.renew_cg()
        dy.squared_norm(table[1]).backward()
        trainer.update()
        assert deferred_updates(table) == 1
        dy.renew_cg()
        del model, table, trainer
        gc.collect()
        unused.append(memory_info(0)[0])
    assert unused[-1] == unused[1]
