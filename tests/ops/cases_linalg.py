"""Products of matrices and sums of products."""

from __future__ import annotations

import numpy as np
from case import Case, shapes_id


def product(a, b):
    """Matrix product; a vector on the left is a matrix of one column."""
    return (
        (a if a.ndim == 2 else a[:, None]) @ b if b.ndim == 2 else np.atleast_1d((a if a.ndim == 2 else a[:, None]) @ b)
    )


def affine(xs):
    """b + W1 x1 + W2 x2 + ...; a vector b is added to all columns."""
    b, *rest = (x.reshape(x.shape[:2]) if x.ndim > 2 else x for x in xs)
    y = sum((product(w, x[:, 0] if x.shape[1:] == (1,) else x) for w, x in zip(rest[::2], rest[1::2])), start=0.0)
    b = b[:, 0] if np.ndim(y) == 1 and b.ndim == 2 else b
    return y + (b[:, None] if np.ndim(y) == 2 and b.ndim == 1 else b)


PRODUCTS = [
    *[
        Case(f"matmul-{shapes_id(s)}", s, lambda dy, xs: xs[0] * xs[1], lambda xs: product(*xs))
        for s in [
            [(4, 3), (3,)],
            [(4, 3), (3, 2)],
            [(4,), (1, 3)],
            [(1, 4), (4,)],
            [(1, 1), (1,)],
            [(4,), (1,)],
            [(33, 17), (17, 9)],
            [(5, 64), (64,)],
        ]
    ],
    *[
        Case(f"affine_transform-{shapes_id(s)}", s, lambda dy, xs: dy.affine_transform(xs), affine)
        for s in [
            [(4,)],
            [(4,), (4, 3), (3,)],
            [(4,), (4, 3), (3,), (4, 2), (2,)],
            [(4,), (4, 3), (3, 2)],
            [(4, 2), (4, 3), (3, 2), (4, 5), (5, 2)],
            [(2,), (2, 3), (3,), (2, 3), (3,), (2, 3), (3,), (2, 3), (3,), (2, 3), (3,)],
            [(4,), (4, 3), (3, 1, 1)],
            [(4, 1, 1), (4, 3), (3,)],
            [(4, 2, 1), (4, 3), (3, 2, 1)],
        ]
    ],
    # Some terms have a batch, others do not.
    *[
        Case(f"affine_transform-terms-{shapes_id(s)}", s, lambda dy, xs: dy.affine_transform(xs), affine, batches=sizes)
        for sizes in [[(1, 1, 1, 1, 3), (1, 1, 1, 3, 1), (1, 3, 1, 1, 1), (1, 1, 3, 1, 1), (3, 1, 1, 1, 1)]]
        for s in [[(4,), (4, 3), (3,), (4, 2), (2,)], [(4,), (4, 3), (3, 2), (4, 5), (5, 2)]]
    ],
    *[
        Case(
            f"trace_of_product-{shapes_id([s])}",
            [s, s],
            lambda dy, xs: dy.trace_of_product(*xs),
            lambda xs: np.trace(np.atleast_2d(xs[0].T).T @ np.atleast_2d(xs[1].T)),
        )
        for s in [(3, 3), (4, 2), (5,)]
    ],
    Case("dot_product", [(5,), (5,)], lambda dy, xs: dy.dot_product(*xs), lambda xs: xs[0] @ xs[1]),
    Case(
        "dot_product-matrices",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.dot_product(*xs),
        lambda xs: (xs[0] * xs[1]).sum(),
    ),
    Case(
        "dot_product-shapes",
        [(4, 3), (12,)],
        lambda dy, xs: dy.dot_product(*xs),
        lambda xs: xs[0].ravel(order="F") @ xs[1],
    ),
]

CASES = PRODUCTS
