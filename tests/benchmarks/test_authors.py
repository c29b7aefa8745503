"""The programs modelled on those of DyNet's authors, at tiny sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import authors
from workloads.common import Weights

sys.path.pop(0)


def losses(name: str, autobatch: int) -> list[float]:
    pc = dy.ParameterCollection()
    loss = authors.PROGRAMS[name](tiny=True).dynet(dy, pc)
    Weights().fill(pc)
    trainer = dy.AdamTrainer(pc)
    found = []
    for number in range(4):
        dy.renew_cg(autobatching=bool(autobatch))
        expression = loss(number)
        found.append(expression.value())
        expression.backward()
        trainer.update()
    return found


@pytest.mark.parametrize("name", authors.PROGRAMS)
def test_programs(name: str) -> None:
    before = config.get()["autobatch"]
    try:
        plain, batched = losses(name, 0), losses(name, 1)
    finally:
        config.set(autobatch=before)
        dy.renew_cg()
    assert all(loss > 0 for loss in plain)
    np.testing.assert_allclose(batched, plain, 1e-3)
