"""Converters of leaves, shapes and selections."""

from __future__ import annotations

from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import converts
from dynet_cy.onnx.sizes import Size
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import BEFORE_THE_FIRST, EXAMPLES, Array, Picked, Value, Writer

# ---- leaves


@converts("input")
def constant(w: Writer, step: Step, args: list[Value]) -> Value:
    return w.input_constant(step)


def stored(w: Writer, step: Step, array: Array) -> str:
    """A parameter as an initializer with its name, stored once."""
    if step.entry not in w.file.parameters:
        w.file.parameters[step.entry] = w.store(step.parameter or "parameter", array)
    return w.file.parameters[step.entry]


def stored_rows(w: Writer, step: Step) -> str:
    """A table; the axis of rows comes first, like the batch."""
    table = step.values[0]
    return stored(w, step, table.transpose(0, *range(table.ndim - 1, 0, -1)))


@converts("parameter")
def parameter(w: Writer, step: Step, args: list[Value]) -> Value:
    array = step.values[0].reshape([d[0] for d in step.dims], order="F")
    return Value(stored(w, step, array.T), step.dims, step.batch, False)


@converts("lookup")
def lookup(w: Writer, step: Step, args: list[Value]) -> Value:
    name, rows = stored_rows(w, step), w.picked(step.batch, False)
    found = w.add("Gather", name, rows.name, axis=0)
    if sizes.is_one(step.batch):
        found = w.add("Squeeze", found, w.ints(int(rows.each)))
    return Value(found, step.dims, step.batch, rows.each)


@converts("lookup_at")
def lookup_at(w: Writer, step: Step, args: list[Value]) -> str:
    found = w.add("Gather", stored_rows(w, step), w.as_indices(args[0]).name, axis=0)
    if len(step.dims) != step.values[0].ndim - 1 + len(args[0].dims):  # one index
        found = w.to(found, args[0].each, step.dims, step.batch)
    return found


# ---- shapes


@converts("reshape")
def reshape(w: Writer, step: Step, args: list[Value]) -> str:
    return w.to(args[0].name, args[0].each, step.dims, step.batch)


@converts("transpose")
def transpose(w: Writer, step: Step, args: list[Value]) -> str:
    packed, n = w.whole(0), w.whole(1)
    x = w.with_axes(args[0], (*args[0].dims, *[w.one] * (n - len(args[0].dims)))[:n])
    order = [x.lead + n - 1 - (packed >> 3 * i & 7) for i in reversed(range(n))]
    return w.transpose(x.name, [*range(x.lead), *order])


@converts("concatenate")
def concatenate(w: Writer, step: Step, args: list[Value]) -> str:
    names, _, _ = w.together(args, len(step.dims))
    return w.add("Concat", *names, axis=-w.whole(0) - 1)


@converts("concatenate_to_batch")
def concatenate_to_batch(w: Writer, step: Step, args: list[Value]) -> str:
    if len(args) == 1:
        return w.to(args[0].name, args[0].each, step.dims, step.batch)
    axes, each = len(step.dims), any(x.each for x in args)
    names = [w.lifted(w.with_axes(x, step.dims), axes, True, all_axes=True) for x in args]
    for k, x in enumerate(args):
        if each and not x.each:
            names[k] = w.add("Expand", names[k], w.size_list([EXAMPLES, x.batch, *reversed(step.dims)]))
    return w.add("Concat", *names, axis=-axes - 1)


@converts("fold_rows")
def fold_rows(w: Writer, step: Step, args: list[Value]) -> str:
    n = w.whole(0)
    folded = w.with_axes(args[0], (tuple(n for _ in step.batch), *step.dims))
    return w.add("ReduceSum", folded.name, w.ints(-1), keepdims=0)


@converts("kmh_ngram")
def kmh_ngram(w: Writer, step: Step, args: list[Value]) -> Value:
    x, columns = w.with_rank(args[0], 2), step.dims[1]
    parts = [w.slice(x.name, 1, tuple(k for _ in columns), tuple(n + k for n in columns)) for k in range(w.whole(0))]
    return w.total([x._replace(name=part, dims=step.dims) for part in parts])


