"""Elementwise batches that run in pieces and tiles, and results that are views of their arguments."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import all_equal
from gate_programs import N, Program

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes


def counts(of: str) -> tuple[int, ...]:
    """Batches that ran in pieces and their tiles, or views and those of them that were copied."""
    return tuple(engine.stats(f"execute.walk.{of}").values())


@pytest.fixture(autouse=True)
def counting():
    """Reset the counts, and end the graph after the test."""
    engine.stats("execute.walk", reset=True)
    yield
    dy.renew_cg()


@pytest.mark.parametrize("overlapping", [False, True], ids=["apart", "overlapping"])
@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradients_of_all_nodes(strategy: int, seed: int, overlapping: bool) -> None:
    """Also of nodes in the middle of chains, with new and cached plans."""
    with dy.ComputationGraph(autobatching=strategy):
        for same_shape in (True, False):
            for _ in range(3):
                dy.renew_cg()
                program = Program(seed, 12, overlapping=overlapping, same_shape=same_shape)
                program.loss.backward(full=True)
                program.check()


def gates_of(width: int, cells: int) -> list:
    """Cells of two gates in DyNet's style."""
    found = []
    for k in range(cells):
        both = dy.tanh(dy.inputVector(np.linspace(-1, 1 + k, 2 * width)))
        i = dy.logistic(dy.pick_range(both, 0, width))
        found.append(dy.cmult(i, dy.tanh(dy.pick_range(both, width, 2 * width))))
    return found


def test_short_nodes_run_as_one_call() -> None:
    dy.renew_cg(autobatching=1)
    dy.esum(gates_of(8, 20)).forward()
    assert counts("pieces") == (0, 0)
    assert counts("views") == (0, 0)


@pytest.fixture
def single_ops():
    """Run gates as single ops."""
    with engine.tuned({"schedule.rewrite.gates.on": 0}):
        yield


def test_ranges_are_views(single_ops) -> None:
    dy.renew_cg(autobatching=1)
    dy.esum(gates_of(64, 20)).forward()
    assert counts("views") == (40, 0)
    # Three together; and the gates too, unless their inputs happen to be adjacent.
    assert counts("pieces") in ((4, 2), (3, 1))


def test_batches_run_together_in_tiles(single_ops) -> None:
    """Three batches of 160 KiB are one run of several tiles, and each number is computed once."""
    dy.renew_cg(autobatching=1)
    cells = gates_of(1024, 40)
    loss = dy.esum([dy.sum_elems(c) for c in cells])
    loss.backward(full=True)
    batches, tiles = counts("pieces")
    assert batches in (3, 4)  # the gates too, unless their inputs happen to be adjacent
    assert batches <= tiles <= 12
    for k, cell in enumerate(cells):
        both = np.tanh(np.linspace(-1, 1 + k, 2048))
        np.testing.assert_allclose(cell.npvalue(), np.tanh(both[1024:]) / (1 + np.exp(-both[:1024])), rtol=1e-5)
        np.testing.assert_array_equal(cell.gradient(), 1)


def test_kept_plans_do_the_same_to_the_last_bit() -> None:
    """Otherwise a program resumed from a checkpoint would give other numbers than an uninterrupted one."""
    with dy.ComputationGraph(autobatching=1):
        found = []
        for _ in range(4):
            dy.renew_cg()
            engine.stats("execute.walk.views", reset=True)
            program = Program(3, 20)
            program.loss.backward(full=True)
            found.append([n.gradient() for n in program.nodes] + [n.npvalue() for n in program.nodes])
            assert engine.stats("execute.walk.views")["made"] == 60
        for other in found[1:]:
            all_equal(found[0], other)


def test_a_user_that_comes_later_has_gradients_of_its_own() -> None:
    """The gradient of a view holds the contributions of its own users, not those of other users of its argument."""
    dy.renew_cg(autobatching=1)
    xs = [dy.inputVector(np.linspace(-1, 1, 3 * N) * (k + 1)) for k in range(5)]
    wholes = [dy.tanh(x) for x in xs]
    parts = [dy.pick_range(w, N, 2 * N) for w in wholes]
    first = dy.esum([dy.sum_elems(dy.square(p)) for p in parts])
    first.forward()
    values = [p.npvalue() for p in parts]
    assert counts("views") == (5, 0)
    late = first + dy.esum([dy.sum_elems(w) * 3 for w in wholes[:2]])
    for _ in range(2):
        late.backward(full=True)
        for k, (whole, part, value) in enumerate(zip(wholes, parts, values)):
            np.testing.assert_array_equal(part.npvalue(), value)
            np.testing.assert_allclose(part.gradient(), 2 * value, rtol=1e-6)
            wanted = np.full(3 * N, 3.0 if k < 2 else 0.0)
            wanted[N : 2 * N] += 2 * value
            np.testing.assert_allclose(whole.gradient(), wanted, rtol=1e-6)
    assert counts("views") == (5, 5)


def test_memory_for_copies_of_views_lies_apart() -> None:
    """It is reserved, but not among values, which are written."""

    def values(whole: bool) -> int:
        with dy.ComputationGraph(autobatching=1):
            tops = [dy.tanh(dy.inputVector(np.linspace(-1, 1, 4096))) for _ in range(40)]
            dy.forward([w if whole else dy.pick_range(w, 2048, 4096) for w in tops])
            return arena_bytes()["values"]

    first = values(True)
    assert counts("views") == (0, 0)
    assert values(False) - first <= 1 << 16  # in which arenas are charged
    assert counts("views") == (40, 0)


