"""Training on the device, compared with the CPU."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from arrays import all_close, all_equal
from tables import trained_tables
from test_backend import in_a_process

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import memory as clips
from dynet_cy.gpu import update
from dynet_cy.gpu.driver import synchronize
from dynet_cy.graph.expressions import set_autobatching, set_default_device
from dynet_cy.model.parameters import set_gradient_state
from dynet_cy.train.interfaces import Plan

# Arguments that differ from the defaults.
ARGUMENTS: dict[str, dict[str, float]] = {
    "CyclicalSGD": {"learning_rate_max": 0.2, "step_size": 3},
    "MomentumSGD": {"learning_rate": 0.05},
    "RMSProp": {"learning_rate": 0.01},
    "Adam": {"alpha": 0.01},
    "Amsgrad": {"alpha": 0.01},
    "AdamW": {"alpha": 0.01, "weight_decay": 2},
}
TRAINERS = {
    name[: -len("Trainer")]: partial(getattr(dy, name), **ARGUMENTS.get(name[: -len("Trainer")], {}))
    for name in dy.__all__
    if name.endswith("Trainer") and name not in ("Trainer", "PythonTrainer")
}


class Classifier:
    """A classifier of table rows and a vector, with a hidden layer and three classes."""

    def __init__(self) -> None:
        self.model = dy.ParameterCollection()
        self.W = self.model.add_parameters((40, 12))
        self.b = self.model.add_parameters(40, init=0)
        self.V = self.model.add_parameters((3, 40))
        self.table = self.model.add_lookup_parameters((20, 12))

    def loss(self, example) -> dy.Expression:
        x, row, label = example
        h = dy.tanh(dy.affine_transform([self.b, self.W, dy.inputVector(x) + self.table[row]]))
        return dy.pickneglogsoftmax(self.V * h, label)

    def state(self) -> list[np.ndarray]:
        return [p.as_array() for p in (self.W, self.b, self.V, self.table)]


def examples(n: int) -> list[tuple]:
    rng = np.random.default_rng(5)
    return [(rng.standard_normal(12), int(rng.integers(6)), int(rng.integers(3))) for _ in range(n)]


@pytest.fixture
def on(device):
    """A function that sets the default device, 0 or 1; it is the CPU again after the test."""
    yield set_default_device
    set_default_device(0)
    set_autobatching(1)
    dy.renew_cg()


def trained(make_trainer, strategy: int = 1, change=None, updates: int = 5):
    """Losses and parameters of a few updates with four examples each."""
    dy.reset_random_seed(3)
    set_autobatching(strategy)
    classifier = Classifier()
    trainer = make_trainer(classifier.model)
    if change is not None:
        change(classifier, trainer)
    losses = []
    data = examples(4 * updates)
    for k in range(updates):
        dy.renew_cg()
        loss = dy.esum([classifier.loss(x) for x in data[4 * k : 4 * k + 4]])
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    return classifier, trainer, losses


def assert_alike(found, desired) -> None:
    np.testing.assert_allclose(found[2], desired[2], rtol=1e-4)
    all_close(found[0].state(), desired[0].state(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("strategy", [0, 1, 2])
@pytest.mark.parametrize("name", TRAINERS)
def test_trainers(on, name: str, strategy: int) -> None:
    desired = trained(TRAINERS[name], strategy)
    on(1)
    assert_alike(trained(TRAINERS[name], strategy), desired)


def clip(classifier, trainer) -> None:
    trainer.set_clip_threshold(0.05)


def never_clip(classifier, trainer) -> None:
    trainer.set_clip_threshold(0)


def decay(classifier, trainer) -> None:
    classifier.model.set_weight_decay(0.05)


def dense(classifier, trainer) -> None:
    trainer.set_sparse_updates(False)


def dense_decay(classifier, trainer) -> None:
    dense(classifier, trainer)
    decay(classifier, trainer)


def frozen(classifier, trainer) -> None:
    classifier.W.set_updated(False)
    classifier.table.set_updated(False)


def average(classifier, trainer) -> None:
    trainer.exponential_moving_average(0.8)


def groups(classifier, trainer) -> None:
    """Groups with both kinds of decay, and with separate and common norms."""
    decay(classifier, trainer)
    trainer.set_clip_threshold(0.4)
    trainer.group([classifier.b, classifier.table], learning_rate=0.02, weight_decay=3)
    trainer.group(classifier.W, weight_decay=0, clip_threshold=0.05)
    trainer.group(classifier.V, clip_threshold=0)


def dense_groups(classifier, trainer) -> None:
    dense(classifier, trainer)
    groups(classifier, trainer)


def unclipped_groups(classifier, trainer) -> None:
    never_clip(classifier, trainer)
    trainer.group([classifier.b, classifier.table], learning_rate=0.02, weight_decay=3)


SETTINGS = [clip, never_clip, decay, dense, dense_decay, frozen, average, groups, dense_groups, unclipped_groups]


@pytest.mark.parametrize("change", SETTINGS)
@pytest.mark.parametrize("name", ["SimpleSGD", "Adam"])
def test_settings(on, name: str, change) -> None:
    desired = trained(TRAINERS[name], 1, change)
    on(1)
    found = trained(TRAINERS[name], 1, change)
    assert_alike(found, desired)
    if change is average:
        for _, trainer, _ in (found, desired):
            trainer.swap_params_to_moving_average()
        assert_alike(found, desired)
        for _, trainer, _ in (found, desired):
            trainer.swap_params_to_weights()
        assert_alike(found, desired)


@pytest.mark.parametrize("dense_too", [False, True])
def test_groups_have_an_effect(on, dense_too: bool) -> None:
    """Each setting of a group has an effect, the same on both devices."""
    settings = [{"learning_rate": 0.05}, {"weight_decay": 3}, {"clip_threshold": 0.01}]

    def run(k: int) -> list[np.ndarray]:
        def change(classifier, trainer) -> None:
            trainer.set_sparse_updates(not dense_too)
            if k < 3:
                trainer.group([classifier.table, classifier.b], **settings[k])

        return trained(TRAINERS["SimpleSGD"], 1, change)[0].state()

    desired = [run(k) for k in range(4)]
    on(1)
    for k in range(4):
        all_close(run(k), desired[k], rtol=1e-4, atol=1e-6)
        assert k == 3 or np.abs(desired[k][3] - desired[3][3]).max() > 1e-3


@pytest.mark.parametrize("name", ["Adam", "MomentumSGD", "AdamW"])
def test_all_rows_of_large_tables(on, name: str) -> None:
    """Rows without a gradient are updated later on the CPU, and at once on a device, where this table is small."""

    desired, deferred, _ = trained_tables(TRAINERS[name], ("CPU", "CPU"), (900, 5))
    assert deferred == [12, 12]
    for places in (("CPU", "GPU:0"), ("GPU:0", "GPU:0")):
        found, deferred, _ = trained_tables(TRAINERS[name], places, (900, 5))
        assert deferred == [12 if place == "CPU" else 0 for place in places]
        all_close(found, desired, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("places", [("GPU:0", "GPU:0"), ("CPU", "GPU:0"), ("GPU:0", "GPU:1")])
@pytest.mark.parametrize("name", ["SimpleSGD", "MomentumSGD", "Adam", "AdamW"])
@pytest.mark.parametrize("sparse", [True, False])
def test_frozen_parameters_have_no_part(device: str, places, name: str, sparse: bool) -> None:
    """Frozen parameters have no gradient, no share in the norm, no decay and no state: they do not change by a bit, and
    the others get the same values as on the CPU."""
    if not set(places) <= set(dy.available_devices()):
        pytest.skip("needs more devices")

    def run(places) -> tuple:
        rng = np.random.default_rng(7)
        model = dy.ParameterCollection()
        model.set_weight_decay(0.1)
        ps = [model.parameters_from_numpy(rng.normal(size=(6, 5)), device=places[k % 2]) for k in range(4)]
        ps += [model.lookup_parameters_from_numpy(rng.normal(size=(8, 3)), device=places[k % 2]) for k in range(4)]
        frozen, free = [*ps[:2], *ps[4:6]], [*ps[2:4], *ps[6:]]
        trainer = TRAINERS[name](model)
        trainer.set_clip_threshold(0.5)
        trainer.set_sparse_updates(sparse)
        trainer.group([ps[0], ps[2], ps[4], ps[6]], weight_decay=0.2, clip_threshold=0.4)
        norms = []
        before = [p.as_array() for p in frozen]
        for p in frozen:
            p.set_updated(False)
        for step in range(3):
            dy.renew_cg()
            parts = [dy.squared_norm(p) for p in ps[:4]] + [dy.squared_norm(p[step]) for p in ps[4:]]
            dy.esum([dy.to_device(e, "CPU") for e in parts]).backward()
            assert not any(p.grad_as_array().any() for p in frozen)
            trainer.update()
            norms.append(trainer.gradient_norm)
        for p, old in zip(frozen, before):
            np.testing.assert_array_equal(p.as_array(), old)
        states = trainer._state_arrays()
        assert [state is None for state in states] == [p in frozen for p in model.parameters_list() + ps[4:]]
        return [p.as_array() for p in free], norms

    desired = run(("CPU", "CPU"))
    found = run(places)
    np.testing.assert_allclose(found[1], desired[1], rtol=1e-5)
    all_close(found[0], desired[0], rtol=1e-4, atol=1e-6)


def test_update_subset_and_restart(on) -> None:
    def run():
        classifier, trainer, losses = trained(TRAINERS["MomentumSGD"])
        dy.renew_cg()
        classifier.loss(examples(1)[0]).backward()
        trainer.update_subset([0], [])
        trainer.restart(0.2)
        trainer.update()
        return classifier, trainer, losses

    desired = run()
    on(1)
    assert_alike(run(), desired)


def update_and_look(trainer) -> None:
    trainer.update()
    trainer.status()


LOOKS = {
    "update": lambda c, t: (synchronize(0), t.update()),
    "status": lambda c, t: t.status(),
    "parameter": lambda c, t: c.V.as_array(),
    "value": lambda c, t: (dy.renew_cg(), (dy.inputVector([1.0]) + 1).value()),
    "pickle": lambda c, t: pickle.dumps(t),
    "no clipping any more": lambda c, t: (synchronize(0), t.set_clip_threshold(0), t.update()),
    "average": lambda c, t: t.cumulative_moving_average(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_gradients_that_are_not_finite(on, look: str, capsys) -> None:
    """No later update changes values; the next read raises an error that names the parameter; gradients are kept."""
    on(1)
    classifier, trainer, _ = trained(TRAINERS["Adam"], change=decay)
    trainer.exponential_moving_average(0.5)
    dy.renew_cg()
    classifier.loss(examples(1)[0]).backward()
    trainer.update()
    before, settings, moments = classifier.state(), trainer._settings(), trainer._state_arrays()
    dy.renew_cg()
    (dy.dot_product(classifier.b, dy.inputVector([np.inf] * 40)) + dy.sum_elems(classifier.table[3])).backward()
    trainer.update()
    with pytest.raises(RuntimeError, match=r"Magnitude of gradient is bad: inf; the gradients of /_1 are not finite"):
        LOOKS[look](classifier, trainer)
    trainer.set_clip_threshold(5)
    dy.renew_cg()
    all_equal(classifier.state(), before)
    assert trainer._settings() == settings
    for a, b in zip(trainer._state_arrays(), moments):
        all_equal(a, b)
    assert np.isinf(classifier.b.grad_as_array()).all()
    assert classifier.table.row_grad_as_array(3).tolist() == [1] * 12
    # The gradients remain for the next update, which is skipped too.
    trainer.update()
    synchronize(0)
    with pytest.raises(RuntimeError, match="Nothing was updated"):
        trainer.update()
    set_gradient_state(classifier.b, None)
    trainer.update()
    trainer.status()
    assert np.abs(classifier.table.as_array()[3] - before[3][3]).max() > 0
    assert np.isfinite(classifier.b.as_array()).all()


@pytest.mark.parametrize("threshold", [5, 0], ids=["clipped", "unclipped"])
def test_rows_that_are_not_finite(on, threshold: float) -> None:
    on(1)
    classifier = Classifier()
    trainer = dy.SimpleSGDTrainer(classifier.model)
    trainer.set_clip_threshold(threshold)
    before = classifier.state()
    dy.renew_cg()
    dy.dot_product(classifier.table[4], dy.inputVector([np.nan] * 12)).backward()
    trainer.update()
    with pytest.raises(RuntimeError, match=r"bad: nan; the gradients of /_3 are not finite.  Nothing was updated"):
        trainer.status()
    all_equal(classifier.state(), before)


@pytest.mark.parametrize("other", ["beside", "after", "below"])
def test_another_trainer_after_gradients_that_are_not_finite(on, other: str) -> None:
    """An update that one trainer skipped is not made by another."""
    on(1)
    model = dy.ParameterCollection()
    below = model.add_subcollection("below")
    p = below.add_parameters(4)
    first = dy.AdamTrainer(model)
    second = None if other == "after" else dy.SimpleSGDTrainer(model if other == "beside" else below)
    before = p.as_array()
    dy.renew_cg()
    dy.dot_product(p, dy.inputVector([np.nan] * 4)).backward()
    first.update()
    if second is None:
        with pytest.warns(RuntimeWarning, match="AdamTrainer: .*the gradients of /below/_0 are not finite"):
            first = second = dy.SimpleSGDTrainer(model)
    with pytest.raises(RuntimeError, match="the gradients of /below/_0 are not finite"):
        update_and_look(second)
    for trainer in {first, second}:
        settings = trainer._settings()  # a call in which it counts the updates that the device skipped
        assert settings["_steps"] == settings["_updates"] == 0
    np.testing.assert_array_equal(p.as_array(), before)
    set_gradient_state(p, None)
    second.update()
    np.testing.assert_array_equal(p.as_array(), before)


def test_two_trainers_with_gradients_that_are_not_finite(on) -> None:
    """Each of two models, such as an adversarial pair, gets its own error, and neither changes."""
    on(1)
    models = [dy.ParameterCollection() for _ in range(2)]
    ps = [model.add_parameters(4) for model in models]
    trainers = [dy.SimpleSGDTrainer(model) for model in models]
    before = [p.as_array() for p in ps]
    dy.renew_cg()
    x = dy.inputVector([np.nan] * 4)
    loss = dy.dot_product(ps[0], x) + dy.dot_product(ps[1], x)
    loss.backward()
    for trainer in trainers:
        trainer.update()
    for _ in trainers:
        with pytest.raises(RuntimeError, match="the gradients of /_0 are not finite.  Nothing was updated"):
            loss.value()
    loss.value()
    for p, trainer, old in zip(ps, trainers, before):
        with pytest.raises(RuntimeError, match="the gradients of /_0 are not finite"):
            update_and_look(trainer)
        np.testing.assert_array_equal(p.as_array(), old)


def test_a_schedule_does_not_count_what_was_left_out(on) -> None:
    def run(device: int) -> list:
        on(device)
        model = dy.ParameterCollection()
        p = model.add_parameters(4, init=1)
        trainer = dy.CyclicalSGDTrainer(model, 0.01, 0.2, 3)
        rates = []
        for x in ([1.0] * 4, [1.0] * 4, [np.inf] * 4, [1.0] * 4):
            dy.renew_cg()
            dy.dot_product(p, dy.inputVector(x)).backward()
            try:
                update_and_look(trainer)
            except RuntimeError:
                set_gradient_state(p, None)
            rates.append(trainer.learning_rate)
        return [rates, p.as_array().tolist()]

    assert run(1) == run(0)


def mixed_updates(make_trainer, change=None, with_norms: bool = False):
    """Updates; some of them are dropped."""
    dy.reset_random_seed(3)
    classifier = Classifier()
    trainer = make_trainer(classifier.model)
    if change is not None:
        change(classifier, trainer)
    norms = []
    for k, x in enumerate(examples(12)):
        dy.renew_cg()
        loss = classifier.loss(x)
        if k % 3 == 1:
            loss *= np.nan if k % 2 else np.inf
        loss.backward()
        if k % 6 == 4:
            trainer.update_subset([0], [], skip_nonfinite=True)
        else:
            trainer.update(skip_nonfinite=True)
        if with_norms:
            norms.append(trainer.gradient_norm)
    return classifier, trainer, norms


def schedule(classifier: Classifier, trainer) -> None:
    trainer.group(classifier.V, learning_rate=0.02)
    trainer.schedule = dy.WarmupSchedule(3, then=dy.LinearSchedule(8))


@pytest.mark.parametrize("change", [None, clip, never_clip, decay, dense, groups, average, schedule])
@pytest.mark.parametrize("name", ["CyclicalSGD", "Adam", "AdamW"])
def test_dropped_updates(on, name: str, change, capsys) -> None:
    """Dropped updates change only their count; later updates are made, with the learning rates of their numbers."""
    found = []
    for device in (0, 1):
        on(device)
        classifier, trainer, _ = mixed_updates(TRAINERS[name], change)
        trainer.status()
        found.append((classifier.state(), capsys.readouterr().err, trainer._steps, trainer._settings()))
        for p in (classifier.W, classifier.b, classifier.table):
            assert not p.grad_as_array().any()
        assert trainer._state_arrays() is not None
    assert "updates=8 skipped=4]" in found[0][1]
    assert found[0][1:] == found[1][1:]
    all_close(found[0][0], found[1][0], rtol=1e-3, atol=1e-5)


def test_the_norm_of_whole_parameters_and_of_rows(on) -> None:
    """Parameters are longer than a piece of the norm, by a remainder; one has no gradient between two that have."""
    on(1)
    model = dy.ParameterCollection()
    ps = [model.add_parameters(n) for n in (100_003, 1 << 16, 40_000, 3, (1 << 15) + 16)]
    table = model.add_lookup_parameters((3_000, 24))
    slopes = [np.sin(np.arange(p.shape()[0]) + k) for k, p in enumerate(ps)]
    rows = [*range(5, 1_500), 1_700, 2_999]
    loss = dy.squared_norm(dy.lookup_batch(table, rows))
    losses = [dy.dot_product(p, dy.inputVector(x)) for p, x in zip(ps, slopes) if len(x) != 1 << 16]
    dy.esum([dy.sum_batches(loss), *losses]).backward()
    squares = [np.sum(np.square(x.astype(np.float32), dtype=np.float64)) for x in slopes if len(x) != 1 << 16]
    squares.append(np.sum(np.square(2 * table.as_array()[rows], dtype=np.float64)))
    trainer = dy.SimpleSGDTrainer(model)
    trainer.update()
    assert trainer.gradient_norm == pytest.approx(np.sqrt(sum(squares)), rel=1e-6)


def test_norms(on) -> None:
    desired = mixed_updates(TRAINERS["Adam"], clip, True)[2]
    assert np.isfinite(desired).sum() == 8
    on(1)
    np.testing.assert_allclose(mixed_updates(TRAINERS["Adam"], clip, True)[2], desired, rtol=1e-4)
    _, trainer, norms = mixed_updates(TRAINERS["Adam"], clip)
    assert trainer.gradient_norm == pytest.approx(desired[-1], rel=1e-4)


def test_dropping_does_not_wait(on) -> None:
    on(1)
    classifier, trainer, _ = trained(TRAINERS["Adam"])
    trainer.update(skip_nonfinite=True)
    before = engine.stats("gpu.0")
    for factor in (1, np.nan, 1, np.inf):
        dy.renew_cg()
        (classifier.loss(examples(1)[0]) * factor).backward()
        trainer.update(skip_nonfinite=True)
    after = engine.stats("gpu.0")
    assert after["waits"] == before["waits"]
    assert after["fetches"] - before["fetches"] == 4, "the results of clipping are still being copied"


def test_learning_rates_of_updates_that_may_be_dropped(on) -> None:
    """The device chooses rate and decay by the number of dropped updates that the host did not know of."""
    on(1)
    model = dy.ParameterCollection()
    p = model.add_parameters(4, init=0.0)
    decayed = model.add_parameters(4, init=1.0)
    clipping = clips.Clipping(0)
    constants = dict.fromkeys(("lr", "grad_scale", "step_scale", "b1", "b2", "eps", "eps_scale"), 0.0)
    group = {"h": constants, **dict.fromkeys(("decoupled", "decay", "threshold", "own_norm", "squares"), 0)}
    group.update(dict.fromkeys(("learning_rate", "own_rate", "weight_decay", "own_decay", "collected"), 0))
    moved = []
    for k, x in enumerate([1, np.nan, 1, np.inf, np.nan, 1]):
        dy.renew_cg()
        dy.sum_elems(p * float(x)).backward()
        before = p.as_array()[0]
        assert clipping.coming() == sum(moved[i] == 0 for i in range(k))
        rates = list(zip([0.5, 0.25, 0.125, 2.0], [1.0] * 4, [0.0, 0.5, 0.75, 0.25]))
        plan = Plan([p, decayed], [])
        plan.set([2, 1], [0, 0], [group], True)  # the rule changes p; decayed keeps its gradient
        update.update(plan, clipping, [rates])
        moved.append(float(before - p.as_array()[0]))
        p.set_value(np.zeros(4))
    assert moved == [0.5, 0, 0.25, 0, 0, 2.0]
    assert decayed.as_array()[0] == 0.5 * 0.75
    assert clipping.dropped() == 3
    assert clipping.coming() == clipping.dropped() == 0


def test_zero_gradients(on) -> None:
    """Zeroing also covers gradients of an update that the device skipped and the host does not know of yet."""
    on(1)
    classifier, trainer, _ = trained(TRAINERS["Adam"])
    before = classifier.state()
    for zero in (trainer.zero_gradients, classifier.model.zero_gradients):
        dy.renew_cg()
        (classifier.loss(examples(1)[0]) * np.nan).backward()
        trainer.update()
        with pytest.raises(RuntimeError, match="Nothing was updated"):
            trainer.status()
        zero()
        for p in (classifier.W, classifier.b, classifier.V, classifier.table):
            assert not p.grad_as_array().any()
        trainer.update_subset([], [])
        trainer.status()
        all_equal(classifier.state(), before)
    # In the other order the error comes later, and training goes on too.
    dy.renew_cg()
    (classifier.loss(examples(1)[0]) * np.nan).backward()
    trainer.update()
    classifier.model.zero_gradients()
    with pytest.raises(RuntimeError, match="of parameters that have been set to zero since are not finite"):
        trainer.status()
    dy.renew_cg()
    (classifier.loss(examples(1)[0]) * np.nan).backward()
    trainer.update()
    with pytest.raises(RuntimeError, match="Nothing was updated"):
        trainer.zero_gradients()
    trainer.zero_gradients()
    dy.renew_cg()
    classifier.loss(examples(1)[0]).backward()
    trainer.update(skip_nonfinite=True)
    assert trainer.gradient_norm > 0


def test_updates_without_gradients(on, capfd) -> None:
    on(1)
    classifier = Classifier()
    trainer = dy.MomentumSGDTrainer(classifier.model)
    before = classifier.state()
    trainer.update()
    trainer.update_subset([], [])
    all_equal(classifier.state(), before)
    assert capfd.readouterr().err == ""


def test_updates_of_several_threads(device) -> None:
    """Each thread has its own graph; there is no deadlock."""
    code = (
        "import faulthandler, sys, threading, dynet_cy as dy\n"
        "faulthandler.dump_traceback_later(600, exit=True)\n"
        "sys.setswitchinterval(1e-5)\n"
        "m = dy.ParameterCollection()\n"
        "W = m.add_parameters((4, 4), device='GPU:0')\n"
        "trainer = dy.SimpleSGDTrainer(m, 0.001)\n"
        "def work():\n"
        "    for _ in range(100):\n"
        "        with dy.ComputationGraph():\n"
        "            dy.squared_norm(W * dy.inputVector([1, 2, 3, 4], device='GPU:0')).backward()\n"
        "            trainer.update()\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for x in threads: x.start()\n"
        "for x in threads: x.join()\n"
        "trainer.status()\n"
    )
    assert "updates=300" in in_a_process(code).stderr


def test_status(on, capsys) -> None:
    """Clipped updates are counted on the device."""
    found = []
    for device in (0, 1):
        on(device)
        _, trainer, _ = trained(TRAINERS["SimpleSGD"], 1, clip)
        trainer.status()
        trainer.status()
        found.append(capsys.readouterr().err)
    assert found[0] == found[1] == "[lr=0.1 clips=5 updates=5] [lr=0.1 clips=0 updates=0] "


def test_repeats_to_the_last_bit(on) -> None:
    on(1)
    first, second = trained(TRAINERS["Adam"]), trained(TRAINERS["Adam"])
    assert first[2] == second[2]
    all_equal(first[0].state(), second[0].state())


def test_same_start(on) -> None:
    """Initial values equal the CPU's."""
    dy.reset_random_seed(3)
    desired = Classifier().state()
    on(1)
    dy.reset_random_seed(3)
    all_equal(Classifier().state(), desired)


