"""Sums of a million float32 terms are right to a few units in the last place, in every way that they can be made."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dynet_cy as dy

N = 1_000_000
TERM = np.float32(0.1)
SUM = N * float(TERM)
WIDE = np.full((3, N), TERM, np.float32)  # three rows: their columns are summed
LONG = np.full(N, TERM, np.float32)
LOG_SUM = math.log(N) + float(TERM)


def batch(x: np.ndarray) -> dy.Expression:
    return dy.inputTensor(x, batched=True)


FORWARD = {
    "sum_elems": (lambda: dy.sum_elems(dy.inputTensor(LONG)), SUM),
    "sum_dim": (lambda: dy.sum_dim(dy.inputTensor(WIDE), [1]), SUM),
    "sum_dim-between": (lambda: dy.sum_dim(dy.inputTensor(WIDE.reshape(3, 2, -1)), [0, 2]), 1.5 * SUM),
    "sum_batches": (lambda: dy.sum_batches(batch(WIDE)), SUM),
    "mean_elems": (lambda: dy.mean_elems(dy.inputTensor(LONG)), float(TERM)),
    "mean_dim": (lambda: dy.mean_dim(dy.inputTensor(WIDE), [1]), float(TERM)),
    "mean_batches": (lambda: dy.mean_batches(batch(WIDE)), float(TERM)),
    "moment-2": (lambda: dy.moment_elems(dy.inputTensor(LONG), 2), float(TERM) ** 2),
    "moment-3": (lambda: dy.moment_elems(dy.inputTensor(LONG), 3), float(TERM) ** 3),
    "moment_dim-2": (lambda: dy.moment_dim(dy.inputTensor(WIDE), [1], 2), float(TERM) ** 2),
    "squared_norm": (lambda: dy.squared_norm(dy.inputTensor(LONG)), N * float(TERM) ** 2),
    "l2_norm": (lambda: dy.l2_norm(dy.inputTensor(LONG)), math.sqrt(N) * float(TERM)),
    "dot_product": (lambda: dy.dot_product(dy.inputTensor(LONG), dy.inputTensor(LONG)), N * float(TERM) ** 2),
    "cumsum": (lambda: dy.pick(dy.cumsum(dy.inputTensor(LONG)), N - 1), SUM),
    "cumsum-1": (lambda: dy.pick(dy.cumsum(dy.inputTensor(WIDE), 1), N - 1, 1), SUM),
    "logsumexp_dim": (lambda: dy.logsumexp_dim(dy.inputTensor(LONG)), LOG_SUM),
    "logsumexp_dim-1": (lambda: dy.logsumexp_dim(dy.inputTensor(WIDE), 1), LOG_SUM),
    "log_softmax": (lambda: dy.pick(dy.log_softmax(dy.inputTensor(LONG)), 5), -math.log(N)),
    "softmax": (lambda: dy.pick(dy.softmax(dy.inputTensor(LONG)), 5), 1 / N),
    "softmax-1": (lambda: dy.pick(dy.softmax(dy.inputTensor(WIDE), 1), 5, 1), 1 / N),
    "squared_distance": (
        lambda: dy.squared_distance(dy.inputTensor(LONG), dy.inputTensor(0 * LONG)),
        N * float(TERM) ** 2,
    ),
}


@pytest.mark.parametrize("name", FORWARD)
def test_values(name: str) -> None:
    make, expected = FORWARD[name]
    dy.renew_cg()
    np.testing.assert_allclose(make().npvalue(), expected, rtol=1e-5)


def test_deviation() -> None:
    x = np.random.default_rng(1).normal(3, 1e-3, (2, N // 2)).astype(np.float32)
    dy.renew_cg()
    np.testing.assert_allclose(dy.std_elems(dy.inputTensor(x)).value(), x.std(dtype=np.float64), rtol=1e-4)
    np.testing.assert_allclose(dy.std_dim(dy.inputTensor(x), [1]).npvalue(), x.std(1, dtype=np.float64), rtol=1e-4)


@pytest.mark.parametrize("function", [dy.esum, dy.average, dy.logsumexp])
def test_sums_of_lists(function) -> None:
    n = 60_000  # a sum in float is off by 2e-4 there
    dy.renew_cg()
    x = dy.inputTensor(LONG[:3])
    expected = {dy.esum: n * float(TERM), dy.average: float(TERM), dy.logsumexp: math.log(n) + float(TERM)}[function]
    np.testing.assert_allclose(function([x] * n).npvalue(), expected, rtol=1e-5)


def gradient_of_a_scalar() -> np.ndarray:
    p = dy.ParameterCollection().add_parameters(1, init=2.0)
    dy.sum_elems(dy.cmult(p, dy.inputTensor(LONG))).backward()
    return p.grad_as_array()


def gradient_of_a_bias() -> np.ndarray:
    p = dy.ParameterCollection().add_parameters(3, init=2.0)
    w = dy.inputTensor(np.ones((3, 1), np.float32))
    dy.sum_elems(dy.affine_transform([p, w, dy.inputTensor(LONG[None])]) * TERM).backward()
    return p.grad_as_array()


def gradient_of_cumsum() -> np.ndarray:
    p = dy.ParameterCollection().add_parameters(N, init=2.0)
    (dy.sum_elems(dy.cumsum(p)) * TERM).backward()
    return p.grad_as_array()[:1]


@pytest.mark.parametrize("compute", [gradient_of_a_scalar, gradient_of_a_bias, gradient_of_cumsum])
def test_gradients(compute) -> None:
    dy.renew_cg()
    np.testing.assert_allclose(compute(), SUM, rtol=1e-5)
