"""Labels and batch elements at indices that are values of the graph."""

from __future__ import annotations

import numpy as np
from case import many, whole
from cases_losses_crf import log_sum, scored


def hinge(x, v, margin: float):
    losses = np.maximum(margin - x[v] + x, 0)
    return np.delete(losses, v).sum()[None]


def own_label(x):
    return int(x.argmax())


def crf_loss(x, tags, transitions, start, end):
    ys, scores = scored(x, transitions, start, end)
    return log_sum(scores) - scores[(ys == tags).all(1)]


def numbers(batch: int):
    return np.array([batch - 1, 0, 0, batch // 2])


CASES = [
    whole(
        "pick_batch_elems-at",
        (4, 2),
        lambda dy, x: dy.pick_batch_elems(x, dy.input_indices(numbers(x.dim()[1]))),
        lambda x: x[..., numbers(x.shape[-1])],
    ),
    whole(
        "pick_batch_elems-at-each",
        (3,),
        lambda dy, x: dy.pick_batch_elems(x, dy.input_indices(numbers(x.dim()[1])[None], batched=True)),
        lambda x: x[..., numbers(x.shape[-1])],
    ),
    whole(
        "pick_batch_elem-at",
        (4, 2),
        lambda dy, x: dy.pick_batch_elem(x, dy.input_indices(x.dim()[1] - 1)),
        lambda x: x[..., -1:],
    ),
    many(
        "pickneglogsoftmax_list-at",
        [(5,), (5,)],
        lambda dy, x, s: dy.pickneglogsoftmax_list([x], [dy.argmax(s)])[0],
        lambda x, s: (np.log(np.exp(x).sum()) - x[own_label(s)])[None],
        grad=(True, False),
    ),
    *[
        many(
            f"hinge-at-{margin}",
            [(5,), (5,)],
            lambda dy, x, s, margin=margin: dy.hinge(x, dy.argmax(s), margin),
            lambda x, s, margin=margin: hinge(x, own_label(s), margin),
            grad=(True, False),
        )
        for margin in (1.0, -0.2)
    ],
    many(
        "hinge_batch-at",
        [(5,), (5,)],
        lambda dy, x, s: dy.hinge_batch(x, dy.argmax(s)),
        lambda x, s: hinge(x, own_label(s), 1.0),
        grad=(True, False),
    ),
    *[
        many(
            f"hinge_dim-at-{axis}",
            [(4, 3), (4, 3)],
            lambda dy, x, s, axis=axis: dy.hinge_dim(x, dy.argmax(s, d=axis), axis),
            lambda x, s, axis=axis: np.concatenate(
                [hinge(line, own_label(other), 1.0) for line, other in zip(*(np.moveaxis(a, axis, 1) for a in (x, s)))]
            ),
            grad=(True, False),
        )
        for axis in (0, 1)
    ],
    many(
        "log_softmax-restrict-at",
        [(5,), (5,)],
        lambda dy, x, s: dy.exp(dy.log_softmax(x, dy.topk(s, 3)[1])),
        lambda x, s: np.exp(x) * (s >= np.sort(s)[-3]) / np.exp(x[s >= np.sort(s)[-3]]).sum(),
        grad=(True, False),
    ),
    *[
        many(
            f"crf_loss-at-{n}",
            [(3, n), (3, 3), (3,), (3,), (3, n)],
            lambda dy, x, t, a, e, s: dy.crf_loss(x, dy.argmax(s), t, a, e),
            lambda x, t, a, e, s: crf_loss(x, s.argmax(0), t, a, e),
            grad=(True, True, True, True, False),
        )
        for n in (1, 4)
    ],
]