def test_files(on, tmp_path) -> None:
    """A model saved on one device can be loaded on the other."""
    on(1)
    classifier, trainer, _ = trained(TRAINERS["Adam"])
    classifier.model.save(str(tmp_path / "model.txt"))
    dy.save(str(tmp_path / "listed"), [classifier.W, classifier.table])
    on(0)
    other = Classifier()
    other.model.populate(str(tmp_path / "model.txt"))
    all_equal(other.state(), classifier.state())
    assert other.W.is_updated()
    collection = dy.ParameterCollection()
    W, table = dy.load(str(tmp_path / "listed"), collection)
    np.testing.assert_array_equal(W.as_array(), classifier.W.as_array())
    np.testing.assert_array_equal(table.as_array(), classifier.table.as_array())
    on(1)
    back = Classifier()
    back.model.populate(str(tmp_path / "model.txt"))
    all_equal(back.state(), classifier.state())


@pytest.mark.parametrize("how", ["pickle", "safetensors"])
def test_training_goes_on(on, tmp_path, how: str) -> None:
    """Training resumes from a checkpoint with the same bits, including the state of the trainer."""
    on(1)

    def steps(classifier, trainer, n: int) -> None:
        for x in examples(n):
            dy.renew_cg()
            classifier.loss(x).backward()
            trainer.update()

    classifier, trainer, _ = trained(TRAINERS["Adam"])
    if how == "pickle":
        again, other = pickle.loads(pickle.dumps((classifier, trainer)))
    else:
        dy.save_safetensors(tmp_path / "state.safetensors", classifier.model, trainer)
        again, other, _ = trained(TRAINERS["Adam"], updates=1)
        dy.load_safetensors(tmp_path / "state.safetensors", again.model, other)
    assert again.model.storage.device == 1
    steps(classifier, trainer, 3)
    steps(again, other, 3)
    all_equal(again.state(), classifier.state())


