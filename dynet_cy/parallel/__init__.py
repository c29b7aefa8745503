"""Training with several processes, each on its share of the data.

    python -m dynet_cy.launch -n 4 train.py ARGS

A program written for one process needs three more lines:

    trainer = dy.parallel.wrap(dy.AdamTrainer(m))
    for batch in dy.parallel.shard(batches):
        ...                                          # as before, trainer.update() included
    if dy.parallel.rank() == 0:
        m.save("model")

Started without the launcher, the process is rank 0 of 1 and trains as before.
"""

from dynet_cy.parallel.communicator import Communicator, LocalCommunicator, ParallelError
from dynet_cy.parallel.data import Shard, progress, shard
from dynet_cy.parallel.resume import CheckpointWarning, load_checkpoint, save_checkpoint
from dynet_cy.parallel.runtime import average, barrier, broadcast, gather, launched, mode, rank, restart_count, size
from dynet_cy.parallel.trainer import join, wrap

__all__ = [
    "CheckpointWarning",
    "Communicator",
    "LocalCommunicator",
    "ParallelError",
    "Shard",
    "average",
    "barrier",
    "broadcast",
    "gather",
    "join",
    "launched",
    "load_checkpoint",
    "mode",
    "progress",
    "rank",
    "restart_count",
    "save_checkpoint",
    "shard",
    "size",
    "wrap",
]
