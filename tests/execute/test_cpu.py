"""Forward and backward passes on the CPU: what is computed, when, and which gradients exist."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.model.parameters import const_parameter


def test_only_what_is_needed(graph) -> None:
    x = dy.inputVector([1, 2])
    a = dy.tanh(x)
    b = dy.exp(a)
    dy.exp(x)
    assert graph.n_batches() == 0
    a.forward()
    assert graph.n_batches() == 1
    b.forward()
    assert graph.n_batches() == 2


def test_computed_values_stand(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    y = dy.exp(dy.tanh(x))
    y.value()
    n = graph.n_batches()
    for _ in range(3):
        y.value()
        y.npvalue()
        y.forward()
    assert graph.n_batches() == n == 2
    z = y + 1
    z.value()
    assert graph.n_batches() == 3


def test_backward_computes_nothing_twice(graph, w, strategy) -> None:
    loss = dy.dot_product(w, dy.tanh(w))
    loss.value()
    n = graph.n_batches()
    loss.backward()
    loss.backward()
    assert graph.n_batches() == n


def test_nan_and_infinity_pass_through(graph, w, strategy) -> None:
    x = dy.inputVector([np.nan, np.inf, 1])
    y = dy.cmult(x, w)
    np.testing.assert_array_equal(y.npvalue(), [np.nan, np.inf, 3])
    dy.dot_product(y, dy.ones(3)).backward()
    np.testing.assert_array_equal(w.grad_as_array(), [np.nan, np.inf, 1])


def test_backward_adds_to_parameters_and_anew_to_expressions(graph, w, strategy) -> None:
    y = w * 3
    loss = dy.dot_product(y, dy.ones(3))
    for k in range(1, 4):
        loss.backward()
        np.testing.assert_array_equal(w.grad_as_array(), [3 * k] * 3)
        np.testing.assert_array_equal(y.gradient(), [1, 1, 1])


def test_backward_of_several_losses(graph, w, strategy) -> None:
    a = dy.dot_product(w, dy.ones(3))
    b = dy.dot_product(dy.square(w), dy.ones(3))
    b.value()
    a.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [1, 1, 1])
    b.backward()
    np.testing.assert_array_equal(w.grad_as_array(), [3, 5, 7])


def test_gradient_is_zero_where_the_loss_does_not_depend(graph, w, strategy) -> None:
    on, off = (dy.cmult(w, dy.ones(3)) * 2 for _ in range(2))
    never = dy.tanh(w)
    # The two nodes are one call, and the memory of both gradients has been written before.
    dy.dot_product(dy.esum([on, off]), dy.ones(3) * 7.0).backward()
    w.scale_gradient(0)
    dy.dot_product(on, dy.ones(3)).backward()
    np.testing.assert_array_equal(w.grad_as_array(), [2, 2, 2])
    np.testing.assert_array_equal(on.gradient(), [1, 1, 1])
    np.testing.assert_array_equal(off.gradient(), [0, 0, 0])
    np.testing.assert_array_equal(never.gradient(), [0, 0, 0])


def test_gradient_of_what_was_not_computed(graph, collection, w) -> None:
    table = collection.lookup_parameters_from_numpy(np.ones((4, 3)))
    row, unused = table[1], table[2]
    dy.dot_product(w, row).backward()
    np.testing.assert_array_equal(row.gradient(), [1, 2, 3])
    np.testing.assert_array_equal(unused.gradient(), [0, 0, 0])
    np.testing.assert_array_equal(w.gradient(), [1, 1, 1])


def test_gradient_needs_backward(graph, w) -> None:
    x = dy.ones(3)
    y = dy.cmult(w, x)
    with pytest.raises(RuntimeError, match="gradient: run backward"):
        y.gradient()
    loss = dy.dot_product(y, x)
    loss.backward()
    np.testing.assert_array_equal(x.gradient(), 2 * np.array([1, 2, 3]))
    later = loss + 1
    with pytest.raises(RuntimeError, match="gradient: run backward"):
        later.gradient()
    loss.backward(full=True)
    np.testing.assert_array_equal(x.gradient(), np.array([1, 2, 3]) + 1 * np.array([1, 2, 3]))


def test_backward_needs_a_scalar(graph, w) -> None:
    with pytest.raises(ValueError, match=r"backward: the expression has shape \{3\}, not one element"):
        (w * 2).backward()


def test_backward_of_a_batch_is_that_of_its_sum(graph, w, strategy) -> None:
    x = dy.inputTensor(np.arange(12.0).reshape(3, 4), batched=True)
    dy.dot_product(w, x).backward()
    np.testing.assert_array_equal(w.grad_as_array(), np.arange(12.0).reshape(3, 4).sum(1))


@pytest.mark.usefixtures("on_each_device")
def test_backward_from_leaves(graph, collection) -> None:
    p = collection.parameters_from_numpy(np.array([5.0]))
    p.backward()
    p.backward()
    assert p.grad_as_array().tolist() == [2]
    dy.scalarInput(3).backward()
    const_parameter(p).backward()
    assert p.grad_as_array().tolist() == [2]


def test_constants_have_no_gradient(graph, w, strategy) -> None:
    y = dy.cmult(const_parameter(w), w)
    dy.dot_product(y, dy.ones(3)).backward()
    np.testing.assert_array_equal(w.grad_as_array(), [1, 2, 3])


def test_equal_nodes_run_together(w, collection) -> None:
    m = collection.parameters_from_numpy(np.eye(3) * 2)
    expected = {0: 27, 1: 3, 2: 3}  # without batching, the sum absorbs the product
    for strategy, calls in expected.items():
        graph = dy.renew_cg(autobatching=strategy)
        ys = [dy.tanh(m * dy.inputVector([k, k, k]) + dy.inputVector([1, 2, 3])) for k in range(13)]
        dy.esum(ys).forward()
        assert graph.n_batches() == calls + (1 if strategy else 0)
        for k, y in enumerate(ys):
            np.testing.assert_allclose(y.npvalue(), np.tanh(2.0 * k + np.array([1, 2, 3])), rtol=1e-5)
    dy.renew_cg()


def test_nodes_of_nothing_but_parameters(w, strategy) -> None:
    """Batches of one op on the same parameter: no argument has as many elements as the batch."""
    graph = dy.renew_cg()
    ys = [dy.rectify(w) for _ in range(4)] + [dy.cmult(w, w) for _ in range(4)] + [dy.tanh(w) for _ in range(2)]
    loss = dy.dot_product(dy.esum(ys), dy.ones(3))
    assert loss.value() == pytest.approx(24 + 56 + 2 * np.tanh([1, 2, 3]).sum())
    loss.backward()
    np.testing.assert_allclose(w.grad_as_array(), 4 + 8 * np.array([1, 2, 3]) + 2 / np.cosh([1, 2, 3]) ** 2, rtol=1e-5)
    assert len(graph) > 10


def test_an_argument_occurs_twice_in_one_call(graph, w, strategy) -> None:
    x = dy.cmult(w, dy.ones(3))
    ys = [dy.tanh(x), dy.tanh(x), dy.tanh(x)]
    dy.dot_product(dy.esum(ys), dy.ones(3)).backward()
    np.testing.assert_allclose(w.grad_as_array(), 3 / np.cosh([1, 2, 3]) ** 2, rtol=1e-5)


@pytest.mark.parametrize("chosen", [1, 2])
def test_deep_and_wide_graphs(chosen: int, collection) -> None:
    w = collection.parameters_from_numpy(np.full(4, 0.5))
    results = []
    for autobatching in (0, chosen):
        dy.renew_cg(autobatching=autobatching)
        y = dy.zeros(4)
        for k in range(3000):
            y = dy.tanh(dy.cmult(w, y) + k % 3)
        wide = dy.esum([dy.tanh(w * float(k % 7)) for k in range(3000)])
        results.append(np.concatenate([y.npvalue(), wide.npvalue()]))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    dy.renew_cg()


def test_what_is_added_to_a_small_parameter_is_summed_up_first(graph, strategy) -> None:
    """Added one by one to the large gradient that is there, contributions would be rounded away."""
    b = dy.ParameterCollection().add_parameters(2, init=0)
    dy.dot_product(b, dy.inputVector([2**26, 2**26])).backward()
    dy.renew_cg()
    x = dy.zeros(2)
    for _ in range(64):
        x = x + b
    dy.sum_elems(x).backward()
    np.testing.assert_array_equal(b.grad_as_array(), [2**26 + 64] * 2)


def test_sums_of_small_parameters_are_added_once(graph, strategy) -> None:
    """Several parameters in turn, two backward passes over one graph, together with rows and large matrices."""
    model = dy.ParameterCollection()
    small = [model.add_parameters(3, init=0) for _ in range(3)]
    large = model.add_parameters((3, 700), init=0)
    x = dy.zeros(3)
    for i in range(9):
        x = x + small[i % 3] + large * dy.ones(700)
    loss = dy.sum_elems(x)
    loss.backward()
    loss.backward()
    for p in small:
        np.testing.assert_array_equal(p.grad_as_array(), [6] * 3)
    np.testing.assert_array_equal(large.grad_as_array(), np.full((3, 700), 18))
