"""Moving averages of parameters that trainers keep."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy


class Run:
    """A parameter and a table, and the values that they had after each update."""

    def __init__(self, trainer: str = "MomentumSGDTrainer", decay: float = 0.0) -> None:
        self.pc = dy.ParameterCollection()
        self.pc.set_weight_decay(decay)
        self.w = self.pc.add_parameters((3,))
        self.e = self.pc.add_lookup_parameters((4, 2))
        self.trainer = getattr(dy, trainer)(self.pc)
        self.values: list[np.ndarray] = []

    def now(self) -> np.ndarray:
        return np.concatenate([self.w.as_array(), self.e.as_array().ravel()]).astype(np.float64)

    def step(self, n: int) -> None:
        for i in range(n):
            dy.renew_cg()
            (dy.squared_norm(self.w - dy.inputVector([1, 2, 3])) + dy.sum_elems(self.e[i % 3])).backward()
            self.trainer.update()
            self.values.append(self.now())


def exponential(values: list[np.ndarray], beta: float) -> np.ndarray:
    weights = [beta ** (len(values) - 1 - i) for i in range(len(values))]
    return np.average(values, axis=0, weights=weights)


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("frequency", [1, 3])
@pytest.mark.parametrize("beta", [None, 0.0, 0.9])
def test_averages(beta: float | None, frequency: int, decay: float) -> None:
    run = Run(decay=decay)
    run.step(2)  # not in the average
    if beta is None:
        run.trainer.cumulative_moving_average(frequency)
    else:
        run.trainer.exponential_moving_average(beta, frequency)
    run.step(7)
    taken = run.values[2:][frequency - 1 :: frequency]
    want = np.mean(taken, axis=0) if beta is None else exponential(taken, beta)
    before = run.now()
    run.trainer.swap_params_to_moving_average()
    np.testing.assert_allclose(run.now(), want, rtol=1e-5, atol=1e-6)
    dy.renew_cg()
    np.testing.assert_allclose(run.w.npvalue(), want[:3], rtol=1e-5, atol=1e-6)
    run.trainer.swap_params_to_weights()
    np.testing.assert_array_equal(run.now(), before)


def test_without_correction() -> None:
    run = Run()
    run.trainer.exponential_moving_average(0.9)
    run.step(4)
    run.trainer.swap_params_to_moving_average(bias_correction=False)
    np.testing.assert_allclose(run.now(), exponential(run.values, 0.9) * (1 - 0.9**4), rtol=1e-5)


def test_training_goes_on_as_if_nothing_was_averaged() -> None:
    run = Run("AdamTrainer")
    other = copy.deepcopy(run)
    run.trainer.cumulative_moving_average()
    run.step(3)
    run.trainer.swap_params_to_moving_average()
    run.trainer.swap_params_to_weights()
    run.trainer.restart()
    run.step(3)
    other.step(3)
    other.trainer.restart()
    other.step(3)
    np.testing.assert_array_equal(run.now(), other.now())
    run.trainer.swap_params_to_moving_average()
    np.testing.assert_allclose(run.now(), np.mean(run.values, axis=0), rtol=1e-5, atol=1e-6)


def test_what_cannot_be() -> None:
    run = Run()
    trainer = run.trainer
    with pytest.raises(RuntimeError, match="there is no average"):
        trainer.swap_params_to_moving_average()
    trainer.cumulative_moving_average(2)
    run.step(1)
    with pytest.raises(RuntimeError, match="there is no average"):
        trainer.swap_params_to_moving_average()
    with pytest.raises(RuntimeError, match="are not set to their moving average"):
        trainer.swap_params_to_weights()
    run.step(1)
    trainer.swap_params_to_moving_average()
    for call in (run.trainer.update, trainer.cumulative_moving_average):
        with pytest.raises(RuntimeError, match="swap_params_to_weights comes before"):
            call()
    with pytest.raises(RuntimeError, match="set to it already"):
        trainer.swap_params_to_moving_average()
    trainer.swap_params_to_weights()
    trainer.swap_params_to_moving_average(save_weights=False)
    with pytest.raises(RuntimeError, match="save_weights was False"):
        trainer.swap_params_to_weights()


def test_arguments() -> None:
    trainer = Run().trainer
    for beta in (1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="beta must be from 0 to below 1"):
            trainer.exponential_moving_average(beta)
    for frequency in (0, -1, 1.5):
        with pytest.raises(ValueError, match="update_freq must be a whole number of at least 1"):
            trainer.cumulative_moving_average(frequency)


def saved(trainer: Any, folder: Path) -> None:
    """Save a trainer with its average, and load it again, with parameters in another state in between."""
    dy.save_safetensors(folder / "file", trainer.collection, trainer)
    trainer.cumulative_moving_average(7)
    dy.load_safetensors(folder / "file", trainer.collection, trainer)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("frequency", [1, 2])
@pytest.mark.parametrize("beta", [None, 0.9])
def test_parameters_added_and_removed_later(beta: float | None, frequency: int, stored: bool, tmp_path: Path) -> None:
    """The average of each parameter is that of its own values, also if as many are added as are removed."""
    run = Run()
    mean = (lambda values: np.mean(values, axis=0)) if beta is None else (lambda values: exponential(values, beta))
    if beta is None:
        run.trainer.cumulative_moving_average(frequency)
    else:
        run.trainer.exponential_moving_average(beta, frequency)
    lost = run.pc.add_parameters(3, init=5.0, name="late")
    run.step(4)
    run.pc.remove(lost)
    late, values = run.pc.add_parameters(3, init=9.0, name="late"), []
    for _ in range(6):
        dy.renew_cg()
        dy.squared_norm(late).backward()
        run.step(1)
        values.append(late.as_array().astype(np.float64))
        if stored:
            saved(run.trainer, tmp_path)
    new = run.pc.add_parameters(2, init=7.0)  # has no value in the average yet
    before = [run.now(), late.as_array()]
    run.trainer.swap_params_to_moving_average()
    other = run.pc.add_parameters(2, init=8.0)
    np.testing.assert_allclose(run.now(), mean(run.values[frequency - 1 :: frequency]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(late.as_array(), mean(values[frequency - 1 :: frequency]), rtol=1e-5, atol=1e-6)
    assert new.as_array().tolist() == [7.0, 7.0]
    run.trainer.swap_params_to_weights()
    assert (run.now() == before[0]).all()
    assert (late.as_array() == before[1]).all()
    assert new.as_array().tolist() == [7.0, 7.0]
    assert other.as_array().tolist() == [8.0, 8.0]
    assert lost.as_array().tolist() != [0.0, 0.0, 0.0]
