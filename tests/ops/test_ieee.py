"""Zeros, denormal numbers, infinities and NaN in one element of a batch do not change the other elements.

A division by zero gives infinity or NaN, as in IEEE 754. An exception inside a kernel, which Python would only print,
fails the tests, like every "Exception ignored" (conftest.py).
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from table import CASES, Case

import dynet_cy as dy

ODD = {"zero": 0.0, "denormal": 1e-40, "infinity": math.inf, "minus-infinity": -math.inf, "nan": math.nan}


def independent(case: Case) -> bool:
    """Whether a batch element of the result depends only on the same batch element of each argument."""
    return not case.whole_batch and bool(case.shapes) and (3,) * len(case.shapes) in case.batch_sizes()


def run(case: Case, samples: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The value and any gradients, with the batch as the last axis."""
    dy.renew_cg()
    xs = [dy.inputTensor(x, batched=True) for x in samples]
    y = case.build(dy, xs)
    shape, size = y.dim()
    value = y.npvalue().reshape((*shape, size), order="F")
    if case.grad is False:
        return value, []
    weights = np.random.default_rng(3).uniform(0.5, 1.5, value.shape)
    dy.dot_product(y, dy.inputTensor(weights, batched=True)).backward(full=True)
    return value, [x.gradient().reshape(s.shape, order="F") for x, s in zip(xs, samples)]


# The following ops may ignore a NaN: powers of 0; bounds; comparisons, which are false.
LOSE_NAN = ("pow_const-0", "constrained_softmax-", "less", "greater", "equal", "not_equal", "where")
# A single word has no transition.
LOSE_NAN += ("crf_log_partition-2x1", "crf_log_partition-word", "crf_marginals-2x1", "crf_viterbi-2x1", "crf_score")
LOSE_NAN += ("crf_loss-1",)
# The second argument, of which masks and indices are made; the first, all of which is replaced.
LOSE_NAN += ("mask-", "pick-at-", "pick_batch-at", "pick_range-at", "index-at", "pickneglogsoftmax-at")
LOSE_NAN += ("scatter-at-", "scatter_rows-at-", "hinge-at-", "hinge_batch-at", "hinge_dim-at-", "crf_loss-at-")
LOSE_NAN += ("pickneglogsoftmax_list-at", "log_softmax-restrict-at")
# Integers: NaN becomes 0.
LOSE_NAN += ("int_", "int-")
# An index cannot be NaN, and what has no best element has no index.
REFUSE = ("argmax-index-", "argmin-index-", "sample-", "crf_viterbi-", "topk-places")
CHOSEN_BY = tuple(f"{name}: x is NaN at element " for name in ("argmax", "argmin", "topk"))  # how cases make indices


@pytest.mark.parametrize("case", [c for c in CASES if independent(c)], ids=lambda c: c.id)
def test_odd_numbers_in_one_element_of_a_batch(case: Case, rng) -> None:
    """The other elements stay as they were, and one that is all NaN gives NaN, not a number that looks right."""
    samples = case.sample(rng, (3,) * len(case.shapes))
    value, gradients = run(case, samples)
    for (name, odd), i, whole in itertools.product(ODD.items(), range(len(samples)), (True, False)):
        changed = [x.copy() for x in samples]
        if whole:
            changed[i][..., 1] = odd
        else:
            changed[i].reshape(-1, 3)[0, 1] = odd
        where = f"with {name} in {'all' if whole else 'one number'} of argument {i}"
        try:
            got, slopes = run(case, changed)
        except ValueError as error:
            refused = case.id.startswith(REFUSE) or str(error).startswith(CHOSEN_BY)
            if not refused or math.isfinite(odd):
                raise AssertionError(where) from error
            continue
        for a, b in zip([got, *slopes], [value, *gradients]):
            np.testing.assert_array_equal(a[..., ::2], b[..., ::2], where)
        if whole and math.isnan(odd) and not case.id.startswith(LOSE_NAN):
            assert np.isnan(got[..., 1]).any(), where


