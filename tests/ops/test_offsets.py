"""Every op and function with offsets up to 1e7 on its arguments: rounding must not grow with the offset.

A softmax does not change if all scores grow by the same number, so its gradient has all its digits next to scores of
1e7, and so has every loss made of it. A function that subtracts a rounded log-sum has not. All rows of the table of ops
and functions run; those that cannot pass are in EXCEPT, with the reason.
"""

from __future__ import annotations

import numpy as np
import pytest
from table import CASES, Case

import dynet_cy as dy

EXACT = np.finfo(np.longdouble).eps < 1e-18
OFFSETS = (-1e7, 1e4, 1e7)
TOLERANCE = 5e-7  # a few roundings of a float, whose precision is 6e-8
STEP = 2.0**-7  # of differences: exact next to 1e7
MOST = 3  # elements of an argument whose gradient is checked

# Ids of cases, or their beginnings, with the reason.
EXCEPT: dict[str, str] = {}


def reason(case: Case) -> str | None:
    return next((why for name, why in EXCEPT.items() if case.id.startswith(name)), None)


def truth(case: Case, xs: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        y = case.expected(xs, np.longdouble)
        return np.where(np.abs(y) > np.finfo(np.float32).max, np.inf, y)


def slope(case: Case, xs: list[np.ndarray], i: int, at: tuple[int, ...], weights: np.ndarray) -> float | None:
    """The derivative of the weighted sum of the results with respect to an element; None near a kink."""

    def difference(step: float) -> np.longdouble:
        ends = []
        for sign in (1, -1):
            moved = [x.copy() for x in xs]
            moved[i][at] += sign * step
            ends.append((truth(case, moved).ravel(order="F") * weights).sum())
        return (ends[0] - ends[1]) / (2 * step)

    near, far = difference(STEP), difference(2 * STEP)
    found = float((4 * near - far) / 3)
    return found if abs(far - near) <= 1e-3 * (1 + abs(found)) else None


def moved(case: Case, offset: float) -> list[list[np.ndarray]]:
    """Samples with the offset on all arguments, and on each of them."""
    sizes = case.batch_sizes()[-1]
    samples = case.sample(np.random.default_rng(1), sizes)
    chosen = [range(len(samples))] if len(samples) == 1 else [range(len(samples)), *([i] for i in range(len(samples)))]
    return [[x + np.float32(offset) if i in which else x for i, x in enumerate(samples)] for which in chosen]


def assert_close(actual: np.ndarray, desired: np.ndarray, what: str) -> None:
    known = np.isfinite(desired)
    scale = max(1.0, float(np.abs(desired[known]).max(initial=0)))
    np.testing.assert_allclose(actual[known], desired[known], rtol=0, atol=TOLERANCE * scale, err_msg=what)


@pytest.mark.skipif(not EXACT, reason="no type of floats with more digits than float64")
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("case", [c for c in CASES if c.shapes and not reason(c)], ids=lambda c: c.id)
def test_offsets(case: Case, offset: float) -> None:
    """Twice in a graph, so that the nodes run as one batch."""
    for samples in moved(case, offset):
        wide = [x.astype(np.longdouble) for x in samples]
        desired = truth(case, wide).ravel(order="F")
        if not np.isfinite(desired).any():
            continue  # not in the domain of the function
        dy.renew_cg()
        both = [[dy.inputTensor(x, batched=True) for x in samples] for _ in range(2)]
        results = [case.build(dy, xs) for xs in both]
        weights = np.random.default_rng(2).uniform(0.5, 1.5, desired.shape)
        if case.grad is False or not np.isfinite(desired).all():
            for y in results:
                assert_close(y.npvalue().ravel(order="F"), desired, "value")
            continue
        shape, size = results[0].dim()
        factors = dy.inputTensor(weights.reshape((*shape, size), order="F"), batched=True)
        dy.esum([dy.dot_product(y, factors) for y in results]).backward(full=True)
        for y in results:
            assert_close(y.npvalue().ravel(order="F"), desired, "value")
        for i, x in enumerate(samples):
            if not case.has_gradient(i):
                continue
            places = np.random.default_rng(i).permutation(x.size)[:MOST]
            for k in places:
                at = np.unravel_index(k, x.shape)
                exact = slope(case, wide, i, at, weights.astype(np.float32).astype(np.longdouble))
                if exact is None or not np.isfinite(exact):
                    continue
                for xs in both:
                    found = xs[i].gradient().reshape(x.shape, order="F")[at]
                    assert abs(found - exact) <= 2 * TOLERANCE * max(1, abs(exact)), (i, at, found, exact)


def test_exceptions_are_needed() -> None:
    for name in EXCEPT:
        assert any(case.id.startswith(name) for case in CASES), name
