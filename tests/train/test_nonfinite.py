"""Batches with infinite or NaN gradients, and the norm of gradients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_equal
from own_process import run_python

import dynet_cy as dy

TRAINERS = [getattr(dy, n) for n in dy.__all__ if n.endswith("Trainer") and n not in ("Trainer", "PythonTrainer")]


class Model:
    def __init__(self, make: type[dy.Trainer] = dy.AdamTrainer, clip: float = 5.0) -> None:
        dy.reset_random_seed(2)
        self.pc = dy.ParameterCollection()
        self.pc.set_weight_decay(0.01)
        self.w = self.pc.add_parameters((3, 4))
        self.e = self.pc.add_lookup_parameters((6, 4))
        self.unused = self.pc.add_parameters(2)
        self.trainer = make(self.pc)
        self.trainer.set_clip_threshold(clip)

    def backward(self, seed: int, bad: float | None = None) -> None:
        dy.renew_cg()
        loss = dy.pickneglogsoftmax(self.w * self.e[seed % 6] * 5.0, seed % 3)
        if bad is not None:
            row = dy.lookup(self.e, (seed + 1) % 6)
            loss += dy.sum_elems(self.w * dy.inputVector([bad] * 4)) + dy.dot_product(row, dy.inputVector([bad] * 4))
        loss.backward()

    def values(self) -> list[np.ndarray]:
        return [p.as_array() for p in (self.w, self.e, self.unused)]

    def state(self) -> list[np.ndarray]:
        return [*self.values(), *(a for own in self.trainer._state_arrays() for a in own)]

    def gradients(self) -> list[np.ndarray]:
        return [p.grad_as_array() for p in (self.w, self.e, self.unused)]


class SignSGD(dy.PythonTrainer):
    def step(self, p: Any, settings: Any) -> Any:
        return -settings.learning_rate * np.sign(p.gradient)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [5.0, 0.0], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("make", [*TRAINERS, SignSGD])
def test_dropped(make: type[dy.Trainer], clip: float, bad: float, capfd: pytest.CaptureFixture[str]) -> None:
    """Training continues as if the batch had not existed, including Adam's correction; the batch is counted."""
    model, plain = Model(make, clip), Model(make, clip)
    for seed in range(6):
        model.backward(seed)
        plain.backward(seed)
        model.trainer.update(skip_nonfinite=True)
        plain.trainer.update()
        before = model.state()
        model.backward(seed + 1, bad)
        if seed % 2:
            model.trainer.update(skip_nonfinite=True)
        else:
            model.trainer.update_subset([0], [], skip_nonfinite=True)
        assert not math.isfinite(model.trainer.gradient_norm)
        all_equal(model.state(), before)
        for g in model.gradients():
            assert not g.any()
    all_equal(model.state(), plain.state())
    capfd.readouterr()
    model.trainer.status()
    model.trainer.status()
    plain.trainer.status()
    lines = capfd.readouterr().err.replace("] ", "]\n").splitlines()
    assert lines[0] == lines[2].replace("]", " skipped=6]")
    assert "updates=0]" in lines[1]


@pytest.mark.parametrize("of", ["trainer", "collection"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [5.0, 0.0], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("make", [*TRAINERS, SignSGD])
def test_going_on_by_hand(make: type[dy.Trainer], clip: float, bad: float, of: str) -> None:
    model, plain = Model(make, clip), Model(make, clip)
    for seed in range(4):
        model.backward(seed, bad)
        with pytest.raises(RuntimeError, match=r"the gradients of /_0, /_1 are not finite.  Nothing was updated"):
            model.trainer.update()
        with pytest.raises(RuntimeError, match="Nothing was updated"):
            model.trainer.update_subset([1], [])
        assert model.trainer.updates == seed
        assert not math.isfinite(model.trainer.gradient_norm)
        assert not np.isfinite(model.w.grad_as_array()).any()
        (model.trainer if of == "trainer" else model.pc).zero_gradients()
        for g in model.gradients():
            assert not g.any()
        for each in (model, plain):
            each.backward(seed)
            each.trainer.update()
    all_equal(model.state(), plain.state())


def test_zero_gradients_of_a_part() -> None:
    pc = dy.ParameterCollection()
    below = pc.add_subcollection("below")
    a, b, t = pc.add_parameters(2), below.add_parameters(2), below.add_lookup_parameters((3, 2))
    dy.renew_cg()
    (dy.sum_elems(a) + dy.sum_elems(b) + dy.sum_elems(t[1]) + dy.sum_elems(dy.parameter(t))).backward()
    below.zero_gradients()
    assert a.grad_as_array().tolist() == [1, 1]
    assert not b.grad_as_array().any()
    assert not t.grad_as_array().any()
    # Gradients collected afterwards are used.
    dy.renew_cg()
    dy.sum_elems(t[2]).backward()
    before = t.as_array()
    dy.SimpleSGDTrainer(below, 1.0).update()
    np.testing.assert_array_equal(before - t.as_array(), [[0, 0], [0, 0], [1, 1]])


def test_several_trainers() -> None:
    """Each trainer drops only its own updates."""
    models = [Model(dy.SimpleSGDTrainer), Model(dy.AdamTrainer)]
    before = [model.values() for model in models]
    models[0].backward(1, math.nan)
    models[1].backward(1)
    for model in models:
        model.trainer.update(skip_nonfinite=True)
    all_equal(models[0].values(), before[0])
    assert np.abs(models[1].values()[0] - before[1][0]).max() > 0
    # Two trainers of the same parameters.
    model = models[0]
    other = dy.MomentumSGDTrainer(model.pc)
    model.backward(1, math.nan)
    model.trainer.update(skip_nonfinite=True)
    other.update(skip_nonfinite=True)
    assert (other.gradient_norm, model.trainer._skipped, other._skipped) == (0, 2, 0)


@pytest.mark.parametrize("clip", [5.0, 1e-3, math.inf])
def test_gradient_norm(clip: float) -> None:
    model = Model(clip=clip)
    assert model.trainer.gradient_norm is None
    clips = 0
    for seed in range(3):
        model.backward(seed)
        want = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in model.gradients()))
        model.trainer.update()
        assert model.trainer.gradient_norm == pytest.approx(want, rel=1e-5)
        clips += want > clip
        assert model.trainer._clips == clips


