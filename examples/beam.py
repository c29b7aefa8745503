"""Beam search, written as for one hypothesis, and constraints on what it may find.  No program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple, Optional

import numpy as np
from helpers import batched_map

# From the tokens so far to those that may come next; None: all.
Allowed = Callable[[list[int]], Optional[list[int]]]


class Hypothesis(NamedTuple):
    """The beginning of an output, as decoding goes."""

    tokens: list[int]  # after the end nothing follows
    score: float  # log probability
    state: Any  # before it is given the last token


def search(
    dy: ModuleType,
    state: Any,
    step: Callable[[Any, int], tuple[Any, Any]],
    end: int,
    width: int,
    longest: int,
    allowed: Allowed = lambda tokens: None,
) -> Hypothesis:
    """Keep the `width` most probable beginnings at each step; return the most probable whole output.

    `step(state, token)` gives a token to a state, the `end` at the beginning, and returns the next state and an
    expression with the log probabilities of the tokens to come.  The steps of all hypotheses, and those of other
    searches that run in the same `batched_map`, are computed together.
    """

    def expand(hypothesis: Hypothesis) -> list[Hypothesis]:
        state, scores = step(hypothesis.state, hypothesis.tokens[-1] if hypothesis.tokens else end)
        values, tokens = scores.npvalue(), allowed(hypothesis.tokens)
        ids = np.arange(len(values)) if tokens is None else np.array(tokens, int)
        best = ids[np.argsort(-values[ids], kind="stable")[:width]].tolist()
        return [Hypothesis([*hypothesis.tokens, i], hypothesis.score + float(values[i]), state) for i in best]

    beginnings, ended = [Hypothesis([], 0.0, state)], []
    for _ in range(longest):
        candidates = [candidate for found in batched_map(dy, expand, beginnings) for candidate in found]
        candidates.sort(key=lambda candidate: -candidate.score)
        ended += [candidate for candidate in candidates[:width] if candidate.tokens[-1] == end]
        beginnings = [candidate for candidate in candidates[:width] if candidate.tokens[-1] != end]
        best = max((hypothesis.score for hypothesis in ended), default=float("-inf"))
        beginnings = [candidate for candidate in beginnings if candidate.score > best]  # scores only fall
        if not beginnings:
            break
    return max(ended or beginnings, key=lambda hypothesis: hypothesis.score)


class OneOf:
    """Allows outputs of a list only, by a tree of their beginnings."""

    def __init__(self, outputs: Iterable[list[int]], end: int) -> None:
        self.root: dict[int, dict] = {}
        for output in outputs:
            node = self.root
            for token in [*output, end]:
                node = node.setdefault(token, {})

    def __call__(self, tokens: list[int]) -> list[int]:
        node = self.root
        for token in tokens:
            node = node[token]
        return list(node)
