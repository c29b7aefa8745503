"""Layered layout of a graph: few crossings, and users near their arguments.

The method is that of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures",
IEEE Transactions on Systems, Man, and Cybernetics 11, 1981: layers by the longest path, the order within a layer by
barycentres, then coordinates. An arrow over several layers has a place in each that it passes. If Graphviz is
installed, its program `dot`, which does the same better, is used instead: see `svg`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_SWEEPS = 8  # of the barycentre method, up and down; more change little

Point = tuple[float, float]
Edge = tuple[int, int]


class Layout(NamedTuple):
    """The positions of nodes and arrows; y grows from arguments to users.

    Attributes:
        centres: of the nodes
        curves: for each pair of argument and user the control points of cubic Bézier curves, 1 + 3 n points
    """

    centres: dict[int, Point]
    curves: dict[Edge, list[Point]]


def place(arguments: Mapping[int, Sequence[int]], sizes: Mapping[int, Point], gap: Point) -> Layout:
    """Lay out a graph.

    Args:
        arguments: the arguments of each node; nodes are numbered from 0, and arguments have smaller numbers
        sizes: width and height of each node
        gap: least distance between neighbours in a layer, and between layers
    """
    level = _levels(arguments)
    edges = {(arg, n) for n, args in arguments.items() for arg in args}
    boxes = dict(sizes)
    below: dict[int, list[int]] = {n: [] for n in arguments}  # neighbours in the layer below
    layers: list[list[int]] = [[] for _ in range(1 + max(level.values(), default=-1))]
    for n in sorted(level):
        layers[level[n]].append(n)
    chains = {}
    for arg, n in sorted(edges):
        chain = [arg]
        for between in range(level[arg] + 1, level[n]):
            passing = -1 - len(boxes)  # a place that the arrow passes: a number that no node has
            boxes[passing] = (0.0, 0.0)
            layers[between].append(passing)
            below[passing] = [chain[-1]]
            chain.append(passing)
        below[n].append(chain[-1])
        chains[arg, n] = [*chain, n]
    above: dict[int, list[int]] = {n: [] for n in below}
    for n, neighbours in below.items():
        for m in neighbours:
            above[m].append(n)

    _order(layers, below, above)
    x = _abscissas(layers, below, above, boxes, gap[0])
    left = min((x[n] - boxes[n][0] / 2 for n in x), default=0.0)
    centres: dict[int, Point] = {}
    y = 0.0
    for layer in layers:
        height = max(boxes[n][1] for n in layer)
        centres.update((n, (x[n] - left, y + height / 2)) for n in layer)
        y += height + gap[1]
    curves = {edge: _curve(chain, centres, boxes) for edge, chain in chains.items()}
    return Layout({n: centres[n] for n in arguments}, curves)


def _levels(arguments: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The layer of each node: the length of the longest path to it for results, else just below its first user."""
    level: dict[int, int] = {}
    users: dict[int, list[int]] = {n: [] for n in arguments}
    for n in sorted(arguments):
        level[n] = 1 + max((level[arg] for arg in arguments[n]), default=-1)
        for arg in arguments[n]:
            users[arg].append(n)
    for n in sorted(arguments, reverse=True):
        if users[n]:
            level[n] = min(level[user] for user in users[n]) - 1
    return level


def _order(layers: list[list[int]], below: Mapping[int, Sequence[int]], above: Mapping[int, Sequence[int]]) -> None:
    """Sort each layer by the mean position of the neighbours, alternately those above and those below."""
    place = {n: (i + 0.5) / len(layer) for layer in layers for i, n in enumerate(layer)}
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = above if downwards else below
        for layer in reversed(layers) if downwards else layers:
            near = {n: _mean([place[m] for m in neighbours[n]], place[n]) for n in layer}
            layer.sort(key=lambda n: near[n])
            place.update((n, (i + 0.5) / len(layer)) for i, n in enumerate(layer))


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _abscissas(
    layers: list[list[int]],
    below: Mapping[int, Sequence[int]],
    above: Mapping[int, Sequence[int]],
    boxes: Mapping[int, Point],
    gap: float,
) -> dict[int, float]:
    """Start side by side; then move each node towards its neighbours, as far as the order of its layer allows."""
    x: dict[int, float] = {}
    for layer in layers:
        x.update(_pushed_apart(layer, dict.fromkeys(layer, 0.0), boxes, gap))
    for sweep in range(2 * _SWEEPS):
        upwards = sweep % 2 == 0
        neighbours = below if upwards else above
        for layer in layers if upwards else reversed(layers):
            wanted = {n: _mean([x[m] for m in neighbours[n]], x[n]) for n in layer}
            x.update(_pushed_apart(layer, wanted, boxes, gap))
    return x


def _pushed_apart(
    layer: Sequence[int], wanted: Mapping[int, float], boxes: Mapping[int, Point], gap: float
) -> dict[int, float]:
    """The abscissas nearest to the wanted ones, by least squares, that keep order and distances.

    Neighbours that would overlap form a block, placed at the mean of its members' wanted positions (pool adjacent
    violators: Ayer et al., "An Empirical Distribution Function for Sampling with Incomplete Information", Annals of
    Mathematical Statistics 26, 1955).
    """
    offsets = [0.0]
    for a, b in zip(layer, layer[1:]):
        offsets.append(offsets[-1] + (boxes[a][0] + boxes[b][0]) / 2 + gap)
    blocks: list[tuple[float, int]] = []  # sum of wanted places less the offsets, number of members
    for n, offset in zip(layer, offsets):
        total, count = wanted[n] - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    starts = [total / count for total, count in blocks for _ in range(count)]
    return {n: start + offset for n, start, offset in zip(layer, starts, offsets)}


def _curve(chain: Sequence[int], centres: Mapping[int, Point], boxes: Mapping[int, Point]) -> list[Point]:
    """A curve through the points of an arrow, vertical at each of them."""
    points = [centres[n] for n in chain]
    points[0] = (points[0][0], points[0][1] + boxes[chain[0]][1] / 2)
    points[-1] = (points[-1][0], points[-1][1] - boxes[chain[-1]][1] / 2)
    curve = points[:1]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        middle = (y0 + y1) / 2
        curve += [(x0, middle), (x1, middle), (x1, y1)]
    return curve
