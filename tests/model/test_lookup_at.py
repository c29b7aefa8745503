"""Rows of lookup tables whose numbers are values of the graph."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")

ROWS = np.arange(20.0).reshape(5, 4) / 7 - 1


@pytest.fixture
def table():
    return dy.ParameterCollection().lookup_parameters_from_numpy(ROWS)


def given(indices, batched: bool = False):
    return dy.input_indices(indices, batched)


@pytest.mark.parametrize("strategy", [0, 1, 2])
def test_values_and_gradients(table, strategy: int) -> None:
    """The same as with numbers, also where rows are repeated, in one node and in several."""
    dy.renew_cg(autobatching=strategy)
    weights = dy.inputVector([1, -2, 3, 0.5])
    by_number = [table[3], table.batch([1, 3, 3]), table[0]]
    by_value = [table[given(3)], table[given([1, 3, 3], True)], dy.lookup(table, given(0))]
    for a, b in zip(by_number, by_value):
        assert a.dim() == b.dim()
        np.testing.assert_array_equal(a.npvalue(), b.npvalue())
    found = []
    for rows in (by_number, by_value):
        loss = dy.esum([dy.sum_batches(dy.dot_product(r, weights) * dy.squared_norm(r)) for r in rows])
        loss.backward()
        found.append(table.grad_as_array())
        table.scale_gradient(0)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert np.abs(found[0][3]).sum() > 0
    assert not found[0][2].any()


def test_shapes(table) -> None:
    i = given([[0, 1, 4], [2, 2, 3]])
    assert table[i].dim() == ((4, 2, 3), 1)
    np.testing.assert_allclose(table[i].npvalue(), np.moveaxis(ROWS[[[0, 1, 4], [2, 2, 3]]], -1, 0), rtol=1e-6)
    assert table[given([3])].dim() == ((4,), 1)
    assert dy.lookup_batch(table, i).dim() == ((4,), 6)
    assert dy.lookup_batch(table, given([0, 1], True)).dim() == ((4,), 2)
    deep = dy.ParameterCollection().add_lookup_parameters((3, 1, 1, 1, 1, 1, 2))
    with pytest.raises(dy.DimensionError, match="rows of 6 axes and indices of 2 have more than 7"):
        deep[i]


def test_only_the_rows_that_were_read_are_updated() -> None:
    """As with numbers, Adam moves no other row: the gradient is sparse."""
    model = dy.ParameterCollection()
    trainer = dy.AdamTrainer(model, 0.1)
    E, F = model.lookup_parameters_from_numpy(ROWS), model.lookup_parameters_from_numpy(ROWS)
    for step in range(4):
        dy.renew_cg()
        words = [step % 2, 2, step]
        (dy.squared_norm(E[given(words)]) + dy.sum_batches(dy.squared_norm(F.batch(words)))).backward()
        trainer.update()
    np.testing.assert_allclose(E.as_array(), F.as_array(), rtol=1e-6)
    np.testing.assert_array_equal(E.as_array()[4], ROWS[4].astype(np.float32))
    assert not np.allclose(E.as_array()[:4], ROWS[:4])


def test_frozen_rows_and_constants(table) -> None:
    table.set_updated(False)
    dy.renew_cg()
    dy.squared_norm(table[given(1)]).backward()
    table.set_updated(True)
    dy.squared_norm(dy.lookup(table, given(1), update=False)).backward()
    dy.squared_norm(table.batch(given([1, 2]), update=False)).backward()
    assert not table.grad_as_array().any()
    dy.squared_norm(table[given(1)]).backward()
    assert table.grad_as_array()[1].any()


def test_no_gradient_flows_through_the_index() -> None:
    model = dy.ParameterCollection()
    E, W = model.lookup_parameters_from_numpy(ROWS), model.add_parameters((5, 4))
    dy.renew_cg()
    scores = W * E[0]
    row = E[dy.argmax(scores)]
    dy.squared_norm(row).backward()
    best = int(np.argmax(scores.npvalue()))
    np.testing.assert_allclose(E.grad_as_array()[best], 2 * ROWS[best], rtol=1e-5)
    assert not W.grad_as_array().any()
    assert best == 0 or not E.grad_as_array()[0].any()


@pytest.mark.parametrize("bad", [5, -1, 2.5, np.nan, 2.0**24])
def test_indices_out_of_range(table, on_each_device: str, bad: float) -> None:
    """Nothing is computed, and the graph can be used afterwards."""
    dy.renew_cg()
    i = dy.inputVector([1, bad, 2])
    rows = table[i]
    text = "nan" if np.isnan(bad) else str(bad if bad % 1 else int(bad)).replace(".", r"\.")
    message = f"lookup of {table.name()}: the index is {text} at element 1; it must be a whole number from 0 to 4"
    for _ in range(1 if on_each_device == "GPU:0" else 2):  # a device tells of it once
        with pytest.raises(IndexError, match=message):
            rows.npvalue()
    i.set([1, 0, 2])
    np.testing.assert_allclose(rows.npvalue(), ROWS[[1, 0, 2]].T, rtol=1e-6)


def test_the_batch_element_of_a_wrong_index(table) -> None:
    dy.renew_cg()
    with pytest.raises(IndexError, match="the index is 9 at element 0 of batch element 2; it must be"):
        table[given([1, 2, 9], True)].npvalue()


def test_greedy_decoding_without_reading_a_value() -> None:
    """One sentence at a time, in one pass for all: as many batches for one sentence as for twenty, and the words that a
    program finds which reads each of them."""
    model = dy.ParameterCollection()
    model.set_weight_decay(0)
    E, W = model.add_lookup_parameters((30, 8)), model.add_parameters((30, 8), init="uniform", scale=3.0)
    lstm = dy.VanillaLSTMBuilder(1, 8, 8, model)

    def decode(word, steps: int, choose):
        state, words = lstm.initial_state(), []
        for _ in range(steps):
            state = state.add_input(E[word])
            word = choose(W * state.output())
            words.append(word)
        return words

    counts = {}
    for n in (1, 20):
        dy.renew_cg(forward_only=n == 20)
        found = [decode(given(k), 6, dy.argmax) for k in range(n)]
        dy.forward([word for words in found for word in words])
        counts[n] = dy.cg().n_batches()
        values = [[int(word.value()) for word in words] for words in found]
    assert counts[1] == counts[20]
    dy.renew_cg()
    assert values == [decode(k, 6, lambda s: int(s.npvalue().argmax())) for k in range(20)]


def test_gradients_as_expressions(table) -> None:
    """Those of all rows, whether their numbers are values of the graph or not, and of second order too."""
    dy.renew_cg()

    by_number = dy.esum(
        [dy.sum_elems(dy.cube(table[1])), dy.sum_batches(dy.sum_elems(dy.cube(table.batch([1, 3, 3]))))]
    )
    by_value = dy.sum_batches(dy.sum_elems(dy.cube(table[given([[1, 1], [3, 3]], True)]))) + 0 * dy.argmax(table[0])
    slopes = [dy.gradients(y, table) for y in (by_number, by_value)]
    np.testing.assert_allclose(slopes[0].npvalue(), slopes[1].npvalue(), rtol=1e-5)
    assert slopes[0].npvalue()[:, 1].any()
    twice = [dy.gradients(dy.squared_norm(s), table).npvalue() for s in slopes]
    np.testing.assert_allclose(twice[0], twice[1], rtol=1e-5)
