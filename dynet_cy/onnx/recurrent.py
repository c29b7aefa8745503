"""Converters of recurrent networks over whole sequences."""

from __future__ import annotations

from dynet_cy.onnx.converters import converts
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer

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
