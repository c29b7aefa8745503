"""Batches on a device that take fewer launches: cells, copies, additions that wait, nodes in the order of their use.

The values and all gradients must be those of the CPU, and the launches few.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Callable

import numpy as np
import pytest
from arrays import all_close, all_equal

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import driver
from dynet_cy.graph.expressions import set_default_device

pytestmark = pytest.mark.usefixtures("device", "on_the_cpu_again")

H = 5
LENGTHS = (3, 6, 1, 5, 6, 2)


# A loss, and the nodes whose values and gradients are compared.
Made = tuple[dy.Expression, list[dy.Expression]]


class Net:
    """Parameters of LSTM cells with the same values on each device, and helpers that make nodes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.rng = np.random.default_rng(7)
        self.pc = dy.ParameterCollection()
        self.cells = [[self.parameter(4 * H, n) for n in (H, H)] + [self.parameter(4 * H)] for _ in range(2)]
        self.start = [self.parameter(H), self.parameter(H)]
        self.out = self.parameter(2, 2 * H)

    def parameter(self, *shape: int) -> dy.Parameters:
        return self.pc.parameters_from_numpy(self.numbers(*shape), device=self.device)

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-0.7, 0.7, shape).astype(np.float32)

    def input(self, batch: int = 1) -> dy.Expression:
        return dy.inputTensor(self.numbers(H, batch), batched=True, device=self.device)

    def step(self, cell: int, x: dy.Expression, h: dy.Expression, c: dy.Expression) -> list[dy.Expression]:
        """Gates, state and output."""
        Wx, Wh, b = self.cells[cell]
        gates = dy.vanilla_lstm_gates(x, h, Wx, Wh, b)
        state = dy.vanilla_lstm_c(c, gates)
        return [gates, state, dy.vanilla_lstm_h(state, gates)]

    def zeros(self) -> tuple[dy.Expression, dy.Expression]:
        return self.zero(), self.zero()

    def zero(self, batch: int = 1) -> dy.Expression:
        return dy.inputTensor(np.zeros((H, batch)), batched=True, device=self.device)

    def chain(
        self, cell: int, xs: Sequence[dy.Expression], start: tuple[dy.Expression, dy.Expression] | None = None
    ) -> list[list[dy.Expression]]:
        h, c = start or self.zeros()
        steps = []
        for x in xs:
            steps.append(self.step(cell, x, h, c))
            _, c, h = steps[-1]
        return steps


def loss_of(ends: Sequence[dy.Expression]) -> dy.Expression:
    return dy.esum([dy.squared_norm(x) for x in ends])


def both_directions(net: Net) -> Made:
    """Two directions over sentences of different lengths, side by side in each position."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for length in LENGTHS:
        xs = [net.input() for _ in range(length)]
        forward = net.chain(0, xs)
        back = net.chain(1, xs[::-1])[::-1]
        for there, here in zip(forward, back):
            ends.append(dy.logistic(net.out * dy.concatenate([there[2], here[2]])))
        seen += [x for step in forward + back for x in step] + xs
    return loss_of(ends), seen + ends


def learned_start(net: Net) -> Made:
    """All chains begin with the same two parameters."""
    h, c = (dy.parameter(p) for p in net.start)
    steps = [net.chain(0, [net.input() for _ in range(n)], (h, c)) for n in LENGTHS]
    return loss_of([s[-1][2] for s in steps]), [x for chain in steps for step in chain for x in step]


def shared_state(net: Net) -> Made:
    """Several cells continue from the same state, which is a value, as in beam search."""
    c = dy.tanh(net.input())
    h = dy.tanh(net.input())
    steps = [net.step(i % 2, net.input(), h, c) for i in range(6)]
    more = [net.step(0, net.input(), step[2], step[1]) for step in steps for _ in range(2)]
    return loss_of([s[2] for s in more]), [c, h] + [x for s in steps + more for x in s]


def states_only(net: Net) -> Made:
    """The loss depends on states, on outputs or on gates only, and other nodes use the gates."""
    steps = [net.chain(0, [net.input() for _ in range(n)]) for n in LENGTHS]
    ends = [steps[0][-1][1], steps[1][-1][2], steps[2][0][0], dy.tanh(steps[3][2][0])]
    return loss_of(ends), [x for chain in steps for step in chain for x in step]


def minibatches(net: Net) -> Made:
    """Minibatches whose first state has batch size 1, and its gradient is a sum."""
    c, h = dy.tanh(net.input()), dy.tanh(net.input())
    steps = [net.chain(0, [net.input(3) for _ in range(n)], (h, c)) for n in (2, 3)]
    steps.append(net.chain(0, [net.input(2)], (net.zero(2), c)))
    ends = [dy.sum_batches(dy.squared_norm(s[-1][2])) for s in steps]
    return dy.esum(ends), [c, h] + [x for chain in steps for step in chain for x in step]


def concatenations(net: Net) -> Made:
    """Concatenations of concatenations, of parameters and of matrices, along both axes; reshaped values."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for i in range(4):
        a, b = dy.tanh(net.input()), dy.tanh(net.input())
        twice = dy.concatenate([a, b, a])
        nested = dy.concatenate([twice, dy.parameter(net.start[0]), b])
        matrix = dy.concatenate_cols([a, b, a + b] if i % 2 else [b, a])
        tall = dy.concatenate([matrix, matrix])
        flat = dy.reshape(tall, (tall.dim()[0][0] * tall.dim()[0][1],))
        ends += [dy.tanh(nested), dy.tanh(flat), net.out * dy.concatenate([a, b])]
        seen += [a, b, twice, nested, matrix, tall, flat]
    return loss_of(ends), seen


