"""Converters of reductions, norms, losses and sorting."""

from __future__ import annotations

from math import inf, lgamma

import numpy as np

from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import converts
from dynet_cy.onnx.elementwise import ROWS, by_formula, fitted
from dynet_cy.onnx.formulas import write
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer

ALL_AXES, BATCH = 0x7F, 1 << 31


def reduced_axes(w: Writer, x: Value) -> list[int]:
    """The axes of the file that the step reduces."""
    mask = w.whole(0) & 0xFFFFFFFF
    axes = range(len(x.dims)) if mask & ALL_AXES == ALL_AXES else [d for d in range(len(x.dims)) if mask >> d & 1]
    found = [-d - 1 for d in axes]
    return [*found, -len(x.dims) - 1] if mask & BATCH and x.has_batch else found


def reduce(w: Writer, operator: str, name: str, axes: list[int], keep: bool = False) -> str:
    found = w.add(operator, name, w.ints(*axes), keepdims=int(keep)) if axes else name
    if not axes or operator not in ("ReduceMax", "ReduceMin"):
        return found
    # ONNX does not say what these make of a NaN.
    strange = w.add("Cast", w.add("IsNaN", name), to=w.helper.TensorProto.FLOAT)
    any_strange = w.add("Greater", w.add("ReduceMax", strange, w.ints(*axes), keepdims=int(keep)), w.constant(0))
    return w.add("Where", any_strange, w.constant(np.nan), found)


def shaped(w: Writer, x: Value, name: str, axes: list[int], step: Step) -> str:
    """The result of a reduction of x over these axes, in the shape of the step: one number has an axis of one
    element."""
    left = len(x.dims) - sum(axis >= -len(x.dims) for axis in axes)
    return w.add("Unsqueeze", name, w.ints(-1)) if left < len(step.dims) else name


@converts("sum")
def total(w: Writer, step: Step, args: list[Value]) -> str:
    x = args[0]
    axes = reduced_axes(w, x)
    return shaped(w, x, reduce(w, "ReduceSum", x.name, axes), axes, step)


@converts("mean")
def mean(w: Writer, step: Step, args: list[Value]) -> str:
    x, divisor = args[0], w.whole(1)
    axes = reduced_axes(w, x)
    if divisor > 0:
        found = w.add("Div", reduce(w, "ReduceSum", x.name, axes), w.constant(divisor))
    else:
        found = reduce(w, "ReduceMean", x.name, axes)
    return shaped(w, x, found, axes, step)


_NORMS = {1.0: "ReduceL1", 2.0: "ReduceL2", inf: "ReduceMax"}


@converts("norm")
def norm(w: Writer, step: Step, args: list[Value]) -> str:
    """Of x divided by its greatest element, unless ONNX has an operator."""
    x, p = args[0], w.number(1)
    axes = reduced_axes(w, x)
    size = found = w.add("Abs", x.name)
    if w.whole(2):  # of the deviation: the root of a mean of squares
        found = w.add("Sqrt", reduce(w, "ReduceMean", w.add("Mul", size, size), axes))
    elif p in _NORMS:
        found = reduce(w, _NORMS[p], size, axes)
    elif axes:
        top = reduce(w, "ReduceMax", size, axes, keep=True)
        scale = w.add("Max", top, w.constant(np.finfo(np.float32).tiny))
        powers = w.add("Pow", w.add("Div", size, scale), w.constant(p))
        root = w.add("Pow", reduce(w, "ReduceSum", powers, axes, keep=True), w.constant(1 / p))
        found = w.add("Squeeze", w.add("Mul", root, scale), w.ints(*axes))
    return shaped(w, x, found, axes, step)


_ALONG = {"max_dim": "ReduceMax", "min_dim": "ReduceMin", "logsumexp_dim": "ReduceLogSumExp"}


@converts(*_ALONG)
def along(w: Writer, step: Step, args: list[Value]) -> str:
    axes = [-w.whole(0) - 1]
    return shaped(w, args[0], reduce(w, _ALONG[step.op], args[0].name, axes), axes, step)


