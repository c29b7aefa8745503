"""Inverses and determinants."""

from __future__ import annotations

import numpy as np
from case import Case


def dominant(x):
    """A matrix whose determinant is positive and far from zero."""
    return x + 2 * np.eye(len(x))


def shifted(dy, x):
    return x + dy.inputTensor(2 * np.eye(x.dim()[0][0]))


INVERSES = [
    *[
        Case(
            f"inverse-{n}",
            [(n, n)],
            lambda dy, xs: dy.inverse(shifted(dy, xs[0])),
            lambda xs: np.linalg.inv(dominant(xs[0])),
            -0.5,
            0.5,
        )
        for n in (1, 2, 5)
    ],
    # With permuted rows: the factorization needs pivots.
    Case(
        "inverse-pivots",
        [(3, 3)],
        lambda dy, xs: dy.inverse(dy.select_rows(shifted(dy, xs[0]), [2, 0, 1])),
        lambda xs: np.linalg.inv(dominant(xs[0])[[2, 0, 1]]),
        -0.5,
        0.5,
    ),
    *[
        Case(
            f"logdet-{n}",
            [(n, n)],
            lambda dy, xs: dy.logdet(shifted(dy, xs[0])),
            lambda xs: [np.linalg.slogdet(dominant(xs[0]))[1]],
            -0.5,
            0.5,
        )
        for n in (1, 2, 5)
    ],
    Case(
        "logdet-pivots",
        [(3, 3)],
        lambda dy, xs: dy.logdet(dy.select_rows(shifted(dy, xs[0]), [2, 0, 1])),
        lambda xs: [np.linalg.slogdet(dominant(xs[0])[[2, 0, 1]])[1]],
        -0.5,
        0.5,
    ),
]

CASES = INVERSES
