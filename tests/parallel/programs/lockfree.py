"""Asynchronous training of a model with a table; writes the results to FOLDER/RANK.npz."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import dynet_cy as dy

UPDATES = 300
ROWS = 10

if "setting" in sys.argv:
    dy.config.set(shared_parameters=1)
results = {}
for kind in (dy.SimpleSGDTrainer, dy.AdamTrainer):
    dy.reset_random_seed(3)
    m = dy.ParameterCollection()
    m.set_weight_decay(1e-6)
    E = m.add_lookup_parameters((ROWS, 4))
    W = m.add_parameters((1, 4))
    b = m.add_parameters(1)
    trainer = dy.parallel.wrap(kind(m))
    trainer.learning_rate = 0.02
    rng = np.random.default_rng(dy.parallel.rank())
    for _ in range(UPDATES):
        dy.renew_cg()
        row = int(rng.integers(ROWS))
        loss = dy.squared_distance(W * E[row] + b, dy.inputVector([row / ROWS]))
        loss.backward()
        trainer.update()
    dy.parallel.barrier()
    dy.renew_cg()
    errors = [float((W * E[i] + b).value()) - i / ROWS for i in range(ROWS)]
    name = kind.__name__
    results[name] = np.concatenate([x.as_array().ravel() for x in (E, W, b)])
    results[f"{name} errors"] = np.array(errors)
    results[f"{name} steps"] = np.array(dy.parallel.gather(trainer._settings()["_steps"]))
    dy.parallel.barrier()
# A group with its own settings, frozen parameters, and batches that are dropped.
m = dy.ParameterCollection()
p, own, frozen = (m.add_parameters(2, init=1.0) for _ in range(3))
table = m.add_lookup_parameters((3, 2), init=1.0)
frozen.set_updated(False)
trainer = dy.parallel.wrap(dy.AdamWTrainer(m, 0.01, weight_decay=1))
trainer.group(own, learning_rate=0.5, weight_decay=0.1)
for i in range(10):
    dy.renew_cg()
    loss = (dy.sum_elems(p) + dy.sum_elems(own) + dy.sum_elems(frozen) + dy.sum_elems(table[1])) * 0
    (loss * (float("nan") if i % 2 else 1.0)).backward()
    for turn in range(dy.parallel.size()):  # in turns, so that no rank overwrites the update of another
        if turn == dy.parallel.rank():
            trainer.update(skip_nonfinite=True)
        dy.parallel.barrier()
assert not frozen.grad_as_array().any()
dy.parallel.barrier()
results["decayed"] = np.concatenate([x.as_array()[:1].ravel() for x in (p, own, frozen, table)])
results["made"] = np.array([trainer._updates, trainer._skipped])
dy.parallel.barrier()
for what in ("exponential_moving_average", "cumulative_moving_average"):
    try:
        getattr(trainer, what)(*[0.9][: what.startswith("e")])
    except RuntimeError as error:
        results[what] = np.array(str(error))
np.savez(Path(sys.argv[1]) / f"{dy.parallel.rank()}.npz", **results)
