"""Early stopping, and gradient accumulation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy


class Model:
    def __init__(self) -> None:
        self.m = dy.ParameterCollection()
        self.w = self.m.add_parameters(2, init=0.0, name="w")
        self.e = self.m.add_lookup_parameters((3, 2), init=0.0, name="e")

    def set(self, value: float) -> None:
        self.w.set_value([value, value])
        self.e.init_row(1, [value, value])

    def values(self) -> list[float]:
        return [*self.w.as_array().tolist(), *self.e.as_array()[1].tolist()]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_it_stops_and_has_the_best(kind: str, tmp_path: Path) -> None:
    model = Model()
    path = tmp_path / "best" if kind == "file" else None
    stopping = dy.EarlyStopping(model.m, patience=2, mode="min", min_delta=0.25, path=path)
    told = []
    for loss in (3.0, 2.0, 1.875, 1.5, math.nan, 1.375):
        model.set(loss)
        assert not stopping.stopped
        told.append(stopping.report(loss, extra={"loss": loss}))
    assert stopping.stopped
    assert told == [True, True, False, True, False, False]
    assert (stopping.best, stopping.best_at) == (1.5, 4)
    stopping.reload()
    assert model.values() == [1.5] * 4
    if path is not None:
        assert dy.read_extra(path) == {"loss": 1.5}


def test_going_on(tmp_path: Path) -> None:
    model = Model()
    stopping = dy.EarlyStopping(model.m, patience=2, path=tmp_path / "best")
    for score in (0.5, 0.25):
        model.set(score)
        stopping.report(score)
    dy.save_safetensors(tmp_path / "c", model.m, extra={"stopping": stopping.state()})
    model = Model()
    again = dy.EarlyStopping(model.m, patience=2, path=tmp_path / "best")
    again.restore(dy.load_safetensors(tmp_path / "c", model.m)["stopping"])
    assert not again.stopped
    assert not again.report(0.375)
    assert again.stopped
    again.reload()
    assert model.values() == [0.5] * 4


def test_reload_leaves_random_streams_alone(tmp_path: Path) -> None:
    model = Model()
    stopping = dy.EarlyStopping(model.m, path=tmp_path / "best")
    stopping.report(1.0)
    drawn = []
    for reloads in (False, True):
        dy.reset_random_seed(7)
        dy.renew_cg()
        dy.random_uniform(3, 0.0, 1.0).npvalue()
        if reloads:
            stopping.reload()
        dy.renew_cg()
        drawn.append(dy.random_uniform(3, 0.0, 1.0).npvalue().tolist())
    assert drawn[0] == drawn[1]


def test_errors(tmp_path: Path) -> None:
    model = Model()
    with pytest.raises(TypeError, match="collection: expected a ParameterCollection or a layer, got list; write"):
        dy.EarlyStopping([model.w])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="EarlyStopping: patience must be at least 1, not 0"):
        dy.EarlyStopping(model.m, patience=0)
    stopping = dy.EarlyStopping(model.m)
    with pytest.raises(RuntimeError, match="no number has been reported yet"):
        stopping.reload()
    with pytest.raises(TypeError, match="EarlyStopping.report: value must be a number, not 'good'"):
        stopping.report("good")  # type: ignore[arg-type]
    stopping.report(1.0)
    with pytest.raises(RuntimeError, match="in memory and would be lost; give it a path"):
        stopping.state()
    model.m.add_parameters(1, name="late")
    with pytest.raises(RuntimeError, match="/late was added since"):
        stopping.reload()
    with pytest.raises(ValueError, match="best"):
        stopping.restore({"best": "x", "best_at": 0, "seen": 0, "waited": 0})


# ---- gradient accumulation: docs/training.md


@pytest.mark.parametrize("threshold", [0.0, 0.05])
@pytest.mark.parametrize("sizes", [[8], [4, 4], [3, 3, 2]])
def test_several_parts_are_one_update(sizes: list[int], threshold: float) -> None:
    """Compared with float64: steps along the mean gradient of all parts, clipped by its norm."""
    rng = np.random.default_rng(1)
    start = rng.normal(size=(3, 4)).astype(np.float32)
    xs, ts = rng.normal(size=(2, 8, 4)), rng.integers(3, size=(2, 8))
    m = dy.ParameterCollection()
    W = m.add_parameters((3, 4), init=start)
    trainer = dy.SimpleSGDTrainer(m, 0.5)
    trainer.set_clip_threshold(threshold)
    trainer.schedule = dy.StepSchedule(1, by=0.5)
    want = start.astype(np.float64)
    for update in range(2):
        first = 0
        for size in sizes:
            dy.renew_cg()
            here = range(first, first + size)
            losses = [dy.pickneglogsoftmax(W * dy.inputVector(xs[update, i]), int(ts[update, i])) for i in here]
            (dy.esum(losses) / 8).backward()
            first += size
        trainer.update()
        scores = want @ xs[update].T.astype(np.float32).astype(np.float64)
        p = np.exp(scores - scores.max(0))
        p /= p.sum(0)
        p[ts[update], np.arange(8)] -= 1
        gradient = p @ xs[update].astype(np.float32).astype(np.float64) / 8
        norm = np.linalg.norm(gradient)
        assert trainer.gradient_norm == pytest.approx(norm, rel=1e-5)
        if threshold and norm > threshold:
            gradient *= threshold / norm
        want -= 0.5 * 0.5**update * gradient
    np.testing.assert_allclose(W.as_array(), want, rtol=1e-5, atol=1e-6)


def test_a_part_that_is_not_finite_drops_the_sum() -> None:
    model = Model()
    trainer = dy.SimpleSGDTrainer(model.m)
    for scale in (1.0, math.inf, 1.0):
        dy.renew_cg()
        (dy.sum_elems(model.w) * scale).backward()
    trainer.update(skip_nonfinite=True)
    assert trainer.skipped_updates == 1
    assert model.values() == [0.0] * 4
