"""Sorting and cumulative sums of numbers that are not finite."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("n", [1, 4, 5, 40, 257, 333])
def test_a_few_of_many_are_those_of_a_sort(n: int, largest: bool) -> None:
    """A few are found without sorting: with equal elements in their order, NaN first, and no position of a NaN."""
    rng = np.random.default_rng(n)
    kinds = [rng.normal(size=n), rng.integers(0, 3, n), np.arange(n), -np.arange(n), np.full(n, np.nan)]
    kinds += [np.where(rng.random(n) < share, np.nan, rng.normal(size=n)) for share in (0.3, 0.97)]
    kinds += [np.where(rng.random(n) < 0.5, -INF, INF)]
    for k in {0, 1, 2, 8, 64, 65} & set(range(n + 1)):
        dy.renew_cg()
        x = dy.inputTensor(np.stack(kinds, 1), batched=True)
        values = dy.topk(x, k, largest=largest)[0]
        keys = np.stack(kinds, 1).astype(np.float32) * (-1 if largest else 1)
        order = np.lexsort((keys, ~np.isnan(keys)), axis=0)[:k]  # stable
        np.testing.assert_array_equal(values.npvalue(), np.take_along_axis(x.npvalue(), order, 0))
        for b, kind in enumerate(kinds):
            places = dy.topk(dy.inputTensor(kind), k, largest=largest)[1]
            if k and np.isnan(kind).any():
                with pytest.raises(ValueError, match=f"topk: x is NaN at element {np.isnan(kind).argmax()}\\b"):
                    places.npvalue()
            else:
                np.testing.assert_array_equal(places.npvalue(), order[:, b])
        if k:
            dy.sum_batches(dy.sum_elems(values)).backward(full=True)
            np.testing.assert_array_equal(x.gradient().sum(0), k)


def test_values_of_topk_are_those_of_x() -> None:
    """Integers stay exact, and their gradients have gradients."""
    most = 2**24 + 1
    assert dy.topk(dy.input_indices([3, most, 5]), 2)[0].npvalue().tolist() == [most, 5]
    x = dy.inputTensor([3.0, 1.0, 2.0])
    (slope,) = dy.gradients(dy.sum_elems(dy.cube(dy.topk(x, 2)[0])), [x])
    (second,) = dy.gradients(dy.sum_elems(slope), [x])
    np.testing.assert_allclose(second.npvalue(), [18, 0, 12])
