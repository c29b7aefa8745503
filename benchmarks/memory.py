"""Memory of dynet_cy compared with PyTorch's and DyNet's.

    python benchmarks/memory.py [--torch PYTHON] [--dynet PYTHON] [--programs NAME ...] [--runs N]
    python benchmarks/memory.py --fits [NAME ...] [--check GB] [--torch PYTHON] [--dynet PYTHON]
    python tools/gpu/emulate.py env EMU_IDLE=1 python benchmarks/memory.py --gpu

First, what training adds to a process: the peak of its resident memory over four updates, less what is resident
before the first one, when the parameters have their values.  Each form of each program of `workloads/` runs in a
process of its own, on one thread.  For automatic batching the table says what it consists of: the arenas of the graph
in the update that had the peak, and all else (gradients of parameters, the state of the trainer, packed weights,
nodes).  The ratio is that of automatic batching, or of minibatches where they take more, to PyTorch; beside it stands
the goal.  With `--runs N` the least of N processes counts, since the allocator of PyTorch varies.  DyNet's pools are
set to 8 MB each and grow as needed, which automatic batching refuses; its default is 512 MB at the start.

With `--fits`, instead, the largest minibatch of these programs, by default of all that have minibatches, with which
the peak of a process's resident memory is at most 1, 2 and 4 GB.  Memory grows nearly in proportion, so the size that
is tried next lies on the line through the two nearest ones.  Each has a process of its own, which makes two updates.
With `--check 1` only sizes for at most 1 GB are tried.  The others are those on the line through the smallest and the
largest size that were tried, and have a ~ before them: off by a quarter and more where memory comes in steps.

With `--gpu`, on a GPU or the emulated driver, only the memory of the device that graphs take, without parameters, their
gradients and trainers.

Last, a decoder that feeds its own output to itself in one graph, which DyNet keeps completely: resident memory after
certain numbers of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import workloads
from compare import Child
from worker import resident

POOLS = "8"
UPDATES = 4
ARENAS = ("values", "gradients", "scratch")
PROGRAMS = [*workloads.NAMES[:10], "transformer_tagger", "transformer_tagger_buckets", "transformer_decoding"]
MINIBATCHED = [name for name in PROGRAMS if workloads.load(name).sizes.get("count", 1) > 1]
GOAL = 0.6  # of PyTorch's memory
GOALS = {"language_model": 0.65, "mnist_cnn": 0.65}  # where parameters dominate
LIMITS = (1e9, 2e9, 4e9)  # of a process, for `fits`
CLOSE = 0.95  # a minibatch fits closely enough if it takes this share of the limit
SECOND = 4  # the second size that is tried, as a multiple of the first
TRIES = 4  # for each limit
BAR = 30  # characters of the progress bar
STEPS = (1_000, 10_000, 30_000)
WORDS, HIDDEN = 5_000, 128


def decode(library: str) -> None:
    """Decode, and print the memory after each of STEPS, one per line."""
    if library == "dynet":
        import dynet_config

        dynet_config.set(mem=POOLS)
        import dynet as dy

        dy.renew_cg()
    else:
        import dynet_cy as dy

        dy.renew_cg(forward_only=True)
    pc = dy.ParameterCollection()
    builder = dy.VanillaLSTMBuilder(1, HIDDEN, HIDDEN, pc)
    table = pc.add_lookup_parameters((WORDS, HIDDEN))
    w, b = pc.add_parameters((WORDS, HIDDEN)), pc.add_parameters(WORDS)
    state, word = builder.initial_state(), 0
    answers, sys.stdout = sys.stdout, sys.stderr
    for step in range(1, max(STEPS) + 1):
        state = state.add_input(table[word])
        word = int(dy.log_softmax(dy.affine_transform([b, w, state.output()])).npvalue().argmax())
        if step in STEPS:
            print(json.dumps(resident()), file=answers, flush=True)


def decoding(python: str, library: str) -> list[int | None]:
    """Memory after each of STEPS; None if the library ran out of memory before."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", DYNET_CY_THREADS="1")
    if library == "dynet":
        environment.pop("PYTHONPATH", None)
    command = [python, __file__, "--decode", library]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found: list[int | None] = [json.loads(line) for line in ran.stdout.splitlines()]
    return found + [None] * (len(STEPS) - len(found))


