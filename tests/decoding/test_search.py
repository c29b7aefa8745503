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
        found = dy.beam_search(step, (), TOKENS**LONGEST, LONGEST, allowed=allowed, one_by_one=True)
        assert tuple(found.tokens) == best
        assert found.score == pytest.approx(outputs[best], rel=1e-5)
    if constrained:
        assert len(outputs) == 4


@pytest.mark.fibers
def test_searches_together_find_the_same_in_fewer_passes() -> None:
    def search(step):
        return dy.beam_search(step, (), width=3, longest=LONGEST, one_by_one=True)

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
    found = dy.beam_search(
        lambda state, token: (state, dy.inputVector(table[token])), None, width=1, longest=3, one_by_one=True
    )
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
        ([0.0, np.nan], {}, r"the score of token 1 after \[\] is NaN"),
    ],
)
def test_bad_arguments_and_scores(scores, arguments, message: str) -> None:
    def step(state, token: int):
        return state, dy.inputTensor(scores)

    with pytest.raises(ValueError, match=f"beam_search: .*{message}"):
        dy.beam_search(step, None, **{"width": 2, "longest": 3, "one_by_one": True, **arguments})


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


@pytest.mark.parametrize("never", [-np.inf, -1e30, -np.finfo(float).max])
def test_best_tree_without_what_is_masked(never: float) -> None:
    """What stands where a word is its own head has no effect."""
    rng, impossible = np.random.default_rng(2), 0
    for words in (1, 2, 3, 4):
        own = np.eye(words + 1, words, -1, bool)
        for unused in (-np.inf, np.inf, 1e30, 0):
            for share in (0, 0.2, 0.5) * 4:
                scores = rng.normal(size=(words + 1, words)) * 10 ** rng.uniform(-3, 3)
                masked = rng.random(scores.shape) < share
                trees = [t for t in all_trees(words) if not any(masked[head, j] for j, head in enumerate(t))]
                given = np.where(own, unused, np.where(masked, never, scores))
                if trees:
                    best = max(trees, key=lambda heads: sum(scores[head, j] for j, head in enumerate(heads)))
                    assert dy.best_tree(given) == list(best)
                impossible += not trees
                if not trees and never == -np.inf:
                    with pytest.raises(ValueError, match="best_tree: no tree with a single root is possible: .*-inf"):
                        dy.best_tree(given)
    assert impossible


@pytest.mark.parametrize("always", [np.inf, 1e30])
def test_best_tree_with_arcs_that_are_given(always: float) -> None:
    rng = np.random.default_rng(3)
    for words in (2, 3, 4):
        trees = all_trees(words)
        for _ in range(20):
            scores, fixed = rng.normal(size=(words + 1, words)), trees[rng.integers(len(trees))]
            kept = [j for j in range(words) if rng.random() < 0.5]
            given = scores.copy()
            given[[fixed[j] for j in kept], kept] = always
            left = [t for t in trees if all(t[j] == fixed[j] for j in kept)]
            best = max(left, key=lambda heads: sum(scores[head, j] for j, head in enumerate(heads)))
            assert dy.best_tree(given) == list(best)


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        ([[1, 2], [0, np.nan], [1, 0]], ValueError, r"scores\[1, 1\] is NaN: that of word 1 as the head of word 2"),
        ([[1, np.nan], [0, 1], [1, 0]], ValueError, r"scores\[0, 1\] is NaN: that of the root as the head of word 2"),
        ([[1, -np.inf], [0, -np.inf], [1, 0]], ValueError, "all heads of word 2 have the score -inf"),
        ([[-np.inf] * 2, [0, 1], [1, 0]], ValueError, "the root has the score -inf as the head of each word"),
        ([[1, 2], [3]], TypeError, "argument scores: expected an array of numbers"),
        ("ab", TypeError, "argument scores: expected an array of numbers"),
    ],
)
def test_scores_without_a_best_tree(scores, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"best_tree: .*{message}"):
        dy.best_tree(scores)


def test_scores_of_a_tree_as_an_expression(graph) -> None:
    with pytest.raises(TypeError, match=r"best_tree: .*got an Expression: use its npvalue\(\)"):
        dy.best_tree(dy.zeros((3, 2)))


@pytest.mark.parametrize("shape", [(2, 2), (1, 0), (3,)])
def test_scores_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"best_tree: scores of shape \(n \+ 1, n\) are needed, not \("):
        dy.best_tree(np.zeros(shape))
