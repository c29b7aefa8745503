"""Converters of products, recurrent cells, and recurrent networks over whole sequences."""

from __future__ import annotations

import numpy as np

from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import converts
from dynet_cy.onnx.elementwise import fitted
from dynet_cy.onnx.formulas import write
from dynet_cy.onnx.sizes import Size
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer


def product(w: Writer, a: Value, b: Value, vector: bool) -> str:
    """The product a b as a matrix or a vector; as the order of axes is reversed, b comes first."""
    has_batch = a.has_batch or b.has_batch
    a, b = w.with_rank(a, 2), w.with_rank(w.with_axes(b, b.dims[: 2 - vector]), 2 - vector)
    if vector and a.lead:  # as a row of a matrix for each matrix
        row = w.lifted(b._replace(dims=(*b.dims, w.one), name=w.add("Unsqueeze", b.name, w.ints(-2))), 2, has_batch)
        return w.add("Squeeze", w.add("MatMul", row, w.lifted(a, 2, has_batch)), w.ints(-2))
    return w.add("MatMul", w.lifted(b, len(b.dims), has_batch), w.lifted(a, 2, has_batch))


@converts("matmul")
def matmul(w: Writer, step: Step, args: list[Value]) -> str:
    return product(w, args[0], args[1], len(step.dims) == 1)


def affine(w: Writer, step: Step, args: list[Value]) -> Value:
    """b + W1 x1 + W2 x2 + ..."""
    vector = len(step.dims) == 1
    terms = []
    for weight, x in zip(args[1::2], args[2::2]):
        batch = weight.batch if weight.has_batch else x.batch
        terms.append(Value(product(w, weight, x, vector), step.dims, batch, weight.each or x.each))
    b = args[0]
    return w.total([*terms, w.with_axes(b, b.dims[: len(step.dims)])])


@converts("affine_transform")
def affine_transform(w: Writer, step: Step, args: list[Value]) -> Value:
    return args[0] if len(args) == 1 else affine(w, step, args)


@converts("batched_matmul")
def batched_matmul(w: Writer, step: Step, args: list[Value]) -> str:
    flags, axes = w.whole(0), len(step.dims)
    has_batch = not sizes.is_one(step.batch)
    names = []
    for k, x in enumerate(args):
        x = w.with_rank(x, 2)
        if flags >> k & 1:
            order = list(range(x.rank))
            x = x._replace(name=w.transpose(x.name, [*order[:-2], order[-1], order[-2]]))
        names.append(w.lifted(x, axes, has_batch))
    return w.add("MatMul", names[1], names[0])


# ---- recurrent cells


def gates(w: Writer, sums: str, size: int, plan: list[tuple[int, str]]) -> str:
    """Blocks of `size` rows, each with its activation; the plan gives a number of blocks and their operator."""
    parts, start = [], 0
    for blocks, operator in plan:
        parts.append(w.add(operator, w.cut(sums, start, start + blocks * size)))
        start += blocks * size
    return w.add("Concat", *parts, axis=-1)


@converts("vanilla_lstm_gates", "vanilla_lstm_gates_projected")
def lstm_gates(w: Writer, step: Step, args: list[Value]) -> str:
    """Arguments: b, Wh, h, and then Wx before each x; Wx has a block of columns for each x."""
    vectors = [w.flat(x) if k == 0 or k % 2 == 0 else x for k, x in enumerate(args)]
    start = 0
    for k in range(4, len(vectors), 2):
        weight, rows = vectors[k - 1], vectors[k].dims[0]
        count = _known(w, rows)
        if sizes.constant(weight.dims[1] if len(weight.dims) > 1 else (1,)) != count:
            part = w.cut(weight.name, start, start + count, -2)
            vectors[k - 1] = weight._replace(name=part, dims=(weight.dims[0], rows))
        start += count
    size = _known(w, vectors[2].dims[0])
    forget = w.constant(np.repeat([0, 1, 0, 0], size))
    sums = w.add("Add", affine(w, step, vectors).name, forget)
    return gates(w, sums, size, [(3, "Sigmoid"), (1, "Tanh")])


def _known(w: Writer, size: Size) -> int:
    found = sizes.constant(size)
    if found is None:
        raise w.refused(f"has vectors of {list(size)} elements; they must have a fixed number of them")
    return found


def row_block(w: Writer, x: Value, k: int, size: int) -> Value:
    """Block number k of `size` rows of a vector."""
    return x._replace(name=w.part(x, k * size, size), dims=(tuple(size for _ in x.batch),))


@converts("vanilla_lstm_c")
def lstm_c(w: Writer, step: Step, args: list[Value]) -> Value:
    c, all_gates = (w.flat(x) for x in args)
    size = _known(w, c.dims[0])
    i, f, g = (row_block(w, all_gates, k, size) for k in (0, 1, 3))
    return fitted(w, step, write(w, "f * c + i * g", f=f, c=c, i=i, g=g))


@converts("vanilla_lstm_h", "tree_lstm_h")
def lstm_h(w: Writer, step: Step, args: list[Value]) -> Value:
    c, all_gates = (w.flat(x) for x in args)
    o = row_block(w, all_gates, 2 if step.op == "vanilla_lstm_h" else 1, _known(w, c.dims[0]))
    return fitted(w, step, write(w, "o * TANH(c)", o=o, c=c))


