"""Decoding token by token: the best ones, and drawn ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decoders import END, LONGEST, OPTIONS, Network

import dynet_cy as dy
from dynet_cy.decoding import greedy

TABLE = np.log([[0.1, 0.6, 0.3], [0.1, 0.1, 0.8], [0.7, 0.25, 0.05]])  # a row for each token before


@pytest.fixture(autouse=True)
def graph() -> None:
    dy.renew_cg()


def from_table(state: Any, tokens: Any) -> tuple[Any, dy.Expression]:
    return state, dy.inputTensor(TABLE[tokens].T, batched=True)


WITHOUT_PENALTY = [name for name in OPTIONS if "length_penalty" not in OPTIONS[name][0]]


@pytest.mark.fibers
@pytest.mark.parametrize("builder", [dy.LSTMBuilder, dy.GRUBuilder], ids=lambda builder: builder.__name__)
@pytest.mark.parametrize("name", WITHOUT_PENALTY)
def test_the_best_tokens_are_those_of_a_beam_of_one(name: str, builder: Any, monkeypatch: Any) -> None:
    options, _ = OPTIONS[name]
    many = {**options, "prefix": [options["prefix"]] * 3} if "prefix" in options else options
    for seed in range(3):
        network = Network(seed, builder, logits=True)
        dy.renew_cg(forward_only=True)

        def of_one(sentence: int, network: Network = network) -> list[int]:
            return dy.decode(network.step, network.start([sentence]), END, LONGEST, **options)

        expected = [
            dy.beam_search(
                network.step_of_one, network.start([i]), 1, LONGEST, logits=True, one_by_one=True, **options
            ).tokens
            for i in range(3)
        ]
        start = network.start([0, 1, 2])
        assert list(map(of_one, range(3))) == expected
        assert dy.batched_map(of_one, range(3)) == expected
        for few in (greedy.FEW, 0):  # the best of few scores are not found in the graph
            monkeypatch.setattr(greedy, "FEW", few)
            assert dy.decode(network.step, start, END, LONGEST, begin=[END] * 3, **many) == expected


def test_outputs_that_have_ended_are_dropped() -> None:
    counts = []

    def step(state: Any, tokens: Any) -> tuple[Any, dy.Expression]:
        counts.append((len(tokens), state.dim()[1]))
        return from_table(state, tokens)

    state = dy.inputTensor(np.zeros((2, 4)), batched=True)
    found = dy.decode(step, state, 0, [9, 9, 9, 1], begin=np.array([2, 1, 0, 0]))
    assert found == [[0], [2, 0], [1, 2, 0], [1]]
    assert counts == [(4, 4), (2, 2), (1, 1)]


@pytest.mark.fibers
@pytest.mark.parametrize("every", [2, 3, 100])
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_tokens_that_are_read_after_several_steps(every: int, temperature: float | None) -> None:
    network = Network(3)
    options = {"min_length": 3, "forbidden": [3], "temperature": temperature, "begin": [1, END, 3]}
    options |= {"prefix": [[2], [], [3, 1]]}
    found = []
    for group in (1, every):
        dy.reset_random_seed(4)
        dy.renew_cg(forward_only=True)
        with dy.profiling.measure() as profile:
            found.append(dy.decode(network.step, network.start([0, 1, 2]), END, [7, 6, 4], every=group, **options))
        passes = sum(request.passes for request in profile.requests)
        assert passes == -(-max(map(len, found[-1])) // group)
    if temperature is None:
        assert found[0] == found[1]
    else:
        assert [own[:2] for own in found[1]][2] == [3, 1]
        assert all(3 not in own[2:] and 3 <= len(own) <= 7 for own in found[1])


def test_steps_beyond_an_end_do_not_matter() -> None:
    table = np.array([[0.0, 1, -9], [-9, -9, 1], [np.nan, np.nan, np.nan]])  # token 2 is the end

    def step(state: Any, tokens: Any) -> tuple[Any, dy.Expression]:
        return state, dy.lookup_batch(rows, tokens)

    rows = dy.ParameterCollection().lookup_parameters_from_numpy(table)
    for every in (1, 2, 5):
        assert dy.decode(step, None, 2, 5, begin=0, every=every) == [1, 2]
    with pytest.raises(ValueError, match=r"decode: the score of token 0 after \[1, 2\] is NaN"):
        dy.decode(step, None, None, 5, begin=0, every=3)


def test_several_stops_and_none() -> None:
    assert dy.decode(from_table, None, {0, 2}, 5, begin=0) == [1, 2]
    assert dy.decode(from_table, None, [2], 5, begin=np.int64(0)) == [1, 2]
    assert dy.decode(from_table, None, None, 5, begin=0) == [1, 2, 0, 1, 2]
    assert dy.decode(from_table, None, (0, 2), 5, begin=0, min_length=4) == [1, 1, 1, 2]
    assert dy.decode(from_table, None, None, 5, begin=[]) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_drawn_tokens_have_the_probabilities_of_a_softmax(temperature: float) -> None:
    dy.reset_random_seed(3)
    dy.renew_cg()
    draws = 60_000
    found = dy.decode(from_table, None, None, 1, begin=np.zeros(draws, int), temperature=temperature)
    shares = np.bincount(np.ravel(found), minlength=3) / draws
    weights = np.exp(TABLE[0] / temperature)
    expected = weights / weights.sum()
    assert (np.abs(shares - expected) < 4 * np.sqrt(expected * (1 - expected) / draws)).all()


def test_drawn_tokens_depend_on_the_seed_and_on_the_draws_before() -> None:
    def draw() -> list[list[int]]:
        return dy.decode(from_table, None, None, 20, begin=[0, 0], temperature=1.0)

    dy.reset_random_seed(5)
    dy.renew_cg()
    first, second = draw(), draw()
    assert first != second
    assert first[0] != first[1]
    dy.reset_random_seed(5)
    dy.renew_cg()
    assert (draw(), draw()) == (first, second)
    dy.reset_random_seed(6)
    dy.renew_cg()
    assert draw() != first


@pytest.mark.fibers
def test_drawn_tokens_of_a_map_do_not_depend_on_its_width() -> None:
    network, found = Network(1), []
    for width in (1, 2, 7):
        dy.reset_random_seed(5)
        dy.renew_cg(forward_only=True)
        found.append(
            dy.batched_map(
                lambda i: dy.decode(network.step, network.start([i % 3]), None, 6, begin=0, temperature=2.0),
                range(7),
                width=width,
            )
        )
    assert found[0] == found[1] == found[2]
    assert len(set(map(tuple, found[0]))) > 3


def test_only_allowed_tokens_are_drawn() -> None:
    dy.reset_random_seed(1)
    dy.renew_cg()
    found = dy.decode(
        from_table, None, 0, 8, begin=[0] * 200, temperature=5.0, allowed=lambda tokens: [0, 2] if tokens else [1]
    )
    assert {tokens[0] for tokens in found} == {1}
    assert {token for tokens in found for token in tokens[1:]} == {0, 2}


def test_a_wait_a_step() -> None:
    network = Network(1)
    dy.renew_cg()
    with dy.profiling.measure() as profile:
        dy.decode(network.step, network.start([0, 1, 2]), None, 5, begin=[0] * 3)
    assert sum(request.passes for request in profile.requests) == 5


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        ([0.0, 0.0], {"max_length": 0}, ValueError, "max_length must be at least 1, not 0"),
        (
            [0.0, 0.0],
            {"max_length": [3, 0], "begin": [0, 0]},
            ValueError,
            r"max_length must be at least 1, not \[3, 0\]",
        ),
        ([0.0, 0.0], {"max_length": [3], "begin": [0, 0]}, ValueError, "max_length: expected one for each of 2 senten"),
        ([0.0, 0.0], {"temperature": 0.0}, ValueError, "temperature must be above 0, not 0.0"),
        ([0.0, 0.0], {"temperature": float("nan")}, ValueError, "temperature must be above 0, not nan"),
        (
            [0.0, 0.0],
            {"stop": None},
            ValueError,
            "argument begin: without a single stop, the token that is read at fir",
        ),
        ([0.0, 0.0], {"stop": [0, 1]}, ValueError, "argument begin: without a single stop, the token that is read at"),
        (
            [0.0, 0.0],
            {"prefix": [2]},
            IndexError,
            "a prefix or constraint has the token 2, but there are scores of 2 tokens",
        ),
        ([[0.0], [0.0]], {}, ValueError, r"a vector of log probabilities, not shape \(2, 1\)"),
        ([0.0, 0.0], {"allowed": lambda tokens: []}, ValueError, r"no token can follow \[\]"),
        ([-np.inf, -np.inf], {}, ValueError, r"no token can follow \[\]"),
        ([0.0, np.nan], {"temperature": 1.0}, ValueError, r"the score of token 1 after \[\] is NaN"),
    ],
)
def test_bad_arguments_and_scores(values: Any, options: dict, error: type[Exception], message: str) -> None:
    options = {"stop": 0, "max_length": 3, **options}
    with pytest.raises(error, match=f"decode: .*{message}"):
        dy.decode(lambda state, tokens: (state, dy.inputTensor(values)), None, **options)
    with pytest.raises(TypeError, match="decode: step must return a state and an expression, not a list"):
        dy.decode(lambda state, tokens: (state, [0.0]), None, 0, 3)


def test_scores_for_all_outputs() -> None:
    found = dy.decode(lambda state, tokens: (state, dy.inputVector([1, 3, -np.inf, 2])), None, None, 2, begin=[0, 0])
    assert found == [[1, 1], [1, 1]]
