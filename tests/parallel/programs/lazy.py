"""Updates of all rows of a large table by several processes, as a list of steps: arguments FOLDER CASE... [--general].

Each rank runs the steps of every case, and writes its values, final and intermediate, to FOLDER/RANK.npz.
`tests/parallel/test_lazy_in_processes.py` runs the same steps in float64. With --general, gradients are summed as any
communicator does, without shared memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ROWS, SIZE = 1100, 4
SOME = [0, 1, 3, 17, 150, ROWS - 1]
# Actions of some ranks between updates.
BETWEEN = ["looks", "saves", "expresses", "restarts", "sets", "scales", "forks", "copies", "reads_state"]
BETWEEN += ["others", "checkpoints"]


@dataclass
class Step:
    """Actions of some ranks before an update, and the gradients of all ranks in it."""

    gb: np.ndarray  # of the vector, summed over all ranks
    rows: list[dict[int, np.ndarray]]  # of the table, on each rank
    rate: float | None = None  # a new learning rate
    sparse: bool | None = None  # a new setting of sparse updates
    nonfinite: bool = False  # the update is dropped
    subset: bool = False  # only the vector is updated
    before: str = ""  # what some ranks do: a method of `Ranks`


@dataclass
class Case:
    """A trainer and its steps."""

    steps: list[Step]
    trainer: str = "AdamTrainer"
    arguments: dict[str, float] = field(default_factory=dict)
    decay: float = 0.0
    decoupled: float = 0.0
    threshold: float = 5.0
    lazy: int | None = -1  # deferred updates of the table at the end; -1: the number of steps; None: unspecified


def steps(n: int, size: int, scale: float = 1.0, seed: int = 2) -> list[Step]:
    """Some rows get gradients often, others rarely, most never; some on several ranks at once."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        rows = [{int(i) for i in np.minimum(rng.zipf(1.3, size=2), 200) - 1} for _ in range(size)]
        if rng.integers(6) == 0:
            rows[0] = set()
        gradients = [
            {i: (rng.normal(size=SIZE) * scale * 0.5**i).astype(np.float32) for i in sorted(own)} for own in rows
        ]
        found.append(Step((rng.normal(size=4) * scale).astype(np.float32), gradients))
    return found


def changed(found: list[Step], **changes: Callable[[int], Any]) -> list[Step]:
    """Set attributes of the steps to functions of their numbers."""
    for name, of in changes.items():
        for k, step in enumerate(found):
            setattr(step, name, of(k))
    return found


def with_many_rows(found: list[Step]) -> list[Step]:
    for k, step in enumerate(found):
        if k % 6 == 5:
            for own in step.rows:
                own.update({i: np.full(SIZE, 0.01 * i, np.float32) for i in range(0, ROWS, 2)})
    return found