@converts("cumsum")
def cumsum(w: Writer, step: Step, args: list[Value]) -> str:
    axis = w.whole(0)
    if axis >= len(step.dims):
        return args[0].name
    return w.add("CumSum", args[0].name, w.constant(-axis - 1, np.int64))


_UP_TO = {"cumprod": ("ReduceProd", 1.0), "logcumsumexp": ("ReduceLogSumExp", -np.inf)}


@converts(*_UP_TO)
def up_to_each(w: Writer, step: Step, args: list[Value]) -> str:
    """Cumulative reductions: reductions of rows masked by a triangle, since ONNX has no cumulative ones for these."""
    reduction, neutral = _UP_TO[step.op]
    x, axis = args[0], w.whole(0)
    order = list(range(x.rank))
    order[-1], order[-axis - 1] = order[-axis - 1], order[-1]
    rows = w.add("Unsqueeze", w.transpose(x.name, order), w.ints(-2))
    n = w.size_list([x.dims[axis]] * 2)
    triangle = w.add("Trilu", w.add("Expand", w.constant(1), n), upper=0)
    kept = w.add("Where", w.add("Greater", triangle, w.constant(0)), rows, w.constant(neutral))
    return w.transpose(reduce(w, reduction, kept, [-1]), order)


# ---- maxima, and order


@converts("argmax", "argmax_straight_through")
def argmax(w: Writer, step: Step, args: list[Value]) -> str:
    x = w.flat(args[0])
    place = w.add("ArgMax", x.name, axis=-1, keepdims=1)  # OneHot takes no single number
    found = w.add("Squeeze", w.add("OneHot", place, w.size(x.dims[0]), w.constant([0, 1]), axis=-1), w.ints(-2))
    return found if len(step.dims) == 1 else w.to(found, x.each, step.dims, step.batch)


@converts("index_of_max", "index_of_min")
def index_along(w: Writer, step: Step, args: list[Value]) -> str:
    x = args[0]
    op = "ArgMax" if step.op == "index_of_max" else "ArgMin"
    found = w.add(op, x.name, axis=-w.whole(0) - 1, keepdims=int(len(x.dims) == 1))
    return w.add("Cast", found, to=w.helper.TensorProto.INT32)


@converts("sort", "argsort")
def ordered(w: Writer, step: Step, args: list[Value]) -> str:
    values, places = w.top(args[0].name, w.size(w.word(1)), -w.whole(0) - 1, w.whole(2) & 1)
    return values if step.op == "sort" else w.add("Cast", places, to=w.helper.TensorProto.INT32)


@converts("kmax_pooling")
def kmax_pooling(w: Writer, step: Step, args: list[Value]) -> str:
    """The greatest elements, in the order of x: their sorted positions select them."""
    x, axis = args[0], -w.whole(0) - 1
    count = w.ints(w.whole(1))
    _, places = w.top(x.name, count, axis)
    in_order, _ = w.top(places, count, axis, largest=0)
    return w.add("GatherElements", x.name, in_order, axis=axis)


# ---- softmax


@converts("softmax", "log_softmax", "log_softmax_along")
def softmax(w: Writer, step: Step, args: list[Value]) -> Value:
    x, axis = w.with_rank(args[0], 1), 0 if step.op == "log_softmax" else w.whole(0)
    operator = "Softmax" if step.op == "softmax" else "LogSoftmax"
    return fitted(w, step, x._replace(name=w.add(operator, x.name, axis=-axis - 1)))


@converts("restricted_log_softmax")
def restricted(w: Writer, step: Step, args: list[Value]) -> str:
    x = w.flat(args[0])
    if not step.same_for_all:
        raise w.refused("has other indices in each batch element")
    chosen = w.picked(step.item_count, False, step.first_items)
    spots = w.add("OneHot", chosen.name, w.size(x.dims[0]), w.constant([0, 1]), axis=-1)
    spots = w.add("ReduceMax", spots, w.ints(-2), keepdims=0)
    kept = Value(spots, x.dims, w.one, chosen.each)
    mask = w.add("Greater", w.lifted(kept, 1, x.has_batch), w.constant(0))
    found = w.add("LogSoftmax", w.add("Where", mask, x.name, w.constant(-np.inf)), axis=-1)
    return found if len(step.dims) == 1 else w.to(found, x.each or chosen.each, step.dims, step.batch)


