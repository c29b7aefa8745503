"""Training on `data.batches` by several processes: FOLDER, WHAT ("whole" or "rest"), SAVES, SHARD, PREFETCH.

"whole" saves a checkpoint after update U of epoch E, where SAVES is 100 E + U; "rest" starts from that checkpoint. Each
rank writes the items it saw afterwards, and its final parameters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dynet_cy as dy

folder, what, saves, shard, prefetch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
words = [1 + (5 * i) % 7 for i in range(45)]
data = dy.data.batches(
    [(i, n) for i, n in enumerate(words)],
    cost=lambda x: x[1],
    most=12,
    bucket=lambda x: x[1],
    shuffle=True,
    seed=4,
    shard=shard,
    prefetch=prefetch,
)
m = dy.ParameterCollection()
w = m.add_parameters(3, init=0.0)
trainer = dy.parallel.wrap(dy.AdamTrainer(m, 0.1))
trainer.schedule = dy.WarmupSchedule(3, then=dy.PlateauSchedule(patience=1))
if what == "rest":
    dy.parallel.load_checkpoint(folder / "checkpoint", m, trainer, data)
seen = []
while data.epoch < 2:
    epoch = data.epoch
    for number, batch in enumerate(data, 1):
        dy.renew_cg()
        (dy.sum_elems(w) * float(sum(i for i, _ in batch) - 100)).backward()
        trainer.update()
        seen += [[epoch, i] for i, _ in batch]
        if what == "whole" and 100 * epoch + number == saves:
            dy.parallel.save_checkpoint(folder / "checkpoint", m, trainer, data)
            seen = []
    trainer.schedule.report(dy.parallel.average(1.0))
stopping = dy.EarlyStopping(m, path=folder / "best")
stopping.report(dy.parallel.average(1.0))
ended = w.npvalue().tolist()
w.set_value([9.0] * 3)
stopping.reload()
assert w.npvalue().tolist() == ended
found = {"seen": seen, "w": ended, "rate": trainer.learning_rate, "len": len(data)}
(folder / f"{what}-{dy.parallel.rank()}.json").write_text(json.dumps(found), encoding="utf-8")
