"""Sorting, cumulative products and cumulative sums of exponentials."""

from __future__ import annotations

import numpy as np
from case import Case, name_of, one

from dynet_cy.graph.structs import operators


def log_sums(x, d: int):
    return np.logaddexp.accumulate(x, d)


ORDER = [
    *[one(f"sort-{d}", (4, 5, 3), lambda dy, x, d=d: dy.sort(x, d), lambda x, d=d: np.sort(x, d)) for d in (0, 1, -1)],
    one("sort-descending", (7,), lambda dy, x: dy.sort(x, descending=True), lambda x: -np.sort(-x)),
    one("argsort", (5, 3), lambda dy, x: dy.argsort(x, 1) + x, lambda x: np.argsort(x, 1) + x),
    one("topk", (5, 3), lambda dy, x: dy.topk(x, 2)[0], lambda x: -np.sort(-x, 0)[:2]),
    one("topk-places", (5, 3), lambda dy, x: dy.topk(x, 5, 0, False)[1] + x, lambda x: np.argsort(x, 0) + x),
    *[
        one(f"cumprod-{d}", (4, 5, 3), lambda dy, x, d=d: dy.cumprod(x, d), lambda x, d=d: np.cumprod(x, d))
        for d in (0, 1, -1)
    ],
    one(
        "cumprod-zeros",
        (5,),
        lambda dy, x: dy.cumprod(dy.where(np.array([1, 0, 1, 0, 1]), x, 0)),
        lambda x: np.cumprod(x * [1, 0, 1, 0, 1]),
    ),
    *[
        one(f"logcumsumexp-{d}", (4, 5, 3), lambda dy, x, d=d: dy.logcumsumexp(x, d), lambda x, d=d: log_sums(x, d))
        for d in (0, 1, -1)
    ],
    one(
        "logcumsumexp-far",
        (5,),
        lambda dy, x: dy.logcumsumexp(x + dy.inputVector([-400, 300, 310, -100, 310])),
        lambda x: log_sums(x + [-400, 300, 310, -100, 310], 0),
    ),
]


def continued(x, totals, beams: int, count: int, end, begin: int):
    """The best sums of each beam, ordered: batch elements are the last axis."""
    lines = max(x.shape[-1], totals.shape[-1])
    beams = min(beams, lines)
    sums = np.broadcast_to(x + totals, (len(x), lines)).T.reshape(beams, -1)
    at = np.argsort(-sums, 1, kind="stable")[:, :count]
    best = np.take_along_axis(sums, at, 1).ravel()
    line, place = np.divmod((at + np.arange(beams)[:, None] * sums.shape[1]).ravel(), len(x))
    ends = place == (-1 if end is None else end)
    return np.stack([best, line, place, np.where(ends, -1e9, best), np.where(ends, begin, place)])


def continuations(n: int, batches, beams: int, count: int, end) -> Case:
    return Case(
        name_of("continuations", n, beams, count, end),
        [(n,), (1,)],
        # -inf as a number, so that it can be compared
        lambda dy, xs: dy.bmax(
            operators["continuations"](*xs, min(beams, max(x.dim()[1] for x in xs)), count, end, 1),
            dy.inputVector([-1e9]),
        ),
        lambda xs: continued(*xs, beams, count, end, 1),
        batches=batches,
        whole_batch=True,
        grad=False,
    )


CASES = [
    *ORDER,
    continuations(5, [(1, 1)], 1, 3, None),
    continuations(7, [(6, 6), (1, 6), (6, 1)], 2, 4, 0),
    continuations(70, [(6, 6)], 3, 1, 2),
    continuations(100, [(6, 6)], 1, 40, 3),
    continuations(4, [(6, 6)], 6, 4, None),
]
