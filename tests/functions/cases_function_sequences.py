"""Losses of sequences, compared with sums over all possible sequences."""

from __future__ import annotations

import itertools

import numpy as np
from case import Case
from cases_losses_crf import crf, log_sum, scored
from cases_softmax import logsumexp


def loss(tags):
    def f(x, transitions, start, end):
        ys, scores = scored(x, transitions, start, end)
        return log_sum(scores) - scores[(ys == tags).all(1)]

    return f


def ctc(labels, blank=0):
    def f(x):
        logs = x - logsumexp(x)
        paths = []
        for path in itertools.product(range(len(x)), repeat=x.shape[1]):
            if [k for k, _ in itertools.groupby(path) if k != blank] == list(labels):
                paths.append(logs[path, np.arange(x.shape[1])].sum())
        return -log_sum(np.array(paths))

    return f


CASES = [
    *[
        crf(
            f"crf_loss-{n}",
            5,
            n,
            lambda dy, x, *rest, y=[4, 0, 2, 2][:n]: dy.crf_loss(x, y, *rest),
            loss([4, 0, 2, 2][:n]),
        )
        for n in (1, 2)
    ],
    crf(
        "crf_loss",
        3,
        4,
        lambda dy, x, *rest: dy.crf_loss(x, [2, 0, 0, 1], *rest),
        loss([2, 0, 0, 1]),
    ),
    crf("crf_score", 2, 1, lambda dy, x, *rest: dy.crf_score(x, [1], *rest), lambda x, a, s, e: x[1] + s[1] + e[1]),
    *[
        Case(
            f"ctc_loss-{''.join(map(str, labels))}",
            [(3, 4)],
            lambda dy, xs, y=labels: dy.ctc_loss(dy.log_softmax(xs[0]), y),
            lambda xs, y=labels: ctc(y)(xs[0]),
        )
        for labels in ([1, 2], [1, 1], [], [2])
    ],
    *[
        Case(
            f"ctc_loss-at-{''.join(map(str, labels))}",
            [(3, 4)],
            lambda dy, xs, y=labels: dy.ctc_loss(dy.log_softmax(xs[0]), dy.input_indices(y)),
            lambda xs, y=labels: ctc(y)(xs[0]),
        )
        for labels in ([1, 2], [1, 1], [2])
    ],
    Case(
        "ctc_loss-blank",
        [(3, 4)],
        lambda dy, xs: dy.ctc_loss(dy.log_softmax(xs[0]), [0, 1, 0], 2),
        lambda xs: ctc([0, 1, 0], 2)(xs[0]),
    ),
]
