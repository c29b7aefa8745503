"""Decoding: the most probable output of a decoder that writes token by token, and the best tree of words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from dynet_cy.serving.fibers import batched_map

__all__ = ["Hypothesis", "OneOf", "beam_search", "best_tree"]

# Maps the tokens so far to those that may come next; None: all.
Allowed = Callable[[list[int]], Optional[Sequence[int]]]


class Hypothesis(NamedTuple):
    """A partial or complete output of a `beam_search`."""

    tokens: list[int]  # the end comes last
    score: float  # log probability
    state: Any  # before the last token is read


def beam_search(
    state: Any,
    step: Callable[[Any, int], tuple[Any, Any]],
    width: int,
    longest: int,
    end: int = 0,
    allowed: Allowed | None = None,
) -> Hypothesis:
    """Keep the `width` most probable partial outputs at each step; return the most probable complete one.

    The steps of all partial outputs, and those of other searches that run in the same `batched_map`, are computed
    together. A width of 1 takes the best token each time.

    Args:
        state: the state of the decoder at first, such as that of an RNN. States are not changed, so several outputs can
            continue the same one.
        step: ``step(state, token)`` lets a state read a token, `end` at first, and returns the next state and an
            expression with the log probabilities of the tokens to come
        width: how many partial outputs are kept
        longest: how many tokens an output has at most
        end: the token that ends an output
        allowed: a function from the tokens so far to those that may come next, None for all; see `OneOf`

    Returns:
        The best output: its `tokens`, `end` last, its `score`, which is its log probability, and its `state`. If no
        output has ended, the best one of the longest.

    Raises:
        ValueError: `width` or `longest` is below 1, the log probabilities are no vector, or no token can follow any of
            the partial outputs: none is allowed, or all have a log probability of -inf or NaN

    Example:
        >>> table = np.log([[0.1, 0.6, 0.3], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]])  # a row for each token before
        >>> def step(state, token):
        ...     return state, dy.inputVector(table[token])
        >>> found = dy.beam_search(None, step, width=2, longest=5)
        >>> found.tokens, round(float(np.exp(found.score)), 3)
        ([1, 2, 0], 0.432)
    """
    if width < 1 or longest < 1:
        raise ValueError(f"beam_search: width and longest must be at least 1, not {width} and {longest}")

    def expand(hypothesis: Hypothesis) -> list[Hypothesis]:
        state, scores = step(hypothesis.state, hypothesis.tokens[-1] if hypothesis.tokens else end)
        values, tokens = scores.npvalue(), None if allowed is None else allowed(hypothesis.tokens)
        if values.ndim != 1:
            raise ValueError(f"beam_search: step must return a vector of log probabilities, not shape {values.shape}")
        ids = np.arange(len(values)) if tokens is None else np.array(tokens, int)
        best = ids[np.argsort(-values[ids], kind="stable")[:width]].tolist()
        return [Hypothesis([*hypothesis.tokens, i], hypothesis.score + float(values[i]), state) for i in best]

    beginnings = [Hypothesis([], 0.0, state)]
    ended: list[Hypothesis] = []
    for _ in range(longest):
        candidates = [candidate for found in batched_map(expand, beginnings) for candidate in found]
        candidates = [candidate for candidate in candidates if candidate.score > float("-inf")]  # nor is NaN
        if not candidates and not ended:
            tokens = beginnings[0].tokens
            raise ValueError(f"beam_search: no token can follow {tokens}: none is allowed, or all are -inf or NaN")
        candidates.sort(key=lambda candidate: -candidate.score)
        ended += [candidate for candidate in candidates[:width] if candidate.tokens[-1] == end]
        beginnings = [candidate for candidate in candidates[:width] if candidate.tokens[-1] != end]
        best = max((hypothesis.score for hypothesis in ended), default=float("-inf"))
        beginnings = [candidate for candidate in beginnings if candidate.score > best]  # scores only fall
        if not beginnings:
            break
    return max(ended or beginnings, key=lambda hypothesis: hypothesis.score)


class OneOf:
    """For a `beam_search`: allows only outputs from a list, which is stored as a prefix tree.

    Args:
        outputs: the tokens of each, without the end
        end: the token that ends an output

    Example:
        >>> allowed = dy.OneOf([[1, 2], [1, 3, 3]])
        >>> allowed([]), allowed([1]), allowed([1, 2])
        ([1], [2, 3], [0])
    """

    def __init__(self, outputs: Iterable[Sequence[int]], end: int = 0) -> None:
        self._root: dict[int, dict[int, Any]] = {}
        for output in outputs:
            node = self._root
            for token in [*output, end]:
                node = node.setdefault(token, {})

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may follow these."""
        node = self._root
        for token in tokens:
            node = node[token]
        return list(node)


def best_tree(scores: npt.NDArray[Any]) -> list[int]:
    """The heads of words in the dependency tree with the highest total score that has a single root: the maximum
    spanning tree, by the algorithm of Chu and Liu (1965) and Edmonds (1967).

    Args:
        scores: array (n + 1, n), n at least 1: element (i, j) is the score of word i, or of the root 0, as the head of
            word j + 1

    Returns:
        The heads of the words 1 to n; 0 for the one below the root.

    Raises:
        ValueError: the shape is another one

    Example:
        >>> dy.best_tree(np.array([[1.0, 2.0], [0.0, 9.0], [9.5, 0.0]]))  # each word prefers the other one
        [2, 0]
    """
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] + 1 or not scores.shape[1]:
        raise ValueError(f"best_tree: scores of shape (n + 1, n) are needed, not {scores.shape}")
    words = scores.shape[1]
    square = np.full((words + 1, words + 1), -np.inf)
    square[:, 1:] = scores
    square[0] -= (np.ptp(scores) + 1) * words  # a second root costs more than anything else can gain
    np.fill_diagonal(square, -np.inf)
    return [int(head) for head in _arborescence(square)[1:]]


def _arborescence(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The heads of all nodes in the best tree with root 0: choose heads greedily, and contract cycles."""
    heads = scores[:, 1:].argmax(0)
    heads = np.concatenate([[0], heads])
    cycle = _cycle(heads)
    if not len(cycle):
        return heads
    rest = np.setdiff1d(np.arange(len(heads)), cycle)  # begins with node 0
    # The cycle becomes one node, the last.  An arc into it costs the arc of the cycle that it replaces.
    into = scores[np.ix_(rest, cycle)] - scores[heads[cycle], cycle]
    out = scores[np.ix_(cycle, rest)]
    smaller = np.full((len(rest) + 1, len(rest) + 1), -np.inf)
    smaller[:-1, :-1] = scores[np.ix_(rest, rest)]
    smaller[:-1, -1] = into.max(1)
    smaller[-1, :-1] = out.max(0)
    found = _arborescence(smaller)
    from_cycle = found[:-1] == len(rest)
    heads[rest] = np.where(from_cycle, cycle[out.argmax(0)], rest[np.where(from_cycle, 0, found[:-1])])
    entering = found[-1]
    heads[cycle[into[entering].argmax()]] = rest[entering]
    return heads


def _cycle(heads: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The nodes of a cycle; none if there is no cycle."""
    free = {0}  # nodes from which the root is reached
    for start in range(1, len(heads)):
        path: dict[int, None] = {}
        node = start
        while node not in free and node not in path:
            path[node] = None
            node = int(heads[node])
        if node in path:
            steps = list(path)
            return np.array(steps[steps.index(node) :])
        free.update(path)
    return np.array([], int)
