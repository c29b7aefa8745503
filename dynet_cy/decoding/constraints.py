"""Constraints of decoders: forced beginnings, minimal lengths, allowed tokens, and n-grams that must not repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

# Maps the tokens so far to those that may come next; None: all.
Allowed = Callable[[list[int]], Optional[Sequence[int]]]

Prefixes = Union[Sequence[int], Sequence[Sequence[int]], None]


class Constraints:
    """The constraints of all outputs of a search.

    Args:
        where: the function, for errors
        sentences: how many sentences there are; None: one, whose constraints are not in a list
        ends: the tokens that end an output
        allowed: for all sentences, or one for each
        prefix: tokens that outputs begin with: a list for each sentence, or the list of the only one
        min_length: how many tokens an output has at least, its end included
        no_repeat_ngram: no n-gram of this length occurs twice; 0: they may
        forbidden: tokens that come only in a prefix

    Raises:
        ValueError: another number of prefixes or functions than sentences, or a number below 0
    """

    def __init__(
        self,
        where: str,
        sentences: int | None,
        ends: Sequence[int],
        allowed: Allowed | Sequence[Allowed | None] | None,
        prefix: Prefixes,
        min_length: int,
        no_repeat_ngram: int,
        forbidden: Sequence[int],
    ) -> None:
        if min_length < 0 or no_repeat_ngram < 0:
            given = f"{min_length} and {no_repeat_ngram}"
            raise ValueError(f"{where}: min_length and no_repeat_ngram must be at least 0, not {given}")
        self._where, self._ends, self._min_length, self._n = where, list(ends), min_length, no_repeat_ngram
        self._allowed = list_of(where, "allowed", allowed, sentences, callable(allowed) or allowed is None)
        self._prefixes = [list(own or ()) for own in list_of(where, "prefix", prefix, sentences, prefix is None)]
        self._forbidden = list(forbidden)
        self._forced = max(map(len, self._prefixes), default=0)
        self._selects = any(function is not None for function in self._allowed)
        self.read_tokens = bool(self._selects or self._n)  # whether `penalties` depends on the tokens so far

    def penalties(
        self, length: int, tokens: Sequence[list[int]], sentences: Sequence[int], count: int
    ) -> npt.NDArray[np.float32] | None:
        """Penalties to add to the scores of all tokens: 0, or -inf for those that must not come next; None: nothing.

        Args:
            length: how many tokens each output has
            tokens: those of each output, which only `allowed` and `no_repeat_ngram` need
            sentences: the sentence of each output
            count: how many tokens there are

        Returns:
            A row for each output, or one for all.
        """
        never = self._forbidden + (self._ends if length + 1 < self._min_length else [])
        repeats = self._n and length >= self._n
        each = repeats or self._selects or length < self._forced
        if not never and not each:
            return None
        found = np.zeros((len(tokens) if each else 1, count), np.float32)
        found[:, self._checked(never, count)] = -np.inf
        if not each:
            return found
        for penalties, own, sentence in zip(found, tokens, sentences):
            function, prefix = self._allowed[sentence], self._prefixes[sentence]
            chosen = None if function is None else function(own)
            if length < len(prefix):
                chosen = [prefix[length]]  # whatever else is asked for
                penalties[:] = 0
            elif repeats:
                penalties[self._repeating(own)] = -np.inf
            if chosen is not None:
                others = np.ones(count, bool)
                others[self._checked(chosen, count)] = False
                penalties[others] = -np.inf
        return found

    def _checked(self, tokens: Sequence[int], count: int) -> npt.NDArray[np.integer[Any]]:
        ids: npt.NDArray[np.integer[Any]] = np.asarray(tokens, int)
        if ids.size and (ids.min() < 0 or ids.max() >= count):
            wrong = ids[(ids < 0) | (ids >= count)][0]
            raise IndexError(
                f"{self._where}: a prefix or constraint has the token {wrong}, but there are scores of {count} tokens"
            )
        return ids

    def _repeating(self, tokens: list[int]) -> list[int]:
        """The tokens that would make an n-gram occur again."""
        n = self._n
        last = tokens[len(tokens) - n + 1 :]
        return [tokens[i + n - 1] for i in range(len(tokens) - n + 1) if tokens[i : i + n - 1] == last]


def list_of(where: str, name: str, value: Any, sentences: int | None, single: bool) -> list[Any]:
    """One value for each sentence; `single`: the value is that of each."""
    if single or sentences is None:
        return [value] * (1 if sentences is None else sentences)
    found = list(value)
    if len(found) != sentences:
        raise ValueError(f"{where}: argument {name}: expected one for each of {sentences} sentences, got {len(found)}")
    return found


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
