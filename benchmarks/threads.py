"""The gain of a second thread: in large products, in training, and with a graph for each thread.

    python benchmarks/threads.py                    # dynet_cy alone
    python benchmarks/threads.py --torch PYTHON     # compared with PyTorch, in that interpreter

Every program runs on one thread and on several, in separate processes that
take turns; results are medians of wall time.  (CPU time, which the other
benchmarks measure, does not show the gain of threads, so this one needs an
otherwise idle machine.)  Programs must have the same losses to 1e-4; in
dynet_cy, they must be equal to the last bit for any number of threads.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import report
import workloads
from compare import WORKER, Child, processor, same_losses
from worker import TorchWeights, Weights

# Rows, inner dimension and columns of C = A B.
PRODUCTS = [
    (256, 256, 64),
    (800, 200, 16),
    (800, 200, 32),
    (800, 200, 64),
    (800, 200, 1600),
    (2048, 512, 32),
    (2048, 512, 64),
    (512, 10000, 32),
    (10000, 512, 32),
    (10000, 512, 800),
]
SECONDS = 0.05  # of each product in a round
TRAINING = [
    *(("language_model", "minibatch"), ("mlp", "minibatch"), ("mnist_cnn", "minibatch")),
    *(("tagger", "autobatch"), ("parser", "autobatch"), ("seq2seq", "autobatch")),
]
GRAPHS = [("tagger", "autobatch")]
FORM = {"torch": "batched"}  # the counterpart of the forms above
Run = Callable[[], Any]


# -- in a separate process ---------------------------------------------------------------------


def seconds_of(run: Run, least: float) -> float:
    """Time of a call: the mean over as many calls as fit into the given time."""
    run()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < least:
        run()
        count += 1
    return (time.perf_counter() - start) / count


def matrices(size: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = size
    rng = np.random.RandomState(1)
    return rng.uniform(-1, 1, (m, k)).astype(np.float32), rng.uniform(-1, 1, (k, n)).astype(np.float32)


def dynet_cy_products(threads: int) -> dict[str, float]:
    """Products with a parameter, as in training, and with a matrix that is not a parameter."""
    import dynet_cy as dy
    from dynet_cy import config

    config.set(threads=threads)
    times = {}
    for size in PRODUCTS:
        a, b = matrices(size)
        collection = dy.ParameterCollection()
        parameter = collection.parameters_from_numpy(a)
        graph = dy.renew_cg()
        right = dy.inputTensor(b)
        lefts = {"parameter": parameter, "matrix": dy.inputTensor(a)}
        dy.forward([right, lefts["matrix"]])
        for name, left in lefts.items():

            def run(left: Any = left, right: Any = right, graph: Any = graph) -> None:
                graph.checkpoint()
                (left * right).forward()
                graph.revert()

            run()  # a parameter is packed at its second product
            times[f"{size} {name}"] = seconds_of(run, SECONDS)
    return times


def torch_products(threads: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    times = {}
    for size in PRODUCTS:
        # Row-major: the transpose of dynet_cy's product, which is the same work.
        a, b = (torch.from_numpy(np.ascontiguousarray(x.T)) for x in matrices(size))
        c = torch.empty(b.shape[0], a.shape[1])
        times[f"{size} matrix"] = seconds_of(lambda a=a, b=b, c=c: torch.mm(b, a, out=c), SECONDS)
    return times


def steps(library: str, name: str, form: str) -> tuple[Callable[[], float], Run]:
    """Forward and backward of a program, for several threads at once; and the update."""
    workload = workloads.load(name)
    if library == "torch":
        import torch

        torch.set_num_threads(1)
        weights = TorchWeights(torch)
        loss = workload.torch(torch, weights)
        optimizer = torch.optim.SGD(weights.made, workload.learning_rate)

        def torch_step() -> float:
            tensor = loss(form)
            tensor.backward()
            return float(tensor.detach())

        def torch_update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return torch_step, torch_update
    import dynet_cy as dy
    from dynet_cy import config

    config.set(autobatch=int(form == "autobatch"), threads=1)
    collection = dy.ParameterCollection()
    loss = workload.dynet(dy, collection)
    Weights().fill(collection)
    trainer = dy.SimpleSGDTrainer(collection, workload.learning_rate)
    trainer.set_clip_threshold(0)

    def step() -> float:
        dy.renew_cg()  # the graph of this thread
        expression = loss(form)
        value = expression.value()
        expression.backward()
        return float(value)

    return step, trainer.update


class Crew:
    """Threads that each run a step on request."""

    def __init__(self, count: int, step: Callable[[], float]) -> None:
        self.begin, self.end = threading.Barrier(count + 1), threading.Barrier(count + 1)
        self.losses = [0.0] * count
        for i in range(count):
            threading.Thread(target=self._work, args=(i, step), daemon=True).start()

    def _work(self, i: int, step: Callable[[], float]) -> None:
        while True:
            self.begin.wait()
            self.losses[i] = step()
            self.end.wait()

    def round(self) -> float:
        self.begin.wait()
        self.end.wait()
        return sum(self.losses) / len(self.losses)


def graphs(library: str, name: str, form: str, threads: int, most: int) -> Callable[[], dict[str, float]]:
    """Rounds of `most` steps, divided among threads with one graph each, and an update."""
    step, update = steps(library, name, form)
    crew = Crew(threads, step)

    def round() -> dict[str, float]:
        start = time.perf_counter()
        losses = [crew.round() for _ in range(most // threads)]
        update()
        return {"wall": (time.perf_counter() - start) / most, "loss": statistics.mean(losses)}

    return round


def serve(library: str, form: str, what: str, threads: int) -> None:
    """Answer each line of standard input with a round."""
    answers, sys.stdout = sys.stdout, sys.stderr
    kind, _, argument = what.partition(":")
    if kind == "products":
        measure_products = {"dynet_cy": dynet_cy_products, "torch": torch_products}[library]
        answer: Callable[[], dict[str, float]] = lambda: measure_products(threads)  # noqa: E731
    else:
        name, _, most = argument.partition("/")
        answer = graphs(library, name, form, threads, int(most))
    for _ in sys.stdin:
        print(json.dumps(answer()), file=answers, flush=True)


# -- in turns ------------------------------------------------------------------------------------


def same_bits(children: dict[tuple[str, int], Child]) -> None:
    """Compare dynet_cy's losses of the last round.

    Raises:
        RuntimeError: they depend on the number of threads.
    """
    losses = {child.rounds[-1]["loss"] for (library, _), child in children.items() if library == "dynet_cy"}
    if len(losses) > 1:
        raise RuntimeError(f"losses of dynet_cy depend on the number of threads: {losses}")


def median(child: Child, what: str = "wall") -> float:
    return statistics.median(r[what] for r in child.rounds[1:])


def measured(title: str, unit: str, times: dict[str, list[float]], result: Callable[[float], float]) -> dict[str, Any]:
    """A row of the table: the result for each number of threads, by library."""
    return {"title": title, "unit": unit, "seconds": times, "results": {k: [*map(result, v)] for k, v in times.items()}}


def run_children(
    pythons: dict[str, str], counts: list[int], form: Callable[[str], str], what: str, script: Path, args: Any
) -> dict[tuple[str, int], Child]:
    children: dict[tuple[str, int], Child] = {}
    try:
        for library, python in pythons.items():
            for threads in counts:
                children[library, threads] = Child(python, library, form(library), what, threads, script)
        for _ in range(args.rounds + 1):  # the first round is a warm-up
            for child in children.values():
                child.round()
            if what != "products":
                same_losses(list(children.values()))
            if script == WORKER:  # graphs of several threads sum gradients in any order
                same_bits(children)
    finally:
        for child in children.values():
            child.close()
    return children


def measure(pythons: dict[str, str], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of the table, one after another."""
    counts = [1, args.threads]

    def by_library(children: dict[tuple[str, int], Child], what: str = "wall") -> dict[str, list[float]]:
        return {
            library: [median(children[library, n], what) for n in counts]
            for library in pythons
            if what in children[library, 1].rounds[-1]
        }

    if "products" in args.parts:
        print("products ...", file=sys.stderr, flush=True)
        children = run_children(pythons, counts, lambda _: "products", "products", Path(__file__), args)
        for m, k, n in PRODUCTS:
            for kind in ("parameter", "matrix"):
                times = by_library(children, f"{(m, k, n)} {kind}")
                title = f"{m} x {k} x {n}, {'parameter' if kind == 'parameter' else 'other matrix'}"
                yield measured(title, "GFLOP/s", times, lambda s, w=m * k * n: 2e-9 * w / s)
    for name, form in TRAINING if "training" in args.parts else []:
        print(f"{name} ...", file=sys.stderr, flush=True)
        children = run_children(pythons, counts, lambda lib, f=form: FORM.get(lib, f), name, WORKER, args)
        workload = workloads.load(name)
        yield measured(f"{workload.title} ({form})", workload.unit, by_library(children), workload.result)
    for name, form in GRAPHS if "graphs" in args.parts else []:
        print(f"{name}, graphs ...", file=sys.stderr, flush=True)
        what = f"graphs:{name}/{args.threads}"
        children = run_children(pythons, counts, lambda lib, f=form: FORM.get(lib, f), what, Path(__file__), args)
        workload = workloads.load(name)
        title = f"{workload.title}, a graph in each thread"
        yield measured(title, workload.unit, by_library(children), workload.result)


