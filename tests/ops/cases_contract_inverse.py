"""Rows of the op table: contractions, circular convolutions, inverses, bounded softmax, sums of columns."""

from __future__ import annotations

import numpy as np
from case import Case

T, Y, Z, B, M = (2, 3, 4), (4,), (3,), (2,), (2, 3)

CONTRACTIONS = [
    Case(
        "contract3d_1d",
        [T, Y],
        lambda dy, xs: dy.contract3d_1d(*xs),
        lambda xs: np.einsum("ijk,k->ij", *xs),
    ),
    Case(
        "contract3d_1d-matrix",
        [(3, 4), (1,)],
        lambda dy, xs: dy.contract3d_1d(*xs),
        lambda xs: xs[0] * xs[1],
    ),
    Case(
        "contract3d_1d_bias",
        [T, Y, M],
        lambda dy, xs: dy.contract3d_1d_bias(*xs),
        lambda xs: np.einsum("ijk,k->ij", *xs[:2]) + xs[2],
    ),
    Case(
        "contract3d_1d_1d",
        [T, Y, Z],
        lambda dy, xs: dy.contract3d_1d_1d(*xs),
        lambda xs: np.einsum("ijk,k,j->i", *xs),
    ),
    Case(
        "contract3d_1d_1d_bias",
        [T, Y, Z, B],
        lambda dy, xs: dy.contract3d_1d_1d_bias(*xs),
        lambda xs: np.einsum("ijk,k,j->i", *xs[:3]) + xs[3],
    ),
]


def circular(u, v, sign):
    """Sum of u_i v_j over all i and j with j = k - i, or k + i, modulo n."""
    n = len(u)
    return np.array([sum(u[i] * v[(k + sign * i) % n] for i in range(n)) for k in range(n)])


CIRCULAR = [
    Case(
        f"{name}-{n}",
        [(n,), (n,)],
        lambda dy, xs, name=name: getattr(dy, name)(*xs),
        lambda xs, sign=sign: circular(*xs, sign),
    )
    for name, sign in [("circ_conv", -1), ("circ_corr", 1)]
    for n in (1, 2, 7, 33)
]


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
    # Rows that change places: the factors need pivots.
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


def bounded(x, u):
    """Constrained softmax by bisection: p_i = min(u_i, e^(x_i - t)) with the t that makes the sum 1."""
    if u.sum() <= 1:
        return u
    low, high = x.min() - 50, x.max() + 50
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if np.minimum(u, np.exp(x - t)).sum() > 1 else (low, t)
    return np.minimum(u, np.exp(x - high))


CONSTRAINED = [
    Case(
        f"constrained_softmax-{name}",
        [(6,), (6,)],
        lambda dy, xs: dy.constrained_softmax(*xs),
        lambda xs: bounded(*xs),
        (-2.0, low),
        (2.0, high),
    )
    for name, low, high in [("free", 1.0, 1.5), ("some", 0.2, 0.4), ("many", 0.17, 0.22), ("none-left", 0.05, 0.1)]
]

NGRAMS = [
    Case(
        f"kmh_ngram-{n}-of-{cols}",
        [(3, cols)],
        lambda dy, xs, n=n: dy.kmh_ngram(xs[0], n),
        lambda xs, n=n, cols=cols: np.stack([xs[0][:, j : j + n].sum(1) for j in range(cols - n + 1)], 1),
    )
    for n, cols in [(1, 1), (1, 4), (2, 6), (3, 6), (6, 6)]
]

CASES = [*CONTRACTIONS, *CIRCULAR, *INVERSES, *CONSTRAINED, *NGRAMS]
