"""Distances and other losses."""

from __future__ import annotations

import math

import numpy as np
from case import Case


def huber(d, c):
    return np.where(np.abs(d) <= c, d**2 / 2, c * np.abs(d) - c**2 / 2).sum()


CASES = [
    Case(
        "squared_distance",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.squared_distance(*xs),
        lambda xs: ((xs[0] - xs[1]) ** 2).sum(),
    ),
    Case("l1_distance", [(4, 3), (4, 3)], lambda dy, xs: dy.l1_distance(*xs), lambda xs: np.abs(xs[0] - xs[1]).sum()),
    Case(
        "huber_distance",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.huber_distance(*xs),
        lambda xs: huber(xs[0] - xs[1], 1.345),
        -2.0,
        2.0,
    ),
    Case(
        "huber_distance-c",
        [(5,), (5,)],
        lambda dy, xs: dy.huber_distance(*xs, c=0.4),
        lambda xs: huber(xs[0] - xs[1], 0.4),
    ),
    Case(
        "binary_log_loss",
        [(5,), (5,)],
        lambda dy, xs: dy.binary_log_loss(*xs),
        lambda xs: -(xs[1] * np.log(xs[0]) + (1 - xs[1]) * np.log(1 - xs[0])).sum(),
        0.1,
        0.9,
    ),
    Case(
        "binary_cross_entropy_with_logits-none",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.binary_cross_entropy_with_logits(*xs, reduction="none"),
        lambda xs: np.logaddexp(0, xs[0]) - xs[0] * xs[1],
    ),
    Case(
        "binary_cross_entropy_with_logits-sum",
        [(5,), (5,)],
        lambda dy, xs: dy.binary_cross_entropy_with_logits(*xs, reduction="sum"),
        lambda xs: (np.logaddexp(0, xs[0]) - xs[0] * xs[1]).sum(),
    ),
    Case(
        "pairwise_rank_loss",
        [(1, 5), (1, 5)],
        lambda dy, xs: dy.pairwise_rank_loss(*xs, m=0.4),
        lambda xs: np.maximum(0.4 - xs[0] + xs[1], 0),
    ),
    *[
        Case(
            f"poisson_loss-{k}",
            [(1,)],
            lambda dy, xs, k=k: dy.poisson_loss(xs[0], k),
            lambda xs, k=k: np.exp(xs[0]) - k * xs[0] + math.lgamma(k + 1),
        )
        for k in (0, 4)
    ],
]
