"""A training run whose updates use the same examples with one process and with several; it measures their time.

Arguments: FOLDER [HIDDEN [UPDATES]]. Rank 0 writes FOLDER/parameters.npz, and to stdout a line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import dynet_cy as dy

BATCH = 12
ROWS = 500


class Network:
    """Word vectors, two stacked LSTMs and an output layer."""

    def __init__(self, hidden: int) -> None:
        dy.reset_random_seed(3)
        self.m = dy.ParameterCollection()
        self.words = self.m.add_lookup_parameters((ROWS, hidden), name="words")
        self.unused = self.m.add_lookup_parameters((3, 2), name="unused")
        self.rnn = dy.LSTMBuilder(2, hidden, hidden, self.m)
        self.out = self.m.add_parameters((5, hidden), name="out")
        self.bias = self.m.add_parameters(5, name="bias")

    def loss(self, sentences: list[list[int]]) -> dy.Expression:
        losses = []
        for sentence in sentences:
            states = self.rnn.initial_state().transduce([self.words[w] for w in sentence])
            losses += [dy.pickneglogsoftmax(self.out * h + self.bias, w % 5) for h, w in zip(states, sentence)]
        return dy.esum(losses) / len(losses)


def main() -> None:
    folder, hidden, updates = Path(sys.argv[1]), *(int(x) for x in [*sys.argv[2:], 16, 10][:2])
    rank, size = dy.parallel.rank(), dy.parallel.size()
    network = Network(hidden)
    trainer = dy.parallel.wrap(dy.AdamTrainer(network.m))
    rng = np.random.default_rng(1)
    backward, update = [], []
    for _ in range(updates):
        batch = rng.integers(ROWS, size=(BATCH, 6)).tolist()
        begun = time.perf_counter()
        dy.renew_cg()
        loss = network.loss(batch[rank * BATCH // size : (rank + 1) * BATCH // size])
        loss.value()
        loss.backward()
        middle = time.perf_counter()
        trainer.update()
        backward.append(middle - begun)
        update.append(time.perf_counter() - middle)
    arrays = {x.name(): x.as_array() for x in [*network.m.parameters_list(), *network.m.lookup_parameters_list()]}
    everyone = dy.parallel.gather(sum(float(a.astype(np.float64).sum()) for a in arrays.values()))
    assert len(set(everyone)) == 1, everyone
    if rank == 0:
        np.savez(folder / "parameters.npz", **arrays)
        steps = getattr(trainer._reducer, "traffic", dict)()
        print(
            json.dumps(
                {
                    "size": size,
                    "stepper": type(trainer._reducer).__name__,
                    "batch_ms": round(1e3 * statistics.median(backward), 3),
                    "update_ms": round(1e3 * statistics.median(update), 3),
                    "dense_bytes": steps.get("dense_bytes", 0) // updates,
                    "row_bytes": steps.get("row_bytes", 0) // updates,
                }
            )
        )


if __name__ == "__main__":
    main()
