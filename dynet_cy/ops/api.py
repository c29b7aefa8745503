"""All public ops, family by family.  Written by tools/derive.py."""
# fmt: off
# ruff: noqa: I001 - as many names a line as fit

from dynet_cy.ops.along import argmax, cumsum, logsumexp_dim, max_dim, min_dim
from dynet_cy.ops.arithmetic import (
    average, bmax, bmin, cdiv, cmult, colwise_add, emax, equal, esum, greater, greater_equal, less, less_equal,
    masked_fill, not_equal, pow, prelu, where,
)
from dynet_cy.ops.attention import scaled_dot_product_attention
from dynet_cy.ops.batch_norm import batch_moments, channel_norm
from dynet_cy.ops.batched import matmul
from dynet_cy.ops.cells import (
    vanilla_lstm_c, vanilla_lstm_gates, vanilla_lstm_gates_concat, vanilla_lstm_gates_dropout,
    vanilla_lstm_gates_dropout_concat, vanilla_lstm_gates_projected, vanilla_lstm_h,
)
from dynet_cy.ops.constrained import constrained_softmax
from dynet_cy.ops.contract import (
    circ_conv, circ_corr, contract3d_1d, contract3d_1d_1d, contract3d_1d_1d_bias, contract3d_1d_bias,
)
from dynet_cy.ops.conv import (
    conv2d, conv2d_bias, conv_transpose2d, filter1d_narrow, kmax_pooling, kmh_ngram, maxpooling2d,
)
from dynet_cy.ops.crf import crf_log_partition, crf_loss, crf_marginals, crf_viterbi
from dynet_cy.ops.custom import custom_op
from dynet_cy.ops.gated import gru_h, logistic_affine, tanh_affine, tree_lstm_c, tree_lstm_gates, tree_lstm_h
from dynet_cy.ops.inputs import (
    constant, inputMatrix, inputTensor, inputTensorTranspose, inputVector, matInput, one_hot, ones, scalarInput,
    sparse_inputTensor, vecInput, zeroes, zeros,
)
from dynet_cy.ops.inverse import inverse, logdet
from dynet_cy.ops.linalg import affine_transform, dot_product, trace_of_product
from dynet_cy.ops.losses import (
    binary_log_loss, huber_distance, l1_distance, pairwise_rank_loss, poisson_loss, squared_distance,
)
from dynet_cy.ops.norm import layer_norm, residual_layer_norm, weight_norm
from dynet_cy.ops.order import argsort, cumprod, logcumsumexp, sort, topk
from dynet_cy.ops.pooling import adaptive_avgpooling2d, adaptive_maxpooling2d, avgpooling2d
from dynet_cy.ops.random import (
    block_dropout, dropout, dropout_batch, dropout_dim, noise, random_bernoulli, random_gumbel, random_normal,
    random_uniform,
)
from dynet_cy.ops.reduce import (
    mean_batches, mean_dim, mean_elems, moment_batches, moment_dim, moment_elems, std_batches, std_dim, std_elems,
    sum_batches, sum_dim, sum_elems,
)
from dynet_cy.ops.select import (
    pick, pick_batch, pick_batch_elem, pick_batch_elems, pick_range, pickrange, scatter_rows, select_cols, select_rows,
    strided_select,
)
from dynet_cy.ops.shape import (
    concatenate, concatenate_cols, concatenate_to_batch, flip_gradient, fold_rows, nobackprop, reshape, scale_gradient,
    transpose,
)
from dynet_cy.ops.softmax import (
    hinge, hinge_batch, hinge_dim, log_softmax, logsumexp, pickneglogsoftmax, pickneglogsoftmax_batch,
    pickneglogsoftmax_list, softmax, softmin, sparsemax,
)
from dynet_cy.ops.unary import (
    abs, acos, acosh, asin, asinh, atan, atanh, ceil, clip, cos, cosh, cube, elu, erf, exp, expm1, floor, gelu,
    hard_swish, hard_tanh, huber, leaky_relu, lgamma, log, log1p, log_sigmoid, logistic, mish, rectify, round,
    safe_sqrt, selu, silu, sin, sinh, softplus, softsign, sqrt, square, tan, tanh,
)
from dynet_cy.ops.vector_norm import l2_norm, norm, squared_norm

__all__ = [
    "argmax", "cumsum", "logsumexp_dim", "max_dim", "min_dim",
    "average", "bmax", "bmin", "cdiv", "cmult", "colwise_add", "emax", "equal", "esum", "greater", "greater_equal",
    "less", "less_equal", "masked_fill", "not_equal", "pow", "prelu", "where",
    "scaled_dot_product_attention",
    "batch_moments", "channel_norm",
    "matmul",
    "vanilla_lstm_c", "vanilla_lstm_gates", "vanilla_lstm_gates_concat", "vanilla_lstm_gates_dropout",
    "vanilla_lstm_gates_dropout_concat", "vanilla_lstm_gates_projected", "vanilla_lstm_h",
    "constrained_softmax",
    "circ_conv", "circ_corr", "contract3d_1d", "contract3d_1d_1d", "contract3d_1d_1d_bias", "contract3d_1d_bias",
    "conv2d", "conv2d_bias", "conv_transpose2d", "filter1d_narrow", "kmax_pooling", "kmh_ngram", "maxpooling2d",
    "crf_log_partition", "crf_loss", "crf_marginals", "crf_viterbi",
    "custom_op",
    "gru_h", "logistic_affine", "tanh_affine", "tree_lstm_c", "tree_lstm_gates", "tree_lstm_h",
    "constant", "inputMatrix", "inputTensor", "inputTensorTranspose", "inputVector", "matInput", "one_hot", "ones",
    "scalarInput", "sparse_inputTensor", "vecInput", "zeroes", "zeros",
    "inverse", "logdet",
    "affine_transform", "dot_product", "trace_of_product",
    "binary_log_loss", "huber_distance", "l1_distance", "pairwise_rank_loss", "poisson_loss", "squared_distance",
    "layer_norm", "residual_layer_norm", "weight_norm",
    "argsort", "cumprod", "logcumsumexp", "sort", "topk",
    "adaptive_avgpooling2d", "adaptive_maxpooling2d", "avgpooling2d",
    "block_dropout", "dropout", "dropout_batch", "dropout_dim", "noise", "random_bernoulli", "random_gumbel",
    "random_normal", "random_uniform",
    "mean_batches", "mean_dim", "mean_elems", "moment_batches", "moment_dim", "moment_elems", "std_batches", "std_dim",
    "std_elems", "sum_batches", "sum_dim", "sum_elems",
    "pick", "pick_batch", "pick_batch_elem", "pick_batch_elems", "pick_range", "pickrange", "scatter_rows",
    "select_cols", "select_rows", "strided_select",
    "concatenate", "concatenate_cols", "concatenate_to_batch", "flip_gradient", "fold_rows", "nobackprop", "reshape",
    "scale_gradient", "transpose",
    "hinge", "hinge_batch", "hinge_dim", "log_softmax", "logsumexp", "pickneglogsoftmax", "pickneglogsoftmax_batch",
    "pickneglogsoftmax_list", "softmax", "softmin", "sparsemax",
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "clip", "cos", "cosh", "cube", "elu", "erf",
    "exp", "expm1", "floor", "gelu", "hard_swish", "hard_tanh", "huber", "leaky_relu", "lgamma", "log", "log1p",
    "log_sigmoid", "logistic", "mish", "rectify", "round", "safe_sqrt", "selu", "silu", "sin", "sinh", "softplus",
    "softsign", "sqrt", "square", "tan", "tanh",
    "l2_norm", "norm", "squared_norm",
]
