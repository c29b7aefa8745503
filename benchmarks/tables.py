"""Cost of updates of a large lookup table: sparse updates, and updates of all rows.

    python benchmarks/tables.py [--rows N] [--size N] [--touched N] [--trainers NAME...] [--gpu]
    dynet-cy-launch -n 2 benchmarks/tables.py ...

Prints microseconds of CPU time, the minimum and the mean over many updates, with rows drawn at random; "forward" is the
minimum for looking these rows up. With several processes, each looks up its share of the rows, and the times are those
of rank 0. With --gpu, the table is on GPU:0, the times are those until the device has finished, and updates that go
over the whole table are measured, too.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

import dynet_cy as dy
from dynet_cy.core import engine

TRAINERS = ("SimpleSGDTrainer", "MomentumSGDTrainer", "RMSPropTrainer", "AdamTrainer", "AmsgradTrainer")
UPDATES = 1_100  # more than can be deferred before all rows get them


def cpu_time() -> float:
    return time.process_time()


def gpu_time() -> float:
    """The time when the device has finished."""
    from dynet_cy.gpu.driver import synchronize

    synchronize(0)
    return time.perf_counter()


def measure(name: str, sparse: bool, rows: int, size: int, touched: int, device: str) -> tuple[float, float, float]:
    now = cpu_time if device == "CPU" else gpu_time
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((rows, size), device=device)
    trainer = getattr(dy, name)(model)
    trainer.set_sparse_updates(sparse)
    trainer = dy.parallel.wrap(trainer)
    touched = touched // dy.parallel.size()
    rng = np.random.default_rng(dy.parallel.rank())
    forward, update = [], []
    for _ in range(UPDATES):
        dy.renew_cg()
        loss = dy.sum_batches(dy.squared_norm(dy.lookup_batch(table, [int(i) for i in rng.integers(0, rows, touched)])))
        start = now()
        loss.value()
        forward.append(now() - start)
        loss.backward()
        dy.parallel.barrier()
        start = now()
        trainer.update()
        update.append(now() - start)
    return min(update) * 1e6, sum(update) / UPDATES * 1e6, min(forward) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of the table; default: %(default)s")
    parser.add_argument("--size", type=int, default=128, help="numbers of a row; default: %(default)s")
    parser.add_argument(
        "--touched", type=int, default=200, help="rows with a gradient in an update; default: %(default)s"
    )
    parser.add_argument("--trainers", nargs="+", default=TRAINERS, help="default: %(default)s")
    parser.add_argument("--gpu", action="store_true", help="on GPU:0 instead of the CPU")
    options = parser.parse_args()
    run = partial(
        measure,
        rows=options.rows,
        size=options.size,
        touched=options.touched,
        device="GPU:0" if options.gpu else "CPU",
    )
    first = dy.parallel.rank() == 0
    if first:
        print("| trainer | rows that change | update, least | mean | forward, least |\n|---|---|---|---|---|")
    for name in options.trainers:
        found = {"used": run(name, True), "all": run(name, False)}
        if options.gpu:
            with engine.tuned({"gpu.lazy.least": 2**63}):
                found["all, the whole table"] = run(name, False)
        if first:
            for which, numbers in found.items():
                print(f"| {name} | {which} | " + " | ".join(f"{x:.1f}" for x in numbers) + " |")


if __name__ == "__main__":
    main()
