"""Indices of expressions: as in NumPy, with integers of any type, and errors."""

from __future__ import annotations

import re

import numpy as np
import pytest
from integers import Integers

import dynet_cy as dy


def vector(*values):
    return dy.inputVector(list(values))


def matrix():
    return dy.inputTensor([[1, 2], [3, 4]])


CUBE = np.arange(24.0).reshape(2, 3, 4)


KEYS = [
    *[0, -1, np.int64(1), np.uint8(0), slice(None), slice(0, 1), slice(1, None), slice(-1, None), slice(None, -1)],
    *[slice(None, None, -1), slice(0, 10), slice(5, 10), slice(1, 1), slice(np.int64(0), np.int64(1)), ...],
    *[(0, 1), (0, 1, 2), (-1, -1, -1), (0, slice(1, 3)), (slice(None), 1), (slice(0, 1), slice(0, 2), slice(1, 4, 2))],
    *[(slice(None), slice(None, None, -1), slice(None, None, -2)), (..., 2), (1, ..., 2), (slice(0, 0), 0)],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indices_are_numpys(key, graph) -> None:
    y = dy.inputTensor(CUBE)[key]
    desired = CUBE[key]
    assert y.dim() == (desired.shape or (1,), 1)
    np.testing.assert_array_equal(y.npvalue(), desired.reshape(desired.shape or (1,)))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_gradients_of_indices(key, graph) -> None:
    x = dy.inputTensor(CUBE)
    dy.sum_elems(x[key] * 2).backward(full=True)
    desired = np.zeros(CUBE.shape)
    desired[key] = 2
    np.testing.assert_array_equal(x.gradient(), desired)


def test_indices_of_batches(graph) -> None:
    """An index after those of the axes selects batch elements."""
    x = dy.inputTensor(CUBE, batched=True)
    assert x[0].dim() == ((3,), 4)
    assert x[0, 1:].dim() == ((2,), 4)
    assert x[:, :, 1:3].dim() == ((2, 3), 2)
    np.testing.assert_array_equal(x[:, ::-1, 1].npvalue(), CUBE[:, ::-1, 1])
    with pytest.raises(IndexError, match="4 indices for 2 axes and the batch"):
        x[0, 0, 0, 0]


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        (3, IndexError, "Index too large: 3 > 2"),
        (-4, IndexError, "Index too small: -4 < -3"),
        (np.int64(3), IndexError, "Index too large"),
        ((0, 0, 0), IndexError, "3 indices for 1 axes and the batch"),
        (slice(None, None, 0), ValueError, "step of a slice must not be 0"),
        *[(k, TypeError, "an index must be a number") for k in [1.0, "a", (0, "b")]],
    ],
    ids=str,
)
def test_wrong_indices(key, error, match: str, graph) -> None:
    with pytest.raises(error, match=match):
        vector(1, 2, 3)[key]


def test_expressions_are_sequences(graph) -> None:
    e = vector(1, 2, 3)
    assert [x.value() for x in e] == [1, 2, 3]
    a, b = matrix()
    assert (a.value(), b.value()) == ([1, 2], [3, 4])
    assert [x.value() for x in reversed(e)] == [3, 2, 1]
    assert dy.scalarInput(3)[0].value() == 3


A = np.arange(24.0).reshape(4, 3, 2) / 8


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ([4], IndexError, "Index too large: 4 > 3 along axis 0"),
        ([0, 2**63], IndexError, "[]: an index is 9223372036854775808, but no axis has more than 2147483647 elements"),
        ([2**63 + 1], IndexError, "[]: an index is 9223372036854775809, but no axis has more"),
        (np.array([0, -(2.0**70)]), IndexError, "[]: an index is -1180591620717411303424, but no axis has more"),
        ((slice(None), [-4]), IndexError, "Index too small: -4 < -3 along axis 1"),
        ([True, False], IndexError, "a mask of shape (2,) does not fit axes of sizes (4,)"),
        ([0.5], TypeError, "a list of indices must hold whole numbers or bools"),
        (([0, 1], [0, 1, 2]), IndexError, "index lists of shapes [(2,), (3,)] do not broadcast"),
        (([0], slice(None), [1]), TypeError, "lists and masks of an index must stand side by side"),
        ("a", TypeError, "an index must be a number, a slice, a list of numbers or bools, None, or a tuple"),
        ((0,) * 5, IndexError, "5 indices for 3 axes and the batch"),
    ],
)
def test_wrong_indices_and_their_messages(key, error, message: str, graph) -> None:
    x = dy.inputTensor(A)
    with pytest.raises(error, match=re.escape(message)):
        x[key]
    assert x[0].shape == (3, 2)


def test_a_comparison_is_no_index(graph) -> None:
    """As an index of NumPy it would select some elements; zeros and ones as positions are never meant."""
    x = dy.inputTensor([[1, 2], [3, 4]])
    for key in (x > 1, (slice(None), (x > 1) & (x < 4))):
        with pytest.raises(TypeError, match="a comparison cannot be an index: .* use where"):
            x[key]


def test_lists_of_batch_elements(graph) -> None:
    x = dy.inputTensor(A, batched=True)
    np.testing.assert_allclose(x[:, :, [1, 0, 1]].npvalue(), A[:, :, [1, 0, 1]])
    np.testing.assert_allclose(x[[3, 0]].npvalue(), A[[3, 0]])


INDICES = {
    "pick": (lambda x, i: dy.pick(x, i), False),
    "getitem": (lambda x, i: x[i], False),
    "getitem-list": (lambda x, i: x[i], True),
    "pick_range": (lambda x, i: dy.pick_range(x, i, 3), False),
    "pick_batch": (lambda x, i: dy.pick_batch(x, i), True),
    "pick_batch_elem": (lambda x, i: dy.pick_batch_elem(dy.concatenate_to_batch([x, x, 2 * x]), i), False),
    "pick_batch_elems": (lambda x, i: dy.pick_batch_elems(dy.concatenate_to_batch([x, x, 2 * x]), i), True),
    "select_rows": (lambda x, i: dy.select_rows(x, i), True),
    "select_cols": (lambda x, i: dy.select_cols(x * dy.ones((1, 3)), i), True),
    "one_hot": (lambda x, i: dy.one_hot(4, i), False),
    "one_hot-list": (lambda x, i: dy.one_hot(4, i), True),
    "pickneglogsoftmax": (lambda x, i: dy.pickneglogsoftmax(x, i), False),
    "pickneglogsoftmax_batch": (lambda x, i: dy.pickneglogsoftmax_batch(dy.concatenate_to_batch([x, x]), i), True),
    "hinge": (lambda x, i: dy.hinge(x, i), False),
    "hinge_batch": (lambda x, i: dy.hinge_batch(dy.concatenate_to_batch([x, x]), i), True),
    "log_softmax": (lambda x, i: dy.log_softmax(x, i), True),
    "poisson_loss": (lambda x, i: dy.poisson_loss(x[0], i), False),
    "set_index": (lambda x, i: (y := dy.pick(x, 0)).set_index(i) or y, False),
}


@pytest.mark.parametrize("name", INDICES)
def test_integers_of_any_library(name: str, graph) -> None:
    use, several = INDICES[name]
    x = dy.inputVector([1, 2, 4, 8])
    given = [1, 2] if several else 2
    desired = use(x, given).npvalue()
    kinds = [np.array(given, np.int32), np.array(given, np.uint8), Integers(given), np.array(given, np.int64)]
    for kind in kinds + ([] if several else [np.int16(given), np.uint64(given)]):
        np.testing.assert_array_equal(use(x, kind).npvalue(), desired)
