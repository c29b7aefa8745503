"""Backward after several forward passes on a device: the gradients of the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from arrays import all_close, all_equal

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_default_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "execute"))

from test_recompute import plainly, random_program

pytestmark = pytest.mark.usefixtures("device", "on_the_cpu_again")

DIM = 6


class Layers:
    """Parameters with the same values on each device, and a function that computes a value before it returns it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.rng = np.random.default_rng(3)
        self.pc = dy.ParameterCollection()
        self.w, self.u, self.v = (self.parameter(DIM, DIM) for _ in range(3))
        self.b = self.parameter(DIM)
        self.gates = [self.parameter(4 * DIM, DIM), self.parameter(4 * DIM, DIM), self.parameter(4 * DIM)]
        self.xs = [self.input() for _ in range(12)]

    def parameter(self, *shape: int) -> dy.Parameters:
        return self.pc.parameters_from_numpy(self.numbers(*shape), device=self.device)

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-0.7, 0.7, shape).astype(np.float32)

    def input(self, batch: int = 1) -> dy.Expression:
        return dy.inputTensor(self.numbers(DIM, batch), batched=True, device=self.device)

    def layer(self, x: dy.Expression) -> dy.Expression:
        return asked(dy.tanh(dy.affine_transform([self.b, self.w, x])))

    def cells(self, xs: list[dy.Expression]) -> list[dy.Expression]:
        """The outputs of an LSTM, each computed before the next one."""
        h, c = (dy.inputTensor(np.zeros(DIM), device=self.device) for _ in range(2))
        outputs = []
        for x in xs:
            gates = dy.vanilla_lstm_gates(x, h, *self.gates)
            c = dy.vanilla_lstm_c(c, gates)
            h = asked(dy.vanilla_lstm_h(c, gates))
            outputs.append(h)
        return outputs


def asked(x: dy.Expression) -> dy.Expression:
    x.npvalue()
    return x


def loss_of(ends: list[dy.Expression]) -> dy.Expression:
    return dy.sum_batches(dy.esum([dy.squared_norm(x) for x in ends]))


def two_layers(net: Layers) -> dy.Expression:
    hidden = [net.layer(x) for x in net.xs]
    return loss_of([asked(net.u * x) for x in hidden])


def sequences(net: Layers) -> dy.Expression:
    """Steps that need each other, in sequences of different lengths; their states are concatenated too."""
    ends = []
    for length in (1, 6, 3, 2, 6):
        states = [net.xs[length]]
        for k in range(length):
            both = dy.affine_transform([net.b, net.w, net.xs[k], net.u, states[-1]])
            states.append(asked(dy.logistic(both)))
        ends.append(asked(net.v * states[-1] + states[0]))
        ends.append(asked(dy.concatenate(states[-2:])))
    return loss_of(ends)


def several_functions(net: Layers) -> dy.Expression:
    """Functions of which backward reads the argument, the result, both; one value has two users."""
    ends = []
    for x in net.xs[:5]:
        y = asked(net.w * x)
        ends += [asked(dy.rectify(y)), asked(dy.square(dy.tanh(y))), asked(dy.exp(y)), asked(dy.logistic(y))]
    return loss_of(ends)


