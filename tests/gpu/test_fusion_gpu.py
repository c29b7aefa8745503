"""Elementwise batches that follow each other run as one launch; the numbers are those of one batch after another.

Values and gradients are compared with those of the CPU, and, to the last bit, with those of separate launches, where
no gradient has more than two contributions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import numpy as np
import pytest
from arrays import all_close, all_equal

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import compiler, driver, fusion
from dynet_cy.gpu.fused_source import FusedNode, source_of
from dynet_cy.graph.expressions import set_default_device

pytestmark = pytest.mark.usefixtures("device", "on_the_cpu_again")

H = 6
COUNT = 5


@pytest.fixture(autouse=True)
def compiled_at_once() -> Iterator[None]:
    with engine.tuned({"gpu.fusion.most_kernels": 256, "gpu.fusion.least_saved": 0, "gpu.graphs.most_graphs": 0}):
        yield


class Net:
    """Parameters with the same values on each device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.rng = np.random.default_rng(3)
        self.pc = dy.ParameterCollection()
        self.W = self.parameter(5 * H, H)
        self.b = self.parameter(5 * H)

    def parameter(self, *shape: int) -> dy.Parameters:
        return self.pc.parameters_from_numpy(self.numbers(*shape), device=self.device)

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-0.8, 0.8, shape).astype(np.float32)

    def input(self, batch: int = 1) -> dy.Expression:
        return dy.inputTensor(self.numbers(H, batch), batched=True, device=self.device)

    def vector(self, batch: int = 1) -> dy.Expression:
        """A vector with a gradient."""
        return dy.pick_range(self.gates(batch), 0, H) if batch == 1 else self.short(batch)

    def gates(self, batch: int = 1) -> dy.Expression:
        return dy.affine_transform([self.b, self.W, self.input(batch)])

    def short(self, batch: int = 1) -> dy.Expression:
        return dy.affine_transform([self.small_b, self.small_W, self.input(batch)])

    @property
    def small_W(self) -> dy.Parameters:
        if not hasattr(self, "_small"):
            self._small = self.parameter(H, H), self.parameter(H)
        return self._small[0]

    @property
    def small_b(self) -> dy.Parameters:
        assert self.small_W is not None
        return self._small[1]


Made = tuple[dy.Expression, list[dy.Expression]]  # the loss, and the nodes whose values are compared


def loss_of(ends: list[dy.Expression]) -> dy.Expression:
    return dy.sum_batches(dy.esum([dy.squared_norm(x) for x in ends]))


def gate(gates: dy.Expression, k: int) -> dy.Expression:
    return dy.pick_range(gates, k * H, (k + 1) * H)


def cells(net: Net) -> Made:
    """Gates in DyNet's style: every part of the sums is used."""
    made = []
    for _ in range(COUNT):
        gates, left, right = net.gates(), net.short(), net.short()
        c = dy.cmult(dy.logistic(gate(gates, 0)), dy.tanh(gate(gates, 2)))
        c = c + dy.cmult(dy.logistic(gate(gates, 3)), left)
        c = c + dy.cmult(dy.logistic(gate(gates, 4)), right)
        made.append(dy.cmult(dy.logistic(gate(gates, 1)), dy.tanh(c)))
    return loss_of(made), made


def some_parts(net: Net) -> Made:
    """Parts of the sums that are not used get a gradient of zero."""
    made = []
    for _ in range(COUNT):
        gates = net.gates()
        made.append(dy.tanh(dy.cmult(gate(gates, 1), dy.logistic(gate(gates, 3)))))
    return loss_of(made), made


def overlapping_parts(net: Net) -> Made:
    """Backward runs batch by batch."""
    made = []
    for _ in range(COUNT):
        gates = net.gates()
        made.append(dy.tanh(dy.cmult(dy.pick_range(gates, 0, H), dy.pick_range(gates, 3, H + 3))))
    return loss_of(made), made


def shared_argument(net: Net) -> Made:
    """All instances add to the gradient of one vector."""
    shared = net.short()
    made = [dy.tanh(dy.cmult(dy.logistic(net.short()), shared)) for _ in range(COUNT)]
    return loss_of(made), made


def argument_twice(net: Net) -> Made:
    """An instance adds twice to the gradient of an argument, which others use too."""
    made, others = [], []
    for _ in range(COUNT):
        x = net.short()
        made.append(dy.cmult(dy.tanh(x), dy.logistic(x)))
        others.append(x)
    return loss_of(made + others), made


