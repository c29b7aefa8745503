"""A small decoder, and options of searches, for the tests of decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import dynet_cy as dy

END, COUNT, LONGEST, DIM, HIDDEN = 0, 4, 4, 3, 5  # of COUNT tokens, END is one


class Network:
    """A decoder of tokens with a recurrent state, whose first state depends on the sentence."""

    def __init__(self, seed: int, builder: Any = dy.LSTMBuilder, logits: bool = False) -> None:
        dy.reset_random_seed(seed + 1)
        model = dy.ParameterCollection()
        self.table = model.add_lookup_parameters((COUNT, DIM), init=dy.UniformInitializer(3))
        self.rnn = builder(1, DIM, HIDDEN, model)
        self.W = model.add_parameters((COUNT, HIDDEN), init=dy.UniformInitializer(4))
        self.sources = np.random.default_rng(seed).normal(0, 2, (3, HIDDEN))
        self.logits = logits

    def start(self, sentences: list[int]) -> dy.RNNState:
        return self.rnn.initial_state([dy.inputTensor(self.sources[sentences].T, batched=True)])

    def step(self, state: dy.RNNState, tokens: Any) -> tuple[dy.RNNState, dy.Expression]:
        state = state.add_input(dy.lookup_batch(self.table, tokens))
        scores = self.W * state.output()
        return state, scores if self.logits else dy.log_softmax(scores)

    def step_of_one(self, state: dy.RNNState, token: int) -> tuple[dy.RNNState, dy.Expression]:
        return self.step(state, [token])

    def every(self, sentence: int, begin: int, longest: int = LONGEST) -> dict[tuple[int, ...], float]:
        """The log probabilities of all outputs that end, and of all of the greatest length that do not."""
        found = {}
        level = [((), 0.0, self.start([sentence]))]
        for length in range(1, longest + 1):
            after = []
            for tokens, score, state in level:
                state, scores = self.step_of_one(state, tokens[-1] if tokens else begin)
                values = dy.log_softmax(scores).npvalue() if self.logits else scores.npvalue()
                after += [((*tokens, i), score + values[i], state) for i in range(COUNT)]
            found.update({tokens: score for tokens, score, _ in after if tokens[-1] == END or length == longest})
            level = [own for own in after if own[0][-1] != END]
        return found


def repeats(tokens: tuple[int, ...], n: int) -> bool:
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return len(grams) > len(set(grams))


LISTED = [(1, 2), (1, 3, 3), (2,), (3, 1, 2)]

# Options, and whether an output may be found with them.
OPTIONS: dict[str, tuple[dict[str, Any], Callable[[tuple[int, ...]], bool]]] = {
    "none": ({}, lambda tokens: True),
    "penalty": ({"length_penalty": 0.6}, lambda tokens: True),
    "great penalty": ({"length_penalty": 5.0}, lambda tokens: True),
    "least length": ({"min_length": 3}, lambda tokens: len(tokens) >= 3),
    "longest": ({"min_length": 9}, lambda tokens: END not in tokens),
    "allowed": ({"allowed": dy.OneOf(LISTED)}, lambda tokens: tokens[:-1] in LISTED and tokens[-1] == END),
    "allowed, or anything": (
        {"allowed": lambda tokens: [2, 3] if len(tokens) == 1 else None},
        lambda tokens: len(tokens) < 2 or tokens[1] in (2, 3),
    ),
    "prefix": ({"prefix": [3, 3]}, lambda tokens: tokens[:2] == (3, 3)),
    "prefix that is not allowed": (
        {"prefix": [3, 3], "allowed": lambda tokens: [END, 1], "no_repeat_ngram": 1, "min_length": 2},
        lambda tokens: tokens[:2] == (3, 3) and all(i in (END, 1) for i in tokens[2:]) and not repeats(tokens[1:], 1),
    ),
    "forbidden": ({"forbidden": [2, 3]}, lambda tokens: not {2, 3} & set(tokens)),
    "forbidden after a prefix": (
        {"forbidden": [3], "prefix": [3], "min_length": 3},
        lambda tokens: tokens[0] == 3 and 3 not in tokens[1:] and len(tokens) >= 3,
    ),
    "no word twice": ({"no_repeat_ngram": 1}, lambda tokens: not repeats(tokens, 1)),
    "no pair twice": ({"no_repeat_ngram": 2}, lambda tokens: not repeats(tokens, 2)),
    "several": (
        {"no_repeat_ngram": 2, "min_length": 2, "length_penalty": 1.0, "prefix": [1]},
        lambda tokens: not repeats(tokens, 2) and len(tokens) >= 2 and tokens[0] == 1,
    ),
}