def test_values_of_parameters(on) -> None:
    """Values that the program reads and writes."""
    on(1)
    classifier = Classifier()
    p, table = classifier.b, classifier.table
    p.set_value(np.arange(40))
    assert p.as_array()[39] == 39
    p.scale(2)
    p.clip_inplace(0, 5)
    dy.renew_cg()
    assert p.npvalue().max() == 5
    table.init_row(3, np.ones(12))
    dy.renew_cg()
    loss = dy.dot_product(table[3], table[3]) + dy.dot_product(p, p)
    assert loss.value() == 12 + 0 + 4 + 16 + 37 * 25
    loss.backward()
    assert table.row_grad_as_array(3).tolist() == [2] * 12
    assert p.gradient()[1] == p.grad_as_array()[1] == 4
    p.scale_gradient(0.5)
    assert p.grad_as_array()[1] == 2
    p.zero()
    assert not p.as_array().any()
    table.init_from_array(np.zeros((20, 12)))
    assert not table.as_array().any()


@pytest.mark.parametrize("change", [clip, average])
def test_steps_do_not_wait(on, change) -> None:
    """A training step does not wait for the device."""
    on(1)
    classifier, trainer, _ = trained(TRAINERS["Adam"], 1, change)
    before = engine.stats("gpu.0")
    for x in examples(3):
        dy.renew_cg()
        classifier.loss(x).backward()
        trainer.update()
    after = engine.stats("gpu.0")
    assert after["waits"] == before["waits"]
    assert after["fetches"] - before["fetches"] == 3, "the results of clipping are still being copied"
    assert after["fetched_bytes"] - before["fetched_bytes"] < 100


