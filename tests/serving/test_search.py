"""Beam search and the best tree of words agree with exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.data import ConlluSentence

LONGEST, TOKENS = 4, 4  # token 0 is the end


def step_of(seed: int):
    """A small model: the state is the tokens so far, and each state has its own scores."""
    table = np.random.default_rng(seed).normal(0, 2, (TOKENS**LONGEST * 4, TOKENS))

    def step(state: tuple[int, ...], token: int):
        state = (*state, token)
        place = sum(t * TOKENS**i for i, t in enumerate(state)) + len(state)
        return state, dy.log_softmax(dy.inputVector(table[place % len(table)]))

    return step


def all_outputs(step, allowed) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}

    def go(state, tokens: tuple[int, ...], score: float) -> None:
        if tokens and tokens[-1] == 0:
            found[tokens] = score
        elif len(tokens) < LONGEST:
            state, scores = step(state, tokens[-1] if tokens else 0)
            values, ids = scores.npvalue(), allowed(list(tokens))
            for i in range(TOKENS) if ids is None else ids:
                go(state, (*tokens, i), score + float(values[i]))

    go((), (), 0.0)
    return found


@pytest.mark.fibers
@pytest.mark.parametrize("constrained", [False, True])
def test_a_wide_beam_finds_the_best(constrained: bool) -> None:
    allowed = dy.OneOf([[1, 2], [1, 3, 3], [2], [3, 1, 2]]) if constrained else (lambda tokens: None)
    for seed in range(10):
        step = step_of(seed)
        dy.renew_cg(forward_only=True)
        outputs = all_outputs(step, allowed)
        best = max(outputs, key=lambda tokens: outputs[tokens])
        found = dy.beam_search((), step, TOKENS**LONGEST, LONGEST, allowed=allowed)
        assert tuple(found.tokens) == best
        assert found.score == pytest.approx(outputs[best], rel=1e-5)
    if constrained:
        assert len(outputs) == 4


@pytest.mark.fibers
def test_searches_together_find_the_same_in_fewer_passes() -> None:
    def search(step):
        return dy.beam_search((), step, width=3, longest=LONGEST)

    dy.renew_cg(autobatching=1)
    together = dy.batched_map(lambda seed: search(step_of(seed)).tokens, range(8))
    batches = dy.cg().n_batches()
    alone = []
    for seed in range(8):
        dy.renew_cg()
        alone.append(search(step_of(seed)).tokens)
    assert together == alone
    assert batches <= 2 * LONGEST


@pytest.mark.fibers
def test_an_output_that_does_not_end_is_the_best_of_the_longest() -> None:
    table = np.log([[0.01, 0.99], [0.1, 0.9]])
    found = dy.beam_search(None, lambda state, token: (state, dy.inputVector(table[token])), width=1, longest=3)
    assert found.tokens == [1, 1, 1]
    assert found.score == pytest.approx(np.log(0.99 * 0.9 * 0.9), rel=1e-5)


@pytest.mark.fibers
@pytest.mark.parametrize(
    ("scores", "arguments", "message"),
    [
        ([0.0, 0.0], {"width": 0}, "width and max_length must be at least 1, not 0 and 3"),
        ([0.0, 0.0], {"longest": 0}, "width and max_length must be at least 1, not 2 and 0"),
        ([[0.0], [0.0]], {}, r"a vector of log probabilities, not shape \(2, 1\)"),
        ([0.0, 0.0], {"allowed": lambda tokens: []}, r"no token can follow \[\]"),
        ([-np.inf, -np.inf], {}, r"no token can follow \[\]"),
        ([np.nan, np.nan], {}, r"no token can follow \[\]"),
    ],
)
def test_bad_arguments_and_scores(scores, arguments, message: str) -> None:
    def step(state, token: int):
        return state, dy.inputTensor(scores)

    with pytest.raises(ValueError, match=f"beam_search: .*{message}"):
        dy.beam_search(None, step, **{"width": 2, "longest": 3, **arguments})


def is_tree(heads: list[int]) -> bool:
    return ConlluSentence(["w"] * len(heads), head=heads).is_tree()


def all_trees(words: int) -> list[tuple[int, ...]]:
    return [heads for heads in itertools.product(range(words + 1), repeat=words) if is_tree(list(heads))]


def test_best_tree() -> None:
    rng = np.random.default_rng(1)
    for words in (1, 2, 3, 4, 5):
        trees = all_trees(words)
        for _ in range(30):
            scores = rng.normal(size=(words + 1, words))
            best = max(trees, key=lambda heads: sum(scores[head, j] for j, head in enumerate(heads)))
            assert dy.best_tree(scores) == list(best)
        assert is_tree(dy.best_tree(np.zeros((words + 1, words))))


@pytest.mark.parametrize("shape", [(2, 2), (1, 0), (3,)])
def test_scores_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"best_tree: scores of shape \(n \+ 1, n\) are needed, not \("):
        dy.best_tree(np.zeros(shape))
