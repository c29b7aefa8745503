"""Cost of updates of a large lookup table: sparse updates, and updates of all rows.

    python benchmarks/tables.py [--rows N] [--size N] [--touched N] [--trainers NAME...]
    python -m dynet_cy.launch -n 2 benchmarks/tables.py ...

Prints microseconds of CPU time, the minimum and the mean over many updates, with rows drawn at random; "forward" is the
minimum for looking these rows up.  With several processes, each looks up its share of the rows, and the times are those
of rank 0.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import dynet_cy as dy

TRAINERS = ("SimpleSGDTrainer", "MomentumSGDTrainer", "RMSPropTrainer", "AdamTrainer", "AmsgradTrainer")
UPDATES = 1_100  # more than can be deferred before all rows get them


def measure(name: str, sparse: bool, rows: int, size: int, touched: int) -> tuple[float, float, float]:
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((rows, size))
    trainer = getattr(dy, name)(model)
    trainer.set_sparse_updates(sparse)
    trainer = dy.parallel.wrap(trainer)
    touched = touched // dy.parallel.size()
    rng = np.random.default_rng(dy.parallel.rank())
    forward, update = [], []
    for _ in range(UPDATES):
        dy.renew_cg()
        loss = dy.sum_batches(dy.squared_norm(dy.lookup_batch(table, [int(i) for i in rng.integers(0, rows, touched)])))
        start = time.process_time()
        loss.value()
        forward.append(time.process_time() - start)
        loss.backward()
        dy.parallel.barrier()
        start = time.process_time()
        trainer.update()
        update.append(time.process_time() - start)
    return min(update) * 1e6, sum(update) / UPDATES * 1e6, min(forward) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of the table; default: %(default)s")
    parser.add_argument("--size", type=int, default=128, help="numbers of a row; default: %(default)s")
    parser.add_argument(
        "--touched", type=int, default=200, help="rows with a gradient in an update; default: %(default)s"
    )
    parser.add_argument("--trainers", nargs="+", default=TRAINERS, help="default: %(default)s")
    options = parser.parse_args()
    first = dy.parallel.rank() == 0
    if first:
        print("| trainer | rows that change | update, least | mean | forward, least |\n|---|---|---|---|---|")
    for name in options.trainers:
        for sparse in (True, False):
            numbers = measure(name, sparse, options.rows, options.size, options.touched)
            if first:
                print(f"| {name} | {'used' if sparse else 'all'} | " + " | ".join(f"{x:.1f}" for x in numbers) + " |")


if __name__ == "__main__":
    main()
