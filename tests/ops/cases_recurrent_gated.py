"""Affine transforms with an activation, GRUs and Tree-LSTMs."""

from __future__ import annotations

import numpy as np
from case import Case, logistic

M, K, H = 6, 4, 3


def affine(xs):
    b, *rest = xs
    total = sum(w @ x for w, x in zip(rest[::2], rest[1::2]))
    return total + (b[:, None] if b.ndim < np.ndim(total) else b)


def tree_gates(xs, children):
    i, o, u, *f = np.split(affine(xs), 3 + children)
    return np.concatenate([logistic(i), logistic(o), np.tanh(u), *map(logistic, f)])


def tree_c(gates, cells, children):
    i, _, u, *f = np.split(gates, 3 + children)
    return i * u + sum(a * c for a, c in zip(f, cells))


SUM = [(M,), (M, K), (K,)]
TWO = [(5 * H,), (5 * H, K), (K,), (5 * H, H), (H,)]

CASES = [
    Case("logistic_affine", SUM, lambda dy, xs: dy.logistic_affine(xs), lambda xs: logistic(affine(xs))),
    Case("logistic_affine-bias", SUM[:1], lambda dy, xs: dy.logistic_affine(xs), lambda xs: logistic(xs[0])),
    Case("tanh_affine", SUM, lambda dy, xs: dy.tanh_affine(xs), lambda xs: np.tanh(affine(xs))),
    Case(
        "tanh_affine-columns",
        [(M,), (M, K), (K, 2)],
        lambda dy, xs: dy.tanh_affine(xs),
        lambda xs: np.tanh(affine(xs)),
    ),
    Case(
        "tree_lstm_gates-0",
        [(3 * H,), (3 * H, K), (K,)],
        lambda dy, xs: dy.tree_lstm_gates(xs, 0),
        lambda xs: tree_gates(xs, 0),
    ),
    Case("tree_lstm_gates-2", TWO, lambda dy, xs: dy.tree_lstm_gates(xs, 2), lambda xs: tree_gates(xs, 2)),
    Case("gru_h", [(H,)] * 3, lambda dy, xs: dy.gru_h(*xs), lambda xs: (1 - xs[1]) * xs[0] + xs[1] * xs[2]),
    Case("tree_lstm_c-0", [(3 * H,)], lambda dy, xs: dy.tree_lstm_c(xs[0], []), lambda xs: tree_c(xs[0], [], 0)),
    Case(
        "tree_lstm_c-2",
        [(5 * H,), (H,), (H,)],
        lambda dy, xs: dy.tree_lstm_c(xs[0], xs[1:]),
        lambda xs: tree_c(xs[0], xs[1:], 2),
    ),
    Case(
        "tree_lstm_c-1of2",
        [(5 * H,), (H,)],
        lambda dy, xs: dy.tree_lstm_c(xs[0], xs[1:], children=2),
        lambda xs: tree_c(xs[0], xs[1:], 2),
    ),
    Case(
        "tree_lstm_h",
        [(H,), (5 * H,)],
        lambda dy, xs: dy.tree_lstm_h(*xs),
        lambda xs: xs[1][H : 2 * H] * np.tanh(xs[0]),
    ),
]
