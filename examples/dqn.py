"""Deep Q-learning: learns to balance a pole by double DQN (Mnih and others 2015; van Hasselt, Guez, Silver 2016).

    python dqn.py                        # CartPole-v1
    python dqn.py --env Acrobot-v1

A network predicts the expected return of each action.  The agent plays, choosing some actions at random, and learns
from minibatches of remembered steps.  The targets come from a second network, a copy that follows slowly.  As all
examples of a minibatch have the same graph, they are one tensor here.  Several environments are played side by side: a
step is written for one of them, and the engine computes the values of all of them together.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from functools import partial

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.curves import Curves


class Network:
    """Predicts the return after each action, with two hidden layers."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.pc = pc = dy.ParameterCollection()
        sizes = [spec["observation"], spec["hidden"], spec["hidden"], spec["actions"]]
        self.layers = [
            (pc.add_parameters((outputs, inputs)), pc.add_parameters(outputs, init=0))
            for inputs, outputs in zip(sizes, sizes[1:])
        ]

    def __call__(self, x: dy.Expression) -> dy.Expression:
        """Return the values of the actions for an observation or a batch of them."""
        *hidden, (W, b) = self.layers
        for W_hidden, b_hidden in hidden:
            x = dy.rectify(dy.affine_transform([b_hidden, W_hidden, x]))
        return dy.affine_transform([b, W, x])

    def values(self, observations: np.ndarray) -> np.ndarray:
        """Return the values of the actions as numbers (actions, n), for observations (n, observation)."""
        return self(batch_of(observations)).npvalue().reshape(-1, len(observations))

    def action(self, observation: np.ndarray) -> int:
        return int(self(dy.inputVector(observation)).npvalue().argmax())

    def best_action(self, observation: np.ndarray) -> int:
        dy.renew_cg()
        return self.action(observation)

    def follow(self, other: Network, rate: float = 1.0) -> None:
        """Move the weights towards those of another network; a rate of 1 copies them."""
        for mine, its in zip(self.pc.parameters_list(), other.pc.parameters_list()):
            mine.set_value((1 - rate) * mine.as_array() + rate * its.as_array())


def batch_of(observations: np.ndarray) -> dy.Expression:
    """Return observations (n, observation) as a batch of n vectors."""
    return dy.inputTensor(observations.T, batched=True)


class Player:
    """Plays in an environment, one episode after another."""

    def __init__(self, environment, seed: int) -> None:
        self.environment = environment
        self.rng = np.random.default_rng(seed)
        self.observation, _ = environment.reset(seed=seed)
        self.total = 0.0  # sum of the rewards of this episode

    def step(self, network: Network, exploration: float) -> tuple[tuple, float | None]:
        """Take the best action, or a random one; return the step to remember, and the return if the episode ended."""
        if self.rng.random() < exploration:
            action = int(self.rng.integers(network.spec["actions"]))
        else:
            action = network.action(self.observation)
        after, reward, terminated, truncated, _ = self.environment.step(action)
        seen = (self.observation, action, float(reward), after, terminated)
        self.observation, self.total, ended = after, self.total + float(reward), None
        if terminated or truncated:
            ended, self.total = self.total, 0.0
            self.observation, _ = self.environment.reset()
        return seen, ended


class Memory:
    """The last `size` steps, the oldest overwritten first."""

    def __init__(self, size: int, observation: int) -> None:
        self.before = np.zeros((size, observation), np.float32)
        self.after = np.zeros((size, observation), np.float32)
        self.actions, self.rewards = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self.ended = np.zeros(size, bool)
        self.count = 0

    def add(self, before: np.ndarray, action: int, reward: float, after: np.ndarray, ended: bool) -> None:
        i = self.count % len(self.actions)
        self.before[i], self.after[i] = before, after
        self.actions[i], self.rewards[i], self.ended[i] = action, reward, ended
        self.count += 1

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(min(self.count, len(self.actions)), size=size)


