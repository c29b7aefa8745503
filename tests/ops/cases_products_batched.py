"""Products with @, also of tensors with three and more axes."""

from __future__ import annotations

import numpy as np
from case import many, name_of, one

MATRIX = np.arange(12.0).reshape(4, 3) % 2

CASES = [
    many(
        name_of("batched_matmul", a, b),
        [a, b],
        lambda dy, x, y: x @ y,
        lambda x, y: (
            np.einsum(
                "ij...,jk...->ik...", x.reshape(x.shape + (1,) * (5 - x.ndim)), y.reshape(y.shape + (1,) * (5 - y.ndim))
            )
            if x.ndim > 1 and y.ndim > 1
            else np.atleast_1d(np.tensordot(x, y, 1))
        ),
    )
    for a, b in [
        ((4, 3, 5), (3, 2, 5)),
        ((4, 3, 5), (3, 2)),
        ((4, 3, 1), (3, 2, 5)),
        ((4, 3, 2, 3), (3, 2, 1, 3)),
        ((2, 3, 1, 2), (3, 4, 3, 1)),
        ((17, 9, 4), (9, 33, 4)),
    ]
]

CASES += [
    many(name_of("product", a, b), [a, b], lambda dy, x, y: x @ y, f)
    for a, b, f in [
        ((4, 3), (3, 2), lambda x, y: x @ y),
        ((4, 3), (3,), lambda x, y: x @ y),
        ((3,), (3, 2), lambda x, y: x @ y),
        ((3,), (3,), lambda x, y: np.atleast_1d(x @ y)),
        ((4, 3), (3, 2, 5), lambda x, y: np.tensordot(x, y, 1)),
        ((3,), (3, 2, 5), lambda x, y: np.tensordot(x, y, 1)),
        ((4, 3, 5), (3,), lambda x, y: np.tensordot(y, x, (0, 1))),
    ]
]

CASES += [
    one("product-array", (3, 2), lambda dy, x: MATRIX @ x, lambda x: MATRIX @ x),
    one("product-array-right", (2, 4), lambda dy, x: x @ MATRIX, lambda x: x @ MATRIX),
    one("mul-array", (3, 2), lambda dy, x: MATRIX * x, lambda x: MATRIX @ x),
]
