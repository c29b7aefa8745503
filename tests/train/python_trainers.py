"""Rules of built-in trainers as classes derived from `PythonTrainer`."""

from __future__ import annotations

from typing import Any

import numpy as np

import dynet_cy as dy


class SGD(dy.PythonTrainer):
    """As `SimpleSGDTrainer`."""

    def step(self, p: Any, settings: Any) -> Any:
        return -np.float32(settings.learning_rate) * p.gradient


class Adam(dy.PythonTrainer):
    """As `AdamTrainer`."""

    state_names = ("mean", "square")

    def __init__(self, m: dy.ParameterCollection, learning_rate: float = 0.001, eps: float = 1e-3) -> None:
        super().__init__(m, learning_rate)
        self.eps = eps

    def step(self, p: Any, settings: Any) -> Any:
        t = settings.update
        mean, square = p.state["mean"], p.state["square"]
        mean += np.float32(0.1) * (p.gradient - mean)
        p.state["square"] = np.float32(0.999) * square + np.float32(0.001) * p.gradient * p.gradient
        root = np.sqrt(p.state["square"] / np.float32(1 - 0.999**t))
        return -np.float32(settings.learning_rate / (1 - 0.9**t)) * mean / (root + np.float32(self.eps))


class ManyStates(dy.PythonTrainer):
    """Five states, more than a rule of the engine may have: each holds the gradient of one more update ago."""

    state_names = ("a", "b", "c", "d", "e")

    def step(self, p: Any, settings: Any) -> Any:
        for new, old in zip("edcb", "dcba"):
            p.state[new] = p.state[old].copy()
        p.state["a"][...] = p.gradient
        return -settings.learning_rate * p.state["e"]
