"""Every function with an exp or a log, with offsets up to 1e7 on its arguments: rounding must not grow with the offset.

A softmax does not change if all scores grow by the same number, so its gradient has all its digits next to scores of
1e7, and so has every loss made of it. A function that subtracts a rounded log-sum has not. Of the table of ops and
functions, the rows run whose reference calls an exp or a log; those that cannot pass are in EXCEPT, with the reason.
"""

from __future__ import annotations

from typing import ClassVar

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
EXCEPT = {
    "scaled_dot_product_attention": "scores are products, whose rounding errors grow with the offset; see below",
}
# Cases of which only some arguments get offsets: the others multiply what has the logarithm, so that rounding errors
# are those of products.
SOME = {"cross_entropy-expression": (0,)}


class Watched(np.ndarray):
    """An array that notes the functions that are called with it, and with what is made of it."""

    called: ClassVar[set[str]] = set()

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        Watched.called.add(ufunc.__name__)
        plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in inputs]
        if "out" in options:
            options["out"] = tuple(x.view(np.ndarray) if isinstance(x, Watched) else x for x in options["out"])
        y = getattr(ufunc, method)(*plain, **options)
        return y.view(Watched) if isinstance(y, np.ndarray) else np.asarray(y).view(Watched) if np.ndim(y) == 0 else y

    def __array_function__(self, function, types, args, options):
        y = super().__array_function__(function, types, args, options)
        return y.view(Watched) if isinstance(y, np.ndarray) else y


LOGARITHMS = {"exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2"}


def has_logarithm(case: Case) -> bool:
    """Whether the reference calls an exp or a log with the arguments."""
    Watched.called = set()
    samples = case.sample(np.random.default_rng(0), case.batch_sizes()[0])
    xs = [np.asarray(x if case.whole_batch else x[..., 0], float).view(Watched) for x in samples]
    with np.errstate(all="ignore"):
        case.reference(xs)
    return bool(Watched.called & LOGARITHMS)


def rows() -> list[Case]:
    chosen = [case for case in CASES if case.shapes and not any(case.id.startswith(name) for name in EXCEPT)]
    return [case for case in chosen if has_logarithm(case)]


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
    arguments = SOME.get(case.id, range(len(samples)))
    chosen = [arguments] if len(arguments) == 1 else [arguments, *([i] for i in arguments)]
    return [[x + np.float32(offset) if i in which else x for i, x in enumerate(samples)] for which in chosen]


def assert_close(actual: np.ndarray, desired: np.ndarray, what: str) -> None:
    known = np.isfinite(desired)
    scale = max(1.0, float(np.abs(desired[known]).max(initial=0)))
    np.testing.assert_allclose(actual[known], desired[known], rtol=0, atol=TOLERANCE * scale, err_msg=what)


@pytest.mark.skipif(not EXACT, reason="no type of floats with more digits than float64")
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("case", rows(), ids=lambda c: c.id)
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


@pytest.mark.parametrize("offset", OFFSETS)
def test_attention(offset: float) -> None:
    """Scores that are exact: queries of 1."""
    rng = np.random.default_rng(1)
    k = rng.uniform(-2, 2, (1, 300)).astype(np.float32) + np.float32(offset)
    v, weights = rng.normal(size=(2, 300)).astype(np.float32), rng.normal(size=(2, 4)).astype(np.float32)
    dy.renew_cg()
    keys, values = dy.inputTensor(k), dy.inputTensor(v)
    y = dy.scaled_dot_product_attention(dy.ones((1, 4)), keys, values, scale=1)
    dy.dot_product(y, dy.inputTensor(weights)).backward(full=True)
    p = np.exp(k[0].astype(float) - k.max())
    p /= p.sum()
    mean = v.astype(float) @ p
    slopes = weights.sum(1, dtype=float)
    np.testing.assert_allclose(y.npvalue(), np.repeat(mean[:, None], 4, 1), atol=TOLERANCE)
    np.testing.assert_allclose(keys.gradient()[0], p * (slopes @ v - slopes @ mean), atol=2 * TOLERANCE)
    np.testing.assert_allclose(values.gradient(), np.outer(slopes, p), atol=2 * TOLERANCE)


def test_exceptions_are_needed() -> None:
    for name in [*EXCEPT, *SOME]:
        assert any(case.id.startswith(name) for case in CASES), name
