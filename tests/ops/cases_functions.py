"""Functions that are made of ops (`dynet_cy/functions`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from case import Case


def one(case: str, shape, build: Callable, f: Callable, **more) -> Case:
    """A case of one argument."""
    return Case(case, [shape], lambda dy, xs: build(dy, xs[0]), lambda xs: f(xs[0]), **more)


def many(case: str, shapes, build: Callable, f: Callable, **more) -> Case:
    """A case of several arguments."""
    return Case(case, shapes, lambda dy, xs: build(dy, *xs), lambda xs: f(*xs), **more)


def p_norm(x, p, axis=None, keepdims=False):
    over = tuple(range(x.ndim)) if axis is None else axis
    a = np.abs(x)
    y = a.max(over, keepdims=keepdims) if math.isinf(p) else (a**p).sum(over, keepdims=keepdims) ** (1 / p)
    return np.atleast_1d(y)


def grouped(x, groups, g, b):
    y = x.reshape((*x.shape[:-1], x.shape[-1] // groups, groups), order="F")
    over = tuple(range(y.ndim - 1))
    y = (y - y.mean(over, keepdims=True)) / np.sqrt(y.var(over, keepdims=True) + 1e-5)
    return y.reshape(x.shape, order="F") * g + b


NORMS = [
    *[
        one(
            f"norm-{p}-{axis}",
            (4, 3),
            lambda dy, x, p=p, a=axis: dy.norm(x, p, a),
            lambda x, p=p, a=axis: p_norm(x, p, a),
        )
        for p in (1, 2, 3, 2.5, math.inf)
        for axis in (None, 0, -1)
    ],
    one("norm-keep", (4, 3), lambda dy, x: dy.norm(x, 2, (0, 1), True), lambda x: p_norm(x, 2, (0, 1), True)),
    one("normalize", (4, 3), lambda dy, x: dy.normalize(x), lambda x: x / p_norm(x, 2, 0, True)),
    one("normalize-rows", (4, 3), lambda dy, x: dy.normalize(x, 1, -1), lambda x: x / p_norm(x, 1, -1, True)),
    one("clip_norm", (4, 3), lambda dy, x: dy.clip_norm(x, 0.5), lambda x: x * min(1, 0.5 / p_norm(x, 2)[0])),
    one("clip_norm-all", (4,), lambda dy, x: dy.clip_norm(x, 9), lambda x: x),
    one(
        "clip_norm-columns",
        (4, 3),
        lambda dy, x: dy.clip_norm(x, 1, 0),
        lambda x: x * np.minimum(1, 1 / p_norm(x, 2, 0, True)),
    ),
    many(
        "cosine_similarity",
        [(4, 3), (4, 3)],
        lambda dy, x, y: dy.cosine_similarity(x, y),
        lambda x, y: (x * y).sum(0) / (p_norm(x, 2, 0) * p_norm(y, 2, 0)),
    ),
    many(
        "rms_norm",
        [(4, 3), (4,)],
        lambda dy, x, g: dy.rms_norm(x, g),
        lambda x, g: x / np.sqrt((x**2).mean(0) + 1e-6) * g[:, None],
    ),
    one(
        "rms_norm-last",
        (2, 4, 3),
        lambda dy, x: dy.rms_norm(x, axis=-1, eps=0.1),
        lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1),
    ),
    many(
        "group_norm",
        [(3, 2, 6), (6,), (6,)],
        lambda dy, x, g, b: dy.group_norm(x, 2, g, b),
        lambda x, g, b: grouped(x, 2, g, b),
        tol=3e-5,
    ),
]


def log_softmax(x, d=0):
    return x - np.log(np.exp(x).sum(d, keepdims=True))


def added(x, indices, source, axis):
    y = x.copy()
    places = list(np.indices(indices.shape))
    places[axis] = indices
    np.add.at(y, tuple(places), source)
    return y


def put(x, indices, source, axis):
    y = x.copy()
    np.put_along_axis(y, indices, source, axis)
    return y


PLACES = np.array([[0, 3, 1], [2, 3, 0]])  # along axis 0 of {4,3}
COLS = np.array([[2, 0], [1, 1], [0, 2], [2, 2]])  # along axis 1

SHAPES = [
    *[
        many(
            f"stack-{axis}", [(4, 3)] * 3, lambda dy, *xs, a=axis: dy.stack(xs, a), lambda *xs, a=axis: np.stack(xs, a)
        )
        for axis in (0, 1, 2, -1)
    ],
    one("split", (5, 2), lambda dy, x: dy.concatenate(dy.split(x, 2)[::-1]), lambda x: x[[4, 2, 3, 0, 1]]),
    one("split-sizes", (4, 5), lambda dy, x: dy.split(x, [1, 3, 1], -1)[1], lambda x: x[:, 1:4]),
    one(
        "pad",
        (4, 3),
        lambda dy, x: dy.pad(x, [(1, 0), (2, 1)], 7),
        lambda x: np.pad(x, [(1, 0), (2, 1)], constant_values=7),
    ),
    one("pad-all", (4, 3), lambda dy, x: dy.pad(x, 1), lambda x: np.pad(x, 1)),
    many("outer", [(4,), (3,)], lambda dy, x, y: dy.outer(x, y), np.outer),
    one("eye", (3, 4), lambda dy, x: x + dy.eye(3, 4), lambda x: x + np.eye(3, 4)),
    one("arange", (4,), lambda dy, x: x + dy.arange(1, 3, 0.5), lambda x: x + np.arange(1, 3, 0.5)),
    one("gather", (4, 3), lambda dy, x: dy.gather(x, PLACES), lambda x: np.take_along_axis(x, PLACES, 0)),
    one("gather-last", (4, 3), lambda dy, x: dy.gather(x, COLS, -1), lambda x: np.take_along_axis(x, COLS, 1)),
    one(
        "gather-batch",
        (4, 3),
        lambda dy, x: dy.gather(x, np.stack([PLACES, PLACES[::-1], PLACES // 2], -1)),
        lambda x: np.take_along_axis(
            np.broadcast_to(x, (4, 3, 3)), np.stack([PLACES, PLACES[::-1], PLACES // 2], -1), 0
        ),
        batches=[(1,), (3,)],
        whole_batch=True,
    ),
    many(
        "scatter_add",
        [(4, 3), (2, 3)],
        lambda dy, x, y: dy.scatter_add(x, PLACES // 2, y),
        lambda x, y: added(x, PLACES // 2, y, 0),
    ),
    many(
        "scatter",
        [(4, 3), (2, 3)],
        lambda dy, x, y: dy.scatter(x, np.array([[0, 3, 1], [2, 1, 0]]), y),
        lambda x, y: put(x, np.array([[0, 3, 1], [2, 1, 0]]), y, 0),
    ),
    one(
        "scatter_rows",
        (4,),
        lambda dy, x: dy.scatter_rows(x, [2, 0, 2, 5], 6),
        lambda x: added(np.zeros(6), np.array([2, 0, 2, 5]), x, 0),
    ),
]

EINSUMS = [
    many(
        f"einsum-{spec}",
        shapes,
        lambda dy, *xs, s=spec: dy.einsum(s, *xs),
        lambda *xs, s=spec: np.atleast_1d(np.einsum(s, *xs)),
    )
    for spec, shapes in [
        ("ij,jk->ik", [(4, 3), (3, 2)]),
        ("ij,kj->ik", [(4, 3), (2, 3)]),
        ("ij,ij->", [(4, 3), (4, 3)]),
        ("ii->", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("ij->j", [(4, 3)]),
        ("ijk->kij", [(4, 3, 2)]),
        ("i,j->ij", [(4,), (3,)]),
        ("i,ijk,k->j", [(4,), (4, 3, 2), (2,)]),
        ("dhn,dhm->nmh", [(3, 2, 4), (3, 2, 5)]),
        ("nmh,dhn->dhm", [(4, 5, 2), (3, 2, 4)]),
        ("kil,kjl->ijl", [(3, 4, 2), (3, 5, 2)]),
        ("hij,hjk->hik", [(2, 4, 3), (2, 3, 5)]),
        ("ij,jk", [(4, 3), (3, 2)]),
        ("ij...,jk...->ik...", [(4, 3, 2), (3, 2, 2)]),
        ("...i,i->...", [(2, 3, 4), (4,)]),
        ("ij...", [(4, 3, 2)]),
    ]
]

ORDER = [
    *[one(f"sort-{d}", (4, 5, 3), lambda dy, x, d=d: dy.sort(x, d), lambda x, d=d: np.sort(x, d)) for d in (0, 1, -1)],
    one("sort-descending", (7,), lambda dy, x: dy.sort(x, descending=True), lambda x: -np.sort(-x)),
    one("argsort", (5, 3), lambda dy, x: dy.argsort(x, 1) + x, lambda x: np.argsort(x, 1) + x),
    one("topk", (5, 3), lambda dy, x: dy.topk(x, 2)[0], lambda x: -np.sort(-x, 0)[:2]),
    one("topk-places", (5, 3), lambda dy, x: dy.topk(x, 5, 0, False)[1] + x, lambda x: np.argsort(x, 0) + x),
    *[
        one(f"cumprod-{d}", (4, 5, 3), lambda dy, x, d=d: dy.cumprod(x, d), lambda x, d=d: np.cumprod(x, d))
        for d in (0, 1, -1)
    ],
    one(
        "cumprod-zeros",
        (5,),
        lambda dy, x: dy.cumprod(dy.where(np.array([1, 0, 1, 0, 1]), x, 0)),
        lambda x: np.cumprod(x * [1, 0, 1, 0, 1]),
    ),
]

TAGS = np.array([2, 0, 3])
WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])


def nll(x, tags=TAGS, smoothing=0.0, weights=None):
    """Of each column."""
    w = np.ones(4) if weights is None else weights
    logs = log_softmax(x)
    n = np.arange(len(tags))
    return -(1 - smoothing) * w[tags] * logs[tags, n] - smoothing / 4 * (w[:, None] * logs).sum(0)


SOFT = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.1], [0.3, 0.2, 0.1], [0.1, 0.1, 0.1]])

LOSSES = [
    one("cross_entropy", (4, 3), lambda dy, x: dy.cross_entropy(x, TAGS), lambda x: np.atleast_1d(nll(x).mean())),
    one("cross_entropy-vector", (4,), lambda dy, x: dy.cross_entropy(x, 2), lambda x: -log_softmax(x)[2:3]),
    one(
        "cross_entropy-rows", (3, 4), lambda dy, x: dy.cross_entropy(x, TAGS, -1, reduction="none"), lambda x: nll(x.T)
    ),
    one(
        "cross_entropy-tensor",
        (2, 4, 3),
        lambda dy, x: dy.cross_entropy(x, np.array([TAGS, TAGS[::-1]]), 1, reduction="sum"),
        lambda x: np.atleast_1d(nll(x[0]).sum() + nll(x[1], TAGS[::-1]).sum()),
    ),
    one(
        "cross_entropy-smooth",
        (4, 3),
        lambda dy, x: dy.cross_entropy(x, TAGS, label_smoothing=0.1, weights=WEIGHTS),
        lambda x: np.atleast_1d(nll(x, TAGS, 0.1, WEIGHTS).sum() / WEIGHTS[TAGS].sum()),
    ),
    one(
        "cross_entropy-ignored",
        (4, 3),
        lambda dy, x: dy.cross_entropy(x, [2, -100, 3], weights=WEIGHTS, ignore_index=-100),
        lambda x: np.atleast_1d(nll(x, TAGS, 0, WEIGHTS)[[0, 2]].sum() / WEIGHTS[[2, 3]].sum()),
    ),
    one(
        "cross_entropy-batch",
        (4, 2),
        lambda dy, x: dy.cross_entropy(x, np.array([[2, -1, 0], [1, 3, -1]]), ignore_index=-1, label_smoothing=0.2),
        lambda x: np.array(
            [
                [
                    nll(x[..., 0], np.array([2, 1]), 0.2).mean(),
                    nll(x[:, 1:, 1], np.array([3]), 0.2)[0],
                    nll(x[:, :1, 2], np.array([0]), 0.2)[0],
                ]
            ]
        ),
        batches=[(3,)],
        whole_batch=True,
    ),
    one(
        "cross_entropy-probabilities",
        (4, 3),
        lambda dy, x: dy.cross_entropy(x, SOFT, label_smoothing=0.1, weights=WEIGHTS),
        lambda x: np.atleast_1d(-((SOFT * 0.9 + 0.025) * WEIGHTS[:, None] * log_softmax(x)).sum(0).mean()),
    ),
    many(
        "cross_entropy-expression",
        [(4, 3), (4, 3)],
        lambda dy, x, p: dy.cross_entropy(x, p),
        lambda x, p: np.atleast_1d(-(p * log_softmax(x)).sum(0).mean()),
    ),
    one(
        "focal_loss",
        (4, 3),
        lambda dy, x: dy.focal_loss(x, TAGS, 1.5),
        lambda x: np.atleast_1d(((1 - np.exp(-nll(x))) ** 1.5 * nll(x)).mean()),
    ),
    one("focal_loss-0", (4, 3), lambda dy, x: dy.focal_loss(x, TAGS, 0, reduction="none"), lambda x: nll(x)),
    many(
        "triplet_loss",
        [(4, 3)] * 3,
        lambda dy, a, p, n: dy.triplet_loss(a, p, n),
        lambda a, p, n: np.maximum(p_norm(a - p, 2, 0) - p_norm(a - n, 2, 0) + 1, 0),
    ),
    many(
        "kl_divergence",
        [(4, 3), (4, 3)],
        lambda dy, p, q: dy.kl_divergence(dy.log_softmax(p), dy.log_softmax(q), 0),
        lambda p, q: (np.exp(log_softmax(p)) * (log_softmax(p) - log_softmax(q))).sum(0),
    ),
    many(
        "gaussian_nll",
        [(4, 3), (4, 3), (4, 3)],
        lambda dy, m, x, v: dy.gaussian_nll(m, x, v, full=True),
        lambda m, x, v: np.atleast_1d(0.5 * (np.log(v) + (m - x) ** 2 / v + np.log(2 * np.pi)).sum()),
        low=(-1, -1, 0.5),
        high=(1, 1, 2),
    ),
    one(
        "gaussian_nll-number",
        (4,),
        lambda dy, m: dy.gaussian_nll(m, np.ones(4), 2),
        lambda m: np.atleast_1d(0.5 * (np.log(2) + (m - 1) ** 2 / 2).sum()),
    ),
]

CHOICES = [
    one("softmin", (4, 3), lambda dy, x: dy.softmin(x, 1), lambda x: np.exp(log_softmax(-x, 1))),
    many(
        "straight_through",
        [(4,), (4,)],
        lambda dy, h, s: dy.straight_through(h > 0, s) - s + dy.nobackprop(s) + h,
        lambda h, s: (h > 0) + h,
    ),
]

CASES = [*NORMS, *SHAPES, *EINSUMS, *ORDER, *LOSSES, *CHOICES]
