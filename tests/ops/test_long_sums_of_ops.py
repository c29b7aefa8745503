"""Every op that sums, with a million terms: values and gradients agree with float64 to 1e-5."""

from __future__ import annotations

import math

import elementwise
import numpy as np
import pytest
from table import CASES

import dynet_cy as dy
from dynet_cy.ops.registry import describe

N = 1_000_000
RNG = np.random.default_rng(0)
POSITIVE = RNG.uniform(0.05, 0.15, N).astype(np.float32)  # of one sign, so that rounding errors of a running sum add up
EQUAL = np.full(N, 0.1, np.float32)
SIGNED = (RNG.normal(size=N) + 0.5).astype(np.float32)
FAR = RNG.normal(3, 1e-3, N).astype(np.float32)
P, E, S = (v.astype(float) for v in (POSITIVE, EQUAL, SIGNED))


def put(x) -> dy.Expression:
    return dy.inputTensor(np.asarray(x))


def softmax(v):
    e = np.exp(v - v.max())
    return e / e.sum()


def centered(v, eps=0.0):
    return (v - v.mean()) / np.sqrt(v.var() + eps)


def unit(v):
    return v / np.sqrt((v**2).sum())


def log_sum(v):
    return math.log(np.exp(v).sum())


def zero_one(x) -> tuple[dy.Expression, dy.Expression]:
    n = x.dim()[0][0]
    return dy.ones(n), dy.zeros(n)


def batch_normalized(x: dy.Expression, axis: int = 0) -> dy.Expression:
    moments = dy.batch_moments(x, axis)
    return dy.channel_norm(x, dy.pick(moments, 0, 1), dy.pick(moments, 1, 1), *zero_one(dy.pick(moments, 0, 1)), axis)


def chain(x, transitions):
    """The logarithm of the sum over all sequences of two tags."""
    x, (stay, there, back, also) = x.astype(float), transitions.astype(float).ravel()
    a, b, total = x[0, 0], x[1, 0], 0.0
    for u, v in x.T[1:]:
        top = max(a, b)
        p, q = math.exp(a - top), math.exp(b - top)
        a, b = (
            math.log(p * math.exp(stay) + q * math.exp(back)) + u,
            math.log(p * math.exp(there) + q * math.exp(also)) + v,
        )
        total += top
    return total + np.logaddexp(a, b)


def score(x, tags, transitions):
    """The score of a sequence of tags."""
    return x.astype(float)[tags, np.arange(len(tags))].sum() + transitions.astype(float)[tags[:-1], tags[1:]].sum()


WORDS = 200_000
SCORES = RNG.normal(size=(2, WORDS)).astype(np.float32)
MOVES = RNG.normal(size=(2, 2)).astype(np.float32)
TAGS = RNG.integers(0, 2, WORDS)
LABELS = RNG.integers(0, 2, N)
TWO = np.stack([SIGNED, -SIGNED])
NORMALS = np.log(np.exp(TWO.astype(float)).sum(0)) - TWO.astype(float)[LABELS, np.arange(N)]
ENDS = np.zeros(2, np.float32)
ROUND = 20_000  # for ops with quadratic cost

