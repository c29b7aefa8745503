"""Checkpoints after every three updates, by ranks with different numbers of batches in an update."""

import dynet_cy as dy

RANK = dy.parallel.rank()

model = dy.ParameterCollection()
w = model.add_parameters(2, init=1.0)
trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(model, 0.1))
run = dy.Training(model, range(8 * (RANK + 1)), epochs=1)
for epoch in run:
    for batch in epoch:
        dy.renew_cg()
        dy.squared_norm(w).backward()
        if batch % (RANK + 1) == RANK:
            trainer.update()
        else:
            continue
        if run.every(3):
            dy.parallel.save_checkpoint(f"after-{trainer.updates}.safetensors", model, trainer)
            print(f"saved {trainer.updates}", flush=True)