def test_losses_and_weights_of_nan(graph) -> None:
    x = dy.inputVector([0.5, math.nan, 1.0])
    assert math.isnan(dy.hinge(x, 0).value())
    assert math.isnan(dy.hinge(x, 1).value())
    assert dy.hinge(dy.inputVector([0.5, -math.inf, 1.0]), 0).value() == 1.5
    assert np.isnan(dy.sparsemax(x).npvalue()).all()
    assert dy.sparsemax(dy.inputVector([3e38, -3e38, 3e38])).npvalue().tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("scale", [1e-30, 1e-23, 1e-19, 1.0, 1e19, 1e30])
def test_weight_norm_of_tiny_and_huge_weights(scale: float, graph) -> None:
    w = np.array([3.0, -4.0, 12.0]) * scale
    x, g = dy.inputTensor(w), dy.scalarInput(2.0)
    y = dy.weight_norm(x, g)
    np.testing.assert_allclose(y.npvalue(), 2 * w / (13 * scale), rtol=1e-6)
    dy.dot_product(y, dy.inputTensor([1.0, 2.0, 3.0])).backward(full=True)
    unit, dy_ = w / (13 * scale), np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(g.gradient(), unit @ dy_, rtol=1e-5)
    np.testing.assert_allclose(x.gradient(), 2 / (13 * scale) * (dy_ - unit * (unit @ dy_)), rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-23, 1e23])
def test_norms_of_tiny_and_huge_numbers(scale: float, graph) -> None:
    x = np.array([3.0, -4.0, 12.0]) * scale
    assert dy.l2_norm(dy.inputTensor(x)).value() == pytest.approx(13 * scale, rel=1e-6)
    assert dy.std_elems(dy.inputTensor(x)).value() == pytest.approx(x.std(), rel=1e-6)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 7.5, 40, math.inf])
@pytest.mark.parametrize("axis", [0, 1])
def test_p_norms_beside_tiny_and_huge_numbers(axis: int, p: float, graph) -> None:
    """Each row or column is scaled by itself; the gradient of a norm of 0 is 0."""
    x = np.array([[3.0, -4.0, 12.0], [1.0, 2.0, -2.0]] * 3) * np.array([[1e-30, 1e-23, 1, 1e23, 1e30, 0]]).T
    x = x.T if axis == 0 else x
    e = dy.inputTensor(x)
    y = dy.norm(e, p, axis)
    size = np.abs(x)
    top = np.where(size.any(axis, keepdims=True), size.max(axis, keepdims=True), 1)
    if p == math.inf:
        want = size.max(axis, keepdims=True)
        slope = np.indices(x.shape)[axis] == size.argmax(axis)[None if axis == 0 else (slice(None), None)]
    else:
        want = top * ((size / top) ** p).sum(axis, keepdims=True) ** (1 / p)
        slope = (size / np.maximum(want, top)) ** (p - 1)
    np.testing.assert_allclose(y.npvalue(), want.squeeze(axis), rtol=2e-6)
    (2 * y).sum().backward(full=True)
    np.testing.assert_allclose(e.gradient(), 2 * np.sign(x) * slope, rtol=1e-5, atol=1e-6)


def test_the_greatest_of_a_norm(graph) -> None:
    """The first of equal elements gets the gradient; a NaN stays NaN."""
    x = dy.inputTensor([[1, -3], [3, 3]])
    dy.norm(x, math.inf).backward(full=True)
    np.testing.assert_array_equal(x.gradient(), [[0, 0], [1, 0]])
    assert math.isnan(dy.norm(dy.inputVector([1, math.nan, 2]), math.inf).value())


def test_weight_norm_of_zeros(graph) -> None:
    w = dy.inputTensor(np.array([[0, 3], [0, 4]]), batched=True)
    np.testing.assert_array_equal(
        dy.weight_norm(w, dy.scalarInput(10)).npvalue(), np.array([[math.nan, 6], [math.nan, 8]], np.float32)
    )


def test_an_ignored_exception_fails_a_process() -> None:
    """Programs that tests start fail where Python would only print "Exception ignored"."""
    program = "class A:\n    def __del__(self):\n        1 / 0\nA()\nprint('on')\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "Exception ignored" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "on" not in done.stdout
