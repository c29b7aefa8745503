"""Folding: the graph of a loop over positions, in a form for any number of positions.

A function that reads a sentence word by word makes a node for each word. These nodes differ only in the position, and
are folded into one node, which has the positions as its batch. The steps of a recurrent network become one node as
well, and so does a list that is joined or summed. What is left is the same for each length.

Nodes are folded in the order of their depth. A node belongs to a position because of its arguments, of an index that is
an input of the function, or of the column that it selects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph.nodes import GraphNode, NodeContents
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.recurrences import Chain, chains

Floating = npt.NDArray[Any]
Outputs = Mapping[str, Union[int, tuple[int, ...]]]


def numbers_in(outputs: Outputs) -> list[int]:
    """The numbers of the nodes of all results."""
    return [n for number in outputs.values() for n in ((number,) if isinstance(number, int) else number)]


def renumbered(outputs: Outputs, new: Mapping[int, int]) -> Outputs:
    """Results with other numbers of their nodes."""
    return {name: new[n] if isinstance(n, int) else tuple(new[k] for k in n) for name, n in outputs.items()}


class Run(NamedTuple):
    """One call of the function.

    Attributes:
        nodes: what its results need, numbered from 0.
        contents, values: their data.
        inputs: the names of those that are inputs of the function.
        outputs: the results, by name; a list of them is a tuple of numbers.
        weights: the values of the weights of recurrent networks, by number.
    """

    nodes: list[GraphNode]
    contents: list[NodeContents]
    values: list[Floating | None]
    inputs: list[str | None]
    outputs: Outputs
    weights: dict[int, Floating]


class Element(NamedTuple):
    """The node at one position of a sequence: the folded node, the position, and the number of positions."""

    of: int
    position: int
    length: int


# Where a node is among the folded ones: a single node, or an element of one.
Place = Union[int, Element]

# Operations that combine the elements of a batch, and those that do if an attribute has this bit.
ACROSS = {"pick_batch_elems", "concatenate_to_batch", "batch_moments", "channel_norm"}
REDUCTIONS, BATCH_BIT = {"sum", "mean", "norm"}, 1 << 31
# Operations that select along an axis by one index.
SELECTIONS = {"pick", "select_cols", "pick_range", "pick_batch_elems"}
NO_ATTRS = (0, 0, 0, 0)


class Folded(NamedTuple):
    """Runs of one length, folded, and what could not be folded.

    Attributes:
        runs: the runs.
        single: the nodes that were not folded, by their number before.
        places: where each node is now.
        looping: the steps of recurrent networks whose inputs depend on their own outputs.
    """

    runs: list[Run]
    single: list[int]
    places: dict[int, Place]
    looping: set[int]


def fold(runs: list[Run], sizes: set[int], indices: Mapping[tuple[int, ...], tuple[str, int, int]]) -> Folded:
    """Fold runs of one length, which have the same graph.

    Args:
        runs: the runs, with other indices each
        sizes: the sizes of the named axes
        indices: for the values of an index in these runs: the input, the position, and the number of positions
    """
    folding = _Folding(runs, sizes, indices)
    folding.run()
    return folding.result()


class _Part(NamedTuple):
    """The steps of a recurrent network that read a whole sequence: from `begin` to before `end`; `first` is the input
    of the first one."""

    chain: Chain
    begin: int
    end: int
    first: Element


class _Made(NamedTuple):
    """A folded node, with its data in each run."""

    node: GraphNode
    contents: list[NodeContents]
    values: list[Floating | None]
    input: str | None


class _Folding:
    def __init__(
        self, runs: list[Run], sizes: set[int], indices: Mapping[tuple[int, ...], tuple[str, int, int]]
    ) -> None:
        self.runs = runs
        self.nodes = runs[0].nodes
        self.sizes = sizes
        self.indices = indices
        self.made: list[_Made] = []
        self.places: dict[int, Place] = {}
        self.single: list[int] = []
        self.picked: dict[tuple[int, int], int] = {}
        self.kept: dict[tuple[Any, ...], int] = {}  # nodes that are not folded, by what they compute
        self.chains = chains(self.nodes, [c.attrs for c in runs[0].contents])
        self.looping: set[int] = set()

    # ---- the order

    def run(self) -> None:
        for nodes, networks in self._levels():
            lists, left = self._lists(nodes, {})
            more, left = self._lists(left, self._fixed(left))
            for numbers in sorted([*lists, *more, *([number] for number in left)], key=min):
                if len(numbers) > 1:
                    self._fold_nodes(numbers)
                else:
                    self._keep(numbers[0])
            self._fold_chains(networks)

    def _lists(self, nodes: Iterable[int], fixed: Mapping[int, set[int]]) -> tuple[list[list[int]], list[int]]:
        """Nodes of a level that belong together, one for each position, and the other nodes. Some arguments may be
        fixed: not at the position of the node, though they are elements of a sequence."""
        groups: dict[tuple[Any, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        lists: list[list[int]] = []
        left = []
        for number in nodes:
            found = self._position(number, fixed.get(number, set()))
            if found is None:
                left.append(number)
            else:
                alike, count, position = found
                groups[alike, count][position].append(number)
        for (_, count), members in groups.items():
            whole = min(map(len, members.values())) if len(members) == count and count > 1 else 0
            lists += [[members[position][k] for position in range(count)] for k in range(whole)]
            left += [number for numbers in members.values() for number in numbers[whole:]]
        return lists, left

    def _fixed(self, nodes: Iterable[int]) -> dict[int, set[int]]:
        """The arguments that are the same one in all nodes that are alike, such as the last word of a sentence."""
        alike: dict[Any, list[int]] = defaultdict(list)
        for number in nodes:
            places = [self.places.get(arg) for arg in self.nodes[number].args]
            of = tuple(place.of if isinstance(place, Element) else -1 for place in places)
            if len(of) > 1 and max(of) >= 0:
                alike[self.nodes[number].op, self.nodes[number].origin, of].append(number)
        found = {}
        for numbers in alike.values():
            columns = list(zip(*(self.nodes[number].args for number in numbers)))
            same = {k for k, column in enumerate(columns) if len(set(column)) == 1}
            if len(numbers) > 1 and same:
                found.update(dict.fromkeys(numbers, same))
        return found

    def _levels(self) -> Iterable[tuple[list[int], list[Chain]]]:
        """Nodes and recurrent networks by their depth, without the nodes inside of networks."""
        while True:
            owner = {number: k for k, chain in enumerate(self.chains) for c in chain.cells for number in c.inside}
            depth, stuck = self._depths(owner)
            if not stuck:
                break
            self.looping.update(number for k in stuck for cell in self.chains[k].cells for number in cell.inside)
            self.chains = [chain for k, chain in enumerate(self.chains) if k not in stuck]
        levels: dict[int, tuple[list[int], list[Chain]]] = defaultdict(lambda: ([], []))
        for number in range(len(self.nodes)):
            if number not in owner and not self._is_given(number):
                levels[depth[number]][0].append(number)
        for k, chain in enumerate(self.chains):
            levels[depth[-1 - k]][1].append(chain)
        return [levels[d] for d in sorted(levels)]

    def _depths(self, owner: Mapping[int, int]) -> tuple[dict[int, int], set[int]]:
        """The depth of each node, and of network k as node -1 - k; or networks that depend on themselves."""
        unit = [-1 - owner[n] if n in owner else n for n in range(len(self.nodes))]
        needs: dict[int, set[int]] = defaultdict(set)
        for number, node in enumerate(self.nodes):
            needs[unit[number]].update(unit[arg] for arg in node.args if unit[arg] != unit[number])
        for k, chain in enumerate(self.chains):
            inside = {number for cell in chain.cells for number in cell.inside}
            if any(unit[cell.x] == -1 - k and cell.x in inside for cell in chain.cells):
                needs[-1 - k].add(-1 - k)
        depth: dict[int, int] = {}
        try:
            for u in TopologicalSorter(needs).static_order():
                depth[u] = max((depth[need] + 1 for need in needs[u]), default=0)
        except CycleError as error:
            return {}, {-1 - u for u in error.args[1] if u < 0}
        return depth, set()

    # ---- places of arguments

    def _is_given(self, number: int) -> bool:
        """Whether a node is a constant that the function made of numbers; it has a place when it is used."""
        return self.nodes[number].op == "input" and self.runs[0].inputs[number] is None

    def _single(self, number: int) -> int:
        """The folded node whose value is that of a node."""
        place = self.places.get(number)
        if place is None:
            if not self._is_given(number):
                raise ExportError(
                    f"export: {self.nodes[number].op} is part of a step of a recurrent network, whose length is not "
                    "fixed: only the outputs at all positions and the last state are known outside of it"
                    f"{made_at(self.nodes[number])}"
                )
            self._keep(number)
            place = self.places[number]
        if isinstance(place, int):
            return place
        key = place.of, place.position
        if key not in self.picked:
            shape = self.made[place.of].node.shape
            items = (place.position,)
            self.picked[key] = self._add("pick_batch_elems", [place.of], shape, number=number, items=items)
        return self.picked[key]

    def _items(self, number: int) -> tuple[list[Any], tuple[int, int] | None]:
        """What the items of a node are: numbers, or indices that are inputs; the position and the number of positions
        if there is just one, and it is such an index."""
        found: list[Any] = []
        at = None
        for column in zip(*(run.contents[number].items for run in self.runs)):
            if len(set(column)) > 1 and column in self.indices:
                name, position, count = self.indices[column]
                at = position, count
                found.append((name, position))
            else:
                found.append(column)
        return ([(found[0][0],)], at) if len(found) == 1 and at is not None and at[1] > 1 else (found, None)

    def _position(self, number: int, fixed: set[int]) -> tuple[Any, int, int] | None:
        """What a node has in common with those that it is folded with, the number of positions, and its own one; None
        for a node that is at no position, or at several."""
        node, attrs = self.nodes[number], [run.contents[number].attrs for run in self.runs]
        items, at = self._items(number)
        places = set() if at is None else {at}
        args: list[Any] = []
        for k, arg in enumerate(node.args):
            place = self.places.get(arg)
            if isinstance(place, Element) and k not in fixed:
                places.add((place.position, place.length))
                args.append(("each", place.of))
            elif place is None and self._is_given(arg):
                args.append(("given", self.nodes[arg].shape, self.nodes[arg].batch_size))
            else:
                args.append(("one", self._single(arg)))
        if not places:
            column = self._column(number)
            if column is not None:
                return (node.op, node.shape, attrs[0], args[0]), column[1], column[0]
        batches = [self.nodes[arg].batch_size for arg in node.args]
        across = node.op in ACROSS or (node.op in REDUCTIONS and attrs[0][0] & BATCH_BIT)
        if len(places) != 1 or across or node.batch_size != 1 or any(b != 1 for b in batches):
            return None
        ((position, count),) = places
        entry = self.runs[0].contents[number].entry
        return (node.op, node.shape, tuple(attrs), tuple(args), tuple(items), entry), count, position

    def _column(self, number: int) -> tuple[int, int] | None:
        """The index of the column, or the batch element, that a node selects of a sequence; and their number."""
        node, contents = self.nodes[number], self.runs[0].contents[number]
        if node.op not in SELECTIONS or len(contents.items) != 1 or node.batch_size != 1:
            return None
        if len({run.contents[number].items for run in self.runs}) != 1:
            return None
        x = self.made[self._single(node.args[0])].node
        if node.op == "pick_batch_elems":
            count = x.batch_size
        else:
            one_column = node.op != "pick_range" or contents.attrs[1] == 1
            if x.batch_size != 1 or not x.shape or contents.attrs[0] != len(x.shape) - 1 or not one_column:
                return None
            count = x.shape[-1]
        return (contents.items[0], count) if count in self.sizes else None

    # ---- folded nodes

    def _add(
        self,
        op: str,
        args: Sequence[int],
        shape: tuple[int, ...],
        batch: int = 1,
        number: int = 0,
        attrs: tuple[int, ...] = NO_ATTRS,
        items: tuple[int, ...] = (),
        parameter: str | None = None,
        values: Floating | None = None,
    ) -> int:
        """Add a node that the function has not made, at the line of node `number`; returns its own number."""
        before = self.nodes[number]
        node = before._replace(
            op=op, args=tuple(args), shape=shape, batch_size=batch, parameter=parameter, rows=(), integers=False
        )
        contents = NodeContents(attrs, items, len(items) // batch, None)
        return self._append(node, [contents] * len(self.runs), [values] * len(self.runs))

    def _append(
        self, node: GraphNode, contents: list[NodeContents], values: list[Floating | None], name: str | None = None
    ) -> int:
        self.made.append(_Made(node, contents, values, name))
        return len(self.made) - 1

    def _keep(self, number: int) -> None:
        """A node that is not folded; its list of arguments may have sequences in it."""
        node = self.nodes[number]
        contents = [run.contents[number] for run in self.runs]
        made = self.gathered(number, node.op, node.args, contents[0].attrs) if node.op in GATHERED else None
        if made is not None:
            self.places[number] = made
            return
        node = node._replace(args=tuple(map(self._single, node.args)))
        if node.op != "input":
            # A loop may compute the same value again and again, such as the transpose of a matrix.
            key = (node.op, node.shape, node.batch_size, node.args, tuple(contents))
            if key in self.kept:
                self.places[number] = self.kept[key]
                return
            self.kept[key] = len(self.made)
        if node.args:
            self.single.append(number)
        values = [run.values[number] for run in self.runs]
        self.places[number] = self._append(node, contents, values, self.runs[0].inputs[number])

    def gathered(self, number: int, op: str, args: Sequence[int], attrs: tuple[int, ...]) -> int | None:
        """An operation of a list with a whole sequence in it; None if there is none."""
        parts: list[int] = []
        places = [self.places.get(arg) for arg in args]
        i = 0
        while i < len(args):
            whole = self._whole(places, i, 1)
            part = None if whole is None else GATHERED[op](self, number, whole.of, attrs)
            parts.append(self._single(args[i]) if part is None else part)
            i += 1 if whole is None or part is None else whole.length
        if len(parts) == len(args) or (len(parts) > 1 and op == "average"):
            return None
        if len(parts) == 1:
            return parts[0]
        node = self.nodes[number]
        return self._add(op, parts, node.shape, node.batch_size, number, attrs)

    def _whole(self, places: Sequence[Place | None], i: int, step: int) -> Element | None:
        """The first of the elements of a whole sequence that stand from place i on; `step`: 1, or -1 backwards."""
        place = places[i]
        if not isinstance(place, Element) or place.position != (0 if step == 1 else place.length - 1):
            return None
        whole = [Element(place.of, place.position + step * k, place.length) for k in range(place.length)]
        return place if places[i : i + place.length] == whole else None

    def _over_batch(self, op: str, number: int, x: int) -> int:
        return self._add(op, [x], self.made[x].node.shape, number=number, attrs=(BATCH_BIT, 0, 0, 0))

    def _reduced(self, op: str, number: int, x: int) -> int:
        shape = self.made[x].node.shape
        joined = self._joined(number, x, (len(shape), 0, 0, 0))
        assert joined is not None
        return self._add(op, [joined], shape, number=number, attrs=(len(shape), 0, 0, 0))

    def _joined(self, number: int, x: int, attrs: tuple[int, ...]) -> int | None:
        """The elements side by side along an axis, which must be the last one or a further one."""
        shape, count, axis = self.made[x].node.shape, self.made[x].node.batch_size, attrs[0]
        if axis == len(shape):
            return self._add("reshape", [x], (*shape, count), number=number)
        if axis == len(shape) - 1:
            return self._add("reshape", [x], (*shape[:-1], shape[-1] * count), number=number)
        return None

    def _fold_nodes(self, numbers: list[int]) -> None:
        """One node in place of those at all positions."""
        first, count = numbers[0], len(numbers)
        node = self.nodes[first]
        if self._column(first) is not None and not isinstance(self.places.get(node.args[0]), Element):
            made = self._add("reshape", [self._single(node.args[0])], node.shape, count, first)
        else:
            args = [self._argument([self.nodes[n].args[k] for n in numbers]) for k in range(len(node.args))]
            contents = [
                run.contents[first]._replace(items=tuple(item for n in numbers for item in run.contents[n].items))
                for run in self.runs
            ]
            both = self._both_directions(node, args)
            if both is not None:
                made = self._add("reshape", [both], node.shape, count, first)
            else:
                node = node._replace(args=tuple(args), batch_size=count)
                made = self._append(node, contents, [run.values[first] for run in self.runs])
        for position, n in enumerate(numbers):
            self.places[n] = Element(made, position, count)

    def _argument(self, numbers: list[int]) -> int:
        """An argument of a folded node, from those at all positions."""
        place = self.places.get(numbers[0])
        if place is not None and not isinstance(place, Element) or len(set(numbers)) == 1:
            return self._single(numbers[0])
        if isinstance(place, Element):
            return place.of
        arrays = [[run.values[n] for n in numbers] for run in self.runs]
        if all(np.array_equal(a, arrays[0][0]) for each in arrays for a in each):  # type: ignore[arg-type]
            return self._single(numbers[0])
        node = self.nodes[numbers[0]]
        node = node._replace(batch_size=len(numbers))
        values = [np.stack(each, axis=-1) for each in arrays]  # type: ignore[arg-type]
        return self._append(node, [run.contents[numbers[0]] for run in self.runs], list(values))

    # ---- recurrent networks

    def _fold_chains(self, found: list[Chain]) -> None:
        """The recurrent networks of a level; two that read the same sequence in both directions become one."""
        parts = [part for part in (self._next_part(chain, 0) for chain in found) if part is not None]
        while parts:
            together = [parts.pop(0)]
            other = next((part for part in parts if self._opposite(together[0], part)), None)
            if other is not None:
                parts.remove(other)
                together.append(other)
            self._add_network(together)
            for part in together:
                after = self._next_part(part.chain, part.end)
                while after is not None:
                    self._add_network([after])
                    after = self._next_part(part.chain, after.end)

    def _next_part(self, chain: Chain, begin: int) -> _Part | None:
        """The steps that read a whole sequence next, after those before it, which are kept as they are."""
        places = [self.places.get(cell.x) for cell in chain.cells]
        for i in range(begin, len(places)):
            place = self._whole(places, i, 1) or self._whole(places, i, -1)
            if place is not None:
                return _Part(chain, i, i + place.length, place)
            for number in sorted(chain.cells[i].inside):
                self._keep(number)
        return None

    def _start(self, part: _Part) -> list[int]:
        """The state before a network, h and then c; nothing if it is zero."""
        cell = part.chain.cells[part.begin]
        before = [n for n in (cell.h_before, cell.c_before) if n is not None]
        if all(self._is_given(n) and all(not run.values[n].any() for run in self.runs) for n in before):  # type: ignore[union-attr]
            return []
        return before

    def _state(self, part: _Part) -> GraphNode:
        """The hidden vector after the first step of a network."""
        h = part.chain.cells[part.begin].h
        assert h is not None  # the next step needs it
        return self.nodes[h]

    def _opposite(self, one: _Part, other: _Part) -> bool:
        """Whether two networks are the directions of one."""
        sizes = [self._state(part).shape for part in (one, other)]
        same = one.chain.kind is other.chain.kind and sizes[0] == sizes[1] and one.first.of == other.first.of
        return same and one.first.position != other.first.position and not self._start(one) and not self._start(other)

    def _add_network(self, parts: list[_Part]) -> None:
        """A node for a network, in one direction or two: {hidden, directions} at each position."""
        parts = sorted(parts, key=lambda part: part.first.position)  # forward first
        chain, _, _, first = parts[0]
        kind, number, (hidden,) = chain.kind, self._state(parts[0]).number, self._state(parts[0]).shape
        weights = [[self.runs[0].weights[n] for n in part.chain.weights] for part in parts]
        arrays = [kind.arrays(dict(zip(kind.weights.split(), values))) for values in weights]
        named = self.nodes[chain.weights[1]].parameter
        prefix = named.rsplit("/", 1)[0] if isinstance(named, str) else ""
        args = [first.of]
        for name, each in zip("WRB", zip(*arrays)):
            stacked = np.stack(each).astype(np.float32)
            args.append(
                self._add("weights", [], stacked.shape, 1, number, parameter=f"{prefix}/{name}", values=stacked)
            )
        args += [self._single(n) for n in self._start(parts[0])]
        direction = 2 if len(parts) == 2 else int(first.position != 0)
        attrs = (direction, int(kind.reset_after), 0, 0)
        network = self._add(kind.operator, args, (hidden, len(parts)), first.length, number, attrs)
        for d, part in enumerate(parts):
            h = self._add("pick", [network], (hidden,), first.length, number, (1, 0, 0, 0), (d,) * first.length)
            cells = part.chain.cells[part.begin : part.end]
            for k, cell in enumerate(cells):
                position = k if part.first.position == 0 else first.length - 1 - k
                if cell.h is not None:
                    self.places[cell.h] = Element(h, position, first.length)
            if cells[-1].c is not None:
                self.places[cells[-1].c] = self._add("last_cell", [network], (hidden,), 1, number, (d, 0, 0, 0))

    def _both_directions(self, node: GraphNode, args: list[int]) -> int | None:
        """The network whose two directions a node joins."""
        made = [self.made[arg] for arg in args]
        if node.op != "concatenate" or len(made) != 2 or any(m.node.op != "pick" for m in made):
            return None
        networks = [m.node.args[0] for m in made]
        items = [m.contents[0].items[0] for m in made]
        directions = self.made[networks[0]].node.shape[1:]
        return networks[0] if networks[0] == networks[1] and items == [0, 1] and directions == (2,) else None

    # ---- the result

    def result(self) -> Folded:
        outputs: dict[str, int | tuple[int, ...]] = {}
        for name, numbers in self.runs[0].outputs.items():
            if isinstance(numbers, int):
                outputs[name] = self._single(numbers)
                continue
            one = self.nodes[numbers[0]].shape == (1,)
            axis = 0 if one else len(self.nodes[numbers[0]].shape)
            joined = self.gathered(numbers[0], "concatenate", numbers, (axis, 0, 0, 0))
            outputs[name] = tuple(map(self._single, numbers)) if joined is None else joined
        runs = []
        wanted = set(numbers_in(outputs))
        for number in range(len(self.made) - 1, -1, -1):
            if number in wanted:
                wanted.update(self.made[number].node.args)
        kept = {old: new for new, old in enumerate(sorted(wanted))}
        for t in range(len(self.runs)):
            made = [self.made[old] for old in kept]
            runs.append(
                Run(
                    [m.node._replace(args=tuple(kept[arg] for arg in m.node.args)) for m in made],
                    [m.contents[t] for m in made],
                    [m.values[t] for m in made],
                    [m.input for m in made],
                    renumbered(outputs, kept),
                    {},
                )
            )
        return Folded(runs, self.single, self.places, self.looping)


# How a list that is a whole sequence is combined; None if that has no counterpart.
GATHERED: dict[str, Any] = {
    "esum": lambda self, number, x, attrs: self._over_batch("sum", number, x),
    "average": lambda self, number, x, attrs: self._over_batch("mean", number, x),
    "emax": lambda self, number, x, attrs: self._reduced("max_dim", number, x),
    "logsumexp": lambda self, number, x, attrs: self._reduced("logsumexp_dim", number, x),
    "concatenate": _Folding._joined,
    "concatenate_to_batch": lambda self, number, x, attrs: self._add(
        "reshape", [x], self.made[x].node.shape, self.made[x].node.batch_size, number
    ),
}


# ---- what prevents it


def explain(one: tuple[Run, Folded], other: tuple[Run, Folded]) -> None:
    """Raise an error if more nodes are left of a loop in one run than in the other: names the first, and the reason."""
    counts = [Counter(_line(run.nodes[n]) for n in folded.single) for run, folded in (one, other)]
    run, folded = other
    for n in folded.single:
        node = run.nodes[n]
        if counts[1][_line(node)] > max(counts[0][_line(node)], 1):
            lengths = " and ".join(str(count[_line(node)]) for count in counts)
            raise ExportError(
                f"export: the length cannot vary: {node.op} is made {lengths} times for two lengths, and "
                f"{_reason(run, folded, n)}{made_at(node)}. A file of any length has one operation for all positions: "
                "write the same operations for each, with recurrent networks of LSTM, GRU and RNN builders; or give "
                "the axis a fixed size, or export one step and call it again and again (docs/onnx.md)"
            )


def made_at(node: GraphNode) -> str:
    """The line that made a node, for messages."""
    return "" if node.origin is None else f" (made at {node.origin})"


def _line(node: GraphNode) -> tuple[object, ...]:
    return node.op, node.origin


def _reason(run: Run, folded: Folded, number: int) -> str:
    same = {n for n in folded.single if _line(run.nodes[n]) == _line(run.nodes[number])}
    waiting, reached = [arg for n in same for arg in run.nodes[n].args], set()
    while waiting:
        n = waiting.pop()
        if n not in reached:
            reached.add(n)
            waiting += run.nodes[n].args
    if reached & same:
        if reached & folded.looping:
            return "it is part of a recurrent network whose input is computed from its output before"
        return "each one is computed from the one before, by something other than a step of an LSTM, GRU or RNN"
    places = [[folded.places.get(arg) for arg in run.nodes[n].args] for n in same]
    if any(len({p.position for p in each if isinstance(p, Element)}) > 1 for each in places):
        return "each one combines different positions"
    return "they differ in more than the position, such as a number, or are not made at each position"
