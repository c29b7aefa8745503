"""Training goes on from copies and files to the last bit, with each setting of a trainer and of parameters."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy
from dynet_cy.graph.expressions import random_state, set_random_state
from dynet_cy.model.parameters import deferred_updates

TRAINERS = [n for n in dy.__all__ if n.endswith("Trainer") and n not in ("Trainer", "PythonTrainer")]
ROWS = 1500  # so many that updates of rows without a gradient are deferred


class Model:
    """A small network with its trainer."""

    def __init__(self, trainer: str, change: Callable[[Any], None], rows: int = 6) -> None:
        self.pc = dy.ParameterCollection()
        self.e = self.pc.add_lookup_parameters((rows, 3), name="E")
        self.rnn = dy.GRUBuilder(1, 3, 4, self.pc)
        self.w = self.pc.add_parameters((2, 4), name="W")
        self.pc.add_parameters((), init=2.0)
        self.pc.add_lookup_parameters((2, 2, 3))
        self.trainer = getattr(dy, trainer)(self.pc)
        change(self)

    def step(self, *numbers: int) -> None:
        for i in numbers:
            dy.renew_cg()
            h = dy.dropout(self.rnn.initial_state().transduce([self.e[i % 4], self.e[0]])[-1], 0.5)
            loss = dy.squared_norm(self.w * h - dy.inputVector([1, -1]))
            (loss * (math.nan if i == 1 else 1.0)).backward()
            self.trainer.update(skip_nonfinite=True)
            if self.trainer.schedule is not None:
                self.trainer.schedule.report(5.0 if i == 2 else 6.0)

    def everything(self) -> list[np.ndarray]:
        stored = [*self.pc.parameters_list(), *self.pc.lookup_parameters_list()]
        states = [a for arrays in self.trainer._state_arrays() for a in arrays or ()]
        return [x.as_array() for x in stored] + [x.grad_as_array() for x in stored] + states


def plain(m: Model) -> None:
    pass


def weight_decay(m: Model) -> None:
    m.pc.set_weight_decay(0.05)


def small_weight_decay(m: Model) -> None:
    """A share that shows after many updates only."""
    m.pc.set_weight_decay(1e-8)


def groups(m: Model) -> None:
    m.trainer.group([m.w, m.e], learning_rate=0.05, weight_decay=1e-6, clip_threshold=0.5)


def average(m: Model) -> None:
    m.trainer.exponential_moving_average(0.5, 2)


def schedule(m: Model) -> None:
    m.trainer.group(m.w, learning_rate=0.2)
    m.trainer.schedule = dy.WarmupSchedule(3, then=dy.PlateauSchedule(patience=1))


def frozen(m: Model) -> None:
    m.w.set_updated(False)


def dense(m: Model) -> None:
    m.trainer.set_sparse_updates(False)


def swapped(m: Model) -> None:
    m.trainer.swap_params_to_moving_average()


def back(m: Model) -> None:
    m.trainer.swap_params_to_weights()


def free(m: Model) -> None:
    m.w.set_updated(True)


# What is set first, what is done before training is saved and what when it goes on, and the rows of a table.
Row = tuple[Callable[[Model], None], Callable[[Model], None], Callable[[Model], None], int]
SETTINGS: dict[str, Row] = {
    "plain": (plain, plain, plain, 6),
    "weight decay": (weight_decay, plain, plain, 6),
    "small weight decay": (small_weight_decay, plain, plain, 6),
    "groups": (groups, plain, plain, 6),
    "average": (average, plain, plain, 6),
    "average, swapped": (average, swapped, back, 6),
    "schedule": (schedule, plain, plain, 6),
    "frozen": (frozen, plain, free, 6),
    "dense": (dense, plain, plain, 6),
    "deferred rows": (dense, plain, plain, ROWS),
}
OF_ALL = ("plain", "small weight decay", "dense", "deferred rows")
CASES = [(t, s) for s in SETTINGS for t in (TRAINERS if s in OF_ALL else ["SimpleSGDTrainer", "AdamTrainer"])]
EXTRA = {"epoch": 3, "place": [1, 2], "loss": math.nan}


@pytest.mark.parametrize("way", ["copy", "pickle", "safetensors", "checkpoint"])
@pytest.mark.parametrize(("trainer", "setting"), CASES)
def test_to_the_last_bit(trainer: str, setting: str, way: str, tmp_path: Path) -> None:
    change, before, after, rows = SETTINGS[setting]
    model = Model(trainer, change, rows)
    if setting != "schedule":  # which sets the rates
        model.trainer.learning_rate *= 0.5
        model.trainer.set_clip_threshold(0.3)
    model.step(0, 1, 2, 3)
    assert trainer not in ("AdamTrainer", "MomentumSGDTrainer") or (deferred_updates(model.e) > 0) == (rows == ROWS)
    dy.renew_cg()
    (dy.sum_elems(model.e[5]) + dy.sum_elems(model.w)).backward()  # a gradient that no update has used
    before(model)
    random, path = random_state(), tmp_path / "file"
    if way in ("copy", "pickle"):
        other = copy.deepcopy(model) if way == "copy" else pickle.loads(pickle.dumps(model))
    else:
        other = Model(trainer, change, rows)
        held = other.trainer.schedule, other.trainer.groups
        if way == "safetensors":
            dy.save_safetensors(path, model.pc, model.trainer, EXTRA)
            assert os.listdir(tmp_path) == ["file"]
        else:
            dy.parallel.save_checkpoint(path, model.pc, model.trainer)
        other.step(0)  # so that there is old state to replace
        if way == "safetensors":
            assert str(dy.load_safetensors(path, other.pc, other.trainer, random=True)) == str(EXTRA)
        else:
            dy.parallel.load_checkpoint(path, other.pc, other.trainer)
        assert (other.trainer.schedule, other.trainer.groups) == held, "what the program holds stays valid"
    assert other.trainer.skipped_updates == model.trainer.skipped_updates == 1
    if way != "safetensors":
        set_random_state(random)
    for m in (other, model):
        after(m)
        m.step(4, 5, 6, 7)
        set_random_state(random)
    all_equal(other.everything(), model.everything())
    assert repr(other.trainer._settings()) == repr(model.trainer._settings())
    assert [g._state() for g in other.trainer.groups] == [g._state() for g in model.trainer.groups]
    assert other.pc.get_weight_decay() == model.pc.get_weight_decay()
    if change is average:
        for m in (other, model):
            swapped(m)
        all_equal(other.everything(), model.everything())
