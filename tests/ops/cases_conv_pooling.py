"""Average and adaptive pooling."""

from __future__ import annotations

import numpy as np
from case import Case


def sized(x, size, stride, valid):
    """The windows of each axis."""
    found = []
    for d in range(2):
        n = x.shape[d]
        out = (n - size[d]) // stride[d] + 1 if valid else -(-n // stride[d])
        pad = 0 if valid else max((out - 1) * stride[d] + size[d] - n, 0) // 2
        starts = [o * stride[d] - pad for o in range(out)]
        found.append([slice(max(a, 0), min(a + size[d], n)) for a in starts])
    return found


def padded(x, size, padding, stride):
    """The same for windows that may reach beyond the image by the padding."""
    found = []
    for n, w, p, by in zip(x.shape, size, padding, stride):
        starts = range(-p, n + p - w + 1, by)
        found.append([slice(max(a, 0), min(a + w, n)) for a in starts])
    return found


def adaptive(x, size):
    return [
        [slice(o * x.shape[d] // size[d], -(-(o + 1) * x.shape[d] // size[d])) for o in range(size[d])]
        for d in range(2)
    ]


def pooled(x, windows, f):
    rows, columns = windows
    return np.array([[f(x[r, c], axis=(0, 1)) for c in columns] for r in rows])


CASES: list[Case] = []

CASES += [
    Case(
        f"avgpooling2d-stride{s[0]}{s[1]}-{'valid' if valid else 'same'}",
        [(6, 5, 2)],
        lambda dy, xs, s=s, valid=valid: dy.avgpooling2d(xs[0], [3, 2], s, is_valid=valid),
        lambda xs, s=s, valid=valid: pooled(xs[0], sized(xs[0], (3, 2), s, valid), np.mean),
    )
    for s in [(1, 1), (2, 1), (4, 3), (6, 5)]
    for valid in (True, False)
]

CASES += [
    Case(
        f"avgpooling2d-{n[0]}{n[1]}-padding{p[0]}{p[1]}-stride{s[0]}{s[1]}",
        [(7, 6, 2)],
        lambda dy, xs, n=n, p=p, s=s: dy.avgpooling2d(xs[0], n, s, padding=p),
        lambda xs, n=n, p=p, s=s: pooled(xs[0], padded(xs[0], n, p, s), np.mean),
    )
    for n, p, s in [((3, 3), (1, 1), (2, 2)), ((4, 3), (2, 0), (1, 5)), ((9, 8), (4, 4), (3, 3))]
]

for name, shape, size in [
    ("less", (7, 5, 2), (3, 2)),
    ("one", (4, 3, 2), (1, 1)),
    ("more", (3, 2, 2), (5, 2)),
    ("matrix", (4, 4), (2, 3)),
]:
    CASES += [
        Case(
            f"adaptive_avgpooling2d-{name}",
            [shape],
            lambda dy, xs, size=size: dy.adaptive_avgpooling2d(xs[0], size),
            lambda xs, size=size: pooled(xs[0], adaptive(xs[0], size), np.mean),
        ),
        Case(
            f"adaptive_maxpooling2d-{name}",
            [shape],
            lambda dy, xs, size=size: dy.adaptive_maxpooling2d(xs[0], size),
            lambda xs, size=size: pooled(xs[0], adaptive(xs[0], size), np.max),
        ),
    ]
