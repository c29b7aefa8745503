"""Decoding: the most probable output of a decoder that writes token by token, and the best tree of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression, npvalues
from dynet_cy.ops.api import inputTensor, logsumexp_dim, pick_batch_elems, reshape, topk
from dynet_cy.serving.constraints import Allowed, Constraints, OneOf, Prefixes, list_of
from dynet_cy.serving.decoding import Numbers, checked_scores
from dynet_cy.serving.fibers import batched_map
from dynet_cy.serving.states import Selection

__all__ = ["Hypothesis", "OneOf", "beam_search", "best_tree"]

# Positions are floats in the graph, which are exact up to here.
_MOST_PLACES = 1 << 24


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
        IndexError: an allowed token, or one of a prefix, is not among those that have a log probability

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
        "beam_search", sentences, [] if end is None else [end], allowed, prefix, min_length, no_repeat_ngram
    )
    first = np.atleast_1d(np.asarray(end if begin is None else begin))
    if not len(first):
        return []
    hypotheses = _Separate(step, state, logits) if each else _Joined(step, state, logits)
    search = _Search(hypotheses, width, np.array(lengths), end, length_penalty, n_best or 1)
    found = search.run(first, constraints)
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


class _Search:
    """The partial outputs of all sentences, as rows of arrays; those of a sentence are adjacent."""

    def __init__(
        self,
        hypotheses: _Joined | _Separate,
        width: int,
        lengths: Numbers,
        end: int | None,
        length_penalty: float,
        n_best: int,
    ) -> None:
        self._hypotheses, self._width, self._end, self._n_best = hypotheses, width, end, n_best
        self._lengths, self._exponent = lengths, length_penalty
        # Complete outputs of each sentence, the best first: score, tokens, and where their state is.
        self._ended: list[list[tuple[float, list[int], Any]]] = [[] for _ in lengths]
        self._worst = np.full(len(lengths), -np.inf)  # the score that a further output of a sentence has to exceed

    def run(self, first: Numbers, constraints: Constraints) -> list[list[Hypothesis]]:
        """The best outputs of each sentence."""
        sentences, totals = np.arange(len(self._lengths)), np.zeros(len(self._lengths))
        tokens = np.zeros((len(sentences), 0), int)
        last = np.broadcast_to(first, sentences.shape)
        while len(sentences):
            count = self._hypotheses.advance(last)
            penalties = constraints.penalties(tokens, sentences, count)
            grid = _Grid(sentences)
            totals, parents, last = self._hypotheses.best(grid, totals, penalties, self._width)
            sentences = np.broadcast_to(grid.sentences[:, None], totals.shape)
            self._check(grid, totals, tokens)
            going = totals > -np.inf  # nor is NaN
            totals, parents, last, sentences = totals[going], parents[going], last[going], sentences[going]
            tokens = np.concatenate([tokens[parents], last[:, None]], 1)
            going = self._take_complete(sentences, totals, tokens, parents)
            totals, parents, last, sentences = totals[going], parents[going], last[going], sentences[going]
            tokens = tokens[going]
            if len(parents):
                self._hypotheses.keep(parents)
        return [
            [Hypothesis(own, score, self._hypotheses.state_of(where)) for score, own, where in best]
            for best in self._ended
        ]

    def _check(self, grid: _Grid, totals: Numbers, tokens: Numbers) -> None:
        for i in np.flatnonzero(~(totals > -np.inf).any(1)).tolist():
            if not self._ended[grid.sentences[i]]:
                before = tokens[grid.rows[i, 0]].tolist()
                raise ValueError(f"beam_search: no token can follow {before}: none is allowed, or all are -inf or NaN")

    def _scores(self, totals: Numbers, lengths: Any) -> Numbers:
        scores: Numbers = totals / ((5 + lengths) / 6) ** self._exponent if self._exponent else totals
        return scores

    def _take_complete(self, sentences: Numbers, totals: Numbers, tokens: Numbers, parents: Numbers) -> Numbers:
        """Take note of the outputs that are complete; return whether each of the others can still become one of the
        best."""
        length = tokens.shape[1]
        ended = tokens[:, -1] == self._end if self._end is not None else np.zeros(len(tokens), bool)
        self._note(np.flatnonzero(ended), sentences, self._scores(totals, length), tokens, parents)
        last_step = self._lengths[sentences] == length
        # Outputs without an end count only where there are no others.
        unended = last_step & ~ended & (self._worst_of_any()[sentences] == -np.inf)
        self._note(np.flatnonzero(unended), sentences, self._scores(totals, length), tokens, parents)
        # Log probabilities only fall, and are divided by at most the penalty of the greatest length.
        possible = self._scores(totals, self._lengths[sentences])
        going: Numbers = ~ended & ~last_step & (possible > self._worst[sentences])
        return going

    def _worst_of_any(self) -> Numbers:
        return np.array([own[0][0] if own else -np.inf for own in self._ended])

    def _note(self, which: Numbers, sentences: Numbers, scores: Numbers, tokens: Numbers, parents: Numbers) -> None:
        for i in which.tolist():
            own = self._ended[sentences[i]]
            own.append((float(scores[i]), tokens[i].tolist(), self._hypotheses.place(int(parents[i]))))
            own.sort(key=lambda output: -output[0])
            del own[self._n_best :]
            if len(own) == self._n_best:
                self._worst[sentences[i]] = own[-1][0]


class _Grid:
    """The rows of partial outputs by sentence: as many for each sentence as the one with the most has.

    Attributes:
        sentences: those that have rows
        rows: shape (sentences, partial outputs); the first row of the sentence where there are no more
        missing: where there are no more; None if all have as many
    """

    def __init__(self, sentences: Numbers) -> None:
        self.sentences, starts, counts = np.unique(sentences, return_index=True, return_counts=True)
        places = np.arange(counts.max())
        self.rows = starts[:, None] + places
        missing = places >= counts[:, None]
        self.missing = None
        if missing.any():
            self.missing = missing
            self.rows = np.where(missing, starts[:, None], self.rows)


Best = tuple[Numbers, Numbers, Numbers]  # for each sentence, the best first: log probabilities, rows before, tokens


class _Joined:
    """Partial outputs as the batch elements of one state."""

    def __init__(self, step: Callable[[Any, Any], tuple[Any, Any]], state: Any, logits: bool) -> None:
        self._step, self._state, self._logits = step, state, logits
        self._selection = Selection()

    def advance(self, tokens: Numbers) -> int:
        """Let all read a token; return how many tokens can follow."""
        self._count = len(tokens)
        self._state, self._scores = self._step(self._state, tokens)
        return checked_scores("beam_search", self._scores, self._count)

    def best(self, grid: _Grid, totals: Numbers, penalties: Numbers | None, width: int) -> Best:
        """The most probable continuations of each sentence."""
        scores = self._scores
        (count,), batch = scores.dim()
        sentences, each = grid.rows.shape
        if each * count > _MOST_PLACES:
            values = np.broadcast_to(scores.npvalue().reshape(count, batch).T, (self._count, count))
            return best_of(values, grid, totals, penalties, width, self._logits)
        rows = grid.rows.ravel()
        if batch == 1 != self._count:
            scores = pick_batch_elems(scores, np.zeros_like(rows))
        elif grid.missing is not None:
            scores = pick_batch_elems(scores, rows)
        before: Expression = inputTensor(_totals(grid, totals).reshape(1, -1), batched=True)
        if self._logits:
            before = before - logsumexp_dim(scores)
        if penalties is not None:
            scores = scores + inputTensor(penalties[rows].T, batched=True)
        every = reshape(scores + before, (each * count,), sentences)
        found, places = (x.reshape(-1, sentences).T for x in npvalues(topk(every, min(width, each * count))))
        at = places.astype(int)
        return found, np.take_along_axis(grid.rows, at // count, 1), at % count

    def keep(self, rows: Numbers) -> None:
        """Go on with these."""
        self._state = self._selection.of(self._state, rows)

    def place(self, row: int) -> Any:
        """Where the state of a partial output is."""
        return self._state, row

    def state_of(self, place: Any) -> Any:
        """The state at a place."""
        state, row = place
        return Selection().of(state, np.array([row]))


class _Separate:
    """Partial outputs with a state each."""

    def __init__(self, step: Callable[[Any, Any], tuple[Any, Any]], state: Any, logits: bool) -> None:
        self._step, self._states, self._logits = step, [state], logits

    def advance(self, tokens: Numbers) -> int:
        """See `_Joined`."""
        found = batched_map(self._expand, self._states, tokens.tolist())
        self._states = [state for state, _ in found]
        count = max(len(values) for _, values in found)
        self._values = np.full((len(found), count), -np.inf)
        for mine, (_, values) in zip(self._values, found):
            mine[: len(values)] = values
        return count

    def _expand(self, state: Any, token: int) -> tuple[Any, Numbers]:
        state, scores = self._step(state, token)
        checked_scores("beam_search", scores, 1)
        return state, scores.npvalue()

    def best(self, grid: _Grid, totals: Numbers, penalties: Numbers | None, width: int) -> Best:
        """See `_Joined`."""
        return best_of(self._values, grid, totals, penalties, width, self._logits)

    def keep(self, rows: Numbers) -> None:
        """See `_Joined`."""
        self._states = [self._states[row] for row in rows.tolist()]

    def place(self, row: int) -> Any:
        """See `_Joined`."""
        return self._states[row]

    def state_of(self, place: Any) -> Any:
        """See `_Joined`."""
        return place


def best_of(values: Numbers, grid: _Grid, totals: Numbers, penalties: Numbers | None, width: int, logits: bool) -> Best:
    """The most probable continuations of each sentence, from the log probabilities of all: see `_Joined.best`."""
    if logits:
        values = values - np.logaddexp.reduce(values, 1, keepdims=True)
    if penalties is not None:
        values = values + penalties
    count, sentences = values.shape[1], len(grid.rows)
    every = (values[grid.rows] + _totals(grid, totals)[..., None]).reshape(sentences, -1)
    every[np.isnan(every)] = -np.inf
    kept = min(width, every.shape[1])
    at = np.sort(np.argpartition(-every, kept - 1, 1)[:, :kept], 1)
    found = np.take_along_axis(every, at, 1)
    order = np.argsort(-found, 1, kind="stable")
    at = np.take_along_axis(at, order, 1)
    return np.take_along_axis(found, order, 1), np.take_along_axis(grid.rows, at // count, 1), at % count


def _totals(grid: _Grid, totals: Numbers) -> Numbers:
    found = totals[grid.rows]
    return found if grid.missing is None else np.where(grid.missing, -np.inf, found)


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
