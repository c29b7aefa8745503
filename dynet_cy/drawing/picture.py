"""Makes pictures: collapses scopes, labels nodes, places them, and writes SVG; converts it to PNG and PDF."""

from __future__ import annotations

import colorsys
import contextlib
import html
import importlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dynet_cy.drawing.layered import Layout, Point, place
from dynet_cy.drawing.merging import merge
from dynet_cy.graph.nodes import GraphNode

_FONT = 12.0  # height of letters, in pixels
_LETTER = 0.61 * _FONT  # width of one, in the fonts named below
_LINE = 1.35 * _FONT
_PAD = 7.0
_GAP = (14.0, 34.0)  # between nodes of a layer, between layers
_MARGIN = 16.0
_SCALE = 2  # pixels of PNG for each of SVG
_GOLDEN_ANGLE = 137.508  # neighbouring batches get hues that are far apart
_STYLE = (
    "text{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;text-anchor:middle;fill:#1b1f24}"
    ".s{fill:#59636e;font-size:10.5px}.k{text-anchor:start}path{fill:none;stroke:#8c959f;stroke-width:1.2}"
    "rect{stroke:#59636e;stroke-width:1}.c{stroke-width:2.5}.paper{fill:#fff;stroke:none}"
)


def drawn(
    found: list[GraphNode],
    wanted: set[int],
    named: dict[int, str],
    graphviz: bool | None,
    collapse: bool | Iterable[str],
    most: int,
) -> str:
    """The picture of some nodes as SVG, of at most `most` nodes and boxes."""
    boxes: dict[int, list[GraphNode]] = {}
    if collapse is not False:
        found, boxes, owner = _collapsed(found, sorted(wanted), collapse)
        wanted = {owner[n] for n in wanted}
        named = {owner.get(n, n): name for n, name in named.items()}
    shown_nodes = sorted(wanted)
    if len(shown_nodes) > most:
        hidden = _hidden(found, wanted)
        labels = {n: _general_label(found[n], found, hidden) for n in shown_nodes}
        found, boxes, named = merge(found, shown_nodes, boxes, labels, named, most)
        shown_nodes = list(range(len(found)))
    return _svg(found, shown_nodes, named, graphviz, boxes)


def converted(svg: str, kind: str) -> bytes:
    """A picture as PNG or PDF."""
    programs = {
        "rsvg-convert": ["--format", kind, "--zoom", str(_SCALE)],
        "inkscape": ["--pipe", f"--export-type={kind}", f"--export-dpi={96 * _SCALE}", "--export-filename=-"],
    }
    found = {name: path for name in programs if (path := shutil.which(name)) is not None}
    if "rsvg-convert" not in found:
        with contextlib.suppress(ImportError, OSError):  # OSError: the package is there, the library Cairo is not
            cairosvg: Any = importlib.import_module("cairosvg")
            data: bytes = getattr(cairosvg, f"svg2{kind}")(bytestring=svg.encode(), scale=_SCALE)
            return data
    for name, path in found.items():
        done = subprocess.run([path, *programs[name]], input=svg.encode(), capture_output=True)
        if done.returncode or not done.stdout:
            reason = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
            raise RuntimeError(f"Drawing.save: {name} has not made {kind.upper()}: {reason}")
        return done.stdout
    raise FileNotFoundError(
        f"Drawing.save: {kind.upper()} needs a converter of SVG, and none is installed: the program rsvg-convert (in "
        "librsvg2-bin), the package cairosvg (pip install cairosvg), or the program inkscape; .svg needs none"
    )


def is_parameter(node: GraphNode) -> bool:
    return node.parameter is not None and not node.rows and not node.args


def _hidden(found: list[GraphNode], wanted: Container[int]) -> set[int]:
    """The parameters that are not nodes of the picture, but named by the nodes that use them."""
    return {n for n in range(len(found)) if n not in wanted and is_parameter(found[n])}


def cone(found: list[GraphNode], tops: Iterable[int]) -> set[int]:
    """The nodes that some nodes depend on, including themselves."""
    reached, waiting = set(), list(tops)
    while waiting:
        n = waiting.pop()
        if n not in reached:
            reached.add(n)
            waiting += found[n].args
    return reached