# ---- selections


def gathered(w: Writer, x: Value, axis: int, chosen: Picked, batched: bool, step: Step, count: Size) -> Value:
    """Elements along an axis; `batched` indices have a list for each batch element."""
    if not chosen.each and not batched:
        return Value(w.add("Gather", x.name, chosen.name, axis=-axis - 1), step.dims, step.batch, x.each)
    # GatherElements needs an index for each element of the result.
    each = x.each or chosen.each
    there = [w.one] * len(x.dims)
    there[axis] = count
    lists = Value(chosen.name, (count,), step.batch if batched else w.one, chosen.each)
    lists = w.with_axes(lists, there)
    full = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    data, places = w.expanded(x, x.dims, step.batch, each), w.expanded(lists, full, step.batch, each)
    return Value(w.add("GatherElements", data, places, axis=-axis - 1), full, step.batch, each)


def chosen_along(w: Writer, step: Step, x: Value, axis: int, count: Size) -> Value:
    batched = not sizes.is_one(step.batch) and not (step.same_for_all and step.batch == x.batch)
    chosen = w.picked(count, batched, None if batched else step.first_items)
    return gathered(w, x, axis, chosen, batched, step, count)


@converts("pick")
def pick(w: Writer, step: Step, args: list[Value]) -> Value:
    x, axis = args[0], w.whole(0)
    return one_of(w, step, x, axis, chosen_along(w, step, x, axis, w.one))


def one_of(w: Writer, step: Step, x: Value, axis: int, found: Value) -> Value:
    """A selection of one index along an axis of x, without this axis."""
    name = w.add("Squeeze", found.name, w.ints(-axis - 1))
    if len(step.dims) != len(x.dims) - 1:  # a scalar has one axis of size 1
        name = w.to(name, found.each, step.dims, step.batch)
    return Value(name, step.dims, step.batch, found.each)


@converts("select_rows", "select_cols")
def select(w: Writer, step: Step, args: list[Value]) -> Value:
    axis = w.whole(0)
    return chosen_along(w, step, args[0], axis, step.dims[axis])._replace(dims=step.dims)


@converts("pick_range")
def pick_range(w: Writer, step: Step, args: list[Value]) -> str:
    axis = w.whole(0)
    length = step.dims[axis]
    if not step.same_for_all:
        raise w.refused("has other ranges in each batch element")
    start = tuple(items[0] for items in step.items)
    if sizes.formula(start, w.axes) is None:
        raise w.refused("has a range that depends on indices; `select_cols` and `select_rows` take lists of them")
    return w.slice(args[0].name, axis, start, tuple(s + n for s, n in zip(start, length)))


@converts("pick_batch_elems")
def pick_batch_elems(w: Writer, step: Step, args: list[Value]) -> Value:
    x, axes = args[0], len(args[0].dims)
    if w.length_of(x.batch):
        return picked_by_length(w, step, x)
    chosen = w.picked(step.batch, False)
    if chosen.each and x.each:
        raise w.refused("takes batch elements whose numbers are an input; `select_cols` can do that")
    name = w.lifted(x, axes, True, all_axes=True)
    # If x is the same for all examples, the indices may still differ between them.
    name = w.add("Gather", name, chosen.name, axis=-axes - 1)
    if sizes.is_one(step.batch):
        name = w.add("Squeeze", name, w.ints(-axes - 1))
    return Value(name, step.dims, step.batch, x.each or chosen.each)


def picked_by_length(w: Writer, step: Step, x: Value) -> Value:
    """A batch element whose number is a constant, or counts from the end, where examples have different lengths."""
    column = tuple(items[0] for items in step.items)
    if len(step.items[0]) != 1 or not x.each:
        raise w.refused("takes several positions, some of which are padding")
    if sizes.constant(column) is not None:
        place = w.ints(column[0])
        name = w.add("Squeeze", w.add("Gather", x.name, place, axis=1), w.ints(1))
    else:
        from_end = {c - b for c, b in zip(column, x.batch)}
        if len(from_end) != 1:
            raise w.refused("takes a position that is neither counted from the beginning nor from the end")
        place = w.add("Add", w.length_of(x.batch), w.ints(*from_end))
        name = w.add("GatherND", x.name, w.add("Unsqueeze", place, w.ints(1)), batch_dims=1)
    return Value(name, step.dims, step.batch, True)


