"""Every row of the table has the same bits when values are dropped, and within the smallest limit that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from arrays import all_equal
from table import CASES, Case, first_rows

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import arena_bytes
from dynet_cy.graph.expressions import reset_random_seed as set_seed

CALLS = 8
STEPS = 5  # of the search for the smallest limit

WITH_GRADIENT = [c for c in CASES if c.grad is not False]
SEARCHED = first_rows(WITH_GRADIENT, 2)  # rows whose smallest limit is searched


@pytest.fixture(autouse=True)
def assumed() -> Iterator[None]:
    yield
    engine.tune("schedule.budget.percent", 107)


class Calls:
    """Calls of a case with parameters; no expression refers to what is computed from these."""

    def __init__(self, case: Case, sizes: tuple[int, ...], rng: np.random.Generator, autobatching: int) -> None:
        self.case, self.autobatching = case, autobatching
        self.model = dy.ParameterCollection()
        self.arguments = [
            [[self.model.parameters_from_numpy(x[..., k]) for k in range(x.shape[-1])] for x in case.sample(rng, sizes)]
            for _ in range(CALLS)
        ]

    def loss(self) -> dy.Expression:
        losses = []
        for elements in self.arguments:
            y = passed_on(self.case.build(dy, [argument(ps, i) for i, ps in enumerate(elements)]), len(elements))
            shape, size = y.dim()
            weights = np.linspace(0.5, 1.5, int(np.prod(shape)) * size).reshape(*shape, size)
            losses.append(dy.sum_batches(dy.dot_product(y, dy.inputTensor(weights, batched=True))))
        return dy.esum(losses)

    def run(self, mem: float | None = None) -> tuple[list[np.ndarray], float]:
        """The loss and the gradients of all parameters, within a limit; and the megabytes of the graph's arenas."""
        set_seed(7)
        engine.tune("schedule.budget.percent", 107)
        self.model.zero_gradients()
        with dy.ComputationGraph(autobatching=self.autobatching, mem=mem):
            loss = self.loss()
            value = loss.npvalue()
            loss.backward()
            taken = sum(arena_bytes().values()) / 2**20
        return [value, *(p.grad_as_array() for p in self.model.parameters_list())], taken


def argument(elements: list[dy.Parameters], i: int) -> dy.Expression:
    """Argument i: the batch of some parameters."""
    return passed_on(dy.concatenate_to_batch(elements) if len(elements) > 1 else elements[0] + 0.0, i)


def passed_on(x: dy.Expression, i: int) -> dy.Expression:
    """x, by a node whose backward reads nothing, and which no other of these runs together with."""
    return dy.scale_gradient(x, 2.0 + i)


def within_the_smallest(calls: Calls, most: float) -> list[np.ndarray]:
    """What the calls find within the smallest limit that fits, as far as bisection below `most` finds it."""
    too_small = 0.0
    found, _ = calls.run(most)
    for _ in range(STEPS):
        mem = (too_small + most) / 2
        try:
            found, _ = calls.run(mem)
            most = mem
        except MemoryError:
            too_small = mem
    return found


@pytest.mark.parametrize(("number", "case"), list(enumerate(WITH_GRADIENT)), ids=[c.id for c in WITH_GRADIENT])
def test_same_bits(number: int, case: Case, rng: np.random.Generator, drops: Callable[[bool], None]) -> None:
    """Rows take turns with the schedules: each op has several rows."""
    calls = Calls(case, case.batch_sizes()[-1], rng, number % 2)
    expected, taken = calls.run()
    drops(True)
    all_equal(calls.run()[0], expected)
    drops(False)
    if case.id in SEARCHED:
        all_equal(within_the_smallest(calls, 1.5 * taken + 0.1), expected)


@pytest.mark.parametrize("autobatching", [0, 1])
@pytest.mark.parametrize("small_too", [0, 1])
def test_values_are_dropped_within_the_smallest_limit(
    autobatching: int, small_too: int, rng: np.random.Generator
) -> None:
    """Else the test above would check nothing.  Where memory for a plan runs out, too, no half of one is left."""
    engine.stats("execute.rematerialize", reset=True)
    with engine.tuned({"schedule.transient.small_too": small_too}):
        for case in WITH_GRADIENT[::50]:
            calls = Calls(case, case.batch_sizes()[-1], rng, autobatching)
            within_the_smallest(calls, 1.5 * calls.run()[1] + 0.1)
    assert engine.stats("execute.rematerialize")["nodes"] > 0
