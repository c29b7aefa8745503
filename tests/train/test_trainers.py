"""Trainers, ours and DyNet's if it is installed, compared with the float64 rules of trainer_reference.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trainer_reference as reference
from arrays import all_close, all_equal

dy: Any = None


@pytest.fixture(autouse=True, params=["dynet_cy", pytest.param("dynet", marks=pytest.mark.peer)])
def library(request: pytest.FixtureRequest) -> str:
    global dy
    dy = pytest.importorskip(request.param)
    return request.param


CASES = [(name, arguments) for name, others in reference.OTHERS.items() for arguments in ({}, others)]
# Trainers whose updates are compared in other files.
ELSEWHERE = {"AdamWTrainer": "test_groups.py"}


def test_every_trainer_is_compared() -> None:
    import dynet_cy

    names = {n for n in dynet_cy.__all__ if n.endswith("Trainer") and n not in ("Trainer", "PythonTrainer")}
    assert names == reference.RULES.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"b1": "_beta_1", "beta": "_beta_2"}, "rules have no constant 'beta', only b1, b2 and eps"),
        ({"b1": "_beta_1", "eps": "_eps"}, "the rule adam reads the constant 'b2', and _constants gives it no value"),
        ({}, "the rule adam reads the constant 'b1', and _constants gives it no value"),
    ],
)
def test_constants_that_a_rule_has_not(library: str, constants: dict[str, str], words: str) -> None:
    """Such a constant is an error; otherwise it would be 0."""
    if library == "dynet_cy":
        with pytest.raises(TypeError, match=f"Wrong: {words}"):
            type("Wrong", (dy.AdamTrainer,), {"_constants": constants})


def test_a_constant_that_the_rule_does_not_read(library: str) -> None:
    if library == "dynet_cy":
        with pytest.raises(TypeError, match="Wrong: the rule sgd does not read the constant 'eps', and _constants"):
            type("Wrong", (dy.SimpleSGDTrainer,), {"_constants": {"eps": "_eps"}})


def class_of(name: str) -> Any:
    """A trainer of the library under test; DyNet does not have all of them."""
    if dy.__name__ == "dynet" and not hasattr(dy, name):
        pytest.skip(f"DyNet has no {name}")
    return getattr(dy, name)


class Pair:
    """A matrix, a vector and a table, under the trainer of the library under test and under the reference."""

    def __init__(self, name: str, arguments: dict[str, float], weight_decay: float = 0.0) -> None:
        rng = np.random.default_rng(3)
        start = [rng.normal(size=s).astype(np.float32) for s in ((2, 3), (4,), (5, 3))]
        self.model = dy.ParameterCollection()
        if weight_decay:
            self.model.set_weight_decay(weight_decay)
        self.w = self.model.add_parameters((2, 3), init=start[0])
        self.b = self.model.add_parameters((4,), init=start[1])
        self.e = self.model.add_lookup_parameters((5, 3), init=start[2])
        self.trainer = class_of(name)(self.model, **arguments)
        self.reference = reference.ReferenceTrainer(
            name, start[:2], start[2:], weight_decay, dynet=dy.__name__ == "dynet", **arguments
        )

    def step(self, gw: np.ndarray | None, gb: np.ndarray | None, rows: dict[int, np.ndarray]) -> None:
        dy.renew_cg()
        parts = []
        if gw is not None:
            parts.append(dy.sum_elems(dy.cmult(self.w, dy.inputTensor(gw))))
        if gb is not None:
            parts.append(dy.dot_product(self.b, dy.inputTensor(gb)))
        parts += [dy.dot_product(self.e[i], dy.inputTensor(g)) for i, g in rows.items()]
        if parts:
            loss = dy.esum(parts)
            loss.forward()
            loss.backward()
        table = np.zeros((5, 3))
        for i, g in rows.items():
            table[i] = g
        self.trainer.update()
        self.reference.update([gw, gb, table], [list(rows)])

    def check(self) -> None:
        dy.renew_cg()
        found = [self.w.npvalue(), self.b.npvalue(), self.e.npvalue().T]
        all_close(found, self.reference.values, rtol=2e-5, atol=2e-6)
        assert self.trainer.learning_rate == pytest.approx(self.reference.learning_rate, rel=1e-5)


def gradients(rng: np.random.Generator, scale: float) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]]:
    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * scale).astype(np.float32)

    rows = {int(i): draw(3) for i in rng.choice(4, size=2, replace=False)}  # the last row never
    return draw(2, 3), draw(4), rows


def run(pair: Pair) -> None:
    rng = np.random.default_rng(11)
    for number, scale in enumerate([1, 0.1, 8, 0.5, 3, 1, 0.01, 1, 20, 1]):
        gw, gb, rows = gradients(rng, scale)
        if number == 3:
            gw = None  # not in the graph
        if number == 5:
            rows[next(iter(rows))][:] = 0  # looked up, without a gradient
        if number == 7:
            gw, gb, rows = None, None, {}  # an update without a backward
        pair.step(gw, gb, rows)
        pair.check()


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_rule(name: str, arguments: dict[str, float], sparse: bool) -> None:
    pair = Pair(name, arguments)
    pair.trainer.set_sparse_updates(sparse)
    pair.reference.sparse = sparse
    run(pair)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 100.0])
def test_clipping(threshold: float) -> None:
    pair = Pair("SimpleSGDTrainer", {})
    pair.trainer.set_clip_threshold(threshold)
    pair.reference.threshold = threshold
    run(pair)


@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_weight_decay(name: str, arguments: dict[str, float], sparse: bool) -> None:
    pair = Pair(name, arguments, weight_decay=0.2)
    pair.trainer.set_sparse_updates(sparse)
    pair.reference.sparse = sparse
    run(pair)  # long enough for the factor to be settled
    assert pair.reference.factor > reference.RESCALE_BELOW


@pytest.mark.parametrize("rate", [None, 0.02])
@pytest.mark.parametrize("name", [n for n in reference.RULES if n != "CyclicalSGDTrainer"])
def test_restart(name: str, rate: float | None) -> None:
    pair = Pair(name, {})
    run(pair)
    pair.trainer.restart(rate) if rate is not None else pair.trainer.restart()
    pair.reference.restart(rate)
    run(pair)


@pytest.mark.parametrize("name", ["SimpleSGDTrainer", "AdamTrainer"])
def test_parameters_that_are_not_updated(name: str) -> None:
    pair = Pair(name, {})
    pair.w.set_updated(False)
    pair.reference.updated[0] = False
    rng = np.random.default_rng(5)
    pair.step(*gradients(rng, 3.0))
    pair.check()
    assert pair.w.grad_as_array().any() == (dy.__name__ == "dynet")
    assert not pair.b.grad_as_array().any()


def test_status(capfd: pytest.CaptureFixture[str]) -> None:
    pair = Pair("SimpleSGDTrainer", {})
    run(pair)
    for _ in range(2):
        capfd.readouterr()
        pair.trainer.status()
        assert capfd.readouterr().err == pair.reference.status()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_gradient_changes_nothing(bad: float) -> None:
    pair = Pair("AdamTrainer", {})
    before = [pair.w.as_array(), pair.b.as_array(), pair.e.as_array()]
    gb = np.full(4, bad, dtype=np.float32)
    with pytest.raises(RuntimeError, match="Magnitude of gradient is bad"):
        pair.step(None, gb, {})
    all_equal([pair.w.as_array(), pair.b.as_array(), pair.e.as_array()], before)
    assert pair.b.grad_as_array() == pytest.approx(np.full(4, bad), nan_ok=True)


@pytest.mark.parametrize(("name", "arguments"), [c for c in CASES if c[1]])
def test_hyper_parameters_are_numbers(name: str, arguments: dict[str, float]) -> None:
    model = dy.ParameterCollection()
    for argument, value in arguments.items():
        for bad in (str(value), None):
            with pytest.raises(TypeError):
                class_of(name)(model, **{argument: bad})
    trainer = class_of(name)(model)
    for setter in (trainer.set_learning_rate, trainer.set_clip_threshold):
        with pytest.raises(TypeError):
            setter("0.1")