def measure(python: str, library: str, form: str, name: str, updates: int, *options: str) -> dict[str, float]:
    """What that of some updates of a program reports that had the peak, in a new process."""
    child = Child(python, library, form, name, options=options)
    try:
        for _ in range(updates):
            child.round()
        return next(answer for answer in child.rounds if answer["memory"] == child.rounds[-1]["memory"])
    finally:
        child.close()


def added(python: str, library: str, form: str, name: str, runs: int) -> dict[str, float]:
    """What four updates of a program add to a process, in MB, and what the arenas of its graph hold: the least of some
    processes."""
    rounds = [measure(python, library, form, name, UPDATES) for _ in range(runs)]
    least = min(rounds, key=lambda answer: answer["added"])
    return {key: least.get(key, 0) / 1e6 for key in ("added", *ARENAS)}


def form_of(name: str, library: str) -> str | None:
    """The form of a program in which a library batches by hand; None: there is none."""
    workload = workloads.load(name)
    if library == "torch":
        return workload.torch_forms[-1]
    there = "minibatch" in (*workload.dynet_forms, *workload.own_forms)
    return "minibatch" if there and (library != "dynet" or workload.in_dynet) else None


def batched_form(name: str) -> str:
    """The form of a program that dynet_cy batches by itself."""
    workload = workloads.load(name)
    forms = (*workload.dynet_forms, *workload.own_forms)
    return next(form for form in ("autobatch", "map", *forms) if form in forms)


def row(name: str, pythons: dict[str, str], runs: int) -> list[str]:
    """The cells of a program."""
    found = added(pythons["dynet_cy"], "dynet_cy", batched_form(name), name, runs)
    rest = found["added"] - sum(found[key] for key in ARENAS)
    cells = [f"{x:.0f}" for x in (found["added"], *(found[key] for key in ARENAS), rest)]
    others = {}
    for library, python in pythons.items():
        form = form_of(name, library)
        if form:
            others[library] = added(python, library, form, name, runs)["added"]
        cells.append(f"{others[library]:.0f}" if form else "")
    if "torch" in others:
        ratio = max(found["added"], others.get("dynet_cy", 0)) / others["torch"]
        cells += [f"{ratio:.2f}", f"{GOALS.get(name, GOAL)}"]
    return [name, *cells]


class Progress:
    """A progress bar on a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def show(self, what: str) -> None:
        """Show what is done now."""
        if sys.stderr.isatty():
            full = BAR * self.done // max(self.total, 1)
            print(f"\r[{'#' * full}{' ' * (BAR - full)}] {what:60.60}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the bar, before a line is printed."""
        if sys.stderr.isatty():
            print(f"\r{' ' * (BAR + 63)}\r", end="", file=sys.stderr, flush=True)


def on_line(peaks: dict[int, float], limit: float) -> int:
    """The size at which a line through the two nearest sizes comes close to a limit.  They differ by a tenth of the
    limit, if there are such, since the line through two that are close is less certain."""
    nearest, *others = sorted(peaks, key=lambda count: abs(peaks[count] - limit))
    apart = [count for count in others if abs(peaks[count] - peaks[nearest]) >= limit / 10] or others
    return between(peaks, *sorted((nearest, apart[0])), limit * (1 + CLOSE) / 2)


def between(peaks: dict[int, float], first: int, second: int, limit: float) -> int:
    """The size at which a line through two sizes, the smaller one first, reaches a limit."""
    per_item = (peaks[second] - peaks[first]) / (second - first)
    return max(int(first + (limit - peaks[first]) / per_item), 1) if per_item > 0 else 2 * second


