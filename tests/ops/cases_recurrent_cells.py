"""LSTM cells."""

from __future__ import annotations

import numpy as np
from case import Case, logistic


def gates(x, h, Wx, Wh, b):
    n = len(h)
    y = b + Wx @ x + Wh @ h
    i, f, o, g = (y[k * n : (k + 1) * n] for k in range(4))
    return np.concatenate([logistic(i), logistic(f + 1), logistic(o), np.tanh(g)])


H, X, X2 = 5, 3, 2

WEIGHTS = [(4 * H, X), (4 * H, H), (4 * H,)]

WIDE = [(4 * H, X + X2), (4 * H, H), (4 * H,)]


def some_batches(n, *batched):
    """No batch; a batch of the given arguments, of all, and of the first one only."""
    return [(1,) * n, tuple(3 if k in batched else 1 for k in range(n)), (3,) * n, (3,) + (1,) * (n - 1)]


CASES = [
    Case(
        "vanilla_lstm_gates",
        [(X,), (H,), *WEIGHTS],
        lambda dy, xs: dy.vanilla_lstm_gates(*xs),
        lambda xs: gates(*xs),
        batches=[*some_batches(5, 0, 1), (3, 3, 1, 3, 1), (1, 1, 1, 1, 3)],
    ),
    Case(
        "vanilla_lstm_gates-concat",
        [(X,), (X2,), (H,), *WIDE],
        lambda dy, xs: dy.vanilla_lstm_gates_concat(xs[:2], *xs[2:]),
        lambda xs: gates(np.concatenate(xs[:2]), *xs[2:]),
        batches=[*some_batches(6, 0, 1, 2), (1, 3, 1, 3, 1, 1)],
    ),
    Case(
        "vanilla_lstm_gates-dropout",
        [(X,), (H,), *WEIGHTS, (X,), (H,)],
        lambda dy, xs: dy.vanilla_lstm_gates_dropout(*xs),
        lambda xs: gates(xs[0] * xs[5], xs[1] * xs[6], *xs[2:5]),
        batches=some_batches(7, 0, 1),
    ),
    Case(
        "vanilla_lstm_gates-dropout-concat",
        [(X,), (X2,), (H,), *WIDE, (X + X2,), (H,)],
        lambda dy, xs: dy.vanilla_lstm_gates_dropout_concat(xs[:2], *xs[2:]),
        lambda xs: gates(np.concatenate(xs[:2]) * xs[6], xs[2] * xs[7], *xs[3:6]),
        batches=some_batches(8, 0, 1, 2, 6),
    ),
    Case(
        "vanilla_lstm_gates_projected",
        [(4 * H,), (H,), (4 * H, H)],
        lambda dy, xs: dy.vanilla_lstm_gates_projected(*xs),
        lambda xs: gates(np.zeros(0), xs[1], np.zeros((4 * H, 0)), xs[2], xs[0]),
        batches=some_batches(3, 0, 1),
    ),
    Case(
        "vanilla_lstm_c",
        [(H,), (4 * H,)],
        lambda dy, xs: dy.vanilla_lstm_c(*xs),
        lambda xs: xs[1][H : 2 * H] * xs[0] + xs[1][:H] * xs[1][3 * H :],
    ),
    Case(
        "vanilla_lstm_h",
        [(H,), (4 * H,)],
        lambda dy, xs: dy.vanilla_lstm_h(*xs),
        lambda xs: xs[1][2 * H : 3 * H] * np.tanh(xs[0]),
    ),
    Case(
        "vanilla_lstm_gates-weightnoise",
        [(X,), (H,), *WEIGHTS],
        lambda dy, xs: dy.vanilla_lstm_gates(*xs, weightnoise_std=1e-20),
        lambda xs: gates(*xs),
        batches=some_batches(5, 0, 1),
    ),
]
