"""Values and gradients of expressions as numbers, lists and arrays."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


def vector(*values):
    return dy.inputVector(list(values))


def matrix():
    return dy.inputTensor([[1, 2], [3, 4]])


def test_values(graph) -> None:
    """Arrays and lists have the same shapes as in DyNet."""

    def batch(shape):
        return dy.inputTensor(np.arange(float(np.prod(shape))).reshape(shape), batched=True)

    assert type(dy.scalarInput(3).value()) is float
    assert dy.scalarInput(3).npvalue().tolist() == [3]
    assert type(vector(1, 2).value()) is list
    assert type(vector(1, 2).value()[0]) is float
    assert vector(1, 2).npvalue().shape == (2,)
    assert batch((3,)).dim() == ((1,), 3)
    assert batch((3,)).value() == [0, 1, 2]
    assert batch((3,)).npvalue().tolist() == [[0, 1, 2]]
    assert batch((2, 3)).npvalue().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch((2, 3)).vec_value() == [0, 3, 1, 4, 2, 5]
    assert matrix().value().tolist() == [[1, 2], [3, 4]]
    assert matrix().vec_value() == [1, 3, 2, 4]
    for shape in [(2, 1), (1, 2), (2, 2, 1)]:
        assert dy.zeros(shape).value().shape == shape
    for x in [matrix(), vector(1, 2), batch((2, 2, 3))]:
        assert x.npvalue().dtype == np.float64
        assert dy.npvalues([x])[0].dtype == np.float64
    value = matrix().npvalue()
    value[0, 0] = 7  # a copy, which may be written
    assert dy.inputTensor([[1.0]]).value().tolist() == [[1]]
    assert batch((2, 3)).value() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("make", [lambda: vector(1, 2), matrix, lambda: dy.inputTensor([1, 2], batched=True)])
def test_scalar_value_of_more(make, graph) -> None:
    with pytest.raises(ValueError, match="scalar_value: the expression has shape"):
        make().scalar_value()


def test_gradients_are_arrays_of_doubles(graph) -> None:
    x = vector(1, 2)
    dy.dot_product(x, x).backward(full=True)
    assert x.gradient().dtype == np.float64
    assert x.gradient().tolist() == [2, 4]


def test_forms_of_values(graph) -> None:
    m = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = dy.inputTensor(m)
    np.testing.assert_array_equal(x.npvalue(), m)
    np.testing.assert_array_equal(x.value(), m)
    np.testing.assert_array_equal(x.tensor_value(), m)
    assert x.vec_value() == m.ravel(order="F").tolist()
    assert x.npvalue().dtype == np.float64
    assert dy.scalarInput(2).value() == 2.0
    assert isinstance(dy.scalarInput(2).value(), float)
    assert dy.scalarInput(2).scalar_value() == 2.0
    b = dy.inputTensor(m, batched=True)
    assert b.dim() == ((2,), 3)
    np.testing.assert_array_equal(b.npvalue(), m)
    with pytest.raises(ValueError, match=r"scalar_value: the expression has shape \{2\} x 3"):
        b.scalar_value()
    assert len(x) == 2


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((), 1, 0.0),
        ((1,), 1, 0.0),
        ((), 3, [0.0, 1.0, 2.0]),
        ((1,), 3, [0.0, 1.0, 2.0]),
        ((3,), 1, [0.0, 1.0, 2.0]),
        ((2,), 2, [0.0, 1.0, 2.0, 3.0]),
        ((1, 1), 1, np.array([[0.0]])),
        ((2, 1), 1, np.array([[0.0], [1.0]])),
        ((1, 1), 2, np.array([[[0.0, 1.0]]])),
        ((1, 2), 2, np.array([[[0.0, 2.0], [1.0, 3.0]]])),
    ],
)
def test_type_of_value_follows_the_number_of_axes(shape, size, expected, graph) -> None:
    x = dy.reshape(dy.inputVector(np.arange(np.prod(shape, dtype=int) * size)), shape, size)
    for value in (x.value(), dy.values([x])[0]):
        assert type(value) is type(expected)
        np.testing.assert_array_equal(value, expected)
