"""Norms and normalization."""

from __future__ import annotations

import numpy as np
from case import many, one
from cases_reduce_vector_norm import p_norm


def grouped(x, groups, g, b):
    y = x.reshape((*x.shape[:-1], x.shape[-1] // groups, groups), order="F")
    over = tuple(range(y.ndim - 1))
    y = (y - y.mean(over, keepdims=True)) / np.sqrt(y.var(over, keepdims=True) + 1e-5)
    return y.reshape(x.shape, order="F") * g + b


NORMS = [
    one("normalize", (4, 3), lambda dy, x: dy.normalize(x), lambda x: x / p_norm(x, 2, 0, True)),
    one("normalize-rows", (4, 3), lambda dy, x: dy.normalize(x, 1, -1), lambda x: x / p_norm(x, 1, -1, True)),
    one("clip_norm", (4, 3), lambda dy, x: dy.clip_norm(x, 0.5), lambda x: x * min(1, 0.5 / p_norm(x, 2)[0])),
    one("clip_norm-all", (4,), lambda dy, x: dy.clip_norm(x, 9), lambda x: x),
    one(
        "clip_norm-columns",
        (4, 3),
        lambda dy, x: dy.clip_norm(x, 1, 0),
        lambda x: x * np.minimum(1, 1 / p_norm(x, 2, 0, True)),
    ),
    many(
        "cosine_similarity",
        [(4, 3), (4, 3)],
        lambda dy, x, y: dy.cosine_similarity(x, y),
        lambda x, y: (x * y).sum(0) / (p_norm(x, 2, 0) * p_norm(y, 2, 0)),
    ),
    many(
        "rms_norm",
        [(4, 3), (4,)],
        lambda dy, x, g: dy.rms_norm(x, g),
        lambda x, g: x / np.sqrt((x**2).mean(0) + 1e-5) * g[:, None],
    ),
    one(
        "rms_norm-last",
        (2, 4, 3),
        lambda dy, x: dy.rms_norm(x, axis=-1, eps=0.1),
        lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1),
    ),
    many(
        "group_norm",
        [(3, 2, 6), (6,), (6,)],
        lambda dy, x, g, b: dy.group_norm(x, 2, g, b),
        lambda x, g, b: grouped(x, 2, g, b),
        tol=3e-5,
    ),
]

CASES = NORMS