def table(rows: list[dict[str, Any]], pythons: dict[str, str], threads: int) -> str:
    heads = ["program", "unit"]
    for library in pythons:
        heads += [f"{report.LIBRARIES[library]}, 1 thread", f"{threads}", "gain"]
    lines = []
    for row in rows:
        line = [row["title"], row["unit"]]
        for library in pythons:
            if library in row["results"]:
                one, several = row["results"][library]
                slow, fast = row["seconds"][library]
                line += [report.number(one), report.number(several), f"{slow / fast:.2f}"]
            else:
                line += ["", "", ""]
        lines.append(line)
    return report.markdown(heads, lines)


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    result = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "threads": args.threads,
        "rounds": args.rounds,
        "rows": rows,
    }
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) > 4 and sys.argv[1] in ("dynet_cy", "torch"):  # as `Child` starts it
        serve(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parts = ["products", "training", "graphs"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--parts", nargs="+", choices=parts, default=parts)
    add("--threads", type=int, default=2, help="how many besides one")
    add("--rounds", type=int, default=7, help="measured rounds, after one to warm up")
    add("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    add("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    args = parser.parse_args()
    if args.threads < 2 or args.rounds < 1:
        parser.error("--threads must be at least 2, --rounds at least 1")
    pythons = {"dynet_cy": sys.executable, **({"torch": args.torch} if args.torch else {})}
    rows = []
    try:
        for row in measure(pythons, args):
            rows.append(row)
            if args.json:  # after each one, so that nothing is lost
                write(args, rows)
    except RuntimeError as error:
        sys.exit(str(error))
    print(table(rows, pythons, args.threads))


if __name__ == "__main__":
    main()
