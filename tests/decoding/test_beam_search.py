"""Beam search over one state of all hypotheses agrees with exhaustive search, and with a state for each hypothesis."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from decoders import COUNT, END, HIDDEN, LONGEST, OPTIONS, Network

import dynet_cy as dy
from dynet_cy.decoding import search

ALL = COUNT**LONGEST  # as many hypotheses as there can be


@pytest.fixture(autouse=True)
def graph() -> None:
    dy.renew_cg()


def penalty(tokens: tuple[int, ...], exponent: float) -> float:
    return ((5 + len(tokens)) / 6) ** exponent


def ranked(
    network: Network, options: dict, possible: Any, sentence: int, begin: int, longest: int = LONGEST
) -> list[tuple[float, list[int]]]:
    """All outputs that may be found, the best first; those without an end only if there are no others."""
    outputs = {tokens: score for tokens, score in network.every(sentence, begin, longest).items() if possible(tokens)}
    ended = {tokens: score for tokens, score in outputs.items() if tokens[-1] == END} or outputs
    exponent = options.get("length_penalty", 0.0)
    return sorted(((score / penalty(tokens, exponent), list(tokens)) for tokens, score in ended.items()), reverse=True)


def check(found: list[dy.Hypothesis], best: list[tuple[float, list[int]]], n_best: int) -> None:
    best = best[:n_best]
    assert [own.tokens for own in found] == [tokens for _, tokens in best]
    np.testing.assert_allclose([own.score for own in found], [score for score, _ in best], rtol=1e-4, atol=1e-5)


@pytest.mark.fibers
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_beam_of_all_finds_the_best(name: str, logits: bool) -> None:
    options, possible = OPTIONS[name]
    for seed in range(3):
        network = Network(seed, logits=logits)
        dy.renew_cg(forward_only=True)
        best = ranked(network, options, possible, 0, END)
        start = network.start([0])
        options = {**options, "logits": logits}
        check(dy.beam_search(network.step, start, ALL, LONGEST, n_best=7, **options), best, 7)
        check([dy.beam_search(network.step, start, ALL, LONGEST, **options)], best, 1)
        check(dy.beam_search(network.step_of_one, start, ALL, LONGEST, n_best=7, one_by_one=True, **options), best, 7)


@pytest.mark.parametrize("name", OPTIONS)
def test_several_sentences_at_once(name: str) -> None:
    options, possible = OPTIONS[name]
    network = Network(4, dy.GRUBuilder)
    dy.renew_cg(forward_only=True)
    many = dict(options)
    if "prefix" in many:
        many["prefix"] = [many["prefix"]] * 3
    begins, lengths = [1, END, 3], [2, LONGEST, 3]
    if name in (
        "allowed",
        "least length",
        "prefix that is not allowed",
        "forbidden after a prefix",
    ):  # of which there are no short ones
        lengths = [LONGEST] * 3
    start = network.start([0, 1, 2])
    found = dy.beam_search(network.step, start, ALL, lengths, n_best=5, begin=begins, **many)
    assert len(found) == 3
    for sentence, (own, begin, longest) in enumerate(zip(found, begins, lengths)):
        check(own, ranked(network, options, possible, sentence, begin, longest), 5)


@pytest.mark.parametrize("find", [functools.partial(dy.beam_search, width=2), functools.partial(dy.decode, stop=None)])
def test_tokens_in_the_graph_are_integers(find: Callable[..., Any]) -> None:
    network, read = Network(1), []

    def step(state: Any, tokens: Any) -> tuple[Any, dy.Expression]:
        read.append(tokens.dtype)
        return network.step(state, tokens)

    dy.renew_cg(forward_only=True)
    find(step, network.start([0, 1]), max_length=3, begin=[1, 2], every=3)
    assert read[0].kind == "i"
    assert read[1:] == [np.int32] * 2


@pytest.mark.fibers
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_forms_find_the_same(name: str, width: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One state or one for each hypothesis, one sentence or several, in the graph or not, in a map or not."""
    options, _ = OPTIONS[name]
    options = {**options, "n_best": 2}
    many = {**options, "prefix": [options["prefix"]] * 3} if "prefix" in options else options
    network = Network(seed)
    dy.renew_cg(forward_only=True)

    def of_one(sentence: int) -> list[dy.Hypothesis]:
        return dy.beam_search(network.step, network.start([sentence]), width, LONGEST, **options)

    expected = [
        dy.beam_search(network.step_of_one, network.start([i]), width, LONGEST, one_by_one=True, **options)
        for i in range(3)
    ]
    start = network.start([0, 1, 2])
    together = dy.beam_search(network.step, start, width, LONGEST, begin=np.zeros(3, int), **many)
    others = [list(map(of_one, range(3))), dy.batched_map(of_one, range(3)), together]
    with monkeypatch.context() as patch:
        patch.setattr(search, "FEW", 0)
        others.append(dy.beam_search(network.step, start, width, LONGEST, begin=[END] * 3, **many))
    if "allowed" not in options and "no_repeat_ngram" not in options:
        for every in (2, 3, LONGEST):
            others.append(dy.beam_search(network.step, start, width, LONGEST, begin=[END] * 3, every=every, **many))
            others.append(
                [
                    dy.beam_search(network.step, network.start([i]), width, LONGEST, every=every, **options)
                    for i in range(3)
                ]
            )
    for other in others:
        for mine, its in zip(other, expected):
            assert [own.tokens for own in mine] == [own.tokens for own in its]
            np.testing.assert_allclose([own.score for own in mine], [own.score for own in its], rtol=1e-4)


