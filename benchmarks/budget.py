"""Training in less memory: programs within a limit, and `checkpoint` beside PyTorch's.

    python benchmarks/budget.py [--torch PYTHON] [--programs NAME ...] [--updates N]

First, the programs of `workloads/`, autobatched on one thread: the memory that the arenas of the graph take in a round
of updates, and the time of a round, without a limit and with limits of a half and a quarter of that, besides all else
that the process uses.  A program with several minibatches has all of them in a round.  The last program only generates.

Then six layers of a Transformer over 8 sequences of 128, of dimension 256, with their layers in `checkpoint` and
without: what training adds to the process, and the time of an update. PyTorch runs the sequences as one minibatch,
dynet_cy finds that they are alike.

Each measurement is a process of its own; times are the least of some rounds or updates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, Callable

import workloads
from memory import PROGRAMS
from worker import dynet_update, peak, reset_peak, resident

LAYERS, DIM, HEADS, HIDDEN, LENGTH, COUNT = 6, 256, 4, 1024, 128, 8
PARTS = (0.5, 0.25)


def least(run: Callable[[], Any], updates: int) -> float:
    """The seconds of the quickest update."""
    seconds = []
    for _ in range(updates):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def program(name: str, part: float, updates: int) -> dict[str, float]:
    """Megabytes of the arenas and seconds of a round of updates, within a part of what the arenas take."""
    import dynet_cy as dy
    from dynet_cy import config
    from dynet_cy.graph.expressions import arena_bytes
    from dynet_cy.memory import arena

    config.set(threads=1, autobatch=1)
    workload = workloads.load(name)
    form = "autobatch" if "autobatch" in [*workload.dynet_forms, *workload.own_forms] else "map"
    update = dynet_update(dy, form, workload)

    def run() -> None:
        for _ in range(workload.repeat):
            update()

    for _ in range(2):  # packed weights and the state of the trainer are there
        run()
    held = sum(arena_bytes().values())
    if part < 1:
        config.set(mem=(arena.used_bytes() - (1 - part) * held) / 2**20)
        dy.renew_cg()
        arena.give_back()
    try:
        run()
        seconds = least(run, updates)
    except MemoryError:
        return {}
    return {"held": sum(arena_bytes().values()) / 1e6, "seconds": seconds}


def transformer(library: str, dropping: bool, updates: int) -> dict[str, float]:
    """Megabytes that training adds, and seconds."""
    if library == "torch":
        import torch
        from torch.utils.checkpoint import checkpoint

        torch.set_num_threads(1)
        layers = [torch.nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, 0.0, batch_first=True) for _ in range(LAYERS)]
        optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], 1e-4)
        x = torch.randn(COUNT, LENGTH, DIM)

        def run() -> None:
            optimizer.zero_grad()
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=False) if dropping else layer(y)
            y.square().sum().backward()
            optimizer.step()
    else:
        import numpy as np

        import dynet_cy as dy

        dy.config.set(threads=1, autobatch=1)
        model = dy.ParameterCollection()
        encoder = dy.nn.TransformerEncoder(LAYERS, DIM, HEADS, HIDDEN, model, checkpoint=dropping)
        trainer = dy.SimpleSGDTrainer(model, 1e-4)
        xs = np.random.RandomState(1).normal(size=(COUNT, DIM, LENGTH))

        def run() -> None:
            dy.renew_cg()
            dy.esum([dy.squared_norm(encoder(dy.inputTensor(x))) for x in xs]).backward()
            trainer.update()

    reset_peak()
    before = resident()
    seconds = least(run, updates)
    return {"added": (peak() - before) / 1e6, "seconds": seconds}


def measured(python: str, *what: object) -> dict[str, float]:
    """The measurement of a process of its own."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [python, __file__, "--measure", *map(str, what)]
    found: dict[str, float] = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--programs", nargs="*", metavar="NAME", default=PROGRAMS, choices=workloads.NAMES)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        kind, *what = args.measure
        if kind == "program":
            found = program(what[0], float(what[1]), int(what[2]))
        else:
            found = transformer(what[0], what[1] == "True", int(what[2]))
        print(json.dumps(found))
        return
    print("program", "MB of arenas", *(f"{part} of it: MB, times as long" for part in PARTS), sep=" | ")
    for name in args.programs:
        whole = measured(sys.executable, "program", name, 1, args.updates)
        cells = [f"{whole['held']:.1f}"]
        for part in PARTS:
            found = measured(sys.executable, "program", name, part, args.updates)
            ratio = found["seconds"] / whole["seconds"] if found else 0
            cells.append(f"{found['held']:.1f}, {ratio:.2f}" if found else "out of memory")
        print(name, *cells, sep=" | ", flush=True)
    print("Transformer", "MB added, ms", "with checkpoint", "memory, time", sep=" | ")
    for library, python in {"dynet_cy": sys.executable, "torch": args.torch}.items():
        if python:
            whole, less = (measured(python, "transformer", library, x, args.updates) for x in (False, True))
            cells = [f"{x['added']:.0f}, {1e3 * x['seconds']:.0f}" for x in (whole, less)]
            cells.append(f"{less['added'] / whole['added']:.2f}, {less['seconds'] / whole['seconds']:.2f}")
            print(library, *cells, sep=" | ")


if __name__ == "__main__":
    main()
