"""Speed of two processes that train together, compared with one, and the cost of exchanging gradients.

    python benchmarks/processes.py                               # tables on the standard output
    python benchmarks/processes.py --json processes.json         # and all numbers
    python benchmarks/processes.py --scaling scaling.json        # and the input of the model of docs/lab/scaling.md

Jobs with one process, with two synchronous and with two asynchronous ones take turns, one round each; while one works,
the others sleep.  Every process has one thread.  Results are medians of wall times, so the machine must be quiet.  "64"
and "128" are sentences or trees per update of a process: two processes with 64 train like one with 128.  A
round goes over the same sentences or trees in all jobs.  They are divided between two processes by their numbers of
words (`dy.parallel.shard(..., cost=)`); `--no-cost` switches that off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import workloads

WORKLOADS = ("tagger", "tree_lstm")
UPDATES = 8  # of two processes in a round

# Floats of a parameter; of a table: rows, numbers per row, and rows used per process.
DENSE = (10_000, 100_000, 1_000_000, 10_000_000)
SPARSE = ((100_000, 128, 100), (100_000, 128, 1_000), (100_000, 128, 10_000))


# -- workers -------------------------------------------------------------------------------------


def words_of(tree: Any) -> int:
    """The number of leaves of a tree of `workloads.tree_lstm`."""
    return 1 if isinstance(tree, int) else words_of(tree[0]) + words_of(tree[1])


class Training:
    """A workload whose examples are divided among the processes."""

    def __init__(self, name: str, count: int, most: int, tiny: bool, dealt: bool) -> None:
        import dynet_cy as dy

        self.dy = dy
        self.workload = workload = workloads.load(name, tiny)
        workload.count = UPDATES * most
        workload.prepare()
        # The examples of batches, the attributes of the workload that hold them, and the cost of an example.
        if name == "tagger":
            examples, self.attributes = list(zip(workload.data, workload.gold)), ("data", "gold")
            cost = lambda example: len(example[0])  # noqa: E731
        else:
            examples, self.attributes = [(tree,) for tree in workload.trees], ("trees",)
            cost = lambda example: words_of(example[0])  # noqa: E731
        self.data = dy.parallel.shard(examples, batch_size=count, cost=cost if dealt else None)
        self.pc = dy.ParameterCollection()
        dy.reset_random_seed(1)
        self.loss = workload.dynet(dy, self.pc)
        self.trainer = dy.parallel.wrap(dy.AdamTrainer(self.pc))

    def round(self, aligned: bool) -> dict[str, Any]:
        """Go over the data once; with `aligned`, all ranks begin each exchange at the same time."""
        dy, before = self.dy, self.traffic()
        compute, update, items = [], [], 0
        dy.parallel.barrier()
        begun, processor = time.perf_counter(), time.process_time()
        for batch in self.data:
            items += len(batch)
            start = time.perf_counter()
            vars(self.workload).update(zip(self.attributes, zip(*batch)))
            self.workload.count = len(batch)
            dy.renew_cg()
            loss = self.loss("autobatch")
            loss.forward()
            loss.backward()
            compute.append(time.perf_counter() - start)
            if aligned:
                dy.parallel.barrier()
            start = time.perf_counter()
            self.trainer.update()
            update.append(time.perf_counter() - start)
        n = len(compute)
        after = self.traffic()
        return {
            "seconds": (time.perf_counter() - begun) / n,
            "processor": (time.process_time() - processor) / n,
            "items": items / n,
            "compute": compute,
            "update": update,
            "traffic": {k: (after[k] - before[k]) / n for k in after},
        }

    def traffic(self) -> dict[str, int]:
        reducer = self.trainer._reducer
        return reducer.traffic() if hasattr(reducer, "traffic") else {}


class Exchange:
    """Updates of one parameter, or of some rows of a table, by plain gradient descent."""

    def __init__(self, shape: list[int]) -> None:
        import dynet_cy as dy

        self.dy = dy
        self.pc = dy.ParameterCollection()
        if len(shape) == 1:
            self.x = self.pc.add_parameters((shape[0],), init=0.0)
            self.rows = None
        else:
            n, size, used = shape
            self.x = self.pc.add_lookup_parameters((n, size), init=0.0)
            self.rows = np.random.RandomState(dy.parallel.rank()).permutation(n)[:used].tolist()
        self.trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(self.pc))

    def round(self, updates: int) -> dict[str, Any]:
        dy, update = self.dy, []
        for _ in range(updates):
            dy.renew_cg()
            x = self.x if self.rows is None else dy.lookup_batch(self.x, self.rows)
            loss = dy.sum_batches(dy.sum_elems(x))
            loss.forward()
            loss.backward()
            dy.parallel.barrier()
            start = time.perf_counter()
            self.trainer.update()
            update.append(time.perf_counter() - start)
        reducer = self.trainer._reducer
        traffic = reducer.traffic() if hasattr(reducer, "traffic") else {}
        per_update = {k: v / traffic["updates"] for k, v in traffic.items()} if traffic else {}
        return {"update": update, "traffic": per_update}


def work(what: str, arguments: list[Any]) -> None:
    """Run a round for each line on the standard input of rank 0, until it ends."""
    import dynet_cy as dy

    subject = {"training": Training, "exchange": Exchange}[what](*arguments)
    while True:
        line = dy.parallel.broadcast(sys.stdin.readline() if dy.parallel.rank() == 0 else "")
        if not line.strip():
            break
        answers = dy.parallel.gather(subject.round(json.loads(line)))
        if dy.parallel.rank() == 0:
            print(json.dumps(answers), flush=True)


# -- driver --------------------------------------------------------------------------------------


class Job:
    """A job of the launcher that runs rounds."""

    def __init__(self, processes: int, mode: str, what: str, *arguments: Any) -> None:
        options = ["-n", str(processes), "--mode", mode, "--timeout", "0"]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DYNET_CY_THREADS"), "1")
        words = [str(Path(__file__).resolve()), "--work", what, json.dumps(arguments)]
        self.rounds: list[list[dict[str, Any]]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dynet_cy.launch", *options, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads},
            cwd=Path(__file__).parent,  # with -m, Python searches this folder first, and it has no unbuilt package
        )

    def round(self, argument: int | bool) -> list[dict[str, Any]]:
        """Run a round; returns the results of each rank."""
        assert self.process.stdin and self.process.stdout  # noqa: PT018
        self.process.stdin.write(json.dumps(argument) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().partition("] ")[2]
        if not answer:
            raise RuntimeError(f"a job ended with exit code {self.process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def per_second(answers: list[dict[str, Any]]) -> float:
    """Items per second of all ranks together."""
    return sum(a["items"] / a["seconds"] for a in answers)


def measure_training(name: str, rounds: int, tiny: bool, dealt: bool) -> dict[str, Any]:
    """Speeds of a workload in all jobs, and the values that the model of docs/lab/scaling.md needs."""
    few = 4 if tiny else 64
    made = {
        "one 64": (1, "sync", few),
        "one 128": (1, "sync", 2 * few),
        "two sync": (2, "sync", few),
        "two async": (2, "async", few),
    }
    jobs = {key: Job(n, mode, "training", name, count, 2 * few, tiny, dealt) for key, (n, mode, count) in made.items()}
    answers: dict[str, list[Any]] = {key: [] for key in [*jobs, "aligned"]}
    try:
        for number in range(rounds + 1):
            for key, job in jobs.items():
                answer = job.round(False)
                aligned = job.round(True) if key == "two sync" else None
                if number:  # the first is a warm-up
                    answers[key].append(answer)
                    if aligned:
                        answers["aligned"].append(aligned)
    finally:
        for job in jobs.values():
            job.close()
    speeds = {key: statistics.median(map(per_second, answers[key])) for key in jobs}

    def ms(key: str, what: str) -> np.ndarray:
        """Times of all updates of rank 0."""
        return 1e3 * np.array([answer[0][what] for answer in answers[key]])

    two = answers["two sync"][0][0]
    # For each update, by rank: the mean distance of two normal numbers is 2 / sqrt(pi) times their deviation.
    both = np.array([[one["compute"] for one in answer] for answer in answers["aligned"]])
    deviation = np.abs(np.subtract(*np.median(both, 0))).mean() * np.sqrt(np.pi) / 2
    model = {
        "compute_ms": float(np.median(ms("one 64", "compute").mean(1))),
        "compute_2_ms": float(np.median(ms("aligned", "compute").mean(1))),
        "spread": float(deviation / both.mean()),
        "update_ms": float(np.median(ms("one 64", "update"))),
        "dense_bytes": two["traffic"]["dense_bytes"],
        "sparse_bytes": two["traffic"]["own_row_bytes"],
        "table_bytes": two["traffic"]["table_bytes"],
        "one_ms": float(np.median(ms("one 64", "seconds"))),
        "two_ms": float(np.median(ms("two sync", "seconds"))),
    }
    model["exchange_ms"] = float(np.median(ms("aligned", "update"))) - model["update_ms"]
    return {
        "workload": name,
        "unit": workloads.load(name, True).unit,
        "speeds": speeds,
        "ratios": {
            f"{key} / {base}": statistics.median(
                per_second(a) / per_second(b) for a, b in zip(answers[key], answers[base])
            )
            for key in ("two sync", "two async")
            for base in ("one 64", "one 128")
        },
        "traffic": two["traffic"],
        "model": model,
        "rounds": {key: [per_second(a) for a in answers[key]] for key in jobs},
        "updates_per_round": len(two["compute"]),
    }


def measure_exchange(shape: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Times of updates with one process and with two."""
    jobs = [Job(n, "sync", "exchange", list(shape)) for n in (1, 2)]
    times: list[list[float]] = [[], []]
    traffic: dict[str, float] = {}
    try:
        for number in range(rounds + 1):
            for own, job in zip(times, jobs):
                answers = job.round(UPDATES)
                traffic = answers[0]["traffic"]
                if number:
                    own.append(1e3 * statistics.median(max(a) for a in zip(*(x["update"] for x in answers))))
    finally:
        for job in jobs:
            job.close()
    one, two = (statistics.median(own) for own in times)
    return {"shape": list(shape), "one_ms": one, "two_ms": two, "traffic": traffic}