# ---- scopes as boxes ------------------------------------------------------------------------------------------------


def _box_of(scope: str, names: set[str] | None) -> str:
    """The part of a scope's name that becomes a box: up to the first of these names, or the outermost; "" for none."""
    parts = scope.split("/") if scope else []
    for i, part in enumerate(parts):
        if names is None or part in names:
            return "/".join(parts[: i + 1])
    return ""


def _scoped(found: list[GraphNode], wanted: list[int]) -> list[GraphNode]:
    """The nodes, with scopes for those without one: of the builder or layer whose parameters they use.

    A layer opens no scope unless something watches, since that costs time. Its parameters have its name, though. Nodes
    without parameters have the scope of those before and after them, if it is the same and no opened one.
    """
    result = list(found)
    before = ""
    between: list[int] = []
    for n in wanted:
        if is_parameter(found[n]):
            continue
        if found[n].scope:
            before, between = "", []
            continue
        scope = ""
        used = [found[i].parameter for i in (*found[n].args, n) if found[i].parameter is not None]
        if used:
            scope = "/".join(str(used[0]).split("/")[1:-1])
        if not scope:
            between.append(n)
            continue
        result[n] = found[n]._replace(scope=scope)
        common = os.path.commonprefix([scope.split("/"), before.split("/")])
        for i in between if common else ():
            result[i] = found[i]._replace(scope="/".join(common))
        before, between = scope, []
    return result


def _collapsed(
    found: list[GraphNode], wanted: list[int], collapse: bool | Iterable[str]
) -> tuple[list[GraphNode], dict[int, list[GraphNode]], dict[int, int]]:
    """The nodes, with each box in place of its first node; the contents of each box; and the new index of each node.

    Arguments have smaller numbers than the nodes that use them, so boxes of consecutive nodes form no cycles.
    """
    names = None if collapse is True else _scope_names(collapse)
    found = _scoped(found, wanted)
    boxes: dict[int, list[GraphNode]] = {}
    owner: dict[int, int] = {}
    before, first = "", -1
    for n in wanted:
        if is_parameter(found[n]):
            owner[n] = n
            continue
        box = _box_of(found[n].scope, names)
        if not box or box != before:
            first = n
        before = box
        owner[n] = first
        if box:
            boxes.setdefault(first, []).append(found[n])
    missing = (names or set()) - {part for node in found for part in node.scope.split("/")}
    if missing:
        raise ValueError(f"draw: collapse names {min(missing)!r}, and no node was made in a scope of that name")
    calls: dict[frozenset[int], int] = {}
    result = list(found)
    for n in wanted:
        if owner[n] != n:
            continue
        members = boxes.get(n, [found[n]])
        args = tuple(dict.fromkeys(owner.get(arg, arg) for node in members for arg in node.args))
        result[n] = found[n]._replace(args=args)
        if n in boxes:
            ran = frozenset(node.batch for node in members if node.batch is not None)
            result[n] = members[-1]._replace(
                number=n,
                op=_box_of(found[n].scope, names).rsplit("/", 1)[-1],
                args=tuple(arg for arg in args if arg != n and arg in owner),
                parameter=None,
                rows=(),
                batch=calls.setdefault(ran, -2 - len(calls)) if ran else None,
            )
    return result, boxes, owner


def _scope_names(collapse: bool | Iterable[str]) -> set[str]:
    names = collapse if isinstance(collapse, Iterable) and not isinstance(collapse, str) else None
    listed = None if names is None else list(names)
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"draw: collapse must be True, False or a list of names, not {collapse!r}")
    return set(listed)


# ---- text in nodes --------------------------------------------------------------------------------------------------


def _shape(node: GraphNode) -> str:
    shape = "{" + ",".join(map(str, node.shape)) + "}"
    if node.batch_size > 1:
        shape = f"{shape} x {node.batch_size}"
    return f"{shape} int32" if node.integers else shape


def _short(name: str | None) -> str:
    return (name or "").rsplit("/", 1)[-1]


