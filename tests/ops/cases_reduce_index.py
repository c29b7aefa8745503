"""Indices of the greatest and the least elements, arithmetic of indices, and masks."""

from __future__ import annotations

import numpy as np
from case import beside_a_sum, name_of, one

SHAPES = [((5,), 0), ((4, 3), 0), ((4, 3), 1), ((2, 3, 4), 1), ((2, 3, 4), 2), ((1,), 0), ((40, 20), 0), ((40, 20), 1)]


def whole(x):
    """Whole numbers from -8 to 8, none of them 0."""
    i = np.floor(np.abs(x) * 8) + 1
    return np.where(x < 0, -i, i)


def as_whole(dy, x):
    return dy.where(x < 0, -dy.floor(dy.abs(x) * 8) - 1, dy.floor(dy.abs(x) * 8) + 1)


CASES = [
    *[
        beside_a_sum(
            name_of("argmax-index", shape, axis),
            [shape],
            lambda dy, x, axis=axis: dy.argmax(x, d=axis),
            lambda x, axis=axis: np.atleast_1d(x.argmax(axis)),
        )
        for shape, axis in SHAPES
    ],
    *[
        beside_a_sum(
            name_of("argmin-index", shape, axis),
            [shape],
            lambda dy, x, axis=axis: dy.argmin(x, axis),
            lambda x, axis=axis: np.atleast_1d(x.argmin(axis)),
        )
        for shape, axis in SHAPES
    ],
    beside_a_sum(
        "floor_divide",
        [(4, 3), (4, 3)],
        lambda dy, a, b: as_whole(dy, a) // as_whole(dy, b),
        lambda a, b: whole(a) // whole(b),
    ),
    beside_a_sum("floor_divide-number", [(4,)], lambda dy, x: as_whole(dy, x) // 3, lambda x: whole(x) // 3),
    beside_a_sum("floor_divide-of-number", [(4,)], lambda dy, x: 7 // as_whole(dy, x), lambda x: 7 // whole(x)),
    beside_a_sum(
        "remainder",
        [(4, 3), (4, 3)],
        lambda dy, a, b: as_whole(dy, a) % as_whole(dy, b),
        lambda a, b: whole(a) % whole(b),
    ),
    beside_a_sum("remainder-number", [(4,)], lambda dy, x: as_whole(dy, x) % 3, lambda x: whole(x) % 3),
    beside_a_sum("remainder-of-number", [(4,)], lambda dy, x: 7 % as_whole(dy, x), lambda x: 7 % whole(x)),
    beside_a_sum("mask-and", [(4, 3), (4, 3)], lambda dy, a, b: (a > 0) & (b < 0.5), lambda a, b: (a > 0) & (b < 0.5)),
    beside_a_sum("mask-or", [(4, 3), (4, 3)], lambda dy, a, b: (a > 0) | (b < 0.5), lambda a, b: (a > 0) | (b < 0.5)),
    beside_a_sum("mask-not", [(4, 3)], lambda dy, x: ~(x > 0), lambda x: ~(x > 0)),
    beside_a_sum(
        "mask-numbers",
        [(4,)],
        lambda dy, x: dy.input_indices([1, 0, 2, 0]) & ((x > 0) | np.array([True, True, False, False])),
        lambda x: (np.array([1, 0, 2, 0]) != 0) & ((x > 0) | np.array([True, True, False, False])),
    ),
    one(
        "where-mask",
        (4, 3),
        lambda dy, x: dy.where((x > 0) & (x < 0.5), x, -x),
        lambda x: np.where((x > 0) & (x < 0.5), x, -x),
    ),
]