@pytest.mark.parametrize("sparse", [True, False])
def test_without_clipping(sparse: bool) -> None:
    """The norm is the same number as with clipping, and updates have the same bits as if none were computed."""
    models = [Model(dy.SimpleSGDTrainer, clip) for clip in (math.inf, 0.0)]
    for model in models:
        model.trainer.set_sparse_updates(sparse)
        for seed in range(3):
            model.backward(seed)
            model.trainer.update()
    assert models[0].trainer.gradient_norm == models[1].trainer.gradient_norm
    all_equal(models[0].state(), models[1].state())


def test_groups_without_clipping() -> None:
    model = Model(clip=0)
    model.trainer.group(model.w, clip_threshold=0)
    model.backward(0, math.inf)
    with pytest.raises(RuntimeError, match="Nothing was updated"):
        model.trainer.update()


def test_a_program_of_dynet_uses_what_is_not_finite(tmp_path: Path) -> None:
    """As in DyNet, where only clipping looks at gradients."""
    code = """
import dynet_cy.compat
dynet_cy.compat.install()
import dynet as dy
model = dy.ParameterCollection()
w = model.add_parameters(2, init=dy.ConstInitializer(0))
trainer = dy.SimpleSGDTrainer(model)
trainer.set_clip_threshold(0)
dy.sum_elems(dy.sqrt(w)).backward()
trainer.update()
print(w.as_array(), trainer.gradient_norm)
"""
    done = run_python(tmp_path, code)
    assert (done.stdout, done.stderr) == ("[-inf -inf] None\n", "")


@pytest.mark.parametrize("beta", [None, 0.5])
def test_moving_averages(beta: float | None) -> None:
    """A dropped update does not count in the average."""
    models = [Model(), Model()]
    for model in models:
        average = model.trainer.cumulative_moving_average
        average() if beta is None else model.trainer.exponential_moving_average(beta)
    for seed in range(4):
        for model in models:
            model.backward(seed)
            model.trainer.update(skip_nonfinite=True)
        models[0].backward(seed, math.nan)
        models[0].trainer.update(skip_nonfinite=True)
    for model in models:
        model.trainer.swap_params_to_moving_average()
    all_equal(models[0].values(), models[1].values())


def test_the_error_says_how_to_find_the_line() -> None:
    model = dy.ParameterCollection()
    parameters = [model.add_parameters(1, init=0.0) for _ in range(10)]
    trainer = dy.SimpleSGDTrainer(model)
    dy.renew_cg()
    dy.esum([dy.sqrt(p) for p in parameters]).backward()
    says = (
        r"the gradients of /_0, /_1, .*, /_7 and 2 more are not finite.  Nothing was updated.  The line .* "
        r"--dynet-check, with DYNET_CY_CHECK=1 in the environment, or in `with dy.detect_anomaly\(\):`$"
    )
    with pytest.raises(RuntimeError, match=says):
        trainer.update()


def test_updates_are_counted(tmp_path: Path) -> None:
    """Dropped updates do not count; those before a checkpoint do."""
    model = dy.ParameterCollection()
    w = model.add_parameters(2, init=1.0)
    trainer = dy.AdamTrainer(model)
    for bad in (False, True, False):
        dy.renew_cg()
        dy.sum_elems(dy.log(w * 0) if bad else w).backward()
        trainer.update(skip_nonfinite=True)
    assert trainer.updates == 2
    path = tmp_path / "point.safetensors"
    dy.save_safetensors(path, model, trainer)
    restored = dy.AdamTrainer(model)
    dy.load_safetensors(path, model, restored)
    assert restored.updates == 2
