"""Convolutions along the columns of a matrix."""

from __future__ import annotations

from case import Case
from cases_conv import filtered, spread

CASES = [
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
