"""The converter of attention."""

from __future__ import annotations

from dynet_cy.derivatives.attention import ANYWHERE, FROM, TO_LAST, Seen, seen
from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import converts
from dynet_cy.onnx.sizes import Size
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer


def heads_of(w: Writer, x: Value, heads: int) -> Value:
    """A matrix split by rows into one for each head."""
    columns: Size = x.dims[1] if len(x.dims) > 1 else w.one
    rows = tuple(n // heads for n in x.dims[0])
    x = w.with_axes(x, (rows, tuple(heads for _ in x.batch), columns))
    order = [*range(x.lead), x.lead + 1, x.lead, x.lead + 2]
    return x._replace(name=w.transpose(x.name, order), dims=(rows, columns, tuple(heads for _ in x.batch)))


@converts("scaled_dot_product_attention")
def attention(w: Writer, step: Step, args: list[Value]) -> str:
    """Vaswani et al., "Attention is all you need", 2017. In the file, the order of axes is heads, queries, keys."""
    view, place, scale = seen(w.whole(0)), w.whole(1), w.number(3)
    heads = view.heads
    q, k, v = (heads_of(w, x, heads) for x in args[:3])
    has_batch = not sizes.is_one(step.batch)
    order = [*range(k.lead), k.lead, k.lead + 2, k.lead + 1]
    transposed = k._replace(name=w.transpose(k.name, order))
    scaled = q._replace(name=w.add("Mul", q.name, w.constant(scale)))
    scores = w.add("MatMul", w.lifted(scaled, 3, has_batch), w.lifted(transposed, 3, has_batch))
    for bias in args[3:]:
        scores = w.add("Add", scores, w.lifted(bias, 3, has_batch))
    if place == ANYWHERE:
        weights = w.add("Softmax", scores, axis=-1)
    else:
        shown = visible(w, view, place, k.dims[1], q.dims[1])
        scores = w.add("Where", shown, scores, w.constant(float("-inf")))
        weights = w.add("Softmax", scores, axis=-1)
        if view.before is not None:  # a query may be too far from all keys: the softmax of nothing is nan
            weights = w.add("Where", shown, weights, w.constant(0))
    found = w.add("MatMul", weights, w.lifted(v, 3, has_batch))
    each = any(x.each for x in args)
    joined = Value(found, (v.dims[0], q.dims[1], v.dims[2]), step.batch, each)
    order = [*range(joined.lead), joined.lead + 1, joined.lead, joined.lead + 2]
    return w.to(w.transpose(found, order), each, step.dims, step.batch)


def visible(w: Writer, view: Seen, place: int, keys: Size, queries: Size) -> str:
    """The keys to which each query (a row) may attend, by their distances from its own position."""
    key, query = (places(w, size, from_end=place == TO_LAST) for size in (keys, queries))
    if place >= FROM:
        query = w.add("Add", query, w.ints(place - FROM))
    ahead = w.add("Sub", key, w.add("Unsqueeze", query, w.ints(-1)))
    limits = [("LessOrEqual", view.after), ("GreaterOrEqual", None if view.before is None else -view.before)]
    found = [w.add(compare, ahead, w.ints(limit)) for compare, limit in limits if limit is not None]
    return found[0] if len(found) == 1 else w.add("And", *found)


def places(w: Writer, size: Size, from_end: bool) -> str:
    """0, 1, ... up to a size, exclusive; `from_end`: shifted so that the last one is -1."""
    count = w.size(size)
    return w.add("Sub", w.up_to(count), count) if from_end else w.up_to(count)
