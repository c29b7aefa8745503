"""Norms."""

from __future__ import annotations

import math

import numpy as np
from case import name_of, one


def p_norm(x, p, axis=None, keepdims=False):
    over = tuple(range(x.ndim)) if axis is None else axis
    a = np.abs(x)
    y = a.max(over, keepdims=keepdims) if math.isinf(p) else (a**p).sum(over, keepdims=keepdims) ** (1 / p)
    return np.atleast_1d(y)


SHAPES = [(), (1,), (5,), (4, 3), (33, 2), (2, 3, 4), (1, 3, 1, 2), (2, 2, 2, 2, 2, 2, 2)]

CASES = [
    *[
        one(
            name_of(name, s),
            s,
            lambda dy, x, name=name: getattr(dy, name)(x),
            lambda x, f=f: np.reshape(f(x), 1),
            long=s == (5,),
        )
        for name, f in [("squared_norm", lambda x: (x**2).sum()), ("l2_norm", lambda x: np.sqrt((x**2).sum()))]
        for s in SHAPES
    ],
    *[
        one(
            name_of("norm", p, s, d),
            s,
            lambda dy, x, p=p, d=d: dy.norm(x, p, d),
            lambda x, p=p, d=d: p_norm(x, p, d),
            long=s == (5,),
        )
        for p in (1, 2, 3, 2.5, math.inf)
        for s, d in [((5,), None), ((4, 3), None), ((4, 3), 0), ((4, 3), -1), ((2, 3, 4), (0, 2)), ((2, 3, 4), 1)]
    ],
    one("norm-keep", (4, 3), lambda dy, x: dy.norm(x, 2, (0, 1), True), lambda x: p_norm(x, 2, (0, 1), True)),
    *[
        one(
            name_of("norm-far", p, scale),
            (4, 3),
            lambda dy, x, p=p, scale=scale: dy.norm(x * scale, p, 0) / scale,
            lambda x, p=p: p_norm(x, p, 0),
        )
        for p in (1, 1.5, 3, 2.5, math.inf)
        for scale in (1e-25, 1e25)
    ],
]
