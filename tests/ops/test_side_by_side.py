"""Results and gradients have the same bits whether the arguments of a call lie side by side in memory or are copied.

Where they lie depends on what else is in memory: on values that have been dropped, by `checkpoint` or within a limit.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from table import CASES, Case

import dynet_cy as dy
from dynet_cy.graph.expressions import reset_random_seed as set_seed
from dynet_cy.graph.nodes import nodes

CALLS = 6


def passed_on(x: dy.Expression, far: bool) -> dy.Expression:
    """x, with twice its gradient; `far`: computed by other batches, elsewhere in memory."""
    return dy.scale_gradient(dy.scale_gradient(x, 4.0), 0.5) if far else dy.scale_gradient(x, 2.0)


def weighted(x: dy.Expression) -> dy.Expression:
    """A sum of the elements with different weights."""
    shape, size = x.dim()
    weights = np.linspace(0.53, 1.57, int(np.prod(shape)) * size).reshape(*shape, size)
    return dy.sum_batches(dy.sum_elems(dy.cmult(x, dy.inputTensor(weights, batched=True))))


def computed(case: Case, calls: list[list[np.ndarray]], apart: bool) -> tuple[list[np.ndarray], bool]:
    """The results of calls that run together, the gradients of all arguments, and whether one op reads each argument.

    A later use gives each argument its first contribution, so that those of the calls are added to it.
    """
    set_seed(7)
    with dy.ComputationGraph(autobatching=1):
        leaves = [[dy.inputTensor(x, batched=True) for x in samples] for samples in calls]
        arguments = [[passed_on(x, apart and k >= CALLS // 2) for x in xs] for k, xs in enumerate(leaves)]
        results = [case.build(dy, xs) for xs in arguments]
        first = dy.esum([weighted(y) for y in results])
        uses = Counter(arg for node in nodes(dy.cg()) for arg in node.args)
        later = dy.sum_elems(first)
        last = dy.esum([weighted(x + later) for xs in arguments for x in xs])
        (first + last).backward(full=True)
        return [*(y.npvalue() for y in results), *(x.gradient() for xs in leaves for x in xs)], max(uses.values()) == 1


@pytest.mark.parametrize("case", [c for c in CASES if c.grad is not False], ids=lambda c: c.id)
def test_same_bits(case: Case, rng: np.random.Generator) -> None:
    batches = case.batch_sizes()
    for sizes in {batches[0], batches[-1]}:
        calls = [case.sample(rng, sizes) for _ in range(CALLS)]
        expected, in_order = computed(case, calls, False)
        for x, y in zip(computed(case, calls, True)[0], expected):
            if in_order:
                np.testing.assert_array_equal(x, y)
            else:  # several ops read an argument, and run in another order
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
