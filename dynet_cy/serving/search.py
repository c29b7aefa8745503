"""Decoding: the most probable output of a decoder that writes token by token, and the best tree of words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.ops.api import concatenate, inputTensor, log_softmax, logsumexp_dim, pick_batch_elems, reshape, topk
from dynet_cy.serving.constraints import Allowed, Constraints, OneOf, Prefixes, list_of
from dynet_cy.serving.decoding import FEW, Numbers, checked_scores
from dynet_cy.serving.fibers import batched_map
from dynet_cy.serving.states import Selection

__all__ = ["Hypothesis", "OneOf", "beam_search", "best_tree"]

_MOST_PLACES = 1 << 24  # positions are floats in the graph, which are exact up to here
_MANY = 2048  # so many numbers are not sorted to find the first ones
_NEVER = float("-inf")


class Hypothesis(NamedTuple):
    """A partial or complete output of a `beam_search`."""

    tokens: list[int]  # the end comes last
    score: float  # log probability, divided by the length penalty if there is one
    state: Any  # before the last token is read


def beam_search(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    width: int,
    max_length: int | Sequence[int] | None = None,
    end: int | None = 0,
    allowed: Allowed | Sequence[Allowed | None] | None = None,
    *,
    begin: int | Sequence[int] | None = None,
    n_best: int | None = None,
    length_penalty: float = 0.0,
    min_length: int = 0,
    prefix: Prefixes = None,
    no_repeat_ngram: int = 0,
    forbidden: Sequence[int] = (),
    logits: bool = False,
    longest: int | None = None,
) -> Any:
    """Keep the `width` most probable partial outputs of each sentence at every step; return the most probable complete
    one.

    **As one batch**, ``beam_search(step, state, ...)``: one state holds all partial outputs of all sentences, as the
    batch elements of its expressions. A step of all is one call of `step`; `select_states` reorders the state, so it
    may be any state that this function takes. The best tokens are chosen in the graph: the program waits once a step.

    **One by one**, ``beam_search(state, step, ...)``: each partial output has a state of its own, which can be any
    object. `step` is called for each, through `batched_map`, so all steps are computed together, and those of other
    searches that run in the same map. Only one sentence, and slower; see docs/decisions.md.

    Args:
        step: ``step(state, tokens)`` lets a state read tokens and returns the next state and an expression with the log
            probabilities of the tokens to come, of shape (number of tokens,). As one batch, `tokens` is an integer
            array with one for each partial output, as `lookup_batch` takes, and the expression has as many batch
            elements. One by one, it is an integer. Which of the first two arguments can be called decides.
        state: the state of the decoder at first. As one batch: with one batch element, or one for each sentence.
            States are not changed.
        width: how many partial outputs of each sentence are kept. 1 takes the best token each time; as many as there
            are partial outputs find the best output of all.
        max_length: how many tokens an output has at most, its end included; a list has a number for each sentence
        end: the token that ends an output; None: outputs end only at `max_length`
        allowed: a function from the tokens so far to those that may come next, None for all; see `OneOf`. A list has
            a function, or None, for each sentence.
        begin: the token that is read at first, `end` by default. A list or an array has one for each of several
            sentences, and the result is a list with an item for each.
        n_best: how many outputs to return: a list of at most so many, the best first. None: the best itself.
        length_penalty: outputs are ranked by their log probability divided by ``((5 + length) / 6) ** length_penalty``
            (Wu et al., "Google's neural machine translation system", 2016). 0, the default: by log probability;
            greater numbers prefer longer outputs.
        min_length: how many tokens an output has at least, its end included
        prefix: tokens that the output begins with, whatever is allowed; for several sentences, such a list for each
        no_repeat_ngram: no n-gram of this length occurs twice in an output (Paulus et al., ICLR 2018); 0: they may
        forbidden: tokens that come only in a prefix, such as that of unknown words
        logits: whether `step` returns scores whose log_softmax are the log probabilities
        longest: the earlier name of `max_length`

    Returns:
        The best output: its `tokens`, `end` last, its `score`, and its `state`, in which the last token has not been
        read. If no output has ended, the best one of the greatest length.

    Raises:
        TypeError: neither of the first two arguments can be called, or `step` returns no expression
        ValueError: `width`, `max_length` or `n_best` is below 1, `length_penalty` below 0, a list has another number of
            items than there are sentences, the log probabilities have another shape, or no token can follow any of the
            partial outputs of a sentence: none is allowed, or all have a log probability of -inf or NaN
        IndexError: an allowed or forbidden token, or one of a prefix, is not among those that have a log probability

    Example:
        >>> table = np.log([[0.1, 0.6, 0.3], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]])  # a row for each token before
        >>> def step(state, tokens):
        ...     return state, dy.inputTensor(table[tokens].T, batched=True)
        >>> found = dy.beam_search(step, None, width=2, max_length=5)
        >>> found.tokens, round(float(np.exp(found.score)), 3)
        ([1, 2, 0], 0.432)
        >>> [found.tokens for found in dy.beam_search(step, None, 2, 5, begin=[0, 2])]  # two sentences
        [[1, 2, 0], [0]]
        >>> def step_of_one(state, token):
        ...     return state, dy.inputVector(table[token])
        >>> dy.beam_search(None, step_of_one, 2, 5, prefix=[2]).tokens
        [2, 0]
    """
    step, state, each = _in_order(step, state)
    most = max_length if max_length is not None else longest
    sentences = None if begin is None or np.ndim(begin) == 0 else len(begin)  # type: ignore[arg-type]
    lengths = list_of("beam_search", "max_length", most, sentences, most is None or np.ndim(most) == 0)
    if width < 1 or any(length is None or length < 1 for length in lengths):
        raise ValueError(f"beam_search: width and max_length must be at least 1, not {width} and {most}")
    if length_penalty < 0 or (n_best is not None and n_best < 1):
        given = f"{n_best} and {length_penalty}"
        raise ValueError(f"beam_search: n_best must be at least 1 and length_penalty at least 0, not {given}")
    if each and sentences is not None:
        raise ValueError("beam_search: with a state for each output there is one sentence; argument begin: got a list")
    if begin is None and end is None:
        raise ValueError("beam_search: argument begin: without an end, the token that is read at first is needed")
    constraints = Constraints(
        "beam_search", sentences, [] if end is None else [end], allowed, prefix, min_length, no_repeat_ngram, forbidden
    )
    first = np.atleast_1d(np.asarray(end if begin is None else begin)).tolist()
    beams = [_Beam(i, length, end, length_penalty, n_best or 1) for i, length in enumerate(lengths)]
    hypotheses = (_Separate if each else _Joined)(step, state, logits, constraints)
    _search(hypotheses, beams, first, width)
    found = [[Hypothesis(own, score, hypotheses.state_of(where)) for score, own, where in beam.ended] for beam in beams]
    results = found if n_best is not None else [own[0] for own in found]
    return results if sentences is not None else results[0]


def _in_order(first: Any, second: Any) -> tuple[Any, Any, bool]:
    """The step function, the state, and whether each output has a state of its own: the state comes first then."""
    if callable(first):
        return first, second, False
    if not callable(second):
        kinds = f"{type(first).__name__} and {type(second).__name__}"
        raise TypeError(f"beam_search: argument step: expected a function among the first two arguments, got {kinds}")
    return second, first, True


def _search(hypotheses: _Joined | _Separate, beams: list[_Beam], last: list[int], width: int) -> None:
    """Grow beams until they are complete. `last`: the tokens that are read next, those of a beam side by side."""
    while beams:
        hypotheses.advance(last)
        found = hypotheses.best(beams, width)
        rows, last, going, first = [], [], [], 0
        for beam, candidates in zip(beams, found):
            count = len(beam.partial)
            kept = beam.grow(candidates, hypotheses, first)
            rows += [first + i for i in kept]
            last += [tokens[-1] for _, tokens in beam.partial]
            first += count
            if kept:
                going.append(beam)
        beams = going
        if rows:
            hypotheses.keep(rows)


# Continuations of the partial outputs of a sentence, the best first: log probability, number of the partial output,
# token. Those with -inf or NaN come last.
Candidates = Iterable[tuple[float, int, int]]


class _Beam:
    """The outputs of a sentence.

    Attributes:
        sentence: its number
        partial: log probability and tokens of the outputs that go on
        ended: those that are complete, the best first: score, tokens, and where their state is
    """

    def __init__(self, sentence: int, longest: int, end: int | None, length_penalty: float, n_best: int) -> None:
        self.sentence, self._longest, self._end, self._n_best = sentence, longest, end, n_best
        self.partial: list[tuple[float, list[int]]] = [(0.0, [])]
        self.ended: list[tuple[float, list[int], Any]] = []
        self._exponent = length_penalty

    def _penalty(self, length: int) -> float:
        return float(((5 + length) / 6) ** self._exponent)

    def grow(self, candidates: Candidates, hypotheses: _Joined | _Separate, first: int) -> list[int]:
        """Continue by candidates; return the numbers of the partial outputs that go on. `first`: the row of the first
        partial output."""
        before, kept, partial, unended = self.partial, [], [], []
        length = len(before[0][1]) + 1
        penalty = self._penalty(length)
        for total, parent, token in candidates:
            if not total > _NEVER:
                break
            tokens = [*before[parent][1], token]
            if token == self._end:
                self._note(total / penalty, tokens, hypotheses.place(first + parent))
            elif length == self._longest:
                unended.append((total / penalty, tokens, hypotheses.place(first + parent)))
            else:
                kept.append(parent)
                partial.append((total, tokens))
        if not (self.ended or unended or partial):
            raise ValueError(
                f"beam_search: no token can follow {before[0][1]}: none is allowed, or all are -inf or NaN"
            )
        if unended and not self.ended:  # they count only where there are no others
            self.ended = unended[: self._n_best]
        if len(self.ended) == self._n_best and partial:
            # Log probabilities only fall, and are divided by at most the penalty of the greatest length.
            greatest, worst = self._penalty(self._longest), self.ended[-1][0]
            count = sum(total / greatest > worst for total, _ in partial)
            kept, partial = kept[:count], partial[:count]  # the best come first
        self.partial = partial
        return kept

    def _note(self, score: float, tokens: list[int], place: Any) -> None:
        self.ended.append((score, tokens, place))
        self.ended.sort(key=lambda output: -output[0])
        del self.ended[self._n_best :]


class _Joined:
    """Partial outputs as the batch elements of one state; rows are their numbers."""

    def __init__(
        self, step: Callable[[Any, Any], tuple[Any, Any]], state: Any, logits: bool, constraints: Constraints
    ) -> None:
        self._step, self._state, self._logits, self._constraints = step, state, logits, constraints
        self._selection = Selection()

    def advance(self, tokens: list[int]) -> None:
        """Let all read a token."""
        self._state, self._scores = self._step(self._state, np.array(tokens))
        self._count = len(tokens)
        checked_scores("beam_search", self._scores, self._count)

    def best(self, beams: list[_Beam], width: int) -> Iterable[Candidates]:
        """The most probable continuations for each sentence."""
        scores, logits = self._scores, self._logits
        count = scores.dim()[0][0]
        totals, tokens, sentences = _rows_of(beams)
        counts = [len(beam.partial) for beam in beams]
        most = max(counts)
        penalties = self._constraints.penalties(len(tokens[0]), tokens, sentences, count)
        here = len(totals) * count <= FEW or most * count > _MOST_PLACES
        if logits and (here or penalties is not None):
            scores, logits = log_softmax(scores), False
        if penalties is not None:
            scores = scores + inputTensor(penalties.T, batched=True)
        batch = scores.dim()[1]
        if here:
            values = scores.npvalue().reshape(count, batch).T
            if batch < len(totals):
                values = np.broadcast_to(values, (len(totals), count))
            parts = [slice(end - own, end) for end, own in zip(itertools.accumulate(counts), counts)]
            return [_best_of(values[part], totals[part], width) for part in parts]
        if min(counts) < most or batch < len(totals):
            # As many for each sentence: the first one, which cannot be chosen again, where others are missing.
            first, places = np.cumsum([0, *counts[:-1]])[:, None], np.arange(most)
            missing = places >= np.array(counts)[:, None]
            rows = np.where(missing, first, first + places).ravel()
            totals = np.where(missing.ravel(), _NEVER, totals[rows])
            scores = pick_batch_elems(scores, rows if batch > 1 else np.zeros_like(rows))
        before: Expression = inputTensor(totals.reshape(1, -1), batched=True)
        if logits:
            before = before - logsumexp_dim(scores)
        every = reshape(scores + before, (most * count,), len(beams))
        chosen = min(width, most * count)
        both = concatenate(list(topk(every, chosen))).npvalue()  # so that one array is read
        best, where = both.reshape(2, chosen, len(beams)).transpose(0, 2, 1)
        parents, ids = np.divmod(where.astype(int), count)
        return map(zip, best.tolist(), parents.tolist(), ids.tolist())

    def keep(self, rows: list[int]) -> None:
        """Go on with these."""
        if rows == list(range(self._count)):
            return
        self._state = self._selection.of(self._state, np.array(rows))

    def place(self, row: int) -> Any:
        """Where the state of a partial output is."""
        return self._state, row

    def state_of(self, place: Any) -> Any:
        """The state at a place."""
        state, row = place
        return Selection().of(state, np.array([row]))


class _Separate:
    """Partial outputs of one sentence, with a state each."""

    def __init__(
        self, step: Callable[[Any, Any], tuple[Any, Any]], state: Any, logits: bool, constraints: Constraints
    ) -> None:
        self._step, self._states, self._logits, self._constraints = step, [state], logits, constraints

    def advance(self, tokens: list[int]) -> None:
        """See `_Joined`."""
        found = batched_map(self._expand, self._states, tokens)
        self._states = [state for state, _ in found]
        self._values = [values for _, values in found]

    def _expand(self, state: Any, token: int) -> tuple[Any, Numbers]:
        state, scores = self._step(state, token)
        checked_scores("beam_search", scores, 1)
        return state, (log_softmax(scores) if self._logits else scores).npvalue()

    def best(self, beams: list[_Beam], width: int) -> Iterable[Candidates]:
        """See `_Joined`."""
        totals, tokens, sentences = _rows_of(beams)
        counts = [len(own) for own in self._values]
        values: Numbers
        if min(counts) == max(counts):
            values = np.array(self._values)
        else:
            values = np.full((len(counts), max(counts)), _NEVER)
            for row, own in zip(values, self._values):
                row[: len(own)] = own
        penalties = self._constraints.penalties(len(tokens[0]), tokens, sentences, values.shape[1])
        return [_best_of(values if penalties is None else values + penalties, totals, width)]

    def keep(self, rows: list[int]) -> None:
        """See `_Joined`."""
        self._states = [self._states[row] for row in rows]

    def place(self, row: int) -> Any:
        """See `_Joined`."""
        return self._states[row]

    def state_of(self, place: Any) -> Any:
        """See `_Joined`."""
        return place


def _rows_of(beams: list[_Beam]) -> tuple[Numbers, list[list[int]], list[int]]:
    """Log probabilities, tokens and sentences of all partial outputs."""
    totals = np.array([total for beam in beams for total, _ in beam.partial])
    tokens = [own for beam in beams for _, own in beam.partial]
    return totals, tokens, [beam.sentence for beam in beams for _ in beam.partial]


def _best_of(values: Numbers, totals: Numbers, width: int) -> Candidates:
    """The most probable continuations in one sentence, from the log probabilities, a row for each partial output."""
    every = (values + totals[:, None]).ravel()
    at = None
    if len(every) > _MANY:
        kept = min(width, len(every))
        at = np.sort(np.argpartition(-every, kept - 1)[:kept])
        every = every[at]
    order = np.argsort(-every, kind="stable")[:width]  # NaN comes last
    places = order if at is None else at[order]
    return [(total, *divmod(at, values.shape[1])) for total, at in zip(every[order].tolist(), places.tolist())]


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