def loss(network: Network, target: Network, memory: Memory, chosen: np.ndarray, discount: float) -> dy.Expression:
    """Return the mean error of the values of the actions taken, for the steps `chosen` of the memory."""
    dy.renew_cg()
    after = memory.after[chosen]
    best = network.values(after).argmax(axis=0)  # the network chooses the action, its older copy evaluates it
    expected = target.values(after)[best, np.arange(len(chosen))]
    expected = memory.rewards[chosen] + discount * np.where(memory.ended[chosen], 0, expected)
    found = dy.pick_batch(network(batch_of(memory.before[chosen])), memory.actions[chosen].tolist())
    return dy.mean_batches(dy.huber_distance(found, dy.inputTensor(expected[None], batched=True), c=1.0))


def train(network: Network, target: Network, environments: list, trial, args: argparse.Namespace) -> None:
    """Learn by playing in `environments`; save the network when a trial in another environment is the best so far."""
    trainer = dy.AdamTrainer(network.pc)
    rng = np.random.default_rng(args.seed)
    players = [Player(environment, args.seed + i) for i, environment in enumerate(environments)]
    memory = Memory(args.memory, network.spec["observation"])
    recent: deque[float] = deque(maxlen=100)
    episodes, learnt, shown, start = 0, 0, 0, time.perf_counter()
    args.model.parent.mkdir(parents=True, exist_ok=True)
    best = dy.EarlyStopping(network.pc, path=args.model)  # saves the best network; nothing is stopped
    with Curves(args.curves, args.tensorboard) as curves:
        for step in range(len(players), args.steps + len(players), len(players)):
            exploration = max(args.exploration, 1 - step / (args.explore * args.steps))
            dy.renew_cg(forward_only=True)
            own = partial(Player.step, network=network, exploration=exploration)
            for seen, ended in dy.batched_map(own, players):
                memory.add(*seen)
                if ended is not None:
                    recent.append(ended)
                    episodes += 1
            for _ in range(max(step - args.warm_up, 0) // args.every - learnt):
                learnt += 1
                trainer.learning_rate = args.learning_rate * max(1 - step / (args.steps + 1), 0)
                error = loss(network, target, memory, memory.sample(args.batch, rng), args.discount)
                error.forward()
                error.backward()
                trainer.update()
                target.follow(network, args.follow)
            if recent and (step // args.report > shown or step >= args.steps):
                shown = step // args.report
                found = dy.data.mean_return(trial, network.best_action, episodes=10, seed=2 * 10**6)
                mean, seconds = float(np.mean(recent)), time.perf_counter() - start
                curves.add(step, mean_return=mean, best_actions=found)
                print(f"step {step}: {episodes} episodes, mean return of the last {len(recent)} {mean:.1f}, ", end="")
                print(f"of the best actions {found:.1f}, {seconds:.1f} s", flush=True)
                best.report(found, extra=network.spec)


def main(args: argparse.Namespace) -> None:
    environments = [dy.data.make_environment(args.env) for _ in range(args.environments)]
    observation = environments[0].observation_space.shape[0]
    spec = {"observation": observation, "actions": int(environments[0].action_space.n), "hidden": args.hidden}
    network, target = Network(spec), Network(spec)
    target.follow(network)
    train(network, target, environments, dy.data.make_environment(args.env), args)
    best = dy.load_network(args.model, Network).best_action
    found = dy.data.mean_return(environments[0], best, episodes=20, seed=10**6)
    print(f"best actions, 20 new episodes: mean return {found:.1f}, model saved in {args.model}")


if __name__ == "__main__":
    parser = commandline.Parser(
        "Learn to act by deep Q-learning.",
        batch=64,  # steps
        learning_rate=0.001,  # falls to 0
        sizes={"hidden": 128},
    )
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="an environment of gymnasium with discrete actions")
    add("--environments", type=int, default=4, help="played side by side")
    add("--steps", type=int, default=40000, help="of all environments")
    add("--warm-up", type=int, default=1000, help="steps before learning starts")
    add("--every", type=int, default=2, help="steps from one minibatch to the next")
    add("--follow", type=float, default=0.02, help="how much the copy follows after each minibatch")
    add("--report", type=int, default=4000, help="steps between two reports; the best is saved")
    add("--memory", type=int, default=50000, help="steps to remember")
    add("--discount", type=float, default=0.95)
    add("--exploration", type=float, default=0.02, help="final rate of random actions")
    add("--explore", type=float, default=0.1, help="fraction of the steps over which the rate falls from 1")
    parser.run(main)
