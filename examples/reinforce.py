"""Policy gradients: learns to balance a pole by REINFORCE with a baseline (Williams 1992).

    python reinforce.py                        # CartPole-v1
    python reinforce.py --env Acrobot-v1

A small network computes the probabilities of the actions, from which the action is drawn.  The graph that plays an
episode is also the one that learns from it: it grows with every step, the program reads values midway, and at the end
the log probabilities of the actions are weighted by the returns that followed, minus the expected returns.
Several episodes of different lengths are played side by side, and the engine computes their networks together.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import NamedTuple

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.curves import Curves


class Network:
    """Computes the log probabilities of the actions, and the expected return."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.pc = pc = dy.ParameterCollection()
        inputs, hidden, actions = spec["observation"], spec["hidden"], spec["actions"]
        self.W = pc.add_parameters((hidden, inputs))
        self.b = pc.add_parameters(hidden, init=0)
        self.W_policy = pc.add_parameters((actions, hidden))
        self.b_policy = pc.add_parameters(actions, init=0)
        self.W_value = pc.add_parameters((hidden, inputs))
        self.b_value = pc.add_parameters(hidden, init=0)
        self.v = pc.add_parameters((1, hidden))

    def policy(self, observation: np.ndarray) -> dy.Expression:
        h = dy.tanh(dy.affine_transform([self.b, self.W, dy.inputVector(observation)]))
        return dy.log_softmax(dy.affine_transform([self.b_policy, self.W_policy, h]))

    def value(self, observation: np.ndarray) -> dy.Expression:
        h = dy.tanh(dy.affine_transform([self.b_value, self.W_value, dy.inputVector(observation)]))
        return self.v * h

    def best_action(self, observation: np.ndarray) -> int:
        dy.renew_cg()
        return int(self.policy(observation).npvalue().argmax())


class Episode(NamedTuple):
    """The record of an episode."""

    log_probabilities: list[dy.Expression]  # of the actions taken
    values: list[dy.Expression]
    rewards: list[float]


def play_one(network: Network, environment, seed: int) -> Episode:
    """Play an episode: until it is over, draw an action from the network's probabilities and take it."""
    rng = np.random.default_rng(seed)
    episode, over = Episode([], [], []), False
    observation, _ = environment.reset(seed=seed)
    while not over:
        scores = network.policy(observation)
        episode.values.append(network.value(observation))
        probabilities = np.exp(scores.npvalue().astype(np.float64))
        action = int(rng.choice(len(probabilities), p=probabilities / probabilities.sum()))
        observation, reward, terminated, truncated, _ = environment.step(action)
        episode.log_probabilities.append(dy.pick(scores, action))
        episode.rewards.append(float(reward))
        over = terminated or truncated
    return episode


def play(network: Network, environments: list, seed: int) -> list[Episode]:
    """Play an episode in each environment, side by side, in one graph."""
    dy.renew_cg()
    seeds = range(seed, seed + len(environments))
    return dy.batched_map(lambda environment, own: play_one(network, environment, own), environments, seeds)


def loss(episodes: list[Episode], discount: float) -> dy.Expression:
    """Return the mean over all steps: minus log probability times advantage, and the error of the value."""
    returns = np.array([r for episode in episodes for r in dy.data.discounted_returns(episode.rewards, discount)])
    values = [value for episode in episodes for value in episode.values]
    log_probabilities = [p for episode in episodes for p in episode.log_probabilities]
    scale = (1 - discount**100) / (1 - discount) if discount < 1 else 100  # values are learned as fractions of this
    targets = returns / scale
    dy.forward(values)
    advantages = targets - np.array([value.scalar_value() for value in values])
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gains = [p * float(a) for p, a in zip(log_probabilities, advantages)]
    errors = [dy.square(value - float(target)) for value, target in zip(values, targets)]
    return (dy.esum(errors) - dy.esum(gains)) / len(values)


def train(network: Network, environments: list, args: argparse.Namespace) -> None:
    """Play and learn; save the network at each report."""
    trainer = dy.AdamTrainer(network.pc, args.learning_rate)
    args.model.parent.mkdir(parents=True, exist_ok=True)
    recent: deque[float] = deque(maxlen=100)
    steps, start, shown = 0, time.perf_counter(), 0
    with Curves(args.curves, args.tensorboard) as curves:
        for played in range(0, args.episodes, len(environments)):
            episodes = play(network, environments[: args.episodes - played], args.seed + played)
            error = loss(episodes, args.discount)
            error.forward()
            error.backward()
            trainer.update()
            recent.extend(sum(episode.rewards) for episode in episodes)
            steps += sum(len(episode.rewards) for episode in episodes)
            now = played + len(episodes)
            if now // args.report > shown or now == args.episodes:
                shown = now // args.report
                mean, seconds = float(np.mean(recent)), time.perf_counter() - start
                curves.add(now, mean_return=mean)
                speed = f"{steps} steps, {seconds:.1f} s, {steps / seconds:.0f} steps/s"
                print(f"episode {now}: mean return of the last {len(recent)} {mean:.1f}, {speed}", flush=True)
                dy.save_safetensors(args.model, network.pc, extra=network.spec)


def main(args: argparse.Namespace) -> None:
    environments = [dy.data.make_environment(args.env) for _ in range(args.batch)]
    observation = environments[0].observation_space.shape[0]
    actions = int(environments[0].action_space.n)
    network = Network({"observation": observation, "actions": actions, "hidden": args.hidden})
    train(network, environments, args)
    network = dy.load_network(args.model, Network)
    found = dy.data.mean_return(environments[0], network.best_action, episodes=20, seed=10**6)
    print(f"best actions, 20 new episodes: mean return {found:.1f}, model saved in {args.model}")


if __name__ == "__main__":
    parser = commandline.Parser(
        "Learn to act by REINFORCE.",
        batch=8,  # episodes played side by side, for each update
        learning_rate=0.01,
        sizes={"hidden": 64},
    )
    parser.add_argument("--env", default="CartPole-v1", help="an environment of gymnasium with discrete actions")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--report", type=int, default=100, help="episodes between two reports; each saves the network")
    parser.add_argument("--discount", type=float, default=0.99)
    parser.run(main)
