"""Profiles of training steps."""

from __future__ import annotations

import dynet_cy as dy
from dynet_cy import profiling

STEP = """
import dynet_cy as dy
model = dy.ParameterCollection()
w = model.add_parameters((40, 40), name="w")
trainer = dy.SimpleSGDTrainer(model)

def step():
    dy.renew_cg()
    with dy.name_scope("encoder"):
        hs = [dy.tanh(w * dy.inputVector([1.0] * 40)) for _ in range(4)]
    dy.esum([dy.squared_norm(h) for h in hs]).backward()
    trainer.update()
"""


def train(n: int = 1) -> None:
    """Run n steps of the program."""
    names: dict = {}
    exec(compile(STEP, "program.py", "exec"), names)
    for _ in range(n):
        names["step"]()
    dy.renew_cg()


def measured(n: int = 2) -> profiling.Profile:
    """The profile of n steps, with a timeline."""
    with profiling.measure(timeline=True) as profile:
        train(n)
    return profile
