"""Running a function at several sizes, to see how its graph depends on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.expressions import ComputationGraph, Expression
from dynet_cy.graph.nodes import GraphNode, NodeContents, contents, expression, graph_node, is_of, nodes, number, table
from dynet_cy.graph.origin import Origin, watch_reads
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.folding import Folded, Outputs, Run, explain, fold, made_at, numbers_in, renumbered
from dynet_cy.onnx.inputs import Floats, Index, Indices
from dynet_cy.onnx.recurrences import chains
from dynet_cy.onnx.sizes import Size
from dynet_cy.ops.inputs import inputTensor

Input = Union[Floats, Indices]
Floating = npt.NDArray[Any]
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
        integers: whether its elements are integers rather than floats.
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
    integers: bool
    made_at: str

    @property
    def first_items(self) -> tuple[tuple[int, ...], ...]:
        """The list of the first batch element in each trace."""
        return tuple(items[: len(items) // b] for items, b in zip(self.items, self.batch))

    @property
    def same_for_all(self) -> bool:
        """Whether each batch element has the same list."""
        return all(items == first * b for items, first, b in zip(self.items, self.first_items, self.batch))


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


def trace(
    function: Function,
    inputs: Mapping[str, Input],
    shortest: int,
    longest: int,
    refuse: Callable[[str, str], None],
) -> Traced:
    """Run the function a few times, with different sizes of the named axes and different indices.

    Args:
        function, inputs, shortest, longest: as for `export`
        refuse: called with the operation of each node and its line, raises an error if it cannot be exported

    Raises:
        ExportError: its graph is not the same each time, and is not that of a loop; or it reads values that depend on
            an input, or does more with the numbers of an index than use them
    """
    names = list(dict.fromkeys(axis for x in inputs.values() for axis in x.shape if isinstance(axis, str)))
    calls = _Calls(function, inputs, refuse, bool(names))
    count = _enough(inputs, longest)
    axes = {name: _sizes(i, count, shortest, longest) for i, name in enumerate(names)}
    lengths_tried = _many(shortest, longest)
    try:
        traced = _traced(calls, calls.once_each(axes, count), axes)
    except OtherGraphError:
        if not names:
            raise
    else:
        calls.try_lengths(names, lengths_tried)
        return traced
    # The lengths at which a loop is recognized; at shorter ones, the first words may be the last ones too.
    least = max(shortest, min(4, longest - 4))
    lengths = {name: (least + i, min(least + 3 + 2 * i, longest - 1), longest) for i, name in enumerate(names)}
    repeated = {name: tuple(n for n in size for _ in range(count)) for name, size in lengths.items()}
    traced = _traced(calls, calls.folded(lengths, count), repeated)
    calls.try_loops(names, lengths_tried)
    return traced


Drawn = Mapping[str, Sequence[tuple[int, ...]]]


def _traced(calls: _Calls, found: Iterable[tuple[list[Run], Drawn]], axes: Mapping[str, Size]) -> Traced:
    """The common structure of runs; the indices of each are given too."""
    runs: list[Run] = []
    indices: dict[str, list[tuple[int, ...]]] = {}
    for more, drawn in found:
        for run in more:
            if runs:
                _compare(runs[0], run, {n: (size[0], size[len(runs)]) for n, size in axes.items()})
            runs.append(run)
        for name, numbers in drawn.items():
            indices.setdefault(name, []).extend(numbers)
    outputs: dict[str, int] = {}
    for name, found_at in runs[0].outputs.items():
        several = {name: found_at} if isinstance(found_at, int) else {f"{name}_{i}": n for i, n in enumerate(found_at)}
        outputs.update(several)
    steps = [_step(i, runs) for i in range(len(runs[0].nodes))]
    drawn_indices = {name: tuple(numbers) for name, numbers in indices.items()}
    return Traced(steps, outputs, dict(axes), drawn_indices)


def _enough(inputs: Mapping[str, Input], longest: int) -> int:
    """The number of traces: at least three, for sizes, and enough for each index to have a unique series of random
    numbers, besides the ones of `_EXTREMES`."""
    count = 3
    for x in inputs.values():
        if isinstance(x, Indices) and x.count > 1:
            places = np.prod([longest if isinstance(axis, str) else axis for axis in x.shape], initial=1)
            count = max(count, 3 + len(_EXTREMES) + int(np.ceil(np.log(places + 2) / np.log(x.count))))
    return count


# In the first traces, all numbers of an input of whole numbers are the first, the second or the last one: those that
# programs often treat in another way, such as padding.
_EXTREMES = (0, 1, -1)


def _many(shortest: int, longest: int) -> list[int]:
    """Lengths at which a program may decide: short ones, and those around powers of two."""
    around = [2**k + d for k in range(4, 7) for d in (-1, 0, 1)] + [2**k for k in range(7, longest.bit_length())]
    return [n for n in dict.fromkeys([*range(shortest, shortest + 15), *around, longest]) if shortest <= n <= longest]


def _sizes(which: int, count: int, shortest: int, longest: int) -> Size:
    """Different sizes for the named axis number `which`, from small ones to the longest at the end."""
    span = longest - shortest
    inner = [shortest + (which + span * t // (count - 1) + which * t) % (span + 1) for t in range(count - 1)]
    return (*inner, longest)


class _Calls:
    """Calls of the function.

    Args:
        function, inputs, refuse: as for `trace`
        lists: whether a result may be a list of expressions
    """

    def __init__(
        self, function: Function, inputs: Mapping[str, Input], refuse: Callable[[str, str], None], lists: bool
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.refuse = refuse
        self.lists = lists
        self.stored: dict[int, Floating] = {}  # the parameters and tables that were read
        self.random = np.random.Generator(np.random.PCG64(1))
        self.refusal: ExportError | None = None  # of the run; the program may have caught it
        self.rows: set[tuple[object, ...]] | None = None  # of tables, which the first run has read

    def once_each(self, axes: Mapping[str, Size], count: int) -> Iterator[tuple[list[Run], Drawn]]:
        """A run for each size."""
        sizes = [{name: size[t] for name, size in axes.items()} for t in range(count)]
        drawn = self._indices(sizes)
        for t, size in enumerate(sizes):
            numbers = {name: rows[t] for name, rows in drawn.items()}
            yield [self._run(size, numbers)], {name: [row] for name, row in numbers.items()}

    def folded(self, lengths: Mapping[str, Size], count: int) -> Iterator[tuple[list[Run], Drawn]]:
        """Some runs for each size, in a form that does not depend on how many words there are."""
        before: tuple[Run, Folded] | None = None
        for t in range(3):
            size = {name: sizes[t] for name, sizes in lengths.items()}
            drawn = self._indices([size] * count)
            runs = [self._run(size, {name: rows[k] for name, rows in drawn.items()}) for k in range(count)]
            for run in runs[1:]:
                _compare(runs[0], run, {})
            indices = {}
            for name, rows in drawn.items():
                named = any(isinstance(axis, str) for axis in self.inputs[name].shape)
                indices.update({c: (name, place, len(rows[0]) if named else 1) for place, c in enumerate(zip(*rows))})
            found = fold(runs, set(size.values()), indices)
            if before is not None:
                explain(before, (runs[0], found))
            before = runs[0], found
            yield found.runs, drawn

    def _indices(self, sizes: Sequence[Mapping[str, int]]) -> dict[str, list[tuple[int, ...]]]:
        """Random indices for runs of these sizes; each place of an input has other numbers over the runs."""
        found = {}
        taken: set[tuple[int, ...]] = set()
        for name, x in self.inputs.items():
            if not isinstance(x, Indices):
                continue
            places = [_places(x, size) for size in sizes]
            columns = []
            for _ in range(max(places)):
                column = self._column(x.count, len(sizes))
                while x.count > 1 and (len(set(column)) == 1 or column in taken):
                    column = self._column(x.count, len(sizes))
                taken.add(column)
                columns.append(column)
            found[name] = [tuple(column[t] for column in columns[:n]) for t, n in enumerate(places)]
        return found

    def _column(self, count: int, runs: int) -> tuple[int, ...]:
        return (*(k % count for k in _EXTREMES), *self.random.integers(0, count, runs - len(_EXTREMES)).tolist())

    def try_lengths(self, names: Sequence[str], lengths: Sequence[int]) -> None:
        """Raise an error if the graph is not the same at other lengths."""
        first: tuple[Mapping[str, int], list[GraphNode]] | None = None
        for size in _spread(names, lengths):
            found = self._sketch(size)
            if first is None:
                first = size, found
            for a, b in zip_longest(first[1], found):
                if a is None or b is None or _outline(a) != _outline(b):
                    raise self._other(b or a, first[0], size)

    def try_loops(self, names: Sequence[str], lengths: Sequence[int]) -> None:
        """Raise an error if the number of nodes of a kind is not a linear function of the lengths."""
        least = dict.fromkeys(names, lengths[0])
        base = Counter(map(_kind, self._sketch(least)))
        more = {name: Counter(map(_kind, self._sketch({**least, name: lengths[0] + 1}))) for name in names}
        for size in _spread(names, lengths):
            found = self._sketch(size)
            kinds = Counter(map(_kind, found))
            for kind in {*base, *kinds, *(k for counts in more.values() for k in counts)}:
                steps = ((more[name][kind] - base[kind]) * (size[name] - lengths[0]) for name in names)
                if kinds[kind] != base[kind] + sum(steps):
                    node = next((node for node in found if _kind(node) == kind), None)
                    raise self._other(node, least, size)

    def _sketch(self, size: Mapping[str, int]) -> list[GraphNode]:
        """The nodes that the results of a run at some lengths need."""
        numbers = {}
        for name, x in self.inputs.items():
            if isinstance(x, Indices):
                numbers[name] = tuple(self.random.integers(0, x.count, _places(x, size)).tolist())
        with ComputationGraph() as graph:
            return self._called(graph, size, numbers)[0]

    def _other(self, node: GraphNode | None, a: Mapping[str, int], b: Mapping[str, int]) -> ExportError:
        sizes = " and ".join(f"{name} = {a[name]} and {b[name]}" for name in a)
        return ExportError(
            f"export: the graph is not the same for {sizes}, so the function decides by a length"
            f"{'' if node is None else f': it has another {node.op}{made_at(node)}'}. A file holds one graph: compute "
            "both and choose with dy.where, give the axis a fixed size, or set shortest and longest"
        )

    def _called(
        self, graph: ComputationGraph, axes: Mapping[str, int], indices: Mapping[str, tuple[int, ...]]
    ) -> tuple[list[GraphNode], list[int], dict[int, str], Outputs]:
        """Call the function, and refuse what it may not do.

        Returns:
            The nodes that its results need, numbered from 0; their numbers in the graph; the names of the inputs by
            these; the numbers of the results.
        """
        arguments: list[Any] = []
        leaves = {}
        self.refusal, rows = None, set[tuple[object, ...]]()
        for name, x in self.inputs.items():
            if isinstance(x, Indices):
                refuse = partial(self._refuse, name)
                given = [Index(k, refuse) for k in indices[name]]
                arguments.append(given if x.shape else given[0])
            else:
                shape = tuple(axes[axis] if isinstance(axis, str) else axis for axis in x.shape)
                arguments.append(inputTensor(self.random.uniform(-1, 1, shape).astype(np.float32)))
                leaves[number(arguments[-1])] = name
        try:
            with watch_reads(partial(self._read, graph, leaves, rows)):
                outputs = _outputs(self.function(*arguments), self.lists)
        except Exception:
            if self.refusal is not None:  # what is raised may be an error of another function about this one
                raise self.refusal from None
            raise
        numbers = {
            name: number(e) if isinstance(e, Expression) else tuple(map(number, e)) for name, e in outputs.items()
        }
        all_nodes = nodes(graph)
        if self.refusal is not None:
            raise self.refusal
        for node in all_nodes:
            if node.computed and node.args:  # as for a gradient
                raise _asks_for(node.op, node, None)
        self.rows = rows if self.rows is None else self.rows
        for table_name, _, line in sorted(rows ^ self.rows, key=str):
            raise ExportError(
                f"export: the function asks for the value of a row of {table_name}{line} that its inputs choose, so "
                f"{_WHY}"
            )
        needed = _needed(all_nodes, numbers_in(numbers))
        new = {old: k for k, old in enumerate(needed)}
        kept = [
            all_nodes[i]._replace(number=k, args=tuple(new[a] for a in all_nodes[i].args)) for k, i in enumerate(needed)
        ]
        return kept, needed, leaves, renumbered(numbers, new)

    def _refuse(self, name: str, what: str) -> None:
        """Raise an error for what a function does with a number of an input."""
        self.refusal = ExportError(
            f"export: the function {what} a number of the input {name}, which can be used as an index only, and not "
            f"within NumPy arrays: {_WHY}. "
            "Where the graph has to decide, pass the choice as an input of numbers, and choose with dy.where"
        )
        raise self.refusal

    def _read(
        self,
        graph: ComputationGraph,
        leaves: Mapping[int, str],
        rows: set[tuple[object, ...]],
        x: Expression,
        line: Origin | None,
    ) -> None:
        """Raise an error if a value that is read depends on an input, or is a random number."""
        if not is_of(graph, x):
            return
        node = graph_node(graph, number(x))
        if node.rows and not node.args:
            rows.add((node.parameter, node.rows, f" at {line}" if line else ""))
        elif node.args or node.number in leaves or (node.op != "input" and node.parameter is None):
            what = f"the input {leaves[node.number]}" if node.number in leaves else node.op
            self.refusal = _asks_for(what, node, line)
            raise self.refusal

    def _run(self, axes: Mapping[str, int], indices: Mapping[str, tuple[int, ...]]) -> Run:
        with ComputationGraph() as graph:
            kept, needed, leaves, results = self._called(graph, axes, indices)
            for node in kept:
                self.refuse(node.op, made_at(node))
            all_contents = [contents(graph, i) for i in needed]
            values = [
                self._value(graph, i, node, about, i in leaves) for i, node, about in zip(needed, kept, all_contents)
            ]
            weights: dict[int, Floating] = {}
            for chain in chains(kept, [about.attrs for about in all_contents]):
                for k in chain.weights:
                    if k not in weights:
                        known = values[k]
                        found = expression(graph, needed[k]).npvalue() if known is None else known
                        weights[k] = np.asarray(found, np.float32)
            return Run(kept, all_contents, values, [leaves.get(i) for i in needed], results, weights)

    def _value(
        self, graph: ComputationGraph, i: int, node: GraphNode, about: NodeContents, is_argument: bool
    ) -> Floating | None:
        """The numbers of a leaf that is not an argument of the function."""
        if about.entry is not None:
            if about.entry not in self.stored:
                found = table(graph, i) if node.op.startswith("lookup") else expression(graph, i).npvalue()
                self.stored[about.entry] = np.asarray(found, np.float32)
            return self.stored[about.entry]
        if node.op == "input" and not is_argument:
            return np.asarray(expression(graph, i).npvalue(), np.int32 if node.integers else np.float32)
        return None


Results = Mapping[str, Union[Expression, Sequence[Expression]]]


def _outputs(result: Any, lists: bool) -> Results:
    """The results by name; a list of expressions that is the whole result is one of them."""
    if isinstance(result, Mapping):
        found: dict[str, Any] = {str(name): e for name, e in result.items()}
    elif _is_list(result) and not all(isinstance(e, Expression) for e in result):
        found = {f"output_{i}": e for i, e in enumerate(result)}
    else:
        found = {"output": result}
    for name, e in found.items():
        listed = _is_list(e) and (lists or not isinstance(result, Mapping))
        for one in e if listed else [e]:
            if not isinstance(one, Expression):
                raise TypeError(
                    f"export: the function must return expressions, but {name} is of type {type(one).__name__}"
                )
        if listed and not e:
            raise ValueError("export: the function returns no expression")
    if not found:
        raise ValueError("export: the function returns no expression")
    return found


def _is_list(x: object) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str)


_WHY = "what it does next may depend on numbers; a file holds one graph"


def _asks_for(what: str, node: GraphNode, line: Origin | None) -> ExportError:
    at = f" at {line}" if line else ""
    return ExportError(f"export: the function asks for the value of {what}{at}, so {_WHY}{made_at(node)}")


def _places(x: Indices, size: Mapping[str, int]) -> int:
    """The number of elements of an input."""
    return math.prod(size[axis] if isinstance(axis, str) else axis for axis in x.shape)


def _spread(names: Sequence[str], lengths: Sequence[int]) -> Iterator[dict[str, int]]:
    """Sizes of all axes: each has all lengths, others at the same time than the axes before it."""
    for t in range(len(lengths) if names else 0):
        yield {name: lengths[(t + i) % len(lengths)] for i, name in enumerate(names)}


def _outline(node: GraphNode) -> tuple[object, ...]:
    """The properties of a node that are equal at all lengths."""
    return node.op, node.args, len(node.shape), node.parameter


def _kind(node: GraphNode) -> tuple[object, ...]:
    return node.op, node.parameter


def _needed(graph: list[GraphNode], outputs: Any) -> list[int]:
    wanted = set(outputs)
    for node in reversed(graph):
        if node.number in wanted:
            wanted.update(node.args)
    return sorted(wanted)


class OtherGraphError(ExportError):
    """The graph is not the same in each run."""


def _compare(first: Run, other: Run, axes: Mapping[str, tuple[int, int]]) -> None:
    """The graphs must have the same nodes."""
    sizes = " and ".join(f"{name} = {a} and {b}" for name, (a, b) in axes.items()) or "other indices"
    if list(first.outputs) != list(other.outputs):
        raise ExportError(f"export: the function returns {list(first.outputs)} and {list(other.outputs)} for {sizes}")
    for a, b, ca, cb in zip(first.nodes, other.nodes, first.contents, other.contents):
        if (a.op, a.args, len(a.shape), ca.entry) != (b.op, b.args, len(b.shape), cb.entry):
            raise OtherGraphError(
                f"export: the graph is not the same for {sizes}: node {a.number} is {a.op}{a.args} of shape {a.shape}, "
                f"and {b.op}{b.args} of shape {b.shape}{made_at(b)}. A file holds one graph: give the axis a fixed "
                "size, or export one step and call it again and again"
            )
    if len(first.nodes) != len(other.nodes) or first.outputs != other.outputs:
        raise OtherGraphError(
            f"export: the graph is not the same for {sizes}: it has {len(first.nodes)} and {len(other.nodes)} nodes. "
            "A file holds one graph: give the axis a fixed size, or export one step and call it again and again"
        )


def _step(i: int, runs: list[Run]) -> Step:
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
        node.integers,
        made_at(node),
    )
