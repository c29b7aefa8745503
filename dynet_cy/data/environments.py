"""Reinforcement learning: environments of gymnasium, and returns of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt


def make_environment(name: str) -> Any:
    """An environment of gymnasium with vectors as observations and a number of discrete actions.

    Args:
        name: such as "CartPole-v1"

    Raises:
        ValueError: gymnasium is not installed (``pip install gymnasium``), it has no such environment, or actions or
            observations are of another kind

    Example:
        >>> environment = dy.data.make_environment("CartPole-v1")  # doctest: +SKIP
        >>> environment.observation_space.shape, environment.action_space.n  # doctest: +SKIP
        ((4,), 2)
    """
    try:
        import gymnasium

        environment = gymnasium.make(name)
    except ImportError:
        raise ValueError("no environments: pip install gymnasium") from None
    except gymnasium.error.Error as error:
        raise ValueError(f"{name}: {error}") from error
    observations, actions = environment.observation_space, environment.action_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or len(observations.shape or ()) != 1:
        raise ValueError(f"{name}: actions must be discrete and observations vectors, not {actions} and {observations}")
    return environment


def mean_return(environment: Any, act: Callable[[npt.NDArray[Any]], int], episodes: int, seed: int) -> float:
    """The mean undiscounted return of some episodes.

    Args:
        environment: one with `reset` and `step` as in gymnasium
        act: the policy, a function from observations to actions
        episodes: how many are played, at least 1
        seed: of the first episode; the next ones have the numbers after it

    Raises:
        ValueError: `episodes` is below 1

    Example:
        >>> class Countdown:
        ...     def reset(self, seed):
        ...         self.left = 3
        ...         return np.array([self.left]), {}
        ...     def step(self, action):
        ...         self.left -= 1
        ...         return np.array([self.left]), float(action), self.left == 0, False, {}
        >>> dy.data.mean_return(Countdown(), lambda observation: 2, episodes=5, seed=1)
        6.0
    """
    if episodes < 1:
        raise ValueError(f"mean_return: argument episodes: expected at least 1, got {episodes}")
    total = 0.0
    for episode in range(episodes):
        (observation, _), over = environment.reset(seed=seed + episode), False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def discounted_returns(rewards: Sequence[float], discount: float) -> list[float]:
    """The discounted return of each step of an episode.

    Args:
        rewards: those of all steps
        discount: from 0 to 1

    Example:
        >>> dy.data.discounted_returns([1.0, 0.0, 4.0], 0.5)
        [2.0, 2.0, 4.0]
    """
    found: list[float] = []
    for reward in reversed(list(rewards)):  # a series of pandas has other items by number
        found.append(reward + discount * (found[-1] if found else 0.0))
    return found[::-1]