@converts("scatter_rows", "scatter_cols")
def scatter(w: Writer, step: Step, args: list[Value]) -> Value:
    axis = w.whole(0)
    x = w.with_rank(args[0], max(len(step.dims), axis + 1))
    batched = not sizes.is_one(step.batch) and not step.same_for_all
    chosen = w.picked(x.dims[axis], batched, None if batched else step.first_items)
    there = [w.one] * len(x.dims)
    there[axis] = x.dims[axis]
    lists = Value(chosen.name, (x.dims[axis],), step.batch if batched else w.one, chosen.each)
    return scattered(w, step, x, axis, w.with_axes(lists, there))


# ---- selections at indices that are values of the graph


@converts("take")
def take(w: Writer, step: Step, args: list[Value]) -> str | Value:
    """Attribute 1: 0 for a vector of indices, 1 for one index, 2 for indices of their own for each element."""
    x, axis, mode = args[0], w.whole(0), w.whole(1)
    if mode == 2:
        indices, each = w.as_indices(args[1]), x.each or args[1].each
        names = [w.expanded(v, v.dims, step.batch, each) for v in (x, indices)]
        return Value(w.add("GatherElements", *names, axis=-axis - 1), step.dims, step.batch, each)
    count = w.one if mode == 1 else args[1].dims[0]
    indices = w.as_indices(args[1], [count])
    chosen = Picked(indices.name, indices.each)
    found = gathered(w, x, axis, chosen, indices.has_batch, step, count)
    return found._replace(dims=step.dims) if mode == 0 else one_of(w, step, x, axis, found)


@converts("put")
def put(w: Writer, step: Step, args: list[Value]) -> Value:
    x, axis = args[0], w.whole(0)
    there = list(x.dims)
    if w.whole(1) != 2:
        there = [w.one] * len(x.dims)
        there[axis] = args[1].dims[0]
    return scattered(w, step, x, axis, w.as_indices(args[1], there))


def scattered(w: Writer, step: Step, x: Value, axis: int, indices: Value) -> Value:
    """Zeros, to which the elements of x are added at these indices along an axis."""
    each = x.each or indices.each
    nothing = w.add("Expand", w.constant(0), w.size_list(w.shape_of(step.dims, step.batch, each)))
    names = [w.expanded(v, x.dims, step.batch, each) for v in (indices, x)]
    found = w.add("ScatterElements", nothing, *names, axis=-axis - 1, reduction="add")
    return Value(found, step.dims, step.batch, each)


@converts("one_hot_at")
def one_hot_at(w: Writer, step: Step, args: list[Value]) -> str:
    found = w.hot(args[0], step.dims[0])
    return found if len(step.dims) == 1 + len(args[0].dims) else w.to(found, args[0].each, step.dims, step.batch)


@converts("strided_select")
def strided_select(w: Writer, step: Step, args: list[Value]) -> str:
    axes = len(step.dims)
    if not step.same_for_all:
        raise w.refused("has other ranges in each batch element")
    name = args[0].name
    for axis in range(axes):
        start, steps, count = (tuple(items[3 * axis + k] for items in step.items) for k in range(3))
        stride = sizes.constant(tuple(s - (1 << 32) if s >= 1 << 31 else s for s in steps))
        if stride is None:
            raise w.refused(f"has a stride that depends on the sizes of its inputs: {list(steps)}")
        if stride == 1 and set(start) == {0} and count == args[0].dims[axis]:
            continue
        stop = tuple(s + stride * n for s, n in zip(start, count))
        if stride < 0 and any(s < 0 for s in stop):
            stop = tuple(BEFORE_THE_FIRST for _ in stop)
        name = w.slice(name, axis, start, stop, stride)
    return name
