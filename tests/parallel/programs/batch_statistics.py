"""Running statistics of BatchNorm with several processes: argument FOLDER, where each rank leaves its numbers."""

from __future__ import annotations

import sys

import numpy as np

import dynet_cy as dy

MOMENTUM, STEPS = 0.25, 12


def minibatch(rank: int, step: int) -> np.ndarray:
    """Four channels of seven examples, different on each rank."""
    return np.random.default_rng([rank, step]).normal(rank, 1 + step, (4, 7))


def reference(minibatches: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The running mean and variance after these minibatches, in float64."""
    mean, var = np.zeros(4), np.ones(4)
    for x in minibatches:
        mean += MOMENTUM * (x.mean(1) - mean)
        var += MOMENTUM * (x.var(1, ddof=1) - var)
    return mean, var


def main(folder: str) -> None:
    rank, size = dy.parallel.rank(), dy.parallel.size()
    model = dy.ParameterCollection()
    norm = dy.nn.BatchNorm(4, model, momentum=MOMENTUM)
    trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(model))
    found = {}

    def note(name: str) -> None:
        found[f"{name} mean"], found[f"{name} var"] = norm.mean.as_array(), norm.var.as_array()

    for step in range(STEPS):
        for turn in range(size):  # one rank at a time, so that shared statistics have one order
            if turn == rank:
                dy.renew_cg()
                dy.sum_batches(dy.squared_norm(norm(dy.inputTensor(minibatch(rank, step), batched=True)))).backward()
            dy.parallel.barrier()
        trainer.update()
    dy.parallel.barrier()
    note("own")
    dy.parallel.save_checkpoint(f"{folder}/checkpoint", model, trainer)
    dy.parallel.load_checkpoint(f"{folder}/checkpoint", model, trainer)
    note("loaded")
    dy.parallel.barrier()
    for step in range(STEPS, 2 * STEPS):  # all at once: nothing is torn
        dy.renew_cg()
        norm(dy.inputTensor(minibatch(rank, step), batched=True)).value()
    dy.parallel.barrier()
    note("beside")
    dy.parallel.barrier()
    for p in (norm.mean, norm.var):
        mean = dy.parallel.average(p.as_array())
        dy.parallel.barrier()  # asynchronously, there is one copy
        p.set_value(mean)
    dy.parallel.barrier()
    note("averaged")
    np.savez(f"{folder}/{rank}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
