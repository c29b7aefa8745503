"""Batches of several forward passes that are joined in backward: the same gradients, fewer calls."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import all_close, all_equal
from random_graphs import Model, build

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine

DIM = 8


@pytest.fixture(autouse=True)
def small_matrices_too():
    """Join products with matrices of any size."""
    with engine.tuned({"schedule.joining.least_size": 1}):
        yield
    dy.renew_cg()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


class Layers:
    """Two layers over vectors; the second has a separate bias for each."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        pc = self.collection = dy.ParameterCollection()
        self.w, self.u, self.v = (pc.parameters_from_numpy(rng.uniform(-1, 1, (DIM, DIM))) for _ in range(3))
        self.b = pc.parameters_from_numpy(rng.uniform(-1, 1, DIM))
        self.table = pc.lookup_parameters_from_numpy(rng.uniform(-1, 1, (20, DIM)))

    def layer(self, x: dy.Expression) -> dy.Expression:
        return dy.tanh(dy.affine_transform([self.b, self.w, x]))

    def gradients(self) -> list[np.ndarray]:
        stored = [self.w, self.u, self.v, self.b, self.table]
        found = [p.grad_as_array().astype(np.float64) for p in stored]
        for p in stored:
            p.scale_gradient(0)
        return found


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers()


def gradients(layers: Layers, program, strategy: int) -> tuple[list[np.ndarray], tuple[int, int]]:
    """Gradients of a program that requests values, and the numbers of joined calls and of their batches."""
    dy.renew_cg(autobatching=strategy)
    loss = program()
    engine.stats("schedule.joining", reset=True)
    loss.backward()
    return layers.gradients(), tuple(engine.stats("schedule.joining").values())


def check(layers: Layers, program) -> tuple[int, int]:
    """Compare gradients with those of autobatching 0; return the numbers of joined calls and of their batches."""
    desired, none = gradients(layers, program, 0)
    assert none == (0, 0)  # without batching, nothing is joined
    found, joined = gradients(layers, program, 1)
    assert any(abs(g).max() > 0 for g in desired)
    all_close(found, desired, rtol=1e-4, atol=1e-5)
    return joined


def asked(x: dy.Expression) -> dy.Expression:
    """Compute x and return it."""
    x.npvalue()
    return x


# -- what is joined ------------------------------------------------------------------------------


def test_layers_of_many_passes_are_one_call_each(layers: Layers) -> None:
    def program():
        hidden = [asked(layers.layer(layers.table[k])) for k in range(12)]
        return dy.esum([dy.squared_norm(asked(layers.u * x)) for x in hidden])

    assert check(layers, program) == (2, 24)


def test_steps_that_need_each_other_are_joined_across_sequences(layers: Layers) -> None:
    """Six sequences of five steps, with a value requested after each step: five calls, of six batches each."""

    def sequence(first: int) -> dy.Expression:
        state = layers.table[first]
        for _ in range(5):
            state = asked(layers.layer(state))
        return dy.squared_norm(state)

    assert check(layers, lambda: dy.esum([sequence(k) for k in range(6)])) == (5, 30)


def test_sequences_of_different_lengths(layers: Layers) -> None:
    def sequence(length: int) -> dy.Expression:
        state, losses = layers.table[length], []
        for k in range(length):
            state = asked(dy.tanh(dy.affine_transform([layers.b, layers.w, layers.table[k], layers.u, state])))
            losses.append(dy.pickneglogsoftmax(layers.v * state, k))
        return dy.esum(losses)

    calls, batches = check(layers, lambda: dy.esum([sequence(n) for n in (1, 6, 3, 2, 6)]))
    assert calls <= 8
    assert batches >= 18 - 2  # of the two longest sequences, the last two steps are not joined


def test_many_columns_are_several_calls(layers: Layers) -> None:
    """A call takes only as many columns as make it faster; a batch that has enough is not joined."""

    def program():
        xs = [
            dy.lookup_batch(layers.table, [k % 20] * n) for k, n in enumerate((100, 100, 100, 100, 127, 127, 128, 300))
        ]
        return dy.sum_batches(dy.esum([dy.sum_batches(dy.squared_norm(asked(layers.layer(x)))) for x in xs]))

    assert check(layers, program) == (2, 6)


