"""Writing functions as ONNX files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from dynet_cy._version import __version__
from dynet_cy.files.replacing import Replacement, write_file
from dynet_cy.functions.arguments import known_arguments
from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.inputs import Each, Floats, Indices
from dynet_cy.onnx.padding import without_padding
from dynet_cy.onnx.tracing import Function, Input, Step, trace
from dynet_cy.onnx.writer import EXAMPLES, File, Value, Writer
from dynet_cy.ops.api import pick

# The version of ONNX's operators that files use, and the oldest format that has it, so that older runtimes can read
# them.
OPSET, FORMAT = 18, 8

# Above this size, parameters go into a separate file: protobuf messages are limited to 2 GiB.
MOST_BYTES = 2**31 - 2**24
# Bytes of a parameter there; shapes and the like are small, and are looked at to check the file.
LEAST_BESIDE = 1024


@known_arguments
def export(
    function: Function,
    inputs: Mapping[str, Input | Each],
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
        inputs: for each argument, in order, a name and `Floats`, `Indices` or `Each`
        path: the file
        batch: the name of the axis of examples; or the number of examples, if it is fixed; or None for no such axis.
            Default: "batch"
        shortest, longest: the least and the greatest length of named axes with which the function is called. Constants
            that grow with an axis are stored for the longest. Default: 2 and 512
        lengths: for batches of examples that are padded to one length: ``{axis: name}``, the name of an input of the
            file, whole numbers of shape (batch,), with the number of elements of each example along this named axis.
            Results at the positions of padding have no meaning. Default: all examples of a batch have the same length

    Raises:
        ExportError: an operation has no counterpart in ONNX, the function reads a value that depends on an input, the
            graph is not the same each time, it depends on sizes in a way that is not a simple formula, or with
            `lengths` it combines positions in a way that padding would change; the message names the operation and
            the line
        ImportError: the package onnx is missing: ``pip install 'dynet_cy[onnx]'``
        TypeError: an input is not `Floats`, `Indices` or `Each`, or the function returns something other than
            expressions
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
    made, n_bytes = _model(onnx, function, inputs, batch, (shortest, longest), lengths or {})
    file = os.fspath(path)
    if n_bytes >= MOST_BYTES:
        _save_two_files(onnx, made, file)
        onnx.checker.check_model(file)
    else:
        onnx.checker.check_model(made, full_check=True)
        write_file(file, made.SerializeToString())


def _model(
    onnx: Any,
    function: Function,
    inputs: Mapping[str, Input | Each],
    batch: str | int | None,
    between: tuple[int, int],
    lengths: Mapping[str, str],
) -> tuple[Any, int]:
    """A function as a model in memory, and the bytes of its parameters."""
    file = File()
    w, graph_inputs, results = _written(onnx, file, function, inputs, batch, between, lengths)
    graph_outputs = [_output(w, onnx, name, *result, batch) for name, result in results.items()]
    initializers = list(file.initializers.values())
    graph = onnx.helper.make_graph(file.nodes, "dynet_cy", graph_inputs, graph_outputs, initializers)
    made = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=FORMAT,
        producer_name="dynet_cy",
        producer_version=__version__,
    )
    return made, sum(len(tensor.raw_data) for tensor in initializers)


def _written(
    onnx: Any,
    file: File,
    function: Function,
    inputs: Mapping[str, Input | Each],
    batch: str | int | None,
    between: tuple[int, int],
    lengths: Mapping[str, str],
    around: tuple[str | int, ...] = (),
) -> tuple[Writer, list[Any], dict[str, tuple[Value, bool]]]:
    """Add a function to a file.

    Args:
        onnx, function, inputs, batch, between, lengths: as for `_model`
        file: the file
        around: for the function of an `Each` the batch of the other function, if it has one: inputs have an axis for it

    Returns:
        The writer, the inputs of the file, and each result, with whether it is of integers.
    """
    _check(inputs, batch, between, lengths)
    for name in (*inputs, *lengths.values()):
        file.unique(name)
    parts = {
        name: _each(onnx, file, name, x, () if batch is None else (batch,), between)
        for name, x in inputs.items()
        if isinstance(x, Each)
    }
    own: dict[str, Input] = {
        name: Floats((parts[name][2], x.axis)) if isinstance(x, Each) else x for name, x in inputs.items()
    }
    given = [name in parts for name in inputs]

    def with_columns(*args: Any) -> Any:
        return function(*[_columns(arg) if each else arg for arg, each in zip(args, given)])

    traced = trace(with_columns if parts else function, own, *between, _refuse)
    w = Writer(onnx, file, traced, batch)
    graph_inputs: list[Any] = []
    tensors = {}
    lead: list[Any] = [] if batch is None else [batch]
    for name, x in {**own, **{its: Indices((), 1) for its in lengths.values()}}.items():
        if name in parts:
            graph_inputs += parts[name][0]
            tensors[name] = parts[name][1]
        else:
            kind = onnx.TensorProto.INT64 if isinstance(x, Indices) else onnx.TensorProto.FLOAT
            shape = [*around, *lead, *reversed(x.shape)]
            graph_inputs.append(onnx.helper.make_tensor_value_info(name, kind, shape))
            tensors[name] = _joined(w, name, len(shape)) if around else name
    for name, x in own.items():
        _note_input(w, tensors[name], x, traced.indices.get(name))
    w.lengths = {axis: tensors[its] for axis, its in lengths.items()}
    values = _write(w, traced.steps, tensors)
    results = {name: (values[number], traced.steps[number].integers) for name, number in traced.outputs.items()}
    return w, graph_inputs, results


def _joined(w: Writer, name: str, axes: int) -> str:
    """A tensor with the positions of all examples one after the other."""
    rest = w.add("Slice", w.add("Shape", name), w.ints(2), w.ints(axes))
    return w.add("Reshape", name, w.add("Concat", w.ints(-1), rest, axis=0))


def _each(
    onnx: Any, file: File, name: str, x: Each, around: tuple[str | int, ...], between: tuple[int, int]
) -> tuple[list[Any], str, int]:
    """Add the function of an `Each`, whose examples are all positions of all examples; returns its inputs, the tensor
    of its results, and their size."""
    w, graph_inputs, results = _written(onnx, file, x.function, x.inputs, x.axis, between, x.lengths, around)
    values = [value for value, _ in results.values()]
    size = sizes.constant(values[0].dims[0]) if len(values) == 1 and values[0].rank - values[0].each == 1 else None
    if not size:
        raise ExportError(f"export: input {name!r}: its function must return one vector, whose size is always the same")
    found = w.for_examples(values[0])
    if around:
        positions = w.add("Slice", w.add("Shape", graph_inputs[0].name), w.ints(0), w.ints(2))
        found = w.add("Reshape", found, w.add("Concat", positions, w.ints(-1), axis=0))
    return graph_inputs, found, size


def _note_input(w: Writer, tensor: str, x: Input, indices: tuple[tuple[int, ...], ...] | None) -> None:
    """Note where the sizes of an input are found, and its indices."""
    each = w.examples is not None
    for place, axis in enumerate(reversed(x.shape)):
        if isinstance(axis, str):
            w.source(axis, tensor, place + each)
    if each:
        w.source(EXAMPLES, tensor, 0)
    if indices is not None:  # a list for each example, even for a single number
        w.indices[tensor if x.shape else w.add("Unsqueeze", tensor, w.ints(-1))] = indices


def _check(
    inputs: Mapping[str, Input | Each], batch: str | int | None, between: tuple[int, int], lengths: Mapping[str, str]
) -> None:
    """Raise an error for arguments of `export` that are wrong or do not fit together."""
    given: object = inputs
    if not isinstance(given, Mapping):
        wanted = 'a dictionary such as {"x": dy.onnx.Floats((64, "words"))}'
        raise TypeError(f"export: argument inputs: expected {wanted}, got {type(given).__name__}")
    if not inputs:
        raise ValueError("export: argument inputs: expected at least one")
    names, axes = [*inputs, *lengths.values()], set()
    for name, x in inputs.items():
        if not isinstance(x, (Floats, Indices, Each)):
            raise TypeError(f"export: input {name!r} must be Floats, Indices or Each, not {type(x).__name__}")
        if isinstance(x, Each):
            names += [*x.inputs, *x.lengths.values()]
            axes.add(x.axis)
        else:
            axes |= {axis for axis in x.shape if isinstance(axis, str)}
    shortest, longest = between
    if not 1 <= shortest < longest - 1:
        raise ValueError(
            f"export: shortest and longest: expected 1 <= shortest < longest - 1, got {shortest}, {longest}"
        )
    if batch in axes | {""}:
        raise ValueError(f"export: batch: expected a name that no axis of an input has, got {batch!r}")
    for named, its in lengths.items():
        if named not in axes:
            raise ValueError(f"export: lengths: no input has an axis {named!r}")
        if not its or names.count(its) > 1:
            raise ValueError(f"export: lengths: expected a name that no other input has, got {its!r}")
        if batch is None:
            raise ValueError("export: lengths: examples have lengths of their own only in a batch, and batch is None")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"export: argument inputs: two inputs have the name {name!r}")


def _columns(x: Any) -> list[Any]:
    """The results of an `Each`, which are the columns of one input."""
    return [pick(x, i, 1) for i in range(x.shape[1])]


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


def _write(w: Writer, steps: list[Step], tensors: Mapping[str, str]) -> list[Value]:
    """All steps, one after the other, with these tensors for the inputs."""
    values: list[Value] = []
    for step in steps:
        w.step = step
        args = [values[i] for i in step.args]
        if step.input is not None:
            values.append(Value(tensors[step.input], step.dims, step.batch, w.examples is not None))
            continue
        used = without_padding(w, step, args)
        found = CONVERTERS[step.op](w, step, used)
        if not isinstance(found, Value):
            found = Value(found, step.dims, step.batch, any(x.each for x in used))
        values.append(found._replace(dims=step.dims, batch=step.batch))
    w.step = None
    return values


def _output(w: Writer, onnx: Any, name: str, value: Value, integers: bool, batch: str | int | None) -> Any:
    """A result, with an axis for examples even if it is the same for all of them."""
    each = batch is not None
    tensor = w.for_examples(value) if each else value.name
    output = w.file.unique(name)
    w.nodes.append(onnx.helper.make_node("Identity", [tensor], [output], name=output))
    shape = [
        batch if isinstance(size, str) else sizes.text(sizes.formula(size, w.axes))
        for size in w.shape_of(value.dims, value.batch, each)
    ]
    kind = onnx.TensorProto.INT32 if integers else onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(output, kind, shape)
