"""Generation of text: greedy, beam search, or sampling."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from dynet_cy.decoding.greedy import decode
from dynet_cy.decoding.search import beam_search
from dynet_cy.functions.arguments import positive
from dynet_cy.graph import Expression
from dynet_cy.hints.equivalents import advice
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.text import Code
from dynet_cy.rnn.builder import positive_integer
from dynet_cy.serving.fibers import batched_map

# What `generate` passes to `decode` and `beam_search` itself, and what changes the kind of result.
_GIVEN = ("step", "state", "stop", "max_length", "begin", "temperature", "width", "end", "logits", "longest", "n_best")

Prompt = Union[str, Code, Sequence[int]]


class Sampling(NamedTuple):
    """Options of sampling the next piece.

    Attributes:
        temperature: scores are divided by it, so pieces are drawn the more freely, the greater it is. Default: 1
        top_k: only so many pieces with the highest scores are drawn; 0, the default: all
        top_p: only the pieces with the highest scores are drawn whose probabilities, at this temperature, sum to
            `top_p` (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020). 1, the default: all

    Example:
        >>> dy.pretrained.Sampling(top_p=0.9)
        Sampling(temperature=1.0, top_k=0, top_p=0.9)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def generate(
    model: Any,
    prompts: Any,
    longest: int,
    width: int,
    sample: Sampling | float | None,
    end: int | Sequence[int] | None,
    each: Callable[[int, int], None] | None,
    options: dict[str, Any],
) -> Any:
    """See `Decoder.generate`."""
    name = f"{type(model).__name__}.generate"
    positive_integer(longest, name, "longest")
    positive_integer(width, name, "width")
    if sample is not None:
        sample = sample if isinstance(sample, Sampling) else Sampling(sample)
        _check(sample)
        if width != 1:
            raise ValueError(f"{name}: argument sample: a beam search of width {width} draws nothing")
    if each is not None and (width != 1 or options.get("every", 1) != 1):
        raise ValueError(f"{name}: argument each: pieces are known one by one only with width=1 and every=1")
    ends = _ends(model, end, name)
    _check_options(options, width, name)
    options = {**model._usual_options(), **options}
    if width != 1 and ends is not None and len(ends) > 1:
        raise ValueError(f"{name}: argument end: a beam search has one end, got {ends}")
    single = _is_single(prompts, name)
    given = [prompts] if single else list(prompts)
    texts = [_ids(model, prompt, longest, name) for prompt in given]

    matrix = model._score_matrix()

    def continued(number: int, ids: list[int]) -> list[int]:
        told = -1  # the first piece that is read belongs to the prompt

        def tell(pieces: Sequence[int]) -> None:
            nonlocal told
            for piece in pieces:
                if each is not None and told >= 0 and piece not in (ends or ()):
                    each(number, int(piece))
                told += 1

        state, begin = model._begin(ids)

        def step(state: Any, tokens: Any) -> tuple[Any, Expression]:
            if each is not None:
                tell(tokens)
            x, state = model._go_on(state, tokens)
            scores = model._scores_of(x, matrix)
            return state, scores if sample is None else _kept(sample, scores)

        if width != 1:
            last = None if ends is None else ends[0]
            best = beam_search(step, state, width, longest, last, begin=begin, logits=True, **options)
            return list(best.tokens)
        temperature = None if sample is None else sample.temperature
        found: list[int] = decode(step, state, ends, longest, begin=begin, temperature=temperature, **options)
        tell(found[told:])
        return found

    added = [
        found[:-1] if ends is not None and found and found[-1] in ends else found
        for found in batched_map(continued, range(len(texts)), texts)
    ]
    found = [model.decode(ids) if isinstance(prompt, str) else ids for prompt, ids in zip(given, added)]
    return found[0] if single else found


def _check_options(options: dict[str, Any], width: int, name: str) -> None:
    """Refuse options that the search does not have."""
    there = [one for one in inspect.signature(decode if width == 1 else beam_search).parameters if one not in _GIVEN]
    wrong = next((one for one in options if one not in there), None)
    if wrong is not None:
        said = f"{advice('text', wrong)}; options with width={width} are {', '.join(there)}"
        raise TypeError(f"{name}: there is no argument {wrong}{said}")


def _ends(model: Any, end: int | Sequence[int] | None, name: str) -> list[int] | None:
    """The pieces that end a text."""
    given: Any = model.config.get("eos_token_id") if end is None else end
    if given is None:
        return None
    ends: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    for one in ends:
        if not isinstance(one, (int, np.integer)):
            raise TypeError(f"{name}: argument end: expected numbers of pieces, got {one!r:.80}")
    return [int(one) for one in ends] or None


def _is_single(prompts: Any, name: str) -> bool:
    if isinstance(prompts, (str, Code)):
        return True
    if not isinstance(prompts, (list, tuple, np.ndarray)):
        raise TypeError(f"{name}: argument prompts: expected a text or a list of them, got {prompts!r:.80}")
    return len(prompts) > 0 and isinstance(prompts[0], (int, np.integer))


def _ids(model: Any, prompt: Any, longest: int, name: str) -> list[int]:
    """The pieces of a prompt."""
    ids, _ = model._numbers(model.tokenize(prompt) if isinstance(prompt, str) else prompt)
    if not ids:
        raise ValueError(f"{name}: argument prompts: a prompt has no pieces")
    model._check_length(ids, longest)
    wrong = [i for i in ids if not 0 <= i < model.settings.vocabulary]
    if wrong:
        raise IndexError(
            f"{name}: argument prompts: there is no piece {wrong[0]}, there are {model.settings.vocabulary}"
        )
    return list(ids)


def _check(sampling: Sampling) -> None:
    """Refuse numbers out of their ranges."""
    positive(sampling.temperature, "Sampling", "argument temperature")
    if isinstance(sampling.top_k, bool) or not isinstance(sampling.top_k, int) or sampling.top_k < 0:
        raise ValueError(f"Sampling: argument top_k: expected a whole number from 0 on, got {sampling.top_k!r:.80}")
    if positive(sampling.top_p, "Sampling", "argument top_p") > 1:
        raise ValueError(f"Sampling: argument top_p: expected above 0 to 1, got {sampling.top_p!r}")


def _kept(sampling: Sampling, scores: Expression) -> Expression:
    """The scores, -inf for the pieces that must not be drawn."""
    if 0 < sampling.top_k < scores.dim()[0][0]:
        highest, _ = ops.topk(scores, sampling.top_k)
        scores = ops.where(scores >= highest[sampling.top_k - 1], scores, -math.inf)
    if sampling.top_p < 1:
        ordered = ops.sort(scores, descending=True)
        shares = ops.softmax(ordered / sampling.temperature)
        kept = ops.cumsum(shares) - shares < sampling.top_p
        scores = ops.where(scores >= ops.min_dim(ops.where(kept, ordered, math.inf)), scores, -math.inf)
    return scores
