"""Losses of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import expression, integers, known_arguments, log_probabilities, shape_of
from dynet_cy.functions.shapes import gather
from dynet_cy.graph.expressions import Expression
from dynet_cy.graph.structs import operators
from dynet_cy.ops import losses, select
from dynet_cy.ops.elementwise import equal, where
from dynet_cy.ops.inputs import constant, inputVector
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import concatenate, nobackprop, reshape
from dynet_cy.ops.softmax import logsumexp

__all__ = ["crf_score", "ctc_loss"]

Tags = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]


def numbers(values: Tags, most: int, function: str, name: str) -> npt.NDArray[np.int64]:
    """A list of whole numbers from 0 to most - 1."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    array = integers(array, function, name)
    if array.ndim != 1:
        raise TypeError(f"{function}: {name} must be a list of whole numbers, not {values!r}")
    wrong = array[(array < 0) | (array >= most)]
    if wrong.size:
        raise IndexError(f"{function}: {name} has {wrong[0]}, which is not from 0 to {most - 1}")
    return array.astype(np.int64)


@known_arguments
def crf_score(
    x: Expression, tags: Expression | Tags, transitions: Expression, start: Expression, end: Expression
) -> Expression:
    """The score of one sequence of tags; see `dynet_cy.crf_log_partition`.

    Args:
        x: the score of each tag for each word, ``{tags,n}``.
        tags: the n tags; or a vector of them as an expression, which gets no gradient.
        transitions, start, end: see `dynet_cy.crf_log_partition`.

    Raises:
        DimensionError: the number of tags is not that of words.
        IndexError: there is no such tag; if they are an expression, when the value is computed.

    Example:
        >>> x = dy.inputTensor([[2, 0, 0], [0, 3, 1]])
        >>> transitions, ends = dy.zeros((2, 2)), dy.zeros(2)
        >>> dy.crf_score(x, [0, 1, 1], transitions, ends, ends).value()
        6.0
    """
    if isinstance(tags, Expression):
        return score_at(x, tags, transitions, start, end, "crf_score")
    shape = shape_of(expression(x, "crf_score"))
    n = shape[1] if len(shape) > 1 else 1
    own = numbers(tags, shape[0], "crf_score", "tags")
    if len(own) != n:
        raise DimensionError(f"crf_score: {len(own)} tags are given for {n} words")
    words = gather(reshape(x, (shape[0], n)), own[None, :]).sum()
    ends = select.pick(start, int(own[0])) + select.pick(end, int(own[-1]))
    if n == 1:
        return words + ends
    places = own[:-1] + shape[0] * own[1:]
    moves = select.select_rows(reshape(transitions, shape[0] ** 2), places)
    return words + ends + moves.sum()


def score_at(
    x: Expression, tags: Expression, transitions: Expression, start: Expression, end: Expression, function: str
) -> Expression:
    """`crf_score` of tags that are values of the graph."""
    shape = shape_of(expression(x, function))
    n = shape[1] if len(shape) > 1 else 1
    if shape_of(tags) != (n,):
        raise DimensionError(f"{function}: tags has shape {shape_of(tags)}, but there are {n} words")

    def at(of: Expression, indices: Expression, axis: int) -> Expression:
        found: Expression = operators["gather"](of, indices, axis, function)
        return found

    def own(first: int, count: int, places: tuple[int, ...]) -> Expression:
        return reshape(select.pick_range(tags, first, first + count), places, tags.batch_size)

    words = at(reshape(x, (shape[0], n), x.batch_size), reshape(tags, (1, n), tags.batch_size), 0).sum()
    ends = at(start, own(0, 1, (1,)), 0) + at(end, own(n - 1, 1, (1,)), 0)
    if n == 1:
        return words + ends
    # A row of the transitions for each tag before, and an element of each row.
    rows = select.select_rows(transitions, own(0, n - 1, (n - 1,)))
    return words + ends + at(rows, own(1, n - 1, (n - 1, 1)), 1).sum()