def cases(size: int) -> dict[str, Case]:
    """All cases, for `size` ranks."""
    rates = (0.1, 0.001, 1e-6, 0.05)
    found = {
        name: Case(steps(30, size), name)
        for name in (
            *("MomentumSGDTrainer", "NesterovSGDTrainer", "RMSPropTrainer", "AdadeltaTrainer", "AdamTrainer"),
            *("AmsgradTrainer", "SignumTrainer", "LionTrainer"),
        )
    }
    found["still"] = Case(steps(10, size), "AdagradTrainer", lazy=0)
    found["constants"] = Case(steps(30, size), arguments={"alpha": 0.1, "beta_1": 0.7, "beta_2": 0.8, "eps": 0.3})
    found["clipped"] = Case(steps(30, size, 20), threshold=0.5)
    found["rates"] = Case(changed(steps(30, size), rate=lambda k: rates[k // 3 % 4]))
    found["decay"] = Case(steps(60, size), "MomentumSGDTrainer", decay=0.06, lazy=None)
    found["decoupled"] = Case(steps(60, size), "AdamWTrainer", {"alpha": 0.002}, decoupled=20.0, lazy=None)
    found["many"] = Case(with_many_rows(steps(20, size)), lazy=2)
    found["sparse"] = Case(changed(steps(32, size), sparse=lambda k: k % 10 < 4), lazy=0)
    found["dropped"] = Case(changed(steps(20, size), nonfinite=lambda k: k == 10), lazy=19)
    found["subsets"] = Case(changed(steps(20, size), subset=lambda k: k % 4 > 1), lazy=10)
    for step in found["subsets"].steps:
        if step.subset:
            step.rows = [{} for _ in step.rows]
    found["long"] = Case(steps(530, size, 0.1), "AmsgradTrainer", lazy=18)
    for what in BETWEEN:
        found[what] = Case(changed(steps(20, size), before=lambda k, what=what: what if k == 10 else ""), lazy=10)
    found["looks"].lazy = 20
    found["expresses"].lazy = 0  # from now on, it is read in place
    found["restarts at once"] = Case(changed(steps(5, size), before=lambda k: "restarts"), lazy=1)
    return found


class Ranks:
    """One rank that runs a case."""

    def __init__(self, case: Case, seen: dict[str, np.ndarray]) -> None:
        import dynet_cy as dy

        self.dy, self.case, self.seen = dy, case, seen
        start = beginning()
        self.m = dy.ParameterCollection()
        self.m.set_weight_decay(case.decay)
        self.b = self.m.parameters_from_numpy(start[0])
        self.table = self.m.lookup_parameters_from_numpy(start[1])
        self.small = self.m.lookup_parameters_from_numpy(start[2])
        self.t = getattr(dy, case.trainer)(self.m, **case.arguments)
        if case.decoupled:
            self.t.weight_decay = case.decoupled
        self.t.set_clip_threshold(case.threshold)
        self.t.set_sparse_updates(False)
        self.t = dy.parallel.wrap(self.t, "sum")

    def run(self, steps: list[Step]) -> None:
        dy, rank = self.dy, self.dy.parallel.rank()
        for step in steps:
            if step.before:
                getattr(self, step.before)()
            if step.rate is not None:
                self.t.learning_rate = step.rate
            if step.sparse is not None:
                self.t.set_sparse_updates(step.sparse)
            dy.renew_cg()
            terms = [dy.dot_product(self.b, dy.inputTensor(step.gb))] if rank == 0 else []
            terms += [dy.dot_product(self.table[i], dy.inputTensor(g)) for i, g in step.rows[rank].items()]
            terms += [dy.dot_product(self.small[i % 5], dy.inputTensor(g)) for i, g in step.rows[rank].items()]
            if step.nonfinite and rank == 1:
                terms.append(dy.sum_elems(dy.log(self.table[5] * 0)))
            if terms:
                dy.esum(terms).backward()
            if step.subset:
                self.t.update_subset([0], [])
            else:
                self.t.update(skip_nonfinite=step.nonfinite)

    def results(self) -> dict[str, np.ndarray]:
        """The values that must be equal on all ranks, to the last bit."""
        from dynet_cy.model.parameters import deferred_updates

        dy = self.dy
        lazy = deferred_updates(self.table)
        dy.renew_cg()
        rows = np.stack([self.table[i].npvalue() for i in SOME])
        return {
            "lazy": np.array(lazy),
            "rows": rows,
            "some": self.table.rows_as_array(SOME),
            "table": self.table.as_array(),
            "small": self.small.as_array(),
            "b": self.b.as_array(),
            **{f"state {k}": x for k, x in enumerate(self.t._state_arrays()[1])},
            "again": self.table.as_array(),
        }

    # ---- what some ranks do between updates ----

    def looks(self) -> None:
        """Rank 0 reads, rank 1 does not."""
        if self.dy.parallel.rank() == 0:
            self.seen["looked"] = self.table.as_array()
            self.dy.renew_cg()
            self.table[1].npvalue()

    def saves(self) -> None:
        if self.dy.parallel.rank() == 0:
            self.dy.save_safetensors("of-rank-0", self.m, self.t)
            self.m.save("text-of-rank-0")
            other = self.dy.ParameterCollection()
            b, table, small = (x.as_array() for x in (self.b, self.table, self.small))
            other.parameters_from_numpy(b * 0)
            read = other.lookup_parameters_from_numpy(table * 0)
            other.lookup_parameters_from_numpy(small * 0)
            trainer = getattr(self.dy, self.case.trainer)(other)
            self.dy.load_safetensors("of-rank-0", other, trainer)
            self.seen["looked"] = read.as_array()
            for k, state in enumerate(trainer._state_arrays()[1]):
                self.seen[f"state looked {k}"] = state

    def expresses(self) -> None:
        if self.dy.parallel.rank() == 1:
            self.dy.renew_cg()
            self.seen["looked"] = self.table.expr(update=False).npvalue().T

    def restarts(self) -> None:
        self.t.restart()

    def sets(self) -> None:
        self.table.init_row(3, np.arange(SIZE))

    def scales(self) -> None:
        self.table.scale(0.5)

    def copies(self) -> None:
        import copy

        if self.dy.parallel.rank() == 0:
            table = copy.deepcopy(self.m).lookup_parameters_list()[0]
            self.seen["looked"] = table.as_array()

    def reads_state(self) -> None:
        for k, state in enumerate(self.t._state_arrays()[1]):
            self.seen[f"state looked {k}"] = state

    def forks(self) -> None:
        """A child process reads after its parent has made more updates."""
        import os

        self.dy.parallel.barrier()
        if self.dy.parallel.rank() or not hasattr(os, "fork"):
            return
        self.waiting, self.writing = os.pipe()
        reading, answering = os.pipe()
        if os.fork() == 0:
            os.read(self.waiting, 1)
            os.write(answering, self.table.as_array()[SOME].tobytes())
            os._exit(0)
        self.answer = reading

    def checkpoints(self) -> None:
        self.dy.parallel.save_checkpoint("checkpoint", self.m, self.t)

    def resumed(self) -> dict[str, np.ndarray]:
        """The results of a run that resumes from the checkpoint, after updates that it must discard."""
        other = Ranks(self.case, {})
        other.run(self.case.steps[3:7])
        self.dy.parallel.load_checkpoint("checkpoint", other.m, other.t)
        other.run([replace(step, before="") for step in self.case.steps[10:]])
        states = {f"state resumed {k}": x for k, x in enumerate(other.t._state_arrays()[1])}
        return {"resumed": other.table.as_array(), **states}

    def others(self) -> None:
        """A trainer that is not wrapped changes all rows, with the same gradient on all ranks."""
        other = self.dy.MomentumSGDTrainer(self.m, 0.05)
        other.set_sparse_updates(False)
        for _ in range(3):
            self.dy.renew_cg()
            self.dy.sum_elems(self.table[2]).backward()
            other.update()


def beginning() -> list[np.ndarray]:
    """The initial values of the vector and of the tables."""
    rng = np.random.default_rng(1)
    return [rng.normal(size=s).astype(np.float32) for s in ((4,), (ROWS, SIZE), (5, SIZE))]


def main() -> None:
    import os

    import dynet_cy as dy

    if "--general" in sys.argv:
        from dynet_cy.parallel.communicator import Communicator
        from dynet_cy.parallel.runtime import current, use
        from dynet_cy.parallel.shared import SharedCommunicator

        class General(SharedCommunicator):
            reducer = Communicator.reducer

        use(General(current().board))
    folder, *names = (x for x in sys.argv[1:] if not x.startswith("--"))
    found: dict[str, np.ndarray] = {}
    kind = ""
    every = cases(dy.parallel.size())
    for name in names or every:
        seen: dict[str, np.ndarray] = {}
        ranks = Ranks(every[name], seen)
        ranks.run(ranks.case.steps)
        kind = type(ranks.t._reducer).__name__
        if hasattr(ranks, "answer"):
            os.write(ranks.writing, b"!")
            seen["looked by child"] = np.frombuffer(os.read(ranks.answer, 1 << 16), np.float32).reshape(-1, SIZE)
            os.wait()
        if name == "checkpoints":
            seen.update(ranks.resumed())
        found.update({f"{name}: {what}": x for what, x in {**ranks.results(), **seen}.items()})
    np.savez(Path(folder) / f"{dy.parallel.rank()}.npz", **found)
    print(kind)


if __name__ == "__main__":
    main()
