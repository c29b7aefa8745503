"""Conditional random fields, compared with sums over all sequences of tags."""

from __future__ import annotations

import itertools

import numpy as np
from case import Case


def scored(x, transitions, start, end):
    """All sequences of tags, and their scores."""
    tags, n = x.shape[0], x.shape[1] if x.ndim > 1 else 1
    x = x.reshape(tags, n)
    ys = np.array(list(itertools.product(range(tags), repeat=n)))
    scores = start[ys[:, 0]] + end[ys[:, -1]] + x[ys, np.arange(n)].sum(1)
    return ys, scores + transitions[ys[:, :-1], ys[:, 1:]].sum(1)


def log_sum(scores):
    return np.atleast_1d(scores.max() + np.log(np.exp(scores - scores.max()).sum()))


def marginals(x, transitions, start, end):
    ys, scores = scored(x, transitions, start, end)
    p = np.exp(scores - log_sum(scores))
    y = np.zeros((len(x), ys.shape[1]))
    for t in range(ys.shape[1]):
        np.add.at(y[:, t], ys[:, t], p)
    return y


def best(x, transitions, start, end):
    ys, scores = scored(x, transitions, start, end)
    return ys[scores.argmax()]


def crf(case: str, tags: int, n: int, build, f, **more) -> Case:
    shapes = [(tags, n), (tags, tags), (tags,), (tags,)]
    return Case(case, shapes, lambda dy, xs: build(dy, *xs), lambda xs: f(*xs), **more)


SIZES = [(3, 4), (2, 1), (1, 3), (5, 3)]

CASES = [
    *[
        crf(
            f"crf_log_partition-{tags}x{n}",
            tags,
            n,
            lambda dy, *xs: dy.crf_log_partition(*xs),
            lambda *xs: log_sum(scored(*xs)[1]),
        )
        for tags, n in SIZES
    ],
    Case(
        "crf_log_partition-word",
        [(3,), (3, 3), (3,), (3,)],
        lambda dy, xs: dy.crf_log_partition(*xs),
        lambda xs: log_sum(scored(*xs)[1]),
    ),
    *[
        crf(f"crf_marginals-{tags}x{n}", tags, n, lambda dy, *xs: dy.crf_marginals(*xs), marginals, grad=False)
        for tags, n in SIZES
    ],
    *[
        crf(f"crf_viterbi-{tags}x{n}", tags, n, lambda dy, *xs: dy.crf_viterbi(*xs), best, grad=False)
        for tags, n in SIZES
    ],
]
