"""Chains of small nodes within a limit of memory: they are divided into stretches by a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_process import run_python

# Each in a process of its own, since what earlier graphs hold would make room.
PROGRAMS = """
import gc
import sys
import numpy as np
import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.memory import arena

config.set(autobatch=0)
model = dy.ParameterCollection()
b = model.add_parameters(12, init=dy.UniformInitializer(0.5))
W = model.add_parameters((12, 36), init=dy.UniformInitializer(0.5))


def far_readers():
    # The first state and every hundredth one are read much later.
    h = first = dy.tanh(b + b)
    states = []
    for i in range(6000):
        h = dy.tanh(h + b)
        if i % 100 == 0:
            states.append(h)
            h = dy.cmult(h, first)
    return dy.sum_elems(dy.esum([*states, h])), []


def sizes():
    # Nodes that differ in size, and dropout.
    h = b
    for i in range(4000):
        h = W * dy.dropout(dy.concatenate([h, b, h]), 0.2) if i % 5 == 0 else dy.tanh(h + b)
    return dy.sum_elems(h), []


def held():
    # The program can ask for some states, and does so after backward.
    h, states = b, []
    for i in range(6000):
        h = dy.tanh(h + b)
        if i % 250 == 1:
            states.append(h)
    return dy.sum_elems(h), states


def passes():
    # Values are asked for in between, so that there are several plans.
    h = b
    for i in range(6000):
        h = dy.tanh(h + b)
        if i in (300, 3000):
            h.value()
    return dy.sum_elems(h), []


def run(program):
    dy.reset_random_seed(7)
    dy.renew_cg()
    for p in model.parameters_list():
        p.scale_gradient(0)
    loss, states = program()
    found = [loss.npvalue()]
    loss.backward()
    found += [x.npvalue() for x in states] + [x.gradient() for x in states]
    return found + [p.grad_as_array().copy() for p in model.parameters_list()]


program = globals()[sys.argv[1]]
run(program)
expected = run(program)
taken = sum(arena_bytes().values())
gc.collect()
config.set(mem=(arena.used_bytes() - taken * (1 - float(sys.argv[2]))) / 2**20)
dy.renew_cg()
arena.give_back()
run(program)  # what graphs take is measured
engine.stats("execute.rematerialize", reset=True)
found = run(program)
same = len(found) == len(expected) and all(np.array_equal(x, y) for x, y in zip(found, expected))
print(same, engine.stats("execute.rematerialize")["nodes"])
"""


@pytest.mark.parametrize(
    ("program", "part"), [("far_readers", 0.5), ("far_readers", 0.25), ("sizes", 0.4), ("held", 0.7), ("passes", 0.3)]
)
def test_same_bits(program: str, part: float, tmp_path: Path) -> None:
    """Values and gradients within a part of the memory that they take without a limit."""
    done = run_python(tmp_path, PROGRAMS, program, str(part), DYNET_CY_DROP_SMALL="0")
    assert done.returncode == 0, done.stderr
    same, again = done.stdout.split()
    assert same == "True"
    assert int(again) > 0
    if part == 0.25:  # a search would take more memory than it saves
        assert int(again) < 12_100  # its nodes: none runs more than twice