def biases(net: Layers) -> dy.Expression:
    """Shared biases, those of each node and of several columns, and a vector that several products share."""
    xs = [asked(dy.tanh(x)) for x in net.xs[:4]]
    sums = [asked(dy.affine_transform([xs[k // 2], net.w, xs[3 - k], net.u, xs[0]])) for k in range(4)]
    pairs = [dy.concatenate_cols([sums[k], xs[k]]) for k in range(4)]
    wide = [asked(dy.affine_transform([net.b, net.v, x])) for x in pairs]
    return dy.esum([dy.sum_elems(dy.square(dy.affine_transform([x, net.v, y]))) for x, y in zip(wide, pairs)])


def minibatches(net: Layers) -> dy.Expression:
    xs = [net.input(3) for _ in range(5)] + [net.xs[1]]
    hidden = [net.layer(x) for x in xs]
    both = [asked(dy.affine_transform([hidden[-1], net.u, x])) for x in hidden[:-1]]
    return loss_of([net.v * x for x in both])


def some_unused(net: Layers) -> dy.Expression:
    hidden = [net.layer(x) for x in net.xs]
    return loss_of([asked(net.u * x) for x in hidden][::3])


def cells_in_turn(net: Layers) -> dy.Expression:
    """LSTMs of which each step is a pass, over sequences of different lengths."""
    ends = []
    for length in (4, 7, 1, 5):
        outputs = net.cells(net.xs[:length])
        ends += [asked(net.u * h) for h in outputs]
    return loss_of(ends)


def states_of_cells(net: Layers) -> dy.Expression:
    """Cells in one pass, after others: what uses a state runs backward before the launch of its cell."""
    ends = [net.layer(x) for x in net.xs[:3]]
    h, c = (dy.inputTensor(np.zeros(DIM), device=net.device) for _ in range(2))
    for x in net.xs[:4]:
        gates = dy.vanilla_lstm_gates(x, h, *net.gates)
        c = dy.vanilla_lstm_c(c, gates)
        h = dy.vanilla_lstm_h(c, gates)
        ends += [dy.tanh(net.w * dy.tanh(net.u * c)), dy.square(h)]
    return loss_of(ends)


def parts_of_runs(net: Layers) -> dy.Expression:
    """The same for values within a fused run, in the second of two passes."""
    asked(dy.pick_range(dy.concatenate(net.xs[:2]), 1, 5))
    within = dy.tanh(dy.affine_transform([net.xs[4], net.w, net.xs[5]]))
    ends = [dy.cmult(within, dy.logistic(net.xs[6])), dy.tanh(dy.affine_transform([within, net.w, net.xs[7]]))]
    return loss_of(ends)


Program = Callable[[Layers], dy.Expression]
PROGRAMS: list[Program] = [
    two_layers,
    sequences,
    several_functions,
    biases,
    minibatches,
    some_unused,
    cells_in_turn,
    states_of_cells,
]


@pytest.fixture(params=[False, True], ids=["apart", "fused"])
def fuses(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether kernels of several ops are compiled at once."""
    with engine.tuned({"gpu.fusion.most_kernels": 256 if request.param else 0, "gpu.fusion.least_saved": 0}):
        yield request.param


def gradients(program: Program, device: str, strategy: int, full: bool = False) -> list[np.ndarray]:
    """The gradients after two backward passes; with `full`, also of the inputs."""
    set_default_device(int(device != "CPU"))  # a graph on one device
    dy.renew_cg(autobatching=strategy)
    net = Layers(device)
    loss = program(net)
    for _ in range(2):
        loss.backward(full=full)
    found = [p.grad_as_array() for p in net.pc.parameters_list()]
    return found + [x.gradient() for x in net.xs[:2] if full]


@pytest.mark.parametrize("full", [False, True], ids=["parameters", "full"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_same_as_on_the_cpu(program: Program, full: bool, fuses: bool) -> None:
    all_close(gradients(program, "GPU:0", 1, full), gradients(program, "CPU", 0, full), rtol=2e-4, atol=2e-5)


# In the last two, copies are made again while additions to gradients are pending, or right before backward reads them.
@pytest.mark.parametrize("seed", [*range(20), 1581, 2310])
def test_random_programs(seed: int, fuses: bool) -> None:
    """Values that are asked for between random nodes, by the program of tests/execute/test_recompute.py."""
    set_default_device(0)
    _, expected, expected_later = random_program(seed, plainly)
    set_default_device(1)
    for call in (plainly, dy.checkpoint):
        _, found, later = random_program(seed, call)
        for x, y in zip([*found, *later], [*expected, *expected_later]):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4 * float(np.abs(y).max()) + 1e-6)


def test_a_fused_run_waits_for_users_of_its_parts(fuses: bool) -> None:
    all_close(gradients(parts_of_runs, "GPU:0", 1), gradients(parts_of_runs, "CPU", 0), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_same_from_run_to_run(program: Program) -> None:
    all_equal(gradients(program, "GPU:0", 1), gradients(program, "GPU:0", 1))


@pytest.mark.skipif("EMU_IDLE" in os.environ, reason="nothing is computed")
def test_a_pass_begins_with_one_launch_of_copies() -> None:
    """The bias of an affine map is copied with the parts of a concatenation."""
    set_default_device(1)
    dy.renew_cg(autobatching=1)
    net = Layers("GPU:0")
    wide = net.parameter(3, 2 * DIM)
    bias = net.parameter(3)
    a, b = (asked(dy.tanh(x)) for x in net.xs[:2])
    desired = net.pc.parameters_list()[-2].as_array() @ np.concatenate([a.npvalue(), b.npvalue()]) + bias.as_array()
    start = engine.stats("gpu.0")
    y = dy.affine_transform([bias, wide, dy.concatenate([a, b])])
    np.testing.assert_allclose(y.npvalue(), desired, rtol=1e-5)
    found = engine.stats("gpu.0")
    assert found["launches"] - start["launches"] == 1
    assert found["products"] - start["products"] == 1
