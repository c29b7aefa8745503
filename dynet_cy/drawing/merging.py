"""Smaller graphs for pictures: nodes at one depth, repeated levels and ranges of levels become one box each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dynet_cy.graph.nodes import GraphNode

_LONGEST_PERIOD = 64  # levels that are looked for as one repeated part
_SHORTEST_RUN = 4  # levels that are worth a box
_NAMED = 4  # labels that a box of several levels shows


class Merged(NamedTuple):
    """A graph in which boxes stand for nodes.

    Attributes:
        nodes: the boxes and the nodes that are left, arguments first; their arguments are indices of this list
        boxes: the nodes in each box, by its index
        names: the names of nodes, by their new index
    """

    nodes: list[GraphNode]
    boxes: dict[int, list[GraphNode]]
    names: dict[int, str]


class _Run(NamedTuple):
    """Consecutive levels that one box may stand for: `times` repetitions of the first `period` levels."""

    first: int
    period: int
    times: int


def merge(
    found: Sequence[GraphNode],
    wanted: Sequence[int],
    boxes: Mapping[int, list[GraphNode]],
    labels: Mapping[int, str],
    names: Mapping[int, str],
    most: int,
) -> Merged:
    """A graph of at most `most` nodes and boxes, by the first of these that is enough.

    Nodes at one depth with one label and shape are one box; or those with one label; or also parts that repeat along
    the depth; or ranges of depths.

    Arrows lead from smaller to larger depths, or stay within a box, so boxes form no cycles.

    Args:
        found: the nodes of the graph
        wanted: the indices of those to show; arguments have smaller ones
        boxes: the nodes that one of these stands for
        labels: what each of them shows
        names: of some of them
        most: at least 1
    """
    depth: dict[int, int] = {}
    for n in wanted:
        depth[n] = max((depth[arg] + 1 for arg in found[n].args if arg in depth), default=0)
    levels: list[set[str]] = [set() for _ in range(1 + max(depth.values()))]
    for n in wanted:
        levels[depth[n]].add(labels[n])
    found_labels: dict[Hashable, str] = {}
    for grouping in _groupings(found, wanted, labels, depth, levels, most, found_labels):
        if len(set(grouping.values())) <= most:
            break
    return _joined(found, wanted, boxes, labels, names, depth, grouping, found_labels)


def _groupings(
    found: Sequence[GraphNode],
    wanted: Sequence[int],
    labels: Mapping[int, str],
    depth: Mapping[int, int],
    levels: list[set[str]],
    most: int,
    found_labels: dict[Hashable, str],
) -> Iterator[dict[int, Hashable]]:
    """The group of each node, finest first; groups of several levels get their labels. The last has few enough."""
    yield {n: (depth[n], labels[n], found[n].shape) for n in wanted}
    yield {n: (depth[n], labels[n]) for n in wanted}
    run_at: dict[int, _Run] = {}
    for run in _runs(levels):
        run_at.update(dict.fromkeys(range(run.first, run.first + run.period * run.times), run))
        found_labels[run] = f"{run.times:,} x ({_listed(levels[run.first : run.first + run.period])})"
    yield {n: run_at.get(depth[n], (depth[n], labels[n])) for n in wanted}
    height = -(-len(levels) // most)
    for first in range(0, len(levels), height):
        last = min(first + height, len(levels)) - 1
        found_labels[first] = f"depths {first:,} to {last:,} ({_listed(levels[first : last + 1])})"
    yield {n: depth[n] // height * height for n in wanted}


def _listed(levels: Sequence[set[str]]) -> str:
    """The labels of some levels, in the order of levels, the first few of them."""
    labels = list(dict.fromkeys(label for level in levels for label in sorted(level)))
    return ", ".join(labels[:_NAMED]) + (", ..." if len(labels) > _NAMED else "")


def _runs(levels: list[set[str]]) -> Iterator[_Run]:
    """Parts that repeat: from each level on, the period that covers the most levels, and the shortest such one."""
    number: dict[frozenset[str], int] = {}
    kinds = [number.setdefault(frozenset(level), len(number)) for level in levels]
    at = 0
    while at < len(kinds):
        best = _Run(at, 1, 1)
        for period in range(1, min(_LONGEST_PERIOD, (len(kinds) - at) // 2) + 1):
            same = at + period
            while same < len(kinds) and kinds[same] == kinds[same - period]:
                same += 1
            times = (same - at) // period
            if times > 1 and times * period > best.times * best.period:
                best = _Run(at, period, times)
        covered = best.times * best.period
        if covered >= _SHORTEST_RUN:
            yield best
            at += covered
        else:
            at += 1


def _joined(
    found: Sequence[GraphNode],
    wanted: Sequence[int],
    boxes: Mapping[int, list[GraphNode]],
    labels: Mapping[int, str],
    names: Mapping[int, str],
    depth: Mapping[int, int],
    grouping: Mapping[int, Hashable],
    found_labels: Mapping[Hashable, str],
) -> Merged:
    groups: dict[Hashable, list[int]] = {}
    for n in sorted(wanted, key=lambda n: (depth[n], n)):
        groups.setdefault(grouping[n], []).append(n)
    index = {n: i for i, group in enumerate(groups.values()) for n in group}
    merged = Merged([], {}, {})
    calls: dict[frozenset[int], int] = {}
    for i, (group, members) in enumerate(groups.items()):
        inside = [node for n in members for node in boxes.get(n, [found[n]])]
        args = {index[arg] for n in members for arg in found[n].args if arg in index}
        ran = frozenset(node.batch for node in inside if node.batch is not None)
        call = next(iter(ran), None) if len(ran) < 2 else calls.setdefault(ran, -2 - len(calls))
        scopes = Counter(node.scope for node in inside)
        first = found[members[0]]._replace(
            op=found_labels.get(group, labels[members[0]]),
            args=tuple(sorted(args - {i})),
            parameter=None,
            rows=(),
            batch=call,
            scope=next(iter(scopes)) if len(scopes) == 1 else "",
        )
        merged.nodes.append(first)
        if len(inside) > 1 or members[0] in boxes:
            merged.boxes[i] = inside
        named = [names[n] for n in members if n in names]
        if named:
            merged.names[i] = named[0]
    return merged
