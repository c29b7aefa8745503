"""Gymnasium's environments, for `reinforce.py` and `dqn.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def make_environment(name: str):
    """Return an environment with vectors as observations and a number of discrete actions, such as CartPole-v1."""
    try:
        import gymnasium
    except ImportError:
        raise ValueError("no environments: pip install gymnasium") from None
    try:
        environment = gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise ValueError(f"{name}: {error}") from error
    observations, actions = environment.observation_space, environment.action_space
    if not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
        raise ValueError(f"{name}: observations must be vectors, these are {observations}")
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise ValueError(f"{name}: actions must be discrete, these are {actions}")
    return environment


def mean_return(environment, act: Callable[[np.ndarray], int], episodes: int, seed: int) -> float:
    """Play some episodes with a policy and return the mean of their returns (without discount)."""
    total = 0.0
    for episode in range(episodes):
        observation, _ = environment.reset(seed=seed + episode)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total += float(reward)
            over = terminated or truncated
    return total / episodes
