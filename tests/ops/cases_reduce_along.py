"""Ops along one axis."""

from __future__ import annotations

import numpy as np
from case import name_of, one


def logsumexp(x, d: int):
    return np.logaddexp.reduce(x, d)


def one_hot(x):
    y = np.zeros(x.shape)
    y[x.argmax()] = 1
    return y


ALONG = [((5,), 0), ((4, 3), 0), ((4, 3), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((17, 9), 1)]

CASES = [
    *[
        case
        for s, d in ALONG
        for case in [
            one(name_of("max_dim", s, d), s, lambda dy, x, d=d: dy.max_dim(x, d), lambda x, d=d: x.max(d)),
            one(name_of("min_dim", s, d), s, lambda dy, x, d=d: dy.min_dim(x, d), lambda x, d=d: x.min(d)),
            one(name_of("cumsum", s, d), s, lambda dy, x, d=d: dy.cumsum(x, d), lambda x, d=d: x.cumsum(d)),
            one(
                name_of("logsumexp_dim", s, d),
                s,
                lambda dy, x, d=d: dy.logsumexp_dim(x, d),
                lambda x, d=d: logsumexp(x, d),
                low=-3.0,
                high=3.0,
            ),
        ]
    ],
    one("cumsum-no-axis", (4, 3), lambda dy, x: dy.cumsum(x, 2), lambda x: x),
    # The gradient of argmax is not the derivative of its value: added terms make the two agree.
    one("argmax", (7,), lambda dy, x: dy.argmax(x, "zero_gradient") + x, lambda x: one_hot(x) + x),
    one(
        "argmax_straight_through",
        (7,),
        lambda dy, x: dy.argmax(x, "straight_through_gradient") + dy.nobackprop(x),
        lambda x: one_hot(x) + x,
    ),
    one("cumsum-negative", (4, 3), lambda dy, x: dy.cumsum(x, -1), lambda x: x.cumsum(-1)),
    one("max_dim-negative", (4, 3), lambda dy, x: dy.max_dim(x, -1), lambda x: x.max(-1)),
]
