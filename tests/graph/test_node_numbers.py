"""Methods of graphs that take node numbers, and the value holders (`FloatValue`, ...)."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy


def test_forward_and_backward_by_number() -> None:
    collection = dy.ParameterCollection()
    w = collection.add_parameters(3, init=2.0)
    graph = dy.renew_cg()
    x = dy.inputVector([1, 2, 3])
    dy.dot_product(x, w)
    last = len(graph) - 1
    graph.forward(last)
    graph.inc_forward(last)
    assert graph.forward_scalar(last) == graph.inc_forward_scalar(last) == 12
    assert graph.forward_vec(0) == graph.inc_forward_vec(0) == [1, 2, 3]
    graph.backward(last)
    assert w.grad_as_array().tolist() == [1, 2, 3]
    for method in (graph.forward, graph.forward_scalar, graph.forward_vec, graph.backward):
        with pytest.raises(IndexError, match=f"has {last + 1} nodes"):
            method(last + 1)


def test_inputs_of_a_graph() -> None:
    graph = dy.renew_cg()
    sparse = graph.inputSparseTensor([1, 3], [5.0, 6.0], (2, 3))
    np.testing.assert_array_equal(sparse.npvalue(), [[0, 0, 0], [5, 6, 0]])
    batched = graph.inputSparseTensor([1, 7], [5.0, 6.0], (2, 2), 2, 0.5)
    np.testing.assert_array_equal(batched.npvalue()[..., 0], [[0.5, 0.5], [5, 0.5]])
    np.testing.assert_array_equal(batched.npvalue()[..., 1], [[0.5, 0.5], [0.5, 6]])
    matrix = graph.inputMatrixLiteral(range(1, 9), (2, 2), 2)
    np.testing.assert_array_equal(matrix.npvalue()[..., 0], [[1, 3], [2, 4]])
    with pytest.raises(IndexError, match="inputSparseTensor: place 6 is not from 0 to 5"):
        graph.inputSparseTensor([6], [1.0], (2, 3))
    with pytest.raises(ValueError, match="inputSparseTensor: idxs has 2 places for 1 numbers"):
        graph.inputSparseTensor([0, 1], [1.0], (2, 3))
    with pytest.raises(TypeError, match="inputSparseTensor: idxs must be a list of whole numbers"):
        graph.inputSparseTensor([0.5], [1.0], (2, 3))
    with pytest.raises(ValueError, match="has 3 numbers"):
        graph.inputMatrixLiteral([1, 2, 3], (2, 2))


def test_input_values() -> None:
    number, count = dy.FloatValue(), dy.UnsignedValue(3)
    assert (number.get(), count.get()) == (0, 3)
    number.set(2.5)
    count.set(4)
    assert (number.get(), count.get()) == (2.5, 4)
    for holder in (dy.FloatVectorValue([1, 2]), dy.UnsignedVectorValue([1, 2])):
        assert (holder.get(), holder.size()) == ([1, 2], 2)
        holder.set([3, 4, 5])
        assert (holder.get(), holder.size()) == ([3, 4, 5], 3)
    for bad in (lambda: dy.UnsignedValue(-1), lambda: count.set(2**32), lambda: dy.UnsignedVectorValue([1, 0.5])):
        with pytest.raises(ValueError, match="unsigned"):
            bad()