def _label(node: GraphNode, found: list[GraphNode], hidden: set[int], name: str | None) -> str:
    if node.rows:
        rows = ",".join(map(str, node.rows[:3])) + (",..." if len(node.rows) > 3 else "")
        what = f"{_short(node.parameter)}[{rows}]"
    elif node.parameter is not None and node.args:  # rows whose numbers are values of the graph
        what = f"{_short(node.parameter)}[{node.args[0]}]"
    elif node.parameter is not None:
        what = _short(node.parameter)
    else:
        weights = [_short(found[arg].parameter) for arg in node.args if arg in hidden]
        what = f"{node.op} {' '.join(weights)}" if weights else node.op
    return f"{name} = {what}" if name else what


def _general_label(node: GraphNode, found: list[GraphNode], hidden: set[int]) -> str:
    """A label without what differs between nodes of one kind, such as rows of a table."""
    return f"{_short(node.parameter)}[...]" if node.rows else _label(node, found, hidden, None)


def _tooltip(node: GraphNode, together: int, inside: list[GraphNode] | None = None) -> str:
    if inside is not None:
        ops = ", ".join(f"{count} {op}" for op, count in Counter(x.op for x in inside).items())
        calls = len({x.batch for x in inside if x.batch is not None})
        what = inside[0].scope if node.scope else node.op
        return f"{what}: {ops}\n{len(inside)} nodes" + (f" in {calls} calls" if calls else ", not computed")
    lines = [f"{node.number}: {node.op}" + (f" {node.parameter}" if node.parameter else "") + f" {_shape(node)}"]
    if node.batch is not None:
        lines.append(f"call {node.batch}" + (f", with {together - 1} more" if together > 1 else ", alone"))
    elif not is_parameter(node):
        lines.append("not computed")
    if node.scope:
        lines.append(f"in scope {node.scope}")
    if node.origin:
        lines.append(f"{os.path.basename(node.origin.file)}:{node.origin.line} in {node.origin.function}")
    return "\n".join(lines)


# ---- positions ------------------------------------------------------------------------------------------------------


def _layout(arguments: Mapping[int, list[int]], sizes: Mapping[int, Point], graphviz: bool | None) -> Layout:
    dot = shutil.which("dot") if graphviz is not False else None
    if dot is not None:
        return _graphviz(dot, arguments, sizes)
    if graphviz:
        raise FileNotFoundError("draw: graphviz=True, but the program dot of Graphviz is not installed")
    return place(arguments, sizes, _GAP)


def _graphviz(dot: str, arguments: Mapping[int, list[int]], sizes: Mapping[int, Point]) -> Layout:
    """The layout by `dot -Tplain`, whose output is in inches, with y from bottom to top."""
    inch = 72.0
    lines = [
        "digraph G {",
        f"rankdir=BT; nodesep={_GAP[0] / inch}; ranksep={_GAP[1] / inch};",
        "node [shape=box fixedsize=true]; edge [arrowhead=none];",
    ]
    for n, args in arguments.items():
        lines.append(f"{n} [width={sizes[n][0] / inch:.4f} height={sizes[n][1] / inch:.4f}];")
        lines += [f"{arg} -> {n};" for arg in dict.fromkeys(args)]
    done = subprocess.run([dot, "-Tplain"], input="\n".join([*lines, "}"]), capture_output=True, text=True, check=True)
    layout = Layout({}, {})
    for line in done.stdout.splitlines():
        kind, *words = line.split()
        if kind == "node":
            layout.centres[int(words[0])] = (float(words[1]) * inch, float(words[2]) * inch)
        elif kind == "edge":
            numbers = [float(word) * inch for word in words[3 : 3 + 2 * int(words[2])]]
            layout.curves[int(words[0]), int(words[1])] = list(zip(numbers[::2], numbers[1::2]))
    return layout


# ---- the picture ----------------------------------------------------------------------------------------------------


