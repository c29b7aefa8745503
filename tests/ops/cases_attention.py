"""Scaled dot-product attention, compared with its formula head by head."""

from __future__ import annotations

import numpy as np
from case import Case


def attention(q, k, v, bias=None, heads=1, causal=False, first=0, scale=None, window=None):
    """The formula; a query that may not attend to any key gets 0."""
    m, n = (x.shape[1] if x.ndim > 1 else 1 for x in (q, k))
    rows, value_rows = len(q) // heads, len(v) // heads
    y = np.zeros((len(v), m))
    for h in range(heads):
        q_of, k_of = (x.reshape(len(q), -1)[h * rows : (h + 1) * rows] for x in (q, k))
        scores = k_of.T @ q_of * (rows**-0.5 if scale is None else scale)
        if bias is not None:
            of_all = bias.reshape(n, *(bias.shape[1:] or (1,)), *([1] * (3 - max(bias.ndim, 2))))
            scores = scores + of_all[:, :, h % of_all.shape[2]]
        ahead = np.arange(n)[:, None] - (first + np.arange(m))
        if causal:
            scores = np.where(ahead <= 0, scores, -np.inf)
        if window is not None:
            scores = np.where(abs(ahead) <= window, scores, -np.inf)
        top = scores.max(0, initial=-1e30)
        weights = np.exp(scores - top)
        total = weights.sum(0)
        weights = weights / np.where(total > 0, total, 1)
        y[h * value_rows : (h + 1) * value_rows] = (
            v.reshape(len(v), -1)[h * value_rows : (h + 1) * value_rows] @ weights
        )
    return y if q.ndim > 1 else y[:, 0]


def case(name: str, d: int, e: int, m: int, n: int, *, bias: tuple[int, ...] | None = None, **more) -> Case:
    batches = more.pop("batches", None)
    return Case(
        f"scaled_dot_product_attention-{name}",
        [(d, m) if m else (d,), (d, n), (e, n), *([bias] if bias else [])],
        lambda dy, xs: dy.scaled_dot_product_attention(*xs[:3], bias=xs[3] if bias else None, **more),
        lambda xs: attention(*xs, **more),
        batches=batches,
    )


CASES = [
    case("self", 4, 4, 3, 3),
    case("heads", 6, 4, 5, 3, heads=2),
    case("vector", 6, 3, 0, 4, heads=3),
    case("one", 4, 2, 1, 1, heads=2),
    case("one-key", 4, 2, 4, 1, heads=2),
    case("causal", 4, 6, 5, 5, heads=2, causal=True),
    case("causal-first", 4, 4, 3, 5, causal=True),
    case("causal-last", 4, 4, 3, 5, heads=2, causal=True, first=2),
    case("causal-inside", 4, 4, 3, 6, heads=2, causal=True, first=1),
    case("causal-more-queries", 4, 4, 6, 3, causal=True, first=2),
    case("bias", 4, 4, 3, 5, bias=(5, 3), heads=2),
    case("bias-column", 4, 4, 3, 5, bias=(5,), heads=2),
    case("bias-heads", 4, 4, 3, 5, bias=(5, 3, 2), heads=2, causal=True, first=2),
    case("bias-column-heads", 4, 4, 3, 5, bias=(5, 1, 2), heads=2),
    case("scale", 4, 4, 3, 5, scale=0.1),
    case("window", 4, 4, 5, 5, heads=2, window=1),
    case("window-0", 4, 4, 3, 3, window=0),
    case("window-causal", 4, 6, 6, 6, heads=2, causal=True, window=2),
    case("window-first", 4, 4, 3, 6, window=1, first=2),
    case("window-causal-last", 4, 4, 3, 6, causal=True, window=1, first=3),
    case("window-beyond-keys", 4, 4, 6, 3, window=1),
    case("window-bias", 4, 4, 4, 5, bias=(5, 4, 2), heads=2, window=2),
    case("window-blocks", 4, 4, 70, 120, heads=2, first=25, window=4, batches=[(1, 1, 1)]),
    case("blocks", 4, 4, 40, 250, heads=2, causal=True, first=210, batches=[(1, 1, 1)]),
    Case(
        "scaled_dot_product_attention_dropout",
        [(4, 3), (4, 5), (4, 5)],
        lambda dy, xs: dy.scaled_dot_product_attention(*xs, heads=2, dropout=1.0),
        lambda xs: np.zeros((4, 3)),
    ),
]