def test_a_subset_after_an_update_that_was_dropped(on) -> None:
    """The host does not know of the dropped update yet; gradients that the next one keeps are still there."""
    on(1)
    m = dy.ParameterCollection()
    p, q = m.add_parameters(2, init=1.0), m.add_parameters(2, init=1.0)
    trainer = dy.SimpleSGDTrainer(m, 0.5)
    dy.renew_cg()
    (dy.sum_elems(p + q) * float("nan")).backward()
    trainer.update(skip_nonfinite=True)
    dy.renew_cg()
    dy.sum_elems(p + q).backward()
    trainer.update_subset([0], [], skip_nonfinite=True)
    np.testing.assert_array_equal([p.as_array(), q.as_array()], [[0.5, 0.5], [1, 1]])
    np.testing.assert_array_equal([p.grad_as_array(), q.grad_as_array()], [[0, 0], [1, 1]])
    trainer.update()
    np.testing.assert_array_equal(q.as_array(), [0.5, 0.5])
    assert trainer.skipped_updates == 1
    assert trainer._steps == 2


def test_steps_in_python_need_the_host(on) -> None:
    class SGD(dy.PythonTrainer):
        def step(self, p, settings):
            return -settings.learning_rate * p.gradient

    message = "SGD: steps in Python need parameters in the memory of the host"
    on(1)
    model = dy.ParameterCollection()
    model.add_parameters(3, init=1.0)
    with pytest.raises(RuntimeError, match=message):
        SGD(model)
    on(0)
    other = dy.ParameterCollection()
    other.add_parameters(3, init=1.0)
    trainer = SGD(other)
    v = other.add_parameters(3, init=1.0, device="GPU:0")
    dy.squared_norm(v).backward()
    for action in (trainer.update, lambda: trainer.gradient_norm):
        with pytest.raises(RuntimeError, match=message):
            action()


