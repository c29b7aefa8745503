"""Parts of expressions at indices that are values of the graph."""

from __future__ import annotations

import numpy as np
from case import Case, many, name_of, one, whole
from cases_select import added, slices_added


def position_of(x):
    """An index from the values of x: so each batch element has its own."""
    return int(np.argmax(x.reshape(-1, order="F")))


def positions(n: int, shape: tuple[int, ...]):
    """Indices below n, in no order, some of them repeated."""
    return np.arange(np.prod(shape)).reshape(shape) * 7 % n


def taken(name: str, shape, n: int, axis: int, build) -> list[Case]:
    """The same n indices for all batch elements, and for an expression."""
    indices = positions(shape[axis], (n,))
    return [
        one(
            name_of(name, shape, n, axis),
            shape,
            lambda dy, x: build(dy, x, dy.input_indices(indices)),
            lambda x: np.take(x, indices, axis),
        )
    ]


def own(shape, n: int, axis: int) -> list[Case]:
    """`gather`, `scatter_add` and `scatter` with indices for each element, along an axis."""
    sizes = (*shape[:axis], n, *shape[axis + 1 :])
    indices = positions(shape[axis], sizes)
    apart = np.argsort(np.random.default_rng(1).random(shape), axis).take(range(min(n, shape[axis])), axis)
    return [
        one(
            name_of("gather-at", shape, n, axis),
            shape,
            lambda dy, x: dy.gather(x, dy.input_indices(indices), axis),
            lambda x: np.take_along_axis(x, indices, axis),
        ),
        many(
            name_of("scatter_add-at", shape, n, axis),
            [shape, sizes],
            lambda dy, x, s: dy.scatter_add(x, dy.input_indices(indices), s, axis),
            lambda x, s: added(x, indices, s, axis),
        ),
        many(
            name_of("scatter-at", shape, n, axis),
            [shape, apart.shape],
            lambda dy, x, s: dy.scatter(x, dy.input_indices(apart), s, axis),
            lambda x, s: replaced(x, apart, s, axis),
        ),
    ]


def replaced(x, indices, source, axis):
    y = x.copy()
    np.put_along_axis(y, indices, source, axis)
    return y


def moved(shape, n: int, axis: int) -> Case:
    indices = positions(shape[axis], (n,))
    sizes = (*shape[:axis], n, *shape[axis + 1 :])
    return many(
        name_of("index_add-at", shape, n, axis),
        [shape, sizes],
        lambda dy, x, s: dy.index_add(x, dy.input_indices(indices), s, axis),
        lambda x, s: slices_added(x, indices, s, axis),
    )


CASES = [
    *[
        many(
            name_of("pick-at", shape, axis),
            [shape, (shape[axis],)],
            lambda dy, x, s, axis=axis: dy.pick(x, dy.argmax(s), axis),
            lambda x, s, axis=axis: np.atleast_1d(np.take(x, position_of(s), axis)),
            grad=(True, False),
        )
        for shape, axis in [((5,), 0), ((4, 3), 0), ((4, 3), 1), ((2, 3, 4), 1), ((300, 4), 0), ((4, 40), 1)]
    ],
    many(
        "pick_batch-at",
        [(4, 3), (4,)],
        lambda dy, x, s: dy.pick_batch(x, dy.argmax(s)),
        lambda x, s: x[position_of(s)],
        grad=(True, False),
    ),
    whole(
        "pick_batch-vector-at",
        (4, 3),
        lambda dy, x: dy.pick_batch(x, dy.input_indices([2, 0, 2])),
        lambda x: np.stack([np.broadcast_to(x, (4, 3, 3))[i, :, b] for b, i in enumerate([2, 0, 2])], -1),
    ),
    many(
        "pick_range-at",
        [(6, 3), (4,)],
        lambda dy, x, s: dy.pick_range(x, dy.argmax(s), length=3),
        lambda x, s: x[position_of(s) : position_of(s) + 3],
        grad=(True, False),
    ),
    many(
        "index-at",
        [(4, 3), (4,)],
        lambda dy, x, s: x[dy.argmin(s)],
        lambda x, s: x[position_of(-s)],
        grad=(True, False),
    ),
    *[
        many(
            name_of("index-at-beside", shape, number),
            [shape, (shape[0],)],
            lambda dy, x, s, key=key: x[key(dy.argmax(s), dy.input_indices(1))],
            lambda x, s, key=key: np.atleast_1d(x[key(position_of(s), 1)]),
            grad=(True, False),
        )
        for number, (shape, key) in enumerate(
            [
                ((4, 3), lambda i, j: (i, 2)),
                ((4, 3), lambda i, j: (i, j)),
                ((4, 3), lambda i, j: (i, slice(1, None))),
                ((3, 4, 3), lambda i, j: (i, 1, j)),
                ((3, 4, 3), lambda i, j: (2, i, slice(None, None, 2))),
                ((3, 4, 3), lambda i, j: (j, ..., i)),
            ]
        )
    ],
    *taken("index-at", (4, 3), 6, 0, lambda dy, x, i: x[i]),
    *taken("index-at", (4, 3), 5, 1, lambda dy, x, i: x[:, i]),
    *taken("index-at", (2, 3, 4), 5, 2, lambda dy, x, i: x[:, :, i]),
    *taken("select_rows-at", (4, 3), 6, 0, lambda dy, x, i: dy.select_rows(x, i)),
    *taken("select_rows-at", (5,), 1, 0, lambda dy, x, i: dy.select_rows(x, i)),
    *taken("select_cols-at", (4, 3), 2, 1, lambda dy, x, i: dy.select_cols(x, i)),
    *own((4, 3), 6, 0),
    *own((4, 3), 2, 1),
    *own((2, 3, 4), 3, 1),
    *own((5,), 3, 0),
    moved((4, 3), 6, 0),
    moved((4, 3), 2, 1),
    moved((2, 3, 4), 5, 2),
    *[
        one(
            name_of(f"scatter_{what}-at", axis),
            (4, 3),
            lambda dy, x, axis=axis: (dy.scatter_cols if axis else dy.scatter_rows)(
                x, dy.input_indices(positions(6, (x.shape[axis],))), 6
            ),
            lambda x, axis=axis: slices_added(
                np.zeros([6 if a == axis else n for a, n in enumerate(x.shape)]),
                positions(6, (x.shape[axis],)),
                x,
                axis,
            ),
        )
        for axis, what in enumerate(("rows", "cols"))
    ],
    many(
        "scatter_rows-at-own",
        [(2, 3), (5, 2)],
        lambda dy, x, s: dy.scatter_rows(x, dy.argmax(s), 5),
        lambda x, s: slices_added(np.zeros((5, 3)), s.argmax(0), x, 0),
        grad=(True, False),
    ),
]