def test_a_penalty_prefers_longer_outputs() -> None:
    """Wu et al.: ((5 + length) / 6) ** 1 divides log probabilities of -1 and -1.2 by 1 and 8 / 6."""
    table = np.full((5, 5), -50.0)
    table[4, [0, 1]] = -1.0, -1.2
    table[1, 2] = table[2, 0] = 0.0

    def step(state: None, tokens: Any) -> tuple[None, dy.Expression]:
        return None, dy.inputTensor(table[tokens].T, batched=True)

    for exponent, tokens, score in ((0.0, [0], -1.0), (1.0, [1, 2, 0], -1.2 * 6 / 8)):
        found = dy.beam_search(step, None, 3, 5, begin=4, length_penalty=exponent)
        assert found.tokens == tokens
        assert found.score == pytest.approx(score)


def test_outputs_without_an_end() -> None:
    network = Network(1)
    dy.renew_cg()
    found = dy.beam_search(network.step, network.start([0, 1]), ALL, 3, None, begin=[1, 2])
    for sentence, own in enumerate(found):
        values = {}
        for tokens in itertools.product(range(COUNT), repeat=3):
            state, score = network.start([sentence]), 0.0
            for before, token in zip((sentence + 1, *tokens), tokens):
                state, scores = network.step_of_one(state, before)
                score += scores.npvalue()[token]
            values[tokens] = score
        best = max(values, key=lambda tokens: values[tokens])
        assert own.tokens == list(best)
        assert own.score == pytest.approx(values[best], rel=1e-4)


def test_a_state_can_be_continued() -> None:
    network = Network(2)
    dy.renew_cg()
    found = dy.beam_search(network.step, network.start([0, 2]), 3, LONGEST, begin=[1, 1], n_best=2)
    for sentence, best in zip((0, 2), found):
        for own in best:
            state = network.start([sentence])
            for token in [1, *own.tokens[:-1]]:
                state, _ = network.step_of_one(state, token)
            assert own.state.output().dim() == ((HIDDEN,), 1)
            np.testing.assert_allclose(own.state.output().npvalue(), state.output().npvalue(), rtol=1e-4, atol=1e-5)


