"""Ranks with different models, settings and calls; every rank prints the error of each case."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

import dynet_cy as dy

RANK = dy.parallel.rank()
IS_BAD = RANK == 1


def model(*shapes: tuple[int, ...]) -> dy.ParameterCollection:
    m = dy.ParameterCollection()
    for shape in shapes:
        m.add_parameters(shape)
    return m


def wrapped() -> dy.Trainer:
    m = model((2, 3), (4,))
    return dy.parallel.wrap(dy.AdamTrainer(m))


def shapes() -> None:
    dy.parallel.wrap(dy.AdamTrainer(model((2, 3), (4, 5) if IS_BAD else (5, 4))))


def missing() -> None:
    dy.parallel.wrap(dy.AdamTrainer(model((2, 3)) if IS_BAD else model((2, 3), (4,))))


def classes() -> None:
    m = model((2, 3))
    dy.parallel.wrap(dy.AmsgradTrainer(m) if IS_BAD else dy.AdamTrainer(m))


def settings() -> None:
    dy.parallel.wrap(dy.AdamTrainer(model((2, 3)), beta_1=0.8 if IS_BAD else 0.9))


def precisions() -> None:
    """Works on CPUs without bfloat16 too."""
    used = dy.parallel.trainer.precision
    dy.parallel.trainer.precision = lambda: "bf16" if IS_BAD else "float32"
    try:
        wrapped()
    finally:
        dy.parallel.trainer.precision = used


def order() -> None:
    m = dy.ParameterCollection()
    for name in "AB" if IS_BAD else "BA":
        m.add_parameters((2, 2), name=name)
    dy.parallel.wrap(dy.AdamTrainer(m))


def frozen() -> None:
    m = model((2, 3))
    m.parameters_list()[0].set_updated(not IS_BAD)
    dy.parallel.wrap(dy.AdamTrainer(m))


def reductions() -> None:
    dy.parallel.wrap(dy.AdamTrainer(model((2, 3))), "mean" if IS_BAD else "sum")


def rates() -> None:
    trainer = wrapped()
    trainer.learning_rate = 0.1 if IS_BAD else 0.2
    trainer.update()


def constants() -> None:
    """As if one rank alone had loaded the state of a trainer with other constants."""
    trainer = wrapped()
    trainer._beta_2 = 0.98 if IS_BAD else 0.99
    trainer.update()


def decays() -> None:
    trainer = dy.parallel.wrap(dy.AdamWTrainer(model((2, 3))))
    trainer.weight_decay = 0.02 if IS_BAD else 0.5
    trainer.update()


def groups() -> None:
    trainer = wrapped()
    trainer.group(trainer.collection.parameters_list()[0], learning_rate=0.1 if IS_BAD else 0.2)
    trainer.update()


def skips() -> None:
    wrapped().update(skip_nonfinite=IS_BAD)


def subsets() -> None:
    wrapped().update_subset([1] if IS_BAD else [0, 1], [])


def added() -> None:
    trainer = wrapped()
    trainer.collection.add_parameters((2, 2))
    trainer.update()


def replaced() -> None:
    """As many parameters and tables as before, but not the same."""
    trainer = wrapped()
    m = trainer.collection
    m.remove(m.parameters_list()[0])
    E = m.add_lookup_parameters((100000, 4))
    dy.renew_cg()
    dy.squared_norm(E[99999]).backward()
    trainer.update()


def outside() -> None:
    """The trainer's collection is the same, but it is a part of different models."""
    m = model((300, 10000)) if IS_BAD else dy.ParameterCollection()
    part = m.add_subcollection("part")
    part.add_parameters((2, 3))
    dy.parallel.wrap(dy.AdamTrainer(part))


def lengths() -> None:
    dy.parallel.runtime.current().sum_floats(np.zeros(5000 if IS_BAD else 5, np.float32))


def broadcasts() -> None:
    dy.parallel.runtime.current().broadcast_floats(np.zeros(1 if IS_BAD else 5, np.float32))


def calls() -> None:
    trainer = wrapped()
    trainer.update() if IS_BAD else dy.parallel.barrier()


def checkpoints() -> None:
    trainer = wrapped()
    if IS_BAD:
        dy.parallel.save_checkpoint("point.safetensors", trainer.collection, trainer)
    else:
        dy.parallel.barrier()


def infinite(threshold: float = 5) -> None:
    trainer = wrapped()
    trainer.set_clip_threshold(threshold)
    W, _ = trainer.collection.parameters_list()
    dy.renew_cg()
    (dy.squared_norm(W) * (1e30 if IS_BAD else 1) * 1e30).backward()
    trainer.update()


def unclipped() -> None:
    infinite(0)


def data() -> None:
    for _ in dy.parallel.shard([RANK, 2, 3]):
        pass


def turns() -> None:
    trainers = wrapped(), wrapped()
    trainers[IS_BAD].update()


def costs() -> None:
    for _ in dy.parallel.shard([1, 2, 3, 4], batch_size=2, cost=lambda x: x + RANK):
        pass


def ways() -> None:
    for _ in dy.parallel.shard([1, 2, 3], uneven="drop" if IS_BAD else "join"):
        pass


def children() -> None:
    child = os.fork()
    if not child:
        try:
            dy.parallel.barrier()
        except dy.parallel.ParallelError as error:
            print(f"in children: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)


CASES: list[Callable[[], None]] = [
    shapes,
    missing,
    classes,
    settings,
    precisions,
    order,
    frozen,
    reductions,
    rates,
    constants,
    decays,
    groups,
]
CASES += [skips, subsets, added, replaced, outside, lengths, broadcasts]
CASES += [calls, checkpoints, infinite, unclipped, data, turns, costs, ways, children]

if __name__ == "__main__":
    for case in CASES:
        try:
            case()
        except RuntimeError as error:
            print(f"in {case.__name__}: {type(error).__name__}: {error}")
            sys.stdout.flush()
        dy.parallel.barrier()
