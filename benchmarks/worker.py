"""One library in one form: a process that runs a round of a workload for each line of its standard input.

    python worker.py LIBRARY FORM WORKLOAD

LIBRARY is dynet, dynet_cy or torch.  Each answer is a line of JSON: seconds of
CPU time, the loss, and the greatest resident memory so far.  With LIBRARY
"gemm" a round is a large product, which tells what the CPU can reach.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any, Callable

import numpy as np
import workloads
from workloads.common import TorchWeights, Weights, Workload

Round = Callable[[], float]


def dynet_round(dy: Any, form: str, workload: Workload) -> Round:
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


def torch_round(torch: Any, form: str, workload: Workload) -> Round:
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


def gemm_round(size: int = 1536) -> Round:
    a, b = (np.random.RandomState(i).uniform(-1, 1, (size, size)).astype(np.float32) for i in range(2))

    def run() -> float:
        return 2.0 * size**3 + 0 * float((a @ b)[0, 0])

    return run


def make_round(library: str, form: str, name: str) -> Round:
    if library == "gemm":
        return gemm_round()
    workload = workloads.load(name)
    if library == "torch":
        import torch

        torch.set_num_threads(1)
        return torch_round(torch, form, workload)
    autobatch = int(form == "autobatch")
    if library == "dynet":
        import dynet_config

        dynet_config.set(autobatch=autobatch)
        import dynet as dy
    else:
        import dynet_cy as dy
        from dynet_cy import config

        config.set(autobatch=autobatch)
    return dynet_round(dy, form, workload)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    run = make_round(*sys.argv[1:])
    for _ in sys.stdin:
        start = time.process_time()
        loss = run()
        seconds = time.process_time() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "loss": loss, "memory": memory}), file=answers, flush=True)


if __name__ == "__main__":
    main()
