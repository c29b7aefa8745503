"""Reductions."""

from __future__ import annotations

import numpy as np
from case import name_of, one, one_batch, whole

SHAPES = [(), (1,), (5,), (4, 3), (33, 2), (2, 3, 4), (1, 3, 1, 2), (2, 2, 2, 2, 2, 2, 2)]

AXES = [((5,), [0]), ((4, 3), [0]), ((4, 3), [1]), ((4, 3), [1, 0]), ((2, 3, 4), [1]), ((2, 3, 4), [0, 2])]

AXES += [((2, 3, 4), [1, 2]), ((2, 3, 4), [2, 1, 0]), ((3, 1, 2), [1]), ((33, 5), [0]), ((2, 3, 2, 2), [1, 3])]

ELEMS = {
    "sum_elems": np.sum,
    "mean_elems": np.mean,
    "std_elems": np.std,
}

CASES = [
    *[
        one(
            name_of(name, s),
            s,
            lambda dy, x, name=name: getattr(dy, name)(x),
            lambda x, f=f: np.reshape(f(x), 1),
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
    one("sum_dim-negative", (4, 3, 2), lambda dy, x: dy.sum_dim(x, [-1, 0]), lambda x: x.sum((0, 2))),
]