@converts("logsumexp")
def logsumexp(w: Writer, step: Step, args: list[Value]) -> str:
    xs, each, has_batch = w.together([w.with_axes(x, step.dims) for x in args], len(step.dims))
    rows = [w.add("Unsqueeze", x, w.ints(0)) for x in xs]
    return reduce(w, "ReduceLogSumExp", w.add("Concat", *rows, axis=0), [0])


@converts("sparsemax")
def sparsemax(w: Writer, step: Step, args: list[Value]) -> Value:
    """Martins and Astudillo, "From softmax to sparsemax", 2016, algorithm 1."""
    x = w.with_rank(args[0], 1)
    n = w.size(x.dims[0])
    falling = x._replace(name=w.top(x.name, n, -1)[0])
    sums = x._replace(name=w.add("CumSum", falling.name, w.ints(-1)))
    before = Value(w.add("Cast", w.up_to(n), to=w.helper.TensorProto.FLOAT), x.dims[:1], w.one, False)
    inside = write(w, "SEL(1 + (n + 1) * x > sums, 1, 0)", n=before, x=falling, sums=sums)
    parts = inside, w.combine("Mul", inside, falling)
    size, top = (x._replace(name=reduce(w, "ReduceSum", part.name, [-1], keep=True)) for part in parts)
    return fitted(w, step, write(w, "RELU(x - (top - 1) / size)", x=x, top=top, size=size))


# ---- classes: losses with the index of the true one


@converts("pickneglogsoftmax", "pickneglogsoftmax_at", "hinge")
def loss_of_class(w: Writer, step: Step, args: list[Value]) -> Value:
    x = w.flat(args[0])
    batch = args[1].batch if len(args) > 1 else step.batch
    places = w.as_indices(args[1], [w.one]) if len(args) > 1 else w.picked(w.one, not sizes.is_one(batch))
    spots = w.add("OneHot", places.name, w.size(x.dims[0]), w.constant([0, 1]), axis=-1)  # [.., 1, classes]
    true = Value(w.add("Squeeze", spots, w.ints(-2)), x.dims, batch, places.each)
    if step.op == "hinge":
        formula = "SUM(SEL(true > 0, 0, RELU(x - SUM(SEL(true > 0, x, 0)) + margin)))"
        return write(w, formula, true=true, x=x, margin=w.number(0))
    logs = x._replace(name=w.add("LogSoftmax", x.name, axis=-1))
    return write(w, "SUM(SEL(true > 0, 0 - logs, 0))", true=true, logs=logs)


# ---- losses

_TINY = float(np.finfo(np.float32).tiny)

# What is summed over all elements of the arguments.
_SUMS = {
    "squared_norm": "SUM_SQUARE(x)",
    "dot_product": "SUM(a * b)",
    "squared_distance": "SUM_SQUARE(a - b)",
    "l1_distance": "L1(a - b)",
    "binary_log_loss": f"SUM(0 - (b * LOG(MAX(a, {_TINY})) + (1 - b) * LOG(MAX(1 - a, {_TINY}))))",
}


@converts(*_SUMS)
def sums(w: Writer, step: Step, args: list[Value]) -> Value:
    return by_formula(w, step, [w.flat(x) for x in args], _SUMS[step.op])


@converts("huber_distance")
def huber_distance(w: Writer, step: Step, args: list[Value]) -> Value:
    difference = write(w, "a - b", a=w.flat(args[0]), b=w.flat(args[1]))
    return by_formula(w, step, [difference], f"SUM(0.5 * ({ROWS['huber']}))")


