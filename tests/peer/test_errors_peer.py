"""Bad input: the kinds of errors in DyNet and dynet_cy.

Ours must be the same exception or a subclass, raised when the node is made, unless OTHERWISE says how DyNet differs.
Calls that end DyNet's process ("dies") were found in separate processes and are not repeated here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from libraries import Library, both, counts

pytestmark = pytest.mark.peer


def vector(dy: Library, n: int, size: int = 1) -> Any:
    x = dy.inputVector([0.1 * i + 0.2 for i in range(n * size)])
    return (dy.reshape(x, (n,), size) if size > 1 else x) * 1.0


def tensor(dy: Library, *shape: int) -> Any:
    return dy.inputTensor(np.arange(np.prod(shape)).reshape(shape) / 10.0 + 0.1) * 1.0


def set_too_few(dy: Library) -> Any:
    x = dy.vecInput(3)
    x.set([1, 2])
    return x


def backward(x: Any) -> Any:
    x.forward()
    x.backward()
    return x


def gradient(x: Any) -> Any:
    x.forward()
    return x.gradient()


BAD: dict[str, Callable[[Library], Any]] = {
    "add-shapes": lambda dy: vector(dy, 3) + vector(dy, 4),
    "add-batch": lambda dy: vector(dy, 3, 2) + vector(dy, 3, 4),
    "add-string": lambda dy: vector(dy, 3) + "a",
    "add-none": lambda dy: vector(dy, 3) + None,
    "sub-list": lambda dy: vector(dy, 3) - [1, 2],
    "mul-none": lambda dy: vector(dy, 3) * None,
    "mul-shapes": lambda dy: tensor(dy, 3, 2) * vector(dy, 3),
    "div-none": lambda dy: vector(dy, 3) / None,
    "cmult-shapes": lambda dy: dy.cmult(vector(dy, 3), vector(dy, 4)),
    "cmult-number": lambda dy: dy.cmult(vector(dy, 3), 2),
    "cdiv-shapes": lambda dy: dy.cdiv(vector(dy, 3), vector(dy, 4)),
    "bmin-shapes": lambda dy: dy.bmin(vector(dy, 3), vector(dy, 4)),
    "bmax-shapes": lambda dy: dy.bmax(vector(dy, 3), vector(dy, 4)),
    "colwise_add-shapes": lambda dy: dy.colwise_add(tensor(dy, 3, 2), vector(dy, 2)),
    "dot_product-shapes": lambda dy: dy.dot_product(vector(dy, 3), vector(dy, 4)),
    "squared_distance-shapes": lambda dy: dy.squared_distance(vector(dy, 3), vector(dy, 4)),
    "l1_distance-shapes": lambda dy: dy.l1_distance(vector(dy, 3), vector(dy, 4)),
    "huber_distance-shapes": lambda dy: dy.huber_distance(vector(dy, 3), vector(dy, 4)),
    "binary_log_loss-shapes": lambda dy: dy.binary_log_loss(vector(dy, 3), vector(dy, 4)),
    "pairwise_rank_loss-shapes": lambda dy: dy.pairwise_rank_loss(vector(dy, 3), vector(dy, 4)),
    "poisson_loss-vector": lambda dy: dy.poisson_loss(vector(dy, 3), 2),
    "tanh-none": lambda dy: dy.tanh(None),
    "tanh-number": lambda dy: dy.tanh(1.0),
    "tanh-array": lambda dy: dy.tanh(np.ones(3)),
    "tanh-two": lambda dy: dy.tanh(vector(dy, 3), vector(dy, 3)),
    "tanh-keyword": lambda dy: dy.tanh(z=vector(dy, 3)),
    "esum-empty": lambda dy: dy.esum([]),
    "esum-mixed": lambda dy: dy.esum([vector(dy, 3), None]),
    "esum-one": lambda dy: dy.esum(3),
    "esum-shapes": lambda dy: dy.esum([vector(dy, 3), vector(dy, 4)]),
    "average-empty": lambda dy: dy.average([]),
    "average-shapes": lambda dy: dy.average([vector(dy, 3), vector(dy, 4)]),
    "emax-empty": lambda dy: dy.emax([]),
    "emax-shapes": lambda dy: dy.emax([vector(dy, 3), vector(dy, 4)]),
    "logsumexp-empty": lambda dy: dy.logsumexp([]),
    "logsumexp-shapes": lambda dy: dy.logsumexp([vector(dy, 3), vector(dy, 4)]),
    "concatenate-empty": lambda dy: dy.concatenate([]),
    "concatenate-shapes": lambda dy: dy.concatenate([tensor(dy, 3, 2), tensor(dy, 3, 3)]),
    "concatenate-batch": lambda dy: dy.concatenate([vector(dy, 3, 2), vector(dy, 3, 3)]),
    "concatenate-none": lambda dy: dy.concatenate([vector(dy, 3), None]),
    "concatenate_cols-empty": lambda dy: dy.concatenate_cols([]),
    "concatenate_cols-shapes": lambda dy: dy.concatenate_cols([vector(dy, 3), vector(dy, 4)]),
    "concatenate_to_batch-empty": lambda dy: dy.concatenate_to_batch([]),
    "concatenate_to_batch-shapes": lambda dy: dy.concatenate_to_batch([vector(dy, 3), vector(dy, 4)]),
    "affine_transform-two": lambda dy: dy.affine_transform([vector(dy, 3), tensor(dy, 3, 2)]),
    "affine_transform-shapes": lambda dy: dy.affine_transform([vector(dy, 3), tensor(dy, 3, 2), vector(dy, 3)]),
    "affine_transform-bias": lambda dy: dy.affine_transform([vector(dy, 4), tensor(dy, 3, 2), vector(dy, 2)]),
    "affine_transform-empty": lambda dy: dy.affine_transform([]),
    "reshape-size": lambda dy: dy.reshape(vector(dy, 6), (4, 2)),
    "reshape-negative": lambda dy: dy.reshape(vector(dy, 6), (-2,)),
    "reshape-string": lambda dy: dy.reshape(vector(dy, 6), "ab"),
    "reshape-batch": lambda dy: dy.reshape(vector(dy, 6), (2,), batch_size=2),
    "transpose-3": lambda dy: dy.transpose(dy.reshape(vector(dy, 8), (2, 2, 2))),
    "transpose-axes": lambda dy: dy.transpose(tensor(dy, 2, 3), [0, 2]),
    "transpose-repeat": lambda dy: dy.transpose(tensor(dy, 2, 3), [0, 0]),
    "pick-range": lambda dy: dy.pick(vector(dy, 3), 3),
    "pick-negative": lambda dy: dy.pick(vector(dy, 3), -4),
    "pick-axis": lambda dy: dy.pick(vector(dy, 3), 0, 2),
    "pick-string": lambda dy: dy.pick(vector(dy, 3), "a"),
    "pick-float": lambda dy: dy.pick(vector(dy, 3), 1.5),
    "pick_batch-count": lambda dy: dy.pick_batch(vector(dy, 3, 2), [0, 1, 2]),
    "pick_batch-range": lambda dy: dy.pick_batch(vector(dy, 3, 2), [0, 3]),
    "pick_batch-string": lambda dy: dy.pick_batch(vector(dy, 3, 2), ["a", "b"]),
    "pick_range-end": lambda dy: dy.pick_range(vector(dy, 3), 1, 4),
    "pick_range-order": lambda dy: dy.pick_range(vector(dy, 3), 2, 1),
    "pick_range-axis": lambda dy: dy.pick_range(vector(dy, 3), 0, 1, 2),
    "pickrange-end": lambda dy: dy.pickrange(vector(dy, 3), 1, 4),
    "pick_batch_elem-range": lambda dy: dy.pick_batch_elem(vector(dy, 3, 2), 2),
    "pick_batch_elems-range": lambda dy: dy.pick_batch_elems(vector(dy, 3, 2), [0, 2]),
    "pick_batch_elems-empty": lambda dy: dy.pick_batch_elems(vector(dy, 3, 2), []),
    "select_rows-range": lambda dy: dy.select_rows(tensor(dy, 3, 2), [3]),
    "select_cols-range": lambda dy: dy.select_cols(tensor(dy, 3, 2), [2]),
    "select_cols-vector": lambda dy: dy.select_cols(vector(dy, 3), [1]),
    "strided_select-range": lambda dy: dy.strided_select(vector(dy, 3), [1], [0], [4]),
    "strided_select-zero": lambda dy: dy.strided_select(vector(dy, 3), [0], [0], [3]),
    "strided_select-axes": lambda dy: dy.strided_select(vector(dy, 3), [1, 1, 1], [0, 0, 0], [3, 1, 1]),
    "sum_dim-axis": lambda dy: dy.sum_dim(vector(dy, 3), [2]),
    "sum_dim-repeat": lambda dy: dy.sum_dim(tensor(dy, 3, 2), [0, 0]),
    "sum_dim-none": lambda dy: dy.sum_dim(vector(dy, 3), None),
    "mean_dim-axis": lambda dy: dy.mean_dim(vector(dy, 3), [2], False),
    "std_dim-axis": lambda dy: dy.std_dim(vector(dy, 3), [2], False),
    "moment_dim-axis": lambda dy: dy.moment_dim(vector(dy, 3), [2], 2, False),
    "moment_elems-0": lambda dy: dy.moment_elems(vector(dy, 3), 0),
    "max_dim-axis": lambda dy: dy.max_dim(vector(dy, 3), 2),
    "min_dim-axis": lambda dy: dy.min_dim(vector(dy, 3), 2),
    "logsumexp_dim-axis": lambda dy: dy.logsumexp_dim(vector(dy, 3), 2),
    "argmax-mode": lambda dy: dy.argmax(vector(dy, 3), "none"),
    "argmax-matrix": lambda dy: dy.argmax(tensor(dy, 3, 2), "zero_gradient"),
    "softmax-axis": lambda dy: dy.softmax(vector(dy, 3), 2),
    "log_softmax-range": lambda dy: dy.log_softmax(vector(dy, 3), [3]),
    "log_softmax-empty": lambda dy: dy.log_softmax(vector(dy, 3), []),
    "pickneglogsoftmax-range": lambda dy: dy.pickneglogsoftmax(vector(dy, 3), 3),
    "pickneglogsoftmax-matrix": lambda dy: dy.pickneglogsoftmax(tensor(dy, 3, 2), 1),
    "pickneglogsoftmax_batch-count": lambda dy: dy.pickneglogsoftmax_batch(vector(dy, 3, 2), [0, 1, 2]),
    "pickneglogsoftmax_batch-range": lambda dy: dy.pickneglogsoftmax_batch(vector(dy, 3, 2), [0, 3]),
    "hinge-range": lambda dy: dy.hinge(vector(dy, 3), 3),
    "hinge-matrix": lambda dy: dy.hinge(tensor(dy, 3, 2), 1),
    "hinge_batch-count": lambda dy: dy.hinge_batch(vector(dy, 3, 2), [0, 1, 2]),
    "hinge_dim-count": lambda dy: dy.hinge_dim(tensor(dy, 3, 2), [0]),
    "conv2d-channels": lambda dy: dy.conv2d(tensor(dy, 5, 5, 2), tensor(dy, 2, 2, 3, 4), [1, 1]),
    "conv2d-stride": lambda dy: dy.conv2d(tensor(dy, 5, 5, 2), tensor(dy, 2, 2, 2, 4), [1]),
    "conv2d-zero": lambda dy: dy.conv2d(tensor(dy, 5, 5, 2), tensor(dy, 2, 2, 2, 4), [0, 1]),
    "conv2d-large": lambda dy: dy.conv2d(tensor(dy, 3, 3, 2), tensor(dy, 4, 4, 2, 4), [1, 1]),
    "conv2d-axes": lambda dy: dy.conv2d(vector(dy, 5), tensor(dy, 2, 2, 2, 4), [1, 1]),
    "conv2d_bias-size": lambda dy: dy.conv2d_bias(tensor(dy, 5, 5, 2), tensor(dy, 2, 2, 2, 4), vector(dy, 3), [1, 1]),
    "maxpooling2d-large": lambda dy: dy.maxpooling2d(tensor(dy, 3, 3, 2), [4, 4], [1, 1]),
    "maxpooling2d-zero": lambda dy: dy.maxpooling2d(tensor(dy, 3, 3, 2), [2, 2], [0, 1]),
    "maxpooling2d-axes": lambda dy: dy.maxpooling2d(vector(dy, 5), [2, 2], [1, 1]),
    "filter1d_narrow-rows": lambda dy: dy.filter1d_narrow(tensor(dy, 3, 5), tensor(dy, 2, 2)),
    "filter1d_narrow-large": lambda dy: dy.filter1d_narrow(tensor(dy, 3, 2), tensor(dy, 3, 5)),
    "kmax_pooling-large": lambda dy: dy.kmax_pooling(tensor(dy, 3, 2), 5),
    "kmax_pooling-0": lambda dy: dy.kmax_pooling(tensor(dy, 3, 2), 0),
    "kmax_pooling-axis": lambda dy: dy.kmax_pooling(tensor(dy, 3, 2), 1, 2),
    "fold_rows-rest": lambda dy: dy.fold_rows(tensor(dy, 3, 2), 2),
    "fold_rows-0": lambda dy: dy.fold_rows(tensor(dy, 3, 2), 0),
    "layer_norm-shapes": lambda dy: dy.layer_norm(vector(dy, 3), vector(dy, 4), vector(dy, 3)),
    "weight_norm-gain": lambda dy: dy.weight_norm(tensor(dy, 3, 2), vector(dy, 2)),
    "dropout-negative": lambda dy: dy.dropout(vector(dy, 3), -0.5),
    "dropout-2": lambda dy: dy.dropout(vector(dy, 3), 2.0),
    "dropout-string": lambda dy: dy.dropout(vector(dy, 3), "a"),
    "dropout_dim-axis": lambda dy: dy.dropout_dim(vector(dy, 3), 2, 0.5),
    "dropout_batch-2": lambda dy: dy.dropout_batch(vector(dy, 3, 2), 2.0),
    "block_dropout-2": lambda dy: dy.block_dropout(vector(dy, 3), 2.0),
    "noise-string": lambda dy: dy.noise(vector(dy, 3), "a"),
    "random_normal-string": lambda dy: dy.random_normal("a"),
    "random_uniform-missing": lambda dy: dy.random_uniform(3),
    "random_bernoulli-p": lambda dy: dy.random_bernoulli(3, 2.0),
    "vanilla_lstm_c-size": lambda dy: dy.vanilla_lstm_c(vector(dy, 3), vector(dy, 11)),
    "vanilla_lstm_h-size": lambda dy: dy.vanilla_lstm_h(vector(dy, 3), vector(dy, 11)),
    "vanilla_lstm_gates-size": lambda dy: dy.vanilla_lstm_gates(
        vector(dy, 3), vector(dy, 2), tensor(dy, 8, 4), tensor(dy, 8, 2), vector(dy, 8)
    ),
    "inputTensor-string": lambda dy: dy.inputTensor("ab"),
    "inputTensor-none": lambda dy: dy.inputTensor(None),
    "inputTensor-ragged": lambda dy: dy.inputTensor([[1, 2], [3]]),
    "inputTensor-axes": lambda dy: dy.inputTensor(np.ones((1,) * 8)),
    "inputVector-string": lambda dy: dy.inputVector("ab"),
    "inputVector-nested": lambda dy: dy.inputVector([[1], [2]]),
    "inputVector-none": lambda dy: dy.inputVector(None),
    "scalarInput-string": lambda dy: dy.scalarInput("a"),
    "scalarInput-none": lambda dy: dy.scalarInput(None),
    "vecInput-string": lambda dy: dy.vecInput("a"),
    "vecInput-negative": lambda dy: dy.vecInput(-1),
    "zeros-string": lambda dy: dy.zeros("a"),
    "zeros-negative": lambda dy: dy.zeros(-1),
    "zeros-axes": lambda dy: dy.zeros((1,) * 8),
    "zeros-batch0": lambda dy: dy.zeros(3, batch_size=0),
    "constant-missing": lambda dy: dy.constant(3),
    "one_hot-range": lambda dy: dy.one_hot(3, 3),
    "one_hot-batch-range": lambda dy: dy.one_hot(3, [0, 3]),
    "one_hot-negative": lambda dy: dy.one_hot(3, -4),
    "set-size": lambda dy: set_too_few(dy),
    "pow-shapes": lambda dy: dy.pow(vector(dy, 3), vector(dy, 2)),
    "index-range": lambda dy: vector(dy, 3)[3],
    "index-string": lambda dy: vector(dy, 3)["a"],
    "index-float": lambda dy: vector(dy, 3)[1.5],
    "elu-string": lambda dy: dy.elu(vector(dy, 3), "a"),
    "scale_gradient-string": lambda dy: dy.scale_gradient(vector(dy, 3), "a"),
    "backward-vector": lambda dy: backward(dy.tanh(vector(dy, 3))),
    "gradient-without-backward": lambda dy: gradient(vector(dy, 3)),
}

EMPTY, TYPES, INDICES = "empty lists", "wrong types", "indices"
LATE, UNCHECKED, DIES = "late errors", "unchecked arguments", "ends the process"

# For each row: what DyNet does ("accepts", "dies", "late" for an error in forward, or the exception), and the line
# of docs/differences.md.
OTHERWISE: dict[str, tuple[str, str]] = {
    "add-string": ("NotImplementedError", TYPES),
    "add-none": ("NotImplementedError", TYPES),
    "sub-list": ("NotImplementedError", TYPES),
    "mul-none": ("NotImplementedError", TYPES),
    "div-none": ("NotImplementedError", TYPES),
    "tanh-none": ("dies", DIES),
    "esum-empty": ("AssertionError", EMPTY),
    "esum-mixed": ("AssertionError", TYPES),
    "average-empty": ("AssertionError", EMPTY),
    "emax-empty": ("AssertionError", EMPTY),
    "logsumexp-empty": ("AssertionError", EMPTY),
    "concatenate-empty": ("AssertionError", EMPTY),
    "concatenate-batch": ("accepts", UNCHECKED),
    "concatenate-none": ("AssertionError", TYPES),
    "concatenate_cols-empty": ("AssertionError", EMPTY),
    "concatenate_to_batch-empty": ("AssertionError", EMPTY),
    "affine_transform-empty": ("AssertionError", EMPTY),
    "transpose-axes": ("accepts", UNCHECKED),
    "transpose-repeat": ("accepts", UNCHECKED),
    "pick-range": ("late", INDICES),
    "pick-negative": ("OverflowError", INDICES),
    "pick-float": ("accepts", UNCHECKED),
    "pick_batch-count": ("ValueError", INDICES),
    "pick_batch-range": ("late", INDICES),
    "pick_range-end": ("ValueError", INDICES),
    "pick_range-order": ("ValueError", INDICES),
    "pickrange-end": ("ValueError", INDICES),
    "pick_batch_elem-range": ("late", INDICES),
    "pick_batch_elems-range": ("late", INDICES),
    "pick_batch_elems-empty": ("late", LATE),
    "select_rows-range": ("late", INDICES),
    "select_cols-range": ("late", INDICES),
    "sum_dim-repeat": ("dies", DIES),
    "log_softmax-range": ("accepts", UNCHECKED),
    "log_softmax-empty": ("late", LATE),
    "pickneglogsoftmax-range": ("late", INDICES),
    "pickneglogsoftmax_batch-count": ("ValueError", INDICES),
    "pickneglogsoftmax_batch-range": ("late", INDICES),
    "hinge-range": ("late", INDICES),
    "hinge_batch-count": ("late", INDICES),
    "hinge_dim-count": ("late", INDICES),
    "conv2d-stride": ("accepts", UNCHECKED),
    "conv2d-zero": ("dies", DIES),
    "maxpooling2d-zero": ("dies", DIES),
    "fold_rows-0": ("dies", DIES),
    "dropout-negative": ("accepts", UNCHECKED),
    "dropout-2": ("accepts", UNCHECKED),
    "dropout_batch-2": ("accepts", UNCHECKED),
    "block_dropout-2": ("late", LATE),
    "inputVector-nested": ("TypeError", TYPES),
    "vecInput-negative": ("RuntimeError", UNCHECKED),
    "zeros-negative": ("dies", DIES),  # it tries to allocate 16 GiB
    "random_bernoulli-p": ("accepts", UNCHECKED),
    "zeros-batch0": ("accepts", UNCHECKED),
    "one_hot-range": ("accepts", UNCHECKED),
    "one_hot-batch-range": ("accepts", UNCHECKED),
    "one_hot-negative": ("OverflowError", INDICES),
    "set-size": ("accepts", UNCHECKED),
    "index-string": ("AssertionError", TYPES),
    "index-float": ("AssertionError", TYPES),
}


def outcome(library: Library, build: Callable[[Library], Any]) -> tuple[str, type[BaseException] | None]:
    """When an error is raised, "early" or "late", and its class; or "accepts"."""
    library.renew_cg()
    library.kept.clear()
    when = "early"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = build(library)
            when = "late"
            if hasattr(made, "npvalue"):
                made.npvalue()
    except Exception as error:
        return when, type(error)
    finally:
        library.renew_cg()
    return "accepts", None


@pytest.mark.parametrize("name", BAD)
def test_kind_of_error(name: str) -> None:
    theirs, ours = both()
    when, kind = outcome(ours, BAD[name])
    assert when == "early"
    assert kind is not None
    assert issubclass(kind, (TypeError, ValueError, IndexError, RuntimeError))
    meant = OTHERWISE.get(name, ("", ""))[0]
    if meant == "dies":
        return
    counts["errors compared"] += 1
    their_when, their_kind = outcome(theirs, BAD[name])
    if meant in ("accepts", "late"):
        assert their_when == meant
        return
    assert their_when == "early"
    assert their_kind is not None
    if meant:
        assert their_kind.__name__ == meant
        assert not issubclass(kind, their_kind), "no difference any more: update OTHERWISE"
    else:
        assert issubclass(kind, their_kind), f"{kind.__name__} here, {their_kind.__name__} in DyNet"


def test_every_difference_is_a_row() -> None:
    assert set(OTHERWISE) <= set(BAD)