def _svg(
    found: list[GraphNode],
    wanted: list[int],
    names: Mapping[int, str],
    graphviz: bool | None,
    boxes: Mapping[int, list[GraphNode]],
) -> str:
    shown = set(wanted)
    hidden = _hidden(found, shown)
    labels = {n: _label(found[n], found, hidden, names.get(n)) for n in wanted}
    shapes = {n: _count(len(boxes[n])) if n in boxes else _shape(found[n]) for n in wanted}
    sizes = {
        n: (max(len(labels[n]) * _LETTER, len(shapes[n]) * _LETTER * 0.9) + 2 * _PAD, 2 * _LINE + _PAD) for n in wanted
    }
    arguments = {n: [arg for arg in found[n].args if arg in shown] for n in wanted}
    centres, curves = _layout(arguments, sizes, graphviz)
    together = Counter(_call(found[n]) for n in wanted)
    colours = {
        batch: _colour(i) for i, batch in enumerate(sorted(b for b in together if b != _NO_CALL and together[b] > 1))
    }

    width = max((x + sizes[n][0] / 2 for n, (x, _) in centres.items()), default=0.0) + 2 * _MARGIN
    top = max((y + sizes[n][1] / 2 for n, (_, y) in centres.items()), default=0.0) + _MARGIN
    legend, legend_height = _legend(found, wanted, colours, width, top + _MARGIN)
    height = top + _MARGIN + legend_height

    def point(at: Point) -> str:
        return f"{at[0] + _MARGIN:.1f} {top - at[1]:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" role="img"><style>{_STYLE}</style>',
        f'<rect class="paper" width="{width:.1f}" height="{height:.1f}"/>',
    ]
    parts += [f'<path d="M{point(curve[0])}C{" ".join(map(point, curve[1:]))}"/>' for curve in curves.values()]
    for n in wanted:
        x, y = centres[n]
        tooltip = _tooltip(found[n], together[_call(found[n])], boxes.get(n))
        parts.append(
            _box(found[n], labels[n], shapes[n], (x + _MARGIN, top - y), sizes[n], colours, tooltip, n in boxes)
        )
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


_NO_CALL = -1  # boxes have numbers below it


def _count(nodes: int) -> str:
    return f"{nodes} nodes" if nodes > 1 else "1 node"


def _call(node: GraphNode) -> int:
    """The number of the call that computed a node."""
    return _NO_CALL if node.batch is None else node.batch


def _colour(i: int) -> str:
    """As #rrggbb, since not all converters know hsl()."""
    hue, lightness = round((205 + i * _GOLDEN_ANGLE) % 360) / 360, (0.84, 0.76, 0.88)[i % 3]
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, 0.75))


def _box(
    node: GraphNode,
    label: str,
    shape: str,
    centre: Point,
    size: Point,
    colours: Mapping[int, str],
    tooltip: str,
    collapsed: bool,
) -> str:
    (x, y), (w, h) = centre, size
    batch = _call(node)
    fill = "#eaeef2" if is_parameter(node) else colours.get(batch, "#ffffff")
    corner = 4.0 if node.args or collapsed else h / 2  # leaves are round
    kind = ' class="c"' if collapsed else ""
    return (
        f"<g><title>{html.escape(tooltip)}</title>"
        f'<rect{kind} x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{corner:.1f}" '
        f'fill="{fill}"/>'
        f'<text x="{x:.1f}" y="{y - 2:.1f}">{html.escape(label)}</text>'
        f'<text class="s" x="{x:.1f}" y="{y + _LINE - 3:.1f}">{shape}</text></g>'
    )


def _legend(
    found: list[GraphNode], wanted: list[int], colours: Mapping[int, str], width: float, y: float
) -> tuple[list[str], float]:
    """The legend, with the ops and counts of the call of each colour, in as many rows as needed; and its height."""
    entries = []
    for batch, colour in colours.items():
        ops = Counter(found[n].op for n in wanted if _call(found[n]) == batch)
        entries.append((colour, ", ".join(f"{count} {op}" for op, count in ops.items())))
    parts, x, bottom = [], _MARGIN, y
    for colour, text in entries:
        needed = len(text) * _LETTER + 34
        if x > _MARGIN and x + needed > width:
            x, bottom = _MARGIN, bottom + 1.5 * _LINE
        parts.append(f'<rect x="{x:.1f}" y="{bottom:.1f}" width="14" height="14" rx="3" fill="{colour}"/>')
        parts.append(f'<text class="k" x="{x + 20:.1f}" y="{bottom + 11:.1f}">{html.escape(text)}</text>')
        x += needed
    return parts, bottom - y + 14 + _MARGIN if entries else 0.0
