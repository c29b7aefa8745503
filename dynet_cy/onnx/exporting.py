"""Writing functions as ONNX files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from dynet_cy._version import __version__
from dynet_cy.files.replacing import Replacement, write_file
from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.inputs import Floats, Indices
from dynet_cy.onnx.padding import without_padding
from dynet_cy.onnx.tracing import Function, Input, Step, trace
from dynet_cy.onnx.writer import EXAMPLES, Value, Writer

__all__ = ["export"]

# The version of ONNX's operators that files use, and the oldest format that has it, so that older runtimes can read
# them.
OPSET, FORMAT = 18, 8

# Above this size, parameters go into a separate file: protobuf messages are limited to 2 GiB.
MOST_BYTES = 2**31 - 2**24
# Bytes of a parameter there; shapes and the like are small, and are looked at to check the file.
LEAST_BESIDE = 1024


def export(
    function: Function,
    inputs: Mapping[str, Input],
    path: str | os.PathLike[str],
    batch: str | int | None = "batch",
    shortest: int = 2,
    longest: int = 512,
    lengths: Mapping[str, str] | None = None,
) -> None:
    """Write a function as an ONNX file, which other programs run without this library.

    The function is written for one example, as everywhere; the file computes a batch of examples, which is a further,
    leading axis. The function is called a few times, with different sizes and indices, and its graph must have the
    same nodes each time, except for loops over positions: the nodes of a loop become one operation for all positions,
    and recurrent networks become the operators LSTM, GRU and RNN. A list with an expression for each position is one
    output, with an axis for them. Inputs that the function makes from NumPy arrays, such as masks and positions, become
    constants. Parameters become initializers with their names.

    The order of axes is reversed: shape ``{d,n}`` here is ``(batch, n, d)`` in the file. The layout in memory is the
    same, and ``array.T`` converts one into the other; docs/onnx.md explains it.

    Args:
        function: takes an argument for each input, and returns an expression, a list of them, or a dictionary with
            their names. Layers should be in evaluation mode
        inputs: for each argument, in order, a name and `Floats` or `Indices`
        path: the file
        batch: the name of the axis of examples; or the number of examples, if it is fixed; or None for no such axis.
            Default: "batch"
        shortest, longest: the least and the greatest length of named axes with which the function is called. Constants
            that grow with an axis are stored for the longest. Default: 2 and 512
        lengths: for batches of examples that are padded to one length: ``{axis: name}``, the name of an input of the
            file, whole numbers of shape (batch,), with the number of elements of each example along this named axis.
            Results at the positions of padding have no meaning. Default: all examples of a batch have the same length

    Raises:
        ExportError: an operation has no counterpart in ONNX, the graph is not the same each time, it depends on
            sizes in a way that is not a simple formula, or with `lengths` it combines positions in a way that padding
            would change; the message names the operation and the line
        ImportError: the package onnx is missing: ``pip install 'dynet_cy[onnx]'``
        TypeError: an input is neither `Floats` nor `Indices`, or the function returns something other than expressions
        ValueError: there is no input, the lengths are not in order, an axis of an input has the name of the batch, or
            `lengths` names no axis, or an input twice
        OSError: the file cannot be written

    Example:
        >>> layer = dy.nn.Linear(3, 2, model)
        >>> dy.onnx.export(layer, {"x": dy.onnx.Floats((3,))}, "linear.onnx")
        >>> import onnx
        >>> [output.name for output in onnx.load("linear.onnx").graph.output]
        ['output']

    The format: https://onnx.ai.
    """
    onnx = _package()
    if not inputs:
        raise ValueError("export: argument inputs: expected at least one")
    for name, x in inputs.items():
        if not isinstance(x, (Floats, Indices)):
            raise TypeError(f"export: input {name!r} must be Floats or Indices, not {type(x).__name__}")
    if not 1 <= shortest < longest - 1:
        raise ValueError(
            f"export: shortest and longest: expected 1 <= shortest < longest - 1, got {shortest}, {longest}"
        )
    if batch in {axis for x in inputs.values() for axis in x.shape if isinstance(axis, str)} | {""}:
        raise ValueError(f"export: batch: expected a name that no axis of an input has, got {batch!r}")
    for named, its in (lengths or {}).items():
        if named not in {a for x in inputs.values() for a in x.shape if isinstance(a, str)}:
            raise ValueError(f"export: lengths: no input has an axis {named!r}")
        if its in inputs or not its or list((lengths or {}).values()).count(its) > 1:
            raise ValueError(f"export: lengths: expected a name that no other input has, got {its!r}")
        if batch is None:
            raise ValueError("export: lengths: examples have lengths of their own only in a batch, and batch is None")
    traced = trace(function, inputs, shortest, longest, _refuse)
    w = Writer(onnx, traced, batch)
    types = onnx.TensorProto
    each = batch is not None
    graph_inputs = []
    for name, x in inputs.items():
        w.unique(name)
        shape: list[Any] = [*([batch] if each else []), *reversed(x.shape)]
        is_index = isinstance(x, Indices)
        graph_inputs.append(onnx.helper.make_tensor_value_info(name, types.INT64 if is_index else types.FLOAT, shape))
        for place, axis in enumerate(reversed(x.shape)):
            if isinstance(axis, str):
                w.source(axis, name, place + each)
        if each:
            w.source(EXAMPLES, name, 0)
        if is_index:  # a list for each example, even for a single number
            w.indices[name if x.shape else w.add("Unsqueeze", name, w.ints(-1))] = traced.indices[name]
    for named, its in (lengths or {}).items():
        w.lengths[named] = w.unique(its)
        graph_inputs.append(onnx.helper.make_tensor_value_info(its, types.INT64, [batch]))
    values = _write(w, traced.steps)
    graph_outputs = [_output(w, onnx, name, values[number], batch) for name, number in traced.outputs.items()]
    graph = onnx.helper.make_graph(w.nodes, "dynet_cy", graph_inputs, graph_outputs, list(w.initializers.values()))
    made = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=FORMAT,
        producer_name="dynet_cy",
        producer_version=__version__,
    )
    file = os.fspath(path)
    if w.bytes >= MOST_BYTES:
        _save_two_files(onnx, made, file)
        onnx.checker.check_model(file)
    else:
        onnx.checker.check_model(made, full_check=True)
        write_file(file, made.SerializeToString())


def _save_two_files(onnx: Any, made: Any, file: str) -> None:
    """Write a model whose parameters are in a second file; both are complete before either is renamed."""
    with Replacement(file + ".data") as data, Replacement(file) as graph:
        for tensor in made.graph.initializer:
            if len(tensor.raw_data) < LEAST_BESIDE:
                continue
            begin, size = data.file.tell(), data.file.write(tensor.raw_data)
            onnx.external_data_helper.set_external_data(tensor, os.path.basename(file) + ".data", begin, size)
            tensor.ClearField("raw_data")
        graph.file.write(made.SerializeToString())
        for new in (data, graph):
            new.finish()
        for new in (data, graph):
            new.move()


def _refuse(op: str, made_at: str) -> None:
    """Raise an error for an operation that cannot be written."""
    if op not in CONVERTERS:
        why = NOT_EXPORTABLE.get(op, "has no converter; docs/onnx.md lists what can be exported")
        raise ExportError(f"export: {op} {why}{made_at}")


def _package() -> Any:
    try:
        importlib.import_module("onnx.checker")  # "import onnx" alone also succeeds for a folder called onnx
        return importlib.import_module("onnx")
    except ImportError as error:
        raise ImportError(f"export needs the package onnx: pip install 'dynet_cy[onnx]' ({error})") from None


def _write(w: Writer, steps: list[Step]) -> list[Value]:
    """All steps, one after the other."""
    values: list[Value] = []
    for step in steps:
        w.step = step
        args = [values[i] for i in step.args]
        if step.input is not None:
            values.append(Value(step.input, step.dims, step.batch, w.examples is not None))
            continue
        used = without_padding(w, step, args)
        found = CONVERTERS[step.op](w, step, used)
        if not isinstance(found, Value):
            found = Value(found, step.dims, step.batch, any(x.each for x in used))
        values.append(found._replace(dims=step.dims, batch=step.batch))
    w.step = None
    return values


def _output(w: Writer, onnx: Any, name: str, value: Value, batch: str | int | None) -> Any:
    """A result, with an axis for examples even if it is the same for all of them."""
    each = batch is not None
    tensor = value.name
    if each and not value.each:
        tensor = w.add(
            "Expand", w.add("Unsqueeze", tensor, w.ints(0)), w.size_list(w.shape_of(value.dims, value.batch, True))
        )
    output = w.unique(name)
    w.nodes.append(onnx.helper.make_node("Identity", [tensor], [output], name=output))
    shape = [
        batch if isinstance(size, str) else sizes.text(sizes.formula(size, w.axes))
        for size in w.shape_of(value.dims, value.batch, each)
    ]
    return onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)
