"""Random ops on the device draw the same numbers as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from cases_random import RANDOM
from test_residual_layer_norm import run as residuals

import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device

# Logarithms and cosines are rounded differently; everything else is exact.
TOLERANCE = {"noise": 1e-5, "random_normal": 1e-5, "random_gumbel": 1e-5, "random_uniform": 1e-6}


def drawn(name: str, device: int, strategy: int) -> list[np.ndarray]:
    """Values and gradients of nodes of several shapes; some share an argument."""
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


def gates(device: int, strategy: int) -> list[np.ndarray]:
    """Values and gradients of LSTM gates with weight noise, of one input and of two."""
    set_default_device(device)
    dy.reset_random_seed(7)
    rng = np.random.default_rng(1)
    collection = dy.ParameterCollection()
    wx, wh, b = (collection.parameters_from_numpy(rng.uniform(-1, 1, s)) for s in [(12, 5), (12, 3), (12,)])
    dy.renew_cg(autobatching=strategy)
    xs = [dy.inputTensor(rng.uniform(-1, 1, (n, 4)).astype(np.float32), batched=True) for n in (5, 3, 2, 3, 5)]
    h = dy.tanh(dy.inputTensor(rng.uniform(-1, 1, 3).astype(np.float32)))
    ys = [dy.vanilla_lstm_gates(x, h, wx, wh, b, 0.3) for x in (xs[0], xs[4], xs[0])]
    ys += [dy.vanilla_lstm_gates_concat(x, h, wx, wh, b, 0.3) for x in ([xs[1], xs[2]], [xs[3], xs[2]])]
    dy.sum_batches(dy.sum_elems(dy.square(dy.esum(ys)))).backward(full=True)
    return [*dy.npvalues(ys), *[x.gradient() for x in [*xs, h]], *[p.grad_as_array() for p in (wx, wh, b)]]


@pytest.mark.parametrize("strategy", [0, 1])
def test_weight_noise_is_that_of_the_cpu(strategy: int, on_device) -> None:
    for found, desired in zip(gates(1, strategy), gates(0, 0)):
        np.testing.assert_allclose(found, desired, rtol=1e-4, atol=1e-5 * np.abs(desired).max())


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("eps", [None, 0.1])
def test_residuals_are_dropped_as_on_the_cpu(strategy: int, batch: int, eps: float | None, on_device) -> None:
    found = []
    for device in (0, 1):
        set_default_device(device)
        found.append(residuals(strategy, True, 0.4, eps, batch))
    for one, other in zip(*found):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5)
