"""Deep Q-learning: a network plays in several environments side by side, and learns from remembered steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, each
from workloads.reinforce import Pole

DISCOUNT = 0.95
EXPLORATION = 0.1


class Seen(NamedTuple):
    """A remembered step."""

    before: np.ndarray
    action: int
    after: np.ndarray
    over: bool


class DQN(Workload):
    title = "double DQN, 16 steps in each of 16 environments and a minibatch of 64, hidden 256"
    unit = "steps/s"
    mode = "backward"  # after an update, rounding could change actions
    own_forms = ("map",)
    goals = (Goal("as PyTorch in step", 1.0, form="map"),)
    repeat = 8
    sizes = {"count": 16, "steps": 16, "batch": 64, "hidden": 256}
    tiny = {"count": 3, "steps": 4, "batch": 5, "hidden": 6}

    def prepare(self) -> None:
        self.starts = self.rng.uniform(-0.05, 0.05, (self.count, 4))
        drawn = self.rng.uniform(size=(self.steps, self.count))
        self.chance = np.where(drawn < EXPLORATION, (drawn * 1e6).astype(int) % 2, -1).tolist()  # -1: the best action
        self.chosen = self.rng.randint(self.count * self.steps, size=self.batch)

    @property
    def items(self) -> int:
        return self.count * self.steps

    def multiplications(self) -> float:
        return (self.count * self.steps + 3 * self.batch) * (4 + self.hidden + 2) * self.hidden

    def multiplications_of_data(self) -> float:
        return (self.count * self.steps + 3 * self.batch) * 4 * self.hidden

    def step(self, pole: Pole, action: int) -> Seen:
        before = pole.seen()
        over = pole.push(action)
        seen = Seen(before, action, pole.seen(), over)
        if over:
            pole.reset()
        return seen

    def minibatch(self, memory: list[Seen]) -> tuple[np.ndarray, list[int], np.ndarray, np.ndarray]:
        """Observations before, actions, observations after, and whether the episode ended; one example per row."""
        own = [memory[i] for i in self.chosen]
        before, after = (np.stack(seen) for seen in ([s.before for s in own], [s.after for s in own]))
        return before, [s.action for s in own], after, np.array([s.over for s in own])

    def expected(self, best: np.ndarray, values: np.ndarray, over: np.ndarray) -> np.ndarray:
        """The reward, 1 for each step, plus the value of the best action by the older network; examples are rows."""
        return (1 + DISCOUNT * np.where(over, 0, values[np.arange(len(best)), best])).astype(np.float32)

    def dynet(self, dy: Any, pc: Any) -> Loss:
        def network() -> Any:
            shapes = [(self.hidden, 4), (self.hidden, self.hidden), (2, self.hidden)]
            layers = [(pc.add_parameters(shape), pc.add_parameters(shape[0])) for shape in shapes]

            def values(x: Any) -> Any:
                for W, b in layers[:-1]:
                    x = dy.rectify(dy.affine_transform([b, W, x]))
                return dy.affine_transform([layers[-1][1], layers[-1][0], x])

            return values

        online, older = network(), network()

        def play(pole: Pole, chance: int) -> Seen:
            action = chance if chance >= 0 else int(online(dy.inputVector(pole.seen())).npvalue().argmax())
            return self.step(pole, action)

        def batch(rows: np.ndarray) -> Any:
            return dy.inputTensor(rows.T, batched=True)

        def loss(form: str) -> Any:
            poles, memory = [Pole(start) for start in self.starts], []
            for chances in self.chance:
                dy.renew_cg()
                memory += each(dy, form)(play, poles, chances)
            dy.renew_cg()
            before, actions, after, over = self.minibatch(memory)
            best = online(batch(after)).npvalue().argmax(axis=0)
            target = self.expected(best, older(batch(after)).npvalue().T, over)
            found = dy.pick_batch(online(batch(before)), actions)
            return dy.mean_batches(dy.squared_distance(found, batch(target[:, None])))

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        def network() -> Any:
            first, second = weights.linear(self.hidden, 4), weights.linear(self.hidden, self.hidden)
            last = weights.linear(2, self.hidden)
            return lambda seen: last(second(first(weights.tensor(seen)).relu()).relu())

        online, older = network(), network()

        def loss(form: str) -> Any:
            poles, memory = [Pole(start) for start in self.starts], []
            for chances in self.chance:
                with torch.no_grad():
                    if form == "batched":
                        best = online(np.stack([pole.seen() for pole in poles])).argmax(1).tolist()
                    else:
                        best = [
                            0 if chance >= 0 else online(pole.seen()).argmax().tolist()
                            for pole, chance in zip(poles, chances)
                        ]
                actions = [own if chance < 0 else chance for own, chance in zip(best, chances)]
                memory += list(map(self.step, poles, actions))
            before, taken, after, over = self.minibatch(memory)
            with torch.no_grad():
                best = online(after).argmax(1).cpu().numpy()
                target = self.expected(best, older(after).cpu().numpy(), over)
            found = online(before).gather(1, weights.tensor(taken)[:, None])[:, 0]
            return torch.nn.functional.mse_loss(found, weights.tensor(target))

        return loss


WORKLOAD = DQN
