"""Nodes that plans rewrite, sums of products and gates: values and gradients in every program and setting."""

from __future__ import annotations

import pytest
from arrays import all_close, all_equal
from rewritten import PROGRAMS, counting, counts  # noqa: F401

import dynet_cy as dy
from dynet_cy.core import engine

pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.parametrize("name", PROGRAMS)]


@pytest.mark.parametrize("batch", [1, 3])
def test_values_and_gradients_of_all_nodes(strategy: int, name: str, batch: int) -> None:
    """With new and cached plans; absorbed nodes too, which have no value until it is requested."""
    row = PROGRAMS[name]
    for full in (False, True, True):
        dy.renew_cg(autobatching=strategy)
        engine.stats("schedule.rewrite", reset=True)
        q = row.make(7, batch)
        q.loss().backward(full=full)
        assert row.counts[strategy > 0] in (None, counts(row.of))
        q.check_gradients(of_nodes=full)
        q.check()
        q.check_gradients(of_nodes=full)


def test_several_passes(strategy: int, name: str) -> None:
    """Values are requested on the way, then one backward pass covers all."""
    q = PROGRAMS[name].make(29, 1)
    for x in q.outputs[: len(q.outputs) // 2]:
        x.forward()
    q.loss().backward(full=True)
    q.check_gradients()
    q.check()


def test_kept_plans_do_the_same_to_the_last_bit(name: str) -> None:
    found = []
    for _ in range(4):
        dy.renew_cg(autobatching=1)
        q = PROGRAMS[name].make(23, 1)
        q.loss().backward(full=True)
        found.append([x.gradient() for x in q.nodes.values()] + [x.npvalue() for x in q.outputs])
        found[-1] += q.gradients()
    for other in found[1:]:
        all_equal(found[0], other)


def test_nodes_as_they_were_made_give_the_same(strategy: int, name: str) -> None:
    """Those of gates to the last bit, unless a gradient has more than two contributions."""
    row = PROGRAMS[name]
    found = []
    for on in (True, False):
        engine.tune(f"schedule.rewrite.{row.of}.on", on)
        dy.renew_cg(autobatching=strategy)
        q = row.make(3, 1)
        loss = q.loss()
        loss.backward(full=True)
        values = [loss.npvalue(), *(x.npvalue() for x in q.outputs)]
        found.append((values, [x.gradient() for x in q.outputs] + q.gradients()))
    for part, exact in ((0, row.of == "gates"), (1, row.exact)):
        all_close(found[0][part], found[1][part], **({"rtol": 0} if exact else {"rtol": 1e-4, "atol": 1e-4}))


@pytest.mark.parametrize("settings", [{"check_validity": True}, {"immediate_compute": True}, {"forward_only": True}])
def test_graphs_that_see_each_node(name: str, settings: dict[str, bool]) -> None:
    row = PROGRAMS[name]
    dy.renew_cg(**settings)
    q = row.make(19, 1)
    q.loss().forward()
    q.check()
    assert counts(row.of) == (0, 0)


def test_anomalies_are_looked_for_in_each_node(strategy: int, name: str) -> None:
    row = PROGRAMS[name]
    with dy.detect_anomaly():
        q = row.make(19, 1)
        q.loss().backward(full=True)
        q.check_gradients()
    assert counts(row.of) == (0, 0)
