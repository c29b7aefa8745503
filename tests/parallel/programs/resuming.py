"""A training run that saves in the middle of an epoch, or resumes: arguments FOLDER, WHAT ("whole" or "rest"), SAVES.

"whole" saves a checkpoint after SAVES updates and goes on to the end; "rest" starts from that checkpoint. Both programs
write their results to FOLDER/WHAT-RANK.npz.
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import dynet_cy as dy
from dynet_cy.model.parameters import gradient_state

EPOCHS = 2
ITEMS = 21


class Training:
    """Dropout, a table, Adam with weight decay and a moving average, and random numbers from everywhere."""

    def __init__(self, seed: int) -> None:
        dy.reset_random_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.m = dy.ParameterCollection()
        self.m.set_weight_decay(1e-3)
        self.E = self.m.add_lookup_parameters((30, 8), name="E")
        self.frozen = self.m.add_parameters((8, 8), name="frozen")
        self.frozen.set_updated(False)
        self.rnn = dy.LSTMBuilder(1, 8, 16, self.m)
        self.rnn.set_dropouts(0.2, 0.2)
        self.U = self.m.add_parameters((4, 16), name="U")
        self.t = dy.AdamTrainer(self.m)
        self.t.set_clip_threshold(0.5)
        self.t.cumulative_moving_average() if dy.parallel.mode() == "sync" else None
        self.t = dy.parallel.wrap(self.t)
        self.rng = random.Random(seed)
        self.generator = np.random.default_rng(seed)
        self.data = dy.parallel.shard(list(range(ITEMS)), shuffle=True, seed=3)
        self.updates = 0
        self.seen: list[tuple[int, int]] = []

    def update(self, item: int) -> None:
        dy.renew_cg()
        words = [(item * 7 + i) % 30 for i in range(3 + self.rng.randrange(3))]
        h = self.rnn.initial_state().transduce([self.frozen * dy.dropout(self.E[w], 0.3) for w in words])[-1]
        noise = random.random() + np.random.random() + self.generator.random()
        (dy.pickneglogsoftmax(self.U * h, item % 4) * (1 + noise)).backward()
        self.t.learning_rate *= 0.99
        self.t.update()
        self.updates += 1
        self.seen.append((self.data.epoch, item))

    def parts(self) -> dict[str, Any]:
        return {"data": self.data, "generators": [self.rng, self.generator]}

    def results(self) -> dict[str, Any]:
        found = {f"{k} {x.name()}": a for x, arrays in self.states() for k, a in enumerate(arrays)}
        found["learning rate"] = self.t.learning_rate
        found["random"] = [self.rng.random(), self.generator.random(), random.random(), np.random.random()]
        found["seen"] = np.array(self.seen)
        dy.renew_cg()
        found["noise"] = dy.random_uniform(5, 0.0, 1.0).npvalue()
        return found

    def states(self) -> list[tuple[Any, list[Any]]]:
        stored = [*self.m.parameters_list(), *self.m.lookup_parameters_list()]
        states = dict(zip((x.name() for x in self.m._below()), self.t._state_arrays()))
        return [
            (x, [x.as_array(), *(states[x.name()] or []), np.float32(0 if gradient_state(x) is None else 1)])
            for x in stored
        ]


def run(folder: Path, what: str, saves: int) -> Training:
    training = Training(1 if what == "whole" else 2)
    if what == "rest":
        extra = dy.parallel.load_checkpoint(folder / "checkpoint", training.m, training.t, **training.parts())
        assert extra == {"best": 0.5}
    while training.data.epoch < EPOCHS:
        for item in training.data:
            training.update(item)
            if what == "whole" and training.updates == saves:
                dy.parallel.save_checkpoint(
                    folder / "checkpoint", training.m, training.t, **training.parts(), extra={"best": 0.5}
                )
                training.seen.clear()
    return training


if __name__ == "__main__":
    warnings.simplefilter("always")
    folder, what, saves = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    training = run(folder, what, saves)
    np.savez(folder / f"{what}-{dy.parallel.rank()}.npz", **training.results())
