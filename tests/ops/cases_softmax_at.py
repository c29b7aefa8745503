"""Losses of classes that are values of the graph, and their one-hot vectors."""

from __future__ import annotations

import numpy as np
from case import beside_a_sum, many, one


def negative_log_likelihood(x, i):
    return np.log(np.exp(x).sum()) - x[i]


CASES = [
    *[
        many(
            f"pickneglogsoftmax-at-{n}",
            [(n,), (n,)],
            lambda dy, x, s: dy.pickneglogsoftmax(x, dy.argmax(s)),
            lambda x, s: negative_log_likelihood(x, s.argmax())[None],
            grad=(True, False),
        )
        for n in (1, 5, 100)
    ],
    one(
        "pickneglogsoftmax_batch-at",
        (5,),
        lambda dy, x: dy.pickneglogsoftmax_batch(x, dy.argmin(x)),
        lambda x: negative_log_likelihood(x, x.argmin())[None],
    ),
    beside_a_sum("one_hot-at", [(5,)], lambda dy, x: dy.one_hot(5, dy.argmax(x)), lambda x: np.eye(5)[x.argmax()]),
    beside_a_sum(
        "one_hot-at-several",
        [(5, 3)],
        lambda dy, x: dy.one_hot(6, dy.argmax(x)),
        lambda x: np.eye(6)[:, x.argmax(0)],
    ),
    beside_a_sum("sample-certain", [(3,)], lambda dy, x: dy.sample(x * 0 + np.array([-500, 500, 0])), lambda x: [1]),
    beside_a_sum(
        "sample-columns",
        [(2, 3)],
        lambda dy, x: dy.sample(x + np.array([[-500, 500, 0], [500, -500, 500]])),
        lambda x: [1, 0, 1],
    ),
    beside_a_sum(
        "sample-rows",
        [(2, 3)],
        lambda dy, x: dy.sample(x + np.array([[-500, 500, 0], [500, -500, 0]]), d=1),
        lambda x: [1, 0],
    ),
]
