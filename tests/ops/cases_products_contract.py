"""Contractions and circular convolutions."""

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

CASES = [*CONTRACTIONS, *CIRCULAR]
