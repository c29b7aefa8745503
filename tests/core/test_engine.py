"""Counts of the engine, and the numbers that decide how it works."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine


def run_a_plan() -> None:
    dy.renew_cg(autobatching=1)
    dy.esum([dy.tanh(dy.scalarInput(x)) for x in range(2)]).value()


def test_counts_are_those_since_the_last_reset() -> None:
    engine.stats("schedule.plan", reset=True)
    others = engine.stats()
    run_a_plan()
    assert engine.stats("schedule.plan")["made"] + engine.stats("schedule.plan")["reused"] == 1
    assert engine.stats("schedule", reset=True)["plan.made"] == engine.stats()["schedule.plan.made"] + 1
    assert engine.stats("schedule.plan") == {"made": 0, "reused": 0}
    assert engine.stats().keys() == others.keys()
    assert all(engine.stats()[name] >= n for name, n in others.items() if not name.startswith("schedule."))


@pytest.mark.parametrize("name", ["schedule.plan.most_plans", "memory.arena.poisoning", "gpu.graphs.most_graphs"])
def test_numbers_are_set_and_put_back(name: str) -> None:
    before = engine.tune(name, 1)
    try:
        with engine.tuned({name: 0, "core.threads.pause": 5}):
            assert engine.tune(name, True) == 0
        assert engine.tune(name, np.int64(0)) == 1
        with pytest.raises(KeyError, match=f"no '{name}s' to tune; similar names: .*{name}"):
            with engine.tuned({name: 1, f"{name}s": 1}):
                pass
        assert engine.tune(name, 1) == 0
        for wrong in (-1, 2**64):
            with pytest.raises(ValueError, match=f"{name} must be between 0 and .*, not {wrong}"):
                engine.tune(name, wrong)
        with pytest.raises(TypeError):
            engine.tune(name, 0.5)
    finally:
        engine.tune(name, before)


@pytest.mark.parametrize("wrong", ["schedule.plans", "gpu.99", "schedule.plan.made", "."])
def test_counts_that_there_are_not(wrong: str) -> None:
    with pytest.raises(KeyError, match=f"there are no counts of '{wrong}'; similar names: "):
        engine.stats(wrong)


@pytest.mark.parametrize(
    "wrong", ["", "plan", "schedule.plan", "no_module.most", "schedule.plan.made", "gpu.x", "gpu."]
)
def test_numbers_that_there_are_not(wrong: str) -> None:
    with pytest.raises(KeyError, match=f"there is no '{wrong}' to tune; similar names: "):
        engine.tune(wrong, 0)


def test_names_begin_with_modules() -> None:
    for name in engine.stats():
        if not name.startswith("gpu."):
            folder, module = name.split(".")[:2]
            importlib.import_module(f"dynet_cy.{folder}.{module}")
