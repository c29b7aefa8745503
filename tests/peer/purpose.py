"""Intended differences from DyNet: the rows of the table, the kind of difference, the line of docs/differences.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dynet_cy import functions
from dynet_cy.ops import api

REFUSES = "refuses"  # DyNet raises
VALUE = frozenset({"value", "gradient"})
GRADIENT = frozenset({"gradient"})  # of any argument
SHAPE = frozenset({"dim", "type", "value", "gradient"})

# A condition on the batch sizes of the arguments.
Where = Callable[[Sequence[int]], bool]


def ever(sizes: Sequence[int]) -> bool:
    return True


def batched(sizes: Sequence[int]) -> bool:
    return max(sizes, default=1) > 1


def alone(sizes: Sequence[int]) -> bool:
    return not batched(sizes)


def mixed(sizes: Sequence[int]) -> bool:
    """Some arguments have a batch."""
    return len(set(sizes)) > 1


def throughout(sizes: Sequence[int]) -> bool:
    """All arguments have a batch."""
    return min(sizes, default=1) > 1


def second_alone(sizes: Sequence[int]) -> bool:
    """The second of two arguments has a batch and the first has none."""
    return sizes[0] < sizes[1]


def on(*arguments: int) -> Where:
    """One of these arguments has a batch."""
    return lambda sizes: any(sizes[k] > 1 for k in arguments)


@dataclass(frozen=True)
class Difference:
    """Rows that differ.

    Attributes:
        document: first cell of the line in docs/differences.md.
        rows: ids, with * and ?.
        kinds: REFUSES, or what may differ: dim, type, value, gradient, or gradient of an argument.
        where: the batch sizes for which they differ.
        only_as_written: whether they agree when all arguments are given by name, with our defaults.
        only_by_name: whether they agree as written, because our defaults contain a name that DyNet does not know.
        certain: False if the difference depends on the contents of uninitialized memory.
    """

    document: str
    rows: tuple[str, ...]
    kinds: frozenset[str]
    where: Where
    only_as_written: bool = False
    certain: bool = True
    only_by_name: bool = False

    def covers(self, row: str, sizes: Sequence[int], named: bool) -> bool:
        if self.only_as_written if named else self.only_by_name:
            return False
        return any(fnmatchcase(row, pattern) for pattern in self.rows) and self.where(sizes)


def gradient_of(*arguments: int) -> frozenset[str]:
    return frozenset(f"gradient {k}" for k in arguments)


def unmeant(found: set[str], meant: set[str]) -> set[str]:
    """The differences that are not intended."""
    return {f for f in found if f not in meant and not (f.startswith("gradient ") and "gradient" in meant)}


def refused(document: str, *rows: str, where: Where = ever, only_as_written: bool = False) -> Difference:
    return Difference(document, rows, frozenset([REFUSES]), where, only_as_written)


def wrong(document: str, *rows: str, kinds: frozenset[str], where: Where = ever, certain: bool = True) -> Difference:
    return Difference(document, rows, kinds, where, certain=certain)


SHAPES = ("4x3-4", "4-4x3", "4x3-1x3", "4x1-1x3", "1-4x3", "4x3-1", "2x3x4-2x1x4", "1x3-2x1x4", "scalar-3", "17x5-17")
SHAPES += ("17x5-1x5",)

ARRAYS = "arrays beside an expression (`e + array`, `array * e`), lists, masks and None as indices, `@`, comparisons"
INDICES = "indices that are expressions; operators of masks, `//`, `%`"
# Functions with `d` or `length`, which DyNet's lack.
BY_NAME = ("argmax", "argmax_straight_through", "peer-argmax", "peer-argmax-through", "pick_range-5x-1-4-0")
BY_NAME += ("pick_range-4x3-*", "pick_range-2x3x4-*", "pick_range-40x20-*")
NO_ROW = ("gumbel_softmax", "batch_norm")  # their results depend on the graph, or on running statistics
NEGATIVE = tuple(f"{f}-negative" for f in ("cumsum", "max_dim", "sum_dim", "pick", "transpose", "concatenate"))
TRUE = "`min`, `max`, `binary_log_loss`, `poisson_loss`, masks of LSTM gates"
DILATED = "`dilation`, `groups` and `padding` of `conv2d`, `conv2d_bias`, `padding` of `maxpooling2d`"
BATCHES_IN = (
    "batches in `inverse`, `logdet`, `trace_of_product`, `constrained_softmax`, `kmh_ngram`, `circ_conv`, "
    "`circ_corr`, `contract3d_1d_1d`"
)
ROUNDING = tuple(f"{name}{mode}" for name in ("floor", "ceil", "round") for mode in ("", "_straight_through"))
B_DIMS = ("mean_dim-[0-9]*", "std_dim-[0-9]*", "moment_dim-[0-9]*")

# The ops that DyNet does not have.
_SURFACE = json.loads((Path(__file__).resolve().parent / "surface.json").read_text(encoding="utf-8"))["dynet"]
NOT_THERE = [n for n in api.__all__ if n not in _SURFACE["functions"] and n not in _SURFACE["classes"]]

DIFFERENCES = [
    refused("operators", "shift-left", "scale-left", "scale-numpy", "negate-shift", "reciprocal_scale"),
    refused("operators", "div-operator", "mul-operator-scalar-*"),
    refused("operators", "flip_gradient", "scale_gradient-3"),  # 2 * e, to make up for the gradient
    refused("indices", "index-numpy", "index-slice-end", "index-slice-back", "index-steps", "index-numbers"),
    refused("indices", "index-column", "index-mixed", "index-ellipsis"),
    refused("operators", "pow-operator-left", "pow-operator-numpy", "pow-operator#2"),
    refused("`pow`", "pow-number-first"),
    refused("`bmin`, `bmax`, `emax`", "min_const", "max_const"),
    refused(", ".join(f"`{name}`" for name in NOT_THERE)),  # their rows are skipped
    refused("`floor`, `ceil`, `round`", *ROUNDING, only_as_written=True),
    wrong("`floor`, `ceil`, `round`", *ROUNDING, kinds=GRADIENT, certain=False),
    wrong("`contract3d_1d`", "contract3d_1d", kinds=VALUE, certain=False),
    refused("`contract3d_1d`", "contract3d_1d-matrix"),
    refused(BATCHES_IN, "inverse-*", "logdet-*", "trace_of_product-*", where=batched),
    refused(BATCHES_IN, "constrained_softmax-free", where=on(0)),
    refused(BATCHES_IN, *[f"constrained_softmax-{bounds}" for bounds in ("some", "many", "none-left")], where=batched),
    wrong(BATCHES_IN, "constrained_softmax-free", kinds=SHAPE, where=second_alone),
    refused(BATCHES_IN, "kmh_ngram-*", "circ_conv-*", "circ_corr-*", "contract3d_1d_1d*", where=batched),
    refused("`softsign`, `argmax`", "softsign"),
    wrong("`silu`", "silu-beta", kinds=gradient_of(0)),
    refused("`pow`", "pow_const*", *[f"pow-{s}" for s in SHAPES if s != "4x3-1"], "pow-4x3-4x3"),
    refused("`pow`", "pow-4x3-1", where=on(1)),
    refused("`cdiv`", "div-4x1-1x3", "div-1-4x3", "div-1x3-2x1x4"),
    refused("`cdiv`", *[f"div-{s}" for s in ("4x3-4x3", *SHAPES)], where=second_alone),
    wrong("`cdiv`", "div-4-4x3", "div-scalar-3", kinds=VALUE, where=lambda sizes: not second_alone(sizes)),
    refused("`bmin`, `bmax`, `emax`", *[f"{op}-{s}" for op in ("min", "max") for s in SHAPES]),
    refused("`bmin`, `bmax`, `emax`", "min-4x3-4x3", "max-4x3-4x3", "emax-*", where=mixed),
    wrong("`average`", "average-*", kinds=GRADIENT, where=mixed),
    refused("`affine_transform`", "affine_transform-4-4x3-3x2", where=on(0)),
    refused("`affine_transform`", "affine_transform-terms-4-4x3-3x2-4x5-5x2", where=on(0)),
    refused("`affine_transform`", "affine_transform-4x?x1-*", where=lambda sizes: sizes[0] < min(sizes[1:])),
    refused("`dot_product`", "dot_product-shapes"),
    refused("`inputMatrix`, `matInput`", "input-inputMatrix", "input-matInput"),
    refused("reductions", "mean_elems-", "mean_elems-2x3x4", "mean_elems-1x3x1x2", "mean_elems-2x2x2x2x2x2x2"),
    refused("reductions", "std_elems-2x3x4", "std_elems-1x3x1x2", "std_elems-2x2x2x2x2x2x2"),
    refused("reductions", "*_dim*-2x3x4-2x1x0", "*_dim*-2x3x2x2-1x3"),
    refused("`b` of `mean_dim`, `std_dim`, `moment_dim`", *B_DIMS, only_as_written=True),
    refused("lists and tuples", "sum_dim-number", "reshape-number", "reshape-list"),
    refused(ARRAYS, "add-array", "sub-array", "div-array*", "mul-array", "pow-array", "product-*", "batched_matmul*"),
    refused(ARRAYS, "less*", "greater*", "equal-*", "equal_const", "not_equal*", "where*", "places-*"),
    refused(INDICES, "*-at", "*-at-*", "argmax-index*", "floor_divide*", "remainder*", "mask-*"),
    Difference(INDICES, BY_NAME, frozenset([REFUSES]), ever, only_by_name=True),
    refused("methods of expressions", "method-*"),
    refused(
        "negative axes; -1 in `reshape`",
        *[f"{f}-negative" for f in ("cumsum", "max_dim", "sum_dim", "pick", "transpose", "concatenate")],
    ),
    refused("`d` and `mask` of `softmax` and `log_softmax`", "softmax-mask*", "softmax-d-*"),
    refused(
        "`d` and `mask` of `softmax` and `log_softmax`", "log_softmax-d-*", "log_softmax-without", "log_softmax_along-*"
    ),
    refused("`dynet_cy.functions`", *[f"{name}*" for name in functions.__all__ if name not in NO_ROW]),
    refused("`dynet_cy.functions`", "logit_loss-*"),  # part of some of them
    refused("three axes and more", "logsumexp_dim-2x3x4-*", "softmax-3x4x2-*", "select_cols-3"),
    refused("three axes and more", "layer_norm-3x2x2-3x2", "layer_norm-4x2x2-4", "transpose-4x3x1"),
    refused("`axis` and `eps` of `layer_norm`", "layer_norm-*-axis*", "layer_norm-eps-*"),
    refused(DILATED, *[f"{f}-{what}*" for f in ("conv2d", "conv2d_bias") for what in ("dilated", "groups")]),
    refused(DILATED, "conv2d-padding*", "conv2d_bias-*-padding*", "maxpooling2d-*-padding*"),
    wrong("`layer_norm` of a matrix with a gain and bias of one column", "layer_norm-5x3-5", kinds=VALUE),
    wrong("`logsumexp_dim`", "logsumexp_dim-4x3-1", "logsumexp_dim-17x9-1", kinds=VALUE),
    wrong("batches in `fold_rows`, `filter1d_narrow`", "fold_rows*", kinds=SHAPE, where=throughout),
    wrong(
        "batches in `fold_rows`, `filter1d_narrow`",
        "filter1d_narrow*",
        kinds=SHAPE,
        where=batched,
    ),
    wrong("`restrict` of `log_softmax`", "restricted_log_softmax", kinds=VALUE, where=alone),
    refused(
        "batches in many ops", "restricted_log_softmax", "pickneglogsoftmax", "pickneglogsoftmax-one", where=throughout
    ),
    refused("batches in many ops", "sparsemax", "hinge", "hinge-margin", "hinge_dim-batch", where=throughout),
    refused("batches in many ops", "block_dropout-0", "poisson_loss-*", where=throughout),
    refused("batches in many ops", "l1_distance", "huber_distance*", "binary_log_loss", "weight_norm", where=batched),
    refused("batches in many ops", "pairwise_rank_loss", "vanilla_lstm_c", "vanilla_lstm_h", where=mixed),
    refused("`sparsemax`", "sparsemax-matrix"),
    refused("`hinge_dim`", "hinge_dim-rows"),
    # Weights or a bias with a batch; an x without a batch among others with one.
    wrong("batches in LSTM gates", "vanilla_lstm_gates", kinds=SHAPE, where=on(2, 4)),
    wrong("batches in LSTM gates", "vanilla_lstm_gates-concat", kinds=VALUE, where=on(5)),
    refused("batches in LSTM gates", "vanilla_lstm_gates-concat", where=lambda sizes: len(set(sizes[:3])) > 1),
    wrong("batches in LSTM gates", "vanilla_lstm_gates-dropout", kinds=VALUE, where=on(2, 3, 4)),
    wrong("batches in LSTM gates", "vanilla_lstm_gates-dropout-concat", kinds=VALUE, where=on(3, 4, 5)),
    refused("batches in LSTM gates", "vanilla_lstm_gates-dropout-concat", where=lambda sizes: len(set(sizes[:3])) > 1),
    wrong("`dropout(x, 1)`", "dropout-1", kinds=VALUE),
    refused("`random_gumbel`", "random_gumbel-0"),
    wrong("`weightnoise_std`", "vanilla_lstm_gates-weightnoise", kinds=VALUE),
    wrong(
        "filters of `conv2d`",
        "conv2d-[os]*",
        "conv2d_bias-[vs35]*",
        kinds=SHAPE,
        where=lambda sizes: any(n > 1 for n in sizes[1:]),
    ),
    wrong(
        "`conv2d` and `maxpooling2d` with `is_valid=False` and a stride longer than the window",
        "conv2d-stride65-same",
        "maxpooling2d-stride65-same",
        kinds=GRADIENT,
    ),
    wrong(TRUE, "binary_log_loss", kinds=gradient_of(1), where=alone),
    wrong(TRUE, "poisson_loss-*", kinds=gradient_of(0), where=alone),
    wrong(TRUE, "vanilla_lstm_gates-dropout", kinds=gradient_of(5, 6)),
    wrong(TRUE, "vanilla_lstm_gates-dropout", kinds=gradient_of(1), where=lambda sizes: sizes[0] != sizes[1]),
    wrong(TRUE, "vanilla_lstm_gates-dropout-concat", kinds=gradient_of(6, 7), where=lambda s: len(set(s[:3])) == 1),
]

# Differences that test_differences_peer.py tests one by one; that of autobatching shows with --dynet-autobatch only.
ONE_BY_ONE = (
    "momentum of a table, or rows of it, in a graph that the loss does not depend on",
    "a deleted collection",
    "`to_device`",
    "`kmax_pooling` of equal numbers",
    "epsilon of `layer_norm`, also in LSTMs with norms",
    "`eps` of `AdamTrainer`, `AmsgradTrainer`",
    "NaN in `max_dim`, `min_dim`, `kmax_pooling`",
    "`as_array` and `grad_as_array` of parameters",
    "parameter values in a graph",
    "`backward` of a batch",
    "autobatching of `elu` and `selu`",
)
