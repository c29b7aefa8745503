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


def chain(x, skips):
    """The sum over all ways through a chain of states."""
    states, frames = x.shape
    total = []
    for way in itertools.product(range(states), repeat=frames):
        steps = [(b - a, b) for a, b in zip(way, way[1:])]
        if way[0] < 2 and way[-1] >= states - 2 and all(d in (0, 1) or (d == 2 and skips[b]) for d, b in steps):
            total.append(x[way, range(frames)].sum())
    return log_sum(np.array(total))


# States, frames, and which states may be entered from the one before the previous one.
CHAINS = [(1, 1, [0]), (1, 3, [0]), (2, 2, [0, 0]), (3, 1, [0, 0, 1]), (3, 2, [0, 0, 1]), (5, 4, [0, 0, 1, 0, 1])]
CHAINS += [(4, 4, [0, 0, 0, 0])]
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
    *[
        Case(
            f"label_chain-{states}x{frames}",
            [(states, frames)],
            lambda dy, xs, skips=tuple(skips): dy.label_chain(xs[0], skips),
            lambda xs, skips=tuple(skips): chain(xs[0], skips),
        )
        for states, frames, skips in CHAINS
    ],
]
