"""Arguments of batches and collected gradients of weights: the same numbers as node by node."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.graph.nodes import nodes


def run(strategy: int, build, collection) -> tuple[float, list[np.ndarray]]:
    """Value and gradients of a graph under one strategy."""
    dy.renew_cg(autobatching=strategy)
    for p in collection.parameters_list() + collection.lookup_parameters_list():
        p.scale_gradient(0)
    loss = build()
    value = loss.value()
    loss.backward()
    stored = collection.parameters_list() + collection.lookup_parameters_list()
    return value, [p.grad_as_array().astype(np.float64) for p in stored]


def check(build, collection) -> None:
    value, grads = run(0, build, collection)
    assert any(abs(g).max() > 0 for g in grads)
    for strategy in (1, 2):
        got, got_grads = run(strategy, build, collection)
        assert got == pytest.approx(value, rel=1e-5, abs=1e-6)
        all_close(got_grads, grads, rtol=1e-4, atol=1e-5)


@pytest.fixture
def model():
    collection = dy.ParameterCollection()
    w = collection.add_parameters((48, 40))
    u = collection.add_parameters((48, 48))
    b = collection.add_parameters(48)
    table = collection.add_lookup_parameters((30, 40))
    return collection, w, u, b, table


@pytest.mark.parametrize("steps", [1, 5, 300])
def test_collected_gradients(model, steps: int) -> None:
    """More columns than fit in one collection, products of several kinds, and a weight that is used twice."""
    collection, w, u, b, table = model

    def build():
        h = b
        losses = []
        for k in range(steps):
            h = dy.tanh(dy.affine_transform([b, w, table[k % 30], u, h])) + u * (u * h) * 0.01
            losses.append(dy.pick(h, k % 48))
        wide = u * dy.concatenate_cols([h] * 130)  # wide enough not to be collected
        return dy.esum(losses) + dy.mean_elems(wide)

    check(build, collection)


@pytest.mark.parametrize("strategy", [0, 1, 2])
@pytest.mark.parametrize("columns", [1, 3, 100, 127, 128, 300])
def test_collected_gradients_are_the_sum(model, strategy: int, columns: int) -> None:
    collection, w, _, _, _ = model
    rng = np.random.default_rng(columns)
    inputs = rng.normal(size=(20, 40, columns)).astype(np.float32)
    outputs = rng.normal(size=(20, 48, columns)).astype(np.float32)
    dy.renew_cg(autobatching=strategy)
    w.scale_gradient(0)
    losses = [dy.sum_elems(dy.cmult(w * dy.inputTensor(x), dy.inputTensor(y))) for x, y in zip(inputs, outputs)]
    dy.esum(losses).backward()
    want = np.einsum("nic,njc->ij", outputs.astype(np.float64), inputs)
    np.testing.assert_allclose(w.grad_as_array(), want, rtol=1e-4, atol=1e-3)


def test_gradients_of_gates_that_reach_some_arguments_only() -> None:
    """The gradient of the gates of an LSTM is computed once, whichever arguments need it first."""
    collection = dy.ParameterCollection()
    wx, wh, b = (collection.add_parameters(shape) for shape in ((64, 24), (64, 16), (64,)))
    x, h = collection.add_parameters(24), collection.add_parameters(16)

    def build(update):
        def graph():
            parts = [p.expr(u) for p, u in zip((x, h, wx, wh, b), update)]
            gates = [dy.vanilla_lstm_gates(*parts) for _ in range(3)]
            p = dy.affine_transform([parts[4], parts[2], parts[0]])
            gates += [dy.vanilla_lstm_gates_projected(p, parts[1], parts[3]) for _ in range(2)]
            return dy.esum([dy.squared_norm(g) for g in gates])

        return graph

    full = run(0, build([True] * 5), collection)[1]
    names = [p.name() for p in collection.parameters_list()]
    order = [names.index(p.name()) for p in (x, h, wx, wh, b)]
    for k in range(5):
        update = [j == k for j in range(5)]
        for strategy in (0, 1):
            grads = run(strategy, build(update), collection)[1]
            for j in range(5):
                want = full[order[j]] if j == k else np.zeros(1)
                np.testing.assert_allclose(grads[order[j]], want + 0 * grads[order[j]], rtol=1e-4, atol=1e-5)


def test_layers_of_two_directions_wait_for_both() -> None:
    """Independent nodes run as one batch, although those in the middle are ready long before the others."""
    model = dy.ParameterCollection()
    n = 11
    W, V, U = (model.add_parameters(shape) for shape in ((4, 4), (4, 4), (5, 8)))
    dy.renew_cg(autobatching=1)
    xs = [dy.inputVector(np.arange(4) + t) for t in range(n)]
    forward, backward = [dy.tanh(xs[0])], [dy.tanh(xs[-1])]
    for x in xs[1:]:
        forward.append(dy.tanh(W * forward[-1] + x))
    for x in xs[-2::-1]:
        backward.append(dy.tanh(V * backward[-1] + x))
    above = [U * dy.concatenate([f, b]) for f, b in zip(forward, reversed(backward))]
    with profiling.measure() as profile:
        dy.esum(above).forward()
    calls = [line.split() for line in str(profile).splitlines()]
    products = next(line for line in calls if line[-1] == "matmul")
    assert products[2:4] == [str(2 * (n - 1) + n), str(2 * (n - 1) + 1)]
    together = next(line for line in calls if line[-1] == "concatenate")
    assert together[2:4] == [str(n), "1"]


def test_directions_come_into_step() -> None:
    """A batch waits for another one that makes it larger, so the steps of two directions run together.

    This holds although what one of them reads first is deep."""
    model = dy.ParameterCollection()
    cells = [dy.LSTMBuilder(1, 4, 4, model) for _ in range(2)]
    table, U = model.add_lookup_parameters((20, 4)), model.add_parameters((3, 8))
    dy.renew_cg(autobatching=1)
    losses = []
    for n in (5, 9, 12, 12, 3):
        xs = [table[t] for t in range(n)]
        for _ in range(9):
            xs[1] = dy.tanh(xs[1])
        there = cells[0].initial_state().transduce(xs)
        back = cells[1].initial_state().transduce(xs[::-1])[::-1]
        losses += [dy.squared_norm(U * dy.concatenate([f, b])) for f, b in zip(there, back)]
    dy.esum(losses).value()
    assert dy.cg().n_batches() <= 66  # 72 if the directions stay out of step


def test_a_parameter_in_place_of_a_value() -> None:
    """Its nodes run in one call with those that have a value there; a parameter that all nodes share is not copied."""
    collection = dy.ParameterCollection()
    rng = np.random.default_rng(5)
    empty, other, b, v = (collection.parameters_from_numpy(rng.uniform(-1, 1, 8)) for _ in range(4))
    w, u = (collection.parameters_from_numpy(rng.uniform(-1, 1, shape)) for shape in ((5, 8), (5, 16)))

    def build():
        xs = [dy.tanh(b + dy.inputVector(np.linspace(-1, k / 7, 8))) for k in range(12)]
        seconds = [empty if k % 3 == 0 else other if k % 5 == 0 else xs[k - 1] for k in range(12)]
        both = [dy.concatenate([x, y]) for x, y in zip(xs, seconds)]
        losses = [dy.sum_elems(dy.tanh(u * x)) for x in both]
        losses += [dy.sum_elems(dy.logistic(w * y)) for y in seconds]
        losses += [dy.dot_product(x, y) for x, y in zip(xs, seconds)]
        losses += [dy.squared_norm(y) + dy.pick(y, k % 8) for k, y in enumerate(seconds)]
        losses += [dy.dot_product(v, dy.exp(x)) for x in xs]
        return dy.esum(losses)

    check(build, collection)
    dy.renew_cg(autobatching=1)
    build().forward()
    batches: dict[str, set[int | None]] = {}
    for node in nodes(dy.cg()):
        if node.computed and node.args:
            batches.setdefault(node.op, set()).add(node.batch)
    once = {op: len(found) for op, found in batches.items() if op in ("concatenate", "squared_norm", "pick")}
    assert once == {"concatenate": 1, "squared_norm": 1, "pick": 1}
    assert len(batches["matmul"]) == 2  # of w and of u
    assert len(batches["dot_product"]) == 2  # those with v stay apart, since many nodes share it


def test_a_parameter_among_values_in_several_passes() -> None:
    """Batches of products that are joined in backward, some of them with a parameter in place of a value."""
    collection = dy.ParameterCollection()
    rng = np.random.default_rng(6)
    w = collection.parameters_from_numpy(rng.uniform(-0.1, 0.1, (64, 64)))
    start = collection.parameters_from_numpy(rng.uniform(-1, 1, 64))
    least = engine.tune("schedule.joining.least_size", 1000)
    try:

        def build():
            states, losses = [start] * 4, []
            for step in range(5):
                states = [
                    dy.tanh(w * (start if (k + step) % 3 == 0 else x)) if k % 2 else x for k, x in enumerate(states)
                ]
                losses += [dy.sum_elems(dy.square(x)) for x in states]
                losses[-1].value()
            return dy.esum(losses)

        check(build, collection)
    finally:
        engine.tune("schedule.joining.least_size", least)


@pytest.mark.parametrize("most", [1, 5, 64])
def test_batches_beyond_the_limit_of_an_axis(most: int) -> None:
    """Products, elementwise ops and minibatches whose joined tensors would be too long run node by node."""
    collection = dy.ParameterCollection()
    rng = np.random.default_rng(8)
    w = collection.parameters_from_numpy(rng.uniform(-1, 1, (8, 8)))
    table = collection.lookup_parameters_from_numpy(rng.uniform(-1, 1, (10, 8)))
    before = engine.tune("execute.walk.most_along", most)
    try:

        def build():
            xs = [dy.lookup_batch(table, [k % 3, 5]) if k % 2 else table[k] for k in range(8)]
            ys = [dy.tanh(w * x) + x for x in xs]
            zs = [dy.softmax(dy.concatenate([x, y])) for x, y in zip(xs, ys)]
            return dy.sum_batches(dy.esum([dy.pick(z, k) for k, z in enumerate(zs)]))

        check(build, collection)
    finally:
        engine.tune("execute.walk.most_along", before)
