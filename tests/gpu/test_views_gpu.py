"""Reshaped values on a device that are parts of the memory of their arguments, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_default_device

pytestmark = pytest.mark.usefixtures("device", "on_the_cpu_again")


class Net:
    def __init__(self, device: str) -> None:
        self.device = device
        self.rng = np.random.default_rng(5)
        self.pc = dy.ParameterCollection()
        self.w = self.pc.parameters_from_numpy(self.numbers(4, 4), device=device)
        self.row = self.pc.parameters_from_numpy(self.numbers(1, 4), device=device)

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-1, 1, shape).astype(np.float32)

    def input(self, *shape: int) -> dy.Expression:
        return dy.inputTensor(self.numbers(*shape), device=self.device)


def total(xs: list[dy.Expression]) -> dy.Expression:
    return dy.esum([dy.squared_norm(x) for x in xs])


def attention(net: Net) -> dy.Expression:
    """Scores of sentences of different lengths are transposed: each is used once."""
    ends = []
    for length in (3, 5, 1, 5):
        memory = dy.tanh(net.input(4, length))
        scores = net.row * dy.tanh(net.w * memory)
        ends.append(memory * dy.softmax(dy.transpose(scores)))
    return total(ends)


def reshaped(net: Net) -> dy.Expression:
    """Reshaped values of one size, with one user, with two, and reshaped twice."""
    xs = [dy.tanh(net.w * net.input(4, 3)) for _ in range(4)]
    flat = [dy.reshape(x, (12,)) for x in xs]
    both = [dy.reshape(x, (3, 4)) for x in xs[:2]]
    again = [dy.reshape(dy.reshape(dy.exp(x), (6, 2)), (2, 6)) for x in flat]
    return total([*both, *again, *[dy.logistic(x) for x in flat]])


def outputs_of_cells(net: Net) -> dy.Expression:
    """States of LSTM cells are reshaped, and cells continue from reshaped states."""
    cell = [net.pc.parameters_from_numpy(net.numbers(*shape), device=net.device) for shape in ((16, 4), (16, 4), (16,))]
    ends = []
    for length in (2, 3, 1):
        h, c = net.input(4), net.input(4)
        for _ in range(length):
            gates = dy.vanilla_lstm_gates(net.input(4), h, *cell)
            c = dy.vanilla_lstm_c(c, gates)
            h = dy.reshape(dy.reshape(dy.vanilla_lstm_h(c, gates), (2, 2)), (4,))
        ends.append(dy.reshape(dy.tanh(c), (1, 4)) * h)
    return total(ends)


def used_later(net: Net) -> dy.Expression:
    """A value that is the argument of a view is used by a later pass too."""
    xs = [dy.tanh(net.w * net.input(4, 3)) for _ in range(3)]
    flat = [dy.reshape(x, (12,)) for x in xs]
    first = total([dy.logistic(x) for x in flat])
    first.value()
    more = total([dy.exp(x) for x in xs[:2]])
    more.value()
    return first + more + total([dy.square(x) for x in flat])


Program = Callable[[Net], dy.Expression]
PROGRAMS: list[Program] = [attention, reshaped, outputs_of_cells, used_later]


def results(program: Program, device: str, strategy: int, full: bool = False, **options: bool) -> list[Any]:
    set_default_device(int(device != "CPU"))  # a graph on one device
    dy.renew_cg(autobatching=strategy, **options)
    net = Net(device)
    loss = program(net)
    found = [loss.npvalue()]
    if not options:
        for _ in range(2):
            loss.backward(full=full)
        found += [p.grad_as_array() for p in net.pc.parameters_list()]
    return found


@pytest.mark.parametrize("full", [False, True], ids=["parameters", "full"])
@pytest.mark.parametrize("strategy", [0, 1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_same_as_on_the_cpu(program: Program, strategy: int, full: bool) -> None:
    desired = results(program, "CPU", 0, full)
    for _ in range(3):  # from the second time on, the plan comes from the cache
        all_close(results(program, "GPU:0", strategy, full), desired, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_forward_only_and_training_in_turns(program: Program) -> None:
    """Both have plans of their own forms; values of a forward-only graph are released."""
    with dy.ComputationGraph():
        for _ in range(3):
            for options in ({"forward_only": True}, {}):
                found = results(program, "GPU:0", 1, **options)[0]
                np.testing.assert_allclose(found, results(program, "CPU", 0)[0], rtol=1e-4)


def test_gradients_of_views_and_their_arguments() -> None:
    found = []
    for device in ("GPU:0", "CPU"):
        set_default_device(int(device != "CPU"))
        dy.renew_cg(autobatching=1)
        net = Net(device)
        xs = [dy.tanh(net.w * net.input(4, 2)) for _ in range(3)]
        views = [dy.reshape(x, (8,)) for x in xs]
        loss = total([dy.exp(x) for x in views[:2]])
        loss.backward()
        found.append([x.npvalue() for x in views[:2] + xs[:2]] + [x.gradient() for x in views[:2] + xs[:2]])
    all_close(*found, rtol=1e-4, atol=1e-6)


def test_while_gradients_are_checked() -> None:
    desired = results(attention, "CPU", 0)
    set_default_device(1)
    dy.renew_cg(autobatching=1)
    net = Net("GPU:0")
    loss = attention(net)
    loss.value()
    with dy.detect_anomaly():
        loss.backward()
        loss.backward()
    for p, want in zip(net.pc.parameters_list(), desired[1:]):
        np.testing.assert_allclose(p.grad_as_array(), want, rtol=2e-4, atol=2e-5)


def test_launches() -> None:
    """A reshaped value takes no launch, neither forward nor backward."""
    launches = []
    with engine.tuned({"gpu.graphs.most_graphs": 0}):
        for reshapes in (False, True):
            set_default_device(1)
            dy.renew_cg(autobatching=1)
            net = Net("GPU:0")
            xs = [dy.tanh(net.input(4, 3)) for _ in range(5)]
            if reshapes:
                xs = [dy.reshape(x, (12,)) for x in xs]
            loss = total([dy.exp(x) for x in xs])
            start = engine.stats("gpu.0")["launches"]
            loss.backward()
            launches.append(engine.stats("gpu.0")["launches"] - start)
    assert launches[1] == launches[0]
