"""Derivatives of conditional random fields and chains of states, column by column."""

from __future__ import annotations

import numpy as np

from dynet_cy.derivatives.steps import Step, as_matrix
from dynet_cy.derivatives.table import composed
from dynet_cy.functions.sequences import crf_score
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.inputs import inputTensor
from dynet_cy.ops.select import pick
from dynet_cy.ops.shape import reshape
from dynet_cy.ops.softmax import logsumexp_dim

IMPOSSIBLE = -1e30  # a score whose exponential is 0, and whose sums do not overflow


@composed("crf_log_partition")
def log_partition(step: Step, xs: list[Expression]) -> Expression:
    """The logarithm of the sums over all sequences that end with each tag, extended by one word after the other."""
    x, transitions, start, end = as_matrix(xs[0]), *xs[1:]
    tags, words = x.dim()[0]
    sums = start + pick(x, 0, 1)
    for word in range(1, words):
        before = reshape(sums, (tags, 1), sums.batch_size)
        sums = logsumexp_dim(transitions + before, 0) + pick(x, word, 1)
    return logsumexp_dim(sums + end, 0)


@composed("crf_loss")
def loss(step: Step, xs: list[Expression]) -> Expression:
    return log_partition(step, xs) - crf_score(xs[0], step.items[0], *xs[1:])


@composed("label_chain")
def label_chain(step: Step, xs: list[Expression]) -> Expression:
    """A chain of states is a field whose other transitions, starts and ends are impossible."""
    n = xs[0].dim()[0][0]
    moves = np.full((n, n), IMPOSSIBLE)
    places = np.arange(n)
    skipping = places[2:][np.asarray(step.items[0])[2:] != 0]
    for before, after in ((places, places), (places[:-1], places[1:]), (skipping - 2, skipping)):
        moves[before, after] = 0
    start, end = np.full(n, IMPOSSIBLE), np.full(n, IMPOSSIBLE)
    start[:2] = 0
    end[-2:] = 0
    return log_partition(step, [xs[0], *(inputTensor(a) for a in (moves, start, end))])
