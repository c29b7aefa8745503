"""Reductions composed of ops."""

from __future__ import annotations

import numpy as np
from case import one

# Each row has a zero.
ZEROS = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1]])

CASES = [
    *[
        one(
            f"prod-{axis}-{keep}",
            (4, 3, 2),
            lambda dy, x, a=axis, k=keep: dy.prod(x, a, k),
            lambda x, a=axis, k=keep: np.atleast_1d(x.prod(a, keepdims=k)),
            low=-2.0,
            high=2.0,
        )
        for axis in (None, 0, 1, -1, (0, 2))
        for keep in (False, True)
    ],
    one("prod-vector", (5,), lambda dy, x: dy.prod(x), lambda x: np.atleast_1d(x.prod())),
    one(
        "prod-zeros",
        (4, 3),
        lambda dy, x: dy.prod(dy.cmult(x, dy.inputTensor(ZEROS)), 1),
        lambda x: (x * ZEROS).prod(1),
    ),
    one(
        "prod-zeros-columns",
        (4, 3),
        lambda dy, x: dy.prod(dy.cmult(x, dy.inputTensor(ZEROS)), 0),
        lambda x: (x * ZEROS).prod(0),
    ),
]
