"""Reductions."""

from __future__ import annotations

import math

import numpy as np
from case import name_of, one, one_batch, whole


def logsumexp(x, d: int):
    return np.log(np.exp(x).sum(d))


def one_hot(x):
    y = np.zeros(x.shape)
    y[x.argmax()] = 1
    return y


def p_norm(x, p, axis=None, keepdims=False):
    over = tuple(range(x.ndim)) if axis is None else axis
    a = np.abs(x)
    y = a.max(over, keepdims=keepdims) if math.isinf(p) else (a**p).sum(over, keepdims=keepdims) ** (1 / p)
    return np.atleast_1d(y)


SHAPES = [(), (1,), (5,), (4, 3), (33, 2), (2, 3, 4), (1, 3, 1, 2), (2, 2, 2, 2, 2, 2, 2)]

AXES = [((5,), [0]), ((4, 3), [0]), ((4, 3), [1]), ((4, 3), [1, 0]), ((2, 3, 4), [1]), ((2, 3, 4), [0, 2])]

AXES += [((2, 3, 4), [1, 2]), ((2, 3, 4), [2, 1, 0]), ((3, 1, 2), [1]), ((33, 5), [0]), ((2, 3, 2, 2), [1, 3])]

ALONG = [((5,), 0), ((4, 3), 0), ((4, 3), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((17, 9), 1)]

ELEMS = {
    "sum_elems": np.sum,
    "mean_elems": np.mean,
    "std_elems": np.std,
    "squared_norm": lambda x: (x**2).sum(),
    "l2_norm": lambda x: np.sqrt((x**2).sum()),
}

CASES = [
    *[
        one(
            name_of(name, s),
            s,
            lambda dy, x, name=name: getattr(dy, name)(x),
            lambda x, f=f: np.reshape(f(x), 1),
            long=name.endswith("norm") and s == (5,),
        )
        for name, f in ELEMS.items()
        for s in SHAPES
        if name != "std_elems" or np.prod(s) > 1
    ],
    *[
        one(
            name_of("moment_elems", r),
            (4, 3),
            lambda dy, x, r=r: dy.moment_elems(x, r),
            lambda x, r=r: np.reshape((x**r).mean(), 1),
        )
        for r in (1, 2, 3, 4, 5)
    ],
    *[
        case
        for s, d in AXES
        for case in [
            one(name_of("sum_dim", s, d), s, lambda dy, x, d=d: dy.sum_dim(x, d), lambda x, d=d: x.sum(tuple(d))),
            one(name_of("mean_dim", s, d), s, lambda dy, x, d=d: dy.mean_dim(x, d), lambda x, d=d: x.mean(tuple(d))),
            one(
                name_of("mean_dim-n", s, d),
                s,
                lambda dy, x, d=d: dy.mean_dim(x, d, False, 7),
                lambda x, d=d: x.sum(tuple(d)) / 7,
            ),
            one(
                name_of("moment_dim", s, d),
                s,
                lambda dy, x, d=d: dy.moment_dim(x, d, 3),
                lambda x, d=d: (x**3).mean(tuple(d)),
            ),
            whole(
                name_of("sum_dim-batch", s, d),
                s,
                lambda dy, x, d=d: dy.sum_dim(x, d, True),
                one_batch(lambda x, d=d: x.sum((*d, -1))),
            ),
            whole(
                name_of("moment_dim-batch-n", s, d),
                s,
                lambda dy, x, d=d: dy.moment_dim(x, d, 2, b=True, n=5),
                one_batch(lambda x, d=d: (x**2).sum((*d, -1)) / 5),
            ),
        ]
    ],
    *[
        case
        for s, d in AXES
        if np.prod([s[i] for i in d]) > 1
        for case in [
            one(name_of("std_dim", s, d), s, lambda dy, x, d=d: dy.std_dim(x, d), lambda x, d=d: x.std(tuple(d))),
            whole(
                name_of("std_dim-batch", s, d),
                s,
                lambda dy, x, d=d: dy.std_dim(x, d, True),
                one_batch(lambda x, d=d: x.std((*d, -1))),
            ),
        ]
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
    one("sum_dim-number", (4, 3), lambda dy, x: dy.sum_dim(x, 1), lambda x: x.sum(1)),
    one("sum_dim-numpy", (4, 3), lambda dy, x: dy.sum_dim(x, [np.int64(1)]), lambda x: x.sum(1)),
    *[
        case
        for s in [(), (5,), (4, 3), (33, 2)]
        for case in [
            whole(name_of("sum_batches", s), s, lambda dy, x: dy.sum_batches(x), one_batch(lambda x: x.sum(-1))),
            whole(name_of("mean_batches", s), s, lambda dy, x: dy.mean_batches(x), one_batch(lambda x: x.mean(-1))),
            whole(
                name_of("moment_batches", s),
                s,
                lambda dy, x: dy.moment_batches(x, 3),
                one_batch(lambda x: (x**3).mean(-1)),
            ),
            whole(
                name_of("std_batches", s),
                s,
                lambda dy, x: dy.std_batches(x),
                one_batch(lambda x: x.std(-1)),
                batches=[(2,), (3,)],
            ),
        ]
    ],
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
    # The gradient of these is not the slope of their value; nobackprop makes up for the difference.
    one("argmax", (7,), lambda dy, x: dy.argmax(x, "zero_gradient") + x, lambda x: one_hot(x) + x),
    one(
        "argmax_straight_through",
        (7,),
        lambda dy, x: dy.argmax(x, "straight_through_gradient") + dy.nobackprop(x),
        lambda x: one_hot(x) + x,
    ),
    one("cumsum-negative", (4, 3), lambda dy, x: dy.cumsum(x, -1), lambda x: x.cumsum(-1)),
    one("max_dim-negative", (4, 3), lambda dy, x: dy.max_dim(x, -1), lambda x: x.max(-1)),
    one("sum_dim-negative", (4, 3, 2), lambda dy, x: dy.sum_dim(x, [-1, 0]), lambda x: x.sum((0, 2))),
]
