"""Decoding without search: greedy, or by sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.decoding.constraints import Allowed, Constraints, Prefixes, list_of
from dynet_cy.decoding.states import Selection
from dynet_cy.graph import Expression
from dynet_cy.ops.api import concatenate, inputTensor, pick_batch_elems, random_gumbel
from dynet_cy.ops.select import _best  # type: ignore[attr-defined]  # stubs have what is public

Numbers = npt.NDArray[Any]

FEW = 4096  # so many scores are read faster than the best of them are found in the graph


def decode(
    step: Callable[[Any, Numbers], tuple[Any, Expression]],
    state: Any,
    stop: int | Iterable[int] | None,
    max_length: int | Sequence[int],
    *,
    begin: int | Sequence[int] | None = None,
    temperature: float | None = None,
    allowed: Allowed | Sequence[Allowed | None] | None = None,
    min_length: int = 0,
    prefix: Prefixes = None,
    no_repeat_ngram: int = 0,
    forbidden: Sequence[int] = (),
    every: int = 1,
) -> Any:
    """Write token by token: at each step the token with the highest score, or one that is drawn.

    The outputs of all sentences are the batch elements of one state, as in `beam_search`; those that have ended are
    dropped from it. The tokens are chosen in the graph, with one wait a step. In a call of `batched_map`, the steps of
    all calls are computed together.

    Args:
        step: ``step(state, tokens)`` lets a state read tokens, an integer array with one for each output that has not
            ended, as `lookup_batch` takes, and returns the next state and an expression with the scores of the tokens
            to come: log probabilities or logits, of shape (number of tokens,), with as many batch elements
        state: the state at first, see `select_states`; it is not changed
        stop: the token that ends an output, or several such tokens; None: outputs end only at `max_length`
        max_length: how many tokens an output has at most, its end included; a list has a number for each sentence
        begin: the token that is read at first; `stop` by default, if that is one token. A list or an array has one for
            each of several sentences, and the result is a list with an item for each.
        temperature: None, the default, for the token with the highest score. A number: tokens are drawn from
            ``softmax(scores / temperature)``, with the random numbers of the graph, as dropout has them: so they depend
            on the seed and on what was drawn before. The highest of scores with Gumbel noise is such a token.
        allowed, min_length, prefix, no_repeat_ngram, forbidden: see `beam_search`
        every: how many steps are computed before their tokens are read. With more than 1, `tokens` is an expression of
            integers in all steps but the first of each group, as `lookup_batch` takes too: an index in the graph. So
            the program waits less often, on a GPU above all; but an output may run some steps beyond its end, and the
            scores must have a place for every row of the table.

    Returns:
        The tokens of the output, the end last: a list, or a list for each of several sentences.

    Raises:
        TypeError: `step` returns no expression
        ValueError: `max_length` is below 1, `temperature` is not above 0, a list has another number of items than there
            are sentences, the scores have another shape, `every` is below 1, or above 1 with `allowed` or
            `no_repeat_ngram`, a score is NaN, or no token can follow an output: none is allowed, or all scores are -inf
        IndexError: an allowed or forbidden token, or one of a prefix, has no score

    Example:
        >>> table = np.log([[0.1, 0.6, 0.3], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]])  # a row for each token before
        >>> def step(state, tokens):
        ...     return state, dy.inputTensor(table[tokens].T, batched=True)
        >>> dy.decode(step, None, stop=0, max_length=5)
        [1, 2, 0]
        >>> dy.decode(step, None, 0, 5, begin=[0, 2])     # two sentences
        [[1, 2, 0], [0]]
        >>> dy.decode(step, None, 0, 5, temperature=1.0)  # by chance
        [1, 2, 0]
    """
    stops = [] if stop is None else [stop] if isinstance(stop, (int, np.integer)) else list(stop)
    sentences = None if begin is None or np.ndim(begin) == 0 else len(begin)  # type: ignore[arg-type]
    lengths = list_of("decode", "max_length", max_length, sentences, np.ndim(max_length) == 0)
    if any(length < 1 for length in lengths):
        raise ValueError(f"decode: max_length must be at least 1, not {max_length}")
    if temperature is not None and not temperature > 0:
        raise ValueError(f"decode: temperature must be above 0, not {temperature}")
    if begin is None and len(stops) != 1:
        raise ValueError("decode: argument begin: without a single stop, the token that is read at first is needed")
    if every < 1:
        raise ValueError(f"decode: every must be at least 1, not {every}")
    if every > 1 and (allowed is not None or no_repeat_ngram):
        raise ValueError("decode: allowed and no_repeat_ngram need the tokens of each step, so every must be 1")
    constraints = Constraints("decode", sentences, stops, allowed, prefix, min_length, no_repeat_ngram, forbidden)
    last: Any = np.atleast_1d(np.asarray(stops[0] if begin is None else begin))
    found: list[list[int]] = [[] for _ in last]
    outputs, rows, selection, length = list(found), list(range(len(found))), Selection(), 0
    while rows:
        chosen = []
        for ahead in range(min(every, max(lengths[row] for row in rows) - length)):
            state, scores = step(state, last)
            count = checked_scores("decode", scores, len(rows))
            penalties = constraints.penalties(length + ahead, outputs, rows, count)
            scores = _constrained(scores, len(rows), penalties, temperature)
            if every == 1 and count * len(rows) <= FEW:
                chosen.append(scores)
            else:
                value, last = _best(scores)
                chosen += [value, last]
        going, last = _continue(_read(chosen, len(rows)), outputs, [lengths[row] for row in rows], stops)
        length = length + every
        if going and len(going) < len(rows):
            last, state = last[going], selection.of(state, np.array(going))
        outputs, rows = [outputs[i] for i in going], [rows[i] for i in going]
    return found if sentences is not None else found[0]


def _constrained(
    scores: Expression, count: int, penalties: npt.NDArray[np.float32] | None, temperature: float | None
) -> Expression:
    """Scores of which the highest is to be chosen, for each of `count` outputs."""
    shape, batch = scores.dim()
    if batch < count:
        scores = pick_batch_elems(scores, np.zeros(count, int))
    if temperature is not None:
        scores = scores / temperature + random_gumbel(shape, batch_size=count)
    return scores if penalties is None else scores + inputTensor(penalties.T, batched=True)


def _read(chosen: list[Expression], count: int) -> Numbers:
    """The highest scores of steps and their places, shape (steps, 2, count): from these, or from all scores."""
    if len(chosen) > 1:
        return concatenate(chosen).npvalue().reshape(len(chosen) // 2, 2, count)  # one array is read
    numbers = chosen[0].npvalue().reshape(-1, count)
    places = numbers.argmax(0)  # a NaN is found first, as by `_best`
    return np.stack([numbers[places, np.arange(count)], places])[None]


def _continue(
    read: Numbers, outputs: list[list[int]], lengths: list[int], stops: list[int]
) -> tuple[list[int], Numbers]:
    """Append tokens to outputs until they end; return the numbers of those that have not, and the last tokens."""
    going = list(range(len(outputs)))
    for values, places in read:
        for i in going:
            if not values[i] > -np.inf:  # nor is NaN
                raise ValueError(f"decode: {why_none(outputs[i], values[i], int(places[i]))}")
            outputs[i].append(int(places[i]))
        going = [i for i in going if outputs[i][-1] not in stops and len(outputs[i]) < lengths[i]]
    return going, read[-1, 1].astype(int)


def why_none(tokens: list[int], score: float, token: int | None) -> str:
    """Why no token can follow these, where the first score in order is NaN, that of `token` if it is known, or -inf."""
    if score != score:
        return f"the score of {'a token' if token is None else f'token {token}'} after {tokens} is NaN"
    return f"no token can follow {tokens}: none is allowed, or all are -inf"


def checked_scores(where: str, scores: Any, count: int) -> int:
    """The number of tokens of which a step returned scores, for `count` outputs."""
    if not isinstance(scores, Expression):
        raise TypeError(f"{where}: step must return a state and an expression, not a {type(scores).__name__}")
    shape, batch = scores.dim()
    if len(shape) != 1 or batch not in (1, count):
        what = f"{shape}" if count == 1 else f"{shape} with {batch} batch elements for {count} outputs"
        raise ValueError(f"{where}: step must return a vector of log probabilities, not shape {what}")
    return shape[0]
