"""Rows of the op table: softmax, LSTM cells, random ops, convolution, losses, normalization."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from case import Case, logistic


def normalized(x, axis=0):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def logsumexp(x, axis=0):
    top = x.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis=axis))


def restricted(x, chosen):
    y = np.full(x.shape, -np.inf)
    y[chosen] = x[chosen] - logsumexp(x[chosen])
    return y


def projected(x):
    """Sparsemax of a vector, by the definition: the closest point of the simplex."""
    falling = np.sort(x)[::-1]
    sums = np.cumsum(falling)
    n = np.arange(1, len(x) + 1)
    support = n[1 + n * falling > sums].max()
    return np.maximum(x - (sums[support - 1] - 1) / support, 0)


def columns(f, x):
    """A function of vectors, applied to every column."""
    return np.apply_along_axis(f, 0, x)


def hinge(x, v, m):
    return sum(max(m - x[v] + x[j], 0) for j in range(len(x)) if j != v)


def picked(x, vs):
    """Losses of a batch, one class for each element: the batch is the last axis."""
    return np.array([[logsumexp(x[:, b]) - x[v, b] for b, v in zip(range(x.shape[-1]), vs)]])


def each(x, vs):
    """As many of the indices as x has batch elements."""
    return vs[: (x * 1.0).dim()[1]]


SOFTMAX = [
    *[
        Case(
            f"softmax-{'x'.join(map(str, shape))}-axis{d}",
            [shape],
            lambda dy, xs, d=d: dy.softmax(xs[0], d),
            lambda xs, d=d: normalized(xs[0], d),
            -3.0,
            3.0,
        )
        for shape, d in [((1,), 0), ((7,), 0), ((5, 3), 0), ((5, 3), 1), ((3, 4, 2), 0), ((3, 4, 2), 1), ((3, 4, 2), 2)]
    ],
    Case("log_softmax", [(7,)], lambda dy, xs: dy.log_softmax(xs[0]), lambda xs: xs[0] - logsumexp(xs[0]), -3.0, 3.0),
    Case(
        "log_softmax-matrix",
        [(5, 3)],
        lambda dy, xs: dy.log_softmax(xs[0]),
        lambda xs: np.log(normalized(xs[0])),
        -3.0,
        3.0,
    ),
    Case(
        "restricted_log_softmax",
        [(6,)],
        lambda dy, xs: dy.exp(dy.log_softmax(xs[0], restrict=[4, 1, 2, 1])),
        lambda xs: np.exp(restricted(xs[0], [1, 2, 4])),
        -2.0,
        2.0,
    ),
    Case(
        "pickneglogsoftmax",
        [(9,)],
        lambda dy, xs: dy.pickneglogsoftmax(xs[0], 3),
        lambda xs: logsumexp(xs[0]) - xs[0][3],
        -3.0,
        3.0,
    ),
    Case(
        "pickneglogsoftmax-one",
        [(1,)],
        lambda dy, xs: dy.pickneglogsoftmax(xs[0], 0),
        lambda xs: 0 * xs[0][0],
    ),
    Case(
        "pickneglogsoftmax-batch",
        [(9,)],
        lambda dy, xs: dy.pickneglogsoftmax_batch(xs[0], each(xs[0], [3, 0, 8])),
        lambda xs: picked(xs[0], [3, 0, 8]),
        batches=[(1,), (3,)],
        whole_batch=True,
    ),
    *[
        Case(
            f"logsumexp-{n}",
            [(3, 2)] * n,
            lambda dy, xs: dy.logsumexp(xs),
            lambda xs: logsumexp(np.stack(xs)),
            -4.0,
            4.0,
        )
        for n in (1, 2, 5)
    ],
    Case("sparsemax", [(6,)], lambda dy, xs: dy.sparsemax(xs[0]), lambda xs: projected(xs[0])),
    Case("sparsemax-matrix", [(5, 3)], lambda dy, xs: dy.sparsemax(xs[0]), lambda xs: columns(projected, xs[0])),
    Case("hinge", [(6,)], lambda dy, xs: dy.hinge(xs[0], 2), lambda xs: hinge(xs[0], 2, 1.0)),
    Case("hinge-margin", [(6,)], lambda dy, xs: dy.hinge(xs[0], 5, m=0.3), lambda xs: hinge(xs[0], 5, 0.3)),
    Case(
        "hinge-batch",
        [(6,)],
        lambda dy, xs: dy.hinge_batch(xs[0], each(xs[0], [2, 5, 0]), 0.5),
        lambda xs: np.array([[hinge(xs[0][:, b], v, 0.5) for b, v in zip(range(xs[0].shape[-1]), [2, 5, 0])]]),
        batches=[(1,), (3,)],
        whole_batch=True,
    ),
    Case(
        "hinge_dim-columns",
        [(5, 3)],
        lambda dy, xs: dy.hinge_dim(xs[0], [4, 0, 2]),
        lambda xs: np.array([hinge(xs[0][:, k], v, 1.0) for k, v in enumerate([4, 0, 2])]),
    ),
    Case(
        "hinge_dim-rows",
        [(3, 5)],
        lambda dy, xs: dy.hinge_dim(xs[0], [4, 0, 2], d=1, m=0.5),
        lambda xs: np.array([hinge(xs[0][k], v, 0.5) for k, v in enumerate([4, 0, 2])]),
    ),
    Case(
        "hinge_dim-batch",
        [(4, 2)],
        lambda dy, xs: dy.hinge_dim(xs[0], sum(each(xs[0], [[3, 0], [1, 2], [2, 0]]), [])),
        lambda xs: np.array(
            [
                [hinge(xs[0][:, k, b], v, 1.0) for b, v in zip(range(xs[0].shape[-1]), vs)]
                for k, vs in enumerate([[3, 1, 2], [0, 2, 0]])
            ]
        ),
        batches=[(1,), (3,)],
        whole_batch=True,
    ),
]


# ---- cells ---------------------------------------------------------------------


def gates(x, h, Wx, Wh, b):
    n = len(h)
    y = b + Wx @ x + Wh @ h
    i, f, o, g = (y[k * n : (k + 1) * n] for k in range(4))
    return np.concatenate([logistic(i), logistic(f + 1), logistic(o), np.tanh(g)])


H, X, X2 = 5, 3, 2
WEIGHTS = [(4 * H, X), (4 * H, H), (4 * H,)]
WIDE = [(4 * H, X + X2), (4 * H, H), (4 * H,)]


def some_batches(n, *batched):
    """No batch; a batch of the arguments given, of all, and of the first one alone."""
    return [(1,) * n, tuple(3 if k in batched else 1 for k in range(n)), (3,) * n, (3,) + (1,) * (n - 1)]


CELLS = [
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
]


# ---- random ops without randomness -------------------------------------------------

CERTAIN = [
    Case("dropout-0", [(4, 3)], lambda dy, xs: dy.dropout(xs[0], 0.0), lambda xs: xs[0]),
    Case("dropout-1", [(4, 3)], lambda dy, xs: dy.dropout(xs[0], 1.0), lambda xs: 0 * xs[0]),
    *[
        Case(f"dropout_dim-{d}", [(4, 3)], lambda dy, xs, d=d: dy.dropout_dim(xs[0], d, 0.0), lambda xs: xs[0])
        for d in (0, 1)
    ],
    Case("dropout_batch-0", [(4,)], lambda dy, xs: dy.dropout_batch(xs[0], 0.0), lambda xs: xs[0]),
    Case("block_dropout-0", [(4,)], lambda dy, xs: dy.block_dropout(xs[0], 0.0), lambda xs: xs[0]),
    Case("noise-0", [(4,)], lambda dy, xs: dy.noise(xs[0], 0.0), lambda xs: xs[0]),
    Case("random_normal-0", [(4,)], lambda dy, xs: xs[0] + dy.random_normal(4, 2.0, 0.0), lambda xs: xs[0] + 2),
    Case("random_uniform-0", [(4,)], lambda dy, xs: xs[0] + dy.random_uniform(4, 2.0, 2.0), lambda xs: xs[0] + 2),
    Case("random_bernoulli-1", [(4,)], lambda dy, xs: xs[0] + dy.random_bernoulli(4, 1.0, 2.0), lambda xs: xs[0] + 2),
    Case("random_gumbel-0", [(4,)], lambda dy, xs: xs[0] + dy.random_gumbel(4, 2.0, 0.0), lambda xs: xs[0] + 2),
    Case(
        "vanilla_lstm_gates-weightnoise",
        [(X,), (H,), *WEIGHTS],
        lambda dy, xs: dy.vanilla_lstm_gates(*xs, weightnoise_std=1e-20),
        lambda xs: gates(*xs),
        batches=some_batches(5, 0, 1),
    ),
]


# ---- convolution ---------------------------------------------------------------------


def windows(x, size, stride, valid, fill):
    """All windows of an image, with those beyond its edges filled: out, out, size, size, channels."""
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


def filtered(x, f):
    f = f.reshape(*f.shape[:2], -1)
    n = x.shape[1] - f.shape[1] + 1
    return np.stack([np.einsum("ij,ijo->o", x[:, t : t + f.shape[1]], f) for t in range(n)], axis=1)


def k_greatest(x, k, axis):
    chosen = np.sort(np.argsort(-x, axis=axis, kind="stable").take(range(k), axis=axis), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis)


GEOMETRY = list(product([(1, 1), (2, 1), (1, 3), (2, 2)], [True, False]))
CONV = [
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
    # So large that Winograd's method is used.
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
    Case(
        "maxpooling2d-matrix",
        [(4, 4)],
        lambda dy, xs: dy.maxpooling2d(xs[0], [2, 2], [2, 2]),
        lambda xs: greatest(xs[0], (2, 2), (2, 2), True),
    ),
    Case("filter1d_narrow", [(3, 7), (3, 2)], lambda dy, xs: dy.filter1d_narrow(*xs), lambda xs: filtered(*xs)),
    Case("filter1d_narrow-many", [(3, 7), (3, 2, 4)], lambda dy, xs: dy.filter1d_narrow(*xs), lambda xs: filtered(*xs)),
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
]


# ---- losses and normalization ----------------------------------------------------------


def huber(d, c):
    return np.where(np.abs(d) <= c, d**2 / 2, c * np.abs(d) - c**2 / 2).sum()


def layer_normalized(x, g, b, axes):
    """g and b have the shape of x, or the axes that are normalized, or the first of them."""
    g, b = (
        p if p.ndim == x.ndim else p.reshape((1,) * axes[0] + p.shape + (1,) * (x.ndim - axes[0] - p.ndim))
        for p in (g, b)
    )
    return g * (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True) + b


def with_epsilon(x, g, b, axis, eps):
    g, b = (p.reshape((1,) * axis + p.shape + (1,) * (x.ndim - axis - 1)) for p in (g, b))
    return g * (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps) + b


LOSSES = [
    Case(
        "squared_distance",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.squared_distance(*xs),
        lambda xs: ((xs[0] - xs[1]) ** 2).sum(),
    ),
    Case("l1_distance", [(4, 3), (4, 3)], lambda dy, xs: dy.l1_distance(*xs), lambda xs: np.abs(xs[0] - xs[1]).sum()),
    Case(
        "huber_distance",
        [(4, 3), (4, 3)],
        lambda dy, xs: dy.huber_distance(*xs),
        lambda xs: huber(xs[0] - xs[1], 1.345),
        -2.0,
        2.0,
    ),
    Case(
        "huber_distance-c",
        [(5,), (5,)],
        lambda dy, xs: dy.huber_distance(*xs, c=0.4),
        lambda xs: huber(xs[0] - xs[1], 0.4),
    ),
    Case(
        "binary_log_loss",
        [(5,), (5,)],
        lambda dy, xs: dy.binary_log_loss(*xs),
        lambda xs: -(xs[1] * np.log(xs[0]) + (1 - xs[1]) * np.log(1 - xs[0])).sum(),
        0.1,
        0.9,
    ),
    Case(
        "pairwise_rank_loss",
        [(1, 5), (1, 5)],
        lambda dy, xs: dy.pairwise_rank_loss(*xs, m=0.4),
        lambda xs: np.maximum(0.4 - xs[0] + xs[1], 0),
    ),
    *[
        Case(
            f"poisson_loss-{k}",
            [(1,)],
            lambda dy, xs, k=k: dy.poisson_loss(xs[0], k),
            lambda xs, k=k: np.exp(xs[0]) - k * xs[0] + math.lgamma(k + 1),
        )
        for k in (0, 4)
    ],
]

NORM = [
    *[
        Case(
            f"layer_norm-eps-{'x'.join(map(str, x))}",
            [x, g, g],
            lambda dy, xs, axis=axis: dy.layer_norm(*xs, axis=axis, eps=0.5),
            lambda xs, axis=axis: with_epsilon(*xs, axis or 0, 0.5),
            tol=2e-5,
        )
        for x, g, axis in [((5, 3), (5,), None), ((3, 4), (4,), 1), ((1,), (1,), None)]
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
            lambda xs, eps=eps: with_epsilon(xs[0] + xs[1], *xs[2:], 0, eps or 0),
            tol=2e-5,
        )
        for x, eps in [((5,), None), ((5, 3), None), ((5, 3), 0.5), ((4, 2, 2), 0.5)]
    ],
    Case(
        "residual_layer_norm-dropout",
        [(5, 3), (5, 3), (5,), (5,)],
        lambda dy, xs: dy.residual_layer_norm(*xs, dropout=1.0),
        lambda xs: with_epsilon(xs[0], *xs[2:], 0, 0),
        tol=2e-5,
    ),
    Case(
        "weight_norm",
        [(4, 3), (1,)],
        lambda dy, xs: dy.weight_norm(*xs),
        lambda xs: xs[1] * xs[0] / np.sqrt((xs[0] ** 2).sum()),
    ),
]

CASES = [*SOFTMAX, *CELLS, *CERTAIN, *CONV, *LOSSES, *NORM]


# ---- random ops: draws, for statistical tests --------------------------------------------
# Name: the op applied to an expression x of ones, or a leaf of the shape of x.

RANDOM = {
    "dropout": lambda dy, x: dy.dropout(x, 0.3),
    "dropout_dim": lambda dy, x: dy.dropout_dim(x, 0, 0.3),
    "dropout_batch": lambda dy, x: dy.dropout_batch(x, 0.3),
    "block_dropout": lambda dy, x: dy.block_dropout(x, 0.3),
    "noise": lambda dy, x: dy.noise(x, 0.5),
    "random_normal": lambda dy, x: dy.random_normal(x.dim()[0], 1.0, 0.5, x.dim()[1]),
    "random_uniform": lambda dy, x: dy.random_uniform(x.dim()[0], -1.0, 3.0, x.dim()[1]),
    "random_bernoulli": lambda dy, x: dy.random_bernoulli(x.dim()[0], 0.7, 1 / 0.7, x.dim()[1]),
    "random_gumbel": lambda dy, x: dy.random_gumbel(x.dim()[0], 0.0, 1.0, x.dim()[1]),
}
