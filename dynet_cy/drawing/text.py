"""Graphs as text: drawings for Graphviz, and dumps of values and gradients."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from typing import IO

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import replacing
from dynet_cy.graph.expressions import ComputationGraph, Expression, cg
from dynet_cy.graph.nodes import GraphNode, expression, nodes, number
from dynet_cy.graph.structs import operators


def dot(
    graph: ComputationGraph | None = None,
    compact: bool = False,
    show_dims: bool = True,
    expression_names: Mapping[Expression, str] | None = None,
    direction: str = "LR",
) -> str:
    """A graph in the language of Graphviz: one node a line, arrows from arguments to results.

    Args:
        graph: the graph; the current one of this thread if None
        compact: leave out the arguments in the labels
        show_dims: show shapes
        expression_names: names to show for expressions instead of v0, v1, ...
        direction: "LR" from left to right, "BT" from bottom to top

    Raises:
        StaleExpressionError: an expression with a name is of a renewed graph
    """
    names = {number(e): name for e, name in (expression_names or {}).items()}
    lines = ["digraph G {", f"  rankdir={direction};", "  nodesep=.05;"]
    for node in nodes(cg() if graph is None else graph):
        label = _label(node, names, compact)
        if show_dims:
            label += "\n" + _dim(node)
        if node.origin:
            label += f"\n{os.path.basename(node.origin.file)}:{node.origin.line}"
        shape = "" if node.args else ", shape=box"
        lines.append(f"  N{node.number} [label={_quoted(label)}{shape}];")
        lines += [f"  N{arg} -> N{node.number};" for arg in node.args]
    return "\n".join([*lines, "}"]) + "\n"


def _label(node: GraphNode, names: Mapping[int, str], compact: bool) -> str:
    name = names.get(node.number, f"v{node.number}")
    what = node.op if node.parameter is None else f"{node.op} {node.parameter}"
    if compact:
        return f"{name} = {what}"
    arguments = ", ".join(names.get(arg, f"v{arg}") for arg in node.args)
    return f"{name} = {what}({arguments})" if arguments else f"{name} = {what}"


def _dim(node: GraphNode) -> str:
    dim = "{" + ",".join(map(str, node.shape)) + "}"
    return f"{dim} x {node.batch_size}" if node.batch_size > 1 else dim


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def print_graphviz(
    compact: bool = False,
    show_dims: bool = True,
    expression_names: Mapping[Expression, str] | None = None,
    lookup_names: object = None,
    collapse_birnns: bool = False,
) -> None:
    """Print the current graph to standard output, in the language of Graphviz.

    This computes nothing. The nodes are operations as they run, including those that builders made, so there is
    nothing for `collapse_birnns` to collapse.

    Args:
        compact: leave out the arguments in the labels (default: no)
        show_dims: show shapes (default: yes)
        expression_names: names to show for expressions, as {expression: "name"}
        lookup_names, collapse_birnns: ignored; accepted for compatibility with DyNet

    Raises:
        StaleExpressionError: an expression with a name is of a renewed graph

    Example:
        >>> x = dy.tanh(dy.inputVector([1, 2]))
        >>> dy.print_graphviz(compact=True, show_dims=False)
        digraph G {
          rankdir=BT;
          nodesep=.05;
          N0 [label="v0 = input", shape=box];
          N1 [label="v1 = tanh"];
          N0 -> N1;
        }
    """
    sys.stdout.write(dot(None, compact, show_dims, expression_names, "BT"))


def print_text_graphviz() -> None:
    """Write the current graph to standard error, in the language of Graphviz.

    Example:
        >>> x = dy.tanh(dy.inputVector([1, 2]))
        >>> dy.print_text_graphviz()
    """
    sys.stderr.write(dot())


def dump_cg(
    filename: FileName = "", show_values: bool = True, show_gradients: bool = True, nan_check_only: bool = False
) -> None:
    """Write values and gradients of all computed nodes of the current graph: see `ComputationGraph.dump`.

    Args:
        filename: the file to write; standard output if empty.
        show_values: write the values (default: yes).
        show_gradients: write the gradients (default: yes).
        nan_check_only: write "valid", or "invalid" where there is a nan or an infinity, instead of numbers
            (default: no).

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> _ = x.value()
        >>> dy.dump_cg("values", show_gradients=False)
        >>> with open("values") as file:
        ...     file.read().split()
        ['Node', '0', 'Value:', '1', '2']
    """
    dump(cg(), filename, show_values, show_gradients, nan_check_only)


def dump(
    graph: ComputationGraph, filename: FileName, show_values: bool, show_gradients: bool, nan_check_only: bool
) -> None:
    """Write values and gradients of all computed nodes of a graph. This computes only what the graph has dropped.

    Args:
        graph: the graph
        filename: file to write; standard output if empty
        show_values: write values
        show_gradients: write the gradients that the last backward left
        nan_check_only: write "valid", or "invalid" where there is a nan or an infinity, instead of numbers

    Raises:
        OSError: the file cannot be written
    """
    if not filename:
        _dump(graph, sys.stdout, show_values, show_gradients, nan_check_only)
        return
    with replacing(filename) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace")
        _dump(graph, stream, show_values, show_gradients, nan_check_only)
        stream.detach()


def _dump(
    graph: ComputationGraph, stream: IO[str], show_values: bool, show_gradients: bool, nan_check_only: bool
) -> None:
    for node in nodes(graph):
        if not node.computed:
            continue
        e = expression(graph, node.number)
        stream.write(f"Node {node.number}{f', made at {node.origin}' if node.origin else ''}\n")
        if show_values:
            try:
                value = e.npvalue()
            except RuntimeError:  # it was dropped, and parameters have changed since
                continue
            _write_numbers("Value", value, node, stream, nan_check_only)
        if show_gradients:
            try:
                gradient = e.gradient()
            except RuntimeError:  # backward did not reach it
                continue
            _write_numbers("Gradient", gradient, node, stream, nan_check_only)


def _write_numbers(
    what: str, array: npt.NDArray[np.float64], node: GraphNode, stream: IO[str], nan_check_only: bool
) -> None:
    if nan_check_only:
        stream.write(f"{what}: {'valid' if np.isfinite(array).all() else 'invalid'}\n")
        return
    stream.write(f"{what}: \n")
    rows = node.shape[0] if node.shape else 1
    # All axes but the first, and the batch, as columns.
    words = [[f"{x:.6g}" for x in row] for row in array.reshape((rows, -1), order="F").tolist()]
    width = max((len(word) for row in words for word in row), default=0)
    for row in words:
        stream.write(" ".join(word.rjust(width) for word in row) + "\n")


operators.update(dot=dot, dump=dump)
