"""Convolution, maximum pooling, sums and maxima of columns."""

from __future__ import annotations

from itertools import product

import numpy as np
from case import Case, name_of, one


def windows(x, size, stride, valid, fill):
    """All windows of an image, filled beyond its edges, as an array out x out x size x size x channels."""
    pads, out = [(0, 0), (0, 0)], []
    for d in range(2):
        if valid:
            out.append((x.shape[d] - size[d]) // stride[d] + 1)
        else:
            out.append(-(-x.shape[d] // stride[d]))
            total = max((out[d] - 1) * stride[d] + size[d] - x.shape[d], 0)
            pads[d] = (total // 2, total - total // 2)
    x = np.pad(x, [*pads, (0, 0)], constant_values=fill)
    y = np.empty((*out, *size, x.shape[2]))
    for p, q in product(range(out[0]), range(out[1])):
        row, col = p * stride[0], q * stride[1]
        y[p, q] = x[row : row + size[0], col : col + size[1]]
    return y


def convolved(x, f, stride, valid):
    return np.einsum("pqijc,ijco->pqo", windows(x, f.shape[:2], stride, valid, 0.0), f)


def greatest(x, size, stride, valid):
    y = windows(x.reshape(*x.shape[:2], -1), size, stride, valid, -np.inf).max(axis=(2, 3))
    return y.reshape(*y.shape[:2], *x.shape[2:])


def narrow(x, f):
    f = f.reshape(*f.shape[:2], -1)
    n = x.shape[1] - f.shape[1] + 1
    return np.stack([np.einsum("ij,ijo->o", x[:, t : t + f.shape[1]], f) for t in range(n)], axis=1)


def k_greatest(x, k, axis):
    chosen = np.sort(np.argsort(-x, axis=axis, kind="stable").take(range(k), axis=axis), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis)


def cuts(shape, size, stride, valid, dilation):
    """What an image is padded with, and the window of the padded image that each output sees."""
    reach = [(size[d] - 1) * dilation[d] + 1 for d in range(2)]
    if valid:
        out, more = [(shape[d] - reach[d]) // stride[d] + 1 for d in range(2)], (0, 0)
    else:
        out = [-(-shape[d] // stride[d]) for d in range(2)]
        more = [max((out[d] - 1) * stride[d] + reach[d] - shape[d], 0) for d in range(2)]
    starts = {place: [place[d] * stride[d] for d in range(2)] for place in np.ndindex(*out)}
    seen = {
        place: tuple(slice(start[d], start[d] + reach[d], dilation[d]) for d in range(2))
        for place, start in starts.items()
    }
    return [(n // 2, n - n // 2) for n in more], seen


def shares(channels, groups):
    return [slice(g * channels // groups, (g + 1) * channels // groups) for g in range(groups)]


def filtered(x, f, stride, valid, dilation, groups):
    """Each output as a sum over its window."""
    x = x.reshape(*x.shape, *(1,) * (3 - x.ndim))
    pads, seen = cuts(x.shape, f.shape, stride, valid, dilation)
    x = np.pad(x, [*pads, (0, 0)])
    y = np.zeros((*(n + 1 for n in max(seen)), f.shape[3]))
    for of, to in zip(shares(x.shape[2], groups), shares(f.shape[3], groups)):
        for place, window in seen.items():
            y[place][to] = np.tensordot(x[window][..., of], f[..., to], 3)
    return y


def spread(x, f, stride, valid, dilation, groups):
    """The transpose of `filtered`: each element is added to its window."""
    x = x.reshape(*x.shape, *(1,) * (3 - x.ndim))
    shape = [x.shape[d] * stride[d] for d in range(2)]
    if valid:
        shape = [(x.shape[d] - 1) * stride[d] + (f.shape[d] - 1) * dilation[d] + 1 for d in range(2)]
    pads, seen = cuts(shape, f.shape, stride, valid, dilation)
    y = np.zeros((*(n + sum(pad) for n, pad in zip(shape, pads)), f.shape[2] * groups))
    for of, to in zip(shares(x.shape[2], groups), shares(y.shape[2], groups)):
        for place, window in seen.items():
            y[window][..., to] += f[..., of] @ x[place][of]
    (top, _), (left, _) = pads
    return y[top : top + shape[0], left : left + shape[1]]


def around(x, padding, value=0.0):
    return np.pad(x, [(n, n) for n in padding] + [(0, 0)], constant_values=value)


GEOMETRY = list(product([(1, 1), (2, 1), (1, 3), (2, 2), (6, 5)], [True, False]))

# N-grams in DyNet's sense: sums of n consecutive columns.
NGRAMS = [
    Case(
        f"kmh_ngram-{n}-of-{cols}",
        [(3, cols)],
        lambda dy, xs, n=n: dy.kmh_ngram(xs[0], n),
        lambda xs, n=n, cols=cols: np.stack([xs[0][:, j : j + n].sum(1) for j in range(cols - n + 1)], 1),
    )
    for n, cols in [(1, 1), (1, 4), (2, 6), (3, 6), (6, 6)]
]

CASES: list[Case] = [
    *[
        Case(
            f"conv2d-stride{s[0]}{s[1]}-{'valid' if valid else 'same'}",
            [(6, 5, 2), (3, 2, 2, 4)],
            lambda dy, xs, s=s, valid=valid: dy.conv2d(*xs, s, is_valid=valid),
            lambda xs, s=s, valid=valid: convolved(*xs, s, valid),
        )
        for s, valid in GEOMETRY
    ],
    Case(
        "conv2d-one-channel",
        [(4, 4), (2, 2, 1, 3)],
        lambda dy, xs: dy.conv2d(*xs, [1, 1]),
        lambda xs: convolved(xs[0][..., None], xs[1], (1, 1), True),
    ),
    *[
        Case(
            f"conv2d_bias-{'valid' if valid else 'same'}",
            [(6, 5, 2), (3, 2, 2, 4), (4,)],
            lambda dy, xs, valid=valid: dy.conv2d_bias(*xs, [2, 1], is_valid=valid),
            lambda xs, valid=valid: convolved(*xs[:2], (2, 1), valid) + xs[2],
        )
        for valid in (True, False)
    ],
    # Large enough for Winograd's method.
    *[
        Case(
            f"conv2d_bias-{'x'.join(map(str, size))}-many-channels-{'valid' if valid else 'same'}",
            [(*image, 24), (*size, 24, 25), (25,)],
            lambda dy, xs, valid=valid: dy.conv2d_bias(*xs, [1, 1], is_valid=valid),
            lambda xs, valid=valid: convolved(*xs[:2], (1, 1), valid) + xs[2],
        )
        for image, size in [((12, 10), (3, 3)), ((10, 9), (5, 4))]
        for valid in (True, False)
    ],
    *[
        Case(
            f"maxpooling2d-stride{s[0]}{s[1]}-{'valid' if valid else 'same'}",
            [(6, 5, 2)],
            lambda dy, xs, s=s, valid=valid: dy.maxpooling2d(xs[0], [3, 2], s, is_valid=valid),
            lambda xs, s=s, valid=valid: greatest(xs[0], (3, 2), s, valid),
        )
        for s, valid in GEOMETRY
    ],
    *[
        Case(
            f"maxpooling2d-halves-{rows}x{cols}-{'valid' if valid else 'same'}",
            [(rows, cols, 3)],
            lambda dy, xs, valid=valid: dy.maxpooling2d(xs[0], [2, 2], [2, 2], is_valid=valid),
            lambda xs, valid=valid: greatest(xs[0], (2, 2), (2, 2), valid),
        )
        for rows, cols in ((20, 4), (7, 9))
        for valid in (True, False)
    ],
    # The last one: windows that are in the padding only.
    *[
        Case(
            f"conv2d-padding{p[0]}{p[1]}-stride{s[0]}{s[1]}-dilation{d[0]}{d[1]}",
            [(6, 5, 4), (3, 2, 2, 4)],
            lambda dy, xs, p=p, s=s, d=d: dy.conv2d(*xs, s, dilation=d, groups=2, padding=p),
            lambda xs, p=p, s=s, d=d: filtered(around(xs[0], p), xs[1], s, True, d, 2),
        )
        for p, s, d in [
            ((1, 0), (1, 1), (1, 1)),
            ((1, 1), (2, 2), (1, 1)),
            ((2, 3), (3, 1), (2, 1)),
            ((0, 7), (1, 2), (1, 3)),
        ]
    ],
    *[
        Case(
            f"conv2d_bias-many-channels-padding{p[0]}{p[1]}",
            [(10, 9, 24), (3, 3, 24, 25), (25,)],
            lambda dy, xs, p=p: dy.conv2d_bias(*xs, [1, 1], padding=p),
            lambda xs, p=p: convolved(around(xs[0], p), xs[1], (1, 1), True) + xs[2],
        )
        for p in [(1, 1), (2, 0), (3, 4)]
    ],
    *[
        Case(
            f"maxpooling2d-{n[0]}{n[1]}-padding{p[0]}{p[1]}-stride{s[0]}{s[1]}",
            [(7, 6, 2)],
            lambda dy, xs, n=n, p=p, s=s: dy.maxpooling2d(xs[0], n, s, padding=p),
            lambda xs, n=n, p=p, s=s: greatest(around(xs[0], p, -np.inf), n, s, True),
        )
        for n, p, s in [
            ((3, 3), (1, 1), (2, 2)),
            ((2, 2), (1, 1), (2, 2)),
            ((4, 3), (2, 0), (1, 5)),
            ((9, 8), (4, 4), (3, 3)),
        ]
    ],
    Case(
        "maxpooling2d-matrix",
        [(4, 4)],
        lambda dy, xs: dy.maxpooling2d(xs[0], [2, 2], [2, 2]),
        lambda xs: greatest(xs[0], (2, 2), (2, 2), True),
    ),
    Case("filter1d_narrow", [(3, 7), (3, 2)], lambda dy, xs: dy.filter1d_narrow(*xs), lambda xs: narrow(*xs)),
    Case("filter1d_narrow-many", [(3, 7), (3, 2, 4)], lambda dy, xs: dy.filter1d_narrow(*xs), lambda xs: narrow(*xs)),
    *[
        Case(
            f"kmax_pooling-axis{d}",
            [(4, 5, 3)],
            lambda dy, xs, d=d: dy.kmax_pooling(xs[0], 2, d),
            lambda xs, d=d: k_greatest(xs[0], 2, d),
        )
        for d in range(3)
    ],
    Case("kmax_pooling-all", [(2, 4)], lambda dy, xs: dy.kmax_pooling(xs[0], 4), lambda xs: xs[0]),
    *[
        one(
            name_of("kmax_pooling", s, k, d),
            s,
            lambda dy, x, k=k, d=d: dy.kmax_pooling(x, k, d),
            lambda x, k=k, d=d: k_greatest(x, k, d),
        )
        for s, k, d in [
            ((3, 7), 2, 1),
            ((3, 7), 7, 1),
            ((7, 3), 3, 0),
            ((6,), 2, 0),
            ((2, 5, 3), 3, 1),
            ((2, 3, 5), 1, 2),
        ]
    ],
    *NGRAMS,
]

for name, stride, valid, dilation, groups in [
    ("dilated", (1, 1), True, (2, 1), 1),
    ("dilated-stride", (2, 1), True, (1, 2), 1),
    ("dilated-same", (1, 2), False, (2, 2), 1),
    ("groups", (1, 1), True, (1, 1), 2),
    ("groups-same", (2, 2), False, (1, 1), 2),
    ("groups-dilated", (1, 1), True, (2, 1), 4),
]:
    geometry = (stride, valid, dilation, groups)
    CASES += [
        Case(
            f"conv2d-{name}",
            [(6, 5, 4), (3, 2, 4 // groups, 8)],
            lambda dy, xs, g=geometry: dy.conv2d(*xs, g[0], g[1], dilation=g[2], groups=g[3]),
            lambda xs, g=geometry: filtered(*xs, *g),
        ),
        Case(
            f"conv2d_bias-{name}",
            [(6, 5, 4), (3, 2, 4 // groups, 4), (4,)],
            lambda dy, xs, g=geometry: dy.conv2d_bias(*xs, g[0], g[1], dilation=g[2], groups=g[3]),
            lambda xs, g=geometry: filtered(*xs[:2], *g) + xs[2],
        ),
    ]

for name, stride, valid, dilation, groups in [
    ("plain", (1, 1), True, (1, 1), 1),
    ("stride", (2, 3), True, (1, 1), 1),
    ("same", (2, 1), False, (1, 1), 1),
    ("dilated", (1, 2), True, (2, 1), 1),
    ("groups", (2, 1), True, (1, 1), 2),
    ("groups-dilated-same", (1, 1), False, (1, 2), 2),
]:
    geometry = (stride, valid, dilation, groups)
    CASES.append(
        Case(
            f"conv_transpose2d-{name}",
            [(3, 2, 4), (3, 2, 4 // groups, 4)],
            lambda dy, xs, g=geometry: dy.conv_transpose2d(*xs, g[0], g[1], dilation=g[2], groups=g[3]),
            lambda xs, g=geometry: spread(*xs, *g),
        )
    )

CASES += [
    Case(
        "conv_transpose2d-matrix",
        [(3, 2), (2, 2, 3)],
        lambda dy, xs: dy.conv_transpose2d(*xs, [1, 1]),
        lambda xs: spread(xs[0], xs[1][..., None], (1, 1), True, (1, 1), 1),
    ),
    # Large enough for Winograd's method.
    Case(
        "conv_transpose2d-many-channels",
        [(9, 8, 24), (3, 3, 25, 24)],
        lambda dy, xs: dy.conv_transpose2d(*xs, [1, 1]),
        lambda xs: filtered(
            np.pad(xs[0], ((2, 2), (2, 2), (0, 0))), xs[1][::-1, ::-1].swapaxes(2, 3), (1, 1), True, (1, 1), 1
        ),
    ),
]
