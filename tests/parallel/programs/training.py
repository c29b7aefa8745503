"""Small training runs; each gives the same results with one process and batches of 4 as with two and batches of 2.

Arguments: FOLDER [general|devices|graphs]. Run by the launcher, it writes the parameters after each training to
FOLDER/RANK.npz; with "general", gradients are summed as any communicator does, not in place; with "devices", some
parameters are on a GPU and some on the CPU; with "graphs", all are on the CPU, and part of each graph is on a GPU.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.memory.storage import get_default_device
from dynet_cy.model.parameters import deferred_updates
from dynet_cy.parallel.communicator import Communicator
from dynet_cy.parallel.runtime import current, use
from dynet_cy.parallel.shared import SharedCommunicator

TRAINERS = [getattr(dy, n) for n in dy.__all__ if n.endswith("Trainer") and n not in ("Trainer", "PythonTrainer")]
EXAMPLES = 24
# Larger than the default: steps divide by it where gradients are almost zero, and would amplify differences in rounding
# between devices or orders of summation.
EPS = 1e-3
BATCH = 4
ON_GPU = {"E", "U", "unused"} if "devices" in sys.argv else set()
GRAPHS_ON_GPU = "graphs" in sys.argv


def place(name: str) -> dict[str, str]:
    """The device of a parameter, if the program chooses one."""
    return {"device": "GPU:0" if name in ON_GPU else "CPU"} if ON_GPU else {}


class Training:
    """A model of parameters and tables, and a few updates of it."""

    trainer = dy.AdamTrainer
    clip = 0.5
    decay = 1e-3
    reduction = "mean"
    rows = 30  # of the table E

    def __init__(self) -> None:
        dy.reset_random_seed(7)
        self.m = dy.ParameterCollection()
        self.m.set_weight_decay(self.decay)
        self.E = self.m.add_lookup_parameters((self.rows, 5), name="E", **place("E"))
        self.W = self.m.add_parameters((9, 5), name="W", **place("W"))
        self.b = self.m.add_parameters(9, name="b", **place("b"))
        self.unused = self.m.add_parameters((3, 3), name="unused", **place("unused"))
        self.U = self.m.add_parameters((4, 9), name="U", **place("U"))
        self.F = self.m.add_lookup_parameters((12, 9), name="F", **place("F"))
        settings = {"eps": EPS} if "eps" in inspect.signature(self.trainer).parameters else {}
        self.t = self.trainer(self.m, **settings)
        self.t.set_clip_threshold(self.clip)
        if isinstance(self.t, dy.AdamTrainer):
            self.t.learning_rate = 0.02  # large enough for the training runs to differ
        self.prepare()
        self.t = dy.parallel.wrap(self.t, self.reduction)
        rng = np.random.default_rng(3)
        self.data = [tuple(int(i) for i in rng.integers((30, 30, 12, 4))) for _ in range(EXAMPLES)]

    def prepare(self) -> None:
        """Called before the trainer is wrapped."""

    def loss(self, example: tuple[int, ...]) -> dy.Expression:
        i, j, k, y = example
        x = self.E[i] - self.E[j]
        h = dy.tanh(self.W * (dy.to_device(x, "CPU") if ON_GPU else x) + self.b) + self.F[k]
        scores = self.U * (dy.to_device(h, "GPU:0") if ON_GPU else h)
        return dy.pickneglogsoftmax(dy.to_device(scores, "GPU:0") if GRAPHS_ON_GPU else scores, y) * 3

    def update(self, number: int) -> None:
        self.t.update()

    def batches(self) -> list:
        n = BATCH // dy.parallel.size()
        return [self.data[i : i + n] for i in range(0, len(self.data), n)]

    def run(self) -> None:
        for epoch in range(2):
            for number, batch in enumerate(dy.parallel.shard(self.batches())):
                dy.renew_cg()
                total = dy.esum([self.loss(x) for x in batch])
                total = total if self.reduction == "sum" else total / len(batch)
                total.backward()
                self.update(number + 10 * epoch)

    def numbers(self) -> np.ndarray:
        own = [*self.m.parameters_list(), *self.m.lookup_parameters_list()]
        return np.concatenate([x.as_array().ravel() for x in own])


class NoClipping(Training):
    clip = 0


class Sum(Training):
    trainer = dy.MomentumSGDTrainer
    clip = 3
    reduction = "sum"


class NoDecay(Training):
    decay = 0


class StrongDecay(Training):
    decay = 0.2  # factors of tables are settled every few updates


class AllRows(Training):
    def prepare(self) -> None:
        self.t.set_sparse_updates(False)


class AllRowsSGD(AllRows):
    trainer = dy.SimpleSGDTrainer
    clip = 0


class LazyRows(AllRows):
    """A table in which most rows have no gradient; one rank reads some of them, and all ranks save now and then."""

    rows = 1000

    def prepare(self) -> None:
        super().prepare()
        if ON_GPU or get_default_device():
            engine.tune("gpu.lazy.least", 1000)  # on a GPU, too

    def update(self, number: int) -> None:
        super().update(number)
        if number == 1:
            assert deferred_updates(self.E) == 2
        if number == 2 and dy.parallel.rank() == 0:
            self.E.as_array()
            self.E.row_as_array(self.data[0][0])
        if number == 4:
            self.t._state_arrays()


class LazyRowsMomentum(LazyRows):
    trainer = dy.MomentumSGDTrainer
    decay = 0.2


class Frozen(Training):
    """A parameter and a table that are trained only in the second epoch."""

    trainer = dy.MomentumSGDTrainer

    def prepare(self) -> None:
        self.W.set_updated(False)
        self.E.set_updated(False)
        self.before = [self.W.as_array(), self.E.as_array()]

    def update(self, number: int) -> None:
        super().update(number)
        if number < 10:
            for p, before in zip((self.W, self.E), self.before):
                assert not p.grad_as_array().any()
                np.testing.assert_array_equal(p.as_array(), before)
                p.set_updated(number >= 5)


class Decoupled(Training):
    trainer = dy.AdamWTrainer

    def prepare(self) -> None:
        self.t.weight_decay = 0.5


class DecoupledAllRows(Decoupled):
    """The factor of one table decays; some other tables are read in place."""

    def prepare(self) -> None:
        super().prepare()
        self.t.set_sparse_updates(False)
        dy.renew_cg()
        self.F.expr(update=False).npvalue()


class DecoupledInPlace(Decoupled):
    def prepare(self) -> None:
        super().prepare()
        dy.renew_cg()
        self.F.expr(update=False).npvalue()


class Groups(Training):
    """Groups with and without their own norm; the settings of one change."""

    trainer = dy.AdamWTrainer

    def prepare(self) -> None:
        self.t.group([self.b, self.E], learning_rate=0.05, weight_decay=0)
        self.slow = self.t.group([self.W, self.F], learning_rate=0.01, weight_decay=2, clip_threshold=0.1)
        self.t.group(self.U, clip_threshold=0)

    def update(self, number: int) -> None:
        self.slow.learning_rate *= 0.9
        super().update(number)


class GroupsOfSubsets(Groups):
    def update(self, number: int) -> None:
        self.t.update_subset([0, 2], [1]) if number % 2 else self.t.update()


class Skipping(Training):
    """Updates with NaN gradients are dropped."""

    trainer = dy.AmsgradTrainer

    def __init__(self) -> None:
        self.norms: list[float] = []
        super().__init__()
        self.data = [(n % 5, (2 * n + 1) % 5, n % 3, n % 4) for n in range(EXAMPLES)]  # rows recur soon

    def loss(self, example: tuple[int, ...]) -> dy.Expression:
        return super().loss(example) * (float("nan") if example in self.data[8:12:3] else 1)

    def update(self, number: int) -> None:
        self.t.update(skip_nonfinite=True)
        self.norms.append(self.t.gradient_norm)

    def numbers(self) -> np.ndarray:
        assert self.t._skipped == 2
        return np.concatenate([super().numbers(), self.norms])


class SkippingUnclipped(Skipping):
    clip = 0


class GoingOn(Skipping):
    """The program drops such updates itself, also if the NaN was on another rank."""

    def update(self, number: int) -> None:
        try:
            self.t.update()
        except RuntimeError:
            self.t.zero_gradients()
            self.t._skipped += 1
        self.norms.append(self.t.gradient_norm)


class Subset(Training):
    trainer = dy.AdagradTrainer

    def update(self, number: int) -> None:
        if number % 2:
            self.t.update_subset([0, 2], [1])
        else:
            self.t.update()


class Rates(Training):
    def update(self, number: int) -> None:
        self.t.learning_rate = 0.01 / (1 + number)
        self.t.set_clip_threshold(0.1 + number / 10)
        self.t.update()
        if number == 3:
            self.t.restart()


class Exponential(Training):
    def prepare(self) -> None:
        self.t.exponential_moving_average(0.8)

    def numbers(self) -> np.ndarray:
        self.t.swap_params_to_moving_average()
        average = super().numbers()
        self.t.swap_params_to_weights()
        return np.concatenate([average, super().numbers()])


class Cumulative(Exponential):
    def prepare(self) -> None:
        self.t.cumulative_moving_average(2)


class WholeTable(Training):
    """A graph on only one rank reads a table in place, so its factor is settled there."""

    decay = 0.05

    def update(self, number: int) -> None:
        super().update(number)
        if number == 4 and dy.parallel.rank() == 0:
            dy.renew_cg()
            self.E.expr(update=False).npvalue()


class TableGradient(Training):
    """A gradient of all rows of a table."""

    def loss(self, example: tuple[int, ...]) -> dy.Expression:
        loss = super().loss(example)
        norm = dy.squared_norm(dy.parameter(self.F)) * 0.01
        return loss + (dy.to_device(norm, "GPU:0") if ON_GPU or GRAPHS_ON_GPU else norm)


class Uneven(Training):
    """Five batches of two examples for two ranks: the last update has gradients of only one rank."""

    def batches(self) -> list:
        n = BATCH // dy.parallel.size()
        whole = self.data[:10]
        return [whole[i : i + n] for i in range(0, len(whole), n)]


class Joined(Uneven):
    """The same with `join` called by the program."""

    def run(self) -> None:
        for epoch in range(2):
            with dy.parallel.join(self.t):
                for number, batch in enumerate(dy.parallel.shard(self.batches(), uneven="keep")):
                    dy.renew_cg()
                    (dy.esum([self.loss(x) for x in batch]) / len(batch)).backward()
                    self.t.learning_rate = 0.01 / (1 + number + epoch)
                    self.update(number)


class JoinedGroups(Joined):
    """A rank without data gets the changes of groups from the others."""

    def prepare(self) -> None:
        self.group = self.t.group([self.W, self.U], weight_decay=0.1)

    def update(self, number: int) -> None:
        self.group.learning_rate = 0.1 / (1 + number)
        super().update(number)


CASES = [
    *(type(f"All_{t.__name__}", (Training,), {"trainer": t}) for t in TRAINERS),
    NoClipping,
    Sum,
    NoDecay,
    StrongDecay,
    AllRows,
    AllRowsSGD,
    LazyRows,
    LazyRowsMomentum,
    Frozen,
    Decoupled,
    DecoupledAllRows,
    DecoupledInPlace,
    Groups,
    GroupsOfSubsets,
    Skipping,
    SkippingUnclipped,
    GoingOn,
    Subset,
    Rates,
    Exponential,
    Cumulative,
    WholeTable,
    TableGradient,
    Uneven,
    Joined,
    JoinedGroups,
]


def results() -> dict[str, np.ndarray]:
    """The results of all training runs by name."""
    found = {}
    for case in CASES:
        training = case()
        training.run()
        found[case.__name__] = training.numbers()
        if isinstance(training, Rates):
            states = [np.asarray(x) for own in training.t._state_arrays() for x in own]
            found["state"] = np.concatenate([x.ravel() for x in states])
    return found


class GeneralCommunicator(SharedCommunicator):
    """A communicator without its own way to average gradients."""

    reducer = Communicator.reducer


if __name__ == "__main__":
    if "general" in sys.argv:
        use(GeneralCommunicator(current().board))
    print(type(Training().t._reducer).__name__)
    np.savez(Path(sys.argv[1]) / f"{dy.parallel.rank()}.npz", **results())
