"""One library in one form: a process that runs a round of a workload for each line of its standard input.

    python worker.py LIBRARY FORM WORKLOAD [THREADS]

LIBRARY is dynet, dynet_cy or torch.  Each answer is a line of JSON: the seconds
of CPU time that an update took, those that went by, its loss, and the greatest
resident memory so far.  With LIBRARY "gemm" a round is a large product, to see
what the CPU can reach.  All run on one thread, where not said otherwise.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any, Callable

import numpy as np
import workloads
from workloads.common import TorchWeights, Weights, Workload

Update = Callable[[], float]  # does one, and returns its loss
GEMM = 1536  # rows and columns


def dynet_update(dy: Any, form: str, workload: Workload) -> Update:
    pc = dy.ParameterCollection()
    loss = workload.dynet(dy, pc)
    Weights().fill(pc)
    trainer = dy.SimpleSGDTrainer(pc, workload.learning_rate)
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

    return run


def torch_update(torch: Any, form: str, workload: Workload) -> Update:
    weights = TorchWeights(torch)
    loss = workload.torch(torch, weights)
    optimizer = torch.optim.SGD(weights.made, workload.learning_rate)

    def run() -> float:
        if workload.mode == "forward":
            with torch.inference_mode():
                return best_scores(loss(form).numpy())
        optimizer.zero_grad()
        tensor = loss(form)
        tensor.backward()
        if workload.mode == "train":
            optimizer.step()
        return best_scores(tensor.detach().numpy())

    return run


def best_scores(value: np.ndarray) -> float:
    """A loss as it is; of a matrix of scores, a column for each item, the sum of the best ones."""
    return float(value.max(axis=0).sum() if value.ndim == 2 else value.sum())


def gemm() -> Update:
    a, b = (np.random.RandomState(i).uniform(-1, 1, (GEMM, GEMM)).astype(np.float32) for i in range(2))
    return lambda: float((a @ b)[0, 0])


def make_update(library: str, form: str, workload: Workload, threads: int = 1) -> Update:
    """Import a library, with its settings, and make the program."""
    if library == "torch":
        import torch

        torch.set_num_threads(threads)
        return torch_update(torch, form, workload)
    autobatch = int(form in ("autobatch", "fused"))
    if library == "dynet":
        import dynet_config

        dynet_config.set(autobatch=autobatch, mem=os.environ.get("DYNET_POOLS", "512"))  # megabytes
        import dynet as dy
    else:
        import dynet_cy as dy
        from dynet_cy import config

        config.set(autobatch=autobatch, threads=threads)
    return dynet_update(dy, form, workload)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    library, form, name = sys.argv[1:4]
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    if library == "gemm":
        run, repeat = gemm(), 1
    else:
        workload = workloads.load(name)
        run, repeat = make_update(library, form, workload, threads), workload.repeat
    for _ in sys.stdin:
        start, begun = time.process_time(), time.perf_counter()
        for _ in range(repeat):
            loss = run()
        seconds = (time.process_time() - start) / repeat
        wall = (time.perf_counter() - begun) / repeat
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "wall": wall, "loss": loss, "memory": memory}), file=answers, flush=True)


if __name__ == "__main__":
    main()
