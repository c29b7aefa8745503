"""Layer and weight normalization."""

from __future__ import annotations

import numpy as np
from case import Case


def layer_normalized(x, g, b, axes):
    """g and b have the shape of x, or the axes that are normalized, or the first of them."""
    g, b = (
        p if p.ndim == x.ndim else p.reshape((1,) * axes[0] + p.shape + (1,) * (x.ndim - axes[0] - p.ndim))
        for p in (g, b)
    )
    return g * (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5) + b


def with_epsilon(x, g, b, axis, eps):
    g, b = (p.reshape((1,) * axis + p.shape + (1,) * (x.ndim - axis - 1)) for p in (g, b))
    return g * (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps) + b


CASES = [
    *[
        Case(
            f"layer_norm-eps-{'x'.join(map(str, x))}{'' if eps else '-0'}",
            [x, g, g],
            lambda dy, xs, axis=axis, eps=eps: dy.layer_norm(*xs, axis=axis, eps=eps),
            lambda xs, axis=axis, eps=eps: with_epsilon(*xs, axis or 0, eps),
            tol=2e-5,
        )
        # An eps of 0 is DyNet's formula.
        for x, g, axis, eps in [
            ((5, 3), (5,), None, 0.5),
            ((3, 4), (4,), 1, 0.5),
            ((1,), (1,), None, 0.5),
            ((5, 3), (5,), None, 0.0),
        ]  # fmt: skip
    ],
    *[
        Case(
            f"layer_norm-{'x'.join(map(str, x))}-{'x'.join(map(str, g))}",
            [x, g, g],
            lambda dy, xs: dy.layer_norm(*xs),
            lambda xs, axes=tuple(range(len(g))): layer_normalized(*xs, axes),
            tol=2e-5,
        )
        for x, g in [((6,), (6,)), ((5, 3), (5,)), ((5, 2), (5, 2)), ((3, 2, 2), (3, 2)), ((4, 2, 2), (4,))]
    ],
    *[
        Case(
            f"layer_norm-{'x'.join(map(str, x))}-axis{''.join(map(str, d))}-{i}",
            [x, g, b],
            lambda dy, xs, d=d: dy.layer_norm(*xs, axis=d[0] if len(d) == 1 else d),
            lambda xs, d=d: layer_normalized(*xs, d),
            tol=2e-5,
        )
        for i, (x, d, g, b) in enumerate(
            [
                ((5, 2), (0, 1), (5,), (5, 2)),
                ((5, 2), (0, 1), (5, 2), (1,)),
                ((3, 2, 2), (0, 1), (3, 2), (3,)),
                ((2, 5), (1,), (5,), (2, 5)),
                ((3, 4, 2), (1,), (4,), (4,)),
                ((3, 4, 2), (1,), (3, 4, 2), (1,)),
                ((2, 3, 4), (1, 2), (3, 4), (3, 4)),
                ((4, 3), (0,), (4, 3), (4,)),
            ]
        )
    ],
    *[
        Case(
            f"residual_layer_norm{'-eps' if eps else ''}-{'x'.join(map(str, x))}",
            [x, x, x[:1], x[:1]],
            lambda dy, xs, eps=eps: dy.residual_layer_norm(*xs, eps=eps),
            lambda xs, eps=eps: with_epsilon(xs[0] + xs[1], *xs[2:], 0, eps or 1e-5),
            tol=2e-5,
        )
        for x, eps in [((5,), None), ((5, 3), None), ((5, 3), 0.5), ((4, 2, 2), 0.5)]
    ],
    Case(
        "residual_layer_norm-dropout",
        [(5, 3), (5, 3), (5,), (5,)],
        lambda dy, xs: dy.residual_layer_norm(*xs, dropout=1.0),
        lambda xs: with_epsilon(xs[0], *xs[2:], 0, 1e-5),
        tol=2e-5,
    ),
    Case(
        "weight_norm",
        [(4, 3), (1,)],
        lambda dy, xs: dy.weight_norm(*xs),
        lambda xs: xs[1] * xs[0] / np.sqrt((xs[0] ** 2).sum()),
    ),
    *[
        Case(
            f"layer_norm-eps-axis{axis}",
            [(4, 3), (4,) if axis is None else (3,), (4,) if axis is None else (3,)],
            lambda dy, xs, axis=axis: dy.layer_norm(*xs, axis=axis, eps=0.1),
            lambda xs, axis=axis: with_epsilon(*xs, axis or 0, 0.1),
            tol=2e-5,
        )
        for axis in (None, 1)
    ],
]
