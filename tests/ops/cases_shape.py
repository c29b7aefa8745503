"""Shapes, transposition and concatenation; ops that change gradients."""

from __future__ import annotations

import numpy as np
from case import Case, many, name_of, one, one_batch, whole


def fold(x, n: int):
    """Sums of every n consecutive rows."""
    x = x.reshape(len(x), -1)
    return x.reshape(len(x) // n, n, -1).sum(1)


def flat(x):
    return x.ravel(order="F")


def as_shape(x, shape):
    return x.reshape(shape, order="F")


def side_by_side(xs, d: int):
    """Concatenation along an axis that the arrays need not have."""
    n = max(d + 1, *(x.ndim for x in xs))
    return np.concatenate([x.reshape(x.shape + (1,) * (n - x.ndim)) for x in xs], d)


CASES = [
    *[
        one(
            name_of("reshape", a, b),
            a,
            lambda dy, x, b=b: dy.reshape(x, b),
            lambda x, b=b: as_shape(x, b),
        )
        for a, b in [((4, 3), (3, 4)), ((4, 3), (12,)), ((12,), (2, 3, 2)), ((1,), ()), ((), (1, 1)), ((2, 3), (6, 1))]
    ],
    one("reshape-number", (4, 3), lambda dy, x: dy.reshape(x, 12), flat),
    one("reshape-list", (4, 3), lambda dy, x: dy.reshape(x, [np.int32(6), 2]), lambda x: as_shape(x, (6, 2))),
    whole("reshape-to-batch", (4, 3), lambda dy, x: dy.reshape(x, (2, 2), 3), lambda x: as_shape(x, (2, 2, 3)), [(1,)]),
    whole(
        "reshape-batch",
        (4, 2),
        lambda dy, x: dy.mean_batches(dy.reshape(x, (2,), 4 * x.dim()[1])),
        one_batch(lambda x: as_shape(x, (2, -1)).mean(-1)),
    ),
    whole("reshape-from-batch", (4, 2), lambda dy, x: dy.reshape(x, (8 * x.dim()[1],)), lambda x: flat(x)[:, None]),
    whole(
        "reshape-same-batch", (4,), lambda dy, x: dy.reshape(x, (2, 2), x.dim()[1]), lambda x: as_shape(x, (2, 2, -1))
    ),
    *[
        one(name_of("transpose", s), s, lambda dy, x: dy.transpose(x), lambda x: x.reshape(len(x), -1).T)
        for s in [(4, 3), (5,), (1, 4), (4, 1), (33, 18), (16, 16), (3, 1, 1), (1, 3, 1), (4, 3, 1)]
    ],
    *[
        one(
            name_of("transpose", s, d),
            s,
            lambda dy, x, d=d: dy.transpose(x, d),
            lambda x, d=d: x.transpose(d),
        )
        for s, d in [
            ((4, 3), [0, 1]),
            ((5,), [0]),
            ((2, 3, 4), [2, 0, 1]),
            ((2, 3, 4), [1, 0, 2]),
            ((2, 3, 4), [0, 2, 1]),
            ((2, 3, 4), [2, 1, 0]),
            ((3, 1, 4), [2, 1, 0]),
            ((2, 3, 2, 3), [3, 1, 0, 2]),
            ((2, 3, 2, 3), [2, 3, 0, 1]),
        ]
    ],
    *[
        Case(
            name_of("concatenate", d, *shapes),
            shapes,
            lambda dy, xs, d=d: dy.concatenate(xs, d),
            lambda xs, d=d: side_by_side(xs, d),
        )
        for d, shapes in [
            (0, [(3,), (2,)]),
            (0, [(1,), (1,), (1,)]),
            (0, [(3, 2), (1, 2)]),
            (0, [(3, 1), (2,)]),
            (1, [(3, 2), (3,), (3, 4)]),
            (1, [(3,), (3,)]),
            (2, [(3, 2), (3, 2)]),
            (2, [(2, 3, 1), (2, 3, 4)]),
            (1, [(2, 3, 2), (2, 1, 2)]),
            (0, [(2, 3, 2), (1, 3, 2)]),
            (0, [(4,), (4,)]),
        ]
    ],
    one("concatenate-one", (3, 2), lambda dy, x: dy.concatenate([x]), lambda x: x),
    Case(
        "concatenate-many",
        [(3,)] * 11,
        lambda dy, xs: dy.concatenate(xs),
        lambda xs: np.concatenate(xs),
        batches=[(1,) * 11, (3,) * 11, (1, 3) * 5 + (1,)],
    ),
    Case(
        "concatenate_cols",
        [(3,), (3, 2)],
        lambda dy, xs: dy.concatenate_cols(xs),
        lambda xs: np.concatenate([xs[0][:, None], xs[1]], 1),
    ),
    *[
        Case(
            name_of("concatenate_to_batch", s),
            [s, s, s],
            lambda dy, xs: dy.concatenate_to_batch(xs),
            lambda xs: np.concatenate(xs, -1),
            batches=[(1, 1, 1), (3, 1, 2), (2, 2, 2)],
            whole_batch=True,
        )
        for s in [(), (5,), (4, 3)]
    ],
    one("fold_rows", (6, 3), lambda dy, x: dy.fold_rows(x), lambda x: fold(x, 2)),
    one("fold_rows-3", (6, 3), lambda dy, x: dy.fold_rows(x, nrows=3), lambda x: fold(x, 3)),
    one("fold_rows-vector", (6,), lambda dy, x: dy.fold_rows(x, 2), lambda x: fold(x, 2)),
    one("flip_gradient", (4, 3), lambda dy, x: dy.flip_gradient(x) - 2 * dy.nobackprop(x), lambda x: -x),
    one("scale_gradient-3", (4, 3), lambda dy, x: dy.scale_gradient(x, 3) + 2 * dy.nobackprop(x), lambda x: 3 * x),
    one("flip_gradient-twice", (4, 3), lambda dy, x: dy.flip_gradient(dy.flip_gradient(x)), lambda x: x),
    one("scale_gradient", (4, 3), lambda dy, x: dy.scale_gradient(x), lambda x: x),
    one(
        "scale_gradient-back",
        (4, 3),
        lambda dy, x: dy.scale_gradient(dy.scale_gradient(x, 4.0), lambd=0.25),
        lambda x: x,
    ),
    one("transpose-negative", (4, 3, 2), lambda dy, x: dy.transpose(x, (-1, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    many(
        "concatenate-negative",
        [(4, 3), (4, 2)],
        lambda dy, a, b: dy.concatenate([a, b], -1),
        lambda a, b: np.concatenate([a, b], 1),
    ),
]
