"""The cases of programs/lazy.py in float64: updates of whole tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trainer_reference as reference
from parallel import jobs
from parallel.programs import lazy


class Whole:
    """A case in float64."""

    def __init__(self, case: lazy.Case) -> None:
        self.case = case
        start = lazy.beginning()
        self.seen: dict[str, np.ndarray] = {}
        self.t = reference.ReferenceTrainer(
            case.trainer.replace("AdamW", "Adam"), start[:1], start[1:], case.decay, **case.arguments
        )
        self.t.sparse = False
        self.t.threshold = case.threshold

    def look(self) -> None:
        """Record what a rank that reads now must see."""
        self.seen["looked"] = self.t.values[1].copy()
        for k, x in enumerate(self.t.state[1].values()):
            self.seen[f"state looked {k}"] = x.copy()

    def run(self) -> None:
        t = self.t
        for step in self.case.steps:
            if step.before:
                self.look()
                getattr(self, step.before, lambda: None)()
            if step.nonfinite:
                continue
            if step.rate is not None:
                t.learning_rate = step.rate
            if step.sparse is not None:
                t.sparse = step.sparse
            table, small = np.zeros((lazy.ROWS, lazy.SIZE)), np.zeros((5, lazy.SIZE))
            for own in step.rows:
                for i, g in own.items():
                    table[i] += g
                    small[i % 5] += g
            rows = sorted({i for own in step.rows for i in own})
            t.updated[1:] = [not step.subset] * 2
            for raw in t.raw:
                raw *= 1 - t.learning_rate * self.case.decoupled
            t.update([step.gb, table, small], [rows, [i % 5 for i in rows]])

    def restarts(self) -> None:
        self.t.restart()

    def sets(self) -> None:
        self.t.raw[1][3] = np.arange(lazy.SIZE) / self.t.factor

    def scales(self) -> None:
        self.t.raw[1] *= 0.5

    def others(self) -> None:
        g = np.zeros((lazy.ROWS, lazy.SIZE))
        g[2] = 1
        speed = np.zeros_like(g)
        for _ in range(3):
            speed = 0.9 * speed - 0.05 * g
            self.t.raw[1] += speed


# A rank with its own state can update single rows, and need not update them for a child.
DEFERRED_OF_OWN_STATES = {"long": 17, "forks": 20, "sparse": 18}


def check(folder: Path, kind: str, n: int, names: list[str]) -> None:
    ranks = [jobs.arrays(folder / f"{rank}.npz") for rank in range(n)]
    cases = lazy.cases(n)
    for name in names:
        whole = Whole(cases[name])
        whole.run()
        values, state = whole.t.values, list(whole.t.state[1].values())
        wanted = {
            "rows": values[1][lazy.SOME],
            "some": values[1][lazy.SOME],
            "table": values[1],
            "again": values[1],
            "small": values[2],
            "b": values[0],
            **{f"state {k}": x for k, x in enumerate(state)},
            **whole.seen,
            "resumed": values[1],
            **{f"state resumed {k}": x for k, x in enumerate(state)},
            "looked by child": whole.seen.get("looked", values[1])[lazy.SOME],
        }
        deferred = cases[name].lazy
        if kind != "SharedReducer":
            deferred = DEFERRED_OF_OWN_STATES.get(name, deferred)
        for rank, found in enumerate(ranks):
            own = {what.partition(": ")[2]: x for what, x in found.items() if what.startswith(f"{name}: ")}
            if deferred is None:
                assert own["lazy"] > 0
            else:
                assert own["lazy"] == (len(whole.case.steps) if deferred < 0 else deferred), (name, rank)
            for what, x in own.items():
                if "looked" not in what:
                    first = ranks[0][f"{name}: {what}"]
                    np.testing.assert_array_equal(x, first, err_msg=f"{name} {what}: ranks differ")
                if what == "lazy":
                    continue
                tolerance = 1e-4 if "state" in what or name == "long" else 2e-5
                np.testing.assert_allclose(
                    x,
                    wanted[what],
                    rtol=tolerance,
                    atol=2e-7 if "state" in what else tolerance / 4,
                    err_msg=f"{name} {what}, rank {rank}",
                )
            if name == "checkpoints":  # the same as without the interruption
                np.testing.assert_array_equal(own["resumed"], own["table"])
                for k in range(len(state)):
                    np.testing.assert_array_equal(own[f"state resumed {k}"], own[f"state {k}"])
            looked = {what for what in own if "looked" in what}
            assert len(looked) >= (name in ("looks", "saves", "forks", "copies") and rank == 0), name