def test_arguments_that_nodes_share_and_that_they_do_not(layers: Layers) -> None:
    """Shared biases, biases of each node and of several columns, and vectors that several products share."""

    def program():
        xs = [asked(dy.tanh(layers.table[k])) for k in range(4)]
        sums = [asked(dy.affine_transform([xs[k // 2], layers.w, xs[3 - k], layers.u, xs[0]])) for k in range(4)]
        pairs = [dy.concatenate_cols([sums[k], xs[k]]) for k in range(4)]
        wide = [asked(dy.affine_transform([layers.b, layers.v, x])) for x in pairs]
        wider = [asked(dy.affine_transform([x, layers.v, y])) for x, y in zip(wide, pairs)]
        return dy.esum([dy.sum_elems(dy.square(x)) for x in wider])

    calls, batches = check(layers, program)
    assert calls == 3
    assert batches == 12


def test_frozen_parameters(layers: Layers) -> None:
    layers.w.set_updated(False)
    try:
        check(layers, lambda: dy.esum([dy.squared_norm(asked(layers.layer(layers.table[k]))) for k in range(5)]))
        check(layers, lambda: dy.esum([dy.squared_norm(asked(layers.u * layers.table[k])) for k in range(5)]))
    finally:
        layers.w.set_updated(True)


@pytest.mark.parametrize("structure", range(40))
def test_random_programs(model: Model, structure: int) -> None:
    found = []
    for strategy in (0, 1, 2):
        dy.renew_cg(autobatching=strategy)
        losses = build(model, structure, structure, look=0.5)
        values = [loss.value() for loss in losses]
        dy.esum(losses).backward()
        found.append((values, model.gradients()))
    for values, grads in found[1:]:
        np.testing.assert_allclose(values, found[0][0], rtol=1e-4, atol=1e-5)
        all_close(grads, found[0][1], rtol=2e-3, atol=2e-4)


def test_batched_map(layers: Layers) -> None:
    def item(length: int) -> dy.Expression:
        state, losses = dy.tanh(layers.table[length]), []
        for _ in range(length):
            state = layers.layer(state)
            scores = layers.u * state
            losses.append(dy.pickneglogsoftmax(scores, int(scores.npvalue().argmax())))
        return dy.esum(losses)

    calls, batches = check(layers, lambda: dy.esum(dy.batched_map(item, range(1, 9))))
    assert calls == 1  # the scores of all passes; each layer needs the one before
    assert batches == 8


# -- what is not -----------------------------------------------------------------------------------


def test_one_pass_is_not_planned_anew(layers: Layers) -> None:
    def program():
        state, losses = layers.table[0], []
        for _ in range(5):
            state = layers.layer(state)
            losses.append(dy.squared_norm(state))
        return asked(dy.esum(losses))

    assert check(layers, program) == (0, 0)


def sampled(layers: Layers, sequences: int, steps: int, chained: bool = False) -> dy.Expression:
    """Losses of steps that read the index of the best score of the step before; `chained`: and the scores too."""
    losses = []
    for k in range(sequences):
        state, word = layers.table[k], layers.table[k + 1]
        for t in range(steps):
            state = dy.tanh(layers.u * state + word)
            scores = dy.affine_transform([layers.b, layers.w, state])
            losses.append(dy.pickneglogsoftmax(scores, (k + t) % DIM))
            word = layers.table[dy.argmax(scores)]
            if chained:
                word = word + dy.tanh(scores)
    return asked(dy.esum(losses))


def test_steps_of_one_pass_that_reads_indices(layers: Layers) -> None:
    assert check(layers, lambda: sampled(layers, 5, 4)) == (1, 4)
    check(layers, lambda: sampled(layers, 1, 4))  # each loss is computed before the next scores


def test_steps_of_one_pass_that_need_each_others_gradients(layers: Layers) -> None:
    assert check(layers, lambda: sampled(layers, 5, 4, chained=True)) == (0, 0)


def test_one_pass_backward_again_and_within_a_limit(layers: Layers) -> None:
    dy.renew_cg(autobatching=1)
    loss = sampled(layers, 5, 4)
    loss.backward()
    first = layers.gradients()
    loss.backward()
    all_equal(layers.gradients(), first)
    dy.renew_cg(autobatching=1, mem=64)
    sampled(layers, 5, 4).backward()
    all_close(layers.gradients(), first, rtol=1e-5, atol=1e-6)


def test_small_matrices_are_not_joined(layers: Layers) -> None:
    def program():
        return dy.esum([dy.squared_norm(asked(layers.layer(layers.table[k]))) for k in range(5)])

    engine.tune("schedule.joining.least_size", DIM * DIM + 1)
    assert check(layers, program) == (0, 0)
    engine.tune("schedule.joining.least_size", DIM * DIM)
    assert check(layers, program) == (1, 5)


# -- interplay with other features -----------------------------------------------------------------------------


def test_backward_again_and_of_another_loss(layers: Layers) -> None:
    """A joined plan is for one backward pass; the next pass over the same graph makes its own."""
    dy.renew_cg()
    hidden = [asked(layers.layer(layers.table[k])) for k in range(6)]
    first, second = (dy.esum([dy.squared_norm(x) for x in part]) for part in (hidden[:3], hidden[2:]))
    first.backward()
    once = layers.gradients()
    first.backward()
    all_equal(layers.gradients(), once)
    second.backward()
    other = layers.gradients()
    (first + second).backward()
    for got, a, b in zip(layers.gradients(), once, other):
        np.testing.assert_allclose(got, a + b, rtol=1e-4, atol=1e-5)


def test_the_profile_counts_the_calls(layers: Layers) -> None:
    dy.renew_cg()
    loss = dy.esum([dy.squared_norm(asked(layers.u * layers.table[k])) for k in range(7)])
    loss.value()
    with profiling.measure() as profile:
        loss.backward()
    rows = {(row.op, row.backward): row for row in profile}
    assert (rows["matmul", True].nodes, rows["matmul", True].calls) == (7, 1)
    layers.gradients()


def test_an_anomaly_names_its_line(layers: Layers) -> None:
    with dy.detect_anomaly():
        dy.renew_cg()
        hidden = [asked(layers.u * layers.table[k]) for k in range(5)]
        losses = [dy.sum_elems(dy.sqrt(dy.square(x) * float(k != 3))) for k, x in enumerate(hidden)]
        with pytest.raises(dy.AnomalyError, match="gradient"):
            dy.esum([asked(x) for x in losses]).backward()
    layers.gradients()
