"""Inputs: arrays of any shape, new values, and errors."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


def vector(*values):
    return dy.inputVector(list(values))


@pytest.mark.parametrize(
    ("make", "new", "desired"),
    [
        (lambda: dy.scalarInput(1), 2, [4]),
        (lambda: dy.scalarInput(1), np.float32(2), [4]),
        (lambda: vector(1, 2), [3, 4], [6, 8]),
        (lambda: vector(1, 2), np.array([3, 4]), [6, 8]),
        (lambda: dy.vecInput(2), [3, 4], [6, 8]),
        (lambda: dy.matInput(2, 2), [1, 2, 3, 4], [[2, 6], [4, 8]]),
        (lambda: dy.inputTensor(np.zeros((2, 2))), [[1, 2], [3, 4]], [[2, 4], [6, 8]]),
        (lambda: dy.inputTensor(np.zeros(2), batched=True), [1, 2], [[2, 4]]),
    ],
)
def test_set_computes_anew(make, new, desired, graph) -> None:
    x = make()
    y = x * 2
    y.value()
    x.set(new)
    assert y.npvalue().tolist() == desired
    assert (y + 0).npvalue().tolist() == desired


def test_set_of_picks(graph) -> None:
    p = dy.pick(vector(1, 2, 3), 0)
    y = p * 2
    assert y.value() == 2
    p.set_index(2)
    assert y.value() == 6


def test_set_with_the_wrong_size(graph) -> None:
    for new in ([3], [3, 4, 5], 3):
        with pytest.raises(ValueError, match="set: the value has shape"):
            dy.vecInput(2).set(new)
    with pytest.raises(TypeError, match="set: the value must hold real numbers"):
        dy.scalarInput(2).set("a")


def test_lists_of_arrays_are_batches(graph) -> None:
    x = dy.inputTensor([np.ones(2), np.zeros(2), np.full(2, 3)])
    assert x.dim() == ((2,), 3)
    assert x.npvalue().tolist() == [[1, 0, 3]] * 2
    assert dy.inputTensor([[1, 1], [0, 0]]).dim() == ((2, 2), 1)
    with pytest.raises(ValueError, match="inputTensor: the arrays of a batch differ in shape"):
        dy.inputTensor([np.ones(2), np.ones(3)])


def test_setting_an_input(graph, w, strategy) -> None:
    x = dy.vecInput(3)
    other = dy.inputVector([1, 1, 1])
    loss = dy.dot_product(w, dy.square(x) + other)
    assert loss.value() == 6
    for k in range(5):
        x.set([k, k, k])
        assert loss.value() == 6 * (k * k + 1)
        loss.backward()
    other.set(np.zeros(3))
    assert loss.value() == 6 * 16
    s = dy.scalarInput(1)
    s.set(7)
    assert s.value() == 7


def test_setting_an_input_wrongly(graph) -> None:
    x = dy.inputVector([1, 2, 3])
    for wrong in ([1, 2], [1, 2, 3, 4], 5, []):
        with pytest.raises(ValueError, match="set: the value has shape"):
            x.set(wrong)
    with pytest.raises(TypeError, match="real numbers"):
        x.set(["a", "b", "c"])
    assert x.value() == [1, 2, 3]


def test_inputs_are_copies(graph) -> None:
    a = np.ones(3, np.float32)
    x = dy.inputTensor(a)
    a[:] = 5
    assert x.value() == [1, 1, 1]
    x.npvalue()[:] = 7
    assert x.value() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: dy.zeros((2, -1)), ValueError),
        (lambda: dy.zeros((1,) * 8), ValueError),
        (lambda: dy.zeros((2.5,)), TypeError),
        (lambda: dy.zeros(("a",)), TypeError),
        (lambda: dy.zeros(3, batch_size=0), ValueError),
        (lambda: dy.zeros(3, batch_size=1.5), ValueError),
        (lambda: dy.zeros((1 << 30, 1 << 30)), MemoryError),
        (lambda: dy.zeros((1 << 31, 1)), ValueError),
        (lambda: dy.inputTensor([[1, 2], [3]]), ValueError),
        (lambda: dy.inputTensor(["a"]), TypeError),
        (lambda: dy.inputTensor([1j]), TypeError),
        (lambda: dy.inputTensor(None), TypeError),
        (lambda: dy.inputTensor(1.0, batched=True), ValueError),
        (lambda: dy.inputTensor(np.zeros((1,) * 8)), ValueError),
        (lambda: dy.inputTensor(np.zeros((3, 0)), batched=True), ValueError),
        (lambda: dy.inputVector(3), ValueError),
        (lambda: dy.inputVector([[1, 2]]), ValueError),
        (lambda: dy.inputMatrix([1, 2, 3], (2, 2)), ValueError),
        (lambda: dy.scalarInput([1, 2]), ValueError),
        (lambda: dy.inputVector([1], device="GPU:9"), RuntimeError),
    ],
)
def test_inputs_that_are_not_possible(make, error, graph) -> None:
    with pytest.raises(error):
        make()
    assert dy.ones(2).value() == [1, 1]


def test_empty_tensors(graph) -> None:
    x = dy.zeros((0,))
    y = dy.tanh(x) + 1
    assert y.npvalue().shape == (0,)
    assert y.value() == []
    assert dy.dot_product(x, x).value() == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dy.vecInput("a"), TypeError, "vecInput: shape .* must hold whole numbers"),
        (lambda: dy.vecInput(-1), ValueError, "vecInput: axis 0 of shape .* is out of range"),
        (lambda: dy.vecInput(2.5), TypeError, "vecInput: shape .* must hold whole numbers"),
        (lambda: dy.matInput(2, None), TypeError, "matInput: shape .* must hold whole numbers"),
    ],
)
def test_sizes_of_empty_inputs(make, error, message: str, graph) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("number", [0, 1, -3, 2.5, -0.0, 2**31 - 1, 2**40, 1e-45, float("inf"), float("nan"), True])
@pytest.mark.parametrize("forward_only", [False, True])
def test_one_number_is_an_input_as_an_array_of_it(number, forward_only: bool) -> None:
    """Numbers that need no array give the same nodes as arrays."""
    dy.renew_cg(forward_only=forward_only)
    found, desired = dy.scalarInput(number), dy.scalarInput(np.array([number]))
    assert type(found) is type(desired)
    assert (found.dim(), found.dtype) == (desired.dim(), desired.dtype)
    np.testing.assert_array_equal(found.npvalue().view(np.int32), desired.npvalue().view(np.int32))


@pytest.mark.parametrize("number", [0, 7, -3, 2**31 - 1, -(2**31), True])
@pytest.mark.parametrize("forward_only", [False, True])
def test_one_index_is_an_input_as_an_array_of_it(number, forward_only: bool) -> None:
    dy.renew_cg(forward_only=forward_only)
    found, desired = dy.input_indices(number), dy.input_indices(np.array([number]))
    assert type(found) is type(desired)
    assert (found.dim(), found.dtype, found.value()) == (desired.dim(), desired.dtype, desired.value())
    if not forward_only:
        found.set(5)
        assert found.value() == 5
        with pytest.raises(ValueError, match="the value has shape"):
            found.set([1, 2])
