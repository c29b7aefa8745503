"""Sorting, cumulative products and cumulative sums of exponentials."""

from __future__ import annotations

import numpy as np
from case import one


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

CASES = ORDER
