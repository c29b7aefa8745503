"""Values that are requested one by one on a device: passes, launches and waits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine

EXAMPLES, STEPS = 8, 5


class Net:
    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.model = dy.ParameterCollection()
        self.w = self.model.parameters_from_numpy(rng.uniform(-1, 1, (5, 5)))
        self.v = self.model.parameters_from_numpy(rng.uniform(-1, 1, (1, 5)))

    def item(self, number: int) -> float:
        h, total = dy.inputVector([number, 1, 2, 3, 4]), 0.0
        for _ in range(STEPS):
            h = dy.tanh(self.w * h)
            total += (self.v * h).value()
        return total

    def one_by_one(self) -> list[float]:
        return list(map(self.item, range(EXAMPLES)))

    def mapped(self) -> list[float]:
        return dy.batched_map(self.item, range(EXAMPLES))

    def in_step(self, together: bool = False) -> list[float]:
        states = [dy.inputVector([k, 1, 2, 3, 4]) for k in range(EXAMPLES)]
        totals = [0.0] * EXAMPLES
        for _ in range(STEPS):
            states = [dy.tanh(self.w * h) for h in states]
            scores = [self.v * h for h in states]
            if together:
                dy.forward(scores)
            totals = [total + s.value() for total, s in zip(totals, scores)]
        return totals

    def together(self) -> list[float]:
        return self.in_step(together=True)


@pytest.fixture
def net(on_device: str) -> Net:
    with dy.ComputationGraph(autobatching=1):
        yield Net()


def asked_of_device(run: Callable[[], list[float]]) -> tuple[int, int]:
    """The launches (with products) and the waits of a run; its values must equal those requested one by one."""

    for _ in range(2):  # memory grows in the first round
        dy.renew_cg(autobatching=1)
        before = engine.stats("gpu.0")
        found = run()
        after = engine.stats("gpu.0")
    np.testing.assert_allclose(found, Net().one_by_one(), rtol=1e-4, atol=1e-5)
    kinds = ("launches", "products", "replays")
    return sum(after[k] - before[k] for k in kinds), after["waits"] - before["waits"]


def test_a_map_saves_launches_and_waits(net: Net) -> None:
    config.set(batch_requests=False)
    try:
        alone, waits_alone = asked_of_device(net.one_by_one)
    finally:
        config.set(batch_requests=True)
    mapped, waits = asked_of_device(net.mapped)
    together, waits_together = asked_of_device(net.together)
    assert mapped == together
    assert alone >= 0.9 * EXAMPLES * mapped
    assert waits_alone == EXAMPLES * STEPS
    assert waits == waits_together == STEPS  # the values of a batch are fetched together


def test_what_is_here_is_not_what_was_here_before(net: Net) -> None:
    x = [dy.inputVector([float(k), 1.0]) for k in range(4)]
    doubled = [e * 2 for e in x]
    dy.forward(doubled)
    assert [e.value() for e in doubled] == [[2.0 * k, 2.0] for k in range(4)]
    for e in x:
        e.set([5.0, 6.0])
    assert doubled[2].value(recalculate=True) == [10.0, 12.0]
    assert doubled[3].value() == [10.0, 12.0]
    dy.cg_checkpoint()
    first = [e * 3 for e in x]
    dy.forward(first)
    assert first[1].value() == [15.0, 18.0]
    dy.cg_revert()
    again = [e * 4 for e in x]
    dy.forward(again)
    assert again[1].value() == again[2].value() == [20.0, 24.0]


def test_large_values_are_fetched_alone(net: Net) -> None:

    large = [dy.tanh(dy.inputVector([float(k)] * 9000)) for k in range(2)]
    dy.forward(large)
    before = engine.stats("gpu.0")["fetched_bytes"]
    assert large[1].npvalue()[0] == pytest.approx(np.tanh(1))
    assert engine.stats("gpu.0")["fetched_bytes"] - before == 36000
    large[1].npvalue()  # it has been fetched
    assert engine.stats("gpu.0")["fetched_bytes"] - before == 36000


def test_a_loop_saves_launches_when_it_is_known(net: Net) -> None:
    together = asked_of_device(net.together)
    first = asked_of_device(net.in_step)
    for _ in range(60):
        dy.renew_cg(autobatching=1)
        net.in_step()
    later = asked_of_device(net.in_step)
    assert later == together
    assert first[0] > later[0]
