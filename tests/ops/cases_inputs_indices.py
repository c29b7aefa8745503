"""Indices in brackets: numbers, slices, lists, arrays, masks, new axes."""

from __future__ import annotations

import numpy as np
from case import Case, one, one_batch, whole


def index(case: str, shape, key, **more) -> Case:
    """The same key for an expression and an array."""
    return one(case, shape, lambda dy, x: x[key], lambda x: np.atleast_1d(x[key]), **more)


T = (4, 3, 5)

KEYS = {
    "list": [0, 2, 2],
    "list-negative": [-1, 0],
    "list-second": (slice(None), [2, 0]),
    "list-after-number": (1, [2, 0]),
    "list-and-slice": (slice(1, 4, 2), [2, 1], slice(None, None, -2)),
    "places": ([0, 3, 0], [1, 2, 1]),
    "places-all": ([0, 3], [1, 2], [4, 0]),
    "table": (slice(None), np.array([[0, 1], [2, 0]])),
    "mask": np.array([True, False, True, True]),
    "mask-list": (slice(None), [True, False, True]),
    "mask-two": (slice(None), np.arange(15).reshape(3, 5) % 4 == 1),
    "mask-all": np.arange(60).reshape(4, 3, 5) % 7 == 2,
    "new": (None, 1),
    "new-last": (..., None),
    "new-between": (slice(None), None, [1, 0], None),
    "new-numbers": (1, 2, None, 3),
}

CASES = [
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
    *[index(f"places-{name}", T, key) for name, key in KEYS.items()],
]
