"""Graphs: several of them, renewal, settings, growth."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError
from dynet_cy.graph.expressions import set_autobatching


def test_renewing_one_graph_leaves_others(graph) -> None:
    x = dy.ones(3)
    with dy.ComputationGraph():
        y = dy.ones(2)
        dy.renew_cg()
        with pytest.raises(StaleExpressionError):
            y.value()
    assert (x + x).value() == [2, 2, 2]


def test_graphs_nest(graph) -> None:
    outer = dy.ComputationGraph()
    with outer:
        assert dy.cg() is outer
        with dy.ComputationGraph() as inner:
            assert dy.cg() is inner
        with outer:
            assert dy.cg() is outer
        assert dy.cg() is outer
    assert dy.cg() is graph
    with pytest.raises(RuntimeError, match="reverse order"):
        outer.__exit__(None, None, None)
    a, b = dy.ComputationGraph(), dy.ComputationGraph()
    a.__enter__()
    b.__enter__()
    with pytest.raises(RuntimeError, match="reverse order"):
        a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    a.__exit__(None, None, None)
    assert dy.cg() is graph


def test_graph_is_left_when_an_error_is_raised(graph) -> None:
    with pytest.raises(KeyError), dy.ComputationGraph():
        raise KeyError
    assert dy.cg() is graph


def test_versions_grow(graph) -> None:
    first = dy.cg_version()
    dy.renew_cg()
    assert dy.cg_version() > first
    assert graph.version() == dy.cg_version()


@pytest.mark.usefixtures("on_each_device")
def test_immediate_compute() -> None:
    graph = dy.renew_cg(immediate_compute=True)
    x = dy.ones(3)
    y = dy.tanh(x)
    assert graph.n_batches() == 1
    (y + 1) * 2.0
    assert graph.n_batches() == 3
    assert y.value() == pytest.approx(np.tanh([1, 1, 1]).tolist())
    assert graph.n_batches() == 3
    dy.renew_cg()


@pytest.mark.usefixtures("on_each_device")
def test_check_validity() -> None:
    dy.renew_cg(check_validity=True)
    y = dy.log(dy.inputVector([1, -1]))
    with pytest.raises(ValueError, match=r"log: a value of expression 1 \{2\} is not finite"):
        y.value()
    dy.renew_cg(immediate_compute=True, check_validity=True)
    x = dy.zeros(2)
    with pytest.raises(ValueError, match=r"log: .* is not finite"):
        dy.log(x)
    dy.renew_cg()
    assert dy.log(dy.zeros(1)).value() == -np.inf


@pytest.mark.usefixtures("on_each_device")
def test_check_validity_holds_when_asked_again() -> None:
    dy.renew_cg(check_validity=True)
    y = dy.log(dy.inputVector([1, -1]))
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match="not finite"):
                y.value()
    finally:
        dy.renew_cg()


def test_setting_of_strategies() -> None:
    for wrong in (3, -1, "x"):
        with pytest.raises(ValueError, match="autobatching must be 0|invalid literal"):
            set_autobatching(wrong)
        with pytest.raises(ValueError, match="autobatching must be 0|invalid literal"):
            dy.renew_cg(autobatching=wrong)
    dy.renew_cg()


def test_many_renewals_of_a_graph_with_nothing_in_it() -> None:
    for _ in range(1000):
        assert len(dy.renew_cg()) == 0


def grow(w, x) -> None:
    dy.dot_product(w, x).backward()


def test_growth_across_updates(collection, w) -> None:
    trainer = dy.SimpleSGDTrainer(collection, 0.1)
    with dy.ComputationGraph():
        x = dy.inputVector([1, 2, 3])
        grow(w, x)
        grow(w, x)  # no update in between
        trainer.update()
        with pytest.warns(
            RuntimeWarning, match=r": call renew_cg\(\) before .* the graph grew from 4 to 5 nodes across an update"
        ) as said:
            grow(w, x)
        assert said[0].filename == __file__
        trainer.update()
        grow(w, x)  # warned only once


@pytest.mark.parametrize("how", ["value", "forward", "backward"])
def test_a_graph_that_goes_on_after_an_update_is_warned_of(collection, w, how: str) -> None:
    """Once, wherever it goes on: forward, or backward of a loss that was computed before."""

    def go_on() -> None:
        if how == "backward":
            second.backward()
        elif how == "value":
            dy.dot_product(w, x).value()
        else:
            dy.forward([dy.cmult(x, w)])

    trainer = dy.SimpleSGDTrainer(collection, 0.1)
    with dy.ComputationGraph():
        x = dy.inputVector([1, 2, 3])
        first, second = dy.dot_product(w, x), dy.squared_norm(dy.tanh(w))
        first.value(), second.value()
        first.backward()
        trainer.update()
        first.value()  # computed already
        with pytest.warns(RuntimeWarning, match=r"new values.*DyNet keeps the values of first use") as said:
            go_on()
        assert len(said) == 1
        go_on()


def test_no_growth_across_updates(graph, collection, w) -> None:
    """No warning for graphs that are renewed, reverted, or made once and used with new inputs."""
    trainer = dy.SimpleSGDTrainer(collection, 0.1)
    for n in range(3):
        dy.renew_cg()
        for _ in range(n):
            dy.tanh(w)
        grow(w, dy.inputVector([1, 2, 3]))
        trainer.update()
    dy.renew_cg()
    x = dy.inputVector([1, 2, 3])
    for n in range(3):
        dy.cg_checkpoint()
        for _ in range(n):
            dy.tanh(w)
        grow(w, x)
        trainer.update()
        dy.cg_revert()
    dy.renew_cg()
    x = dy.inputVector([1, 2, 3])
    loss = dy.dot_product(w, x)
    for n in range(3):
        x.set([n, n, n])
        loss.backward()
        trainer.update()
    # Another model's update.
    dy.renew_cg()
    grow(w, dy.inputVector([1, 2, 3]))
    dy.SimpleSGDTrainer(dy.ParameterCollection()).update()
    grow(w, dy.inputVector([1, 2, 3]))
