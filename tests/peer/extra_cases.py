"""Rows for the comparison only: uses that tests/ops has only in forms that DyNet refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

OPS = str(Path(__file__).resolve().parent.parent / "ops")
if OPS not in sys.path:
    sys.path.insert(0, OPS)

from case import Case  # noqa: E402
from table import CASES as TABLE  # noqa: E402


def row(name, shapes, build, low=-1.0, high=1.0, **more) -> Case:
    """A row without a formula: DyNet is the reference."""
    return Case(f"peer-{name}", shapes, build, None, low, high, **more)


GATES = [(3,), (5,), (20, 3), (20, 5), (20,)]

EXTRA = [
    row("softsign", [(5,)], lambda dy, xs: dy.softsign(xs[0])),
    row("add-number", [(4, 3)], lambda dy, xs: xs[0] + 1.5),
    row("add-int", [(4, 3)], lambda dy, xs: xs[0] + 2),
    row("sub-number", [(4, 3)], lambda dy, xs: xs[0] - 1.5),
    row("mul-number", [(4, 3)], lambda dy, xs: xs[0] * 1.5),
    row("div-number", [(4, 3)], lambda dy, xs: xs[0] / 3),
    row("negate", [(4, 3)], lambda dy, xs: -xs[0]),
    row("chain", [(4, 3), (4, 3)], lambda dy, xs: -(xs[0] * 2 - xs[1] / 2 + 1) - xs[0]),
    row("matmul-chain", [(4, 3), (3, 2), (2,)], lambda dy, xs: xs[0] * xs[1] * xs[2]),
    row("matmul-outer", [(4,), (3,)], lambda dy, xs: xs[0] * dy.transpose(xs[1])),
    row("pow-scalar", [(4, 3)], lambda dy, xs: dy.pow(xs[0], dy.scalarInput(2.5)), 0.3, 2.0),
    row("moment_dim", [(4, 3)], lambda dy, xs: dy.moment_dim(xs[0], [0], 3, False)),
    row("moment_dim-two", [(4, 3, 2)], lambda dy, xs: dy.moment_dim(xs[0], [2, 0], 2, b=False, n=0)),
    row("mean_dim", [(4, 3)], lambda dy, xs: dy.mean_dim(xs[0], [1], False)),
    row("mean_dim-batch", [(4, 3)], lambda dy, xs: dy.mean_dim(xs[0], [1], True)),
    row("std_dim", [(4, 3)], lambda dy, xs: dy.std_dim(xs[0], [1], False)),
    row("std_dim-batch", [(4, 3)], lambda dy, xs: dy.std_dim(xs[0], [0], b=True)),
    row("sum_dim-n", [(4, 3)], lambda dy, xs: dy.sum_dim(xs[0], d=[0], b=False)),
    row("max_dim", [(4, 3)], lambda dy, xs: dy.max_dim(xs[0])),
    row("min_dim", [(4, 3)], lambda dy, xs: dy.min_dim(xs[0])),
    row("cumsum", [(4, 3)], lambda dy, xs: dy.cumsum(xs[0])),
    row("logsumexp_dim", [(4, 3)], lambda dy, xs: dy.logsumexp_dim(xs[0])),
    row("argmax", [(5,)], lambda dy, xs: dy.argmax(xs[0], gradient_mode="zero_gradient")),
    row("argmax-through", [(5,)], lambda dy, xs: dy.argmax(xs[0], gradient_mode="straight_through_gradient")),
    row("flip_gradient", [(4, 3)], lambda dy, xs: dy.flip_gradient(xs[0])),
    row("scale_gradient", [(4, 3)], lambda dy, xs: dy.scale_gradient(xs[0], 2.5)),
    row("nobackprop", [(4, 3)], lambda dy, xs: dy.nobackprop(xs[0])),
    row("reshape-batch", [(4, 3)], lambda dy, xs: dy.reshape(xs[0], (6,), batch_size=2 * xs[0].dim()[1])),
    row("transpose-default", [(4, 3)], lambda dy, xs: dy.transpose(xs[0])),
    row("concatenate-default", [(4,), (3,)], lambda dy, xs: dy.concatenate(xs)),
    row("softmax-default", [(4,)], lambda dy, xs: dy.softmax(xs[0])),
    row("softmax-rows", [(4, 3)], lambda dy, xs: dy.softmax(xs[0], d=1)),
    row("restricted", [(6,)], lambda dy, xs: dy.exp(dy.log_softmax(xs[0], [4, 1, 2])), batches=[(1,)]),
    row("pickneglogsoftmax", [(6,)], lambda dy, xs: dy.pickneglogsoftmax(xs[0], 2), batches=[(1,)]),
    row("hinge", [(6,)], lambda dy, xs: dy.hinge(xs[0], 2), batches=[(1,)]),
    row("hinge_dim-rows", [(3, 5)], lambda dy, xs: dy.hinge_dim(xs[0], [2, 0, 1], d=1, m=0.5), batches=[(1,)]),
    row("kmax_pooling-default", [(3, 5)], lambda dy, xs: dy.kmax_pooling(xs[0], 2)),
    row("conv2d-batch", [(6, 5, 2), (3, 2, 2, 4)], lambda dy, xs: dy.conv2d(*xs, [2, 1]), batches=[(1, 1), (3, 1)]),
    row(
        "conv2d-same",
        [(6, 5, 2), (3, 2, 2, 4), (4,)],
        lambda dy, xs: dy.conv2d_bias(*xs, stride=[1, 2], is_valid=False),
        batches=[(1, 1, 1), (3, 1, 1)],
    ),
    row("gates", GATES, lambda dy, xs: dy.vanilla_lstm_gates(*xs), batches=[(1,) * 5, (3, 3, 1, 1, 1)]),
    row("dropout-0", [(4, 3)], lambda dy, xs: dy.dropout(xs[0], p=0.0)),
    row("noise-0", [(4, 3)], lambda dy, xs: dy.noise(xs[0], stddev=0.0)),
    row("huber_distance", [(5,), (5,)], lambda dy, xs: dy.huber_distance(*xs), -3.0, 3.0, batches=[(1, 1)]),
    row("pairwise_rank_loss", [(1, 5), (1, 5)], lambda dy, xs: dy.pairwise_rank_loss(*xs), batches=[(1, 1), (3, 3)]),
    row("colwise_add", [(4, 3), (4,)], lambda dy, xs: dy.colwise_add(*xs)),
    row("inputTensor-1", [(4,)], lambda dy, xs: xs[0] + dy.inputTensor([1.0, 2, 3, 4])),
    row("inputTensor-3", [(2, 1, 2)], lambda dy, xs: xs[0] + dy.inputTensor(np.arange(4.0).reshape(2, 1, 2))),
    row(
        "inputTensor-batched", [(2,)], lambda dy, xs: xs[0] + dy.inputTensor(np.eye(2, 3), batched=True), batches=[(1,)]
    ),
    row("inputVector-numpy", [(4,)], lambda dy, xs: xs[0] + dy.inputVector(np.arange(4.0))),
    row("zeroes", [(4, 3)], lambda dy, xs: xs[0] + dy.zeroes((4, 3), batch_size=3), batches=[(1,), (3,)]),
    row("zeros-number", [(4,)], lambda dy, xs: xs[0] + dy.zeros(4)),
    row("constant-batch", [(4,)], lambda dy, xs: xs[0] + dy.constant((4,), 2.5, batch_size=3)),
    row("index", [(4, 3)], lambda dy, xs: xs[0][1]),
    row("index-negative", [(4, 3)], lambda dy, xs: xs[0][-1]),
    row("index-slice", [(4, 3)], lambda dy, xs: xs[0][1:3]),
    row("index-slices", [(4, 3)], lambda dy, xs: xs[0][1:4:2, 0:2]),
    row("index-all", [(4, 3)], lambda dy, xs: xs[0][:]),
    row("index-vector", [(4,)], lambda dy, xs: xs[0][2]),
    row("attention", [(4, 3), (3,)], lambda dy, xs: xs[0] * dy.softmax(dy.transpose(xs[0]) * (xs[0] * xs[1]))),
    row(
        "mlp",
        [(4,), (5, 4), (5,), (3, 5), (3,)],
        lambda dy, xs: dy.log_softmax(xs[3] * dy.tanh(xs[1] * xs[0] + xs[2]) + xs[4]),
        batches=[(1,) * 5, (3, 1, 1, 1, 1)],
    ),
]

# `continuations` is a step of our search, which takes our expressions only.
CASES = [*(case for case in TABLE if not case.id.startswith("continuations")), *EXTRA]
