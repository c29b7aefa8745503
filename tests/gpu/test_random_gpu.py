"""Random ops on the device: the numbers of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from cases_softmax_random_conv import RANDOM

import dynet_cy as dy
from dynet_cy.graph.graph import set_default_device

# Logarithms and cosines round differently; all else is exact.
TOLERANCE = {"noise": 1e-5, "random_normal": 1e-5, "random_gumbel": 1e-5, "random_uniform": 1e-6}


def drawn(name: str, device: int, strategy: int) -> list[np.ndarray]:
    """Values and gradients of nodes of several shapes, some of which share an argument."""
    set_default_device(device)
    dy.reset_random_seed(7)
    dy.renew_cg(autobatching=strategy)
    shapes = [((3, 2), 1), ((3, 2), 4), ((70,), 3), ((2, 5, 3), 2), ((1,), 1)]
    inputs = np.random.default_rng(0)
    xs = [dy.inputTensor(inputs.uniform(1, 2, (*shape, n)).astype(np.float32), batched=True) for shape, n in shapes]
    ys = [RANDOM[name](dy, x) for x in [*xs, *xs, xs[0]]]
    loss = dy.esum([dy.sum_batches(dy.sum_elems(dy.cmult(y, y))) for y in ys])
    if name.startswith("random_"):
        return dy.npvalues(ys)
    loss.backward(full=True)
    return [*dy.npvalues(ys), *[x.gradient() for x in xs]]


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("name", RANDOM)
def test_the_numbers_are_those_of_the_cpu(name: str, strategy: int, on_device) -> None:
    desired, found = drawn(name, 0, 0), drawn(name, 1, strategy)
    assert len(desired) == len(found)
    for a, b in zip(found, desired):
        if name in TOLERANCE:
            np.testing.assert_allclose(a, b, rtol=TOLERANCE[name], atol=4 * TOLERANCE[name])
        else:
            np.testing.assert_array_equal(a != 0, b != 0)
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_everything_dropped(on_device) -> None:
    dy.renew_cg()
    assert dy.dropout(dy.ones(5), 1.0).value() == [0] * 5
    assert dy.dropout(dy.ones(5), 0.0).value() == [1] * 5
