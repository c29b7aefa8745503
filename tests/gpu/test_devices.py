"""Graphs and collections on several devices, compared with the CPU alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from arrays import all_close, all_equal
from training import ALONE, SPREAD, Network

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_autobatching, set_default_device


@pytest.fixture
def devices(device: str):
    """The names of the devices; the CPU is the default before and after the test."""
    set_default_device(0)
    dy.renew_cg()
    yield dy.available_devices()
    set_default_device(0)
    set_autobatching(1)
    dy.renew_cg()


def needs(devices: list[str], wanted) -> None:
    missing = set(wanted) - set(devices)
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}")


def gradients(places, strategy: int) -> list:
    dy.reset_random_seed(11)
    set_autobatching(strategy)
    network = Network(places)
    dy.renew_cg()
    loss = network.batch_loss()
    value = loss.value()
    loss.backward()
    return [value, *(p.grad_as_array() for p in network.parameters())]


def assert_close(found, desired) -> None:
    all_close(found, desired, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", [0, 1, 2])
@pytest.mark.parametrize("places", SPREAD, ids="-".join)
def test_values_and_gradients(devices, places, strategy: int) -> None:
    needs(devices, places)
    assert_close(gradients(places, strategy), gradients(ALONE, strategy))


def test_where_ops_run(devices) -> None:
    """Copies are batched; each op runs on the device of its arguments."""
    network = Network(("CPU", "GPU:0", "GPU:0"))
    dy.renew_cg()
    loss = network.batch_loss()
    before = engine.stats("gpu.0")
    loss.value()
    after = engine.stats("gpu.0")
    assert dy.cg().op_names().count("to_device") == 12 + 5
    assert dy.cg().n_batches() < 20
    # Rows, scale and the data of passes are sent to the device, one copy each; only the loss is fetched.
    assert after["fetches"] - before["fetches"] == 1
    assert any(after[key] > before[key] for key in ("launches", "replays"))


def test_to_the_device_of_its_own(devices) -> None:
    for name in devices:
        x = dy.inputVector([1.0, 2.0], device=name)
        y = dy.to_device(x, name)
        assert y is not x
        assert y.value() == [1, 2]
        assert "to_device" not in dy.cg().op_names(), "nothing moves"
        dy.sum_elems(dy.cmult(y, y) + x).backward(full=True)
        np.testing.assert_array_equal(y.gradient(), [2, 4])
        np.testing.assert_array_equal(x.gradient(), [3, 5])
        dy.renew_cg()
    x = dy.inputVector([1.0, 2.0])
    assert dy.to_device(x, "").value() == [1, 2], "the default device"
    assert "to_device" not in dy.cg().op_names()
    assert dy.to_device(dy.to_device(x, "GPU:0"), "").value() == [1, 2]
    assert "to_device" in dy.cg().op_names()


def test_leaves_alone(devices) -> None:
    """Copies of inputs and parameters, of several shapes and batch sizes."""
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(np.arange(6.0).reshape(2, 3), device="GPU:0")
    table = model.lookup_parameters_from_numpy(np.arange(8.0).reshape(4, 2), device="GPU:0")
    dy.renew_cg()
    x = dy.inputTensor(np.arange(6.0).reshape(2, 3), batched=True, device="GPU:0")
    found = [dy.to_device(e, "CPU") for e in (p, x, dy.lookup_batch(table, [3, 1]), table, dy.parameter(p))]
    for e, value in zip(found, [np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3), [[6, 2], [7, 3]]]):
        np.testing.assert_array_equal(e.npvalue(), value)
    np.testing.assert_array_equal(found[3].npvalue(), np.arange(8.0).reshape(4, 2).T)
    loss = dy.sum_batches(dy.sum_elems(found[2])) + dy.sum_elems(found[0]) + dy.sum_elems(found[3])
    assert loss.value() == 18 + 15 + 28
    loss.backward()
    np.testing.assert_array_equal(p.grad_as_array(), np.ones((2, 3)))
    np.testing.assert_array_equal(table.grad_as_array(), [[1, 1], [2, 2], [1, 1], [2, 2]])


# ---- where things are ------------------------------------------------------------


def test_arguments_on_different_devices(devices) -> None:
    model = dy.ParameterCollection()
    p = model.add_parameters((2, 3), name="W", device="GPU:0")
    q = model.add_parameters(3, name="v", device="CPU")
    dy.renew_cg()
    with pytest.raises(ValueError, match="matmul") as error:
        p * q
    lines = str(error.value).splitlines()
    assert lines[0] == "matmul: the arguments are on different devices; to_device brings one to another"
    assert lines[1].split() == ["a", "{2,3}", "parameter", "/W", "on", "GPU:0"]
    assert lines[2].split() == ["b", "{3}", "parameter", "/v", "on", "CPU"]
    assert (p * dy.to_device(q, "GPU:0")).dim() == ((2,), 1), "the graph can still be used"
    with pytest.raises(ValueError, match="tanh|add.*on different devices"):
        dy.inputVector([1.0, 2.0, 3.0], device="GPU:0") + q
    with pytest.raises(RuntimeError, match="to_device: Invalid device name: GPU:63"):
        dy.to_device(q, "GPU:63")
    with pytest.raises(TypeError, match="to_device: a device is a string, not 3"):
        dy.to_device(q, 3)
    with pytest.raises(TypeError, match="to_device: e must be an Expression, not float"):
        dy.to_device(1.0, "CPU")


def test_inputs_go_where_they_are_used_first(devices) -> None:
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(np.arange(3.0), device="GPU:0")
    dy.renew_cg()
    x, y = dy.inputVector([1.0, 2.0, 3.0]), dy.inputVector([1.0, 2.0, 3.0])
    used = dy.inputVector([1.0, 1.0, 1.0])
    assert (used + 1).value() == [2, 2, 2]
    named = dy.inputVector([1.0, 1.0, 1.0], device="CPU")
    assert dy.dot_product(p, x).value() == 8
    assert dy.dot_product(dy.to_device(y, "GPU:0"), p).value() == 8
    assert dy.dot_product(y, used).value() == 6, "an input that is copied stays on the default device"
    for other in (used, named):
        with pytest.raises(ValueError, match="dot_product: the arguments are on different devices"):
            dy.dot_product(p, other)
    with pytest.raises(ValueError, match="on different devices"):
        dy.dot_product(x, used)
    assert dy.dot_product(p, dy.ones(3)).value() == 3
    assert dy.tanh(dy.zeros(2)).value() == [0, 0]


def test_inputs_stay_where_nothing_uses_them_any_more(devices) -> None:
    """Reverting to a checkpoint also reverts the devices that inputs were given since."""
    needs(devices, ["GPU:1"])
    model = dy.ParameterCollection()
    ps = [model.parameters_from_numpy(np.arange(3.0) + k, device=name) for k, name in enumerate(devices[:3])]
    dy.renew_cg()
    x, fixed = dy.inputVector([1.0, 2.0, 3.0]), dy.inputVector([1.0, 1.0, 1.0])
    assert dy.dot_product(fixed, ps[2]).value() == 9
    for k, p in [*enumerate(ps), *enumerate(ps)]:
        dy.cg_checkpoint()
        assert dy.dot_product(x, p).value() == 8 + 6 * k
        dy.cg_revert()
        with pytest.raises(ValueError, match="on different devices"):
            dy.dot_product(fixed, ps[0])


def test_a_gpu_is_the_default(devices) -> None:
    set_default_device(1)
    dy.renew_cg()
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(np.arange(3.0))
    q = model.parameters_from_numpy(np.ones(3), device="CPU")
    h = dy.dot_product(dy.to_device(dy.tanh(q), "GPU:0"), p)
    np.testing.assert_allclose(h.value(), 3 * np.tanh(1.0), rtol=1e-6)
    h.backward()
    np.testing.assert_allclose(q.grad_as_array(), np.arange(3) * (1 - np.tanh(1.0) ** 2), rtol=1e-5)
    assert (p + dy.inputVector([1.0, 1.0, 1.0])).value() == [1, 2, 3]
    again = pickle.loads(pickle.dumps(model))
    set_default_device(0)
    moved = pickle.loads(pickle.dumps(again))
    assert [x.storage.device for x in again.parameters_list()] == [1, 0]
    assert [x.storage.device for x in moved.parameters_list()] == [1, 0]


def test_a_default_device_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="set_default_device: .*GPU:63"):
        set_default_device(64)


# ---- graphs ----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"forward_only": True}, {"immediate_compute": True}, {"check_validity": True}])
def test_settings_of_graphs(devices, settings) -> None:
    network = Network(("CPU", "GPU:0", "CPU"))
    dy.renew_cg()
    desired = network.batch_loss().value()
    dy.renew_cg(**settings)
    np.testing.assert_allclose(network.batch_loss().value(), desired, rtol=1e-5)
    if "forward_only" in settings:  # and renumbers nodes
        y = dy.to_device(dy.inputVector(np.ones(6)), "GPU:0")
        for k in range(3000):
            y = dy.tanh(dy.to_device(dy.to_device(y, "CPU") + 0.5, "GPU:0"))
            if k % 100 == 0:
                y.value()
        x = 1.0
        for _ in range(3000):
            x = np.tanh(x + 0.5)
        np.testing.assert_allclose(y.value(), [x] * 6, rtol=1e-5)


def test_values_that_are_not_finite(devices) -> None:
    for name in devices[:2]:
        dy.renew_cg(check_validity=True)
        x = dy.to_device(dy.inputVector([1.0, 0.0]), "GPU:0")
        y = dy.log(dy.to_device(x, name))
        with pytest.raises(ValueError, match=r"log: a value of expression . \{2\} is not finite"):
            y.value()
        assert x.value() == [1, 0]


def test_schedules_are_kept(devices) -> None:
    """A plan for some devices is not used for the same structure on others."""

    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(np.arange(1.0, 5.0), device="CPU")

    def value(where: str) -> float:
        dy.renew_cg()
        dy.to_device(p, "GPU:0")  # all of these graphs are on several devices
        xs = [dy.inputVector([k, 1.0, 2.0, 3.0], device=where) for k in range(4)]
        return dy.esum([dy.sum_elems(dy.tanh(x) * 2.0) for x in xs]).value()

    engine.stats("schedule.plan", reset=True)
    desired = value("CPU")
    for where in ("CPU", "CPU", "GPU:0", "GPU:0", "GPU:0", "CPU"):
        before = engine.stats("gpu.0")
        np.testing.assert_allclose(value(where), desired, rtol=1e-5)
        after = engine.stats("gpu.0")
        assert any(after[key] > before[key] for key in ("launches", "replays")) == (where != "CPU")
    assert engine.stats("schedule.plan")["reused"] >= 3


# ---- collections and trainers ----------------------------------------------------


def test_parameters_added_while_training(devices) -> None:
    """A parameter is added on a device that is new to the trainer."""

    def run(where: str):
        dy.reset_random_seed(5)
        model = dy.ParameterCollection()
        p = model.add_parameters(3)
        trainer = dy.MomentumSGDTrainer(model, 0.1)
        added = []
        for _ in range(4):
            dy.renew_cg()
            dy.esum([dy.to_device(dy.squared_norm(x), "CPU") for x in (p, *added)]).backward()
            trainer.update()
            if not added:
                added.append(model.add_subcollection("below").add_parameters(4, device=where))
        return p.as_array(), added[0].as_array()

    all_close(run("GPU:0"), run("CPU"), rtol=1e-5)


def test_gradients_that_are_not_finite(devices) -> None:
    network = Network(("CPU", "GPU:0", "CPU"))
    trainer = dy.SimpleSGDTrainer(network.model)
    before = network.state()
    dy.renew_cg()
    dy.sum_elems(dy.log(network.W * 0.0) * 0.0).backward()
    with pytest.raises(RuntimeError, match="the gradients of /_1 are not finite"):
        trainer.update()
    all_equal(network.state(), before)
    assert not np.isfinite(network.W.grad_as_array()).any()
    trainer.update(skip_nonfinite=True)
    assert not np.isfinite(trainer.gradient_norm)
    assert not network.W.grad_as_array().any()
    trainer.update()
    assert (trainer.gradient_norm, trainer._steps, trainer._skipped) == (0, 1, 1)
    all_equal(network.state(), before)


@pytest.mark.parametrize("places", [ALONE, *SPREAD, ("GPU:0", "GPU:0", "GPU:0")], ids="-".join)
def test_what_the_last_backward_gave(devices, places) -> None:
    """Gradients of expressions of parameters, on any device; see tests/graph/test_further_gradients.py."""
    needs(devices, places)
    pc = dy.ParameterCollection()
    W, V = (pc.add_parameters((2, 2), init=n, device=place) for n, place in enumerate(places[:2], 1))
    E = pc.add_lookup_parameters((3, 2), init=1.0, device=places[2])
    for _ in range(2):
        dy.renew_cg()
        table, constant = E.expr(), V.expr()
        there = [dy.to_device(e, places[0]) for e in (V, constant, E[1], dy.select_cols(table, [0, 2]))]
        h = W * there[0] * there[1] * there[2]
        loss = dy.sum_elems(h) + dy.sum_elems(W * there[3])
        loss.backward(full=True)
        before = h.gradient()
        ones = np.ones((2, 2))
        W.set_value(ones)  # like an update: a full backward has stored all gradients by then
        np.testing.assert_array_equal(W.gradient(), ones * (16 + 2))
        np.testing.assert_array_equal(V.gradient(), ones * 2 * 4)
        np.testing.assert_array_equal(constant.gradient(), ones * 2 * 2 * 2)
        np.testing.assert_array_equal(table.gradient(), [[2, 0, 2], [2, 0, 2]])
        np.testing.assert_array_equal(h.gradient(), before)
    np.testing.assert_array_equal(W.grad_as_array(), ones * 2 * (16 + 2))


# ---- programs --------------------------------------------------------------------


def drop_in_lstm(x: dy.Expression, device: str) -> dy.Expression:
    set_default_device(int(device != "CPU"))
    builder = dy.VanillaLSTMBuilder(1, 4, 4, dy.ParameterCollection())
    set_default_device(0)
    builder.set_dropout(0.5)
    return builder.initial_state().transduce([x, x])[-1]


RANDOM: dict[str, Callable[[dy.Expression, str], dy.Expression]] = {
    "masks of an LSTM": drop_in_lstm,
    "gumbel_softmax": lambda x, device: dy.gumbel_softmax(x),
    "first alone": lambda x, device: x + dy.to_device(dy.tanh(dy.random_normal(4)), device),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_go_where_they_are_used_first(device: str, name: str) -> None:
    """The same numbers as on the CPU."""
    found = []
    for where in ("CPU", device):
        dy.reset_random_seed(3)
        dy.renew_cg()
        x = dy.inputVector(np.linspace(-1, 1, 4), device=where)
        found.append(RANDOM[name](x, where).npvalue())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_random_numbers_that_have_been_drawn_stay(device: str) -> None:
    dy.renew_cg()
    drawn = dy.random_normal(4)
    x = dy.inputVector(np.zeros(4), device=device)
    desired = drawn.npvalue()
    with pytest.raises(ValueError, match="different devices"):
        x + drawn
    np.testing.assert_allclose((x + dy.to_device(drawn, device)).npvalue(), desired)


def test_memory_of_forward_only_graphs_ends_at_their_top(device: str) -> None:
    """What lies beyond is filled with NaN on the device if memory is poisoned."""
    x = np.sin(np.arange(12)).reshape(4, 3)
    found = []
    for where, poison in (("CPU", 0), (device, 1)):
        with engine.tuned({"memory.arena.poisoning": poison}), dy.ComputationGraph(autobatching=1):
            dy.renew_cg(forward_only=True)
            e = dy.inputTensor(x, batched=True, device="CPU")
            both = dy.tanh(dy.concatenate_cols([dy.tanh(dy.tanh(e)), dy.tanh(dy.tanh(e * 2))]))
            columns = [dy.to_device(dy.pick(both, i, 1), where) for i in range(2)]
            found.append(dy.sum_batches(dy.sum_elems(dy.esum(columns))).value())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