def affine_maps(net: Net) -> Made:
    """Affine maps of concatenations; their biases are parameters, values, copies themselves, or broadcast."""
    bias = dy.parameter(net.parameter(2))
    seen: list[dy.Expression] = []
    for i in range(3):
        a, b = dy.tanh(net.input()), dy.tanh(net.input())
        pair = dy.concatenate([a, b])
        own = net.out * pair
        copied = dy.concatenate([dy.pick(a, 0), dy.pick(b, i)])
        columns = dy.concatenate_cols([pair, pair])
        seen += [a, b, pair, own, copied]
        seen += [dy.affine_transform([x, net.out, pair]) for x in (bias, own, copied)]
        seen.append(dy.affine_transform([copied, net.out, columns]))
    return loss_of(seen[5:]), seen


def copies_used_twice(net: Net) -> Made:
    """Copies that another copy uses, which is needed late, and another batch, which is needed early."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for _ in range(3):
        x = dy.tanh(net.input())
        pair = dy.concatenate([x, x])
        four = dy.concatenate([pair, pair])
        early = dy.tanh(dy.logistic(net.out * pair))
        late = dy.concatenate([early, four])
        seen += [x, pair, four, early, late]
        ends += [early, dy.tanh(late), dy.concatenate([x, late])]
    return loss_of(ends), seen


def attention(net: Net) -> Made:
    """Attention over sentences of different lengths: a call for each node.  Two queries share a memory."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for length in LENGTHS:
        memory = dy.tanh(dy.inputTensor(net.numbers(H, length), device=net.device))
        seen.append(memory)
        for _ in range(2):
            query = dy.tanh(net.input())
            keys = dy.colwise_add(memory, query)
            weights = dy.softmax(dy.transpose(keys) * query)
            found = memory * weights
            logs = dy.log_softmax(dy.cmult(weights, dy.transpose(dy.transpose(weights))))
            ends += [found, logs, dy.pick(weights, 0), keys]
            seen += [query, keys, weights, found, logs]
    return loss_of(ends), seen


