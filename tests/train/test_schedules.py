"""Learning rate schedules: formulas, their effect on updates, checkpoints, copies."""

from __future__ import annotations

import doctest
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from module_examples import run_examples
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.train import schedules


def test_examples() -> None:
    names = {"dy": dy, "model": dy.ParameterCollection()}
    assert run_examples(schedules, **names).failed == 0
    text = dy.Trainer.__dict__["schedule"].__doc__
    test = doctest.DocTestParser().get_doctest(text, names, "Trainer.schedule", None, None)
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        (dy.LinearSchedule(10, end=0.1), lambda n: max(1 - 0.09 * n, 0.1)),
        (dy.CosineSchedule(8, end=0.5), lambda n: 0.75 + 0.25 * math.cos(math.pi * min(n, 8) / 8)),
        (dy.StepSchedule(3, by=0.2), lambda n: 0.2 ** (n // 3)),
        (dy.StepSchedule([2, 5], by=0.2), lambda n: 1.0 if n < 2 else 0.2 if n < 5 else 0.2**2),
        (dy.WarmupSchedule(4, start=0.2), lambda n: min(0.2 + 0.2 * (n + 1), 1.0)),
        (
            dy.WarmupSchedule(2, then=dy.StepSchedule(3, by=0.5)),
            lambda n: (n + 1) / 2 if n < 2 else 0.5 ** ((n - 2) // 3),
        ),
        (
            dy.WarmupSchedule(2, then=dy.WarmupSchedule(2, then=dy.LinearSchedule(2))),
            lambda n: [0.5, 1.0, 0.5, 1.0, 1.0, 0.5, 0.0][min(n, 6)],
        ),
    ],
    ids=lambda x: repr(x) if isinstance(x, dy.Schedule) else "",
)
def test_factors(schedule: dy.Schedule, want: Any) -> None:
    for n in range(15):
        assert schedule.factor(n) == pytest.approx(want(n), rel=1e-12)


class Model:
    """Gradient descent on parameters with a gradient of 1: each update subtracts its learning rate."""

    def __init__(self, name: str = "SimpleSGDTrainer", **arguments: Any) -> None:
        self.m = dy.ParameterCollection()
        self.w = self.m.add_parameters(1, init=0.0, name="w")
        self.v = self.m.add_parameters(1, init=0.0, name="v")
        self.t = getattr(dy, name)(self.m, **arguments)
        self.t.set_clip_threshold(0)

    def update(self, scale: float = 1.0, skip_nonfinite: bool = False) -> None:
        dy.renew_cg()
        (dy.sum_elems(self.w + self.v) * scale).backward()
        self.t.update(skip_nonfinite=skip_nonfinite)


def test_updates_follow_it() -> None:
    model = Model(learning_rate=0.5)
    group = model.t.group(model.v, learning_rate=0.25)
    model.update()  # before the schedule begins
    schedule = model.t.schedule = dy.WarmupSchedule(2, then=dy.LinearSchedule(4))
    assert model.t.schedule is schedule
    late = 0.0
    w, v = -0.5, -0.25
    for n in range(8):
        factor = schedule.factor(n)
        assert model.t.learning_rate == 0.5 * factor
        assert group.learning_rate == 0.25 * factor
        model.update()
        w, v, late = w - 0.5 * factor, v - 0.25 * factor, factor
        np.testing.assert_allclose([model.w.npvalue()[0], model.v.npvalue()[0]], [w, v], rtol=1e-6)
    assert late == 0
    model.t.schedule = None
    assert (model.t.learning_rate, group.learning_rate) == (0.5, 0.25)
    model.t.learning_rate = 0.125
    group.learning_rate = None
    assert model.t.learning_rate == 0.125


def test_a_group_that_is_made_later() -> None:
    model = Model(learning_rate=0.5)
    model.t.schedule = dy.LinearSchedule(2)
    model.update()
    group, plain = model.t.group(model.v, learning_rate=0.25), model.t.group(model.w)
    assert group.learning_rate == 0.125
    assert plain.learning_rate is None


def test_decoupled_decay_is_scaled_with_it() -> None:
    model = Model("AdamWTrainer", alpha=0.5, weight_decay=0.1)
    model.w.set_value([1.0])
    model.t.schedule = dy.StepSchedule(1, by=0.0)
    model.update()
    before = model.w.npvalue()
    model.update()
    np.testing.assert_array_equal(model.w.npvalue(), before)


def test_the_cycle_of_a_trainer_is_scaled_too() -> None:
    plain = Model("CyclicalSGDTrainer", learning_rate_min=0.1, learning_rate_max=0.5, step_size=2)
    scheduled = Model("CyclicalSGDTrainer", learning_rate_min=0.1, learning_rate_max=0.5, step_size=2)
    schedule = scheduled.t.schedule = dy.LinearSchedule(10)
    for n in range(7):
        assert scheduled.t.learning_rate == plain.t.learning_rate * schedule.factor(n)
        plain.update()
        scheduled.update()


def test_dropped_updates_do_not_count() -> None:
    model = Model(learning_rate=0.5)
    model.t.schedule = dy.LinearSchedule(4)
    model.update()
    model.update(scale=math.inf, skip_nonfinite=True)
    assert model.t.skipped_updates == 1
    assert model.t.learning_rate == 0.375


def test_rates_cannot_be_set_while_there_is_one() -> None:
    model = Model(learning_rate=0.5)
    group = model.t.group(model.v, learning_rate=0.25)
    model.t.schedule = dy.LinearSchedule(4)
    for owner in (model.t, group):
        with pytest.raises(RuntimeError, match=r"learning_rate is set by LinearSchedule\(4, end=0.0\)"):
            owner.learning_rate = 1.0
    with pytest.raises(RuntimeError, match="is set by"):
        model.t.restart(learning_rate=1.0)
    assert (model.t.learning_rate, group.learning_rate) == (0.5, 0.25)


def test_plateau() -> None:
    model = Model(learning_rate=0.5)
    group = model.t.group(model.v, learning_rate=0.25)
    schedule = model.t.schedule = dy.WarmupSchedule(1, then=dy.PlateauSchedule(patience=2, by=0.5, least=0.2))
    model.update()
    told = [schedule.report(x) for x in (3.0, math.nan, 3.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)]
    assert told == [False, False, True, False, False, True, False, True, False, False]
    assert (model.t.learning_rate, group.learning_rate) == (0.5 * 0.2, 0.25 * 0.2)
    by_score = dy.PlateauSchedule(patience=1, mode="max", min_delta=0.1)
    assert [by_score.report(x) for x in (0.5, 0.7, 0.75, 0.85)] == [False, False, True, False]


def test_files_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with_one, other, without = Model(), Model(), Model()
    with_one.t.schedule = dy.PlateauSchedule(patience=1)
    other.t.schedule = dy.LinearSchedule(5)
    with_one.update()
    dy.save_safetensors(path, with_one.m, with_one.t)
    for model, words in ((other, r"LinearSchedule\(5, end=0.0\)"), (without, "None")):
        with pytest.raises(ModelMismatchError, match=rf"has the schedule PlateauSchedule\(.*, the trainer {words}"):
            dy.load_safetensors(path, model.m, model.t)
        assert model.w.npvalue() == 0
    dy.save_safetensors(path, without.m, without.t)
    with pytest.raises(ModelMismatchError, match=r"has the schedule None, the trainer PlateauSchedule"):
        dy.load_safetensors(path, with_one.m, with_one.t)


@pytest.mark.parametrize("wrong", [{"factor": "1"}, {"factor": -1.0}, {"waited": -1}, {"best": "good"}, {"seen": None}])
def test_damaged_states(wrong: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "c"
    model = Model()
    model.t.schedule = dy.WarmupSchedule(2, then=dy.PlateauSchedule())
    model.update()
    dy.save_safetensors(path, model.m, model.t)
    with safe_open(path, "numpy") as file:
        state = json.loads(file.metadata()["dynet_cy"])
    state["trainer"]["settings"]["_schedule"]["values"].update(wrong)
    save_file(load_file(path), path, {"dynet_cy": json.dumps(state)})
    before = model.w.npvalue()
    model.update()
    with pytest.raises(ModelFileError, match=next(iter(wrong))):
        dy.load_safetensors(path, model.m, model.t)
    assert model.w.npvalue() != before


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: dy.LinearSchedule(0), ValueError, "LinearSchedule: updates must be at least 1, not 0"),
        (lambda: dy.CosineSchedule("9"), TypeError, "CosineSchedule: updates must be a whole number, not '9'"),
        (lambda: dy.CosineSchedule(9, end=-1), ValueError, "end must be a finite number of at least 0, not -1"),
        (lambda: dy.StepSchedule([3, 2]), ValueError, r"the numbers of at must rise, not be \[3, 2\]"),
        (lambda: dy.StepSchedule(3, by="x"), TypeError, "StepSchedule: by must be a number, not 'x'"),
        (lambda: dy.WarmupSchedule(2, then=0.1), TypeError, "then must be a Schedule, not float"),
        (lambda: dy.PlateauSchedule(mode="best"), ValueError, "mode must be 'min' or 'max', not 'best'"),
        (lambda: dy.PlateauSchedule(patience=0), ValueError, "patience must be at least 1, not 0"),
        (lambda: dy.PlateauSchedule().report(None), TypeError, "PlateauSchedule.report: value must be a number"),
        (lambda: setattr(Model().t, "schedule", 0.1), TypeError, "Trainer.schedule must be a Schedule or None"),
        (lambda: setattr(Model().t, "schedule", dy.Schedule()), NotImplementedError, "Schedule has no method factor"),
    ],
)
def test_bad_settings(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_a_schedule_of_the_programs_own_that_goes_wrong_changes_nothing() -> None:
    class Odd(dy.Schedule):
        def factor(self, updates: int) -> float:
            return math.nan if updates == 1 else 1.0

    model = Model()
    model.t.schedule = Odd()
    model.update()
    before = model.w.npvalue()
    state = model.t._settings()
    with pytest.raises(ValueError, match="the factor is nan, not a finite number"):
        model.update()
    np.testing.assert_array_equal(model.w.npvalue(), before)
    assert model.t._settings() == state


PROGRAM = """
import sys, numpy as np, dynet_cy as dy
m = dy.ParameterCollection()
w = m.add_parameters(2, init=0.0)
t = dy.parallel.wrap(dy.AdamTrainer(m, 0.5))
rank = dy.parallel.rank()
t.schedule = dy.WarmupSchedule(2, then=dy.CosineSchedule(8 if sys.argv[1] == "same" else 8 + rank))
rates = []
for epoch in range(2):
    for x in dy.parallel.shard(range(1, 6)):        # shares of different lengths
        dy.renew_cg()
        rates.append(round(t.learning_rate, 6))
        (dy.sum_elems(w) * float(x)).backward()
        t.update()
print(t.learning_rate, w.npvalue().tolist(), flush=True)
"""


@pytest.mark.parametrize("kind", ["same", "different"])
def test_several_processes(kind: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "dynet_cy.launch", "-n", "2", "p.py", kind],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if kind == "same":
        assert done.returncode == 0, done.stderr
        lines = [line.partition("] ")[2] or line for line in done.stdout.splitlines()]
        assert len(lines) == 2
        assert lines[0] == lines[1]
        assert float(lines[0].split()[0]) == pytest.approx(0.5 * dy.CosineSchedule(8).factor(4))
    else:
        assert done.returncode != 0
        assert "the learning rate is" in done.stderr