def constants(net: Net) -> Made:
    """Ops with constants, of which there are different ones in different batches."""
    made = [dy.elu(0.5 * dy.clip(net.short(), -0.3, 0.4) + 1.25, 0.75) * 2 for _ in range(COUNT)]
    return loss_of(made), made


def sums(net: Net) -> Made:
    made = []
    for _ in range(COUNT):
        x, y = net.short(), net.short()
        made.append(dy.tanh(dy.esum([dy.square(x), y, dy.cmult(x, y)])))
    return loss_of(made), made


def inputs(net: Net) -> Made:
    """Arguments without a gradient."""
    made = [dy.tanh(dy.cmult(net.input(), net.short()) - net.input()) for _ in range(COUNT)]
    return loss_of(made), made


def minibatches(net: Net) -> Made:
    made = [dy.cmult(dy.tanh(net.short(3)), dy.logistic(net.short(3))) for _ in range(COUNT)]
    return loss_of(made), made


def one_instance(net: Net) -> Made:
    made = [dy.tanh(dy.logistic(dy.square(net.short())))]
    return loss_of(made), made


def long_chains(net: Net) -> Made:
    """More batches than a run has."""
    made = []
    for _ in range(COUNT):
        x = net.short()
        for _ in range(40):
            x = dy.tanh(x + 0.1)
        made.append(x)
    return loss_of(made), made


def used_in_between(net: Net) -> Made:
    """Results within a run get a gradient from elsewhere too, in some instances."""
    made, others = [], []
    for i in range(COUNT):
        x = dy.tanh(net.short())
        made.append(dy.cmult(x, dy.logistic(x)))
        if i % 2:
            others.append(x)
    return loss_of(made + others), made + others


def different_instances(net: Net) -> Made:
    """No run: the instances differ."""
    made = []
    for i in range(COUNT):
        x = dy.tanh(net.short())
        made.append(dy.cmult(x, dy.logistic(x) if i % 2 else dy.logistic(net.short())))
    return loss_of(made), made


PROGRAMS = [
    cells, some_parts, overlapping_parts, shared_argument, argument_twice, constants, sums, inputs, minibatches,
    one_instance, long_chains, used_in_between, different_instances,
]  # fmt: skip
# With gradients of three or more contributions, whose order is another one.
OTHER_ORDER = {argument_twice, overlapping_parts, sums, used_in_between, shared_argument}

Program = Callable[[Net], Made]


def run(program: Program, device: str, full: bool = False, ask: bool = False) -> tuple[list[np.ndarray], int]:
    """Values and gradients, and the launches of forward and backward."""
    set_default_device(0 if device == "CPU" else 1)
    dy.renew_cg()
    net = Net(device)
    loss, made = program(net)
    if not ask:
        kept, made = [], []
    before = engine.stats("gpu.0")["launches"] if device != "CPU" else 0
    loss.forward()
    loss.backward(full=full)
    launches = engine.stats("gpu.0")["launches"] - before if device != "CPU" else 0
    kept = [loss.npvalue()] + [x.npvalue() for x in made] + [x.gradient() for x in made]
    return kept + [p.grad_as_array() for p in net.pc.parameters_list()], launches


def apart(program: Program, **how: bool) -> tuple[list[np.ndarray], int]:
    """The same on the device with a launch for each batch."""
    with engine.tuned({"gpu.fusion.most_kernels": 0}):
        return run(program, "GPU:0", **how)


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_numbers(program: Program, full: bool, ask: bool) -> None:
    desired, _ = run(program, "CPU", full=full, ask=ask)
    separate, _ = apart(program, full=full, ask=ask)
    actual, _ = run(program, "GPU:0", full=full, ask=ask)
    assert len(actual) == len(desired) == len(separate)
    for x, y, z in zip(actual, separate, desired):
        np.testing.assert_allclose(x, z, rtol=1e-5, atol=1e-6)
        if program in OTHER_ORDER:
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(x, y)
    assert not fusion.errors()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_from_run_to_run(program: Program) -> None:
    all_equal(run(program, "GPU:0")[0], run(program, "GPU:0")[0])


def products_only(net: Net) -> Made:
    made = [net.short() for _ in range(COUNT)]
    return loss_of(made), made