# The name of the op or function: how to make the value, and the expected value.  Rows of the table that may be long
# come first.
VALUES = {
    **{
        case.id: (lambda case=case: case.build(dy, [put(POSITIVE)]), case.reference([P])) for case in CASES if case.long
    },
    "sum": (lambda: dy.sum_elems(put(POSITIVE)), P.sum()),
    "sum-columns": (lambda: dy.sum_dim(put(TWO), [1]), TWO.astype(float).sum(1)),
    "sum_dim-between": (lambda: dy.sum_dim(put(POSITIVE.reshape(2, 1, -1)), [0, 2]), [P.sum()]),
    "sum_batches": (lambda: dy.sum_batches(dy.inputTensor(TWO, batched=True)), TWO.astype(float).sum(1)),
    "mean": (lambda: dy.mean_elems(put(EQUAL)), E.mean()),
    "mean-columns": (lambda: dy.mean_dim(put(TWO), [1]), TWO.astype(float).mean(1)),
    "mean_batches": (lambda: dy.mean_batches(dy.inputTensor(TWO, batched=True)), TWO.astype(float).mean(1)),
    "moment-2": (lambda: dy.moment_elems(put(POSITIVE), 2), (P**2).mean()),
    "moment-3": (lambda: dy.moment_elems(put(POSITIVE), 3), (P**3).mean()),
    "moment-columns": (lambda: dy.moment_dim(put(TWO), [1], 2), (TWO.astype(float) ** 2).mean(1)),
    "moment-4": (lambda: dy.moment_elems(put(POSITIVE), 4), (P**4).mean()),
    "std": (lambda: dy.std_elems(put(SIGNED)), S.std()),
    "std-far": (lambda: dy.std_elems(put(FAR)), FAR.std(dtype=float)),
    "std-columns": (lambda: dy.std_dim(put(FAR[None]), [1]), FAR.std(dtype=float)),
    "cumsum": (lambda: dy.cumsum(put(POSITIVE)), np.cumsum(P)),
    "logcumsumexp": (lambda: dy.logcumsumexp(put(SIGNED)), np.logaddexp.accumulate(S)),
    "logcumsumexp-columns": (lambda: dy.logcumsumexp(put(SIGNED[None]), 1), np.logaddexp.accumulate(S)),
    "cumsum-columns": (lambda: dy.cumsum(put(POSITIVE[None]), 1), np.cumsum(P)),
    "logsumexp_dim": (lambda: dy.logsumexp_dim(put(SIGNED)), log_sum(S)),
    "logsumexp_dim-columns": (lambda: dy.logsumexp_dim(put(SIGNED[None]), 1), log_sum(S)),
    "softmax": (lambda: dy.softmax(put(SIGNED)), softmax(S)),
    "softmax-columns": (lambda: dy.softmax(put(SIGNED[None]), 1), softmax(S)),
    "constrained_softmax": (lambda: dy.constrained_softmax(put(SIGNED), dy.ones(N)), softmax(S)),
    "log_softmax": (lambda: dy.log_softmax(put(SIGNED)), S - log_sum(S)),
    "log_softmax_along": (lambda: dy.log_softmax(put(SIGNED[None]), d=1), S - log_sum(S)),
    "restricted_log_softmax": (
        lambda: dy.log_softmax(put(POSITIVE), range(60_000))[:60_000],
        P[:60_000] - log_sum(P[:60_000]),
    ),
    "pickneglogsoftmax": (lambda: dy.pickneglogsoftmax(put(SIGNED), 5), log_sum(S) - S[5]),
    "pickneglogsoftmax_at": (lambda: dy.pickneglogsoftmax(put(SIGNED), dy.input_indices(5)), log_sum(S) - S[5]),
    "sparsemax": (lambda: dy.sparsemax(put(EQUAL * 1e-9)), 1 / N),
    "hinge": (lambda: dy.hinge(put(POSITIVE), 5, 1.0), (1 - P[5] + np.delete(P, 5)).sum()),
    "hinge_dim": (lambda: dy.hinge_dim(put(POSITIVE[:, None]), [5], 0, 1.0), (1 - P[5] + np.delete(P, 5)).sum()),
    "dot_product": (lambda: dy.dot_product(put(EQUAL), put(POSITIVE)), (E * P).sum()),
    "trace_of_product": (lambda: dy.trace_of_product(put(EQUAL[:, None]), put(POSITIVE[:, None])), (E * P).sum()),
    "einsum": (lambda: dy.einsum("i,i->", put(EQUAL), put(POSITIVE)), (E * P).sum()),
    "filter1d_narrow": (lambda: dy.filter1d_narrow(put(EQUAL[None]), put(POSITIVE[None])), (E * P).sum()),
    "fold_rows": (lambda: dy.fold_rows(put(POSITIVE), N), P.sum()),
    "kmh_ngram": (lambda: dy.kmh_ngram(put(POSITIVE[None]), N), P.sum()),
    "circ_conv": (lambda: dy.circ_conv(put(EQUAL[:ROUND]), put(POSITIVE[:ROUND])), 0.1 * P[:ROUND].sum()),
    "circ_corr": (lambda: dy.circ_corr(put(EQUAL[:ROUND]), put(POSITIVE[:ROUND])), 0.1 * P[:ROUND].sum()),
    "squared_distance": (lambda: dy.squared_distance(put(SIGNED), put(POSITIVE)), ((S - P) ** 2).sum()),
    "l1_distance": (lambda: dy.l1_distance(put(EQUAL), put(-POSITIVE)), (E + P).sum()),
    "huber_distance": (lambda: dy.huber_distance(put(EQUAL), put(-POSITIVE)), ((E + P) ** 2 / 2).sum()),
    "huber_distance-far": (
        lambda: dy.huber_distance(put(EQUAL), put(-POSITIVE), c=0.01),
        (0.01 * (E + P) - 0.01**2 / 2).sum(),
    ),
    "binary_log_loss": (
        lambda: dy.binary_log_loss(put(EQUAL), put(POSITIVE)),
        -(P * np.log(E) + (1 - P) * np.log(1 - E)).sum(),
    ),
    "binary_cross_entropy_with_logits": (
        lambda: dy.binary_cross_entropy_with_logits(put(SIGNED), put(POSITIVE), "sum"),
        (np.logaddexp(0, S) - S * P).sum(),
    ),
    "cross_entropy": (lambda: dy.cross_entropy(put(TWO), LABELS), NORMALS.mean()),
    "cross_entropy-sum": (lambda: dy.cross_entropy(put(TWO), LABELS, reduction="sum"), NORMALS.sum()),
    "kl_divergence": (
        lambda: dy.kl_divergence(put(np.log(softmax(S))), put(np.log(softmax(P)))),
        (softmax(S) * np.log(softmax(S) / softmax(P))).sum(),
    ),
    "gaussian_nll": (
        lambda: dy.gaussian_nll(put(SIGNED), put(POSITIVE), put(EQUAL)),
        (np.log(E) + (S - P) ** 2 / E).sum() / 2,
    ),
    "triplet_loss": (
        lambda: dy.triplet_loss(put(SIGNED), put(POSITIVE), put(EQUAL), 1000),
        1000 + np.sqrt(((S - P) ** 2).sum()) - np.sqrt(((S - E) ** 2).sum()),
    ),
    "layer_norm": (lambda: dy.layer_norm(put(SIGNED), *zero_one(put(SIGNED))), centered(S)),
    "layer_norm-eps": (lambda: dy.layer_norm(put(SIGNED), *zero_one(put(SIGNED)), eps=0.1), centered(S, 0.1)),
    "residual_layer_norm": (
        lambda: dy.residual_layer_norm(put(SIGNED / 2), put(SIGNED / 2), *zero_one(put(SIGNED))),
        centered(S),
    ),
    "weight_norm": (lambda: dy.weight_norm(put(SIGNED), dy.scalarInput(2)), 2 * unit(S)),
    "normalize": (lambda: dy.normalize(put(SIGNED)), unit(S)),
    "clip_norm": (lambda: dy.clip_norm(put(SIGNED), 1), unit(S)),
    "cosine_similarity": (lambda: dy.cosine_similarity(put(POSITIVE), put(EQUAL)), (unit(P) * unit(E)).sum()),
    "rms_norm": (lambda: dy.rms_norm(put(SIGNED)), S / np.sqrt((S**2).mean() + 1e-5)),
    "group_norm": (lambda: dy.group_norm(put(SIGNED), 1), centered(S, 1e-5)),
    "batch_moments": (lambda: dy.batch_moments(put(SIGNED[None])), [S.mean(), S.var()]),
    "batch_moments-batch": (lambda: dy.batch_moments(dy.inputTensor(SIGNED[None], batched=True)), [S.mean(), S.var()]),
    "channel_norm": (lambda: batch_normalized(put(SIGNED[None])), centered(S, 1e-5)),
    "avgpooling2d": (lambda: dy.avgpooling2d(put(POSITIVE.reshape(1000, 1000)), [1000, 1000], [1, 1]), P.mean()),
    "adaptive_avgpooling2d": (lambda: dy.adaptive_avgpooling2d(put(POSITIVE.reshape(1000, 1000)), [1, 1]), P.mean()),
    "crf_log_partition": (
        lambda: dy.crf_log_partition(put(SCORES), put(MOVES), put(ENDS), put(ENDS)),
        chain(SCORES, MOVES),
    ),
    "crf_marginals": (
        lambda: dy.sum_dim(dy.crf_marginals(put(SCORES), put(MOVES), put(ENDS), put(ENDS)), [0]),
        np.ones(WORDS),
    ),
    "crf_score": (
        lambda: dy.crf_score(put(SCORES), TAGS, put(MOVES), put(ENDS), put(ENDS)),
        score(SCORES, TAGS, MOVES),
    ),
    "crf_loss": (
        lambda: dy.crf_loss(put(SCORES[:, :60_000]), TAGS[:60_000], put(MOVES), put(ENDS), put(ENDS)),
        chain(SCORES[:, :60_000], MOVES) - score(SCORES[:, :60_000], TAGS[:60_000], MOVES),
    ),
    # No labels: one alignment, of blanks alone.
    "ctc_loss": (lambda: dy.ctc_loss(put(np.full((2, WORDS), -0.1, np.float32)), []), WORDS * float(np.float32(0.1))),
}