@pytest.mark.fibers
def test_transformers_whose_memory_is_not_copied_at_each_step() -> None:
    dim, longest = 6, 5
    dy.reset_random_seed(3)  # with these weights the best of a sentence continue different outputs
    model = dy.ParameterCollection()
    decoder, table = (
        dy.nn.TransformerDecoder(2, dim, 2, 8, model),
        model.add_lookup_parameters((7, dim), init=dy.UniformInitializer(3)),
    )
    out = dy.nn.Linear(dim, 7, model)
    memories = np.random.default_rng(3).normal(size=(2, dim, 4))

    def step(state: Any, tokens: Any) -> tuple[Any, dy.Expression]:
        y, state = decoder.step(dy.lookup_batch(table, tokens), state)
        return state, dy.log_softmax(out(y) * 3)

    def start(sentences: list[int]) -> Any:
        return decoder.start(dy.inputTensor(memories[sentences].transpose(1, 2, 0), batched=True))

    dy.renew_cg(forward_only=True)
    options = {"min_length": longest, "n_best": 3}
    expected = [
        dy.beam_search(lambda state, token: step(state, [token]), start([i]), 3, longest, one_by_one=True, **options)
        for i in range(2)
    ]
    found = [dy.beam_search(step, start([i]), 3, longest, **options) for i in range(2)]
    dy.renew_cg()
    found.extend(dy.beam_search(step, start([0, 1]), 3, longest, begin=[0, 0], **options))
    for mine, its in zip(found, expected * 2):
        assert [own.tokens for own in mine] == [own.tokens for own in its]
    # Of two layers, keys and values of the memory once, those of the words after all steps but the last.
    picked = dy.cg().op_names().count("pick_batch_elems")
    assert picked == 4 + 4 * (longest - 1) + 8 * 6


def test_one_wait_a_step_and_as_many_nodes_for_any_width() -> None:
    network = Network(1)
    sizes = []
    for width in (2, 4):
        dy.renew_cg()
        dy.beam_search(network.step, network.start([0, 1, 2]), width, 3, None, begin=[0] * 3)
        sizes.append(len(dy.cg()))
    assert sizes[0] == sizes[1]


@pytest.mark.fibers
def test_with_a_state_each_the_tokens_that_can_follow_may_differ_in_number() -> None:
    def step(state: None, token: int) -> tuple[None, dy.Expression]:
        return None, dy.log_softmax(dy.inputVector([0.0, 1.0, 3.0] if token == 1 else [0.0, 2.0]))

    found = dy.beam_search(step, None, 9, 3, n_best=9, one_by_one=True)
    assert [own.tokens for own in found][:2] == [[0], [1, 2, 0]]


def test_no_sentences() -> None:
    network = Network(1)
    assert dy.beam_search(network.step, None, 3, 4, begin=[]) == []


def scores_of(values: Any) -> Any:
    return lambda state, tokens: (state, dy.inputTensor(values))