def loss_at(x: Expression, tags: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression:
    """`crf_loss` of tags that are values of the graph.

    A number that is added to all scores of a word, or to all transitions, changes nothing: so the greatest is
    subtracted, and large scores lose no digits.
    """
    x, first, last = (own - nobackprop(own.max(0, True)) for own in (expression(x, "crf_loss"), start, end))
    moves = transitions - nobackprop(transitions.max(0, True).max(1, True))
    return losses.crf_log_partition(x, moves, first, last) - score_at(x, tags, moves, first, last, "crf_loss")


operators["crf_loss"] = loss_at


# In place of -inf, of which sums and differences are NaN.
NEVER = -1e30


def ctc_loss_at(log_probs: Expression, labels: Expression, blank: int) -> Expression:
    """`ctc_loss` of labels that are values of the graph: the sums over alignments frame by frame."""
    n, frames = shape_of(labels)[0], shape_of(log_probs)[1]
    if len(shape_of(labels)) != 1:
        raise DimensionError(f"ctc_loss: labels must be a vector, but has shape {shape_of(labels)}")
    if frames < max(n, 1):
        raise ValueError(f"ctc_loss: {n} labels need {n} frames, there are {frames}")
    if n == 0:
        return ctc_loss(log_probs, [], blank)

    def between(own: Expression, others: Expression) -> Expression:
        """Rows, with the same one between and around them."""
        places = np.full(2 * n + 1, n)
        places[1::2] = np.arange(n)
        return select.select_rows(concatenate([own, others]), places)

    wrong = f"the blank, {blank}, is among the labels"
    own_scores = operators["labelled"](log_probs, labels, blank, "ctc_loss", wrong)
    scores = between(own_scores, select.select_rows(log_probs, [blank]))
    never = constant(1, NEVER)
    # A label may follow the one before it without a blank, if that is another one.
    skips = [never]
    if n > 1:
        skips.append(where(equal(labels[1:], labels[: n - 1]), never, 0))
    skipping = between(concatenate(skips), never)
    begin = np.full(2 * n + 1, NEVER)
    begin[:2] = 0
    sums = select.pick(scores, 0, 1) + inputVector(begin)
    for t in range(1, frames):
        before = [select.pick_range(concatenate([never] * k + [sums]), 0, 2 * n + 1) for k in (1, 2)]
        sums = logsumexp([sums, before[0], before[1] + skipping]) + select.pick(scores, t, 1)
    loss = -logsumexp([select.pick(sums, 2 * n), select.pick(sums, 2 * n - 1)])
    return where(loss > -NEVER / 2, np.inf, loss)


@known_arguments
def ctc_loss(log_probs: Expression, labels: Expression | Tags, blank: int = 0) -> Expression:
    """Connectionist temporal classification: -log p(labels), summed over all alignments (Graves et al. 2006).

    The states of an alignment, which are the labels with blanks between and around them, form a chain, whose sum is
    computed by `dynet_cy.label_chain`.

    Args:
        log_probs: log-probabilities, ``{classes,frames}``, as from `log_softmax`.
        labels: the sequence of classes, without blanks; it may be empty. Or a vector of them as an expression, which
            gets no gradient; then each frame is a few operations, and the loss is infinite where there are too few
            frames.
        blank: the class of the blank (default: 0).

    Returns:
        An expression of one element.

    Raises:
        DimensionError: log_probs is not a matrix.
        IndexError: there is no such class; if they are an expression, when the value is computed, and likewise if a
            label is the blank.
        ValueError: a label is the blank, or there are too few frames for the labels (equal neighbours need a blank
            between them).

    Example:
        >>> log_probs = dy.log_softmax(dy.zeros((3, 4)))               # three symbols, one of them blank; four frames
        >>> round(dy.ctc_loss(log_probs, [1, 2]).value(), 4)
        1.6864
    """
    shape = shape_of(log_probabilities(log_probs, "ctc_loss", "log_probs"))
    if len(shape) != 2:
        raise DimensionError(f"ctc_loss: log_probs must be a matrix of classes and frames, but has shape {shape}")
    blank = int(numbers([blank], shape[0], "ctc_loss", "blank")[0])
    if isinstance(labels, Expression):
        return ctc_loss_at(log_probs, labels, blank)
    own = numbers(labels, shape[0], "ctc_loss", "labels")
    if (own == blank).any():
        raise ValueError(f"ctc_loss: the blank, {blank}, is among the labels")
    needed = len(own) + int((own[1:] == own[:-1]).sum())
    if shape[1] < max(needed, 1):
        raise ValueError(f"ctc_loss: {len(own)} labels need {needed} frames, there are {shape[1]}")
    states = np.full(2 * len(own) + 1, blank)
    states[1::2] = own
    may_skip = np.zeros(len(states), np.int64)
    may_skip[2:] = states[2:] != states[:-2]  # the blank between two different labels
    return -losses.label_chain(select.select_rows(log_probs, states), may_skip)
