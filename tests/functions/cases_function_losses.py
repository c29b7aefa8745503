"""Losses composed of ops."""

from __future__ import annotations

import numpy as np
from case import many, one
from cases_reduce_vector_norm import p_norm


def log_softmax(x, d=0):
    less = x - x.max(d, keepdims=True)
    return less - np.log(np.exp(less).sum(d, keepdims=True))


TAGS = np.array([2, 0, 3])

WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])


def nll(x, tags=TAGS, smoothing=0.0, weights=None):
    """The loss of each column."""
    w = np.ones(4) if weights is None else weights
    logs = log_softmax(x)
    n = np.arange(len(tags))
    return -(1 - smoothing) * w[tags] * logs[tags, n] - smoothing / 4 * (w[:, None] * logs).sum(0)


SOFT = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.1], [0.3, 0.2, 0.1], [0.1, 0.1, 0.1]])

LOSSES = [
    one("cross_entropy", (4, 3), lambda dy, x: dy.cross_entropy(x, TAGS), lambda x: np.atleast_1d(nll(x).mean())),
    one("cross_entropy-vector", (4,), lambda dy, x: dy.cross_entropy(x, 2), lambda x: -log_softmax(x)[2:3]),
    one(
        "cross_entropy-rows", (3, 4), lambda dy, x: dy.cross_entropy(x, TAGS, -1, reduction="none"), lambda x: nll(x.T)
    ),
    one(
        "cross_entropy-tensor",
        (2, 4, 3),
        lambda dy, x: dy.cross_entropy(x, np.array([TAGS, TAGS[::-1]]), 1, reduction="sum"),
        lambda x: np.atleast_1d(nll(x[0]).sum() + nll(x[1], TAGS[::-1]).sum()),
    ),
    one(
        "cross_entropy-smooth",
        (4, 3),
        lambda dy, x: dy.cross_entropy(x, TAGS, label_smoothing=0.1, weights=WEIGHTS),
        lambda x: np.atleast_1d(nll(x, TAGS, 0.1, WEIGHTS).sum() / WEIGHTS[TAGS].sum()),
    ),
    one(
        "cross_entropy-ignored",
        (4, 3),
        lambda dy, x: dy.cross_entropy(x, [2, -100, 3], weights=WEIGHTS, ignore_index=-100),
        lambda x: np.atleast_1d(nll(x, TAGS, 0, WEIGHTS)[[0, 2]].sum() / WEIGHTS[[2, 3]].sum()),
    ),
    one(
        "cross_entropy-batch",
        (4, 2),
        lambda dy, x: dy.cross_entropy(x, np.array([[2, -1, 0], [1, 3, -1]]), ignore_index=-1, label_smoothing=0.2),
        lambda x: np.array(
            [
                [
                    nll(x[..., 0], np.array([2, 1]), 0.2).mean(),
                    nll(x[:, 1:, 1], np.array([3]), 0.2)[0],
                    nll(x[:, :1, 2], np.array([0]), 0.2)[0],
                ]
            ]
        ),
        batches=[(3,)],
        whole_batch=True,
    ),
    one(
        "cross_entropy-probabilities",
        (4, 3),
        lambda dy, x: dy.cross_entropy(x, SOFT, label_smoothing=0.1, weights=WEIGHTS),
        lambda x: np.atleast_1d(-((SOFT * 0.9 + 0.025) * WEIGHTS[:, None] * log_softmax(x)).sum(0).mean()),
    ),
    many(
        "cross_entropy-expression",
        [(4, 3), (4, 3)],
        lambda dy, x, p: dy.cross_entropy(x, p),
        lambda x, p: np.atleast_1d(-(p * log_softmax(x)).sum(0).mean()),
    ),
    one(
        "focal_loss",
        (4, 3),
        lambda dy, x: dy.focal_loss(x, TAGS, 1.5),
        lambda x: np.atleast_1d(((1 - np.exp(-nll(x))) ** 1.5 * nll(x)).mean()),
    ),
    one("focal_loss-0", (4, 3), lambda dy, x: dy.focal_loss(x, TAGS, 0, reduction="none"), lambda x: nll(x)),
    many(
        "triplet_loss",
        [(4, 3)] * 3,
        lambda dy, a, p, n: dy.triplet_loss(a, p, n),
        lambda a, p, n: np.maximum(p_norm(a - p, 2, 0) - p_norm(a - n, 2, 0) + 1, 0),
    ),
    many(
        "kl_divergence",
        [(4, 3), (4, 3)],
        lambda dy, p, q: dy.kl_divergence(dy.log_softmax(p), dy.log_softmax(q), 0),
        lambda p, q: (np.exp(log_softmax(p)) * (log_softmax(p) - log_softmax(q))).sum(0),
    ),
    many(
        "gaussian_nll",
        [(4, 3), (4, 3), (4, 3)],
        lambda dy, m, x, v: dy.gaussian_nll(m, x, v, full=True),
        lambda m, x, v: np.atleast_1d(0.5 * (np.log(v) + (m - x) ** 2 / v + np.log(2 * np.pi)).sum()),
        low=(-1, -1, 0.5),
        high=(1, 1, 2),
    ),
    one(
        "gaussian_nll-number",
        (4,),
        lambda dy, m: dy.gaussian_nll(m, np.ones(4), 2),
        lambda m: np.atleast_1d(0.5 * (np.log(2) + (m - 1) ** 2 / 2).sum()),
    ),
]

CASES = LOSSES
