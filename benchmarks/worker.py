"""A worker process for one library: runs a round of a workload for each line of its standard input.

    python worker.py LIBRARY FORM WORKLOAD [THREADS] [--device NAME] [--repeat N] [--count N] [--tiny]

LIBRARY is dynet, dynet_cy or torch.  Each answer is a line of JSON: the CPU
seconds and wall seconds of an update, its loss, the peak resident memory so
far, what it adds to the resident memory before the first update, and the bytes
that the arenas of dynet_cy's graph hold.  With LIBRARY "gemm" a round is a
large product, to measure what the CPU can reach.  All run on one thread, unless
THREADS is given.

A device other than the CPU works asynchronously.  Its seconds are wall
time until all updates of a round are done, and only the loss of the last one
is fetched, so that nothing waits between updates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import workloads
from workloads.common import TorchWeights, Weights, Workload

Update = Callable[..., float]  # makes one, and returns its loss; on a device NaN, unless called with True
GEMM = 1536  # rows and columns


def dynet_update(dy: Any, form: str, workload: Workload, device: str = "cpu") -> Update:
    pc = dy.ParameterCollection()
    loss = workload.dynet(dy, pc)
    Weights().fill(pc)
    trainer = (dy.AdamTrainer if workload.adam else dy.SimpleSGDTrainer)(pc, workload.learning_rate)
    trainer.set_clip_threshold(0)

    def run(pc: Any = pc) -> float:  # DyNet's trainers and parameters do not keep their collection alive
        dy.renew_cg()
        expression = loss(form)
        value = expression.npvalue()
        if workload.mode != "forward":
            expression.backward()
        if workload.mode == "train":
            trainer.update()
        return best_scores(value)

    def run_on_device(fetch: bool = True) -> float:
        dy.renew_cg()
        expression = loss(form)
        expression.forward()
        if workload.mode != "forward":
            expression.backward()
        if workload.mode == "train":
            trainer.update()
        return best_scores(expression.npvalue()) if fetch else math.nan

    return run if device == "cpu" else run_on_device


def torch_update(torch: Any, form: str, workload: Workload, device: str = "cpu") -> Update:
    weights = TorchWeights(torch, device)
    loss = workload.torch(torch, weights)
    optimizers = torch_optimizers(torch, weights, workload)
    on_cpu = device == "cpu"

    def run(fetch: bool = on_cpu) -> float:
        if workload.mode == "forward":
            with torch.inference_mode():
                tensor = loss(form)
        else:
            for optimizer in optimizers:
                optimizer.zero_grad()
            tensor = loss(form)
            tensor.backward()
            if workload.mode == "train":
                for optimizer in optimizers:
                    optimizer.step()
        return best_scores(tensor.detach().cpu().numpy()) if fetch else math.nan

    return run


def torch_optimizers(torch: Any, weights: TorchWeights, workload: Workload) -> list[Any]:
    if not workload.adam:
        return [torch.optim.SGD(weights.made, workload.learning_rate)]
    sparse = set(map(id, weights.sparse))
    dense = [p for p in weights.made if id(p) not in sparse]
    of_tables = [torch.optim.SparseAdam(weights.sparse, workload.learning_rate)] if sparse else []
    return [torch.optim.Adam(dense, workload.learning_rate, fused=True), *of_tables]


def resident() -> int:
    """Resident memory of this process in bytes; 0 if unknown."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def peak() -> int:
    """Peak resident memory of this process in bytes, since the start or `reset_peak`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak() -> None:
    """Forget the peak so far, as of temporary arrays that filled the parameters; on Linux only."""
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def best_scores(value: np.ndarray) -> float:
    """The value of a loss; for a matrix of scores with a column for each item, the sum of their maxima."""
    return float(value.max(axis=0).sum() if value.ndim == 2 else value.sum())


def gemm() -> Update:
    a, b = (np.random.RandomState(i).uniform(-1, 1, (GEMM, GEMM)).astype(np.float32) for i in range(2))
    return lambda: float((a @ b)[0, 0])


def make_update(library: str, form: str, workload: Workload, threads: int = 1, device: str = "cpu") -> Update:
    """Import a library, with its settings, and make the program.  `device` is the library's name for it."""
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = False  # float32 as in the other libraries, or losses would differ
        return torch_update(torch, form, workload, device)
    autobatch = int(form not in ("plain", "minibatch"))
    if library == "dynet":
        import dynet_config

        # Megabytes; with automatic batching DyNet cannot add to them.
        dynet_config.set(autobatch=autobatch, mem=os.environ.get("DYNET_POOLS", "2048"))
        import dynet as dy
    else:
        import dynet_cy as dy
        from dynet_cy import config

        config.set(autobatch=autobatch, threads=threads)
        if device != "cpu":
            config.set_gpu()
    return dynet_update(dy, form, workload, device)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("library", choices=["dynet_cy", "dynet", "torch", "gemm"])
    add("form")
    add("workload")
    add("threads", type=int, nargs="?", default=1)
    add("--device", default="cpu", help="as the library names it: GPU:0, cuda")
    add("--repeat", type=int, help="updates in a round; default: as the workload defines")
    add("--count", type=int, help="items in a minibatch; default: as the workload defines")
    add("--tiny", action="store_true", help="tiny sizes, to check that it works")
    args = parser.parse_args()
    if args.library == "gemm":
        run, repeat = gemm(), 1
    else:
        sizes = {} if args.count is None else {"count": args.count}
        workload = workloads.load(args.workload, args.tiny, **sizes)
        run = make_update(args.library, args.form, workload, args.threads, args.device)
        repeat = args.repeat or workload.repeat
    reset_peak()
    before = resident()
    for _ in sys.stdin:
        start, begun = time.process_time(), time.perf_counter()
        for i in range(repeat):
            loss = run() if args.device == "cpu" else run(i == repeat - 1)
        seconds = (time.process_time() - start) / repeat
        wall = (time.perf_counter() - begun) / repeat
        answer = {"seconds": seconds if args.device == "cpu" else wall, "wall": wall, "loss": loss}
        answer.update(memory=peak(), added=peak() - before)
        if args.library == "dynet_cy":
            from dynet_cy.graph.expressions import arena_bytes

            answer.update(arena_bytes())
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
