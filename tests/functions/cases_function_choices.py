"""Soft and hard choices."""

from __future__ import annotations

import numpy as np
from case import many, one
from cases_function_losses import log_softmax

CHOICES = [
    one("softmin", (4, 3), lambda dy, x: dy.softmin(x, 1), lambda x: np.exp(log_softmax(-x, 1))),
    many(
        "straight_through",
        [(4,), (4,)],
        lambda dy, h, s: dy.straight_through(h > 0, s) - s + dy.nobackprop(s) + h,
        lambda h, s: (h > 0) + h,
    ),
]

CASES = CHOICES
