"""Updates of large tables in which few rows have a gradient: those of the other rows are deferred, and all results are
the same.

Everything is compared with float64 updates of whole tables (trainer_reference.py); see also tests/parallel and
tests/gpu.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_reference as reference
from arrays import all_close, all_equal

import dynet_cy as dy
from dynet_cy.kernels import kernels
from dynet_cy.model.parameters import deferred_updates

ROWS, SIZE = 1100, 4
MOST = 512  # the greatest number of deferred updates of a row
CASES = [(name, arguments) for name, others in reference.OTHERS.items() for arguments in ({}, others)]
# Their updates do not change rows without a gradient, so none is deferred.
STILL = {"SimpleSGDTrainer", "CyclicalSGDTrainer", "AdagradTrainer"}


class Pair:
    """A vector and a large table under a trainer, and the same in float64."""

    def __init__(self, name: str = "AdamTrainer", weight_decay: float = 0.0, **arguments: Any) -> None:
        rng = np.random.default_rng(1)
        start = [rng.normal(size=s).astype(np.float32) for s in ((4,), (ROWS, SIZE))]
        self.model = dy.ParameterCollection()
        self.model.set_weight_decay(weight_decay)
        self.b = self.model.parameters_from_numpy(start[0])
        self.table = self.model.lookup_parameters_from_numpy(start[1])
        self.decoupled = 0.0
        self.trainer = getattr(dy, name)(self.model, **arguments)
        self.trainer.set_sparse_updates(False)
        rule = name.replace("AdamW", "Adam")
        self.reference = reference.ReferenceTrainer(rule, start[:1], start[1:], weight_decay, **arguments)
        self.reference.sparse = False
        self.rng = np.random.default_rng(2)
        self.lazy = 0

    def gradients(self, scale: float = 1.0) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Some rows get gradients often, others rarely, most never."""
        rows = {int(i) for i in np.minimum(self.rng.zipf(1.3, size=3), 200) - 1}
        return (self.rng.normal(size=4) * scale).astype(np.float32), {
            i: (self.rng.normal(size=SIZE) * scale * 0.5**i).astype(np.float32) for i in rows
        }

    def step(self, gb: np.ndarray, rows: dict[int, np.ndarray], **options: Any) -> None:
        dy.renew_cg()
        terms = [dy.dot_product(self.b, dy.inputTensor(gb))]
        terms += [dy.dot_product(self.table[i], dy.inputTensor(g)) for i, g in rows.items()]
        dy.esum(terms).backward()
        self.reference.learning_rate = self.trainer.learning_rate
        self.trainer.update(**options)
        self.reference_step(gb, rows)
        self.lazy = max(self.lazy, deferred_updates(self.table))

    def reference_step(self, gb: np.ndarray | None, rows: dict[int, np.ndarray]) -> None:
        table = np.zeros((ROWS, SIZE))
        for i, g in rows.items():
            table[i] = g
        for raw, updated in zip(self.reference.raw, self.reference.updated):
            if updated:
                raw *= 1 - self.trainer.learning_rate * self.decoupled
        self.reference.update([gb, table], [list(rows)])

    def run(self, steps: int = 30, each: Callable[[int], object] = lambda k: None, scale: float = 1.0) -> None:
        for k in range(steps):
            self.step(*self.gradients(scale))
            each(k)

    @property
    def wanted(self) -> np.ndarray:
        return self.reference.values[1]

    def check(self, tolerance: float = 2e-5) -> None:
        def close(found: Any, wanted: np.ndarray) -> None:
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance / 4)

        dy.renew_cg()
        some = [0, 1, 3, 17, 150, ROWS - 1]
        close(np.stack([self.table[i].npvalue() for i in some]), self.wanted[some])
        close(dy.lookup_batch(self.table, some).npvalue().T, self.wanted[some])
        close(self.table.row_as_array(1), self.wanted[1])
        close(self.table.rows_as_array(some), self.wanted[some])
        close(self.table.as_array(), self.wanted)
        close(self.b.as_array(), self.reference.values[0])


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_rule(name: str, arguments: dict[str, float]) -> None:
    pair = Pair(name, **arguments)
    pair.run(60, lambda k: pair.check() if k % 13 == 2 else None)
    pair.check()
    assert pair.lazy == (0 if name in STILL else 60)
    dy.renew_cg()  # read in place
    np.testing.assert_allclose(pair.table.expr().npvalue().T, pair.wanted, rtol=2e-5, atol=5e-6)
    assert deferred_updates(pair.table) == 0
    all_close(pair.trainer._state_arrays()[1], pair.reference.state[1].values(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["AdamTrainer", "MomentumSGDTrainer"])
def test_more_updates_than_are_noted(name: str) -> None:
    pair = Pair(name)
    pair.run(3, scale=4)
    for _ in range(2 * MOST + 20):
        pair.step(pair.gradients()[0], {0: np.full(SIZE, 0.1, np.float32)})
    assert pair.lazy == MOST
    assert 0 < deferred_updates(pair.table) < MOST
    pair.check(1e-4)
    pair.run(10)
    pair.check(1e-4)


@pytest.mark.parametrize("beta_1", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("beta_2", [0.5, 0.98, 0.9999])
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_constants_of_adam(beta_1: float, beta_2: float, eps: float) -> None:
    """Adam's deferred updates are summed with two terms for all of them, or with one term for each."""
    pair = Pair(beta_1=beta_1, beta_2=beta_2, eps=eps, alpha=0.01)
    pair.run(10)
    for _ in range(200):
        pair.step(pair.gradients()[0], {})
    pair.check(1e-4)
    pair.run(10)
    pair.check(1e-4)


def schedules() -> dict[str, dy.Schedule]:
    return {
        "warmup": dy.WarmupSchedule(20, then=dy.CosineSchedule(40)),
        "cosine": dy.CosineSchedule(60),
    }


@pytest.mark.parametrize("schedule", schedules())
@pytest.mark.parametrize("name", ["MomentumSGDTrainer", "AdamTrainer", "AmsgradTrainer", "LionTrainer"])
def test_schedules(name: str, schedule: str) -> None:
    pair = Pair(name)
    pair.trainer.schedule = schedules()[schedule]
    pair.run(60, lambda k: pair.check() if k % 20 == 7 else None)
    assert pair.lazy == 60
    pair.check()


@pytest.mark.parametrize("rates", [(0.1, 0.001, 1e-6, 0.05), (0.0, 0.0, 0.01), (0.01, 0.02, 0.005), (1e-9, 0.1)])
@pytest.mark.parametrize("name", ["AdamTrainer", "AmsgradTrainer", "LionTrainer"])
def test_learning_rates_that_jump(name: str, rates: tuple[float, ...]) -> None:
    pair = Pair(name)

    def set_rate(k: int) -> None:
        pair.trainer.learning_rate = rates[k // 3 % len(rates)]

    pair.run(40, set_rate)
    assert pair.lazy == 40
    pair.check()


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_clipping(threshold: float) -> None:
    pair = Pair()
    pair.trainer.set_clip_threshold(threshold)
    pair.reference.threshold = threshold
    pair.run(scale=20)
    assert pair.lazy == 30
    pair.check()


@pytest.mark.parametrize(
    "name", ["MomentumSGDTrainer", "NesterovSGDTrainer", "AdamTrainer", "AmsgradTrainer", "LionTrainer"]
)
def test_weight_decay(name: str) -> None:
    """The factor of the table is settled every few updates."""
    pair = Pair(name, weight_decay=0.06)
    pair.run(60, lambda k: pair.check() if k % 10 == 4 else None)
    assert 15 < pair.lazy < 30
    pair.check()


def test_decoupled_weight_decay() -> None:
    pair = Pair("AdamWTrainer", alpha=0.002)
    pair.trainer.weight_decay = pair.decoupled = 20.0
    pair.run(60, lambda k: pair.check() if k % 10 == 4 else None)
    assert 25 < pair.lazy < 40
    pair.check()


def test_groups_have_rates_of_their_own() -> None:
    """A group that contains only the table acts like a trainer of the table."""
    pair = Pair("AdamTrainer")
    pair.trainer.set_clip_threshold(0)
    pair.reference.threshold = 0
    group = pair.trainer.group(pair.table)
    for k in range(30):
        group.learning_rate = 0.01 * (1 + k % 4)
        gb, rows = pair.gradients()
        dy.renew_cg()
        dy.esum([dy.dot_product(pair.table[i], dy.inputTensor(g)) for i, g in rows.items()]).backward()
        pair.trainer.update()
        pair.reference.learning_rate = group.learning_rate
        table = np.zeros((ROWS, SIZE))
        for i, g in rows.items():
            table[i] = g
        pair.reference.update([None, table])
    assert deferred_updates(pair.table) == 30
    np.testing.assert_allclose(pair.table.as_array(), pair.wanted, rtol=2e-5, atol=5e-6)


def saved(pair: Pair, way: str, path: Path) -> None:
    """Continue the pair with what another process would load."""
    if way == "pickle":
        pair.model, pair.trainer = pickle.loads(pickle.dumps((pair.model, pair.trainer)))
    elif way == "copy":
        pair.model, pair.trainer = copy.deepcopy((pair.model, pair.trainer))
    else:
        dy.save_safetensors(path / "point", pair.model, pair.trainer)
        other = Pair(type(pair.trainer).__name__)
        other.table.zero()
        other.run(2)
        dy.load_safetensors(path / "point", other.model, other.trainer)
        pair.model, pair.trainer = other.model, other.trainer
    pair.b, pair.table = pair.model.parameters_list()[0], pair.model.lookup_parameters_list()[0]


@pytest.mark.parametrize("name", ["AdamTrainer", "MomentumSGDTrainer", "AmsgradTrainer"])
@pytest.mark.parametrize("way", ["checkpoint", "pickle", "copy"])
def test_saving(tmp_path: Path, name: str, way: str) -> None:
    pair = Pair(name)
    pair.run(20)
    left = pair.model, pair.trainer, pair.table
    saved(pair, way, tmp_path)
    pair.check()
    np.testing.assert_allclose(left[2].as_array(), pair.wanted, rtol=2e-5, atol=5e-6)
    pair.run(20)
    pair.check()


def test_text_files(tmp_path: Path) -> None:
    pair = Pair("MomentumSGDTrainer")
    pair.run(20)
    pair.model.save(tmp_path / "m")
    other = Pair()
    other.model.populate(tmp_path / "m")
    np.testing.assert_allclose(other.table.as_array(), pair.wanted, rtol=2e-5, atol=5e-6)
    pair.run(5)
    pair.model.populate(tmp_path / "m")  # the state of the trainer stays
    pair.reference.raw = [x.astype(np.float64) for x in (other.b.as_array(), other.table.as_array())]
    pair.check()
    pair.run(5)
    pair.check()


@pytest.mark.parametrize("frequency", [1, 3])
@pytest.mark.parametrize("name", ["AdamTrainer", "MomentumSGDTrainer"])
def test_moving_averages(name: str, frequency: int) -> None:
    pair = Pair(name, weight_decay=0.01)
    pair.run(5)
    pair.trainer.exponential_moving_average(0.8, frequency)
    values: list[np.ndarray] = []
    pair.run(20, lambda k: values.append(pair.wanted.copy()) if (k + 1) % frequency == 0 else None)
    weights = 0.8 ** np.arange(len(values))[::-1]
    average = sum(w * v for w, v in zip(weights, values)) / weights.sum()
    pair.trainer.swap_params_to_moving_average()
    np.testing.assert_allclose(pair.table.as_array(), average, rtol=2e-5, atol=5e-6)
    pair.trainer.swap_params_to_weights()
    pair.check()
    pair.run(11)
    pair.check()
    assert deferred_updates(pair.table) == (0 if frequency == 1 else 1)


def test_sparse_updates_between() -> None:
    pair = Pair()

    def switch(k: int) -> None:
        pair.reference.sparse = k % 10 < 4
        pair.trainer.set_sparse_updates(pair.reference.sparse)

    pair.run(60, switch)
    assert 20 < deferred_updates(pair.table) < 60
    pair.check()


def test_updates_of_many_rows_between() -> None:
    """An update in which many rows have gradients updates the whole table."""
    pair = Pair()
    for k in range(20):
        gb, rows = pair.gradients()
        if k % 6 == 5:
            rows.update({i: np.full(SIZE, 0.01 * i, np.float32) for i in range(0, ROWS, 2)})
        pair.step(gb, rows)
        assert deferred_updates(pair.table) == (0 if k % 6 == 5 else k % 6 + 1)
    pair.check()


def test_frozen_between() -> None:
    pair = Pair("MomentumSGDTrainer", weight_decay=0.01)

    def freeze(k: int) -> None:
        pair.reference.updated[1] = k % 10 > 4
        pair.table.set_updated(pair.reference.updated[1])

    for k in range(40):
        freeze(k)
        gb, rows = pair.gradients()
        before = pair.table.as_array()
        if pair.reference.updated[1]:
            pair.step(gb, rows)
        else:
            factor, raw = pair.reference.factor, pair.reference.raw[1].copy()
            pair.step(gb, {})
            # The reference decays frozen parameters too.
            pair.reference.raw[1][...] = raw * factor / pair.reference.factor
            np.testing.assert_array_equal(pair.table.as_array(), before)
    pair.check()


def test_update_subset() -> None:
    pair = Pair()
    for k in range(20):
        gb, rows = pair.gradients()
        if k % 4 < 2:
            pair.step(gb, rows)
            continue
        dy.renew_cg()
        dy.dot_product(pair.b, dy.inputTensor(gb)).backward()
        pair.reference.learning_rate = pair.trainer.learning_rate
        pair.trainer.update_subset([0], [])
        pair.reference.updated[1] = False
        pair.reference_step(gb, {})
        pair.reference.updated[1] = True
    assert deferred_updates(pair.table) == 10
    pair.check()


def test_dropped_updates() -> None:
    pair = Pair()
    pair.run(10)
    dy.renew_cg()
    (dy.sum_elems(dy.log(pair.table[3] * 0)) + dy.squared_norm(pair.table[0])).backward()
    pair.trainer.update(skip_nonfinite=True)
    assert pair.trainer.skipped_updates == 1
    pair.run(10)
    assert deferred_updates(pair.table) == 20
    pair.check()


def test_two_trainers() -> None:
    pair = Pair("AdamTrainer")
    other = dy.MomentumSGDTrainer(pair.model, 0.05)
    other.set_sparse_updates(False)
    wanted = reference.ReferenceTrainer("MomentumSGDTrainer", learning_rate=0.05)
    wanted.raw, wanted.dense, wanted.updated, wanted.sparse = pair.reference.raw, 1, [True, True], False
    wanted.state = [{"h": np.zeros_like(x)} for x in wanted.raw]
    mine = pair.trainer, pair.reference
    for k in range(40):
        pair.trainer, pair.reference = (other, wanted) if k % 8 >= 5 else mine
        pair.step(*pair.gradients())
    assert pair.lazy == 5
    pair.check()


@pytest.mark.parametrize("name", ["MomentumSGDTrainer", "AdamTrainer"])
def test_values_that_are_set(name: str) -> None:
    pair = Pair(name, weight_decay=0.01)
    raw, factor = pair.reference.raw[1], lambda: pair.reference.factor
    new = np.random.default_rng(5).normal(size=(ROWS, SIZE)).astype(np.float32)

    def change(k: int) -> None:
        if k == 5:
            pair.table.init_row(3, new[3])
            raw[3] = new[3] / factor()
        elif k == 10:
            pair.table.scale(0.5)
            raw[...] *= 0.5
        elif k == 15:
            pair.table.init_from_array(new)
            raw[...] = new / factor()
        elif k == 20:
            pair.table.zero()
            raw[...] = 0

    pair.run(30, change)
    pair.check()


@pytest.mark.parametrize("way", ["expression", "dlpack"])
def test_values_that_are_read_where_they_lie(way: str) -> None:
    pair = Pair()
    pair.run(10)
    dy.renew_cg()
    if way == "expression":
        np.testing.assert_allclose(pair.table.expr(update=False).npvalue().T, pair.wanted, rtol=2e-5, atol=5e-6)
    else:
        shared = np.from_dlpack(pair.table)
        np.testing.assert_allclose(shared, pair.wanted, rtol=2e-5, atol=5e-6)
    pair.run(10)
    assert deferred_updates(pair.table) == 0
    pair.check()
    if way == "dlpack":
        np.testing.assert_allclose(shared, pair.wanted, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["AdamTrainer", "MomentumSGDTrainer"])
def test_reading_changes_nothing(name: str) -> None:
    """Training with and without reading gives the same bits."""
    quiet, read = Pair(name), Pair(name)
    quiet.run(30)
    read.run(30, lambda k: read.check())
    np.testing.assert_array_equal(read.table.as_array(), quiet.table.as_array())
    all_equal(read.trainer._state_arrays()[1], quiet.trainer._state_arrays()[1])


def test_a_batch_of_equal_rows() -> None:
    pair = Pair()
    pair.run(20)
    dy.renew_cg()
    found = dy.lookup_batch(pair.table, [5, 900, 5]).npvalue()
    np.testing.assert_array_equal(found[:, 0], found[:, 2])
    np.testing.assert_allclose(found.T, pair.wanted[[5, 900, 5]], rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("rate", [None, 0.02])
def test_restart(rate: float | None) -> None:
    pair = Pair("MomentumSGDTrainer")
    pair.run(15)
    pair.trainer.restart() if rate is None else pair.trainer.restart(rate)
    pair.reference.restart(rate)
    pair.check()
    pair.run(15)
    pair.check()


def test_a_trainer_that_goes() -> None:
    pair = Pair("MomentumSGDTrainer")
    pair.run(15)
    assert deferred_updates(pair.table) == 15
    pair.trainer = None
    gc.collect()
    assert deferred_updates(pair.table) == 0
    pair.check()


def test_threads_that_read() -> None:
    pair = Pair()
    pair.run(20)
    wanted, found = pair.table.as_array(), {}

    def read(k: int) -> None:
        found[k] = np.stack([pair.table.row_as_array(i) for i in range(200)])

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows in found.values():
        np.testing.assert_array_equal(rows, wanted[:200])


def test_updates_of_small_tables_are_never_deferred() -> None:
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((10, 3))
    trainer = dy.AdamTrainer(model)
    trainer.set_sparse_updates(False)
    for _ in range(3):
        dy.renew_cg()
        dy.squared_norm(table[1]).backward()
        trainer.update()
    assert deferred_updates(table) == 0


def test_each_rule_says_what_it_does_without_gradients() -> None:
    states = kernels.optim_states()
    moved = {list(states)[getattr(dy, name)._rule] for name in reference.RULES if name not in STILL}
    assert moved | {"sgd", "adagrad"} == states.keys()


@pytest.mark.parametrize(("beta_1", "beta_2"), [(0.9, 0.999), (0.95, 0.999), (0.9, 0.98), (0.5, 0.5), (0.99, 0.9999)])
@pytest.mark.parametrize("eps", [1e-8, 1.0])
@pytest.mark.parametrize("lazy", [1, 2, 3, 40, 400])
def test_steps_of_adam_to_the_precision_of_floats(beta_1: float, beta_2: float, eps: float, lazy: int) -> None:
    """A row that starts at zero is the sum of its steps, so rounding shows; compared with steps taken one by one."""

    def run(at_once: bool) -> np.ndarray:
        model = dy.ParameterCollection()
        table = model.add_lookup_parameters((ROWS, SIZE), init=0.0)
        trainer = dy.AdamTrainer(model, 1.0, beta_1, beta_2, eps)
        trainer.set_sparse_updates(False)
        dy.renew_cg()
        if not at_once:
            table.expr(update=False)  # read in place
        dy.dot_product(table[7], dy.inputVector([1, -0.5, 0.1, 2])).backward()
        for _ in range(1 + lazy):
            trainer.update()
        assert deferred_updates(table) == (1 + lazy if at_once else 0)
        return table.row_as_array(7)

    np.testing.assert_allclose(run(True), run(False), rtol=2e-6)
