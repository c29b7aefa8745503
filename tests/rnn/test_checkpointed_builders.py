"""Builders that keep some states only, and compute the others again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import autobatching, set_autobatching

N, DIM, HIDDEN = 40, 6, 8
Make = Callable[..., Any]

BUILDERS: dict[str, Make] = {
    "simple": lambda m, **more: dy.SimpleRNNBuilder(2, DIM, HIDDEN, m, **more),
    "gru": lambda m, **more: dy.GRUBuilder(2, DIM, HIDDEN, m, **more),
    "gru, reset after": lambda m, **more: dy.GRUBuilder(1, DIM, HIDDEN, m, True, **more),
    "lstm": lambda m, **more: dy.LSTMBuilder(2, DIM, HIDDEN, m, **more),
    "lstm, layer norm": lambda m, **more: dy.LSTMBuilder(2, DIM, HIDDEN, m, True, **more),
    "compact": lambda m, **more: dy.CompactVanillaLSTMBuilder(1, DIM, HIDDEN, m, **more),
    "sparse": lambda m, **more: dy.SparseLSTMBuilder(1, DIM, HIDDEN, m, **more),
    "coupled": lambda m, **more: dy.CoupledLSTMBuilder(2, DIM, HIDDEN, m, **more),
    "fast": lambda m, **more: dy.FastLSTMBuilder(1, DIM, HIDDEN, m, **more),
    "both directions": lambda m, **more: dy.BiRNNBuilder(2, DIM, HIDDEN, m, dy.LSTMBuilder, **more),
}


def transduced(rnn: Any, xs: list[dy.Expression]) -> dy.Expression:
    last: dy.Expression = rnn.transduce(xs)[-1]
    return last


def stepped(rnn: Any, xs: list[dy.Expression]) -> dy.Expression:
    last = rnn.add_inputs(xs)[-1] if isinstance(rnn, dy.BiRNNBuilder) else rnn.initial_state().add_inputs(xs)[-1]
    return dy.concatenate([part.output() for part in last]) if isinstance(last, tuple) else last.output()


def trained(make: Make, run: Callable[..., dy.Expression], dropout: float, **more: Any) -> list[np.ndarray]:
    """The loss and the gradients, for two sentences."""
    dy.reset_random_seed(5)
    model = dy.ParameterCollection()
    rnn = make(model, **more)
    if dropout:
        rnn.set_dropout(dropout)
    dy.reset_random_seed(7)
    dy.renew_cg()
    found = []
    for k, n in enumerate((N, N - 7)):
        xs = [dy.inputVector(np.sin(np.arange(DIM) + i + k)) for i in range(n)]
        found.append(dy.squared_norm(run(rnn, xs)))
    loss = dy.esum(found)
    loss.backward()
    gradients = [p.grad_as_array() for p in model.parameters_list()]
    return [loss.npvalue(), *gradients]


@pytest.fixture(params=[0, 1, 2])
def strategy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each way in which nodes are scheduled."""
    before = autobatching()
    set_autobatching(request.param)
    yield
    set_autobatching(before)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("run", [transduced, stepped])
@pytest.mark.parametrize("name", BUILDERS)
def test_same_bits(name: str, run: Callable[..., dy.Expression], dropout: float, strategy: None) -> None:
    """For all builders, with each number of states that are kept."""
    expected = trained(BUILDERS[name], run, dropout)
    for every in (1, 3, 6, 1000, True):
        engine.stats("execute.rematerialize", reset=True)
        found = trained(BUILDERS[name], run, dropout, checkpoint=every)
        assert all(np.array_equal(x, y) for x, y in zip(found, expected)), every
        again = engine.stats("execute.rematerialize")["nodes"]
        if every not in (1, 1000):
            assert again > 0, every


def kept(every: bool | int, n: int = 400, hidden: int = 64) -> int:
    """Bytes of values after forward over a sentence."""
    model = dy.ParameterCollection()
    rnn = dy.LSTMBuilder(1, 4, hidden, model, checkpoint=every)
    dy.renew_cg()
    x = dy.inputVector(np.ones(4))
    state = rnn.initial_state()
    dy.squared_norm(state.add_inputs([x] * n)[-1].output()).forward()
    row = {row.kind: row.bytes for row in dy.memory_report().rows}
    return row["values"]


