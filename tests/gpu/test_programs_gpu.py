"""Programs on a device: the values and all gradients of the CPU, the same bits each time, few launches."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_programs as small
from arrays import all_close, all_equal
from small_programs import PROGRAMS, SAME_BITS, H, Made, Net, Program, asked, loss_of

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import compiler, driver, fusion
from dynet_cy.gpu.fused_source import FusedNode, source_of
from dynet_cy.graph.expressions import set_default_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "execute"))

from test_recompute import plainly, random_program

pytestmark = pytest.mark.usefixtures("device", "on_the_cpu_again")

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)


def fusing(on: bool) -> AbstractContextManager[None]:
    """Whether kernels of several ops are compiled at once."""
    return engine.tuned({"gpu.fusion.most_kernels": 256 if on else 0, "gpu.fusion.least_saved": 0})


@pytest.fixture
def fuses() -> Iterator[None]:
    with fusing(True), engine.tuned({"gpu.graphs.most_graphs": 0}):
        yield


def begin(program: Program, device: str, strategy: int, **options: bool) -> tuple[Net, dy.Expression, list]:
    set_default_device(int(device != "CPU"))  # graphs on one device
    dy.renew_cg(autobatching=strategy, **options)
    net = Net(device)
    return net, *program(net)


def results(program: Program, device: str, strategy: int, full: bool = True, held: bool = True) -> list[Any]:
    """The loss, the gradients of parameters after two passes, and those and the values of nodes if they are held."""
    net, loss, seen = begin(program, device, strategy)
    if not held:
        seen = []
    found: list[Any] = [loss.npvalue()]
    for whole in (False, full):
        loss.backward(full=whole)
    found += [p.grad_as_array() for p in net.pc.parameters_list()]
    return found + [x.npvalue() for x in seen] + [x.gradient() for x in seen if full]


def assert_close(found: list[Any], desired: list[Any]) -> None:
    all_close(found, desired, rtol=2e-4, atol=2e-5)


@each_program
@pytest.mark.parametrize("strategy", [0, 1, 2])
def test_the_same_as_on_the_cpu(program: Program, strategy: int) -> None:
    """With fused runs and without, and the same bits from both where nothing else is added up."""
    for full, held in itertools.product((False, True), repeat=2) if strategy == 1 else [(True, True)]:
        desired = results(program, "CPU", 0, full, held)
        with fusing(False):
            apart = results(program, "GPU:0", strategy, full, held)
        assert_close(apart, desired)
        if strategy == 1:
            with fusing(True):
                fused = results(program, "GPU:0", strategy, full, held)
            assert_close(fused, desired)
            if program in SAME_BITS:
                all_equal(fused, apart)
    assert not fusion.errors()


@pytest.mark.parametrize("strategy", [1, 2])
@each_program
def test_plans_from_the_cache(program: Program, strategy: int) -> None:
    """The order of nodes, cells, copies and runs are kept with a plan: same bits, same launches; and none of it is used
    while numbers are checked."""
    found, launches = [], []
    with dy.ComputationGraph(), engine.tuned({"gpu.graphs.most_graphs": 0}), fusing(True):
        engine.stats("schedule.plan", reset=True)
        for i in range(6):
            start = engine.stats("gpu.0")["launches"]
            with dy.detect_anomaly() if i == 4 else nullcontext():
                found.append(results(program, "GPU:0", strategy))
            launches.append(engine.stats("gpu.0")["launches"] - start)
    for other in found[1:4] + found[5:]:
        all_equal(found[0], other)
    assert_close(found[4], results(program, "CPU", 0))
    assert len({*launches[:4], launches[5]}) == 1
    assert launches[4] >= launches[0]
    unkept = program in (small.one_instance, small.parts_of_runs)  # small graphs
    assert engine.stats("schedule.plan")["reused"] >= (0 if unkept else 3)


@each_program
def test_forward_only_and_training_in_turns(program: Program) -> None:
    """Both have plans of their own forms; values of a forward-only graph are released."""
    desired = results(program, "CPU", 0)[0]
    with dy.ComputationGraph():
        for options in ({"forward_only": True}, {}, {"forward_only": True}):
            np.testing.assert_allclose(begin(program, "GPU:0", 1, **options)[1].npvalue(), desired, rtol=1e-4)


# In the last two, copies are made again while additions to gradients are pending, or right before backward reads them.
@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("seed", [*range(20), 1581, 2310])
def test_random_programs(seed: int, fused: bool) -> None:
    """Values that are asked for between random nodes, by the program of tests/execute/test_recompute.py."""
    set_default_device(0)
    _, expected, expected_later = random_program(seed, plainly)
    set_default_device(1)
    for call in (plainly, dy.checkpoint):
        with fusing(fused):
            _, found, later = random_program(seed, call)
        for x, y in zip([*found, *later], [*expected, *expected_later]):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4 * float(np.abs(y).max()) + 1e-6)


@pytest.mark.parametrize("program", [small.both_directions, small.transposed_scores])
@pytest.mark.parametrize("checked", ["forward", "backward"])
def test_while_numbers_are_checked(program: Program, checked: str) -> None:
    """Steps run one by one while numbers are checked, also backward after a forward pass with cells or with views."""
    net, loss, seen = begin(program, "GPU:0", 1)
    with dy.detect_anomaly() if checked == "forward" else nullcontext():
        found = [loss.npvalue()]
    with dy.detect_anomaly() if checked == "backward" else nullcontext():
        loss.backward()
        loss.backward(full=True)
    found += [p.grad_as_array() for p in net.pc.parameters_list()]
    assert_close([*found, *(x.npvalue() for x in seen), *(x.gradient() for x in seen)], results(program, "CPU", 0))


def test_backward_begins_within_a_cell() -> None:
    """The node whose gradient is requested is a state, which the batch of outputs after it has computed."""
    found = []
    for device, strategy in (("GPU:0", 1), ("CPU", 0)):
        dy.renew_cg(autobatching=strategy)
        net = Net(device, h=1)
        steps = [step for _ in range(4) for step in net.chain(0, net.xs[:3], (net.input(), net.input()))]
        dy.forward([step[2] for step in steps])
        steps[5][1].backward(full=True)
        found.append(
            [x.gradient() for step in steps[3:6] for x in step[:2]] + [p.grad_as_array() for p in net.cells[0]]
        )
    assert_close(*found)


# ---- launches ------------------------------------------------------------------------


def counted(program: Program) -> dict[str, int]:
    """What a forward and a backward pass launch, if the program refers to nothing but the loss."""
    with engine.tuned({"gpu.graphs.most_graphs": 0}):
        results(program, "GPU:0", 1)
        loss = begin(program, "GPU:0", 1)[1]
        before = engine.stats("gpu.0")
        loss.forward()
        loss.backward()
        found = engine.stats("gpu.0")
    return {key: found[key] - before[key] for key in found}


def tagger(net: Net) -> Made:
    """The outputs of each step are concatenated: that takes no launch between the steps, on the way back either."""
    pc = dy.ParameterCollection()
    reader = dy.BiRNNBuilder(2, 4, 8, pc, dy.LSTMBuilder)
    table, W = pc.add_lookup_parameters((5, 4)), pc.add_parameters((3, 8))
    sentences = [[table[i % 5] for i in range(n)] for n in (9, 12, 3, 7, 12, 5, 10, 2)]
    return dy.esum([dy.pickneglogsoftmax(W * x, 0) for s in sentences for x in reader.transduce(s)]), []


def joined(net: Net) -> Made:
    """All concatenations of one level are one launch."""
    xs = [dy.tanh(net.input()) for _ in range(8)]
    return loss_of([dy.concatenate(xs[i : i + n]) for n in (2, 3, 4) for i in range(4)]), []


STEPS = max(small.LENGTHS)
# The most launches with products, and products.
FEW = {
    # A step of the longest chain is a product for x, and a cell with the product for h forward, and one back.
    small.chains: (3 * STEPS + 29, STEPS + 5),
    tagger: (110, 25),
    # A batch of nodes of different sizes is one launch, or one for each query of the same memory.
    small.attention: (46, 6),
    # A step makes its input in the launch of the products that find its second part, and divides the gradient of the
    # input in that of the products that need the second part of it.
    small.decoders: (60, 12),
    joined: (22, 0),
}


@pytest.mark.parametrize("program", FEW, ids=lambda p: p.__name__)
def test_few_launches(program: Program) -> None:
    found = counted(program)
    together, products = FEW[program]
    assert found["products"] <= products
    assert found["launches"] + found["products"] <= together


def test_products_in_the_launch_of_cells() -> None:
    """They replace products, not launches, and the numbers are those of separate products."""
    together, numbers = counted(small.chains), results(small.chains, "GPU:0", 1)
    with engine.tuned({"gpu.steps.most_multiplied": 0}):
        apart = counted(small.chains)
        assert_close(numbers, results(small.chains, "GPU:0", 1))
    assert apart["launches"] == together["launches"]
    assert apart["products"] >= together["products"] + 2 * STEPS - 3


def test_launches_of_one_sentence() -> None:
    """A layer is one product for both directions, which reads its arguments in place, and a launch for each step."""
    set_default_device(1)
    length = 9
    dy.renew_cg(autobatching=1)
    pc = dy.ParameterCollection()
    reader = dy.BiRNNBuilder(2, 4, 16, pc, dy.LSTMBuilder)  # 16: so many floats are a multiple of the alignment
    table, W, b = pc.add_lookup_parameters((5, 4)), pc.add_parameters((3, 16)), pc.add_parameters(3)
    states = reader.transduce([table[i % 5] for i in range(length)])
    scores = dy.concatenate_cols([dy.affine_transform([b, W, x]) for x in states])
    start = engine.stats("gpu.0")
    scores.forward()
    found = engine.stats("gpu.0")
    assert found["launches"] - start["launches"] <= 2 * length + 5
    assert found["products"] - start["products"] <= 3


@pytest.mark.skipif("EMU_IDLE" in os.environ, reason="nothing is computed")
def test_chains_that_end_come_last() -> None:
    """Nodes that a later batch uses come first in a batch, so it reads them in place: no copies between steps."""
    _, loss, _ = begin(small.chains, "GPU:0", 1)
    driver.synchronize(0)
    before = engine.stats("gpu.0")
    loss.forward()
    assert engine.stats("gpu.0")["launches"] - before["launches"] <= STEPS + 10


@pytest.mark.skipif("EMU_IDLE" in os.environ, reason="nothing is computed")
def test_a_pass_begins_with_one_launch_of_copies() -> None:
    """The bias of an affine map is copied with the parts of a concatenation."""
    net, *_ = begin(small.chains, "GPU:0", 1)
    wide, bias = net.parameter(3, 2 * H), net.parameter(3)
    a, b = (asked(dy.tanh(x)) for x in net.xs[:2])
    desired = wide.as_array() @ np.concatenate([a.npvalue(), b.npvalue()]) + bias.as_array()
    start = engine.stats("gpu.0")
    y = dy.affine_transform([bias, wide, dy.concatenate([a, b])])
    np.testing.assert_allclose(y.npvalue(), desired, rtol=1e-5)
    found = engine.stats("gpu.0")
    assert found["launches"] - start["launches"] == found["products"] - start["products"] == 1


def test_a_reshaped_value_takes_no_launch() -> None:
    launches = []
    for reshapes in (False, True):

        def program(net: Net, reshapes: bool = reshapes) -> Made:
            xs = [dy.tanh(net.tensor(4, 3)) for _ in range(5)]
            return loss_of([dy.exp(dy.reshape(x, (12,)) if reshapes else x) for x in xs]), []

        launches.append(counted(program)["launches"])
    assert launches[1] == launches[0]


# ---- fused runs --------------------------------------------------------------------------


def products_only(net: Net) -> Made:
    made = [net.affine() for _ in range(small.COUNT)]
    return loss_of(made), made


# A run is a launch forward and one backward.  `small.gated` has another product, so it copies more.
@pytest.mark.usefixtures("fuses")
@pytest.mark.parametrize(
    ("program", "more"), [(small.constants, 2), (small.one_instance, 2), (small.long_chains, 12), (small.gated, 8)]
)
def test_a_run_is_a_launch(program: Program, more: int) -> None:
    few = counted(program)["launches"]
    assert few <= counted(products_only)["launches"] + more
    with fusing(False):
        assert few + 4 <= counted(program)["launches"]


def unary(*names: str) -> Program:
    """Two functions that no other program applies, one after the other."""

    def program(net: Net) -> Made:
        made = [getattr(dy, names[0])(getattr(dy, names[1])(net.affine())) for _ in range(small.COUNT)]
        return loss_of(made), made

    return program


@pytest.mark.usefixtures("fuses")
def test_sizes_are_no_part_of_a_signature() -> None:
    def program(h: int) -> Program:
        def make(net: Net) -> Made:
            W = net.parameter(h, H)
            made = [dy.cmult(dy.tanh(x), dy.sin(x)) for x in (W * net.input() for _ in range(h))]
            return loss_of(made), made

        return make

    results(program(3), "GPU:0", 1)
    known = len(fusion.describe())
    for h in (4, 17, 300):
        assert_close(results(program(h), "GPU:0", 1), results(program(h), "CPU", 1))
    assert len(fusion.describe()) == known


@pytest.mark.usefixtures("fuses")
def test_a_kernel_is_compiled_when_it_would_have_saved_some_launches() -> None:
    engine.tune("gpu.fusion.least_saved", 3)
    launches = []
    for _ in range(5):
        before = engine.stats("gpu.0")["launches"]
        results(unary("cos", "asinh"), "GPU:0", 1)
        launches.append(engine.stats("gpu.0")["launches"] - before)
    assert launches[0] > launches[-1]
    mine = [x for x in fusion.describe() if "value_asinh" in x["source"] or "slope_asinh" in x["source"]]
    assert len(mine) == 2
    assert all(x["compiled"] and x["saved"] >= 3 for x in mine)


@pytest.mark.usefixtures("fuses")
def test_the_number_of_kernels_is_limited() -> None:
    engine.tune("gpu.fusion.most_kernels", 1)
    known = len(fusion.describe())
    assert known >= 1 or results(small.gated, "GPU:0", 1)
    results(unary("atan", "sinh"), "GPU:0", 1)
    assert len(fusion.describe()) == max(known, 1)
    with pytest.raises(ValueError, match="between 0 and 256, not 257"):
        engine.tune("gpu.fusion.most_kernels", 257)


def test_sources() -> None:
    nodes = [FusedNode("unary", "tanh", (None,)), FusedNode("binary", "mul", (0, None))]
    forward, backward = source_of(nodes), source_of(nodes, [1])
    assert "place(table[2])[k] = v1;" in forward
    assert "d0 += d1 * slope_a_mul(v0, x1, v1);" in backward
    code = compiler.text_cubin(forward, "of a test", driver.architecture(0))
    assert code
    assert compiler.text_cubin(forward, "of a test", driver.architecture(0)) == code


@pytest.mark.usefixtures("fuses")
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops run one after another, and why is told."""

    def refuse(*_: object) -> bytes:
        raise driver.GpuUnavailable("there is no nvcc")

    monkeypatch.setattr(fusion, "text_cubin", refuse)
    fusion.forget_errors()
    program = unary("expm1", "softsign")
    assert_close(results(program, "GPU:0", 1), results(program, "CPU", 0))
    assert fusion.errors() == ["there is no nvcc"]
    fusion.forget_errors()
    assert fusion.errors() == []
