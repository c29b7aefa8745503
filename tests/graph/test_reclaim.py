"""Checkpoints and recalculation: what is forgotten, what is kept, and memory that is freed."""

from __future__ import annotations

import numpy as np
import pytest
from stale import assert_stale

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError


@pytest.mark.usefixtures("on_each_device")
def test_revert(graph, strategy) -> None:
    x = dy.inputVector([1, 2, 3])
    before = x * 2
    dy.cg_checkpoint()
    after = before + 1
    assert after.value() == [3, 5, 7]
    dy.cg_revert()
    assert_stale(after, "made after the checkpoint")
    assert before.value() == [2, 4, 6]
    assert (before + 10).value() == [12, 14, 16]
    with pytest.raises(StaleExpressionError):
        after.value()


def test_revert_takes_memory_back(graph) -> None:
    x = dy.ones(1000)
    dy.cg_checkpoint()
    for _ in range(3):
        n = len(graph)
        for _ in range(5):
            dy.tanh(x).value()
        assert len(graph) == n + 5
        dy.cg_revert()
        assert len(graph) == n
        dy.cg_checkpoint()


def test_checkpoints_nest(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    made, values = [], []
    for depth in range(5):
        dy.cg_checkpoint()
        made.append(x * (depth + 1.0))
        values.append(made[-1].value())
    for depth in range(4, -1, -1):
        dy.cg_revert()
        for e, v in zip(made[:depth], values):
            assert e.value() == v
        for e in made[depth:]:
            with pytest.raises(StaleExpressionError):
                e.value()
        x * 7.0  # takes the number of a dropped node
    with pytest.raises(RuntimeError, match="no checkpoint"):
        dy.cg_revert()


def test_renewal_drops_checkpoints(graph) -> None:
    dy.cg_checkpoint()
    dy.renew_cg()
    with pytest.raises(RuntimeError, match="no checkpoint"):
        dy.cg_revert()


def test_nodes_from_before_computed_after(graph, strategy) -> None:
    """Old nodes that were computed in one batch with nodes made after the checkpoint are computed again."""
    x = dy.inputVector([1, 2, 3])
    before = [dy.tanh(x * float(k)) for k in range(4)]
    dy.cg_checkpoint()
    after = [dy.tanh(x * float(k)) for k in range(4, 8)]
    total = dy.esum(before + after)
    total.forward()
    dy.cg_revert()
    for k, e in enumerate(before):
        np.testing.assert_allclose(e.npvalue(), np.tanh(np.array([1, 2, 3]) * k), rtol=1e-5)


@pytest.mark.usefixtures("on_each_device")
def test_revert_with_parameters_and_gradients(graph, w, strategy) -> None:
    x = dy.inputVector([1, 2, 3])
    dy.cg_checkpoint()
    loss = dy.dot_product(w, x)  # the parameter enters the graph after the checkpoint
    loss.backward()
    dy.cg_revert()
    assert w.value() == [1, 2, 3]
    loss = dy.dot_product(w, x)
    loss.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [2, 4, 6])
    dy.cg_checkpoint()
    y = loss + 1
    dy.cg_revert()
    with pytest.raises(StaleExpressionError):
        y.backward()


@pytest.mark.usefixtures("on_each_device")
def test_revert_after_setting_an_input(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    y = dy.square(x)
    assert y.value() == [1, 4]
    dy.cg_checkpoint()
    z = y + 1
    assert z.value() == [2, 5]
    x.set([3, 4])
    assert z.value() == [10, 17]
    dy.cg_revert()
    assert y.value() == [9, 16]
    assert (y + 1).value() == [10, 17]


@pytest.mark.usefixtures("on_each_device")
def test_revert_many_times(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    kept = x * 2
    for k in range(300):
        dy.cg_checkpoint()
        assert (kept + float(k)).value() == [2 + k, 4 + k]
        dy.cg_revert()
    assert kept.value() == [2, 4]


@pytest.mark.usefixtures("on_each_device")
def test_recalculate(graph, w, strategy) -> None:
    y = w * 2
    assert y.value() == [2, 4, 6]
    w.set_value([2, 2, 2])
    assert y.value() == [2, 4, 6]
    assert y.value(recalculate=True) == [4, 4, 4]
    w.set_value([3, 3, 3])
    assert y.npvalue(recalculate=True).tolist() == [6, 6, 6]
    y.forward(recalculate=True)
    assert y.vec_value() == [6, 6, 6]


@pytest.mark.usefixtures("nothing_held")
def test_running_one_graph_for_ever_takes_no_more_memory(graph, w, strategy) -> None:
    from dynet_cy.memory import arena

    x = dy.vecInput(1000)
    loss = dy.dot_product(dy.tanh(x), dy.ones(1000))
    loss.value()
    used = arena.used_bytes()
    for k in range(2000):  # 2,000 times 8 kB
        x.set(np.full(1000, k / 1000))
        loss.value()
        loss.backward()
    assert arena.used_bytes() - used <= 2 << 20
