"""Softmax with upper bounds."""

from __future__ import annotations

import numpy as np
from case import Case


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

CASES = CONSTRAINED
