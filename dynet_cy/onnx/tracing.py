"""Running a function at several sizes, to see how its graph depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import ComputationGraph, Expression
from dynet_cy.graph.nodes import GraphNode, NodeContents, contents, expression, nodes, number, table
from dynet_cy.graph.origin import record_lines
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.inputs import Floats, Indices
from dynet_cy.onnx.sizes import Size
from dynet_cy.ops.inputs import inputTensor

Input = Union[Floats, Indices]
Floating = npt.NDArray[np.float32]
Function = Callable[..., Any]


class Step(NamedTuple):
    """A node of the graph, combined from all traces.

    Attributes:
        number: its number, from 0; arguments have smaller ones.
        op: the name of its operation.
        args: the numbers of its arguments.
        dims: the size of each axis of its value.
        batch: its batch size.
        attrs: the words of its attributes.
        items: its list in each trace.
        item_count: the number of words for each batch element.
        parameter: the name of the parameter or table that it reads.
        entry: the number of that parameter or table.
        values: the value of a leaf in each trace, with the batch, if any, as the last axis; empty if it is not a leaf,
            or an input of the function.
        input: the name of the function's input, if the node is one.
        made_at: the line of the program that made it, for messages: " (made at model.py:17)".
    """

    number: int
    op: str
    args: tuple[int, ...]
    dims: tuple[Size, ...]
    batch: Size
    attrs: tuple[Size, ...]
    items: tuple[tuple[int, ...], ...]
    item_count: Size
    parameter: str | None
    entry: int | None
    values: tuple[Floating, ...]
    input: str | None
    made_at: str


class Traced(NamedTuple):
    """The structure that all traces of a function share.

    Attributes:
        steps: the nodes that its results need, in the order in which they were made.
        outputs: names of the results and the numbers of their nodes.
        axes: the size of each named axis in the traces.
        indices: for each input of whole numbers, its numbers in the traces.
    """

    steps: list[Step]
    outputs: dict[str, int]
    axes: dict[str, Size]
    indices: dict[str, tuple[tuple[int, ...], ...]]


def trace(function: Function, inputs: Mapping[str, Input], shortest: int, longest: int) -> Traced:
    """Run the function a few times, with different sizes of the named axes and different indices.

    Raises:
        ExportError: its graph is not the same each time, or it reads values
    """
    names = list(dict.fromkeys(axis for x in inputs.values() for axis in x.shape if isinstance(axis, str)))
    count = _enough(inputs, longest)
    axes = {name: _sizes(i, count, shortest, longest) for i, name in enumerate(names)}
    indices = _different_indices(inputs, axes, count)
    stored: dict[int, Floating] = {}
    runs = [
        _run(function, inputs, {n: axes[n][t] for n in axes}, {n: indices[n][t] for n in indices}, stored)
        for t in range(count)
    ]
    first = runs[0]
    for t, run in enumerate(runs[1:], 1):
        _compare(first, run, {n: (axes[n][0], axes[n][t]) for n in axes})
    return Traced([_step(i, runs) for i in range(len(first.nodes))], first.outputs, axes, indices)


class _Run(NamedTuple):
    nodes: list[GraphNode]
    contents: list[NodeContents]
    values: list[Floating | None]
    inputs: list[str | None]
    outputs: dict[str, int]


def _enough(inputs: Mapping[str, Input], longest: int) -> int:
    """The number of traces: at least three, for sizes, and enough for each index to have a unique series of numbers."""
    count = 3
    for x in inputs.values():
        if isinstance(x, Indices) and x.count > 1:
            places = np.prod([longest if isinstance(axis, str) else axis for axis in x.shape], initial=1)
            count = max(count, 3 + int(np.ceil(np.log(places + 2) / np.log(x.count))))
    return count


def _sizes(which: int, count: int, shortest: int, longest: int) -> Size:
    """Different sizes for the named axis number `which`, from small ones to the longest at the end."""
    span = longest - shortest
    inner = [shortest + (which + span * t // (count - 1) + which * t) % (span + 1) for t in range(count - 1)]
    return (*inner, longest)


def _different_indices(
    inputs: Mapping[str, Input], axes: Mapping[str, Size], count: int
) -> dict[str, tuple[tuple[int, ...], ...]]:
    random = np.random.Generator(np.random.PCG64(1))
    found = {}
    for name, x in inputs.items():
        if isinstance(x, Indices):
            lengths = [[axes[a][t] if isinstance(a, str) else a for a in x.shape] for t in range(count)]
            places = int(np.prod(lengths[-1], initial=1))
            table = random.integers(0, x.count, size=(count, places))
            for place in range(places) if x.count > 1 else ():
                while (table[:, place] == table[0, place]).all() or (
                    (table[:, :place] == table[:, place : place + 1]).all(0).any()
                ):
                    table[:, place] = random.integers(0, x.count, size=count)
            found[name] = tuple(tuple(table[t, : int(np.prod(lengths[t], initial=1))].tolist()) for t in range(count))
    return found


def _run(
    function: Function,
    inputs: Mapping[str, Input],
    axes: Mapping[str, int],
    indices: Mapping[str, tuple[int, ...]],
    stored: dict[int, Floating],
) -> _Run:
    """One trace; `stored` caches the parameters and tables that were read."""
    random = np.random.Generator(np.random.PCG64(2))
    with record_lines(), ComputationGraph() as graph:
        arguments: list[Any] = []
        leaves = {}
        for name, x in inputs.items():
            if isinstance(x, Indices):
                arguments.append(list(indices[name]) if x.shape else indices[name][0])
            else:
                shape = tuple(axes[axis] if isinstance(axis, str) else axis for axis in x.shape)
                arguments.append(inputTensor(random.uniform(-1, 1, shape).astype(np.float32)))
                leaves[number(arguments[-1])] = name
        outputs = _outputs(function(*arguments))
        numbers = {name: number(e) for name, e in outputs.items()}
        all_nodes = nodes(graph)
        _refuse_computed(all_nodes)
        needed = _needed(all_nodes, numbers.values())
        renumbered = {old: new for new, old in enumerate(needed)}
        kept = [all_nodes[i]._replace(args=tuple(renumbered[a] for a in all_nodes[i].args)) for i in needed]
        all_contents = [contents(graph, i) for i in needed]
        values: list[Floating | None] = []
        for i, about in zip(needed, all_contents):
            if about.entry is not None:
                if about.entry not in stored:
                    is_table = all_nodes[i].op == "lookup"
                    found = table(graph, i) if is_table else expression(graph, i).npvalue()
                    stored[about.entry] = np.asarray(found, np.float32)
                values.append(stored[about.entry])
            elif all_nodes[i].op == "input" and i not in leaves:
                values.append(np.asarray(expression(graph, i).npvalue(), np.float32))
            else:
                values.append(None)
        return _Run(
            kept,
            all_contents,
            values,
            [leaves.get(i) for i in needed],
            {name: renumbered[i] for name, i in numbers.items()},
        )


def _outputs(result: object) -> dict[str, Expression]:
    """The results by name."""
    if isinstance(result, Expression):
        found: dict[str, Any] = {"output": result}
    elif isinstance(result, Mapping):
        found = {str(name): e for name, e in result.items()}
    elif isinstance(result, Sequence) and not isinstance(result, str):
        found = {f"output_{i}": e for i, e in enumerate(result)}
    else:
        found = {"output": result}
    for name, e in found.items():
        if not isinstance(e, Expression):
            raise TypeError(f"export: the function must return expressions, but {name} is of type {type(e).__name__}")
    if not found:
        raise ValueError("export: the function returns no expression")
    return found


def _refuse_computed(graph: list[GraphNode]) -> None:
    for node in graph:
        if node.computed and node.args:
            raise ExportError(
                f"export: the function asks for the value of {node.op}, so what it does next may depend on numbers; a "
                f"file holds one graph{_made_at(node)}"
            )


def _needed(graph: list[GraphNode], outputs: Any) -> list[int]:
    wanted = set(outputs)
    for node in reversed(graph):
        if node.number in wanted:
            wanted.update(node.args)
    return sorted(wanted)


def _made_at(node: GraphNode) -> str:
    return "" if node.origin is None else f" (made at {node.origin})"


def _compare(first: _Run, other: _Run, axes: Mapping[str, tuple[int, int]]) -> None:
    """The graphs must have the same nodes."""
    sizes = " and ".join(f"{name} = {a} and {b}" for name, (a, b) in axes.items()) or "other indices"
    if list(first.outputs) != list(other.outputs):
        raise ExportError(f"export: the function returns {list(first.outputs)} and {list(other.outputs)} for {sizes}")
    for a, b, ca, cb in zip(first.nodes, other.nodes, first.contents, other.contents):
        if (a.op, a.args, len(a.shape), ca.entry) != (b.op, b.args, len(b.shape), cb.entry):
            raise ExportError(
                f"export: the graph is not the same for {sizes}: node {a.number} is {a.op}{a.args} of shape {a.shape}, "
                f"and {b.op}{b.args} of shape {b.shape}{_made_at(b)}. A file holds one graph: give the axis a fixed "
                "size, or export one step and call it again and again"
            )
    if len(first.nodes) != len(other.nodes) or first.outputs != other.outputs:
        raise ExportError(
            f"export: the graph is not the same for {sizes}: it has {len(first.nodes)} and {len(other.nodes)} nodes. "
            "A file holds one graph: give the axis a fixed size, or export one step and call it again and again"
        )


def _step(i: int, runs: list[_Run]) -> Step:
    node = runs[0].nodes[i]
    each = [run.contents[i] for run in runs]
    values = [run.values[i] for run in runs]
    return Step(
        i,
        node.op,
        node.args,
        tuple(tuple(run.nodes[i].shape[a] for run in runs) for a in range(len(node.shape))),
        tuple(run.nodes[i].batch_size for run in runs),
        tuple(tuple(c.attrs[a] for c in each) for a in range(4)),
        tuple(c.items for c in each),
        tuple(c.item_count for c in each),
        node.parameter if isinstance(node.parameter, str) else None,
        each[0].entry,
        tuple(v for v in values if v is not None),
        runs[0].inputs[i],
        _made_at(node),
    )
