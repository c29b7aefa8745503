"""Sums of products that run as one affine map: `W*x + U*h + b`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from rewritten import counting, counts  # noqa: F401
from sum_programs import ORDERS, recurrent

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.nodes import nodes

pytestmark = pytest.mark.usefixtures("counting")

M = 40  # the scheduler leaves batches of short vectors alone


def layer(m: int = M, k: int = 4):
    """W, b, x and the value of W x + b."""
    pc = dy.ParameterCollection()
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(-2 / k, 2 / k, shape).astype(np.float32) for shape in ((m, k), (m,), (k,))]
    W, b = pc.parameters_from_numpy(arrays[0]), pc.parameters_from_numpy(arrays[1])
    return W, b, dy.inputTensor(arrays[2]), arrays[0].astype(float) @ arrays[2] + arrays[1]


@pytest.mark.parametrize("order", ORDERS)
def test_products_that_run_at_once_still_do(order: str) -> None:
    """Products of inputs stay one call for all steps; without batching, a sum absorbs all its products."""
    steps = 9
    batched = {
        "wub": (steps, steps),
        "bwu": (2 * steps, 2 * steps),
        "wbu": (steps, steps),
        "pairs": (2 * steps, 2 * steps),
        "two biases": (2 * steps, 2 * steps),
        "no bias": (steps, steps),
        "shared product": (0, 0),
    }
    plain = {
        **dict.fromkeys(("wub", "bwu", "wbu"), (steps, 3 * steps)),
        "pairs": (2 * steps, 2 * steps),
        "two biases": (2 * steps, 2 * steps),
        "no bias": (steps, steps),
        "shared product": (steps, steps),
    }
    for strategy, expected in ((0, plain), (1, batched), (2, batched)):
        dy.renew_cg(autobatching=strategy)
        engine.stats("schedule.rewrite", reset=True)
        q = recurrent(3, order, (3, 2, 4))
        q.loss().backward(full=True)
        q.check_gradients()
        assert counts("sums") == expected[order]
        called = Counter(n.batch for n in nodes(dy.cg()) if n.op in ("matmul", "affine_transform") and n.computed)
        assert max(called.values()) == (steps if strategy else 1)


def test_one_call_for_a_sum(strategy: int) -> None:
    W, b, x, expected = layer()
    y = W * x + b
    np.testing.assert_allclose(y.npvalue(), expected, rtol=1e-5, atol=1e-6)
    assert counts("sums") == (1, 1)
    assert [n.op for n in nodes(dy.cg()) if n.computed and n.args] == ["affine_transform"]


def test_batches_of_short_vectors_stay() -> None:
    """For short vectors, looking for sums would take longer than it saves."""
    for autobatching, m, expected in ((1, 8, (0, 0)), (0, 8, (1, 1)), (1, M, (1, 1))):
        dy.renew_cg(autobatching=autobatching)
        engine.stats("schedule.rewrite", reset=True)
        W, b, x, _ = layer(m)
        (W * x + b).forward()
        assert counts("sums") == expected


def test_a_product_that_is_asked_for(strategy: int) -> None:
    """Requested with the sum, it is computed as a target; requested later, it is computed then."""
    W, b, x, expected = layer()
    product = W * x
    y = product + b
    dy.forward([product, y])
    assert counts("sums") == (0, 0)
    np.testing.assert_allclose(y.npvalue(), expected, rtol=1e-5, atol=1e-6)
    dy.renew_cg()
    W, b, x, expected = layer()
    product = W * x
    y = product + b
    y.forward()
    assert counts("sums") == (1, 1)
    np.testing.assert_allclose(product.npvalue() + b.as_array(), expected, rtol=1e-5, atol=1e-6)
    late = dy.sum_elems(dy.square(product)) + dy.sum_elems(y)
    for full in (False, True):
        late.backward(full=full)
        np.testing.assert_allclose(product.gradient(), 2 * product.npvalue() + 1, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(y.gradient(), 1)


def test_a_product_with_another_user_stays(strategy: int) -> None:
    W, b, x, _ = layer()
    product = W * x
    y = product + b
    dy.sum_elems(y + dy.tanh(product)).forward()
    assert counts("sums") == (0, 0)


def test_the_same_product_twice_stays(strategy: int) -> None:
    W, b, x, expected = layer()
    product = W * x
    y = product + product
    np.testing.assert_allclose(y.npvalue(), 2 * (expected - b.as_array()), rtol=1e-5, atol=1e-6)
    assert counts("sums") == (0, 0)


def test_products_of_other_matrices_stay(strategy: int) -> None:
    _, b, x, _ = layer()
    m = dy.inputTensor(np.ones((M, 4)))
    (m * x + b).forward()
    (dy.tanh(m) * x + b).forward()
    assert counts("sums") == (0, 0)


def test_products_that_are_broadcast_stay(strategy: int) -> None:
    """A vector is added to all columns, to all elements of a batch, or a number to all elements."""
    W, b, x, expected = layer()
    array = np.arange(2.0 * M).reshape(M, 2)
    matrix, batch = dy.inputTensor(array), dy.inputTensor(array, batched=True)
    product = expected - b.as_array()
    for other in (matrix, batch):
        y = W * x + other
        np.testing.assert_allclose(y.npvalue(), product[:, None] + array, rtol=1e-5, atol=1e-6)
    row = dy.ParameterCollection().parameters_from_numpy(np.ones((1, 4), np.float32))
    y = row * x + b
    np.testing.assert_allclose(y.npvalue(), x.npvalue().sum() + b.as_array(), rtol=1e-5, atol=1e-6)
    columns = dy.inputTensor(np.ones((4, 2)))
    square = dy.inputTensor(np.ones((4, M)))
    y = W * square + dy.inputTensor(np.arange(M, dtype=float).reshape(1, M))  # as many elements as y has rows
    np.testing.assert_allclose(y.npvalue(), W.as_array() @ np.ones((4, M)) + np.arange(M), rtol=1e-5, atol=1e-6)
    y = W * columns + dy.inputTensor(np.ones((1, 2)))
    np.testing.assert_allclose(y.npvalue(), W.as_array() @ np.ones((4, 2)) + 1, rtol=1e-5, atol=1e-6)
    assert counts("sums") == (0, 0)


def test_checkpoints(strategy: int) -> None:
    """Sums made before the last checkpoint are not changed; sums changed before it stay changed."""
    W, b, x, expected = layer()
    before = W * x + b
    dy.cg_checkpoint()
    np.testing.assert_allclose(before.npvalue(), expected, rtol=1e-5, atol=1e-6)
    assert counts("sums") == (0, 0)
    product = W * x
    after = product + b + before
    np.testing.assert_allclose(after.npvalue(), 2 * expected, rtol=1e-5, atol=1e-6)
    assert counts("sums")[0] == 1
    dy.cg_revert()
    again = dy.tanh(W * x + b)
    np.testing.assert_allclose(again.npvalue(), np.tanh(expected), rtol=1e-5, atol=1e-6)
    dy.cg_checkpoint()
    thrice = again + W * x
    thrice.forward()
    dy.cg_revert()
    for _ in range(50):
        dy.tanh(x)  # takes the number of a dropped node
    loss = dy.sum_elems(again + before)
    loss.backward(full=True)
    np.testing.assert_allclose(again.npvalue(), np.tanh(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(before.gradient(), 1)
    np.testing.assert_allclose(b.grad_as_array(), 1 + 1 - np.tanh(expected) ** 2, rtol=1e-5, atol=1e-6)


def test_nodes_that_take_the_numbers_of_dropped_ones(strategy: int) -> None:
    W, b, x, _ = layer()
    dy.tanh(W * x).forward()
    b.expr(True)
    dy.cg_checkpoint()
    (W * x + b).forward()
    assert counts("sums") == (1, 1)
    dy.cg_revert()
    first, second = dy.tanh(b), dy.square(b)  # the numbers of the product and of the sum
    dy.sum_elems(first + 2 * second).backward(full=True)
    np.testing.assert_array_equal(first.gradient(), 1)
    np.testing.assert_array_equal(second.gradient(), 2)


@pytest.mark.parametrize("held", [False, True])
def test_forward_only(strategy: int, held: bool) -> None:
    """Products that an expression refers to are kept; others are dropped, with the nodes that only they need."""
    dy.renew_cg(autobatching=strategy, forward_only=True)
    W, b, x, _ = layer(M, M)
    h, kept = x, []
    steps = 300 if held else 3000
    for k in range(steps):
        product = W * h
        y = product + b
        h = dy.tanh(y)
        if held:
            kept.append((product, y))
        else:
            del product, y
        if k % 7 == 0:
            h.forward()
    found = h.npvalue()
    a = x.npvalue()
    for _ in range(steps):
        a = np.tanh(W.as_array().astype(float) @ a + b.as_array())
    np.testing.assert_allclose(found, a, rtol=1e-4, atol=1e-5)
    assert counts("sums") == (0, 0) if held else counts("sums")[0] > 2000
    for product, y in kept[:5]:
        np.testing.assert_allclose(product.npvalue() + b.as_array(), y.npvalue(), rtol=1e-5, atol=1e-6)
    assert len(dy.cg()) < 5000