@converts("poisson_loss")
def poisson_loss(w: Writer, step: Step, args: list[Value]) -> Value:
    if len(set(step.items)) != 1:
        raise w.refused("needs a count that is a constant, since ONNX has no logarithm of a factorial")
    n, rest = (
        Value(w.constant(np.reshape(x, (-1, 1) if len(x) > 1 else 1)), (w.one,), step.batch, False)
        for x in (step.items[0], [lgamma(n + 1) for n in step.items[0]])
    )
    return write(w, "EXP(x) - x * n + rest", x=w.flat(args[0]), n=n, rest=rest)


# ---- norms


@converts("layer_norm")
def layer_norm(w: Writer, step: Step, args: list[Value]) -> Value:
    """(x - mean) / (deviation + 1e-8) g + b along some axes, or, with eps, (x - mean) / sqrt(variance + eps) g + b."""
    x, first, count = args[0], w.whole(0), w.whole(1)
    if count == 0:
        g = args[1].dims
        while g and sizes.is_one(g[-1]) and g != x.dims[: len(g)]:
            g = g[:-1]
        count = len(g)
    return normalized(w, step, x, args[1:], first, count)


@converts("residual_layer_norm")
def residual_layer_norm(w: Writer, step: Step, args: list[Value]) -> Value:
    x, g, r, b = args
    return normalized(w, step, w.combine("Add", x, r)._replace(dims=x.dims), [g, b], 0, 1)


def centered(w: Writer, x: Value, axes: list[int]) -> tuple[Value, Value]:
    """x less its mean along some axes, and its variance."""
    found = w.combine("Sub", x, x._replace(name=reduce(w, "ReduceMean", x.name, axes, keep=True)))
    square = w.add("Mul", found.name, found.name)
    return found, x._replace(name=reduce(w, "ReduceMean", square, axes, keep=True))


def normalized(w: Writer, step: Step, x: Value, parts: list[Value], first: int, count: int) -> Value:
    """x normalized along `count` axes, times the first of the parts and plus the second."""
    eps = w.number(2)
    found, variance = centered(w, x, [-d - 1 for d in range(first, first + count)])
    found = write(w, "x / SQRT(v + eps)" if eps > 0 else "x / (SQRT(v) + 1e-8)", x=found, v=variance, eps=eps)
    for part, operator in zip(parts, ("Mul", "Add")):
        if part.dims != x.dims and first:
            part = w.with_axes(part, ((w.one,) * first + part.dims))
        found = w.combine(operator, found, part)
    return fitted(w, step, found)


@converts("weight_norm")
def weight_norm(w: Writer, step: Step, args: list[Value]) -> Value:
    return fitted(w, step, write(w, "x * (g / L2(x))", x=args[0], g=w.flat(args[1])))


@converts("batch_moments")
def batch_moments(w: Writer, step: Step, args: list[Value]) -> str:
    """Mean and variance over all axes but w.one, and over the batch of the expression."""
    x, axis = args[0], w.whole(0)
    axes = [-d - 1 for d in range(len(x.dims)) if d != axis]
    axes += [-len(x.dims) - 1] if x.has_batch else []
    mean, variance = reduce(w, "ReduceMean", x.name, axes, keep=True), centered(w, x, axes)[1].name
    channels = x.dims[axis] if x.dims else w.one
    rows = [w.reshape(part, x.each, [w.one, channels]) for part in (mean, variance)]
    return w.add("Concat", *rows, axis=-2)


@converts("channel_norm")
def channel_norm(w: Writer, step: Step, args: list[Value]) -> Value:
    """g (x - mean) / sqrt(variance + eps) + b, each a number for each channel along an axis."""
    axis = w.whole(0)
    mean, v, g, b = (w.with_axes(w.flat(part), (w.one,) * axis + w.flat(part).dims) for part in args[1:])
    formula = "(x - mean) / SQRT(v + eps) * g + b"
    return fitted(w, step, write(w, formula, x=args[0], mean=mean, v=v, eps=w.number(1), g=g, b=b))
