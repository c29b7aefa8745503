"""Beam search, and the best dependency tree."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.decoding.constraints import Allowed, Constraints, OneOf, Prefixes, list_of
from dynet_cy.decoding.greedy import FEW, Numbers, checked_scores, why_none
from dynet_cy.decoding.states import Selection, selected
from dynet_cy.graph import Expression
from dynet_cy.graph.structs import operators
from dynet_cy.ops.api import (
    bmax,
    concatenate_to_batch,
    inputTensor,
    log_softmax,
    logsumexp_dim,
    pick,
    pick_batch_elems,
    to_int,
)
from dynet_cy.serving.fibers import batched_map

__all__ = ["Hypothesis", "OneOf", "beam_search", "best_tree"]

_MANY = 2048  # so many numbers are not sorted to find the first ones
_NEVER = float("-inf")
_LOWEST = float(np.finfo(np.float32).min)


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
    every: int = 1,
    one_by_one: bool = False,
    longest: int | None = None,
) -> Any:
    """Keep the `width` most probable partial outputs of each sentence at every step; return the most probable complete
    one.

    **As one batch**, ``beam_search(step, state, ...)``: one state holds all partial outputs of all sentences, as the
    batch elements of its expressions. A step of all is one call of `step`; `select_states` reorders the state, so it
    may be any state that this function takes. The best tokens are chosen in the graph: the program waits once a step.

    **One by one**, ``beam_search(step, state, ..., one_by_one=True)``: each partial output has its own state, which can
    be any object. `step` is called for each, through `batched_map`, so all steps are computed together, and those of
    other searches that run in the same map. Only one sentence, and slower; see docs/decisions.md.

    Args:
        step: ``step(state, tokens)`` lets a state read tokens and returns the next state and an expression with the log
            probabilities of the tokens to come, of shape (number of tokens,). As one batch, `tokens` is an integer
            array with one for each partial output, as `lookup_batch` takes, and the expression has as many batch
            elements; all sentences have as many partial outputs there, some of them perhaps idle. One by one, it is an
            integer.
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
        every: how many steps are computed before their tokens are read. With more than 1, `tokens` is an expression of
            integers in all steps but the first of each group, as `lookup_batch` takes too: an index in the graph. So
            the program waits less often, which pays on a GPU; but a search may run some steps beyond its end, and
            outputs that have ended stay in the state until then. For one state, and without `allowed` and
            `no_repeat_ngram`.
        one_by_one: whether each partial output has a state of its own, and `step` reads one token (default: no). The
            earlier form, with the state before the function, has the same effect, and a `DeprecationWarning`.
        longest: the earlier name of `max_length`

    Returns:
        The best output: its `tokens`, `end` last, its `score`, and its `state`, in which the last token has not been
        read. If no output has ended, the best one of the greatest length.

    Raises:
        TypeError: `step` cannot be called, or `step` returns no expression
        ValueError: `width`, `max_length` or `n_best` is below 1, `length_penalty` below 0, a list has another number of
            items than there are sentences, the log probabilities have another shape or are NaN, or no token can follow
            any of the partial outputs of a sentence: none is allowed, or all have a log probability of -inf
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
        >>> dy.beam_search(step_of_one, None, 2, 5, prefix=[2], one_by_one=True).tokens
        [2, 0]
    """
    step, state, each = _in_order(step, state, one_by_one)
    most = max_length if max_length is not None else longest
    sentences = None if begin is None or np.ndim(begin) == 0 else len(begin)  # type: ignore[arg-type]
    lengths = list_of("beam_search", "max_length", most, sentences, most is None or np.ndim(most) == 0)
    if width < 1 or any(length is None or length < 1 for length in lengths):
        raise ValueError(f"beam_search: width and max_length must be at least 1, not {width} and {most}")
    if length_penalty < 0 or (n_best is not None and n_best < 1):
        given = f"{n_best} and {length_penalty}"
        raise ValueError(f"beam_search: n_best must be at least 1 and length_penalty at least 0, not {given}")
    if every < 1 or (every > 1 and (each or allowed is not None or no_repeat_ngram)):
        raise ValueError(
            f"beam_search: argument every: expected 1, or more for one state without allowed and no_repeat_ngram, got "
            f"{every}"
        )
    if each and sentences is not None:
        raise ValueError("beam_search: with a state for each output there is one sentence; argument begin: got a list")
    if begin is None and end is None:
        raise ValueError("beam_search: argument begin: without an end, the token that is read at first is needed")
    constraints = Constraints(
        "beam_search", sentences, [] if end is None else [end], allowed, prefix, min_length, no_repeat_ngram, forbidden
    )
    first = np.atleast_1d(np.asarray(end if begin is None else begin)).tolist()
    beams = [_Beam(i, length, length_penalty, n_best or 1) for i, length in enumerate(lengths)]
    if each:
        _search_separate(step, state, logits, constraints, beams[0], first[0], end, width)
    else:
        _Joined(step, state, logits, constraints, list(beams), first, end, width, every).run()
    found = [[Hypothesis(own, score, where()) for score, own, where in beam.ended] for beam in beams]
    results = found if n_best is not None else [own[0] for own in found]
    return results if sentences is not None else results[0]


def _in_order(step: Any, state: Any, one_by_one: bool) -> tuple[Any, Any, bool]:
    """The step function, the state, and whether each output has its own, as it has in calls with the state first."""
    if callable(step):
        return step, state, one_by_one
    if not callable(state):
        raise TypeError(f"beam_search: argument step: expected a function, got {type(step).__name__}")
    message = "beam_search: the function comes first: write beam_search(step, state, ..., one_by_one=True)"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return state, step, True


class _Beam:
    """The outputs of a sentence.

    Attributes:
        sentence: its number
        longest: how many tokens an output has at most
        ended: those that are complete, the best first: score, tokens, and a function that returns their state
        done: whether no output goes on
    """

    def __init__(self, sentence: int, longest: int, length_penalty: float, n_best: int) -> None:
        self.sentence, self.longest, self._exponent, self._n_best = sentence, longest, length_penalty, n_best
        self.ended: list[tuple[float, list[int], Callable[[], Any]]] = []
        self.done = False

    def goes_on(self, length: int) -> bool:
        """Whether `settle` keeps all outputs of this length, none of which has ended."""
        return not self.done and length < self.longest and len(self.ended) < self._n_best

    def settle(
        self,
        length: int,
        totals: list[float],
        ends: list[bool],
        output: Callable[[int], list[int]],
        state_of: Callable[[int], Callable[[], Any]],
    ) -> list[int]:
        """Note the outputs of a step that have ended; return the numbers of those that go on.

        Args:
            length: how many tokens they have
            totals: their log probabilities, the best first, none of them -inf
            ends: whether they have ended
            output, state_of: the tokens of one of them, and the function that returns its state
        """
        penalty = self._penalty(length)

        def scored(i: int) -> tuple[float, list[int], Callable[[], Any]]:
            return totals[i] / penalty, output(i), state_of(i)

        ended = [scored(i) for i, end in enumerate(ends) if end]
        kept = [i for i, end in enumerate(ends) if not end]
        if ended:
            self.ended = sorted(self.ended + ended, key=lambda one: -one[0])[: self._n_best]
        if length == self.longest:
            if not self.ended:  # others count only where there are none
                self.ended = list(map(scored, kept[: self._n_best]))
            kept = []
        elif len(self.ended) == self._n_best:
            # Log probabilities only fall, and are divided by at most the penalty of the greatest length.
            greatest, worst = self._penalty(self.longest), self.ended[-1][0]
            kept = [i for i in kept if totals[i] / greatest > worst]
        self.done = not kept
        return kept

    def _penalty(self, length: int) -> float:
        return float(((5 + length) / 6) ** self._exponent)


class _Joined:
    """Partial outputs as the batch elements of one state: rows, of which each sentence has as many.

    A sentence that has fewer partial outputs has rows with the total -inf besides, which are never continued.

    Args:
        step, state, logits, constraints: see `beam_search`
        beams: the sentences
        first: the token that each reads at first
        end: the token that ends an output, or None
        width: how many partial outputs of a sentence are kept
        every: how many steps are made before their tokens are read
    """

    def __init__(
        self,
        step: Callable[[Any, Any], tuple[Any, Any]],
        state: Any,
        logits: bool,
        constraints: Constraints,
        beams: list[_Beam],
        first: list[int],
        end: int | None,
        width: int,
        every: int,
    ) -> None:
        self._step, self._state, self._logits, self._constraints = step, state, logits, constraints
        self._beams, self._end, self._width, self._every = beams, end, width, every
        self._begin = first[0] if first else 0
        self._tokens: Any = np.array(first)  # that are read next, of each row
        self._totals: Any = np.zeros(len(first))
        self._slots = 1  # rows of each sentence
        self._length = 0
        # For each step, and for each change of rows between two steps: the row before of each row, and its token.
        self._history: list[tuple[Numbers, Numbers | None]] = []
        self._selection = _Selection()

    def run(self) -> None:
        """Grow beams until they are complete."""
        while self._beams:
            steps = min(self._every, max(beam.longest for beam in self._beams) - self._length)
            made = []
            for ahead in range(steps):
                made.append(self._advance(self._length + ahead))
                if ahead + 1 < steps:
                    self._go_on(*made[-1])
            for state, chosen in zip((state for state, _ in made), _read([chosen for _, chosen in made])):
                going = self._settle(state, chosen)
            self._keep(chosen, going)

    def _advance(self, length: int) -> tuple[Any, Any]:
        """Let all read a token: the next state, and what `continuations` chooses then."""
        count = len(self._beams) * self._slots
        self._state, scores = self._step(self._state, self._tokens)
        classes = checked_scores("beam_search", scores, count)
        logits = self._logits
        sentences = [beam.sentence for beam in self._beams for _ in range(self._slots)]
        tokens = [self._output(row) for row in range(count)] if self._constraints.read_tokens else [[]] * count
        penalties = self._constraints.penalties(length, tokens, sentences, classes)
        here = self._every == 1 and count * classes <= FEW
        size = bmax(logsumexp_dim(scores), _LOWEST) if logits and not here else None  # finite, also if all are -inf
        if logits and here:
            scores = _log_probabilities(scores)
        if penalties is not None:
            scores = scores + inputTensor(penalties.T, batched=True)
        chosen = min(self._width, self._slots * classes)
        if here:
            return self._state, self._chosen_here(scores, count, classes, chosen)
        before = self._totals
        if not isinstance(before, Expression):
            before = inputTensor(before.reshape(1, -1), batched=True)
        if size is not None:
            before = before - size
        best = operators["continuations"](scores, before, len(self._beams), chosen, self._end, self._begin)
        return self._state, best

    def _chosen_here(self, scores: Expression, count: int, classes: int, chosen: int) -> Numbers:
        """Sums, rows and tokens as `continuations` chooses them."""
        values = scores.npvalue().reshape(classes, -1).T
        totals = self._totals[:, None]
        every = np.where(totals > _NEVER, values + totals, _NEVER).reshape(len(self._beams), -1)
        at = _best_of(every, chosen)
        where = (at + np.arange(len(at))[:, None] * every.shape[1]).ravel()
        return np.stack([every.ravel()[where], *np.divmod(where, classes)])

    def _go_on(self, state: Any, chosen: Expression) -> None:
        """Continue in the graph, before the tokens are known to the program."""
        places = to_int(chosen)  # of its numbers, the rows and the tokens are whole
        rows = pick(places, 1)
        slots = chosen.dim()[1] // len(self._beams)
        self._state = self._selection.of(state, rows, self._slots, slots == self._slots)
        self._slots = slots
        self._totals, self._tokens = pick(chosen, 3), pick(places, 4)

    def _settle(self, state: Any, chosen: Numbers) -> Numbers:
        """Note the tokens of a step; return the totals, -inf for outputs that do not go on."""
        totals: Numbers = chosen[0].astype(float)
        rows, tokens = chosen[1].astype(int), chosen[2].astype(int)
        self._history.append((rows, tokens))
        self._length += 1
        ends = np.zeros(len(tokens), bool) if self._end is None else tokens == self._end
        slots = len(totals) // len(self._beams)
        # Most steps end nothing.
        all_go_on = not ends.any() and all(beam.goes_on(self._length) for beam in self._beams)
        if all_go_on and (totals[::slots] > _NEVER).all():
            return totals
        for i, beam in enumerate(self._beams):
            part = slice(i * slots, (i + 1) * slots)
            if beam.done:
                totals[part] = _NEVER
            else:
                totals[part] = self._settle_one(beam, state, totals[part], ends[part], i * slots)
        return totals

    def _settle_one(self, beam: _Beam, state: Any, totals: Numbers, ends: Numbers, first: int) -> Numbers:
        """Settle one sentence, whose first row is given."""
        rows, tokens = self._history[-1]
        if not totals[0] > _NEVER:  # nor is NaN, which comes first
            token = None if self._logits or tokens is None else int(tokens[first])
            raise ValueError(f"beam_search: {why_none(self._output(int(rows[first]), 1), totals[0], token)}")
        count = int((totals > _NEVER).sum())  # the others come last

        def state_of(i: int) -> Callable[[], Any]:
            row = np.array([rows[first + i]])
            return lambda: Selection().of(state, row)

        own = totals[:count].tolist(), ends[:count].tolist()
        kept = beam.settle(self._length, *own, lambda i: self._output(first + i), state_of)
        going = np.full(len(totals), _NEVER)
        going[kept] = totals[kept]
        return going

    def _output(self, row: int, before: int = 0) -> list[int]:
        """The tokens of a row; `before`: after so many entries of the history less."""
        found = []
        for rows, tokens in reversed(self._history[: len(self._history) - before]):
            if tokens is not None:
                found.append(int(tokens[row]))
            row = rows[row]
        return found[::-1]

    def _keep(self, chosen: Numbers, totals: Numbers) -> None:
        """Go on with outputs whose total is not -inf."""
        before, slots = self._slots, len(totals) // len(self._beams)
        self._slots, self._totals = slots, totals
        kept = np.arange(len(totals))
        if not (totals > _NEVER).all():
            alive = [i * slots + np.flatnonzero(own > _NEVER) for i, own in enumerate(totals.reshape(-1, slots))]
            self._beams = [beam for beam, own in zip(self._beams, alive) if len(own)]
            alive = [own for own in alive if len(own)]
            if not alive:
                return
            self._slots = max(map(len, alive))
            kept = np.concatenate([np.resize(own, self._slots) for own in alive])
            missing = np.concatenate([np.arange(self._slots) >= len(own) for own in alive])
            self._totals = np.where(missing, _NEVER, totals[kept])
            self._history.append((kept, None))
        rows = chosen[1].astype(int)[kept]
        self._tokens = chosen[2].astype(int)[kept]
        same = len(kept) == len(totals) and self._slots == before
        self._state = self._selection.of(self._state, rows, before, same)


class _Selection:
    """Selects the rows of a search from its state.

    What the rows of a sentence share, such as the memory of a decoder, stays as it is while sentences have the same
    rows: it has been selected when each had one row, and steps have passed it on unchanged.
    """

    def __init__(self) -> None:
        self._shared: dict[int, Expression] = {}

    def of(self, state: Any, rows: Any, slots: int, same: bool) -> Any:
        """The state of chosen rows. `slots`: how many each sentence had; `same`: whether it has as many now."""
        if not isinstance(rows, Expression) and same and np.array_equal(rows, np.arange(len(rows))):
            return state
        shared: dict[int, Expression] = {}

        def picked(x: Expression) -> Expression:
            common = id(x) in self._shared
            found = x
            if not (common and same):
                count = rows.dim()[1] if isinstance(rows, Expression) else len(rows)
                found = pick_batch_elems(x, rows if x.dim()[1] > 1 else np.zeros(count, int))
            if common or slots == 1:
                shared[id(found)] = found
            return found

        found = selected(state, picked)
        self._shared = shared
        return found


def _read(chosen: list[Any]) -> list[Numbers]:
    """The numbers of some steps, in one array."""
    if not isinstance(chosen[0], Expression):
        return chosen
    sizes = np.cumsum([own.dim()[1] for own in chosen])
    every = chosen[0] if len(chosen) == 1 else concatenate_to_batch(chosen)
    return np.split(every.npvalue().reshape(-1, sizes[-1]), sizes[:-1], axis=1)


def _search_separate(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    logits: bool,
    constraints: Constraints,
    beam: _Beam,
    first: int,
    end: int | None,
    width: int,
) -> None:
    """Grow the beam of one sentence, whose partial outputs have a state each."""

    def expand(state: Any, token: int) -> tuple[Any, Numbers]:
        state, scores = step(state, token)
        checked_scores("beam_search", scores, 1)
        return state, (_log_probabilities(scores) if logits else scores).npvalue()

    states, last, totals, outputs = [state], [first], np.zeros(1), [[]]  # type: ignore[var-annotated]
    while not beam.done:
        states, values = map(list, zip(*batched_map(expand, states, last)))
        scores = np.full((len(values), max(map(len, values))), _NEVER)
        for row, own in zip(scores, values):
            row[: len(own)] = own
        length = len(outputs[0])
        penalties = constraints.penalties(length, outputs, [beam.sentence] * len(outputs), scores.shape[1])
        every = ((scores if penalties is None else scores + penalties) + totals[:, None]).ravel()
        at = _best_of(every[None], min(width, len(every)))[0]
        if not every[at[0]] > _NEVER:
            parent, last_token = divmod(int(at[0]), scores.shape[1])
            raise ValueError(f"beam_search: {why_none(outputs[parent], every[at[0]], None if logits else last_token)}")
        at = at[every[at] > _NEVER]
        totals, parents, tokens = every[at], at // scores.shape[1], (at % scores.shape[1]).tolist()
        grown = [[*outputs[parent], token] for parent, token in zip(parents, tokens)]
        before = [states[parent] for parent in parents]
        ends = [token == end for token in tokens]
        kept = beam.settle(length + 1, totals.tolist(), ends, grown.__getitem__, _getters(before).__getitem__)
        states, outputs = [before[i] for i in kept], [grown[i] for i in kept]
        totals, last = totals[kept], [tokens[i] for i in kept]


def _log_probabilities(scores: Expression) -> Expression:
    """The log_softmax of scores, but -inf where all of them are."""
    finite = bmax(scores, _LOWEST)
    return log_softmax(finite) + (scores - finite)


def _getters(states: list[Any]) -> list[Callable[[], Any]]:
    """Functions that return these."""
    return [functools.partial(lambda state: state, state) for state in states]


def _best_of(every: Numbers, count: int) -> Numbers:
    """The places of the greatest numbers of each row, the greatest first; NaN comes before them."""
    keys = np.where(np.isnan(every), _NEVER, -every)
    if every.shape[1] <= _MANY:
        return np.argsort(keys, axis=1, kind="stable")[:, :count]
    at = np.sort(np.argpartition(keys, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(np.take_along_axis(keys, at, axis=1), axis=1, kind="stable")
    return np.take_along_axis(at, order, axis=1)


def best_tree(scores: npt.ArrayLike) -> list[int]:
    """The heads of words in the dependency tree with the highest total score that has a single root: the maximum
    spanning tree, by the algorithm of Chu and Liu (1965) and Edmonds (1967).

    Args:
        scores: numbers of shape (n + 1, n), n at least 1: element (i, j) is the score of word i, or of the root 0, as
            the head of word j + 1. -inf: never. inf: wherever it is possible. A word is never its own head, so the
            elements (j + 1, j) have no effect.

    Returns:
        The heads of the words 1 to n; 0 for the one below the root.

    Raises:
        TypeError: the scores are no numbers; an expression has them in its `npvalue()`
        ValueError: the shape is another one, a score is NaN, or each tree with a single root has an arc of -inf

    Example:
        >>> dy.best_tree([[1.0, 2.0], [0.0, 9.0], [9.5, 0.0]])  # each word prefers the other one
        [2, 0]
        >>> dy.best_tree([[1.0, -np.inf], [0.0, 9.0], [9.5, 0.0]])  # but the second one is not the root
        [0, 1]
    """
    array = _numbers(scores)
    if array.ndim != 2 or array.shape[0] != array.shape[1] + 1 or not array.shape[1]:
        raise ValueError(f"best_tree: scores of shape (n + 1, n) are needed, not {array.shape}")
    if np.isnan(array).any():
        i, j = np.argwhere(np.isnan(array))[0]
        raise ValueError(f"best_tree: scores[{i}, {j}] is NaN: that of {_head(i)} as the head of word {j + 1}")
    words = array.shape[1]
    heads = [int(head) for head in _arborescence(_ranked(array))[1:]]
    if heads.count(0) > 1 or any(array[head, j] == _NEVER for j, head in enumerate(heads)):
        raise ValueError(f"best_tree: no tree with a single root is possible: {_why_none(array, words)}")
    return heads


def _numbers(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    if isinstance(scores, Expression):
        raise TypeError(
            "best_tree: argument scores: expected an array of numbers, got an Expression: use its npvalue()"
        )
    try:
        return np.asarray(scores, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"best_tree: argument scores: expected an array of numbers: {error}") from None


def _head(i: int) -> str:
    return f"word {i}" if i else "the root"


def _why_none(scores: npt.NDArray[np.float64], words: int) -> str:
    possible = scores > _NEVER
    possible[np.arange(1, words + 1), np.arange(words)] = False
    for j in np.flatnonzero(~possible.any(0)):
        return f"all heads of word {j + 1} have the score -inf"
    if not possible[0].any():
        return "the root has the score -inf as the head of each word"
    return "each one has an arc whose score is -inf"


def _ranked(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.complex128]:
    """Scores of all pairs of nodes, as complex numbers, which NumPy compares by their real part, then by the other.

    The real part has what no sum of scores outweighs: no arc of -inf, then a single root, then as many of inf as
    possible. A penalty in the score itself would have to exceed the range of all scores, and would round them away.
    """
    words = scores.shape[1]
    more = words + 1.0
    ranked = np.full((words + 1, words + 1), -np.inf, np.complex128)
    pairs = ranked[:, 1:]
    pairs.real = np.where(scores == _NEVER, -more * more, 0) + (scores == np.inf)
    pairs.real[0] -= more
    # By a power of 2, which rounds nothing, so that sums of the scores are finite.
    pairs.imag = np.ldexp(np.where(np.isinf(scores), 0, scores), -words.bit_length() - 1)
    np.fill_diagonal(ranked, -np.inf)
    return ranked


def _arborescence(scores: npt.NDArray[np.complex128]) -> npt.NDArray[Any]:
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
    smaller = np.full((len(rest) + 1, len(rest) + 1), -np.inf, np.complex128)
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