# A run is a launch forward and one backward.  `cells` has another product, so it copies more.
@pytest.mark.parametrize(("program", "more"), [(constants, 2), (one_instance, 2), (long_chains, 12), (cells, 8)])
def test_launches(program: Program, more: int) -> None:
    few = run(program, "GPU:0")[1]
    assert few <= run(products_only, "GPU:0")[1] + more
    assert few + 4 <= apart(program)[1]


def test_sizes_are_no_part_of_a_signature() -> None:
    def program(h: int) -> Program:
        def make(net: Net) -> Made:
            W = net.parameter(h, H)
            made = [dy.cmult(dy.tanh(x), dy.sin(x)) for x in (W * net.input() for _ in range(h))]
            return loss_of(made), made

        return make

    run(program(3), "GPU:0")
    known = len(fusion.describe())
    for h in (4, 17, 300):
        actual, _ = run(program(h), "GPU:0")
        all_close(actual, run(program(h), "CPU")[0], rtol=2e-5, atol=1e-6)
    assert len(fusion.describe()) == known


def test_a_kernel_is_compiled_when_it_would_have_saved_some_launches() -> None:
    def program(net: Net) -> Made:
        made = [dy.cos(dy.asinh(net.short())) for _ in range(COUNT)]
        return loss_of(made), made

    engine.tune("gpu.fusion.least_saved", 3)
    launches = [run(program, "GPU:0")[1] for _ in range(5)]
    assert launches[0] > launches[-1]
    mine = [x for x in fusion.describe() if "value_asinh" in x["source"] or "slope_asinh" in x["source"]]
    assert len(mine) == 2
    assert all(x["compiled"] and x["saved"] >= 3 for x in mine)


def test_the_number_of_kernels_is_limited() -> None:
    def program(net: Net) -> Made:
        made = [dy.atan(dy.sinh(net.short())) for _ in range(COUNT)]
        return loss_of(made), made

    engine.tune("gpu.fusion.most_kernels", 1)
    known = len(fusion.describe())
    assert known >= 1 or run(cells, "GPU:0")
    run(program, "GPU:0")
    assert len(fusion.describe()) == max(known, 1)
    with pytest.raises(ValueError, match="between 0 and 256, not 257"):
        engine.tune("gpu.fusion.most_kernels", 257)


def test_gradients_are_there_when_backward_runs_twice() -> None:
    def twice(device: str) -> list[np.ndarray]:
        set_default_device(0 if device == "CPU" else 1)
        dy.renew_cg()
        net = Net(device)
        loss, _ = cells(net)
        loss.forward()
        loss.backward()
        loss.backward(full=True)
        loss.backward()
        return [p.grad_as_array() for p in net.pc.parameters_list()]

    all_close(twice("GPU:0"), twice("CPU"), rtol=1e-5, atol=1e-6)


def test_plans_from_the_cache() -> None:
    """The order of nodes and the runs are kept with the plan."""
    results = [run(cells, "GPU:0") for _ in range(4)]
    with dy.ComputationGraph():
        for _ in range(4):
            dy.renew_cg()
            actual, launches = run(cells, "GPU:0")
            assert launches == results[0][1]
            all_equal(actual, results[0][0])


def test_sources() -> None:
    nodes = [FusedNode("unary", "tanh", (None,)), FusedNode("binary", "mul", (0, None))]
    forward, backward = source_of(nodes), source_of(nodes, [1])
    assert "place(table[2])[k] = v1;" in forward
    assert "d0 += d1 * slope_a_mul(v0, x1, v1);" in backward
    code = compiler.text_cubin(forward, "of a test", driver.architecture(0))
    assert code
    assert compiler.text_cubin(forward, "of a test", driver.architecture(0)) == code


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops run one after another, and why is told."""

    def refuse(*_: object) -> bytes:
        raise driver.GpuUnavailable("there is no nvcc")

    def program(net: Net) -> Made:
        made = [dy.expm1(dy.softsign(net.short())) for _ in range(COUNT)]
        return loss_of(made), made

    desired, _ = run(program, "CPU")
    monkeypatch.setattr(fusion, "text_cubin", refuse)
    fusion.forget_errors()
    actual, _ = run(program, "GPU:0")
    all_close(actual, desired, rtol=1e-5, atol=1e-6)
    assert fusion.errors() == ["there is no nvcc"]
    fusion.forget_errors()
    assert fusion.errors() == []
