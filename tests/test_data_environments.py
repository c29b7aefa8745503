"""Environments: what gymnasium cannot give, and returns."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import dynet_cy as dy


class Counting:
    """Episodes of as many steps as the seed says; the reward is the action."""

    def reset(self, seed: int):
        self.left = seed
        return np.array([self.left]), {}

    def step(self, action: int):
        self.left -= 1
        return np.array([self.left]), action, self.left == 0, False, {}


def test_mean_return() -> None:
    assert dy.data.mean_return(Counting(), lambda seen: int(seen[0]), episodes=3, seed=2) == (3 + 6 + 10) / 3
    with pytest.raises(ValueError, match="mean_return: argument episodes: expected at least 1, got 0"):
        dy.data.mean_return(Counting(), int, episodes=0, seed=1)


def test_discounted_returns() -> None:
    assert dy.data.discounted_returns([], 0.9) == []
    assert dy.data.discounted_returns([1.0, 2.0, 3.0], 1.0) == [6.0, 5.0, 3.0]
    assert dy.data.discounted_returns([1.0, 2.0, 3.0], 0.0) == [1.0, 2.0, 3.0]


def test_environments() -> None:
    pytest.importorskip("gymnasium", reason="needs the environments of gymnasium")
    environment = dy.data.make_environment("CartPole-v1")
    assert environment.observation_space.shape == (4,)
    assert dy.data.mean_return(environment, lambda seen: 0, episodes=2, seed=1) < 20
    for name, message in [("Pendulum-v1", "actions must be discrete"), ("None-v0", "None")]:
        with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
            dy.data.make_environment(name)


def test_without_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ValueError, match="^no environments: pip install gymnasium$"):
        dy.data.make_environment("CartPole-v1")
