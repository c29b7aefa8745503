"""Sums of a million float32 terms over lists, broadcast arguments, products, images and equal indices are accurate.

For sums within one op, see test_long_sums_of_ops.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import dynet_cy as dy

N = 1_000_000
TERM = np.float32(0.1)
LONG = np.full(N, TERM, np.float32)


@pytest.mark.parametrize("function", [dy.esum, dy.average, dy.logsumexp])
def test_sums_of_lists(function) -> None:
    n = 60_000  # where a running sum in float32 is off by 2e-4
    dy.renew_cg()
    x = dy.inputTensor(LONG[:3])
    expected = {dy.esum: n * float(TERM), dy.average: float(TERM), dy.logsumexp: math.log(n) + float(TERM)}[function]
    np.testing.assert_allclose(function([x] * n).npvalue(), expected, rtol=1e-5)


def parameter(*shape: int, value: float = 0.5) -> dy.Parameters:
    return dy.ParameterCollection().add_parameters(shape, init=np.full(shape, value))


def filled(*shape: int, value: float = 0.25, batched: bool = False) -> dy.Expression:
    return dy.inputTensor(np.full(shape, value, np.float32), batched=batched)


# Arguments that are broadcast to a million elements: along rows, columns, an axis between them, and the batch.
PARTS = {
    "number": ((1,), lambda value: filled(N, value=value)),
    "column": ((3,), lambda value: filled(3, N, value=value)),
    "row": ((1, 3), lambda value: filled(N, 3, value=value)),
    "between": ((3, 1, 2), lambda value: filled(3, N, 2, value=value)),
    "batch": ((3,), lambda value: filled(3, N, value=value, batched=True)),
    "number-batch": ((1,), lambda value: filled(3, N // 3 + 1, value=value, batched=True)),
    "long-column": ((300,), lambda value: filled(300, N // 100, value=value)),
}
# y(p, x) or y(x, p) for p = 0.5, the value of x, and the derivative with respect to p.
BROADCAST = {
    "add": (lambda p, x: p + x, 0.25, 1),
    "add-second": (lambda p, x: x + p, 0.25, 1),
    "sub": (lambda p, x: p - x, 0.25, 1),
    "sub-second": (lambda p, x: x - p, 0.25, -1),
    "mul": (lambda p, x: dy.cmult(p, x), 0.25, 0.25),
    "mul-second": (lambda p, x: dy.cmult(x, p), 0.25, 0.25),
    "div": (lambda p, x: dy.cdiv(p, x), 0.25, 4),
    "div-second": (lambda p, x: dy.cdiv(x, p), 0.25, -1),
    "min": (lambda p, x: dy.bmin(p, x), 0.75, 1),
    "max-second": (lambda p, x: dy.bmax(x, p), 0.25, 1),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", BROADCAST)
def test_gradients_of_what_is_broadcast(name: str, part: str) -> None:
    make, value, slope = BROADCAST[name]
    shape, other = PARTS[part]
    dy.renew_cg()
    p, x = parameter(*shape), other(value)
    (dy.sum_batches(dy.sum_elems(make(p, x))) * TERM).backward()
    terms = int(np.prod(x.dim()[0])) * x.dim()[1] / int(np.prod(shape))
    np.testing.assert_allclose(p.grad_as_array(), terms * slope * float(TERM), rtol=1e-5)


def bias_of_a_norm(p: dy.Parameters) -> dy.Expression:
    x = dy.inputTensor(np.tile(np.array([[1.0], [2]]), (1, N)))
    return dy.layer_norm(x, filled(2, value=1), p, eps=0)


def gain_of_a_norm(p: dy.Parameters) -> dy.Expression:
    x = dy.inputTensor(np.tile(np.array([[1.0], [2]]), (1, N)), batched=True)
    return dy.cmult(dy.layer_norm(x, p, filled(2), eps=0), dy.inputTensor([-1, 1]))


# The shape of a parameter of 0.5, an op of a million batch elements or columns, and what each adds to the gradient.
GRADIENTS = {
    "squared_distance": ((3,), lambda p: dy.squared_distance(p, filled(3, N, batched=True)), 0.5),
    "l1_distance": ((3,), lambda p: dy.l1_distance(filled(3, N, batched=True), p), 1),
    "huber_distance": ((3,), lambda p: dy.huber_distance(p, filled(3, N, batched=True)), 0.25),
    "binary_log_loss": ((3,), lambda p: dy.binary_log_loss(p, filled(3, N, batched=True)), 1),
    "dot_product": ((3,), lambda p: dy.dot_product(filled(3, N, batched=True), p), 0.25),
    "trace_of_product": ((3, 1), lambda p: dy.trace_of_product(p, filled(3, 1, N, batched=True)), 0.25),
    "colwise_add": ((3,), lambda p: dy.colwise_add(filled(3, N), p), 1),
    "layer_norm-bias": ((2,), bias_of_a_norm, 1),
    "layer_norm-gain": ((2,), gain_of_a_norm, 1),
    "hinge": ((N,), lambda p: dy.hinge(p, 5)[0] * -1, 1),
}


def check_shared_arguments(name: str, rtol: float) -> None:
    shape, make, slope = GRADIENTS[name]
    dy.renew_cg()
    p = parameter(*shape)
    (dy.sum_batches(dy.sum_elems(make(p))) * TERM).backward()
    of_parts = p.grad_as_array()[5] if name == "hinge" else p.grad_as_array()
    np.testing.assert_allclose(of_parts, N * slope * float(TERM), rtol=rtol)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_shared_arguments(name: str) -> None:
    check_shared_arguments(name, rtol=1e-5)


# ---- products, images, and gradients that reach one place by its index ----

MANY = [(3, 1), (2, 2), (1, 5), *(pytest.param(a, marks=pytest.mark.slow) for a in [(8, 40), (1, 70), (40, 3)])]


@pytest.mark.parametrize("a", MANY, ids=str)
def test_products(a: tuple[int, int]) -> None:
    """A very long inner dimension, in values and in the gradients of both factors; packed from the third time."""
    m, n = a
    # Sums in eight lanes of float32 would be off by 7e-4, or by 4e-4.
    inner, term = (N, TERM) if m * n < 40 else (N // 4, np.float32(0.17))
    expected = inner * float(term) ** 2
    left = dy.ParameterCollection().parameters_from_numpy(np.full((m, inner), term))
    tall = dy.ParameterCollection().parameters_from_numpy(np.full((inner, m), term))
    p, q = parameter(m, n), parameter(m, n)
    for _ in range(3):
        dy.renew_cg()
        y = left * filled(inner, n, value=term)
        np.testing.assert_allclose(y.npvalue(), expected, rtol=1e-4)
        (dy.sum_elems(p * filled(n, inner, value=term)) * term).backward()
        np.testing.assert_allclose(p.grad_as_array(), expected, rtol=1e-4)
        (dy.sum_elems(tall * q) * term).backward()
        np.testing.assert_allclose(q.grad_as_array(), expected, rtol=1e-4)
        for x in (p, q):
            x.scale_gradient(0)


# The sizes of images and filters, and the number of images: single pixels, patches, and Winograd's method.
IMAGES = [((1, 1, 1), (1, 1, 1, 2), N), ((4, 4, 8), (3, 3, 8, 8), 60_000), ((6, 6, 16), (3, 3, 16, 16), 30_000)]


@pytest.mark.parametrize(("image", "filters", "images"), IMAGES, ids=str)
def test_gradients_of_filters(image: tuple[int, ...], filters: tuple[int, ...], images: int) -> None:
    p = parameter(*filters)
    for times in (1, 2):
        dy.renew_cg()
        y = dy.conv2d(filled(*image, images, value=TERM, batched=True), p, [1, 1])
        (dy.sum_batches(dy.sum_elems(y)) * TERM).backward()
        terms = times * int(np.prod(y.dim()[0][:2])) * images
        np.testing.assert_allclose(p.grad_as_array(), terms * float(TERM) ** 2, rtol=1e-4)


PLACES = {
    "lookup": lambda t, indices: t.batch(indices),
    "pick_batch_elems": lambda t, indices: dy.pick_batch_elems(dy.reshape(t.expr(True), (2,), 4), indices),
    "select_cols": lambda t, indices: dy.select_cols(t.expr(True), indices),
    "select_rows": lambda t, indices: dy.select_rows(dy.transpose(t.expr(True)), indices),
}


def check_equal_indices(name: str, rtol: float) -> None:
    """A million gradients reach four rows: two alternate, then one gets nearly all; the others get a few."""
    indices = np.full(N, 1)
    indices[: N // 2 : 2] = 3
    indices[[5, 7, N // 2]] = 0
    table = dy.ParameterCollection().lookup_parameters_from_numpy(np.ones((4, 2)))
    dy.renew_cg()
    (dy.sum_batches(dy.sum_elems(PLACES[name](table, indices))) * TERM).backward()
    expected = np.bincount(indices, minlength=4) * float(TERM)
    np.testing.assert_allclose(table.grad_as_array(), np.stack([expected, expected], 1), rtol=rtol)


@pytest.mark.parametrize("name", PLACES)
def test_equal_indices(name: str) -> None:
    check_equal_indices(name, rtol=1e-4)


@pytest.mark.parametrize("lines", [1, 2, 5])
@pytest.mark.parametrize("most", [3, 900])  # how many rows are added to one at least
def test_rows_that_are_added_line_by_line(graph, lines: int, most: int) -> None:
    """As each line alone, to the last bit, forward and in the gradient of the rows that were taken."""
    rng = np.random.default_rng(0)
    count, n = 1000, 400
    places = rng.integers(0, n, count)
    places[:most] = 7
    x, sums = rng.normal(size=(count, lines)), rng.normal(size=(n, lines))
    whole, table = dy.scatter_rows(dy.inputTensor(x), places, n), dy.inputTensor(sums) * 1
    taken = dy.select_rows(table, places)
    dy.dot_product(taken, dy.inputTensor(x)).backward(full=True)
    expected = np.zeros((n, lines))
    np.add.at(expected, places, x)
    np.testing.assert_array_equal(taken.npvalue().reshape(count, lines), np.float32(sums[places]))
    for found in (whole.npvalue(), table.gradient()):
        np.testing.assert_allclose(found.reshape(n, lines), expected, atol=1e-4)
    for line in range(lines):
        alone = dy.scatter_rows(dy.inputVector(x[:, line]), places, n).npvalue()
        np.testing.assert_array_equal(whole.npvalue().reshape(n, lines)[:, line], alone)


@pytest.mark.parametrize("name", ["scatter_rows", "scatter_cols"])
def test_a_million_slices_at_one_place(name: str) -> None:
    shape = (N, 2) if name == "scatter_rows" else (2, N)
    dy.renew_cg()
    y = getattr(dy, name)(dy.constant(shape, float(TERM)), np.ones(N, np.int64), 3).npvalue()
    found = y if name == "scatter_rows" else y.T
    np.testing.assert_allclose(found, [[0, 0], [N * float(TERM)] * 2, [0, 0]], rtol=1e-4)


def test_rows_by_index() -> None:
    """Many indices, with collisions among the counters: every row agrees with float64."""
    rng = np.random.default_rng(4)
    for rows in (3, 5000, 20_000):
        indices = np.concatenate([rng.integers(0, rows, 30_000), np.full(9000, 2), np.full(5000, (2 + 4096) % rows)])
        rng.shuffle(indices)
        table = dy.ParameterCollection().lookup_parameters_from_numpy(np.ones((rows, 3)))
        weights = rng.normal(size=(3, indices.size)).astype(np.float32)
        dy.renew_cg()
        y = dy.cmult(table.batch(indices), dy.inputTensor(weights, batched=True))
        dy.sum_batches(dy.sum_elems(y)).backward()
        expected = np.zeros((rows, 3))
        np.add.at(expected, indices, weights.T.astype(float))
        np.testing.assert_allclose(table.grad_as_array(), expected, atol=1e-3)
