"""Picks, ranges, rows and columns."""

from __future__ import annotations

import numpy as np
from case import name_of, one, one_batch, whole

PICKS = [((5,), 3, 0), ((4, 3), 1, 0), ((4, 3), 2, 1), ((2, 3, 4), 1, 0), ((2, 3, 4), 2, 1), ((2, 3, 4), 3, 2)]

PICKS += [((40, 20), 7, 0), ((40, 20), 7, 1), ((600,), 599, 0)]  # large ones batch by another rule

RANGES = [((5,), 1, 4, 0), ((4, 3), 0, 2, 0), ((4, 3), 1, 3, 1), ((2, 3, 4), 1, 2, 2), ((2, 3, 4), 0, 2, 1)]

RANGES += [((40, 20), 3, 33, 0), ((40, 20), 3, 13, 1), ((4, 3), 0, 4, 0)]


def numbered(x, indices, d: int):
    """From each batch element, the part at its own index along an axis; x without a batch is used for all."""
    parts = [np.take(x[..., b if x.shape[-1] > 1 else 0], i, d) for b, i in enumerate(indices)]
    return np.stack([np.atleast_1d(p) for p in parts], -1)


def added(x, indices, source, axis):
    y = x.copy()
    places = list(np.indices(indices.shape))
    places[axis] = indices
    np.add.at(y, tuple(places), source)
    return y


def slices_added(x, indices, source, axis):
    y = x.copy()
    np.add.at(y, (slice(None),) * axis + (np.array(indices),), source)
    return y


CASES = [
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
    one("pick-negative", (4, 3), lambda dy, x: dy.pick(x, 1, -1), lambda x: x[:, 1]),
    one(
        "scatter_rows",
        (4,),
        lambda dy, x: dy.scatter_rows(x, [2, 0, 2, 5], 6),
        lambda x: added(np.zeros(6), np.array([2, 0, 2, 5]), x, 0),
    ),
    one(
        "scatter_rows-3",
        (4, 3, 2),
        lambda dy, x: dy.scatter_rows(x, (2, 0, 2, 1), 5),
        lambda x: slices_added(np.zeros((5, 3, 2)), [2, 0, 2, 1], x, 0),
    ),
    one(
        "scatter_cols",
        (4, 3),
        lambda dy, x: dy.scatter_cols(x, np.array([3, 0, 3]), 5),
        lambda x: slices_added(np.zeros((4, 5)), [3, 0, 3], x, 1),
    ),
    one(
        "scatter_cols-3",
        (4, 3, 2),
        lambda dy, x: dy.scatter_cols(x, [1, 1, 0], 2),
        lambda x: slices_added(np.zeros((4, 2, 2)), [1, 1, 0], x, 1),
    ),
]
