"""States: contents, branching, setting them, errors."""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from rnn_reference import HIDDEN, INPUT, KINDS, batched, make, random_inputs, random_state

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError

CELLS = [kind for kind in KINDS if KINDS[kind][3] == 2]
NO_CELLS = [kind for kind in KINDS if KINDS[kind][3] == 1]


def start(kind, layers=2):
    builder, _ = make(dy, kind, layers)
    dy.renew_cg()
    xs = [batched(dy, x[:, 0]) for x in random_inputs(4, 1)]
    vectors = [batched(dy, v[:, 0]) for v in random_state(kind, layers, 1)]
    return builder, xs, vectors


def values(es):
    return np.array([e.npvalue() for e in es])


def no_output(state):
    """Whether a state has no output, of which the first one in a process warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return state.output() is None


@pytest.mark.parametrize("kind", KINDS)
def test_empty_state(kind):
    builder, xs, _ = start(kind)
    state = builder.initial_state()
    assert no_output(state)
    assert state.h() == ()
    assert state.s() == ()
    assert state.prev() is None
    assert state.b() is builder
    after = state.add_input(xs[0])
    assert after.prev() is state
    assert no_output(state)
    assert builder.num_h0_components == len(after.s())


@pytest.mark.parametrize("kind", KINDS)
def test_states_branch(kind):
    builder, xs, _ = start(kind)
    first = builder.initial_state().add_input(xs[0])
    before = values(first.s())
    left = first.add_input(xs[1]).add_input(xs[3])
    right = first.add_input(xs[2]).add_input(xs[3])
    again = builder.initial_state().transduce([xs[0], xs[1], xs[3]])[-1]
    np.testing.assert_allclose(left.output().npvalue(), again.npvalue(), rtol=1e-5, atol=1e-6)
    other = builder.initial_state().transduce([xs[0], xs[2], xs[3]])[-1]
    np.testing.assert_allclose(right.output().npvalue(), other.npvalue(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(values(first.s()), before)
    assert left.prev().prev() is first


@pytest.mark.parametrize("kind", KINDS)
def test_initial_state_from_vectors(kind):
    builder, xs, vectors = start(kind)
    state = builder.initial_state(vectors)
    np.testing.assert_array_equal(values(state.s()), values(vectors))
    np.testing.assert_array_equal(values(state.h()), values(vectors[-2:]))
    np.testing.assert_array_equal(state.output().npvalue(), vectors[-1].npvalue())
    np.testing.assert_array_equal(values(builder.initial_state(tuple(vectors)).s()), values(vectors))
    np.testing.assert_array_equal(values(builder.initial_state(e for e in vectors).s()), values(vectors))
    raw = [[float(v) for v in e.npvalue()] for e in vectors]
    for given in (raw, [np.array(v, np.float32) for v in raw]):
        other = builder.initial_state_from_raw_vectors(given)
        np.testing.assert_array_equal(values(other.s()), values(vectors))
        np.testing.assert_array_equal(
            other.add_input(xs[0]).output().npvalue(), state.add_input(xs[0]).output().npvalue()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_as_initial_vectors(kind):
    builder, xs, vectors = start(kind)
    model = dy.ParameterCollection()
    given = [model.add_parameters((HIDDEN,), init=0.25) for _ in vectors]
    expected = builder.initial_state_from_raw_vectors([[0.25] * HIDDEN] * len(vectors)).add_input(xs[0])
    got = builder.initial_state(given).add_input(xs[0])
    np.testing.assert_allclose(got.output().npvalue(), expected.output().npvalue(), rtol=1e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_setting_with_cells(kind):
    builder, xs, vectors = start(kind)
    c, h = vectors[:2], vectors[2:]
    state = builder.initial_state().add_input(xs[0])
    state.add_input(xs[1])  # must not matter below
    kept = values(state.s())

    np.testing.assert_array_equal(values(state.set_h(h).s()), np.concatenate([kept[:2], values(h)]))
    np.testing.assert_array_equal(values(state.set_s(c).s()), np.concatenate([values(c), kept[2:]]))
    np.testing.assert_array_equal(values(state.set_s(vectors).s()), values(vectors))
    np.testing.assert_array_equal(state.set_s(c).output().npvalue(), kept[-1])
    assert state.set_h(h).prev() is state
    assert state.set_s(vectors).prev() is state
    np.testing.assert_array_equal(values(state.s()), kept)

    by_steps = state.set_s(c).set_h(h).add_input(xs[2])
    at_once = builder.initial_state(vectors).add_input(xs[2])
    np.testing.assert_array_equal(values(by_steps.s()), values(at_once.s()))


@pytest.mark.parametrize("kind", CELLS)
def test_setting_half_of_an_empty_state(kind):
    builder, xs, vectors = start(kind)
    c, h = vectors[:2], vectors[2:]
    zeros = np.zeros((2, HIDDEN))
    for state in (builder.initial_state(c), builder.initial_state().set_s(c)):
        np.testing.assert_array_equal(values(state.s()), np.concatenate([values(c), zeros]))
        np.testing.assert_array_equal(values(state.h()), zeros)
        np.testing.assert_array_equal(state.output().npvalue(), zeros[0])
        assert state.add_input(xs[0]).output().npvalue().shape == (HIDDEN,)
    state = builder.initial_state().set_h(h)
    np.testing.assert_array_equal(values(state.s()), np.concatenate([zeros, values(h)]))
    np.testing.assert_array_equal(state.output().npvalue(), values(h)[-1])
    full = builder.initial_state_from_raw_vectors([[0.0] * HIDDEN] * 2 + [e.npvalue() for e in h])
    np.testing.assert_allclose(
        state.add_input(xs[0]).output().npvalue(), full.add_input(xs[0]).output().npvalue(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", NO_CELLS)
def test_setting_without_cells(kind):
    builder, xs, vectors = start(kind)
    state = builder.initial_state().add_input(xs[0])
    for after in (state.set_h(vectors), state.set_s(vectors), builder.initial_state().set_h(vectors)):
        np.testing.assert_array_equal(values(after.h()), values(vectors))
        np.testing.assert_array_equal(values(after.s()), values(vectors))
        np.testing.assert_array_equal(after.output().npvalue(), vectors[-1].npvalue())


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_vectors(kind):
    builder, xs, vectors = start(kind)
    name = type(builder).__name__
    counts = "2" if kind in NO_CELLS else "2 or 4"
    wrong = [*vectors[:-1], dy.inputVector([1.0] * 5)]
    state = builder.initial_state().add_input(xs[0])
    for count in (0, 1, 3, 5):
        given = (vectors * 3)[:count]
        got = rf"got {count} of shapes \({HIDDEN},\)" if count else "got none"
        message = rf"expected {counts} vectors of shape \({HIDDEN},\) \(the .*{got}"
        with pytest.raises(ValueError, match=rf"{name}\.initial_state: argument vecs: {message}"):
            builder.initial_state(given)
        with pytest.raises(ValueError, match=rf"{name}\.set_s: argument es: {message}"):
            state.set_s(given)
        with pytest.raises(ValueError, match=rf"{name}\.initial_state_from_raw_vectors: argument vecs: {message}"):
            builder.initial_state_from_raw_vectors([e.npvalue() for e in given])
    with pytest.raises(ValueError, match=rf"{name}\.initial_state: .* got {len(wrong)} of shapes .*\(5,\)"):
        builder.initial_state(wrong)
    with pytest.raises(ValueError, match=rf"{name}\.set_h: argument es: expected 2 vectors .* got 1 of shapes"):
        state.set_h(vectors[:1])
    with pytest.raises(ValueError, match=rf"{name}\.set_h: argument es: expected 2 vectors .* got none"):
        state.set_h()
    with pytest.raises(TypeError, match=rf"{name}\.initial_state: argument vecs: expected expressions, got list"):
        builder.initial_state([[0.0] * HIDDEN] * 2)


def test_update_false_keeps_gradients_away():
    for kind in KINDS:
        builder, model = make(dy, kind, 2)
        for update in (True, False):
            dy.renew_cg()
            state = builder.initial_state(update=update)
            xs = [batched(dy, x[:, 0]) for x in random_inputs(2, 1)]
            before = [np.array(p.grad_as_array()) for p in model.parameters_list()]
            loss = dy.sum_elems(state.transduce(xs)[-1])
            loss.forward()
            loss.backward()
            changed = [bool((p.grad_as_array() != g).any()) for p, g in zip(model.parameters_list(), before)]
            assert any(changed) is update


def test_stale_states():
    for kind in KINDS:
        builder, xs, _ = start(kind)
        state = builder.initial_state().add_input(xs[0])
        dy.renew_cg()
        x = batched(dy, np.ones(INPUT))
        with pytest.raises(StaleExpressionError):
            state.add_input(x)
        assert builder.initial_state().add_input(x).output().npvalue().shape == (HIDDEN,)


def test_reverted_parameters_are_put_into_the_graph_again():
    for kind in KINDS:
        builder, _ = make(dy, kind, 2)
        if hasattr(builder, "set_dropouts"):
            builder.set_dropouts(0.1, 0.1)
        dy.renew_cg()
        dy.cg_checkpoint()
        for _ in range(2):
            x = batched(dy, np.ones(INPUT))
            assert builder.initial_state().add_input(x).output().npvalue().shape == (HIDDEN,)
            dy.cg_revert()
            dy.cg_checkpoint()
        # The parameters stay in the graph, the masks are dropped.
        state = builder.initial_state()
        dy.cg_checkpoint()
        for _ in range(2):
            assert state.add_input(batched(dy, np.ones(INPUT))).output().npvalue().shape == (HIDDEN,)
            dy.cg_revert()
            dy.cg_checkpoint()


def test_a_long_chain_of_states_is_freed():
    # Each state refers to the one before it, and freeing them must not recurse.
    builder, xs, _ = start("vanilla", 1)
    state = builder.initial_state()
    for _ in range(100_000):
        state = state.add_input(xs[0])
    del state


class _Counting(dy.VanillaLSTMBuilder):
    """A subclass as programs define it."""

    def initial_state(self, vecs=None, update=True):
        self.count = getattr(self, "count", 0) + 1
        return super().initial_state(vecs, update)


def test_derived_builders():
    builder = _Counting(1, INPUT, HIDDEN, dy.ParameterCollection())
    dy.renew_cg()
    x = batched(dy, np.ones(INPUT))
    state = builder.initial_state().add_input(x).add_input(x)
    assert isinstance(state, dy.RNNState)
    assert builder.count == 1
    assert state.b() is builder
    with pytest.raises(TypeError):
        pickle.dumps(state)


def python_calls(function):
    """The names of the Python functions that run during a call."""
    names = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(before)
    return [name for name in names if name not in (function.__name__, "python_calls")]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vanilla_norm"])
def test_a_step_is_made_without_python(kind):
    builder, xs, vectors = start(kind)
    empty = builder.initial_state()
    given = builder.initial_state(vectors)
    assert "_step" not in python_calls(lambda: empty.add_inputs(xs))
    assert python_calls(lambda: given.add_inputs(xs)) == []
    assert python_calls(lambda: given.transduce(xs)) == ["_transduce"]


@pytest.mark.parametrize("kind", ["simple", "gru", "vanilla", "compact", "coupled"])
def test_steps_that_drop_are_made_without_python(kind):
    """Python code may choose rates and masks, but does not make the step."""
    builder, xs, vectors = start(kind)
    builder.set_dropout(0.5)
    state = builder.initial_state(vectors).add_input(xs[0])
    assert not {"_step", "_cell"} & set(python_calls(lambda: state.add_input(xs[1])))


def test_steps_with_weight_noise_are_made_without_python():
    builder, xs, vectors = start("compact")
    builder.set_weightnoise(0.5)
    state = builder.initial_state(vectors)
    assert python_calls(lambda: state.add_input(xs[0])) == ["_options"]


def test_a_state_goes_on_after_a_revert():
    for kind in KINDS:
        builder, xs, _ = start(kind)
        state = builder.initial_state().add_input(xs[0]).add_input(xs[1])
        dy.cg_checkpoint()
        expected = state.add_input(xs[2]).output().npvalue()
        dy.cg_revert()
        np.testing.assert_array_equal(state.add_input(xs[2]).output().npvalue(), expected)


def test_stacked_states():
    below, _ = make(dy, "vanilla", 2)
    above = dy.GRUBuilder(1, HIDDEN, 2, dy.ParameterCollection())
    dy.renew_cg()
    xs = [batched(dy, x[:, 0]) for x in random_inputs(3, 1)]
    empty = dy.StackedRNNState([below.initial_state(), above.initial_state()])
    assert no_output(empty)
    assert empty.prev() is None
    assert empty.h() == ()
    states = empty.add_inputs(xs)
    assert states[0].prev() is empty
    assert states[2].prev() is states[1]
    expected = above.initial_state().transduce(below.initial_state().transduce(xs))
    np.testing.assert_allclose(values([s.output() for s in states]), values(expected), rtol=1e-5, atol=1e-6)
    assert [e.dim()[0][0] for e in states[0].h()] == [HIDDEN, HIDDEN, 2]
    assert [e.dim()[0][0] for e in states[0].s()] == [HIDDEN] * 4 + [2]
    with pytest.raises(ValueError, match="StackedRNNState: argument states"):
        dy.StackedRNNState([])


@pytest.mark.parametrize("name", sorted({name[: -len("Builder")] for name, *_ in KINDS.values()} | {"SparseLSTM"}))
@pytest.mark.parametrize("layers", [1, 2])
def test_wrong_inputs_name_the_builder(graph, name: str, layers: int) -> None:
    builder = getattr(dy, name + "Builder")(layers, 3, 2, dy.ParameterCollection())
    state = builder.initial_state().add_input(dy.inputVector([1, 2, 3]))
    wrong = dy.inputVector([1, 2, 3, 4])
    uses = {
        "add_input": state.add_input,
        "add_inputs": lambda x: state.add_inputs([x]),
        "transduce": lambda x: state.transduce([x]),
    }
    for method, use in uses.items():
        with pytest.raises(
            ValueError, match=rf"{name}Builder\.{method}: the input has shape \(4,\), .* inputs of 3 elem"
        ):
            use(wrong)
        with pytest.raises(ValueError, match=rf"{name}Builder\.{method}: the input has shape \(2,\), .* inputs of 3"):
            use([1, 2])
        with pytest.raises(TypeError, match=rf"{name}Builder\.{method}: .* an array or a list of numbers, got 'word'"):
            use("word")
    assert state.add_input(dy.inputVector([1, 2, 3])).output().dim() == ((2,), 1)


@pytest.mark.parametrize("kind", [*KINDS, "BiRNN", "stack"])
def test_arrays_are_read_by_columns(graph, kind: str) -> None:
    """An array of two axes is a matrix, as an expression is; a list, and an array of expressions, has an input each."""
    model = dy.ParameterCollection()
    if kind == "BiRNN":
        reader: Any = dy.BiRNNBuilder(1, INPUT, 2 * HIDDEN, model, dy.GRUBuilder)
    elif kind == "stack":
        below = dy.GRUBuilder(1, INPUT, HIDDEN, model)
        reader = dy.StackedRNNState([below.initial_state(), dy.GRUBuilder(1, HIDDEN, 2, model).initial_state()])
    else:
        reader = make(dy, kind, 1)[0].initial_state()
    objects = np.empty(2, object)
    for n in (INPUT, 2, 0):
        array = np.random.default_rng(n).normal(size=(INPUT, n)).astype(np.float32)
        columns = [dy.inputVector(array[:, i]) for i in range(n)]
        if n == 2:
            objects[:] = columns
        if kind != "stack":
            for matrix in (array, dy.inputTensor(array)):
                outputs = reader.transduce(matrix)
                assert outputs.shape == (HIDDEN * (1 + (kind == "BiRNN")), n)
                for i, expected in enumerate(reader.transduce(columns)):
                    np.testing.assert_allclose(outputs.npvalue()[:, i], expected.npvalue(), rtol=1e-5, atol=1e-6)
            assert type(reader.transduce(list(array.T))) is list
        expected = [state_outputs(state) for state in reader.add_inputs(columns)]
        for xs in (array, dy.inputTensor(array), *([objects] if n == 2 else [])):
            found = [state_outputs(state) for state in reader.add_inputs(xs)]
            assert len(found) == n
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(dy.DimensionError, match="argument xs: expected columns of .*; write x.T"):
        reader.add_inputs(np.ones((INPUT + 1, INPUT)))


def state_outputs(state: Any) -> np.ndarray:
    """The output of a state, or of each one of a pair."""
    return np.concatenate([s.output().npvalue() for s in (state if isinstance(state, tuple) else (state,))])


def outputs_of(kind: str, model: Any, xs: Any) -> list[list[float]]:
    """What a network of a kind makes of inputs, in each way that it reads them."""
    if kind == "BiRNN":
        birnn = dy.BiRNNBuilder(2, 3, 4, model, dy.GRUBuilder)
        pairs = birnn.add_inputs(xs)
        found = [*birnn.transduce(xs), *[state.output() for pair in pairs for state in pair]]
    elif "Tree" in kind:
        tree = getattr(dy, kind + "Builder")(*((2, 3, 4) if kind.startswith("Nary") else (3, 4)), model)
        leaf = tree.add_input(xs[0])
        found = [leaf.h, tree.add_input(xs[1], [leaf]).h, tree.add_input(None, [leaf]).h]
    else:
        state = getattr(dy, kind + "Builder")(2, 3, 4, model).initial_state()
        joined = dy.StackedRNNState([state]).add_input(xs[0]).output()
        found = [
            *state.transduce(xs),
            *[s.output() for s in state.add_inputs(xs)],
            state.add_input(xs[0]).output(),
            joined,
        ]
    return [x.vec_value() for x in found]


@pytest.mark.parametrize(
    "kind", ["VanillaLSTM", "CoupledLSTM", "GRU", "SimpleRNN", "BiRNN", "NaryTreeLSTM", "ChildSumTreeLSTM"]
)
def test_inputs_may_be_arrays_and_lists(kind: str) -> None:
    numbers = [[1.0, 2.0, 3.0], [0.5, -1.0, 0.0]]
    inputs = {
        "expressions": lambda: [dy.inputVector(x) for x in numbers],
        "lists": lambda: numbers,
        "arrays": lambda: [np.array(x) for x in numbers],
        "mixed": lambda: [dy.inputVector(numbers[0]), tuple(numbers[1])],
    }
    found = {}
    for name, given in inputs.items():
        dy.reset_random_seed(3)
        dy.renew_cg()
        found[name] = outputs_of(kind, dy.ParameterCollection(), given())
    assert all(value == found["expressions"] for value in found.values())


@pytest.mark.parametrize("change", ["batch size", "h of another chain", "c of another chain", "h of before", "weights"])
def test_shapes_after_a_change_within_a_chain(change):
    """Steps of equal shapes copy those of the step before, but not after a change; steps that do not fit fail."""
    builder = dy.VanillaLSTMBuilder(1, INPUT, HIDDEN, dy.ParameterCollection())
    other = dy.VanillaLSTMBuilder(1, INPUT, HIDDEN, dy.ParameterCollection())
    dy.renew_cg()
    rng = np.random.default_rng(3)

    def vectors(batch):
        return dy.inputTensor(rng.uniform(-1, 1, (INPUT, batch)), batched=True)

    def chain(steps, batch):
        return builder.initial_state().add_inputs([vectors(batch) for _ in range(steps)])[-1]

    state, three = chain(3, 1), chain(2, 3)
    made_by, batch = builder, 3
    if change == "batch size":
        state = state.add_input(vectors(3))
    elif change == "h of another chain":
        state = state.set_s([state.s()[0], three.h()[0]])
    elif change == "c of another chain":
        state = state.set_s([three.s()[0], state.h()[0]])
    elif change == "h of before":
        h = state.h()[0]
        state = state.set_s([three.s()[0], h]).add_input(vectors(1))
        state = state.set_s([state.s()[0], h])
    else:
        state, made_by, batch = other.initial_state().set_s(state.s()), other, 1
    for size in (1, batch, batch):
        c, h, x = *state.s(), vectors(size)
        state = state.add_input(x)
        gates = dy.vanilla_lstm_gates(x, h, *(made_by.get_parameter_expressions()[0]))
        desired_c = dy.vanilla_lstm_c(c, gates)
        desired = [desired_c, dy.vanilla_lstm_h(desired_c, gates)]
        assert [s.dim() for s in state.s()] == [s.dim() for s in desired]
        for found, expected in zip(state.s(), desired):
            np.testing.assert_allclose(found.npvalue(), expected.npvalue(), rtol=1e-5, atol=1e-6)
    if batch == 3:
        with pytest.raises(dy.DimensionError, match="batch sizes"):
            state.add_input(vectors(2))
    else:
        with pytest.raises(ValueError, match=f"{INPUT + 1}"):
            state.add_input(dy.inputVector(np.ones(INPUT + 1)))
