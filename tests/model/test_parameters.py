"""Parameters as expressions: values, gradients, shapes."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


def vector(*values):
    return dy.inputVector(list(values))


def gradient(collection, loss) -> list[float]:
    w = collection.parameters_from_numpy(np.array([1.0, 2.0]))
    loss(w).backward()
    return w.grad_as_array().tolist()


@pytest.mark.parametrize(
    ("loss", "desired"),
    [
        (lambda w: dy.sum_elems(w.expr() * 2), [0, 0]),
        (lambda w: dy.sum_elems(w.expr(True) * 2), [2, 2]),
        (lambda w: dy.sum_elems(w.expr(update=True) * 2), [2, 2]),
        (lambda w: dy.sum_elems(w * 2), [2, 2]),
        (lambda w: dy.sum_elems(dy.parameter(w) * 2), [2, 2]),
        (lambda w: dy.sum_elems(dy.const_parameter(w) * 2), [0, 0]),
        (lambda w: dy.sum_elems(w) + dy.sum_elems(w.expr()), [1, 1]),
        (lambda w: w[0], [1, 0]),
        (lambda w: w[-1] ** 2, [0, 4]),
        (lambda w: dy.pick(w, 1), [0, 1]),
        (lambda w: dy.sum_elems(dy.concatenate([w, w])), [2, 2]),
        (lambda w: dy.sum_elems(dy.esum([w, w, 1 - w])), [1, 1]),
        (lambda w: dy.sum_elems(-w / 2), [-0.5, -0.5]),
        (lambda w: dy.dot_product(w[0:1], w[::-1][0:1]), [2, 1]),
    ],
)
def test_parameters_are_expressions(loss, desired, collection) -> None:
    assert gradient(collection, loss) == desired


def test_values_of_parameters(collection) -> None:
    w = collection.parameters_from_numpy(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert w.value().tolist() == w.npvalue().tolist() == [[1, 2], [3, 4]]
    assert w.dim() == ((2, 2), 1)
    assert w[0].value() == [1, 2]
    assert dy.parameter([w]) is not None
    assert dy.parameter((w, w))[1].dim() == ((2, 2), 1)


def test_shapes_from_divisions(collection) -> None:
    assert dy.zeros(128 / 2).dim() == ((64,), 1)
    assert dy.ones((64 / 2, 2)).dim() == ((32, 2), 1)
    assert dy.constant(3.0, 1).dim() == ((3,), 1)
    assert dy.random_normal(4 / 2).dim() == ((2,), 1)
    assert dy.vecInput(4 / 2).dim() == ((2,), 1)
    assert dy.zeros(2, batch_size=4 / 2).dim() == ((2,), 2)
    assert dy.reshape(dy.zeros(6), (6 / 2, 2.0)).dim() == ((3, 2), 1)
    assert collection.add_parameters((6 / 2, 2)).dim() == ((3, 2), 1)
    with pytest.raises(TypeError, match=r"reshape: an axis of the shape must be a whole number, not 2\.5"):
        dy.reshape(dy.zeros(5), (2.5, 2))
    with pytest.raises(TypeError, match="zeros: shape .* must hold whole numbers"):
        dy.zeros(2.5)


def test_nothing(collection) -> None:
    for shape in [(0,), (0, 3), (3, 0)]:
        x = dy.zeros(shape)
        assert x.dim() == (shape, 1)
        assert x.npvalue().shape == shape
    assert dy.inputVector([]).value() == []
    assert dy.sum_elems(dy.zeros((0, 3))).value() == 0
    assert (dy.zeros((2, 0)) * dy.zeros(0)).value() == [0, 0]
    assert vector(1, 2)[1:1].value() == []
    assert dy.concatenate([dy.zeros(0), vector(1)]).value() == 1


def test_backward(collection) -> None:
    """Backward runs forward if needed, and adds to existing gradients."""
    w = collection.parameters_from_numpy(np.array([1.0, 2.0]))
    x = dy.vecInput(2)
    loss = dy.dot_product(w, x)
    x.set([1, 2])
    loss.backward()
    assert w.grad_as_array().tolist() == [1, 2]
    loss.backward()
    assert w.grad_as_array().tolist() == [2, 4]
    x.set([3, 4])
    assert loss.value() == 11
    loss.backward()
    assert w.grad_as_array().tolist() == [5, 8]
    with pytest.raises(ValueError, match="backward: the expression has shape .2., not one element"):
        (w * 2).backward()


def test_shape_of_parameters() -> None:
    model = dy.ParameterCollection()
    w, table = model.add_parameters((4, 3)), model.add_lookup_parameters((7, 2))
    assert w.shape == w.shape() == (4, 3)
    assert table.shape == table.shape() == (7, 2) == table.as_array().shape
    assert table.dim() == ((2, 7), 1)
    assert table.T.shape == (7, 2)
    assert (table @ np.eye(7)).shape == (2, 7)
