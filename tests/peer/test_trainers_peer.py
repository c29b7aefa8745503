"""Trainers in both libraries: values, learning rates and gradients after each of many updates through graphs.

The rules themselves are tested in tests/train, against float64 and, if it is installed, DyNet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from in_compat import results_in_compat
from libraries import Library, assert_alike, both, dynet

import dynet_cy

pytestmark = pytest.mark.peer

# Hyperparameters by name: none, and all.
TRAINERS: dict[str, dict[str, float]] = {
    "SimpleSGDTrainer": {"learning_rate": 0.3},
    "CyclicalSGDTrainer": {"learning_rate_min": 0.05, "learning_rate_max": 0.3, "step_size": 2, "gamma": 0.9},
    "MomentumSGDTrainer": {"learning_rate": 0.05, "mom": 0.7},
    "AdagradTrainer": {"learning_rate": 0.2, "eps": 1e-3},
    "AdadeltaTrainer": {"eps": 1e-2, "rho": 0.8},
    "RMSPropTrainer": {"learning_rate": 0.02, "eps": 1e-3, "rho": 0.8},
    "AdamTrainer": {"alpha": 0.05, "beta_1": 0.8, "beta_2": 0.95, "eps": 1e-3},
    "AmsgradTrainer": {"alpha": 0.05, "beta_1": 0.8, "beta_2": 0.7, "eps": 1e-3},
}
CASES = [(name, arguments) for name, given in TRAINERS.items() for arguments in ({}, given)]
UPDATES = 12
# Their eps is DyNet's only in programs of DyNet.
IN_COMPAT = [case for case in CASES if case[0] in ("AdamTrainer", "AmsgradTrainer") and "eps" in case[1]]
WAYS = [(sparse, threshold) for sparse in (True, False) for threshold in (5.0, 0.0)]


@pytest.fixture(scope="module")
def in_compat() -> dict[str, Any]:
    calls = [(*case, *way) for case in IN_COMPAT for way in WAYS]
    return dict(zip(map(repr, calls), results_in_compat("test_trainers_peer", "run_ours", calls)))


def run(dy: Library, name: str, arguments: dict[str, float], sparse: bool, threshold: float) -> list[dict[str, Any]]:
    """Train a small tagger, and return its values after each update."""
    rng = np.random.default_rng(4)
    model = dy.ParameterCollection()
    e = model.add_lookup_parameters((7, 4), init=rng.normal(size=(7, 4)))
    w = model.add_parameters((5, 4), init=rng.normal(size=(5, 4)))
    b = model.add_parameters((5,), init=rng.normal(size=5))
    unused = model.add_parameters((3,), init=1.0)
    trainer = getattr(dy, name)(model, **arguments)
    trainer.set_sparse_updates(sparse)
    trainer.set_clip_threshold(threshold)
    seen = []
    for step in range(UPDATES):
        dy.renew_cg()
        dy.kept.clear()
        words, tags = rng.integers(0, 6, 4), rng.integers(0, 5, 4)
        scores = [w * dy.tanh(e[int(i)]) + b for i in words]
        losses = [dy.pickneglogsoftmax(s, int(t)) for s, t in zip(scores, tags)]
        loss = dy.esum(losses) * (40.0 if step % 4 == 3 else 1.0)  # some gradients are clipped
        value = loss.value()
        loss.backward()
        if step == 6:
            trainer.restart()
        if step == 8:
            trainer.restart(learning_rate=0.01)
        trainer.update()
        now = {"loss": value, "rate": trainer.learning_rate, "clip": trainer.get_clip_threshold()}
        now |= {"values": [p.as_array() for p in (e, w, b, unused)]}
        now |= {"gradients": [p.grad_as_array() for p in (e, w, b, unused)]}
        seen.append(now)
    seen.append({"name": trainer.whoami()})
    return seen


def run_ours(*call: Any) -> list[dict[str, Any]]:
    return run(both()[1], *call)


@pytest.mark.parametrize("threshold", [5.0, 0.0], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_updates(in_compat: dict, name: str, arguments: dict[str, float], sparse: bool, threshold: float) -> None:
    call = name, arguments, sparse, threshold
    theirs = run(both()[0], *call)
    ours = in_compat[repr(call)] if (name, arguments) in IN_COMPAT else run_ours(*call)
    # Errors of rounding and of DyNet's tanh accumulate over updates.
    for step, (a, b) in enumerate(zip(theirs, ours)):
        assert_alike(a, b, f"update {step}", tol=1e-4)


@pytest.mark.parametrize("name", TRAINERS)
def test_attributes(name: str) -> None:
    seen = []
    for library in both():
        model = library.ParameterCollection()
        trainer = getattr(library, name)(model)
        found = [trainer.learning_rate, trainer.get_clip_threshold(), trainer.whoami()]
        trainer.learning_rate = 0.25
        found.append(trainer.learning_rate)
        trainer.set_learning_rate(0.125)
        trainer.set_clip_threshold(-1.0)
        found += [trainer.learning_rate, trainer.get_clip_threshold()]
        trainer.update()
        seen.append(found)
    assert_alike(seen[0], seen[1], name, tol=1e-7)


@pytest.mark.parametrize(
    "bad",
    [
        lambda dy, m: dy.SimpleSGDTrainer(),
        lambda dy, m: dy.SimpleSGDTrainer(m, "fast"),
        lambda dy, m: dy.SimpleSGDTrainer(m, rate=1.0),
        lambda dy, m: dy.AdamTrainer(m, rate=1.0),
        lambda dy, m: dy.SimpleSGDTrainer(m).set_clip_threshold("high"),
        lambda dy, m: dy.SimpleSGDTrainer(3),
    ],
)
def test_bad_arguments(bad: Any) -> None:
    for library in both():
        with pytest.raises(TypeError):
            bad(library, library.ParameterCollection())


def test_all_trainers_are_compared() -> None:
    names = {n for n in dir(dynet) if n.endswith("Trainer") and n != "Trainer"}
    assert names == set(TRAINERS)
    assert names <= set(dynet_cy.__all__)