@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        ([0.0, 0.0], {"width": 0}, ValueError, "width and max_length must be at least 1, not 0 and 3"),
        ([0.0, 0.0], {"max_length": None}, ValueError, "width and max_length must be at least 1, not 2 and None"),
        ([0.0, 0.0], {"max_length": [3, 0], "begin": [0, 0]}, ValueError, r"must be at least 1, not 2 and \[3, 0\]"),
        ([0.0, 0.0], {"every": 0}, ValueError, "argument every: expected 1, or more for one state without allowed and"),
        ([0.0, 0.0], {"every": 2, "no_repeat_ngram": 2}, ValueError, "argument every: .* no_repeat_ngram, got 2"),
        ([0.0, 0.0], {"n_best": 0}, ValueError, "n_best must be at least 1 and length_penalty at least 0, not 0 and 0"),
        ([0.0, 0.0], {"length_penalty": -1.0}, ValueError, "length_penalty at least 0, not None and -1.0"),
        ([0.0, 0.0], {"min_length": -1}, ValueError, "min_length and no_repeat_ngram must be at least 0, not -1 and 0"),
        ([0.0, 0.0], {"begin": [0, 0], "max_length": [3]}, ValueError, "max_length: expected one for each of 2 sent"),
        ([0.0, 0.0], {"begin": [0, 0], "prefix": [[1]]}, ValueError, "prefix: expected one for each of 2 sentences"),
        ([0.0, 0.0], {"begin": [0, 0], "allowed": [None]}, ValueError, "allowed: expected one for each of 2 sentences"),
        ([0.0, 0.0], {"end": None}, ValueError, "argument begin: without an end, the token that is read at first is"),
        (
            [0.0, 0.0],
            {"prefix": [2]},
            IndexError,
            "a prefix or constraint has the token 2, but there are scores of 2 tokens",
        ),
        (
            [0.0, 0.0],
            {"allowed": lambda tokens: [-1]},
            IndexError,
            "a prefix or constraint has the token -1, but there are",
        ),
        ([0.0, 0.0], {"forbidden": [7]}, IndexError, "a prefix or constraint has the token 7, but there are scores of"),
        ([[0.0], [0.0]], {}, ValueError, r"a vector of log probabilities, not shape \(2, 1\)"),
        ([0.0, 0.0], {"allowed": lambda tokens: []}, ValueError, r"no token can follow \[\]"),
        ([-np.inf, -np.inf], {}, ValueError, r"no token can follow \[\]"),
        ([0.0, np.nan], {}, ValueError, r"the score of token 1 after \[\] is NaN"),
        ([0.0, np.nan], {"every": 2}, ValueError, r"the score of token 1 after \[\] is NaN"),
    ],
)
def test_bad_arguments_and_scores(values: Any, options: dict, error: type[Exception], message: str) -> None:
    dy.renew_cg()
    with pytest.raises(error, match=f"beam_search: .*{message}"):
        dy.beam_search(scores_of(values), None, **{"width": 2, "max_length": 3, **options})


def test_the_earlier_order_of_arguments() -> None:
    """The state before the function: as with `one_by_one`, and a warning that says what to write."""
    step = scores_of(np.log([0.3, 0.5, 0.2]))
    with pytest.warns(DeprecationWarning, match=r"write beam_search\(step, state, ..., one_by_one=True\)"):
        found = dy.beam_search(None, step, 2, 3, n_best=2)
    assert found == dy.beam_search(step, None, 2, 3, n_best=2, one_by_one=True)


def test_bad_steps() -> None:
    with pytest.raises(TypeError, match="argument step: expected a function, got NoneType"):
        dy.beam_search(None, 3, 2, 4)
    with pytest.raises(TypeError, match="beam_search: step must return a state and an expression, not a list"):
        dy.beam_search(lambda state, tokens: (state, [0.0]), None, 2, 4)
    with pytest.raises(
        ValueError, match="with a state for each output there is one sentence; argument begin: got a li"
    ):
        dy.beam_search(scores_of([0.0, 0.0]), None, 2, 4, begin=[0, 0], one_by_one=True)
    batched = dy.inputTensor(np.zeros((2, 3)), batched=True)
    with pytest.raises(ValueError, match=r"not shape \(2,\) with 3 batch elements for 2 outputs"):
        dy.beam_search(lambda state, tokens: (state, batched), None, 2, 4, begin=[0, 0])


def test_scores_that_do_not_depend_on_the_outputs() -> None:
    found = dy.beam_search(scores_of(np.log([0.3, 0.5, 0.2])), None, 2, 3, None, begin=[0, 0])
    assert [own.tokens for own in found] == [[1, 1, 1]] * 2
    assert found[0].score == pytest.approx(3 * np.log(0.5), rel=1e-5)


def test_scores_of_minus_infinity_never_go_on() -> None:
    found = dy.beam_search(scores_of([-np.inf, -1.0, -2.0, -np.inf]), None, 3, 2, None, begin=1, n_best=9)
    assert [own.tokens for own in found] == [[1, 1], [1, 2], [2, 1]]
