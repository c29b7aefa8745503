"""REINFORCE: a network balances poles, each until it falls, and learns from how long that took."""

from __future__ import annotations

from math import cos, sin
from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, each


class Pole:
    """A pole on a cart that is pushed to the left or to the right (Barto, Sutton and Anderson 1983)."""

    def __init__(self, start: np.ndarray) -> None:
        self.start = start
        self.reset()

    def reset(self) -> None:
        self.place, self.speed, self.angle, self.spin = self.start.tolist()

    def seen(self) -> np.ndarray:
        return np.array([self.place, self.speed, self.angle, self.spin], np.float32)

    def push(self, right: int) -> bool:
        """Simulate a fiftieth of a second; returns whether the pole has fallen, or the cart has left its track."""
        force = 10.0 if right else -10.0
        pull = (force + 0.05 * self.spin**2 * sin(self.angle)) / 1.1
        turn = (9.8 * sin(self.angle) - cos(self.angle) * pull) / (0.5 * (4 / 3 - 0.1 * cos(self.angle) ** 2 / 1.1))
        push = pull - 0.05 * turn * cos(self.angle) / 1.1
        self.place, self.speed = self.place + 0.02 * self.speed, self.speed + 0.02 * push
        self.angle, self.spin = self.angle + 0.02 * self.spin, self.spin + 0.02 * turn
        return abs(self.place) > 2.4 or abs(self.angle) > 0.2095


def advantages(lengths: list[int]) -> np.ndarray:
    """For all steps of episodes with a reward of 1 per step: the return, standardized over all steps."""
    returns = np.concatenate([(1 - 0.99 ** np.arange(n, 0, -1)) / 0.01 for n in lengths])
    return (returns - returns.mean()) / (returns.std() + 1e-8)


class Reinforce(Workload):
    title = "REINFORCE, 32 episodes that end when they end, hidden 256"
    unit = "episodes/s"
    mode = "backward"  # after an update, rounding could change actions
    own_forms = ("map",)
    goals = (Goal("2x PyTorch in step", 2.0, form="map"),)
    repeat = 4
    sizes = {"count": 32, "longest": 200, "hidden": 256}
    tiny = {"count": 4, "longest": 12, "hidden": 6}

    def prepare(self) -> None:
        self.starts = self.rng.uniform(-0.05, 0.05, (self.count, 4))
        self.luck = self.rng.uniform(size=(self.count, self.longest))  # which actions are drawn

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        """An upper bound: as if no pole fell."""
        return self.count * self.longest * (4 + self.hidden + 2) * self.hidden

    def multiplications_of_data(self) -> float:
        return self.count * self.longest * 4 * self.hidden

    def dynet(self, dy: Any, pc: Any) -> Loss:
        shapes = [(self.hidden, 4), (self.hidden, self.hidden), (2, self.hidden)]
        layers = [(pc.add_parameters(shape), pc.add_parameters(shape[0])) for shape in shapes]

        def play(start: np.ndarray, luck: np.ndarray) -> list[Any]:
            pole, taken = Pole(start), []
            for drawn in luck:
                x = dy.inputVector(pole.seen())
                for W, b in layers[:-1]:
                    x = dy.tanh(dy.affine_transform([b, W, x]))
                W, b = layers[-1]
                scores = dy.log_softmax(dy.affine_transform([b, W, x]))
                right = int(drawn < np.exp(scores.npvalue()[1]))
                taken.append(dy.pick(scores, right))
                if pole.push(right):
                    break
            return taken

        def loss(form: str) -> Any:
            episodes = each(dy, form)(play, self.starts, self.luck)
            taken = [one for episode in episodes for one in episode]
            gains = [one * float(a) for one, a in zip(taken, advantages(list(map(len, episodes))))]
            return dy.esum(gains) / -len(taken)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        first, second = weights.linear(self.hidden, 4), weights.linear(self.hidden, self.hidden)
        last = weights.linear(2, self.hidden)

        def policy(seen: np.ndarray) -> Any:
            return last(second(first(weights.tensor(seen)).tanh()).tanh()).log_softmax(-1)

        def play(start: np.ndarray, luck: np.ndarray) -> list[Any]:
            pole, taken = Pole(start), []
            for drawn in luck:
                scores = policy(pole.seen())
                right = int(drawn < np.exp(scores.tolist()[1]))
                taken.append(scores[right])
                if pole.push(right):
                    break
            return taken

        def batched() -> list[list[Any]]:
            """All poles that have not fallen are pushed in step."""
            poles = [Pole(start) for start in self.starts]
            episodes: list[list[Any]] = [[] for _ in poles]
            going = list(range(self.count))
            for step in range(self.longest):
                scores = policy(np.stack([poles[i].seen() for i in going]))
                shares = scores.detach()[:, 1].exp().tolist()
                actions = [int(self.luck[i, step] < share) for i, share in zip(going, shares)]
                taken = scores.gather(1, weights.tensor(actions)[:, None])[:, 0].unbind()
                for i, one in zip(going, taken):
                    episodes[i].append(one)
                going = [i for i, right in zip(going, actions) if not poles[i].push(right)]
                if not going:
                    break
            return episodes

        def loss(form: str) -> Any:
            episodes = batched() if form == "batched" else list(map(play, self.starts, self.luck))
            taken = torch.stack([one for episode in episodes for one in episode])
            weighed = weights.tensor(advantages(list(map(len, episodes))).astype(np.float32))
            return -(taken * weighed).mean()

        return loss


WORKLOAD = Reinforce