@pytest.mark.parametrize("full", [False, True])
def test_copies_of_views_outlast_a_revert(full: bool) -> None:
    """Views that were copied after a checkpoint stay what they are when what came after it is gone."""
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(np.linspace(-1, 1, 2 * N))
    dy.renew_cg(autobatching=1)
    wholes = [dy.tanh(p * (k + 1)) for k in range(5)]
    parts = [dy.pick_range(w, 0, N) for w in wholes]
    loss = dy.esum([dy.sum_elems(dy.square(x)) for x in parts])
    loss.forward()
    values = [x.npvalue() for x in parts]
    loss.backward(full=full)
    expected = p.grad_as_array().copy()
    dy.cg_checkpoint()
    (loss + dy.esum([dy.sum_elems(w) for w in wholes])).backward(full=full)
    assert counts("views") == (5, 5)
    dy.cg_revert()
    later = [dy.inputVector(np.full(4 * N, 7)) * 2 for _ in range(5)]
    dy.forward(later)
    for x, value in zip(parts, values):
        np.testing.assert_array_equal(x.npvalue(), value)
    model.zero_gradients()
    loss.backward(full=full)
    np.testing.assert_allclose(p.grad_as_array(), expected, rtol=1e-5, atol=1e-6)


def test_a_user_beyond_the_target_does_not_matter() -> None:
    dy.renew_cg(autobatching=1)
    wholes = [dy.tanh(dy.inputVector(np.linspace(-1, k, 2 * N))) for k in range(4)]
    parts = [dy.pick_range(w, 0, N) for w in wholes]
    loss = dy.esum([dy.sum_elems(p) for p in parts])
    loss.forward()
    dy.esum([dy.sum_elems(w) for w in wholes]).forward()
    loss.backward(full=True)
    assert counts("views") == (4, 0)
    for whole in wholes:
        np.testing.assert_array_equal(whole.gradient(), [1.0] * N + [0.0] * N)


@pytest.mark.parametrize("mode", ["profile", "check_validity", "anomaly", "forward_only"])
def test_modes_that_look_at_batches(mode: str) -> None:
    """These modes run batches one by one, and give the same numbers."""
    dy.renew_cg(autobatching=1, check_validity=mode == "check_validity", forward_only=mode == "forward_only")
    program = Program(2, 20)
    loss = program.loss
    if mode == "profile":
        with profiling.measure() as profile:
            loss.backward(full=True)
        rows = {line.split()[-1]: line.split() for line in str(profile).splitlines() if "forward pick_range" in line}
        assert rows["pick_range"][2] == "60"
        program.check()
    elif mode == "anomaly":
        with dy.detect_anomaly():
            loss.backward(full=True)
        program.check()
    elif mode == "forward_only":
        loss.forward()
        program.check(gradients=False)
        assert counts("views") == (0, 0)
    else:
        loss.backward(full=True)
        program.check()


def test_anomalies_in_a_chain_are_found() -> None:
    """The right op is named, although without checks it would run in one tile with others."""
    for way in ("check_validity", "anomaly"):
        dy.renew_cg(autobatching=1, check_validity=way == "check_validity")
        xs = [dy.inputVector(np.linspace(-1, k, N)) for k in range(4)]
        loss = dy.esum([dy.sum_elems(dy.tanh(dy.log(dy.tanh(x)) * 2)) for x in xs])
        if way == "anomaly":
            with dy.detect_anomaly(), pytest.raises(ValueError, match="log"):
                loss.forward()
        else:
            with pytest.raises(ValueError, match="log"):
                loss.forward()


def test_nodes_that_the_loss_does_not_need() -> None:
    """Such nodes run in the same batches, but contribute nothing to gradients."""
    dy.renew_cg(autobatching=1)
    cells = gates_of(N, 12)
    dy.forward(cells)
    sums = [dy.sum_elems(c) for c in cells]
    dy.esum(sums[::2]).backward(full=True)
    for k, cell in enumerate(cells):
        np.testing.assert_array_equal(cell.gradient(), 1.0 if k % 2 == 0 else 0.0)


def test_what_nodes_without_a_part_hold_goes_nowhere() -> None:
    """The memory of their gradients, left over from an earlier pass, is not added anywhere."""
    dy.renew_cg(autobatching=1)
    x = dy.tanh(dy.inputVector(np.linspace(-1, 1, N)))
    cells = [dy.cmult(x, dy.inputVector(np.full(N, k + 1.0))) for k in range(12)]
    dy.esum([dy.sum_elems(c) for c in cells]).backward(full=True)
    np.testing.assert_allclose(x.gradient(), sum(range(1, 13)))
    dy.esum([dy.sum_elems(c) for c in cells[::2]]).backward(full=True)
    np.testing.assert_allclose(x.gradient(), sum(range(1, 13, 2)))


def test_nodes_that_run_against_the_order_of_making() -> None:
    """Tiles are ranges of node numbers, so a batch in another order runs by itself."""
    n = 1024
    dy.renew_cg(autobatching=1)
    tanhs = [dy.tanh(dy.inputVector(np.linspace(-1, k / 40, n))) for k in range(60)]
    products = []
    for t in reversed(tanhs):
        e = dy.exp(t)
        products += [dy.cmult(e, t), dy.cmult(e, e)]
    loss = dy.esum([dy.sum_elems(p) for p in products])
    loss.backward(full=True)
    for k, tanh in enumerate(tanhs):
        t = np.tanh(np.linspace(-1, k / 40, n))
        e = np.exp(t)
        np.testing.assert_allclose(products[118 - 2 * k].npvalue(), e * t, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(products[119 - 2 * k].npvalue(), e * e, rtol=1e-5)
        np.testing.assert_allclose(tanh.gradient(), e * (1 + t) + 2 * e * e, rtol=1e-4)
