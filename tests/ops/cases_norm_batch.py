"""Normalization of channels by the statistics of a minibatch."""

from __future__ import annotations

import math

import numpy as np
from case import Case


def moments(x, axis):
    """The batch is the last axis of x and of the result, where it has size 1."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    return np.stack([x.mean(others), x.var(others)], axis=1)[..., None]


def channels(v, x, axis):
    return v.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def normalized(xs, axis, eps=1e-5):
    x, mean, var, g, b = xs
    mean, var, g, b = (channels(v, x, axis) for v in (mean, var, g, b))
    return g * (x - mean) / np.sqrt(var + eps) + b


CASES: list[Case] = []

for shape, axis in [((3,), 0), ((3, 4), 0), ((4, 3), 1), ((2, 4, 3), 2), ((2, 3, 4), 1)]:
    text = "x".join(map(str, shape))
    CASES += [
        Case(
            f"batch_moments-{text}-axis{axis}",
            [shape],
            lambda dy, xs, axis=axis: dy.batch_moments(xs[0], axis),
            lambda xs, axis=axis: moments(xs[0], axis),
            batches=[(3,), (4,)] if math.prod(shape) == 3 else [(1,), (3,)],
            whole_batch=True,
        ),
        Case(
            f"channel_norm-{text}-axis{axis}",
            [shape, (3,), (3,), (3,), (3,)],
            lambda dy, xs, axis=axis: dy.channel_norm(*xs, axis),
            lambda xs, axis=axis: normalized(xs, axis),
            (-1.0, -1.0, 0.5, -1.0, -1.0),
            (1.0, 1.0, 2.0, 1.0, 1.0),
            tol=2e-5,
        ),
    ]

CASES += [
    Case(
        "channel_norm-eps",
        [(4, 3), (3,), (3,), (3,), (3,)],
        lambda dy, xs: dy.channel_norm(*xs, axis=-1, eps=0.5),
        lambda xs: normalized(xs, 1, 0.5),
        (-1.0, -1.0, 0.0, -1.0, -1.0),
        (1.0, 1.0, 2.0, 1.0, 1.0),
        tol=2e-5,
    ),
]
