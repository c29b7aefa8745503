"""Softmax and losses of classification."""

from __future__ import annotations

import numpy as np
from case import Case, one


def normalized(x, axis=0):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def log_normalized(x, axis=0):
    less = x - x.max(axis=axis, keepdims=True)
    return less - np.log(np.exp(less).sum(axis=axis, keepdims=True))


def logsumexp(x, axis=0):
    top = x.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis=axis))


def restricted(x, chosen):
    y = np.full(x.shape, -np.inf)
    y[chosen] = x[chosen] - logsumexp(x[chosen])
    return y


def projected(x):
    """Sparsemax of a vector by its definition: the closest point of the simplex."""
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
    """Losses of a batch with one class for each element; the batch is the last axis."""
    return np.array([[logsumexp(x[:, b]) - x[v, b] for b, v in zip(range(x.shape[-1]), vs)]])


def each(x, vs):
    """As many of the indices as x has batch elements."""
    return vs[: (x * 1.0).dim()[1]]


M = np.array([1.0, 0.0, 1.0, 1.0])

CASES = [
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
    *[
        one(
            f"softmin-{'x'.join(map(str, shape))}-axis{d}",
            shape,
            lambda dy, x, d=d: dy.softmin(x, d),
            lambda x, d=d: normalized(-x, d),
            low=-3.0,
            high=3.0,
            long=shape == (7,),
        )
        for shape, d in [((7,), 0), ((4, 3), 1), ((4, 3), -1), ((3, 4, 2), 0), ((3, 4, 2), 1), ((3, 4, 2), 2)]
    ],
    Case("log_softmax", [(7,)], lambda dy, xs: dy.log_softmax(xs[0]), lambda xs: log_normalized(xs[0]), -3.0, 3.0),
    Case(
        "log_softmax-matrix",
        [(5, 3)],
        lambda dy, xs: dy.log_softmax(xs[0]),
        lambda xs: log_normalized(xs[0]),
        -3.0,
        3.0,
    ),
    *[
        one(
            f"log_softmax_along-{'x'.join(map(str, shape))}-axis{d}",
            shape,
            lambda dy, x, d=d: dy.log_softmax(x, d=d),
            lambda x, d=d: log_normalized(x, d),
            low=-3.0,
            high=3.0,
        )
        for shape, d in [((4, 3), 1), ((1, 5), 1), ((3, 4, 2), 1), ((3, 4, 2), -1)]
    ],
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
    one("softmax-d-last", (4, 3, 2), lambda dy, x: dy.softmax(x, -1), lambda x: normalized(x, -1)),
    one("log_softmax-d-last", (4, 3, 2), lambda dy, x: dy.log_softmax(x, d=-1), lambda x: np.log(normalized(x, -1))),
    one("log_softmax-d-middle", (4, 3, 2), lambda dy, x: dy.log_softmax(x, d=1), lambda x: np.log(normalized(x, 1))),
    one(
        "softmax-mask",
        (4, 3),
        lambda dy, x: dy.softmax(x, mask=M),
        lambda x: normalized(np.where(M[:, None] != 0, x, -np.inf), 0),
    ),
    one(
        "softmax-mask-rows",
        (3, 4),
        lambda dy, x: dy.softmax(x, 1, mask=M[None]),
        lambda x: normalized(np.where(M != 0, x, -np.inf), 1),
    ),
    one(
        "log_softmax-without",
        (3, 4),
        lambda dy, x: dy.log_softmax(x, d=1, mask=M[None])[:, [0, 2, 3]],
        lambda x: np.log(normalized(x[:, [0, 2, 3]], 1)),
    ),
]
