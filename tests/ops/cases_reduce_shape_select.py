"""Reductions, shapes, and selections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from case import Case


def one(case: str, shape, build: Callable, f: Callable, **more) -> Case:
    """A case of one argument."""
    return Case(case, [shape], lambda dy, xs: build(dy, xs[0]), lambda xs: f(xs[0]), **more)


def whole(case: str, shape, build: Callable, f: Callable, batches=((1,), (3,)), **more) -> Case:
    """A case of one argument whose batch elements depend on each other."""
    return one(case, shape, build, f, batches=list(batches), whole_batch=True, **more)


def one_batch(f: Callable) -> Callable:
    """A reduction over the last axis, which stays as a batch of one."""
    return lambda x: f(x)[..., None]


def fold(x, n: int):
    """Sums of each n rows that follow each other."""
    x = x.reshape(len(x), -1)
    return x.reshape(len(x) // n, n, -1).sum(1)


def logsumexp(x, d: int):
    return np.log(np.exp(x).sum(d))


def flat(x):
    return x.ravel(order="F")


def as_shape(x, shape):
    return x.reshape(shape, order="F")


def greatest(x, k: int, d: int):
    """The k greatest along an axis, in their order there."""
    x = np.moveaxis(x, d, 0)
    places = np.sort(np.argsort(-x, axis=0, kind="stable")[:k], axis=0)
    return np.moveaxis(np.take_along_axis(x, places, 0), 0, d)


def side_by_side(xs, d: int):
    """Concatenation along an axis that arrays need not have yet."""
    n = max(d + 1, *(x.ndim for x in xs))
    return np.concatenate([x.reshape(x.shape + (1,) * (n - x.ndim)) for x in xs], d)


def one_hot(x):
    y = np.zeros(x.shape)
    y[x.argmax()] = 1
    return y


SHAPES = [(), (1,), (5,), (4, 3), (33, 2), (2, 3, 4), (1, 3, 1, 2), (2, 2, 2, 2, 2, 2, 2)]
AXES = [((5,), [0]), ((4, 3), [0]), ((4, 3), [1]), ((4, 3), [1, 0]), ((2, 3, 4), [1]), ((2, 3, 4), [0, 2])]
AXES += [((2, 3, 4), [1, 2]), ((2, 3, 4), [2, 1, 0]), ((3, 1, 2), [1]), ((33, 5), [0]), ((2, 3, 2, 2), [1, 3])]
ALONG = [((5,), 0), ((4, 3), 0), ((4, 3), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((17, 9), 1)]


def name_of(*parts) -> str:
    return "-".join(str(p).replace(" ", "").strip("()[]").replace(",", "x") for p in parts)


ELEMS = {
    "sum_elems": np.sum,
    "mean_elems": np.mean,
    "std_elems": np.std,
    "squared_norm": lambda x: (x**2).sum(),
    "l2_norm": lambda x: np.sqrt((x**2).sum()),
}

REDUCE = [
    *[
        one(name_of(name, s), s, lambda dy, x, name=name: getattr(dy, name)(x), lambda x, f=f: np.reshape(f(x), 1))
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
    # Ops whose gradient is not the slope of their value: nobackprop makes up for the difference.
    one("argmax", (7,), lambda dy, x: dy.argmax(x, "zero_gradient") + x, lambda x: one_hot(x) + x),
    one(
        "argmax_straight_through",
        (7,),
        lambda dy, x: dy.argmax(x, "straight_through_gradient") + dy.nobackprop(x),
        lambda x: one_hot(x) + x,
    ),
]

SHAPE = [
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
]

PICKS = [((5,), 3, 0), ((4, 3), 1, 0), ((4, 3), 2, 1), ((2, 3, 4), 1, 0), ((2, 3, 4), 2, 1), ((2, 3, 4), 3, 2)]
PICKS += [((40, 20), 7, 0), ((40, 20), 7, 1), ((600,), 599, 0)]  # greater ones batch by another rule
RANGES = [((5,), 1, 4, 0), ((4, 3), 0, 2, 0), ((4, 3), 1, 3, 1), ((2, 3, 4), 1, 2, 2), ((2, 3, 4), 0, 2, 1)]
RANGES += [((40, 20), 3, 33, 0), ((40, 20), 3, 13, 1), ((4, 3), 0, 4, 0)]


def numbered(x, indices, d: int):
    """The part with its own index along an axis of each batch element; one element serves for all."""
    parts = [np.take(x[..., b if x.shape[-1] > 1 else 0], i, d) for b, i in enumerate(indices)]
    return np.stack([np.atleast_1d(p) for p in parts], -1)


def index(case: str, shape, key, **more) -> Case:
    """The same key for an expression and an array."""
    return one(case, shape, lambda dy, x: x[key], lambda x: np.atleast_1d(x[key]), **more)


SELECT = [
    *[
        one(
            name_of("pick", s, i, d),
            s,
            lambda dy, x, i=i, d=d: dy.pick(x, i, d),
            lambda x, i=i, d=d: np.atleast_1d(np.take(x, i, d)),
        )
        for s, i, d in PICKS
    ],
    one("pick-default", (4, 3), lambda dy, x: dy.pick(x), lambda x: x[0]),
    one("pick-numpy", (4, 3), lambda dy, x: dy.pick(x, index=np.int64(2), dim=np.uint8(1)), lambda x: x[:, 2]),
    *[
        whole(
            name_of("pick_batch", s, d),
            s,
            lambda dy, x, i=i, d=d: dy.pick_batch(x, i, d),
            lambda x, i=i, d=d: numbered(x, i, d),
        )
        for s, i, d in [
            ((5,), [4, 0, 4], 0),
            ((4, 3), [3, 0, 1], 0),
            ((4, 3), np.array([2, 2, 0]), 1),
            ((40, 20), (1, 2, 39), 0),
        ]
    ],
    *[
        one(
            name_of("pick_range", s, i, j, d),
            s,
            lambda dy, x, i=i, j=j, d=d: dy.pick_range(x, i, j, d),
            lambda x, i=i, j=j, d=d: np.take(x, range(i, j), d),
        )
        for s, i, j, d in RANGES
    ],
    one("pickrange", (4, 3), lambda dy, x: dy.pickrange(x, 1, 3), lambda x: x[1:3]),
    *[
        case
        for s in [(), (5,), (4, 3)]
        for case in [
            whole(
                name_of("pick_batch_elem", s),
                s,
                lambda dy, x: dy.pick_batch_elem(x, x.dim()[1] - 1),
                one_batch(lambda x: x[..., -1]),
            ),
            whole(
                name_of("pick_batch_elems", s),
                s,
                lambda dy, x: dy.pick_batch_elems(x, [x.dim()[1] - 1, 0, 0]),
                lambda x: x[..., [-1, 0, 0]],
            ),
        ]
    ],
    one("select_rows", (4, 3), lambda dy, x: dy.select_rows(x, [2, 0, 2]), lambda x: x[[2, 0, 2]]),
    one("select_rows-numpy", (4, 3), lambda dy, x: dy.select_rows(x, np.array([3])), lambda x: x[[3]]),
    one("select_rows-vector", (5,), lambda dy, x: dy.select_rows(x, [1, 4]), lambda x: x[[1, 4]]),
    one("select_rows-3", (4, 3, 2), lambda dy, x: dy.select_rows(x, (3, 1)), lambda x: x[[3, 1]]),
    one("select_cols", (4, 3), lambda dy, x: dy.select_cols(x, [2, 0, 0, 1]), lambda x: x[:, [2, 0, 0, 1]]),
    one("select_cols-3", (4, 3, 2), lambda dy, x: dy.select_cols(x, [1]), lambda x: x[:, [1]]),
    *[
        one(
            name_of("strided_select", s, step, start, end),
            s,
            lambda dy, x, a=(step, start, end): dy.strided_select(x, *a),
            lambda x, a=(start, end, step): x[tuple(map(slice, *a))],
        )
        for s, step, start, end in [
            ((5,), [2], [0], [5]),
            ((5, 6), [2, 3], [1, 0], [5, 6]),
            ((5, 6), [1, 1], [1, 2], [4, 6]),
            ((5, 6), [2], [1], [4]),
            ((4, 3, 5), [1, 1, 2], [0, 1, 1], [4, 3, 5]),
            ((4, 3, 5), [3, 2, 4], [0, 0, 0], [4, 3, 5]),
        ]
    ],
    one("strided_select-defaults", (5, 6), lambda dy, x: dy.strided_select(x, [2, 2], [1], []), lambda x: x[1::2, ::2]),
    whole(
        "strided_select-batch",
        (5, 6),
        lambda dy, x: dy.sum_batches(dy.strided_select(x, [2, 1, 2], [0, 1, 0], [5, 4, x.dim()[1]])),
        one_batch(lambda x: x[::2, 1:4, ::2].sum(-1)),
    ),
    *[
        one(
            name_of("kmax_pooling", s, k, d),
            s,
            lambda dy, x, k=k, d=d: dy.kmax_pooling(x, k, d),
            lambda x, k=k, d=d: greatest(x, k, d),
        )
        for s, k, d in [
            ((3, 7), 2, 1),
            ((3, 7), 7, 1),
            ((7, 3), 3, 0),
            ((6,), 2, 0),
            ((2, 5, 3), 3, 1),
            ((2, 3, 5), 1, 2),
        ]
    ],
    one("input-one_hot", (4,), lambda dy, x: x + dy.one_hot(4, 2), lambda x: x + np.eye(4)[2]),
    whole(
        "input-one_hot-batch",
        (4,),
        lambda dy, x: x + dy.one_hot(4, [2, 0, np.int64(3)]),
        lambda x: x + np.eye(4)[:, [2, 0, 3]],
    ),
    index("index", (4, 3), 2),
    index("index-last", (4, 3), -1),
    index("index-numpy", (4, 3), np.int64(1)),
    index("index-vector", (5,), -2),
    index("index-slice", (4, 3), slice(1, 3)),
    index("index-slice-end", (4, 3), slice(None, -1)),
    index("index-slice-step", (5, 3), slice(None, None, 2)),
    index("index-slice-back", (5, 3), slice(None, None, -1)),
    index("index-slices", (5, 4), (slice(1, 4), slice(0, 2))),
    index("index-slice-cols", (5, 4), (slice(None), slice(1, 3))),
    index("index-steps", (5, 4, 3), (slice(4, 0, -2), slice(None), slice(None, None, 2))),
    index("index-numbers", (5, 4), (1, -1)),
    index("index-column", (5, 4), (slice(None), 2)),
    index("index-mixed", (5, 4, 3), (slice(1, None), 2, slice(None, None, -1))),
    index("index-ellipsis", (5, 4, 3), (..., 1)),
    whole(
        "index-batch",
        (5, 4),
        lambda dy, x: dy.sum_batches(x[1:, :, ::2]),
        one_batch(lambda x: x[1:, :, ::2].sum(-1)),
    ),
]

CASES = [*REDUCE, *SHAPE, *SELECT]
