"""Padded batches: sequences of different lengths in one tensor, and operations that must ignore the padding."""

from __future__ import annotations

from math import inf

from dynet_cy.onnx import elementwise
from dynet_cy.onnx.converters import CONVERTERS
from dynet_cy.onnx.reductions import ALL_AXES, BATCH
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer

# What padding must be where an operation combines positions, so that it has no effect.
_NEUTRAL = {
    "sum": 0.0,
    "mean": 0.0,
    "max_dim": -inf,
    "min_dim": inf,
    "logsumexp_dim": -inf,
    "softmax": -inf,
    "log_softmax_along": -inf,
}
# Operations that treat each element of a matrix, or each of its columns, by itself, or only move them.
_BY_ELEMENT = {
    *(name for name, converter in CONVERTERS.items() if converter.__module__ == elementwise.__name__),
    *("transpose", "input", "parameter", "log_softmax", "layer_norm"),
}
_ACROSS_BATCH = {"batch_moments", "channel_norm", "concatenate_to_batch"}


def without_padding(w: Writer, step: Step, args: list[Value]) -> list[Value]:
    """The arguments of a step, with padding that does not change its value at the other positions.

    Raises:
        ExportError: the step may combine positions in another way
    """
    return [_prepared(w, step, k, x) for k, x in enumerate(args)] if w.lengths else args


def _prepared(w: Writer, step: Step, k: int, x: Value) -> Value:
    if w.padded(x.batch) and step.op in _ACROSS_BATCH and (step.op != "concatenate_to_batch" or len(step.args) > 1):
        raise _mixed(w)
    axes = [axis for axis, size in enumerate(x.dims) if w.padded(size)]
    if step.op in _NEUTRAL:
        over = [axis for axis in axes if _reduces(w, step, axis)]
        batch = bool(w.padded(x.batch)) and step.op in ("sum", "mean") and bool(w.whole(0) & BATCH)
        for place, size in [(-1 - axis, x.dims[axis]) for axis in over] + [(-1 - len(x.dims), x.batch)] * batch:
            x = w.masked(x, place, size, _NEUTRAL[step.op])
            if step.op == "mean":
                if w.whole(1) > 0:
                    raise _mixed(w)
                x = w.shared_by_length(x, size)
        return x
    if step.op == "matmul" and k == 0 and len(axes) == 1 and axes[0] > 0:  # a sum over the positions
        return w.masked(x, -1 - axes[0], x.dims[axes[0]], 0.0)
    if axes and not _keeps_apart(w, step, k, x, axes):
        raise _mixed(w)
    return x


def _keeps_apart(w: Writer, step: Step, k: int, x: Value, axes: list[int]) -> bool:
    """Whether a step treats the positions along some axes of argument k each by itself, or only moves them."""
    last = axes == [len(x.dims) - 1]
    if step.op == "matmul":  # a row for each position, or a column; or those that the other argument has no part of
        return axes == [0] or last
    if step.op == "affine_transform":  # columns of the bias, and of the second factors
        return last and (k == 0 or (k % 2 == 0 and len(x.dims) == 2))
    if step.op == "reshape":
        return last and x.dims[-1] in (step.batch, *step.dims[-1:])
    if step.op in ("concatenate", "pick", "pick_range", "select_rows"):
        return w.whole(0) not in axes
    return step.op in _BY_ELEMENT


def _reduces(w: Writer, step: Step, axis: int) -> bool:
    """Whether a step combines the elements along an axis."""
    if step.op not in ("sum", "mean"):
        return w.whole(0) == axis
    chosen = w.whole(0)
    return chosen & ALL_AXES == ALL_AXES or bool(chosen >> axis & 1)


def _mixed(w: Writer) -> Exception:
    return w.refused(
        "may combine positions, some of which are padding where examples have lengths of their own (argument lengths)"
    )