@pytest.mark.parametrize("skips", [False, True])
def test_averages_of_parameters_that_come_later(on, skips: bool) -> None:
    """A parameter that is made in place of another one has an average of its own values, on a device as on the host."""

    def run() -> list[np.ndarray]:
        pc = dy.ParameterCollection()
        w, lost = pc.add_parameters(3, init=1.0), pc.add_parameters(3, init=2.0)
        trainer = dy.SimpleSGDTrainer(pc, 0.1)
        trainer.set_clip_threshold(0)
        trainer.exponential_moving_average(0.9)

        def step(*parameters, factor: float = 1.0) -> None:
            dy.renew_cg()
            dy.esum([dy.squared_norm(p) * factor for p in parameters]).backward()
            trainer.update(skip_nonfinite=skips)

        step(w, lost)
        pc.remove(lost)
        late = pc.add_parameters(3, init=3.0)
        if skips:
            step(w, late, factor=np.inf)  # dropped
        for _ in range(2):
            step(w, late)
        trainer.swap_params_to_moving_average()
        return [w.as_array(), late.as_array()]

    desired = run()
    np.testing.assert_allclose(desired[1], 3 * (0.9 * 0.8 + 0.64) / 1.9, rtol=1e-5)
    on(1)
    all_close(run(), desired, rtol=1e-5)
