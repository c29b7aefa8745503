"""Gradients of the expressions of parameters: those of the last backward pass."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import dynet_cy as dy


@pytest.fixture
def model():
    pc = dy.ParameterCollection()
    W = pc.parameters_from_numpy(np.array([[1.0, 2.0], [3.0, -1.0]]), "W")
    E = pc.lookup_parameters_from_numpy(np.array([[1.0, 1.0], [2.0, -3.0], [0.5, 4.0]]), "E")
    return pc, W, E


@pytest.mark.parametrize("full", [False, True])
def test_of_this_pass_only(graph, strategy, model, full: bool) -> None:
    """Gradients that earlier passes and other graphs added to the parameter do not count."""
    _, W, E = model
    x = np.array([3.0, 5.0])
    for n in range(3):
        dy.renew_cg()
        w = W.expr(True)
        y = w * dy.inputVector(x)
        dy.sum_elems(y).backward(full)
        np.testing.assert_array_equal(w.gradient(), [x, x])
        np.testing.assert_array_equal(W.gradient(), [x, x])
        np.testing.assert_array_equal(W.grad_as_array(), [(2 * n + 1) * x, (4 * n + 1) * x])
        dy.dot_product(y, dy.inputVector([1, 3])).backward(full)
        np.testing.assert_array_equal(w.gradient(), [x, 3 * x])
        np.testing.assert_array_equal(y.gradient(), [1, 3])
        np.testing.assert_array_equal(W.grad_as_array(), [(2 * n + 2) * x, (4 * n + 4) * x])


def test_of_this_expression_only(graph, strategy, model) -> None:
    """The whole table, its rows and the constant have separate gradients."""
    _, W, E = model
    table, row, again = E.expr(), E[1], E[1]
    constant, trained = dy.const_parameter(W), W.expr(True)
    loss = dy.sum_elems(table) + 2 * dy.sum_elems(row) + 3 * dy.sum_elems(again)
    loss += 5 * dy.sum_elems(constant) + 7 * dy.sum_elems(trained)
    loss.backward(full=True)
    gradients = [(table, 1), (row, 2), (again, 3), (constant, 5), (trained, 7), (W, 7)]
    for e, expected in gradients:
        np.testing.assert_array_equal(e.gradient(), np.full(e.npvalue().shape, expected))
    np.testing.assert_array_equal(E.grad_as_array(), [[1, 1], [6, 6], [1, 1]])
    np.testing.assert_array_equal(W.grad_as_array(), np.full((2, 2), 7))


def test_constants_need_no_full_backward(graph, strategy, model) -> None:
    _, W, _ = model
    constant, x = W.expr(), dy.inputVector([2, 3])
    h = constant * x
    y = dy.sum_elems(h) + dy.sum_elems(W)
    for full in (False, True):
        y.backward(full)
        for e, expected in ((constant, [[2, 3], [2, 3]]), (x, [4, 1]), (h, [1, 1]), (W, np.ones((2, 2)))):
            np.testing.assert_array_equal(e.gradient(), expected)
    np.testing.assert_array_equal(W.gradient(), np.ones((2, 2)))
    np.testing.assert_array_equal(W.grad_as_array(), np.full((2, 2), 2))


def test_of_the_loss_itself(graph, strategy) -> None:
    p = dy.ParameterCollection().add_parameters(1, init=2.0)
    for e, full in ((p, False), (p.expr(), True)):
        e.backward(full)
        assert e.gradient() == 1
    assert p.grad_as_array() == 1


def test_it_is_zero_where_the_loss_does_not_depend(graph, strategy, model) -> None:
    _, W, E = model
    other = E.expr()
    dy.sum_elems(W).backward()
    np.testing.assert_array_equal(other.gradient(), np.zeros((2, 3)))
    after = dy.const_parameter(W)
    with pytest.raises(RuntimeError, match="run backward on an expression made after this one"):
        after.gradient()


def test_other_gradients_stand(graph, strategy, model) -> None:
    """Reading the gradient of a parameter changes no other, even if the loss needs only part of a batch."""
    _, W, E = model
    xs = [E[i % 3] for i in range(6)] + [dy.inputVector([i, 1]) for i in range(6)]
    hs = [dy.tanh(W * x) for x in xs]
    ys = [dy.dropout(h, 0.5) * (i + 1) for i, h in enumerate(hs)]
    dy.forward(ys)
    dy.sum_elems(dy.esum(ys[::2])).backward()
    everything = [*xs[:6], *hs, *ys]
    before = [e.gradient() for e in everything]
    own = W.grad_as_array(), E.grad_as_array()
    gradient = W.gradient()
    np.testing.assert_allclose(gradient, own[0], rtol=1e-6)
    for e, expected in zip(everything, before):
        np.testing.assert_array_equal(e.gradient(), expected)
    for x, e in zip(xs[6:], hs[6:]):
        factor = e.gradient() * (1 - e.npvalue() ** 2)
        np.testing.assert_allclose(x.gradient(), W.npvalue().T @ factor, atol=1e-5)
    np.testing.assert_array_equal(W.grad_as_array(), own[0])
    np.testing.assert_array_equal(E.grad_as_array(), own[1])


@pytest.mark.parametrize("full", [False, True])
def test_the_next_backward_is_as_the_one_before(graph, strategy, model, full: bool) -> None:
    """Constants stay constants and rows are trained, though the pass for requested gradients treats them otherwise."""
    _, W, E = model
    constant, row = dy.const_parameter(W), E[1]
    loss = dy.sum_elems(constant * row) + dy.sum_elems(W)
    for n in (1, 2, 3):
        loss.backward(full)
        np.testing.assert_array_equal(constant.gradient(), np.tile(row.npvalue(), (2, 1)))
        np.testing.assert_array_equal(W.grad_as_array(), np.full((2, 2), n))
        np.testing.assert_array_equal(E.grad_as_array(), [[0, 0], n * W.npvalue().sum(0), [0, 0]])


@pytest.mark.filterwarnings("ignore:.*the graph .* an update:RuntimeWarning")
def test_after_an_update(graph, strategy, model) -> None:
    """The weights have changed, so gradients that were not read before can no longer be computed."""
    pc, W, E = model
    trainer = dy.SimpleSGDTrainer(pc)
    x = dy.inputVector([1, 2])
    h = dy.tanh(W * E[0] + x)
    loss = dy.sum_elems(h)
    loss.backward()
    before = h.gradient()
    trainer.update()
    for e in (W, x):
        with pytest.raises(RuntimeError, match="values of parameters have changed since backward"):
            e.gradient()
    np.testing.assert_array_equal(h.gradient(), before)
    loss.backward()
    W.gradient()
    W.set_value(np.zeros((2, 2)))
    assert np.any(W.gradient())


def test_after_an_update_of_a_full_backward(graph, strategy, model) -> None:
    """All gradients can still be read, and are those of that pass alone."""
    pc, W, E = model
    trainer = dy.AdamTrainer(pc)
    dy.sum_elems(W).backward(full=True)
    dy.sum_elems(E).backward()
    for _ in range(2):
        dy.renew_cg()
        x, w, constant, expr = dy.inputVector([1, 2]), W.expr(True), dy.const_parameter(W), E.expr(False)
        table, row, other = E.expr(True), E[1], E[1]
        loss = dy.dot_product(w * x, dy.inputVector([1, 3])) + 5 * dy.sum_elems(constant) + 2 * dy.sum_elems(expr)
        loss += 3 * dy.sum_elems(table) + 7 * dy.sum_elems(row) + 11 * dy.sum_elems(other)
        dy.sum_elems(w).backward()
        loss.backward(full=True)
        factors = W.npvalue().T @ [1, 3]
        trainer.update()
        W.set_value(np.zeros((2, 2)))
        np.testing.assert_allclose(x.gradient(), factors, rtol=1e-6)
        for e in (w, W):
            np.testing.assert_array_equal(e.gradient(), [[1, 2], [3, 6]])
        for e, expected in ((constant, 5), (expr, 2), (table, 3), (E, 3), (row, 7), (other, 11), (loss, 1)):
            np.testing.assert_array_equal(e.gradient(), np.full(e.gradient().shape, expected))
        assert not np.any(W.grad_as_array())
        assert not np.any(E.grad_as_array())
        W.set_value(np.array([[1.0, 2.0], [3.0, -1.0]]))


def test_a_full_backward_that_fails_changes_nothing(graph, strategy, model) -> None:
    """The request makes two passes; neither changes anything else."""
    _, W, _ = model
    loss = dy.sum_elems(dy.sqrt(W * dy.inputVector([0, 0])))
    loss.value()
    with dy.detect_anomaly(), pytest.raises(dy.AnomalyError):
        loss.backward(full=True)
    assert not np.any(W.grad_as_array())
    with pytest.raises(RuntimeError, match="run backward on"):
        W.gradient()


def test_threads_that_train_together(model) -> None:
    """Each thread reads the gradient of its own pass, while others add to the same parameter."""
    _, W, _ = model

    def work(n: int) -> None:
        for _ in range(50):
            dy.renew_cg()
            dy.sum_elems(W * dy.inputVector([n, n])).backward()
            if not np.array_equal(W.gradient(), np.full((2, 2), n)):
                return
        done.append(n)

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [1, 2, 3, 4]
    np.testing.assert_array_equal(W.grad_as_array(), np.full((2, 2), 50 * (1 + 2 + 3 + 4)))


def test_without_a_parameter_at_all(graph, strategy) -> None:
    x = dy.inputVector([1, 2])
    unused = dy.inputVector([3])
    dy.squared_norm(x).backward()
    np.testing.assert_array_equal(x.gradient(), [2, 4])
    np.testing.assert_array_equal(unused.gradient(), [0])


def test_a_constant_and_its_parameter(graph, strategy, model) -> None:
    """The graph has a node for the parameter too, although nothing uses it."""
    _, W, _ = model
    dy.sum_elems(dy.const_parameter(W)).backward()
    np.testing.assert_array_equal(W.gradient(), np.zeros((2, 2)))


def test_a_slice_of_everything_has_its_own(graph, strategy, model) -> None:
    _, W, E = model
    for key in (slice(None), slice(0, 2, 1), (slice(None), slice(None)), Ellipsis, slice(0, 9)):
        dy.renew_cg()
        part = W[key]
        (2 * dy.sum_elems(W) + 3 * dy.sum_elems(part)).backward()
        np.testing.assert_array_equal(part.gradient(), np.full((2, 2), 3))
        np.testing.assert_array_equal(W.gradient(), np.full((2, 2), 5))
    row = E[0]
    x = dy.strided_select(row, [1], [0], [2])
    (dy.sum_elems(row) + 3 * dy.sum_elems(x)).backward()
    np.testing.assert_array_equal(x.gradient(), [3, 3])
