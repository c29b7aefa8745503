"""Training on the device, compared with the CPU."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from arrays import all_close, all_equal
from tables import trained_tables
from test_backend import in_a_process
from training import (
    ALONE,
    EXAMPLES,
    HERE,
    SETTINGS,
    TRAINERS,
    Network,
    Places,
    assert_alike,
    average,
    clip,
    decay,
    dense,
    groups,
    never_clip,
    schedule,
    trained,
)  # fmt: skip

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import memory as clips
from dynet_cy.gpu import update
from dynet_cy.gpu.driver import synchronize
from dynet_cy.graph.expressions import set_autobatching, set_default_device
from dynet_cy.model.parameters import set_gradient_state
from dynet_cy.train.interfaces import Plan


@pytest.fixture
def on(device):
    """A function that sets the default device, 0 or 1; it is the CPU again after the test."""
    yield set_default_device
    set_default_device(0)
    set_autobatching(1)
    dy.renew_cg()


def needs(places: Places) -> None:
    missing = set(places) - {"", *dy.available_devices()}
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}")


def alike(name: str, places: Places, strategy: int = 1, change=None):
    """Both networks, trained on the CPU and on devices; they must be alike."""
    needs(places)
    desired = trained(name, ALONE, strategy, change)
    set_default_device(1)  # the CPU again after the test: `on`
    found = trained(name, places, strategy, change)
    assert_alike(found, desired)
    return found, desired


@pytest.mark.parametrize(("places", "strategy"), [(HERE, 0), (HERE, 1), (HERE, 2), (("CPU", "GPU:0", "CPU"), 1)])
@pytest.mark.parametrize("name", TRAINERS)
def test_trainers(on, name: str, places: Places, strategy: int) -> None:
    alike(name, places, strategy)


@pytest.mark.parametrize(
    ("name", "places"),
    [("SimpleSGD", HERE), ("Adam", HERE), ("Adam", ("CPU", "GPU:0", "GPU:0")), ("Adam", ("GPU:0", "CPU", "CPU"))],
)
@pytest.mark.parametrize("change", SETTINGS)
def test_settings(on, name: str, places: Places, change) -> None:
    found, desired = alike(name, places, 1, change)
    if change is average:
        for swap in ("swap_params_to_moving_average", "swap_params_to_weights"):
            for _, trainer, _ in (found, desired):
                getattr(trainer, swap)()
            assert_alike(found, desired)


@pytest.mark.parametrize("name", ["Adam", "MomentumSGD", "AdamW"])
def test_all_rows_of_large_tables(on, name: str) -> None:
    """Rows without a gradient are updated later on the CPU, and at once on a device, where this table is small."""

    desired, deferred, _ = trained_tables(TRAINERS[name], ("CPU", "CPU"), (900, 5))
    assert deferred == [12, 12]
    for places in (("CPU", "GPU:0"), ("GPU:0", "GPU:0")):
        found, deferred, _ = trained_tables(TRAINERS[name], places, (900, 5))
        assert deferred == [12 if place == "CPU" else 0 for place in places]
        all_close(found, desired, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("places", [HERE, ("GPU:0", "CPU", "GPU:0")])
def test_update_subset_and_restart(on, places: Places) -> None:
    def run(places: Places):
        network, trainer, losses = trained("MomentumSGD", places)
        dy.renew_cg()
        network.batch_loss().backward()
        trainer.update_subset([0, 3], [])
        trainer.restart(0.2)
        trainer.update()
        network.table.init_row(2, np.arange(6.0))
        network.scale.clip_inplace(0.5, 0.9)
        network.W.scale(0.5)
        return network, trainer, losses

    desired = run(ALONE)
    on(1)
    assert_alike(run(places), desired)


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
    network, trainer, _ = trained("Adam", change=decay)
    trainer.exponential_moving_average(0.5)
    dy.renew_cg()
    network.loss(EXAMPLES[0]).backward()
    trainer.update()
    before, settings, moments = network.state(), trainer._settings(), trainer._state_arrays()
    dy.renew_cg()
    (dy.dot_product(network.b, dy.inputVector([np.inf] * 40)) + dy.sum_elems(network.table[3])).backward()
    trainer.update()
    with pytest.raises(RuntimeError, match=r"Magnitude of gradient is bad: inf; the gradients of /_2 are not finite"):
        LOOKS[look](network, trainer)
    trainer.set_clip_threshold(5)
    dy.renew_cg()
    all_equal(network.state(), before)
    assert trainer._settings() == settings
    for a, b in zip(trainer._state_arrays(), moments):
        all_equal(a, b)
    assert np.isinf(network.b.grad_as_array()).all()
    assert network.table.row_grad_as_array(3).tolist() == [1] * 6
    # The gradients remain for the next update, which is skipped too.
    trainer.update()
    synchronize(0)
    with pytest.raises(RuntimeError, match="Nothing was updated"):
        trainer.update()
    set_gradient_state(network.b, None)
    trainer.update()
    trainer.status()
    assert np.abs(network.table.as_array()[3] - before[4][3]).max() > 0
    assert np.isfinite(network.b.as_array()).all()


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


def mixed_updates(name: str, change=None, with_norms: bool = False):
    """Updates; some of them are dropped."""
    dy.reset_random_seed(3)
    network = Network()
    trainer = TRAINERS[name](network.model)
    if change is not None:
        change(network, trainer)
    norms = []
    for k in range(12):
        dy.renew_cg()
        loss = network.loss(EXAMPLES[k % 5])
        if k % 3 == 1:
            loss *= np.nan if k % 2 else np.inf
        loss.backward()
        if k % 6 == 4:
            trainer.update_subset([0], [], skip_nonfinite=True)
        else:
            trainer.update(skip_nonfinite=True)
        if with_norms:
            norms.append(trainer.gradient_norm)
    return network, trainer, norms


@pytest.mark.parametrize("change", [None, clip, never_clip, decay, dense, groups, average, schedule])
@pytest.mark.parametrize("name", ["CyclicalSGD", "Adam", "AdamW"])
def test_dropped_updates(on, name: str, change, capsys) -> None:
    """Dropped updates change only their count; later updates are made, with the learning rates of their numbers."""
    found = []
    for device in (0, 1):
        on(device)
        network, trainer, _ = mixed_updates(name, change)
        trainer.status()
        found.append((network.state(), capsys.readouterr().err, trainer._steps, trainer._settings()))
        for p in (network.W, network.b, network.table):
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


def test_dropping_does_not_wait(on) -> None:
    on(1)
    network, trainer, _ = trained("Adam")
    trainer.update(skip_nonfinite=True)
    before = engine.stats("gpu.0")
    for factor in (1, np.nan, 1, np.inf):
        dy.renew_cg()
        (network.loss(EXAMPLES[0]) * factor).backward()
        trainer.update(skip_nonfinite=True)
    after = engine.stats("gpu.0")
    assert after["waits"] == before["waits"]
    assert after["fetches"] - before["fetches"] == 4, "the results of clipping are still being copied"


def test_learning_rates_of_updates_that_may_be_dropped(on) -> None:
    """The device chooses rate and decay by the number of dropped updates that the host did not know of, the last rate
    for more of them than there are rates."""
    on(1)
    model = dy.ParameterCollection()
    p = model.add_parameters(4, init=0.0)
    decayed = model.add_parameters(4, init=1.0)
    clipping = clips.Clipping(0)
    constants = dict.fromkeys(("lr", "grad_scale", "step_scale", "b1", "b2", "eps", "eps_scale"), 0.0)
    group = {"h": constants, **dict.fromkeys(("decoupled", "decay", "threshold", "own_norm", "squares"), 0)}
    group.update(dict.fromkeys(("learning_rate", "own_rate", "weight_decay", "own_decay", "collected"), 0))
    moved = []
    for k, x in enumerate([1, np.nan, 1, np.inf, np.nan, 1, 1]):
        dy.renew_cg()
        dy.sum_elems(p * float(x)).backward()
        before = p.as_array()[0]
        assert clipping.coming() == sum(moved[i] == 0 for i in range(k))
        rates = list(zip([0.5, 0.25, 0.125, 2.0], [1.0] * 4, [0.0, 0.5, 0.75, 0.25]))[: 3 if k == 6 else 4]
        plan = Plan([p, decayed], [])
        plan.set([2, 1], [0, 0], [group], True)  # the rule changes p; decayed keeps its gradient
        update.update(plan, clipping, [rates])
        moved.append(float(before - p.as_array()[0]))
        p.set_value(np.zeros(4))
    assert moved == [0.5, 0, 0.25, 0, 0, 2.0, 0.125]
    assert decayed.as_array()[0] == 0.5 * 0.75 * 0.25
    assert clipping.dropped() == 3
    assert clipping.coming() == clipping.dropped() == 0


def test_zero_gradients(on) -> None:
    """Zeroing also covers gradients of an update that the device skipped and the host does not know of yet."""
    on(1)
    network, trainer, _ = trained("Adam")
    before = network.state()
    for zero in (trainer.zero_gradients, network.model.zero_gradients):
        dy.renew_cg()
        (network.loss(EXAMPLES[0]) * np.nan).backward()
        trainer.update()
        with pytest.raises(RuntimeError, match="Nothing was updated"):
            trainer.status()
        zero()
        for p in (network.W, network.b, network.V, network.table):
            assert not p.grad_as_array().any()
        trainer.update_subset([], [])
        trainer.status()
        all_equal(network.state(), before)
    # In the other order the error comes later, and training goes on too.
    dy.renew_cg()
    (network.loss(EXAMPLES[0]) * np.nan).backward()
    trainer.update()
    network.model.zero_gradients()
    with pytest.raises(RuntimeError, match="of parameters that have been set to zero since are not finite"):
        trainer.status()
    dy.renew_cg()
    (network.loss(EXAMPLES[0]) * np.nan).backward()
    trainer.update()
    with pytest.raises(RuntimeError, match="Nothing was updated"):
        trainer.zero_gradients()
    trainer.zero_gradients()
    dy.renew_cg()
    network.loss(EXAMPLES[0]).backward()
    trainer.update(skip_nonfinite=True)
    assert trainer.gradient_norm > 0


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


def test_repeats_to_the_last_bit(on) -> None:
    on(1)
    first, second = trained("Adam"), trained("Adam")
    assert first[2] == second[2]
    all_equal(first[0].state(), second[0].state())


@pytest.mark.parametrize("places", [HERE, ("CPU", "GPU:0", "GPU:1")])
@pytest.mark.parametrize("how", ["pickle", "copy", "safetensors", "text"])
def test_training_goes_on(on, tmp_path, how: str, places: Places) -> None:
    """Training resumes from a checkpoint with the same bits, including the state of the trainer and the gradients that
    are not applied yet; a file of text can be loaded into a model with other devices."""
    needs(places)
    on(1)
    network, trainer, _ = trained("Adam", places)
    dy.renew_cg()
    network.batch_loss().backward()
    if how == "pickle":
        again, other = pickle.loads(pickle.dumps((network, trainer)))
    elif how == "copy":
        again, other = copy.deepcopy((network, trainer))
    elif how == "safetensors":
        dy.save_safetensors(tmp_path / "state", network.model, trainer)
        again, other, _ = trained("Adam", places, n=1)
        dy.load_safetensors(tmp_path / "state", again.model, other)
    else:
        network.model.save(tmp_path / "model")
        again, other, _ = trained("Adam", ALONE, n=1)
        again.model.populate(tmp_path / "model")
    all_equal(again.state(), network.state())
    if how == "text":
        return
    assert [p.storage.device for p in again.parameters()] == [p.storage.device for p in network.parameters()]
    for own, its_trainer in ((network, trainer), (again, other)):
        its_trainer.update()
        dy.renew_cg()
        own.batch_loss().backward()
        its_trainer.update()
    all_equal(again.state(), network.state())


@pytest.mark.parametrize("change", [clip, average])
def test_steps_do_not_wait(on, change) -> None:
    """A training step does not wait for the device."""
    on(1)
    network, trainer, _ = trained("Adam", change=change)
    before = engine.stats("gpu.0")
    for x in EXAMPLES[:3]:
        dy.renew_cg()
        network.loss(x).backward()
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
