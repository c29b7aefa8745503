"""Frozen parameters have no gradient, no share in the norm, no decay and no state, and can be trained again."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph.expressions import set_autobatching

TRAINERS = [dy.SimpleSGDTrainer, dy.MomentumSGDTrainer, dy.AdagradTrainer, dy.AdamTrainer]


class Model:
    """A table and a matrix, which may be constants or frozen, and other parameters that are trained."""

    def __init__(self, constant: bool = False, decay: float = 0.0) -> None:
        dy.reset_random_seed(4)
        self.pc = dy.ParameterCollection()
        self.pc.set_weight_decay(decay)
        self.e = self.pc.add_lookup_parameters((7, 4))
        self.w = self.pc.add_parameters((5, 4))
        self.v = self.pc.add_parameters((3, 5))
        self.f = self.pc.add_lookup_parameters((7, 5))
        self.constant = constant

    def freeze(self, frozen: bool = True) -> None:
        for p in (self.e, self.w):
            p.set_updated(not frozen)

    def loss(self, seed: int) -> dy.Expression:
        dy.renew_cg()
        rows = np.random.default_rng(seed).integers(7, size=4)
        update = not self.constant
        w = self.w if update else dy.const_parameter(self.w)
        xs = [dy.lookup(self.e, int(i), update=update) for i in rows]
        hs = [dy.tanh(w * x) + self.f[int(i)] for x, i in zip(xs, rows)]
        return dy.esum([dy.pickneglogsoftmax(self.v * h * 9.0, int(i) % 3) for h, i in zip(hs, rows)])

    def step(self, trainer: dy.Trainer, seed: int) -> float:
        loss = self.loss(seed)
        value = loss.value()
        loss.backward()
        trainer.update()
        return value

    def values(self) -> list[np.ndarray]:
        return [p.as_array() for p in (self.e, self.w, self.v, self.f)]


@pytest.fixture(params=[0, 1, 2], autouse=True, ids=lambda level: f"autobatch{level}")
def autobatch(request: pytest.FixtureRequest) -> Any:
    set_autobatching(request.param)
    yield
    set_autobatching(1)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("make", TRAINERS)
def test_frozen_is_as_constant(make: type[dy.Trainer], sparse: bool) -> None:
    """Losses, norms and values are equal to the last bit, with gradients clipped in every update."""
    runs = []
    for constant in (True, False):
        model = Model(constant)
        if not constant:
            model.freeze()
        trainer = make(model.pc)
        trainer.set_sparse_updates(sparse)
        trainer.set_clip_threshold(0.5)
        before = model.values()[:2]
        losses = []
        for seed in range(8):
            losses.append(model.step(trainer, seed))
            losses.append(trainer.gradient_norm)
            assert not model.e.grad_as_array().any()
            assert not model.w.grad_as_array().any()
        if not constant:
            for have, want in zip(model.values(), before):
                np.testing.assert_array_equal(have, want)
        runs.append((losses, model.values()[2:]))
    assert runs[0][0] == runs[1][0]
    for a, b in zip(runs[0][1], runs[1][1]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("decay", ["collection", "decoupled", "group"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("read_in_place", [False, True])
def test_no_decay(decay: str, sparse: bool, read_in_place: bool) -> None:
    model = Model(decay=0.2 if decay == "collection" else 0)
    model.freeze()
    if read_in_place:  # from now on, the table has no factor
        dy.renew_cg()
        model.e.expr().value()
    trainer = dy.AdamWTrainer(model.pc, 0.1, weight_decay=0.9 if decay == "decoupled" else 0)
    trainer.set_sparse_updates(sparse)
    if decay == "group":
        trainer.group(model.pc, weight_decay=0.9)
    before = model.values()
    for seed in range(6):
        model.step(trainer, seed)
        trainer.update_subset([0, 1], [0, 1])
    for have, want in zip(model.values()[:2], before):
        np.testing.assert_array_equal(have, want)
    for have, want in zip(model.values()[2:], before[2:]):
        assert np.abs(have - want).max() > 0.01


@pytest.mark.usefixtures("on_each_device")
def test_trained_again() -> None:
    """While parameters are frozen, the trainer leaves them and their state alone; later it uses that state again."""
    model = Model()
    trainer = dy.MomentumSGDTrainer(model.pc, 0.1)
    model.step(trainer, 1)
    state, before = copy.deepcopy(trainer._state_arrays()), model.values()
    model.freeze()
    for seed in range(3):
        model.step(trainer, seed)
    for i in (0, 1):  # the table e and the matrix w were made first
        np.testing.assert_array_equal(trainer._state_arrays()[i], state[i])
        np.testing.assert_array_equal(model.values()[i], before[i])
    model.freeze(False)
    loss = model.loss(5)
    loss.backward()
    g = model.w.grad_as_array()
    assert g.any()
    assert model.e.grad_as_array().any()
    trainer.set_clip_threshold(0)
    trainer.update()
    np.testing.assert_allclose(model.w.as_array(), before[1] + 0.9 * state[1][0] - 0.1 * g, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("on_each_device")
def test_in_a_graph_that_is_there() -> None:
    """A parameter counts as frozen if it is frozen when backward runs."""
    model = Model()
    loss = model.loss(3)
    model.freeze()
    loss.backward()
    assert not model.e.grad_as_array().any()
    assert not model.w.grad_as_array().any()
    assert model.v.grad_as_array().any()
    model.freeze(False)
    loss.backward()
    assert model.e.grad_as_array().any()
    assert model.w.grad_as_array().any()
    model.freeze()
    assert not model.e.grad_as_array().any(), "collected gradients are dropped"
    assert not model.w.grad_as_array().any()
    trainer = dy.SimpleSGDTrainer(model.pc)
    before = model.values()[:2]
    trainer.update()
    for have, want in zip(model.values(), before):
        np.testing.assert_array_equal(have, want)


@pytest.mark.usefixtures("on_each_device")
def test_constants_stay_constants() -> None:
    """Expressions that were made without gradients have none, frozen or not."""
    model = Model(constant=True)
    model.loss(3).backward()
    model.freeze()
    model.freeze(False)
    model.loss(3).backward()
    assert not model.e.grad_as_array().any()
    assert not model.w.grad_as_array().any()


@pytest.mark.usefixtures("on_each_device")
def test_gradients_of_expressions() -> None:
    """`backward(full=True)` gives the gradients of expressions of frozen parameters too."""
    model = Model()
    found = []
    for frozen in (False, True):
        model.freeze(frozen)
        dy.renew_cg()
        row, rows = model.e[2], dy.lookup_batch(model.e, [1, 2, 5])
        h = model.w * row
        loss = dy.squared_norm(h) + dy.sum_batches(dy.squared_norm(model.w * rows))
        loss.backward(full=True)
        found.append([row.gradient(), rows.gradient(), h.gradient(), model.w.gradient()])
        assert not frozen or not model.w.grad_as_array().any()
    for a, b in zip(*found):
        assert np.abs(a).max() > 0
        np.testing.assert_array_equal(a, b)


def test_a_target_that_is_frozen() -> None:
    pc = dy.ParameterCollection()
    p = pc.add_parameters((1,))
    p.set_updated(False)
    dy.renew_cg()
    p.backward()
    assert not p.grad_as_array().any()


def test_no_state_in_files(tmp_path: Path) -> None:
    """Parameters that were never trained have no state there."""
    from safetensors import safe_open

    model: Any = Model()
    model.freeze()
    trainer = dy.AdamTrainer(model.pc)
    for seed in range(3):
        model.step(trainer, seed)
    assert [state is None for state in trainer._state_arrays()] == [True, True, False, False]
    assert [state is None for state in copy.deepcopy(trainer)._state_arrays()] == [True, True, False, False]
    dy.save_safetensors(tmp_path / "m", model.pc, trainer)
    with safe_open(str(tmp_path / "m"), "numpy") as file:
        assert {k.split(":")[2] for k in list(file.keys()) if k.startswith("trainer:")} == {"/_2", "/_3"}


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_state_of_a_frozen_table_takes_no_memory() -> None:
    """Training and saving do not write to the state."""
    pc = dy.ParameterCollection()
    table, w = pc.add_lookup_parameters((40_000, 100), init=0.1), pc.add_parameters((2, 100))
    table.set_updated(False)
    trainer = dy.AdamTrainer(pc)
    trainer.set_sparse_updates(False)
    pc.set_weight_decay(0.01)

    def resident() -> int:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) << 10

    before = resident()
    for i in range(3):
        dy.renew_cg()
        dy.squared_norm(w * table[i]).backward()
        trainer.update()
        trainer._state_arrays()
    assert resident() - before < 8 << 20, "a plane of this table has 16 MB"


def test_files_with_gradients(tmp_path: Path) -> None:
    """Gradients in a file are not loaded into frozen parameters."""
    model = Model()
    model.loss(1).backward()
    model.pc.save(str(tmp_path / "text"))
    dy.save_safetensors(tmp_path / "tensors", model.pc)
    for load in (lambda m: m.populate(str(tmp_path / "text")), lambda m: dy.load_safetensors(tmp_path / "tensors", m)):
        other = Model()
        other.freeze()
        load(other.pc)
        assert not other.w.grad_as_array().any()
        assert not other.e.grad_as_array().any()
        assert other.v.grad_as_array().any()
