"""Sorting and cumulative sums of numbers that are not finite."""

from __future__ import annotations

import numpy as np

import dynet_cy as dy

INF = np.inf


def test_logcumsumexp_of_infinities() -> None:
    dy.renew_cg()
    x = np.array([-INF, -INF, 1, -INF, 800, INF, 2, np.nan, 3])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(dy.logcumsumexp(dy.inputVector(x)).npvalue(), np.logaddexp.accumulate(x), 1e-6)


def test_gradient_of_logcumsumexp_behind_impossible_elements() -> None:
    dy.renew_cg()
    x = dy.inputVector([-INF, -INF, 1, 2])
    y = dy.logcumsumexp(x)
    dy.pick_range(y, 2, 4).npvalue()
    dy.sum_elems(dy.pick_range(y, 2, 4)).backward(full=True)
    p = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(x.gradient(), [0, 0, 2 - p, p], 1e-6)