def largest(
    python: str, library: str, form: str, name: str, check: float = LIMITS[-1], progress: Progress | None = None
) -> list[tuple[int, bool]]:
    """The largest minibatches with which a process takes at most each of LIMITS, and whether that was measured, as it
    is for limits up to `check`; 0: even the first one takes more."""
    first = workloads.load(name).sizes["count"]
    peaks: dict[int, float] = {}

    def peak(count: int) -> float:
        if count not in peaks:
            if progress:
                progress.show(f"{name}, {library} {form}: minibatches of {count:,}")
            peaks[count] = measure(python, library, form, name, 2, "--count", str(count), "--repeat", "1")["memory"]
        return peaks[count]

    peak(first)
    peak(SECOND * first)
    found = []
    for limit in LIMITS:
        if limit > check:
            found.append((between(peaks, min(peaks), max(peaks), limit), False))
            continue
        for _ in range(TRIES):
            if CLOSE * limit <= peak(on_line(peaks, limit)) <= limit:
                break
        found.append((max((count for count in peaks if peaks[count] <= limit), default=0), True))
    return found


def fit(names: list[str], pythons: dict[str, str], check: float) -> None:
    """Print the table of the largest minibatches."""
    rows = [
        (name, library, form)
        for name in names
        for library in pythons
        for form in (*([batched_form(name)] if library == "dynet_cy" else []), form_of(name, library))
        if form
    ]
    progress = Progress(len(rows))
    print("largest minibatch", "library", *(f"{limit / 1e9:.0f} GB" for limit in LIMITS), sep=" | ")
    for name, library, form in rows:
        found = largest(pythons[library], library, form, name, check, progress)
        progress.done += 1
        progress.clear()
        cells = (f"{'' if measured else '~ '}{count:,}" for count, measured in found)
        print(name, f"{library}, {form}", *cells, sep=" | ", flush=True)


def on_device(names: list[str]) -> None:
    """Print what passes of each program need of the memory of GPU:0, in MB: the most in three updates."""
    from worker import make_update

    import dynet_cy as dy
    from dynet_cy.gpu.graphs import device_bytes

    kinds = ("values", "gradients", "scratch", "tables")
    print("MB on the device", *kinds, "all", sep=" | ")
    for name in names:
        with dy.ComputationGraph():
            update = make_update("dynet_cy", batched_form(name), workloads.load(name), device="GPU:0")
            for _ in range(3):
                update(False)
            found = device_bytes(dy.cg(), 0)
        amounts = [found[kind] / 1e6 for kind in kinds]
        print(name, *(f"{x:.1f}" for x in (*amounts, sum(amounts))), sep=" | ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--dynet", metavar="PYTHON", help="an interpreter that has DyNet (dyNET38)")
    parser.add_argument("--programs", nargs="+", metavar="NAME", default=PROGRAMS, choices=workloads.NAMES)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="processes for each figure; the least counts")
    parser.add_argument("--fits", nargs="*", metavar="NAME", choices=workloads.NAMES, help="the largest minibatches")
    parser.add_argument(
        "--check", type=float, default=LIMITS[-1] / 1e9, metavar="GB", help="try sizes up to this limit"
    )
    parser.add_argument("--gpu", action="store_true", help="only what graphs take on GPU:0")
    parser.add_argument("--decode", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.decode:
        decode(args.decode)
        return
    if args.gpu:
        on_device(args.programs)
        return
    os.environ["DYNET_POOLS"] = POOLS
    pythons = {"dynet_cy": sys.executable, "torch": args.torch, "dynet": args.dynet}
    pythons = {library: python for library, python in pythons.items() if python}
    titles = {"dynet_cy": "minibatch", "torch": "PyTorch, batched", "dynet": "DyNet, minibatch"}
    if args.fits is not None:
        fit(args.fits or MINIBATCHED, pythons, args.check * 1e9)
        return
    ratio = ["ratio", "goal"] if args.torch else []
    print("MB added", "autobatch", *ARENAS, "all else", *(titles[library] for library in pythons), *ratio, sep=" | ")
    for name in args.programs:
        print(*row(name, pythons, args.runs), sep=" | ", flush=True)
    pythons.pop("torch", None)
    print("MiB resident", *pythons, sep=" | ")
    found = [decoding(python, library) for library, python in pythons.items()]
    for steps, *memory in zip(STEPS, *found):
        print(f"decoding {steps:,} words", *(f"{m / 2**20:.0f}" if m else "out of memory" for m in memory), sep=" | ")


if __name__ == "__main__":
    main()