def table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def report(result: dict[str, Any]) -> str:
    """The tables of the results."""
    rows = [["workload", "1 x 64", "1 x 128", "2 x 64 sync", "2 x 64 async", "sync over 1 x 128", "async over 1 x 128"]]
    rows[0] += ["sync over 1 x 64", "async over 1 x 64", "kB per update, parameters", "rows"]
    for one in result["training"]:
        speeds, ratios, traffic = one["speeds"], one["ratios"], one["traffic"]
        rows.append(
            [
                f"{one['workload']} ({one['unit']})",
                *(f"{speeds[key]:,.0f}" for key in ("one 64", "one 128", "two sync", "two async")),
                *(f"{ratios[f'two {mode} / one 128']:.2f}" for mode in ("sync", "async")),
                *(f"{ratios[f'two {mode} / one 64']:.2f}" for mode in ("sync", "async")),
                *(f"{traffic[key] / 1e3:,.0f}" for key in ("dense_bytes", "row_bytes")),
            ]
        )
    text = table(rows)
    rows = [["exchange", "kB", "update, 1 process, ms", "2 processes, ms"]]
    for one in result["exchange"]:
        shape, traffic = one["shape"], one["traffic"]
        what = f"{shape[0]:,} floats" if len(shape) == 1 else f"{shape[2]:,} rows of {shape[1]} of {shape[0]:,}"
        moved = (traffic["dense_bytes"] + traffic["row_bytes"]) / 1e3
        rows.append([what, f"{moved:,.0f}", f"{one['one_ms']:.3f}", f"{one['two_ms']:.3f}"])
    return f"{text}\n\n{table(rows)}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument(
        "--no-cost", action="store_true", help="divide sentences and trees regardless of their numbers of words"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, for a test")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--scaling", type=Path, help="write the input of the model of docs/lab/scaling.md to this file")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        work(options.work[0], json.loads(options.work[1]))
        return
    shapes = [*((n,) for n in DENSE), *SPARSE]
    if options.tiny:
        shapes = [(1000,), (100, 4, 10)]
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load": os.getloadavg(),
        "training": [
            measure_training(name, options.rounds, options.tiny, not options.no_cost) for name in options.workloads
        ],
        "exchange": [measure_exchange(shape, options.rounds) for shape in shapes],
    }
    print(report(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.scaling:
        models = {one["workload"]: one["model"] for one in result["training"]}
        options.scaling.write_text(json.dumps(models, indent=1) + "\n")


if __name__ == "__main__":
    main()
