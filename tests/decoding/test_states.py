"""States of hypotheses, joined and selected: each hypothesis goes on as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy

DIM, HIDDEN = 3, 4
WORDS = np.random.default_rng(1).normal(size=(7, DIM))
RECURRENT = [
    dy.SimpleRNNBuilder,
    dy.GRUBuilder,
    dy.VanillaLSTMBuilder,
    dy.CompactVanillaLSTMBuilder,
    dy.CoupledLSTMBuilder,
    dy.FastLSTMBuilder,
    dy.SparseLSTMBuilder,
]


@pytest.fixture(autouse=True)
def new_graph() -> None:
    """Not the forward-only graph of a test before."""
    dy.renew_cg()


def word(i: int) -> dy.Expression:
    return dy.inputVector(WORDS[i])


def words(chosen: list[int]) -> dy.Expression:
    return dy.inputTensor(WORDS[chosen].T, batched=True)


def after(state: Any, read: list[int]) -> Any:
    for i in read:
        state = state.add_input(word(i))
    return state


def check_hypotheses(start: Any) -> None:
    """Three hypotheses are joined, the last and twice the first are chosen, and these read different words."""
    alone = [after(start, read) for read in ([1, 2], [3, 4], [5, 6])]
    joined = dy.select_states(dy.join_states(alone), [2, 0, 0])
    found = joined.add_input(words([0, 1, 2])).add_input(words([3, 3, 4]))
    expected = [after(alone[i], read) for i, read in ((2, [0, 3]), (0, [1, 3]), (0, [2, 4]))]
    for i, state in enumerate(expected):
        assert len(state.s()) == len(found.s())
        for mine, its in zip((*found.s(), found.output()), (*state.s(), state.output())):
            np.testing.assert_allclose(mine.npvalue()[..., i], its.npvalue(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("builder", RECURRENT, ids=lambda builder: builder.__name__)
@pytest.mark.parametrize("layers", [1, 2])
def test_states_of_builders(builder: Any, layers: int) -> None:
    check_hypotheses(builder(layers, DIM, HIDDEN, dy.ParameterCollection()).initial_state())


def test_states_of_several_networks() -> None:
    model = dy.ParameterCollection()
    below, above = dy.LSTMBuilder(1, DIM, 5, model), dy.GRUBuilder(2, 5, HIDDEN, model)
    check_hypotheses(dy.StackedRNNState([below.initial_state(), above.initial_state()]))


def test_layer_normalization() -> None:
    check_hypotheses(dy.VanillaLSTMBuilder(1, DIM, HIDDEN, dy.ParameterCollection(), ln_lstm=True).initial_state())


@pytest.mark.parametrize("builder", RECURRENT, ids=lambda builder: builder.__name__)
def test_a_joined_state_continues_by_the_ops_of_one(builder: Any) -> None:
    rnn = builder(1, DIM, HIDDEN, dy.ParameterCollection())
    one = rnn.initial_state().add_input(word(0))
    several = dy.select_states(one, [0, 0])
    assert several.h()[0].dim() == ((HIDDEN,), 2)
    x, xs = word(1), words([1, 2])

    def ops(state: Any, read: dy.Expression) -> list[str]:
        before = len(dy.cg())
        state.add_input(read)
        return dy.cg().op_names()[before:]

    assert ops(several, xs) == ops(one, x)


def test_an_empty_state_counts_as_zeros_and_as_any_number() -> None:
    rnn = dy.LSTMBuilder(2, DIM, HIDDEN, dy.ParameterCollection())
    start = rnn.initial_state()
    assert dy.select_states(start, [3, 1, 4]) is start
    assert dy.join_states([start, start]) is start
    read = start.add_input(word(1))
    found = dy.join_states([start, read]).add_input(words([2, 3])).output().npvalue()
    np.testing.assert_allclose(found[:, 0], start.add_input(word(2)).output().npvalue(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[:, 1], read.add_input(word(3)).output().npvalue(), rtol=1e-5, atol=1e-6)


def test_a_state_with_cells_only() -> None:
    start = dy.LSTMBuilder(1, DIM, HIDDEN, dy.ParameterCollection()).initial_state()
    check_hypotheses(start.set_s([dy.inputVector([1, 2, 3, 4])]))
    cells = [start.set_s([dy.inputVector(row)]) for row in np.eye(HIDDEN)[:2]]
    found = dy.select_states(dy.join_states(cells), [1, 1, 0]).add_input(words([0, 1, 2])).output().npvalue()
    for i, (which, read) in enumerate(((1, 0), (1, 1), (0, 2))):
        one = cells[which].add_input(word(read)).output().npvalue()
        np.testing.assert_allclose(found[:, i], one, rtol=1e-5, atol=1e-6)


def test_an_output_that_is_dropped_out_is_its_own_vector() -> None:
    rnn = dy.GRUBuilder(1, DIM, HIDDEN, dy.ParameterCollection())
    rnn.set_dropout(0.5)
    alone = [after(rnn.initial_state(), [i]) for i in range(3)]
    joined = dy.join_states(alone)
    found = dy.select_states(joined, [1])
    assert found.output() is not found.h()[-1]
    np.testing.assert_array_equal(found.output().npvalue(), alone[1].output().npvalue())
    np.testing.assert_array_equal(found.h()[-1].npvalue(), alone[1].h()[-1].npvalue())


def test_joined_states_are_selected_again_from_several_each() -> None:
    rnn = dy.GRUBuilder(1, DIM, HIDDEN, dy.ParameterCollection())
    two, one = rnn.initial_state().add_input(words([0, 1])), after(rnn.initial_state(), [2])
    joined = dy.join_states([two, one, two])
    assert joined.output().dim() == ((HIDDEN,), 5)
    for i, read in enumerate([0, 1, 2, 0, 1]):
        picked = dy.select_states(joined, np.array([i])).output().npvalue()
        np.testing.assert_allclose(picked, after(rnn.initial_state(), [read]).output().npvalue(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("positions", [None, "rotary", "relative"])
def test_caches_of_transformers(positions: str | None) -> None:
    layers = dy.nn.TransformerDecoder(2, HIDDEN, 2, 6, dy.ParameterCollection(), positions=positions)
    memory = dy.inputTensor(np.random.default_rng(2).normal(size=(HIDDEN, 5)))
    table = np.random.default_rng(3).normal(size=(7, HIDDEN))

    def read(state: dy.nn.DecoderState, ids: list[int]) -> Any:
        for i in ids:
            y, state = layers.step(dy.inputVector(table[i]), state)
        return y.npvalue(), state

    start = layers.start(memory)
    alone = [read(start, ids)[1] for ids in ([1, 2], [3, 4], [5, 6])]
    joined = dy.join_states(alone)
    assert joined.position() == 2
    assert joined.memory == start.memory  # all share it, so it stays one batch element
    joined = dy.select_states(joined, [2, 0, 0])
    assert joined.memory == start.memory
    y, joined = layers.step(dy.inputTensor(table[[0, 1, 2]].T, batched=True), joined)
    for i, (which, word) in enumerate(((2, 0), (0, 1), (0, 2))):
        np.testing.assert_allclose(y.npvalue()[:, i], read(alone[which], [word])[0], rtol=1e-5, atol=1e-5)
    encoders = dy.nn.TransformerEncoder(1, HIDDEN, 2, 6, dy.ParameterCollection(), positions=positions)
    first, state = encoders.step(dy.inputVector(table[0]))
    second, state = encoders.step(dy.inputTensor(table[[1, 2]].T, batched=True), dy.select_states(state, [0, 0]))
    assert second.dim() == ((HIDDEN,), 2)


class Named(NamedTuple):
    x: Any
    rest: Any


@dataclass
class Fields:
    x: Any
    name: str


def test_any_structure() -> None:
    def made(i: int) -> Any:
        x = dy.inputVector([i, i + 10])
        return {"a": (x, [x + 1, None, 3]), "b": Named(x * 2, Fields(x * 3, "name"))}

    found = dy.select_states(dy.join_states(map(made, range(3))), [2, 1])
    assert isinstance(found["b"], Named)
    assert isinstance(found["b"].rest, Fields)
    assert isinstance(found["a"][1], list)
    assert found["a"][1][1:] == [None, 3]
    assert found["b"].rest.name == "name"
    for x, factor, more in (
        (found["a"][0], 1, 0),
        (found["a"][1][0], 1, 1),
        (found["b"].x, 2, 0),
        (found["b"].rest.x, 3, 0),
    ):
        np.testing.assert_array_equal(x.npvalue(), factor * np.array([[2, 1], [12, 11]]) + more)


def test_gradients_reach_the_chosen_hypotheses() -> None:
    x = dy.inputTensor(np.arange(6.0).reshape(2, 3), batched=True)
    chosen = dy.select_states((x, None), np.array([2, 0, 2]))[0]
    weights = dy.inputTensor(np.array([[1.0, 2, 4], [1, 2, 4]]), batched=True)
    dy.sum_batches(dy.sum_elems(dy.cmult(chosen, weights))).backward(full=True)
    np.testing.assert_array_equal(x.gradient(), [[2, 0, 5], [2, 0, 5]])


def test_indices_that_are_values_of_the_graph() -> None:
    """The same hypotheses, and gradients, as by numbers."""
    numbers = [2, 0, 0, 1]
    found = []
    for chosen in (numbers, dy.input_indices(numbers), dy.input_indices([numbers], batched=True)):
        model = dy.ParameterCollection()
        rnn = dy.LSTMBuilder(2, 3, 4, model)
        for k, parameter in enumerate(p for layer in rnn.get_parameters() for p in layer):
            parameter.set_value(np.sin(np.arange(np.prod(parameter.shape())) + k).reshape(parameter.shape()))
        x = dy.inputTensor(np.cos(np.arange(9.0)).reshape(3, 3), batched=True)
        start = {"rnn": rnn.initial_state().add_input(x), "common": dy.ones(2), "many": x}
        state = dy.select_states(start, chosen)
        assert state["common"] is start["common"]
        y = dy.concatenate([state["rnn"].add_input(state["many"]).output(), *state["rnn"].s(), state["many"]])
        loss = dy.sum_batches(dy.sum_elems(dy.cube(y)))
        loss.backward()
        found.append((y.npvalue(), [p.grad_as_array() for p in model.parameters_list()]))
    for values, gradients in found[1:]:
        np.testing.assert_allclose(values, found[0][0], rtol=1e-6)
        all_close(gradients, found[0][1], rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError, match="pick_batch_elems: the index is 3 at element 1"):
        dy.select_states(x, dy.input_indices([0, 3])).npvalue()


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([3], IndexError, "index 3 is out of range for a state of 3 hypotheses"),
        ([0, -1], IndexError, "index -1 is out of range for a state of 3 hypotheses"),
        ([], ValueError, "argument indices: expected at least one"),
        ([0.5], TypeError, r"argument indices: expected a list of integers, got \[0.5\]"),
        ([[0]], TypeError, r"argument indices: expected a list of integers, got \[\[0\]\]"),
    ],
)
def test_bad_indices(indices: Any, error: type[Exception], message: str) -> None:
    x = dy.inputTensor(np.zeros((2, 3)), batched=True)
    with pytest.raises(error, match=f"select_states: {message}"):
        dy.select_states([x, dy.zeros(2)], indices)


def test_bad_states() -> None:
    two, three = dy.zeros(2, batch_size=2), dy.zeros(2, batch_size=3)
    with pytest.raises(ValueError, match=r"select_states: the expressions of a state have \[2, 3\] batch elements"):
        dy.select_states((two, three), [0])
    with pytest.raises(TypeError, match=r"select_states: states\['a'\]\[1\] is a ndarray; a state is made of expr"):
        dy.select_states({"a": [two, np.zeros(2)]}, [0])
    with pytest.raises(ValueError, match="join_states: argument states: expected at least one state"):
        dy.join_states([])
    with pytest.raises(TypeError, match=r"join_states: states\[0\] is a Expression in one state, and a int in another"):
        dy.join_states([(two,), (1,)])
    with pytest.raises(ValueError, match=r"join_states: a number or string differs at states\[1\]: 1 and 2"):
        dy.join_states([(two, 1), (two, 2)])
    with pytest.raises(ValueError, match="join_states: the structure differs at states"):
        dy.join_states([(two,), (two, two)])
    with pytest.raises(dy.DimensionError):
        dy.join_states([dy.zeros(2), dy.zeros(3)])
    model = dy.ParameterCollection()
    builders = [dy.GRUBuilder(1, 3, 4, model) for _ in range(2)]
    with pytest.raises(ValueError, match="join_states: states has states of two builders, <GRUBuilder"):
        dy.join_states([builder.initial_state() for builder in builders])