@converts("dropout_mask")
def dropout_mask(w: Writer, step: Step, args: list[Value]) -> Value:
    x, mask = (w.flat(a) for a in args)
    size, start = _known(w, x.dims[0]), w.whole(0)
    if sizes.constant(mask.dims[0]) != size:
        mask = mask._replace(name=w.cut(mask.name, start, start + size), dims=x.dims)
    return fitted(w, step, w.combine("Mul", x, mask))


@converts("gated_affine")
def gated_affine(w: Writer, step: Step, args: list[Value]) -> str:
    blocks, logistic, tanh = (w.whole(k) for k in range(3))
    counts = (logistic, "Sigmoid"), (tanh, "Tanh"), (blocks - logistic - tanh, "Sigmoid")
    plan = [(n, operator) for n, operator in counts if n]
    sums = affine_transform(w, step, args).name
    if len(plan) == 1:
        return w.add(plan[0][1], sums)
    return gates(w, sums, _known(w, step.dims[0]) // blocks, plan)


@converts("tree_lstm_c")
def tree_lstm_c(w: Writer, step: Step, args: list[Value]) -> Value:
    all_gates, *cells = (w.flat(x) for x in args)
    size = _known(w, step.dims[0])
    i, _, g, *forget = (row_block(w, all_gates, k, size) for k in range(3 + len(cells)))
    pairs = zip([i, *forget], [g, *cells])
    return fitted(w, step, w.total([w.combine("Mul", *both) for both in pairs]))


# ---- recurrent networks

_DIRECTIONS = "forward", "reverse", "bidirectional"


@converts("weights")
def weights(w: Writer, step: Step, args: list[Value]) -> Value:
    """W, R or B of ONNX's operators."""
    return Value(w.store(step.parameter or "weights", step.values[0]), step.dims, step.batch, False)


@converts("LSTM", "GRU", "RNN")
def network(w: Writer, step: Step, args: list[Value]) -> Value:
    """Positions come first in ONNX, then examples; the result has an axis for directions before the examples."""
    x, weight, recurrent, bias, *start = args
    x = w.flat(x)
    lengths = w.length_of(step.batch)
    lengths = lengths and w.add("Cast", lengths, to=w.helper.TensorProto.INT32)
    each = bool(lengths) or any(a.each for a in args)
    by_position = w.transpose(w.for_examples(x), [1, 0, 2]) if each else w.add("Unsqueeze", x.name, w.ints(1))
    states = [w.add("Unsqueeze", w.for_examples(s) if each else s.name, w.ints(0)) for s in start]
    if not each:
        states = [w.add("Unsqueeze", s, w.ints(1)) for s in states]
    direction, reset_after = w.whole(0), w.whole(1)
    attributes = {"linear_before_reset": reset_after} if step.op == "GRU" else {}
    last = w.add(
        step.op,
        *(by_position, weight.name, recurrent.name, bias.name, lengths, *states),
        outputs=3 if step.op == "LSTM" else 2,
        direction=_DIRECTIONS[direction],
        hidden_size=step.dims[0][0],
        **attributes,
    )
    w.last_states[step.number] = last
    found = w.transpose(w.nodes[-1].output[0], [2, 0, 1, 3])
    return Value(found if each else w.add("Squeeze", found, w.ints(0)), step.dims, step.batch, each)


@converts("last_cell")
def last_cell(w: Writer, step: Step, args: list[Value]) -> Value:
    """The cells after the last step of a direction of an LSTM."""
    found = w.add("Gather", w.last_states[step.args[0]], w.constant(w.whole(0), int), axis=0)
    each = args[0].each
    return Value(found if each else w.add("Squeeze", found, w.ints(0)), step.dims, step.batch, each)


# ---- contractions


@converts("contract3d_1d")
def contract(w: Writer, step: Step, args: list[Value]) -> Value:
    """z_ij = sum_k x_ijk y_k: the product of y and x as a matrix, which has k rows in the file."""
    x, y = args[0], w.flat(args[1])
    area = tuple(a * b for a, b in zip(*step.dims))
    x = w.with_axes(x, (area, y.dims[0]))
    name = product(w, x, y, True)
    return w.with_axes(Value(name, (area,), x.batch if x.has_batch else y.batch, x.each or y.each), step.dims)


@converts("circ_conv", "circ_corr")
def circular(w: Writer, step: Step, args: list[Value]) -> Value:
    """sum_i u_i M_ik, where the rows of M are the rotations of v."""
    u, v = (w.flat(x) for x in args)
    n = _known(w, u.dims[0])
    i, k = np.arange(n)[:, None], np.arange(n)[None, :]
    places = (k - i if step.op == "circ_conv" else i + k) % n
    rotated = w.add("Gather", v.name, w.constant(places, np.int64), axis=-1)
    matrix = Value(rotated, (u.dims[0],) * 2, v.batch, v.each)
    return fitted(w, step, Value(product(w, matrix, u, True), u.dims, step.batch, u.each or v.each))
