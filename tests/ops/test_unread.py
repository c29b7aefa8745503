"""What ops say that their backward does not read: that memory holds NaN by then, and gradients are the same.

Where calls run together in another order than their arguments, these are copied. Then the copies are gone before
backward, which makes them again, and gradients are written over them if the op allows that (`op.over`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from arrays import all_equal
from table import CASES, Case

import dynet_cy as dy
from dynet_cy.graph.expressions import reset_random_seed as set_seed

WITH_GRADIENT = [c for c in CASES if c.grad is not False]


def passed_on(x: dy.Expression, i: int) -> dy.Expression:
    """x, by a node whose backward reads nothing, and which no other of these runs together with."""
    return dy.scale_gradient(x, 2.0 + i)


def gradients(case: Case, calls: list[list[np.ndarray]], autobatching: int, order: list[int]) -> list[np.ndarray]:
    """The gradients of all arguments of some calls, which are nodes to which no expression refers."""
    set_seed(7)
    with dy.ComputationGraph(autobatching=autobatching):
        leaves = [[dy.inputTensor(x, batched=True) for x in samples] for samples in calls]
        arguments = [[passed_on(x, i) for i, x in enumerate(xs)] for xs in leaves]
        losses = []
        for k in order:
            y = passed_on(case.build(dy, arguments[k]), len(arguments[k]))
            weights = np.linspace(0.5, 1.5, int(np.prod(y.dim()[0])) * y.dim()[1])
            losses.append(
                dy.sum_batches(dy.dot_product(y, dy.inputTensor(weights.reshape(*y.dim()[0], -1), batched=True)))
            )
            del y
            arguments[k] = []
        dy.esum(losses).backward(full=True)
        return [x.gradient() for xs in leaves for x in xs]


@pytest.mark.parametrize("case", WITH_GRADIENT, ids=lambda c: c.id)
def test_backward_reads_only_what_the_op_says(
    case: Case, rng: np.random.Generator, drops: Callable[[bool], None]
) -> None:
    for sizes in case.batch_sizes():
        calls = [case.sample(rng, sizes) for _ in range(3)]
        for autobatching, order in ((0, [0, 1, 2]), (1, [0, 1, 2]), (1, [1, 0, 2])):
            drops(False)
            expected = gradients(case, calls, autobatching, order)
            drops(True)
            all_equal(gradients(case, calls, autobatching, order), expected)
