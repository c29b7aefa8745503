"""Rows of the table: dilated, grouped and transposed convolution, pooling, normalization of minibatches."""

from __future__ import annotations

import math

import numpy as np
from case import Case

CASES: list[Case] = []


# ---- convolution ---------------------------------------------------------------------


def filtered(x, f, stride, valid, dilation, groups):
    """Each output as a sum over its window."""
    x = x.reshape(*x.shape, *(1,) * (3 - x.ndim))
    reach = [(f.shape[d] - 1) * dilation[d] + 1 for d in range(2)]
    if valid:
        out = [(x.shape[d] - reach[d]) // stride[d] + 1 for d in range(2)]
    else:
        out = [-(-x.shape[d] // stride[d]) for d in range(2)]
        more = [max((out[d] - 1) * stride[d] + reach[d] - x.shape[d], 0) for d in range(2)]
        x = np.pad(x, [*((n // 2, n - n // 2) for n in more), (0, 0)])
    inputs, outputs = x.shape[2] // groups, f.shape[3] // groups
    y = np.zeros((*out, f.shape[3]))
    for p, q in np.ndindex(*out):
        row, column = p * stride[0], q * stride[1]
        window = x[row : row + reach[0] : dilation[0], column : column + reach[1] : dilation[1]]
        for g in range(groups):
            part = slice(g * outputs, (g + 1) * outputs)
            y[p, q, part] = np.einsum("ijc,ijco->o", window[..., g * inputs : (g + 1) * inputs], f[..., part])
    return y


def spread(x, f, stride, valid, dilation, groups):
    """The image whose slope is x where `filtered` has it: the transpose, found column by column."""
    x = x.reshape(*x.shape, *(1,) * (3 - x.ndim))
    shape = [x.shape[d] * stride[d] for d in range(2)]
    if valid:
        shape = [(x.shape[d] - 1) * stride[d] + (f.shape[d] - 1) * dilation[d] + 1 for d in range(2)]
    y = np.zeros((*shape, f.shape[2] * groups))
    for place in np.ndindex(*y.shape):
        one = np.zeros_like(y)
        one[place] = 1
        y[place] = (filtered(one, f, stride, valid, dilation, groups) * x).sum()
    return y


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
    # So large that Winograd's method is used.
    Case(
        "conv_transpose2d-many-channels",
        [(9, 8, 24), (3, 3, 25, 24)],
        lambda dy, xs: dy.conv_transpose2d(*xs, [1, 1]),
        lambda xs: filtered(
            np.pad(xs[0], ((2, 2), (2, 2), (0, 0))), xs[1][::-1, ::-1].swapaxes(2, 3), (1, 1), True, (1, 1), 1
        ),
    ),
    *[
        Case(
            f"conv1d-stride{s}-dilation{d}-groups{g}",
            [(4, 7), (4 // g, 3, 6)],
            lambda dy, xs, s=s, d=d, g=g: dy.conv1d(*xs, s, d, g),
            lambda xs, s=s, d=d, g=g: (
                filtered(xs[0].T[:, None], xs[1].swapaxes(0, 1)[:, None], (s, 1), True, (d, 1), g)[:, 0].T
            ),
        )
        for s, d, g in [(1, 1, 1), (2, 1, 2), (1, 2, 1)]
    ],
    *[
        Case(
            f"conv_transpose1d-stride{s}-dilation{d}-groups{g}",
            [(4, 3), (2, 3, 4)],
            lambda dy, xs, s=s, d=d, g=g: dy.conv_transpose1d(*xs, s, d, g),
            lambda xs, s=s, d=d, g=g: (
                spread(xs[0].T[:, None], xs[1].swapaxes(0, 1)[:, None], (s, 1), True, (d, 1), g)[:, 0].T
            ),
        )
        for s, d, g in [(1, 1, 1), (2, 1, 2), (1, 2, 1)]
    ],
]


# ---- pooling ---------------------------------------------------------------------------


def sized(x, size, stride, valid):
    """Of each axis, the windows."""
    found = []
    for d in range(2):
        n = x.shape[d]
        out = (n - size[d]) // stride[d] + 1 if valid else -(-n // stride[d])
        pad = 0 if valid else max((out - 1) * stride[d] + size[d] - n, 0) // 2
        starts = [o * stride[d] - pad for o in range(out)]
        found.append([slice(max(a, 0), min(a + size[d], n)) for a in starts])
    return found


def adaptive(x, size):
    return [
        [slice(o * x.shape[d] // size[d], -(-(o + 1) * x.shape[d] // size[d])) for o in range(size[d])]
        for d in range(2)
    ]


def pooled(x, windows, f):
    rows, columns = windows
    return np.array([[f(x[r, c], axis=(0, 1)) for c in columns] for r in rows])


CASES += [
    Case(
        f"avgpooling2d-stride{s[0]}{s[1]}-{'valid' if valid else 'same'}",
        [(6, 5, 2)],
        lambda dy, xs, s=s, valid=valid: dy.avgpooling2d(xs[0], [3, 2], s, is_valid=valid),
        lambda xs, s=s, valid=valid: pooled(xs[0], sized(xs[0], (3, 2), s, valid), np.mean),
    )
    for s in [(1, 1), (2, 1), (4, 3)]
    for valid in (True, False)
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


# ---- normalization of minibatches -------------------------------------------------------


def moments(x, axis):
    """x has the batch as last axis, and so has the result, of one element."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    return np.stack([x.mean(others), x.var(others)], axis=1)[..., None]


def channels(v, x, axis):
    return v.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def normalized(xs, axis, eps=1e-5):
    x, mean, var, g, b = xs
    mean, var, g, b = (channels(v, x, axis) for v in (mean, var, g, b))
    return g * (x - mean) / np.sqrt(var + eps) + b


for shape, axis in [((3,), 0), ((3, 4), 0), ((4, 3), 1), ((2, 4, 3), 2), ((2, 3, 4), 1)]:
    text = "x".join(map(str, shape))
    CASES += [
        Case(
            f"batch_moments-{text}-axis{axis}",
            [shape],
            lambda dy, xs, axis=axis: dy.batch_moments(xs[0], axis),
            lambda xs, axis=axis: moments(xs[0], axis),
            batches=[(3,), (4,)] if math.prod(shape) == 3 else [(1,), (3,)],
            whole_batch=True,
        ),
        Case(
            f"channel_norm-{text}-axis{axis}",
            [shape, (3,), (3,), (3,), (3,)],
            lambda dy, xs, axis=axis: dy.channel_norm(*xs, axis),
            lambda xs, axis=axis: normalized(xs, axis),
            (-1.0, -1.0, 0.5, -1.0, -1.0),
            (1.0, 1.0, 2.0, 1.0, 1.0),
            tol=2e-5,
        ),
    ]
CASES += [
    Case(
        "channel_norm-eps",
        [(4, 3), (3,), (3,), (3,), (3,)],
        lambda dy, xs: dy.channel_norm(*xs, axis=-1, eps=0.5),
        lambda xs: normalized(xs, 1, 0.5),
        (-1.0, -1.0, 0.0, -1.0, -1.0),
        (1.0, 1.0, 2.0, 1.0, 1.0),
        tol=2e-5,
    ),
    *[
        Case(
            f"layer_norm-eps-axis{axis}",
            [(4, 3), (4,) if axis is None else (3,), (4,) if axis is None else (3,)],
            lambda dy, xs, axis=axis: dy.layer_norm(*xs, axis=axis, eps=0.1),
            lambda xs, axis=axis: (
                normalized(
                    [
                        xs[0],
                        xs[0].mean(axis or 0),
                        xs[0].var(axis or 0),
                        np.ones(1),
                        np.zeros(1),
                    ],
                    1 - (axis or 0),
                    0.1,
                )
                * channels(xs[1], xs[0], axis or 0)
                + channels(xs[2], xs[0], axis or 0)
            ),
            tol=2e-5,
        )
        for axis in (None, 1)
    ],
]