def test_memory() -> None:
    """Less the fewer states are kept, down to what needs least."""
    everything, second, tenth, least = kept(0), kept(2), kept(10), kept(True)
    assert everything > second > tenth >= least
    assert least < everything / 2


def test_each_node_runs_at_most_twice() -> None:
    engine.stats("execute.rematerialize", reset=True)
    trained(BUILDERS["lstm"], transduced, 0, checkpoint=6)
    nodes = len(dy.cg())
    assert 0 < engine.stats("execute.rematerialize")["nodes"] < nodes


def test_states_can_be_asked_for() -> None:
    """Those that were dropped, and their gradients."""

    def asked(every: int) -> list[np.ndarray]:
        dy.reset_random_seed(5)
        rnn = dy.LSTMBuilder(1, DIM, HIDDEN, dy.ParameterCollection(), checkpoint=every)
        dy.renew_cg()
        xs = [dy.inputVector(np.sin(np.arange(DIM) + i)) for i in range(N)]
        states = rnn.initial_state().add_inputs(xs)
        dy.squared_norm(states[-1].output()).backward()
        return [x for k in (0, 7, 20, N - 1) for s in states[k].s() for x in (s.npvalue(), s.gradient())]

    assert all(np.array_equal(x, y) for x, y in zip(asked(8), asked(0)))


def test_inside_of_checkpoint() -> None:
    """Calls nest."""

    def loss(call: Callable[..., Any], every: int) -> list[np.ndarray]:
        dy.reset_random_seed(5)
        model = dy.ParameterCollection()
        rnn = dy.GRUBuilder(2, DIM, HIDDEN, model, checkpoint=every)
        dy.renew_cg()
        xs = [dy.inputVector(np.sin(np.arange(DIM) + i)) for i in range(N)]
        y = dy.squared_norm(call(rnn.transduce, xs)[-1])
        y.backward()
        return [y.npvalue(), *(p.grad_as_array() for p in model.parameters_list())]

    expected = loss(lambda f, *args: f(*args), 0)
    assert all(np.array_equal(x, y) for x, y in zip(loss(dy.checkpoint, 5), expected))


def test_the_attribute(collection: dy.ParameterCollection) -> None:
    rnn = dy.LSTMBuilder(1, 2, 4, collection)
    assert rnn.checkpoint == 0
    assert rnn.spec == dy.LSTMBuilder(1, 2, 4, collection, checkpoint=3).spec
    rnn.checkpoint = 7
    assert rnn.checkpoint == 7
    assert pickle.loads(pickle.dumps(rnn.checkpoint)) == 7
    rnn.checkpoint = True
    assert rnn.checkpoint is True
    rnn.checkpoint = False
    assert rnn.checkpoint == 0
    both = dy.BiRNNBuilder(1, 2, 4, collection, dy.GRUBuilder, checkpoint=5)
    assert [builder.checkpoint for pair in both.builder_layers for builder in pair] == [5, 5]
    again = dy.BiRNNBuilder(None, None, None, collection, None, both.builder_layers)
    assert again.builder_layers[0][0].checkpoint == 5


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (2.5, TypeError), ("3", TypeError), (None, TypeError)])
def test_wrong_numbers(value: Any, error: type[Exception], collection: dy.ParameterCollection) -> None:
    with pytest.raises(error, match="GRUBuilder: checkpoint: expected"):
        dy.GRUBuilder(1, 2, 4, collection, checkpoint=value)
    rnn = dy.GRUBuilder(1, 2, 4, collection)
    with pytest.raises(error, match="checkpoint: expected"):
        rnn.checkpoint = value


def test_graphs_that_only_go_forward(collection: dy.ParameterCollection) -> None:
    """Nothing is marked there."""
    rnn = dy.LSTMBuilder(1, 2, 4, collection, checkpoint=2)
    dy.renew_cg(forward_only=True)
    assert rnn.transduce([dy.inputVector([1, 2])] * 5)[-1].npvalue().shape == (4,)
