"""Sums of products over named axes."""

from __future__ import annotations

import numpy as np
from case import many

EINSUMS = [
    many(
        f"einsum-{spec}",
        shapes,
        lambda dy, *xs, s=spec: dy.einsum(s, *xs),
        lambda *xs, s=spec: np.atleast_1d(np.einsum(s, *xs)),
    )
    for spec, shapes in [
        ("ij,jk->ik", [(4, 3), (3, 2)]),
        ("ij,kj->ik", [(4, 3), (2, 3)]),
        ("ij,ij->", [(4, 3), (4, 3)]),
        ("ii->", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("ij->j", [(4, 3)]),
        ("ijk->kij", [(4, 3, 2)]),
        ("i,j->ij", [(4,), (3,)]),
        ("i,ijk,k->j", [(4,), (4, 3, 2), (2,)]),
        ("dhn,dhm->nmh", [(3, 2, 4), (3, 2, 5)]),
        ("nmh,dhn->dhm", [(4, 5, 2), (3, 2, 4)]),
        ("kil,kjl->ijl", [(3, 4, 2), (3, 5, 2)]),
        ("hij,hjk->hik", [(2, 4, 3), (2, 3, 5)]),
        ("ij,jk", [(4, 3), (3, 2)]),
        ("ij...,jk...->ik...", [(4, 3, 2), (3, 2, 2)]),
        ("...i,i->...", [(2, 3, 4), (4,)]),
        ("ij...", [(4, 3, 2)]),
    ]
]

CASES = EINSUMS
