"""Indices that are values of the graph, on a device: rows of tables, training, errors, waits."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_default_device

ROWS = np.arange(24.0).reshape(6, 4) / 7 - 1


def given(indices, batched: bool = False):
    return dy.input_indices(indices, batched)


def trained(device: int, steps: int, trainer_of, words_of) -> list[np.ndarray]:
    """The rows of two tables after some updates: one is read by value, the other by number."""
    set_default_device(device)
    try:
        model = dy.ParameterCollection()
        E, F = (model.lookup_parameters_from_numpy(ROWS) for _ in range(2))
        trainer = trainer_of(model)
        for step in range(steps):
            dy.renew_cg()
            words = words_of(step)
            by_value = dy.sum_elems(dy.cube(E[given(words)])) + dy.sum_elems(E[given(words[0])])
            by_number = dy.sum_batches(dy.sum_elems(dy.cube(F.batch(words)))) + dy.sum_elems(F[words[0]])
            (by_value + by_number).backward()
            trainer.update()
        return [E.as_array(), F.as_array()]
    finally:
        set_default_device(0)


@pytest.mark.parametrize("rule", ["SimpleSGDTrainer", "AdamTrainer", "MomentumSGDTrainer"])
def test_updates_of_rows(device, rule: str) -> None:
    """As on the CPU, and as with numbers: only rows with a gradient move."""
    runs = [trained(d, 4, getattr(dy, rule), lambda step: [step % 2, 4, 4, step]) for d in (0, 1)]
    for found in runs:
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
        np.testing.assert_array_equal(found[0][5], ROWS[5].astype(np.float32))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-5)


def test_shapes_and_batches_of_rows(on_device) -> None:
    table = dy.ParameterCollection().lookup_parameters_from_numpy(ROWS)
    i = np.array([[0, 1, 5], [2, 2, 3]])
    np.testing.assert_allclose(table[given(i)].npvalue(), np.moveaxis(ROWS[i], -1, 0), rtol=1e-6)
    np.testing.assert_allclose(table[given(i, True)].npvalue(), np.moveaxis(ROWS[i], -1, 0), rtol=1e-6)
    np.testing.assert_allclose(dy.lookup_batch(table, given(i[0])).npvalue(), ROWS[i[0]].T, rtol=1e-6)


def test_an_index_out_of_range_is_an_error_at_the_next_wait(on_device) -> None:
    """It is raised once, and nothing is read or written in place of what it names."""
    table = dy.ParameterCollection().lookup_parameters_from_numpy(ROWS)
    x = dy.inputTensor(ROWS)
    for name, build, n in [
        (f"lookup of {table.name()}", lambda i: table[i], 6),
        ("pick", lambda i: dy.pick(x, i), 6),
        ("gather", lambda i: dy.gather(x[:, 0], i), 6),
        ("scatter_rows", lambda i: dy.scatter_rows(x[:1], i, 3), 3),
        ("pickneglogsoftmax", lambda i: dy.pickneglogsoftmax(x[0], i), 4),
        ("one_hot", lambda i: dy.one_hot(7, i), 7),
        ("pick_batch_elems", lambda i: dy.pick_batch_elems(dy.reshape(x, (4,), 6), i), 6),
        ("hinge", lambda i: dy.hinge(x[0], i), 4),
    ]:
        for bad in (n, -2, 0.5, float("nan")):
            y = build(dy.inputVector([bad]))
            text = str(bad).replace(".", r"\.")
            with pytest.raises(IndexError, match=f"^{name}: the index is {text} at .*number from 0 to {n - 1}"):
                y.npvalue()
            assert build(dy.inputVector([1])).npvalue().size


def test_a_choice_that_is_none_is_an_error_at_the_next_wait(on_device) -> None:
    scores, ends = np.zeros((3, 4)), dy.zeros(3)
    moves = dy.zeros((3, 3))
    chooses = {
        "argmax": lambda x: dy.argmax(x, d=1),
        "argmin": lambda x: dy.argmin(x, 0),
        "sample": lambda x: dy.sample(x, 1),
        "crf_viterbi": lambda x: dy.crf_viterbi(x, moves, ends, ends),
    }
    for odd, expected in ((np.nan, "x is NaN at element 7 of batch element 1$"), (-np.inf, "-inf")):
        for name, choose in chooses.items():
            x = np.stack([scores, scores], -1)
            x[(1, 2, 1) if odd != odd else (..., 1)] = odd
            if odd == odd and name.startswith("arg"):
                assert not choose(dy.inputTensor(x, batched=True)).npvalue().any()
                continue
            with pytest.raises(ValueError, match=f"^{name}: .*{expected}"):
                choose(dy.inputTensor(x, batched=True)).npvalue()
            assert choose(dy.inputTensor(scores)).npvalue().size


@pytest.mark.parametrize("n", [2, 3000])  # one tile of a line, and several
def test_a_part_of_an_order_that_has_nan(n: int, on_device) -> None:
    x = np.zeros((3, n))
    x[1, n - 1] = np.nan
    with pytest.raises(ValueError, match=f"topk: x is NaN at element {3 * n - 2}"):
        dy.topk(dy.inputTensor(x), 2, 1)[1].npvalue()


def test_gradients_of_rows_that_do_not_exist(on_device) -> None:
    """They go nowhere, and the rows beside them get theirs."""
    table = dy.ParameterCollection().lookup_parameters_from_numpy(ROWS)
    dy.squared_norm(table[dy.inputVector([1, 9, 3])]).backward()
    with pytest.raises(IndexError, match="the index is 9 at element 1"):
        table.grad_as_array()
    expected = np.zeros_like(ROWS)
    expected[[1, 3]] = 2 * ROWS[[1, 3]]
    np.testing.assert_allclose(table.grad_as_array(), expected, rtol=1e-5)


@pytest.mark.parametrize("made", [dy.input_indices, dy.inputVector])
def test_a_label_that_is_the_blank(on_device, made) -> None:
    x = dy.log_softmax(dy.zeros((4, 5)))
    with pytest.raises(IndexError, match="^ctc_loss: the blank, 2, is among the labels, at element 1$"):
        dy.ctc_loss(x, made([1, 2, 3]), 2).value()
    assert dy.ctc_loss(x, made([1, 0, 3]), 2).value() == pytest.approx(dy.ctc_loss(x, [1, 0, 3], 2).value())


@pytest.mark.parametrize("sentences", [10, 200])
def test_greedy_decoding_waits_once(sentences: int, on_device) -> None:
    """Of 200 sentences, the graph has so many nodes that it renumbers them before the words are read."""

    model = dy.ParameterCollection()
    E, W = model.add_lookup_parameters((30, 8)), model.add_parameters((30, 8), init="uniform", scale=3.0)
    R = model.add_parameters((8, 8))

    def decode(word, choose):
        h, words = dy.zeros(8), []
        for _ in range(6):
            h = dy.tanh(E[word] + R * h)
            word = choose(W * h)
            words.append(word)
        return words

    def run():
        dy.renew_cg(forward_only=True)
        found = dy.npvalues([dy.concatenate(decode(given(k % 30), dy.argmax)) for k in range(sentences)])
        return [words.astype(int).tolist() for words in found]

    run()
    before = engine.stats("gpu.0")["waits"]
    values = run()
    assert engine.stats("gpu.0")["waits"] - before == 1
    set_default_device(0)
    assert values == [decode(k % 30, lambda s: int(s.npvalue().argmax())) for k in range(sentences)]
