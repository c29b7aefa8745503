"""A limit of memory for one graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from limits import MB, without_limit  # noqa: F401

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.memory import arena


def chain(b: dy.Parameters, n: int = 1000) -> dy.Expression:
    """Cells of 1024 numbers."""
    h = dy.zeros(1024)
    for _ in range(n):
        h = dy.tanh(dy.dropout(h, 0.1) + b)
    return dy.squared_norm(h)


def trained(mem: float | None) -> tuple[float, np.ndarray]:
    dy.reset_random_seed(3)
    dy.renew_cg(mem=mem)
    b = dy.ParameterCollection().add_parameters(1024, init=0.5)
    loss = chain(b)
    value = loss.value()
    loss.backward()
    return value, b.grad_as_array()


def held() -> int:
    report = dy.memory_report()
    of_graph = ("values", "gradients of values", "scratch", "nodes and plan", "kept for the next graph")
    return sum(row.bytes for row in report.rows if row.kind.startswith(of_graph))


@pytest.mark.usefixtures("nothing_held", "one_thread")
@pytest.mark.parametrize("mem", [4, 3.0, np.float64(1.9), np.int64(2)])
def test_same_bits(mem: float) -> None:
    """Values are dropped and computed again, and the graph stays within its limit."""
    value, gradient = trained(None)
    dy.renew_cg()
    arena.give_back()
    engine.stats("execute.rematerialize", reset=True)
    found, again = trained(mem)
    assert found == value
    assert np.array_equal(again, gradient)
    assert engine.stats("execute.rematerialize")["nodes"] > 0
    assert held() <= mem * MB
    report = dy.memory_report()
    assert report.graph_limit == int(mem * MB)
    assert report.missing > 0
    assert "more than the limit of" in report.hint


def test_the_limit_ends_with_the_renewal() -> None:
    trained(2)
    engine.stats("execute.rematerialize", reset=True)
    trained(None)
    assert engine.stats("execute.rematerialize")["nodes"] == 0
    assert dy.memory_report().graph_limit == 0


@pytest.mark.usefixtures("nothing_held")
def test_memory_of_the_graph_before_is_given_back() -> None:
    """It is more than the new graph may have."""
    trained(None)
    before = arena.used_bytes()
    dy.renew_cg(mem=1)
    assert arena.used_bytes() < before - 8 * MB
    assert dy.tanh(dy.inputVector([0.0])).value() == 0


def test_other_graphs_and_parameters_do_not_count() -> None:
    """And what this one has too little of is not taken from them."""
    model = dy.ParameterCollection()
    model.add_parameters((1024, 1024))
    other = dy.ComputationGraph()
    with other:
        kept = dy.tanh(dy.ones((512, 1024)))
        kept.forward()
        before = kept.npvalue()
    with dy.ComputationGraph(mem=1):
        assert dy.sum_elems(dy.ones((128, 128))).value() == 128 * 128
        with pytest.raises(MemoryError, match="this graph's limit of 1,048,576"):
            dy.exp(dy.ones((1024, 1024))).forward()
        assert dy.sum_elems(dy.ones((64, 64))).value() == 64 * 64  # the graph goes on
    with dy.ComputationGraph(mem=0.5), pytest.raises(MemoryError, match=r"limit of 524,288 \(512 KiB\)"):
        dy.ones((1024, 1024))
    assert np.array_equal(kept.npvalue(), before)


@pytest.mark.usefixtures("nothing_held")
def test_the_limit_of_the_process_holds_too() -> None:
    dy.renew_cg(mem=64)
    arena.give_back()
    config.set(mem=arena.used_bytes() / MB + 0.5)
    with pytest.raises(MemoryError, match=r"left of the limit of .*--dynet-mem"):
        dy.exp(dy.ones((1024, 1024))).forward()


def test_graphs_that_only_go_forward_and_that_compute_at_once() -> None:
    for settings in ({"forward_only": True}, {"immediate_compute": True}):
        dy.renew_cg(mem=1, **settings)
        with pytest.raises(MemoryError, match="this graph's limit"):
            dy.exp(dy.ones((1024, 1024))).forward()
    dy.renew_cg(mem=1, forward_only=True)
    h = dy.zeros(1024)
    for _ in range(2000):
        h = dy.tanh(h)
        h.forward()  # what is dropped is used again
    assert h.value() is not None


@pytest.mark.parametrize(
    ("mem", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("2", TypeError),
        (True, TypeError),
        ([2], TypeError),
    ],
)
def test_wrong_limits(mem: object, error: type[Exception]) -> None:
    x = dy.inputVector([1.0])
    with pytest.raises(error, match="renew_cg: mem must be"):
        dy.renew_cg(mem=mem)  # type: ignore[arg-type]
    assert x.value() == 1  # nothing has changed
    with pytest.raises(error, match="mem must be"):
        dy.ComputationGraph(mem=mem)  # type: ignore[arg-type]


def test_methods_of_graphs() -> None:
    with dy.ComputationGraph(mem=2) as graph:
        assert dy.memory_report().graph_limit == 2 * MB
        graph.renew()
        assert dy.memory_report().graph_limit == 0
        graph.renew(mem=3)
        assert dy.memory_report().graph_limit == 3 * MB
