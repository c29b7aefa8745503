"""Wraps several models, and one of them again after adding parameters; prints the amount of shared memory."""

from __future__ import annotations

import os

import numpy as np

import dynet_cy as dy
from dynet_cy.parallel.runtime import current

fd = current().board.fd


def step(trainer: dy.Trainer, *parameters: dy.Parameters) -> None:
    dy.renew_cg()
    dy.esum([dy.squared_norm(p) for p in parameters]).backward()
    trainer.update()


for number in range(6):
    m = dy.ParameterCollection()
    W = m.add_parameters((1000, 1000), init=float(number))
    assert not W.grad_as_array().any()
    trainer = dy.parallel.wrap(dy.AdamTrainer(m))
    step(trainer, W)
    assert np.abs(W.as_array() - number).max() < 0.01
    print("used", os.stat(fd).st_blocks * 512)
small = m.add_parameters((3,), init=float(dy.parallel.rank()))
trainer = dy.parallel.wrap(trainer)
assert not small.as_array().any(), "the values of rank 0"
step(trainer, W, small)
other = dy.parallel.wrap(dy.SimpleSGDTrainer(m))
small.set_value(np.array([1, 2, 3]))
step(other, small)
print("values", dy.parallel.gather(small.as_array().tolist()))
try:
    for _ in dy.parallel.shard([1, 2, 3]):
        pass
except dy.parallel.ParallelError as error:
    print("said", error)
try:
    m.add_parameters((3_000_000,))
except MemoryError as error:
    print("said", error)
