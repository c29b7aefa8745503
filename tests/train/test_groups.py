"""Parameter groups and decoupled weight decay, compared with float64 rules; see also tests/parallel and tests/gpu."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_reference import RULES

import dynet_cy as dy

NAMES = [name for name in RULES if name != "CyclicalSGDTrainer"] + ["AdamWTrainer"]


class Pair:
    """Two parameters and two tables under a trainer, and the same in float64."""

    def __init__(self, name: str = "AdamWTrainer", sparse: bool = True, **arguments: Any) -> None:
        rng = np.random.default_rng(3)
        self.pc = dy.ParameterCollection()
        shapes = ((2, 3), (4,), (5, 3), (6, 2))
        start = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        self.w, self.b = (self.pc.add_parameters(x.shape, init=x) for x in start[:2])
        self.e, self.f = (self.pc.add_lookup_parameters(x.shape, init=x) for x in start[2:])
        self.own = [self.w, self.b, self.e, self.f]
        self.trainer = getattr(dy, name)(self.pc, **arguments)
        self.trainer.set_sparse_updates(sparse)
        self.sparse = sparse
        self.values = [x.astype(np.float64) for x in start]
        make, states, (argument, rate) = RULES[name.replace("AdamW", "Adam")]
        self.rule = make()
        self.state = [{s: np.zeros_like(x) for s in states} for x in self.values]
        self.rates = [arguments.get(argument, rate)] * 4
        self.decoupled = [arguments.get("weight_decay", 0.01 if name == "AdamWTrainer" else 0.0)] * 4
        self.decay = [0.0] * 4
        self.thresholds: list[tuple[list[int], float]] = [([0, 1, 2, 3], 5.0)]
        self.steps = 0

    def step(self, scale: float = 1.0) -> None:
        rng = np.random.default_rng(self.steps)
        grads = [rng.normal(size=x.shape).astype(np.float32) * scale for x in self.values]
        rows = [rng.choice(len(x), 2, replace=False) for x in self.values[2:]]
        dy.renew_cg()
        terms = [dy.sum_elems(dy.cmult(p, dy.inputTensor(g))) for p, g in zip(self.own[:2], grads)]
        for table, g, touched in zip(self.own[2:], grads[2:], rows):
            terms += [dy.dot_product(table[int(i)], dy.inputTensor(g[i])) for i in touched]
            g[[i for i in range(len(g)) if i not in touched]] = 0
        dy.esum(terms).backward()
        self.trainer.update()
        self.steps += 1
        norms = [math.sqrt(sum(float((grads[i].astype(float) ** 2).sum()) for i in of)) for of, _ in self.thresholds]
        assert self.trainer.gradient_norm == pytest.approx(math.hypot(*norms), rel=1e-5)
        for (of, threshold), norm in zip(self.thresholds, norms):
            for i in of:
                grads[i] = grads[i] * (threshold / norm if 0 < threshold < norm else 1.0)
        for i, (x, state, g) in enumerate(zip(self.values, self.state, grads)):
            x *= 1 - self.rates[i] * self.decoupled[i]
            at: Any = np.sort(rows[i - 2]) if i >= 2 and self.sparse else ...
            part = {k: a[at] for k, a in state.items()}
            x[at] += self.rule(part, g[at].astype(float), self.steps, self.rates[i])
            for k, a in part.items():
                state[k][at] = a
            x *= 1 - self.decay[i]

    def check(self) -> None:
        for p, want in zip(self.own, self.values):
            np.testing.assert_allclose(p.as_array(), want, rtol=3e-5, atol=1e-5)
        dy.renew_cg()
        np.testing.assert_allclose(self.e[1].npvalue(), self.values[2][1], rtol=3e-5, atol=1e-5)


def run(pair: Pair, n: int = 10) -> None:
    for scale in [1, 0.1, 8, 0.5, 3, 20, 0.01, 1, 1, 2][:n]:
        pair.step(scale)
        pair.check()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("decay", [0.0, 0.01, 3.0])
def test_adamw(decay: float, sparse: bool, in_place: bool) -> None:
    """Factors of tables are settled now and then; tables that a graph reads in place have no factor."""
    pair = Pair(alpha=0.1, weight_decay=decay, sparse=sparse)
    if in_place:
        dy.renew_cg()
        pair.e.expr(update=False).value()
    run(pair)


def test_adamw_defaults() -> None:
    pair = Pair()
    assert pair.trainer.weight_decay == 0.01
    run(pair)


def test_decay_of_adamw_is_times_the_learning_rate() -> None:
    pair = Pair(alpha=0.1, weight_decay=0.5)
    run(pair, 3)
    pair.trainer.learning_rate = 0.02
    pair.trainer.weight_decay = 0.25
    pair.rates, pair.decoupled = [0.02] * 4, [0.25] * 4
    run(pair)


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_exclusion(sparse: bool) -> None:
    pair = Pair(alpha=0.1, weight_decay=1.5, sparse=sparse)
    other = Pair(alpha=0.1, weight_decay=1.5, sparse=sparse)
    pair.trainer = dy.AdamWTrainer(pair.pc, 0.1, weight_decay=1.5, exclude=[pair.b, pair.e])
    pair.trainer.set_sparse_updates(sparse)
    pair.decoupled = [1.5, 0, 0, 1.5]
    run(pair)
    run(other)
    assert np.abs(other.b.as_array() - pair.b.as_array()).max() > 0.1


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", NAMES)
def test_groups(name: str, sparse: bool) -> None:
    """Learning rate, decay and clipping of each group, with all trainers."""
    pair = Pair(name, sparse=sparse)
    pair.pc.set_weight_decay(0.1)
    first = pair.trainer.group([pair.b, pair.f], learning_rate=0.2, weight_decay=0.75)
    second = pair.trainer.group(pair.e, clip_threshold=0.5)
    assert pair.trainer.groups == (first, second)
    assert first.names == ("/_1", "/_3")
    pair.rates[1] = pair.rates[3] = 0.2
    pair.decoupled[1] = pair.decoupled[3] = 0.75
    pair.decay = [0.1, 0, 0.1, 0]
    pair.thresholds = [([0, 1, 3], 5.0), ([2], 0.5)]
    run(pair)
    # Settings may change, and None means those of the trainer.
    first.learning_rate, first.weight_decay, first.clip_threshold = None, 0, 1
    second.clip_threshold = None
    pair.trainer.learning_rate = 0.03
    pair.trainer.set_clip_threshold(2)
    pair.rates = [0.03] * 4
    pair.decoupled[1] = pair.decoupled[3] = 0
    pair.thresholds = [([0, 2], 2.0), ([1, 3], 1.0)]
    run(pair)
    second.clip_threshold = 0
    pair.thresholds = [([0], 2.0), ([1, 3], 1.0), ([2], 0.0)]
    run(pair)


def test_groups_by_name() -> None:
    """The first pattern that matches decides; what is in a group already stays there."""
    model = dy.ParameterCollection()
    layers = [(dy.nn.Linear, 3, 3), (dy.nn.Linear, 3, 2)]
    net = dy.nn.Sequential(layers, model)
    other = dy.nn.Linear(2, 2, model)
    trainer = dy.AdamWTrainer(model, 0.1, exclude=[net[1].b])
    rules = {
        "sequential.0.b": {"learning_rate": 0.01, "weight_decay": 0.0},
        "*.b": {"weight_decay": 0.0},
        "/sequential/[01]/*": {"learning_rate": 0.05},
    }
    found = trainer.group_by_name(rules)
    names = [("/sequential/0/b",), ("/linear/b",), ("/sequential/0/W", "/sequential/1/W")]
    assert [group.names for group in found] == names
    assert [(group.learning_rate, group.weight_decay) for group in found] == [(0.01, 0), (None, 0), (0.05, None)]
    assert [group.names for group in trainer.groups] == [("/sequential/1/b",), *names]
    assert other.W.name() not in [name for group in trainer.groups for name in group.names]
    for wrong, error, words in (
        ({"sequental.0.*": {}}, ValueError, "no parameter matches 'sequental.0.\\*'; there are sequential"),
        ({"*": {"rate": 1}}, TypeError, "rate"),
        ({"*": {"weight_decay": -1}}, ValueError, "weight_decay"),
    ):
        with pytest.raises(error, match=words):
            trainer.group_by_name(wrong)


def test_group_that_alone_is_clipped() -> None:
    pair = Pair("SimpleSGDTrainer")
    pair.trainer.set_clip_threshold(0)
    pair.trainer.group([pair.w, pair.e], clip_threshold=0.25)
    pair.thresholds = [([1, 3], 0.0), ([0, 2], 0.25)]
    run(pair)


def test_small_decay_is_not_lost_in_rounding() -> None:
    """A thousand steps of 1e-8 add up to 1e-5; applied one by one in float32, all of them would be lost."""
    pc = dy.ParameterCollection()
    w, v, e = pc.add_parameters(2, init=1.5), pc.add_parameters(2, init=1.5), pc.add_lookup_parameters((3, 2), init=1.5)
    trainer = dy.AdamWTrainer(pc, 1e-6, weight_decay=0.01)
    trainer.group(v, weight_decay=0.02)
    for _ in range(1000):
        trainer.update()
    for p, share in ((w, 1e-8), (v, 2e-8), (e, 1e-8)):
        np.testing.assert_allclose(1 - p.as_array() / 1.5, 1000 * share, rtol=0.11)


def test_cyclical_rates_leave_groups_alone() -> None:
    pc = dy.ParameterCollection()
    w, v = pc.add_parameters(1, init=0.0), pc.add_parameters(1, init=0.0)
    trainer = dy.CyclicalSGDTrainer(pc, 0.1, 0.5, 2)
    trainer.group(v, learning_rate=0.25)
    rates = []
    for _ in range(4):
        dy.renew_cg()
        (w + v).backward()
        rates.append(trainer.learning_rate)
        trainer.update()
    np.testing.assert_allclose(w.as_array(), -sum(rates), rtol=1e-6)
    np.testing.assert_allclose(v.as_array(), -1)


def test_files_of_other_groups(tmp_path: Path) -> None:
    pair, other = Pair(), Pair()
    pair.trainer.group([pair.b, pair.e], learning_rate=0.05)
    other.trainer.group(other.b, learning_rate=0.05)
    dy.save_safetensors(tmp_path / "m", pair.pc, pair.trainer)
    before = other.trainer._settings()
    with pytest.raises(ValueError, match=r"groups of parameters \[\['/_1'\]\], the file \[\['/_1', '/_2'\]\]"):
        dy.load_safetensors(tmp_path / "m", other.pc, other.trainer)
    assert other.trainer._settings() == before


def test_files_from_before_groups(tmp_path: Path) -> None:
    import json

    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    pair, other = Pair("AdamTrainer"), Pair("AdamTrainer")
    group = other.trainer.group(other.b, learning_rate=0.5)
    pair.step()
    dy.save_safetensors(tmp_path / "m", pair.pc, pair.trainer)
    with safe_open(str(tmp_path / "m"), "numpy") as file:
        state = json.loads(file.metadata()["dynet_cy"])
    for key in ("_groups", "_decay_due", "_skipped"):
        del state["trainer"]["settings"][key]
    del state["trainer"]["without_state"]
    save_file(load_file(str(tmp_path / "m")), str(tmp_path / "m"), {"dynet_cy": json.dumps(state)})
    dy.load_safetensors(tmp_path / "m", other.pc, other.trainer)
    assert other.trainer.groups == (group,)
    assert group.learning_rate == 0.5
    assert other.trainer._steps == 1


def test_what_a_group_may_hold() -> None:
    pair, other = Pair(), Pair()
    below = pair.pc.add_subcollection("below")
    inner = below.add_parameters(3)
    group = pair.trainer.group([below, pair.w], clip_threshold=-1)
    assert group.names == (inner.name(), "/_0")
    assert group.clip_threshold == 0
    assert repr(group) == "<ParameterGroup of /below/_0, /_0: clip_threshold=0.0>"
    with pytest.raises(ValueError, match="group: /_0 is in a group already"):
        pair.trainer.group([pair.b, pair.w])
    with pytest.raises(ValueError, match="group: /_1 is in a group already"):
        pair.trainer.group([pair.b, pair.b])
    with pytest.raises(ValueError, match="/_0 is not one of the parameters that this SimpleSGDTrainer trains"):
        dy.SimpleSGDTrainer(below).group(pair.w)
    with pytest.raises(ValueError, match="/_0 is not one of the parameters that this AdamWTrainer trains"):
        pair.trainer.group(other.w)
    for bad in ("/_1", 3, None, [pair.b, "x"]):
        with pytest.raises(TypeError, match="group: parameters, a ParameterCollection or a list of these"):
            pair.trainer.group(bad)
    for setting in ("learning_rate", "weight_decay", "clip_threshold"):
        with pytest.raises(TypeError, match=f"{setting} must be a number"):
            pair.trainer.group(pair.b, **{setting: "0.1"})
    for decay in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="weight_decay must be a number of at least 0"):
            pair.trainer.group(pair.b, weight_decay=decay)
        with pytest.raises(ValueError, match="weight_decay must be a number of at least 0"):
            dy.AdamWTrainer(pair.pc, weight_decay=decay)
    with pytest.raises(TypeError, match="AdamWTrainer: exclude: parameters, a ParameterCollection or a list"):
        dy.AdamWTrainer(pair.pc, exclude="bias")
    assert len(pair.trainer.groups) == 1


def test_parameters_of_a_copy() -> None:
    """A parameter that was unpickled with its collection and trainer belongs to that trainer."""
    pc, w, trainer = copy.deepcopy((lambda p: (p.pc, p.w, p.trainer))(Pair()))
    assert trainer.group([w, *pc.lookup_parameters_list()]).names == ("/_0", "/_2", "/_3")


@pytest.mark.parametrize("name", ["learning_rat", "weight_decays", "lr"])
def test_misspelt_settings(name: str) -> None:
    """An unknown setting of a group is an error, not an attribute that nothing reads."""
    pair = Pair()
    group = pair.trainer.group(pair.w)
    with pytest.raises(AttributeError, match=name):
        setattr(group, name, 0.5)
    with pytest.raises(TypeError, match=name):
        pair.trainer.group(pair.b, **{name: 0.5})
