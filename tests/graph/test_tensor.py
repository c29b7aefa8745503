"""Values as Tensors."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy

A = np.array([[1.0, 5.0, 3.0], [7.0, 2.0, 9.0]])


def test_values_outlive_the_graph() -> None:
    dy.renew_cg()
    tensor = dy.inputTensor(A).tensor_value()
    dy.renew_cg()
    dy.inputTensor(A * 0).value()
    np.testing.assert_array_equal(tensor.as_numpy(), A)
    np.testing.assert_array_equal(np.asarray(tensor), A)
    tensor.as_numpy()[0] = 0
    np.testing.assert_array_equal(tensor.as_numpy(), A)
    assert str(tensor) == "<Tensor of float, shape (2, 3)>"
    assert str(tensor.argmax()) == "<Tensor of int, shape (1, 3)>"


def test_largest() -> None:
    """The expected numbers are DyNet's."""
    dy.renew_cg()
    tensor = dy.inputTensor(A).tensor_value()
    np.testing.assert_array_equal(tensor.argmax().as_numpy(), [[1, 0, 1]])
    np.testing.assert_array_equal(tensor.argmax(1).as_numpy(), [[1], [2]])
    np.testing.assert_array_equal(tensor.argmax(1, 2).as_numpy(), [[1, 2], [2, 0]])
    values, places = tensor.topk(0, 2)
    np.testing.assert_array_equal(values.as_numpy(), [[7, 5, 9], [1, 2, 3]])
    np.testing.assert_array_equal(places.as_numpy(), [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(dy.inputVector([3.0, 9.0, 4.0]).tensor_value().argmax().as_numpy(), [1])
    batch = dy.inputTensor(np.eye(4)[:, :3], batched=True).tensor_value()
    np.testing.assert_array_equal(batch.argmax().as_numpy(), [[0, 1, 2]])


def test_axes_of_one_element() -> None:
    """An axis beyond those of the shape has one element; it is not the batch."""
    dy.renew_cg()
    batch = dy.inputTensor(np.eye(4)[:, :3], batched=True).tensor_value()
    values, places = batch.topk(1)
    np.testing.assert_array_equal(values.as_numpy(), np.eye(4)[:, :3])
    np.testing.assert_array_equal(places.as_numpy(), np.zeros((4, 3), int))
    assert batch.categorical_sample_log_prob(2, 5).as_numpy().shape == (4, 5, 3)
    with pytest.raises(ValueError, match="Tensor.topk: num is 2, but axis 1"):
        batch.argmax(1, 2)


def test_samples(rng: np.random.Generator) -> None:
    p = np.array([[0.1, 0.5], [0.2, 0.5], [0.7, 0.0]])
    dy.renew_cg()
    with np.errstate(divide="ignore"):
        tensor = dy.inputTensor(np.log(p)).tensor_value()
    draws = tensor.categorical_sample_log_prob(0, 2000).as_numpy()
    assert draws.shape == (2000, 2)
    counts = np.stack([np.bincount(draws[:, i], minlength=3) for i in range(2)], 1) / 2000
    np.testing.assert_allclose(counts, p, atol=0.06)
    assert counts[2, 1] == 0
    again = dy.inputTensor(np.zeros((2, 3))).tensor_value().categorical_sample_log_prob(1).as_numpy()
    assert again.shape == (2, 1)


def test_errors() -> None:
    dy.renew_cg()
    tensor = dy.inputTensor(A).tensor_value()
    for axis in (-1, 7):
        with pytest.raises(IndexError, match=f"Tensor.topk: dim is {axis}, axes are counted from 0 to 6"):
            tensor.argmax(axis)
    with pytest.raises(ValueError, match=r"Tensor.topk: num is 3, but axis 0 of shape \(2, 3\)"):
        tensor.topk(0, 3)
    with pytest.raises(IndexError, match="categorical_sample_log_prob: dim is 8"):
        tensor.categorical_sample_log_prob(8)
    with pytest.raises(ValueError, match="num is 0, at least 1 is needed"):
        tensor.categorical_sample_log_prob(0, 0)


def test_power_operator() -> None:
    dy.renew_cg()
    x = dy.inputVector([1.0, 2.0])
    assert (x**3).value() == [1.0, 8.0]
    assert (x ** dy.scalarInput(2)).value() == [1.0, 4.0]
    assert (2**x).value() == [2.0, 4.0]
    with pytest.raises(TypeError):
        pow(x, 2, 3)
