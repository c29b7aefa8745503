"""Nodes that differ in one size run together: same numbers, fewer batches."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import all_close
from random_graphs import Model, build

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.ops.registry import describe

LENGTHS = (5, 2, 7, 3, 2, 4)
N = 6


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def sentences(m: Model, lengths=LENGTHS) -> list:
    """A matrix for each length; its columns are rows of the table, which gets their gradients."""
    return [dy.concatenate_cols([m.table[(3 * n + k) % 20] for k in range(n)]) for n in lengths]


def numbers(*shape: int):
    return dy.inputTensor(np.sin(np.arange(np.prod(shape), dtype=float)).reshape(shape))


def attention(m: Model, x):
    """Three steps over one matrix; each needs the one before."""
    keys, state = m.w * x, m.b * 1.0
    for _ in range(3):
        scores = m.v * dy.tanh(dy.colwise_add(keys, m.u * state))
        state = dy.tanh(x * dy.softmax(dy.transpose(scores)))
    return state


# For each case: the name of the op that is counted, the number of batches in which its nodes run for all sentences,
# and the ops, on the matrix x of a sentence of n words.
CASES = {
    "product with one weight": ("matmul", 1, lambda m, x, n: m.w * x),
    "products with vectors and matrices": (
        "matmul",
        1,
        lambda m, x, n: m.w * (dy.tanh(x) if n % 2 else dy.max_dim(x, 1)),
    ),
    "affine": ("affine_transform", 1, lambda m, x, n: dy.affine_transform([m.b, m.w, x, m.u, dy.tanh(x)])),
    "affine, one vector for each": (
        "affine_transform",
        5,  # it is stacked: two sentences are equally long
        lambda m, x, n: dy.affine_transform([dy.pick(x, 1, 1), m.w, x]),
    ),
    "affine, a parameter among the factors": (
        "affine_transform",
        1,
        lambda m, x, n: dy.affine_transform([m.b, m.w, dy.max_dim(x, 1), m.u, m.b]),
    ),
    "add a parameter": ("add", 1, lambda m, x, n: dy.colwise_add(x, m.b)),
    "add a vector for each": ("add", 1, lambda m, x, n: dy.colwise_add(x, dy.pick(x, 1, 1))),
    "divide by a row for each": ("div", 1, lambda m, x, n: dy.cdiv(x, dy.square(numbers(1, n)) + 1.0)),
    "multiply by a row that has a gradient": ("mul", 1, lambda m, x, n: dy.cmult(x, dy.pick_range(x, 1, 2))),
    "matrix times weights": ("matmul", 1, lambda m, x, n: x * dy.pick_range(dy.transpose(x), 0, 1, 1)),
    "matrix times an input": ("matmul", 1, lambda m, x, n: x * numbers(n)),
    "transposed times a vector": ("matmul", 1, lambda m, x, n: dy.transpose(x) * dy.pick(x, 1, 1)),
    "transposed times a parameter": ("matmul", 1, lambda m, x, n: dy.transpose(x) * m.b),
    "transpose": ("transpose", 1, lambda m, x, n: dy.transpose(x)),
    "softmax of vectors": ("softmax", 1, lambda m, x, n: dy.softmax(dy.reshape(x, (N * n,)))),
    "softmax of columns": ("softmax", 1, lambda m, x, n: dy.softmax(x)),
    "softmax of rows": ("softmax", 1, lambda m, x, n: dy.softmax(x, 1)),
    "log_softmax of vectors": ("log_softmax", 1, lambda m, x, n: dy.log_softmax(dy.reshape(x, (N * n,)))),
    "log_softmax of columns": ("log_softmax", 1, lambda m, x, n: dy.log_softmax(x)),
    "loss over vectors": ("pickneglogsoftmax", 1, lambda m, x, n: dy.pickneglogsoftmax(dy.reshape(x, (N * n,)), n)),
    "sum over words": ("sum", 2, lambda m, x, n: dy.sum_dim(x, [1])),  # and the sum over all elements
    "mean over words": ("mean", 1, lambda m, x, n: dy.mean_dim(x, [1], False)),
    "max over words": ("max_dim", 1, lambda m, x, n: dy.max_dim(x, 1)),
    "min over words": ("min_dim", 1, lambda m, x, n: dy.min_dim(x, 1)),
    "steps of attention": ("softmax", 3, lambda m, x, n: attention(m, x)),
}


def evaluate(m: Model, op, strategy: int, chosen=slice(None)):
    """Value and gradients of a sum over sentences, and the batches of each op."""
    dy.renew_cg(autobatching=strategy)
    with profiling.measure() as profile:
        ys = [op(m, x, n) for x, n in zip(sentences(m), LENGTHS)]
        scaled = [dy.sum_elems(dy.sin(y * float(k + 1))) for k, y in enumerate(ys)]
        dy.forward(scaled)
        loss = dy.esum(scaled[chosen])
        loss.backward()
    calls = {(row.op, row.backward): row.calls for row in profile}
    return [x.value() for x in scaled], m.gradients(), calls


@pytest.mark.parametrize("case", CASES)
def test_same_numbers_in_fewer_batches(model: Model, case: str) -> None:
    name, batches, op = CASES[case]
    values, gradients, _ = evaluate(model, op, 0)
    for strategy in (1, 2):
        got, got_gradients, calls = evaluate(model, op, strategy)
        assert got == pytest.approx(values, rel=1e-5, abs=1e-6)
        all_close(got_gradients, gradients, rtol=1e-4, atol=1e-5)
        # Ops of that name that make the arguments ran before.
        assert calls[name, False] == batches
        assert calls[name, True] == batches


@pytest.mark.parametrize("case", CASES)
def test_loss_of_some(model: Model, case: str) -> None:
    """The loss depends on only some nodes of a batch."""
    op = CASES[case][2]
    _, gradients, _ = evaluate(model, op, 0, slice(1, 4))
    _, got_gradients, _ = evaluate(model, op, 1, slice(1, 4))
    all_close(got_gradients, gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", [1, 2])
def test_compositions(model: Model, strategy: int) -> None:
    for seed in range(60):
        found = []
        for s in (0, strategy):
            dy.renew_cg(autobatching=s)
            losses = build(model, seed, seed)
            dy.esum(losses).backward()
            found.append(([x.value() for x in losses], model.gradients()))
        (values, gradients), (got, got_gradients) = found
        assert got == pytest.approx(values, rel=1e-4, abs=1e-5)
        all_close(got_gradients, gradients, rtol=1e-3, atol=1e-4)


def test_many_small_ones_of_a_size_are_one_call(model: Model) -> None:
    lengths = [3, 4] * 9 + [5, 6]

    def run(strategy: int):
        dy.renew_cg(autobatching=strategy)
        with profiling.measure() as profile:
            xs = [dy.inputTensor(np.arange(float(n)) / 9) for n in lengths]
            values = dy.values([dy.softmax(x) for x in xs])
        return values, {(row.op, row.backward): row.calls for row in profile}

    values, _ = run(0)
    got, calls = run(1)
    for g, want in zip(got, values):
        assert g == pytest.approx(want, rel=1e-6)
    assert calls["softmax", False] == 3  # those of 3, those of 4, and the two others


def test_a_weight_that_is_no_parameter_is_multiplied_at_once(model: Model) -> None:
    """Products with one computed matrix are one call, even among products with other matrices."""

    def run(strategy: int):
        dy.renew_cg(autobatching=strategy)
        with profiling.measure() as profile:
            w, xs, rows = dy.tanh(model.w.expr()), sentences(model), [model.table[k] for k in range(9)]
            dy.forward([w, *xs, *rows])
            products = [w * x for x in [*xs, *rows]]
            products += [x * numbers(n) for x, n in zip(xs, LENGTHS)]
            loss = dy.esum([dy.squared_norm(x) for x in products])
            value = loss.value()
            loss.backward()
        return value, model.gradients(), {(row.op, row.backward): row.calls for row in profile}

    value, gradients, _ = run(0)
    for strategy in (1, 2):
        got, got_gradients, calls = run(strategy)
        assert got == pytest.approx(value, rel=1e-5)
        assert calls["matmul", False] == 2
        all_close(got_gradients, gradients, rtol=1e-4, atol=1e-5)


def matmul_batches(build) -> int:
    """The number of batches in which the products of a graph run; its value must equal that without batching."""
    values = []
    for strategy in (0, 1):
        dy.renew_cg(autobatching=strategy)
        with profiling.measure() as profile:
            values.append(dy.esum([dy.sum_elems(y) for y in build()]).value())
    assert values[1] == pytest.approx(values[0], rel=1e-5)
    return next(row.calls for row in profile if row.op == "matmul")


def deeper(x, steps: int):
    """x after some steps of different ops, which wait in different queues."""
    for f in (dy.sin, dy.cos, dy.tanh, dy.atan, dy.logistic, dy.softsign, dy.square, dy.exp)[:steps]:
        x = f(x)
    return x


def test_products_with_one_matrix_of_several(model: Model) -> None:
    """Two products with the same matrix wait for each other and are one batch; all others are a second one."""

    def build():
        xs = [numbers(6, n % 4 + 1) for n in range(20)]
        ys = [xs[0] * numbers(1), xs[0] * deeper(numbers(1), 1)]
        return ys + [x * deeper(numbers(n % 4 + 1), 8) for n, x in enumerate(xs)]

    assert matmul_batches(build) == 2


def test_a_weight_that_is_no_parameter_does_not_wait_with_others(model: Model) -> None:
    """In one queue with the many other products, some of its products would run before all of them are ready."""

    def build():
        w, rows = dy.tanh(model.w.expr()), [numbers(6, n % 3 + 2) for n in range(20)]
        w.forward()
        ys = [w * deeper(numbers(6) * float(k + 1), 2 if k > 1 else 0) for k in range(8)]
        return ys + [x * numbers(n % 3 + 2) for n, x in enumerate(rows)]

    assert matmul_batches(build) == 2


def test_out_of_memory(model: Model, memory_limit, memory_left) -> None:
    """A batch that does not fit in memory leaves the graph unchanged."""
    with dy.ComputationGraph(autobatching=1):
        xs = [numbers(300, n) for n in (400, 300, 500)]
        dy.forward(xs)
        ys = [dy.max_dim(dy.transpose(x), 0) for x in xs]
        memory_left(0)
        with pytest.raises(MemoryError):
            dy.forward(ys)
        memory_limit(0)
        for x, y in zip(xs, ys):
            np.testing.assert_allclose(y.npvalue(), x.npvalue().T.max(0), rtol=1e-6)


def test_what_ops_say() -> None:
    assert describe("softmax")["ragged"]
    assert describe("affine_transform")["columns"]
    assert not describe("lookup")["ragged"]