def decoders(net: Net) -> Made:
    """LSTMs whose inputs are a vector and what they find in a sentence, for sentences of different lengths."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    W, Wh, b = net.parameter(4 * H, 2 * H), net.parameter(4 * H, H), net.parameter(4 * H)
    for length in LENGTHS:
        memory = dy.tanh(dy.inputTensor(net.numbers(H, length), device=net.device))
        h, c = net.zeros()
        for _ in range(4):
            weights = dy.softmax(dy.transpose(memory) * h)
            context = memory * weights
            x = dy.concatenate([dy.tanh(net.input()), context])
            gates = dy.vanilla_lstm_gates(x, h, W, Wh, b)
            c = dy.vanilla_lstm_c(c, gates)
            h = dy.vanilla_lstm_h(c, gates)
            seen += [memory, weights, context, x, gates, c, h]
        ends.append(h)
    return loss_of(ends), seen


def broadcast_biases(net: Net) -> Made:
    """Biases of matrices: vectors, matrices, inputs; one that is a matrix of a product too."""
    b, v = dy.parameter(net.start[0]), dy.parameter(net.parameter(2))
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for columns in (1, 3, 3, 2):
        x = dy.inputTensor(net.numbers(2 * H, columns), device=net.device)
        y = dy.affine_transform([v, net.out, x])
        row = dy.inputTensor(net.numbers(1, columns), device=net.device)
        z = dy.affine_transform([b, b, row])
        w = dy.affine_transform([y, net.out, x])
        seen += [y, z, w]
        ends += [dy.tanh(y), dy.tanh(dy.affine_transform([net.input(), b, dy.sum_elems(y)])), dy.tanh(z), w]
    return loss_of(ends), seen


Program = Callable[[Net], Made]
PROGRAMS: list[Program] = [
    both_directions,
    learned_start,
    shared_state,
    states_only,
    minibatches,
    concatenations,
    affine_maps,
    copies_used_twice,
    attention,
    decoders,
    broadcast_biases,
]


def results(program: Program, device: str, strategy: int, **options: bool) -> list[Any]:
    """The loss, all values and gradients of nodes, and the gradients of parameters after two passes."""
    dy.renew_cg(autobatching=strategy, **options)
    net = Net(device)
    loss, seen = program(net)
    found: list[Any] = [loss.npvalue()]
    if not options.get("forward_only"):
        for full in (False, True):
            loss.backward(full=full)
        found += [x.gradient() for x in seen]
        found += [p.grad_as_array() for p in net.pc.parameters_list()]
    return found + [x.npvalue() for x in seen if not options.get("forward_only")]


def assert_close(found: list[Any], desired: list[Any]) -> None:
    all_close(found, desired, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("strategy", [0, 1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_same_as_on_the_cpu(program: Program, strategy: int) -> None:
    assert_close(results(program, "GPU:0", strategy), results(program, "CPU", 0))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_forward_only(program: Program) -> None:
    assert_close(results(program, "GPU:0", 1, forward_only=True), results(program, "CPU", 0)[:1])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_same_from_run_to_run(program: Program) -> None:
    all_equal(results(program, "GPU:0", 1), results(program, "GPU:0", 1))


@pytest.mark.parametrize("strategy", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_plans_from_the_cache(program: Program, strategy: int) -> None:
    """The order of nodes, cells and copies are kept with a plan: same numbers, same launches; and none of it is used
    while numbers are checked."""
    set_default_device(1)  # graphs on one device
    found, launches = [], []
    with dy.ComputationGraph(), engine.tuned({"gpu.graphs.most_graphs": 0}):
        engine.stats("schedule.plan", reset=True)
        for i in range(6):
            start = engine.stats("gpu.0")["launches"]
            with dy.detect_anomaly() if i == 4 else nullcontext():
                found.append(results(program, "GPU:0", strategy))
            launches.append(engine.stats("gpu.0")["launches"] - start)
    for other in found[1:4] + found[5:]:
        all_equal(found[0], other)
    set_default_device(0)
    for i in (0, 4):
        assert_close(found[i], results(program, "CPU", 0))
    assert len({*launches[:4], launches[5]}) == 1
    assert launches[4] > launches[0]
    assert engine.stats("schedule.plan")["reused"] >= 3


@pytest.mark.parametrize("checked", ["forward", "backward"])
def test_while_numbers_are_checked(checked: str) -> None:
    """Steps run one by one while numbers are checked, also backward after a forward pass with cells."""
    desired = results(both_directions, "CPU", 0)
    dy.renew_cg(autobatching=1)
    net = Net("GPU:0")
    loss, seen = both_directions(net)
    with dy.detect_anomaly() if checked == "forward" else nullcontext():
        assert loss.value() == pytest.approx(desired[0].item(), rel=1e-4)
    with dy.detect_anomaly() if checked == "backward" else nullcontext():
        loss.backward()
        loss.backward(full=True)
    assert_close([x.gradient() for x in seen], desired[1 : 1 + len(seen)])


def test_backward_begins_within_a_cell() -> None:
    """The node whose gradient is requested is a state, which the batch of outputs after it has computed."""
    found = []
    for device, strategy in (("GPU:0", 1), ("CPU", 0)):
        dy.renew_cg(autobatching=strategy)
        pc = dy.ParameterCollection()
        rng = np.random.default_rng(7)
        arrays: list[Any] = [rng.uniform(-0.7, 0.7, shape).astype(np.float32) for shape in ((4, 1), (4, 1), (4,))]
        Wx, Wh, b = cell = [pc.parameters_from_numpy(a, device=device) for a in arrays]
        steps: list[list[dy.Expression]] = []
        for _ in range(4):
            h: dy.Expression = dy.inputTensor(rng.uniform(-1, 1, 1), device=device)
            c: dy.Expression = dy.inputTensor(rng.uniform(-1, 1, 1), device=device)
            for _ in range(3):
                gates = dy.vanilla_lstm_gates(dy.inputTensor([0.3], device=device), h, Wx, Wh, b)
                c = dy.vanilla_lstm_c(c, gates)
                h = dy.vanilla_lstm_h(c, gates)
                steps.append([gates, c, h])
        dy.forward([step[2] for step in steps])
        steps[5][1].backward(full=True)
        found.append([x.gradient() for step in steps[3:6] for x in step[:2]] + [p.grad_as_array() for p in cell])
    assert_close(*found)


def counted(program: Program) -> dict[str, int]:
    """What a forward and a backward pass launch, if the program refers to nothing but the loss."""
    with engine.tuned({"gpu.graphs.most_graphs": 0}):
        results(program, "GPU:0", 1)
        dy.renew_cg(autobatching=1)
        net = Net("GPU:0")
        loss = program(net)[0]
        engine.stats("gpu.0", reset=True)
        loss.forward()
        loss.backward()
        return engine.stats("gpu.0")


def chains(net: Net) -> Made:
    steps = [net.chain(0, [net.input() for _ in range(n)]) for n in LENGTHS]
    return loss_of([chain[-1][2] for chain in steps]), []


def test_launches_of_chains() -> None:
    """A step of the longest chain is a product for x, and a cell with the product for h forward, and one back."""
    steps = max(LENGTHS)
    found = counted(chains)
    assert found["products"] <= steps + 5
    assert found["launches"] <= 2 * steps + 24


def test_products_in_the_launch_of_cells() -> None:
    """They replace products, not launches, and the numbers are those of separate products."""
    together, numbers = counted(chains), results(chains, "GPU:0", 1)
    with engine.tuned({"gpu.steps.most_multiplied": 0}):
        apart = counted(chains)
        assert_close(numbers, results(chains, "GPU:0", 1))
    assert apart["launches"] == together["launches"]
    assert apart["products"] >= together["products"] + 2 * max(LENGTHS) - 3


def test_launches_of_both_directions() -> None:
    """The outputs of each step are concatenated: that takes no launch between the steps, on the way back either."""
    set_default_device(1)

    def tagger(net: Net) -> Made:
        pc = dy.ParameterCollection()
        reader = dy.BiRNNBuilder(2, 4, 8, pc, dy.LSTMBuilder)
        table, W = pc.add_lookup_parameters((5, 4)), pc.add_parameters((3, 8))
        sentences = [[table[i % 5] for i in range(n)] for n in (9, 12, 3, 7, 12, 5, 10, 2)]
        return dy.esum([dy.pickneglogsoftmax(W * x, 0) for s in sentences for x in reader.transduce(s)]), []

    found = counted(tagger)
    assert found["launches"] <= 85
    assert found["products"] <= 25


def test_launches_of_one_sentence() -> None:
    """A layer is one product for both directions, which reads its arguments in place, and a launch for each step."""
    set_default_device(1)
    length = 9

    def tagger(net: Net) -> Made:
        pc = dy.ParameterCollection()
        reader = dy.BiRNNBuilder(2, 4, 16, pc, dy.LSTMBuilder)  # 16: so many floats are a multiple of the alignment
        table, W, b = pc.add_lookup_parameters((5, 4)), pc.add_parameters((3, 16)), pc.add_parameters(3)
        states = reader.transduce([table[i % 5] for i in range(length)])
        return dy.concatenate_cols([dy.affine_transform([b, W, x]) for x in states]), []

    dy.renew_cg(autobatching=1)
    scores, _ = tagger(Net("GPU:0"))
    start = engine.stats("gpu.0")
    scores.forward()
    found = engine.stats("gpu.0")
    assert found["launches"] - start["launches"] <= 2 * length + 5
    assert found["products"] - start["products"] <= 3


def test_launches_of_attention() -> None:
    """A batch of nodes of different sizes is one launch, or one for each query of the same memory."""
    found = counted(attention)
    assert found["products"] <= 6
    assert found["launches"] <= 40


def test_launches_of_decoders() -> None:
    """A step makes its input in the launch of the products that find its second part, and divides the gradient of the
    input in that of the products that need the second part of it."""
    set_default_device(1)
    found = counted(decoders)
    assert found["launches"] + found["products"] <= 58


def test_launches_of_concatenations() -> None:
    """All concatenations of one level are one launch."""

    def parts(net: Net) -> Made:
        xs = [dy.tanh(net.input()) for _ in range(8)]
        ends = [dy.concatenate(xs[i : i + n]) for n in (2, 3, 4) for i in range(4)]
        return loss_of(ends), []

    found = counted(parts)
    assert found["products"] == 0
    assert found["launches"] <= 22


@pytest.mark.skipif("EMU_IDLE" in os.environ, reason="nothing is computed")
def test_chains_that_end_come_last() -> None:
    """Nodes that a later batch uses come first in a batch, so it reads them in place: no copies between steps."""
    dy.renew_cg(autobatching=1)
    net = Net("GPU:0")
    loss, _ = chains(net)
    driver.synchronize(0)
    before = engine.stats("gpu.0")
    loss.forward()
    found = engine.stats("gpu.0")
    assert found["launches"] - before["launches"] <= max(LENGTHS) + 10
