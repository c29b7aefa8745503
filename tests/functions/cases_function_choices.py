"""Soft and hard choices."""

from __future__ import annotations

from case import many

CHOICES = [
    many(
        "straight_through",
        [(4,), (4,)],
        lambda dy, h, s: dy.straight_through(h > 0, s) - s + dy.nobackprop(s) + h,
        lambda h, s: (h > 0) + h,
    ),
]

CASES = CHOICES