def close(actual, desired) -> None:
    """Equal up to 1e-5 of the greatest element."""
    actual, desired = np.asarray(actual, np.float64).ravel(), np.asarray(desired, np.float64)
    np.testing.assert_allclose(
        actual, np.broadcast_to(desired.ravel(), actual.shape), atol=1e-5 * np.abs(desired).max()
    )


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    make, expected = VALUES[name]
    dy.renew_cg()
    close(make().npvalue(), expected)


def layer_slope(v, d, eps=0.0):
    z, deviation = centered(v, eps), np.sqrt(v.var() + eps)
    return (d - d.mean() - z * (d * z).mean()) / deviation


def norm_slope(v, d):
    return (d - unit(v) * (unit(v) * d).sum()) / np.sqrt((v**2).sum())


def rms_slope(v, d):
    root = np.sqrt((v**2).mean() + 1e-5)
    return d / root - v * (d * v).mean() / root**3


# An argument, an op of it, whose elements times POSITIVE are summed, and the gradient of the argument.
GRADIENTS = {
    "softmax": (SIGNED, dy.softmax, softmax(S) * (P - (softmax(S) * P).sum())),
    "log_softmax": (SIGNED, dy.log_softmax, P - softmax(S) * P.sum()),
    "log_softmax_along": (SIGNED[None], lambda x: dy.log_softmax(x, d=1)[0], P - softmax(S) * P.sum()),
    "logsumexp_dim": (SIGNED, lambda x: dy.logsumexp_dim(x), softmax(S)),
    "sparsemax": (EQUAL * 1e-9, dy.sparsemax, P - P.mean()),
    "cumsum": (SIGNED, dy.cumsum, np.cumsum(P[::-1])[::-1]),
    "logcumsumexp": (
        SIGNED,
        dy.logcumsumexp,
        np.exp(S) * np.cumsum((P / np.cumsum(np.exp(S)))[::-1])[::-1],
    ),
    "std": (SIGNED, lambda x: dy.std_elems(x), centered(S) / N),
    "layer_norm": (SIGNED, lambda x: dy.layer_norm(x, *zero_one(x)), layer_slope(S, P)),
    "layer_norm-eps": (SIGNED, lambda x: dy.layer_norm(x, *zero_one(x), eps=0.1), layer_slope(S, P, 0.1)),
    "residual_layer_norm": (
        SIGNED,
        lambda x: dy.residual_layer_norm(x, dy.zeros(N), *zero_one(x)),
        layer_slope(S, P),
    ),
    "group_norm": (SIGNED, lambda x: dy.group_norm(x, 1), layer_slope(S, P, 1e-5)),
    "batch_norm": (SIGNED[:, None], lambda x: batch_normalized(x, 1), layer_slope(S, P, 1e-5)),
    "rms_norm": (SIGNED, lambda x: dy.rms_norm(x), rms_slope(S, P)),
    "weight_norm": (SIGNED, lambda x: dy.weight_norm(x, dy.scalarInput(2)), 2 * norm_slope(S, P)),
    "normalize": (SIGNED, lambda x: dy.normalize(x), norm_slope(S, P)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    argument, make, expected = GRADIENTS[name]
    dy.renew_cg()
    x = put(argument)
    y = make(x)
    if y.dim()[0] != (1,):
        y = dy.dot_product(y, put(POSITIVE))
    y.backward(full=True)
    close(x.gradient() / np.abs(expected).max(), expected / np.abs(expected).max())


def test_gradients_of_crf() -> None:
    """Gradients of scores are marginals; gradients of transitions are expected numbers of pairs."""
    dy.renew_cg()
    x, moves = put(SCORES), put(MOVES)
    dy.crf_log_partition(x, moves, put(ENDS), put(ENDS)).backward(full=True)
    close(x.gradient().sum(0), np.ones(WORDS))
    close(moves.gradient().sum(), WORDS - 1)
    close(moves.gradient().sum(1), x.gradient()[:, :-1].astype(float).sum(1))


IMAGES = 200_000


@pytest.mark.parametrize("make", [dy.conv2d, dy.conv_transpose2d])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_filters(make, groups: int) -> None:
    w = dy.ParameterCollection().add_parameters((1, 1, 2 // groups, 2), init=0.5)
    dy.renew_cg()
    x = dy.inputTensor(np.broadcast_to(POSITIVE[:IMAGES], (1, 1, 2, IMAGES)), batched=True)
    for times in (1, 2):
        dy.sum_batches(dy.sum_elems(make(x, w, [1, 1], groups=groups))).backward()
        close(w.grad_as_array(), np.full(w.shape(), times * P[:IMAGES].sum()))


def test_gradients_of_channels() -> None:
    model = dy.ParameterCollection()
    g, b = model.add_parameters(1, init=1.0), model.add_parameters(1, init=0.0)
    dy.renew_cg()
    y = dy.channel_norm(put(SIGNED[None]), dy.inputVector([0.25]), dy.inputVector([4]), g, b, eps=0)
    dy.sum_elems(dy.cmult(y, put(POSITIVE[None]))).backward()
    close(g.grad_as_array(), [((S - 0.25) / 2 * P).sum()])
    close(b.grad_as_array(), [P.sum()])


def test_attention_over_many_keys() -> None:
    """A query that attends to a million keys."""
    model = dy.ParameterCollection()
    q, k, v = (
        model.parameters_from_numpy(np.asarray(x)) for x in ([[0.5]], POSITIVE[None], EQUAL[None] + POSITIVE[None])
    )
    y = dy.scaled_dot_product_attention(q, k, v)
    values = E + P
    weights = softmax(0.5 * P)
    mean = (weights * values).sum()
    close(y.npvalue(), [mean])
    y.backward()
    close(v.grad_as_array().ravel(), weights)
    close(k.grad_as_array().ravel(), 0.5 * weights * (values - mean))
    terms = weights * (values - mean) * P  # which nearly cancel out
    np.testing.assert_allclose(q.grad_as_array().ravel(), [terms.sum()], atol=1e-5 * np.abs(terms).sum())


# ---- completeness: every other op sums only a few terms ----

# Tested in test_long_sums.py: lists of arguments, products and broadcasting.
ELSEWHERE = {
    *("matmul", "affine_transform", "batched_matmul", "esum", "average", "logsumexp", "conv2d_bias", "lookup"),
    *("pick_batch_elems", "select_rows", "select_cols", "scatter_rows", "scatter_cols", "lookup_at", "take", "put"),
}
# Made of matrix products whose inner dimension is short in practice.
PRODUCTS = {
    *("contract3d_1d", "gated_affine", "inverse", "logdet"),
    *("vanilla_lstm_gates", "vanilla_lstm_gates_noise", "vanilla_lstm_gates_projected"),
}
# No sums, or sums over neighbours only.
NONE = {
    *("parameter", "input", "reshape", "transpose", "concatenate", "concatenate_to_batch", "nobackprop"),
    *("scale_gradient", "floor_straight_through", "ceil_straight_through", "round_straight_through"),
    *("emax", "dropout", "dropout_dim", "dropout_batch", "block_dropout", "noise", "random_normal", "random_uniform"),
    *("random_bernoulli", "random_gumbel", "max_dim", "min_dim", "argmax", "argmax_straight_through", "maxpooling2d"),
    *("kmax_pooling", "pick", "pick_range", "strided_select", "crf_viterbi", "dropout_mask"),
    *("vanilla_lstm_c", "vanilla_lstm_h", "gru_h", "tree_lstm_c", "tree_lstm_h", "gates"),
    *("pairwise_rank_loss", "poisson_loss"),
    *("index_of_max", "index_of_min", "sample", "one_hot_at", "continuations"),
    *("sort", "argsort", "cumprod", "adaptive_maxpooling2d", "to_device", "to_int", "to_float"),
    *("int_add", "int_sub", "int_mul", "int_floor_divide", "int_remainder", "int_min", "int_max"),
    *("int_equal", "int_not_equal", "int_less", "int_less_equal"),
    "label_chain",  # sums of three, one frame after another
    "scaled_dot_product_attention_dropout",  # the sums of the op without dropout
    "residual_layer_norm_dropout",  # likewise
}


def test_every_op_has_its_place() -> None:
    rows = {row.name for row in (*elementwise.UNARY, *elementwise.BINARY)}
    here = {name.partition("-")[0] for name in VALUES} | {"conv2d", "conv_transpose2d", "scaled_dot_product_attention"}
    missing = {op["name"] for op in describe()} - rows - here - ELSEWHERE - PRODUCTS - NONE
    assert not missing, f"{missing}: add their long sums to this file, or say that they have none"
