"""Joining, splitting and filling tensors."""

from __future__ import annotations

import numpy as np
from case import many, one
from cases_select import added, slices_added


def put(x, indices, source, axis):
    y = x.copy()
    np.put_along_axis(y, indices, source, axis)
    return y


PLACES = np.array([[0, 3, 1], [2, 3, 0]])  # along axis 0 of {4,3}

COLS = np.array([[2, 0], [1, 1], [0, 2], [2, 2]])  # along axis 1

CASES = [
    *[
        many(
            f"stack-{axis}", [(4, 3)] * 3, lambda dy, *xs, a=axis: dy.stack(xs, a), lambda *xs, a=axis: np.stack(xs, a)
        )
        for axis in (0, 1, 2, -1)
    ],
    one("split", (5, 2), lambda dy, x: dy.concatenate(dy.split(x, 2)[::-1]), lambda x: x[[4, 2, 3, 0, 1]]),
    one("split-sizes", (4, 5), lambda dy, x: dy.split(x, [1, 3, 1], -1)[1], lambda x: x[:, 1:4]),
    one(
        "pad",
        (4, 3),
        lambda dy, x: dy.pad(x, [(1, 0), (2, 1)], 7),
        lambda x: np.pad(x, [(1, 0), (2, 1)], constant_values=7),
    ),
    one("pad-all", (4, 3), lambda dy, x: dy.pad(x, 1), lambda x: np.pad(x, 1)),
    many("outer", [(4,), (3,)], lambda dy, x, y: dy.outer(x, y), np.outer),
    one("eye", (3, 4), lambda dy, x: x + dy.eye(3, 4), lambda x: x + np.eye(3, 4)),
    one("arange-empty", (4,), lambda dy, x: dy.concatenate([x, dy.arange(0, -(2**70), 1)]), lambda x: x),
    one("arange", (4,), lambda dy, x: x + dy.arange(1, 3, 0.5), lambda x: x + np.arange(1, 3, 0.5)),
    one("gather", (4, 3), lambda dy, x: dy.gather(x, PLACES), lambda x: np.take_along_axis(x, PLACES, 0)),
    one("gather-last", (4, 3), lambda dy, x: dy.gather(x, COLS, -1), lambda x: np.take_along_axis(x, COLS, 1)),
    one(
        "gather-batch",
        (4, 3),
        lambda dy, x: dy.gather(x, np.stack([PLACES, PLACES[::-1], PLACES // 2], -1)),
        lambda x: np.take_along_axis(
            np.broadcast_to(x, (4, 3, 3)), np.stack([PLACES, PLACES[::-1], PLACES // 2], -1), 0
        ),
        batches=[(1,), (3,)],
        whole_batch=True,
    ),
    many(
        "scatter_add",
        [(4, 3), (2, 3)],
        lambda dy, x, y: dy.scatter_add(x, PLACES // 2, y),
        lambda x, y: added(x, PLACES // 2, y, 0),
    ),
    *[
        many(
            f"index_add-{axis}",
            [(4, 3, 2), (*(4, 3, 2)[:axis], 3, *(4, 3, 2)[axis + 1 :])],
            lambda dy, x, y, a=axis: dy.index_add(x, [1, 0, 1], y, a),
            lambda x, y, a=axis: slices_added(x, [1, 0, 1], y, a),
        )
        for axis in (0, 1, 2)
    ],
    many(
        "scatter",
        [(4, 3), (2, 3)],
        lambda dy, x, y: dy.scatter(x, np.array([[0, 3, 1], [2, 1, 0]]), y),
        lambda x, y: put(x, np.array([[0, 3, 1], [2, 1, 0]]), y, 0),
    ),
]
