"""A profile as a self-contained HTML page: flame graphs, memory over time, tables."""

from __future__ import annotations

import html
import json
import linecache
import os
from typing import TYPE_CHECKING, Any

from dynet_cy.core.amounts import size_text, time_text
from dynet_cy.files.replacing import write_file
from dynet_cy.graph.origin import shown_file
from dynet_cy.watch.memory import dropped_rows, html_table, memory_rows, value_rows

if TYPE_CHECKING:
    from dynet_cy.profiling import Profile


Tree = dict[str, Any]  # "value": seconds, "note": a text, "parts": {name: Tree}

_MOST_SAMPLES = 600  # of the memory use: more than the diagram has pixels


def write_report(profile: Profile, filename: str | os.PathLike[str], title: str) -> None:
    """Write a profile as a page: see `Profile.save_report`."""
    parts = [
        _summary(profile),
        _flame("Operations", "ops", _by_op(profile)),
        _flame("Lines", "lines", _by_line(profile)),
        _memory(profile),
        _peak(profile),
        *_tables(profile),
    ]
    text = _PAGE.replace("TITLE", html.escape(title)).replace("BODY", "\n".join(part for part in parts if part))
    write_file(filename, text.encode())


def tables(profile: Profile) -> str:
    """A profile as HTML without styles and scripts, for a cell of a notebook."""
    return "\n".join(part for part in [_summary(profile), *_tables(profile)] if part)


def _tables(profile: Profile) -> list[str]:
    return [_scopes(profile), _ops(profile), _requests(profile)]


# ---- flame graphs ---------------------------------------------------------------------------------------------------


def _add(tree: Tree, path: list[str], seconds: float, note: str = "") -> None:
    for name in path:
        tree["value"] += seconds
        tree = tree["parts"].setdefault(name, {"value": 0.0, "note": "", "parts": {}})
    tree["value"] += seconds
    tree["note"] = tree["note"] or note


def _root() -> Tree:
    return {"value": 0.0, "note": "", "parts": {}}


def _by_op(profile: Profile) -> Tree:
    """Directions, scopes, operations and, with a timeline, shapes."""
    root = _root()
    batches = [span for span in profile.timeline if span.op or span.kind == "weight gradients"]
    if batches:
        for span in batches:
            way = span.kind if span.kind in ("forward", "again") else "backward"
            scope = span.scope.split("/") if span.scope else []
            shapes = f"{span.shape} from {', '.join(span.arguments)}" if span.arguments else span.shape
            path = [way, *scope, span.op or span.kind] + ([shapes] if shapes else [])
            _add(root, path, span.end - span.begin)
        return root
    for row in profile:
        _add(root, [row.way, row.op], row.seconds, _counts(row.nodes, row.calls))
    return root


def _by_line(profile: Profile) -> Tree:
    """Files, functions, lines and operations."""
    root = _root()
    for row in profile.lines:
        source = linecache.getline(row.file, row.line).strip()
        line = f"{row.line}: {source}" if source else f"line {row.line}"
        op = f"{row.op} (gradient)" if row.backward else f"{row.op} (again)" if row.again else row.op
        _add(root, [shown_file(row.file), row.function, line, op], row.seconds, _counts(row.nodes, row.calls))
    return root


def _counts(nodes: int, calls: int) -> str:
    return f"{nodes:,} nodes in {calls:,} calls"


def _flame(title: str, name: str, tree: Tree) -> str:
    if not tree["parts"]:
        hint = "measure(lines=True) adds it." if name == "lines" else "Nothing was measured."
        return f"<h2>{title}</h2><p>{hint}</p>"
    data = json.dumps(_packed("all", tree), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<h2>{title}</h2><div class="flame" id="{name}"></div>'
        f'<script>flame(document.getElementById("{name}"), {data});</script>'
    )


def _packed(name: str, tree: Tree) -> list[Any]:
    """Name, milliseconds, note, parts; the largest part first."""
    parts = sorted(tree["parts"].items(), key=lambda part: -part[1]["value"])
    return [name, round(1e3 * tree["value"], 4), tree["note"], [_packed(*part) for part in parts]]


# ---- memory ---------------------------------------------------------------------------------------------------------


def _memory(profile: Profile) -> str:
    samples = [
        (span.end, span.values + span.gradients + span.scratch, span.held) for span in profile.timeline if span.op
    ]
    if not samples:
        return "<h2>Memory</h2><p>measure(timeline=True) adds it.</p>"
    begin, end = samples[0][0], samples[-1][0]
    span = end - begin or 1e-9
    highest: dict[int, tuple[int, int]] = {}  # of each pixel
    for at, used, held in samples:
        pixel = int((at - begin) / span * (_MOST_SAMPLES - 1))
        before = highest.get(pixel, (0, 0))
        highest[pixel] = (max(before[0], used), max(before[1], held))
    top = max(held for _, held in highest.values()) or 1
    width, height, left, low = 900.0, 180.0, 62.0, 22.0

    def x(pixel: int) -> float:
        return left + pixel / (_MOST_SAMPLES - 1) * (width - left - 8)

    def y(size: float) -> float:
        return height - low - size / top * (height - low - 12)

    lines = []
    for i, kind in enumerate(("used", "held")):
        points = [(x(pixel), y(sizes[i])) for pixel, sizes in sorted(highest.items())]
        steps = f"M{points[0][0]:.1f} {points[0][1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in points[1:])
        if kind == "used":
            steps += f"L{points[-1][0]:.1f} {y(0):.1f}L{points[0][0]:.1f} {y(0):.1f}Z"
        lines.append(f'<path class="{kind}" d="{steps}"/>')
    marks = "".join(
        f'<path class="grid" d="M{left} {y(size):.1f}H{width - 8}"/>'
        f'<text x="{left - 6}" y="{y(size) + 4:.1f}" text-anchor="end">{size_text(size)}</text>'
        for size in (0, top / 2, top)
    )
    times = f'<text x="{left}" y="{height - 6}">0</text><text x="{width - 8}" y="{height - 6}" text-anchor="end">'
    return (
        "<h2>Memory</h2>"
        f'<div class="wide"><svg class="memory" viewBox="0 0 {width:.0f} {height:.0f}">{marks}{"".join(lines)}'
        f"{times}{time_text(span)}</text></svg></div>"
        '<p><span class="key used"></span>the graph: values, gradients, temporary numbers; '
        f"{size_text(max(used for used, _ in highest.values()))} at most. "
        f'<span class="key held"></span>all that graphs, parameters and trainers hold; {size_text(top)} at most.</p>'
    )


def _peak(profile: Profile) -> str:
    if profile.memory is None:
        return ""
    kinds = [[row.kind, size_text(row.bytes)] for row in memory_rows(profile.memory) if row.bytes]
    values = [[op, size, nodes, where] for size, nodes, op, where in value_rows(profile.memory.by_value)]
    return (
        _table("Memory when the graph held most", ["memory", "size"], kinds)
        + _table("Values at that time", ["largest value", "size", "nodes", "where"], values)
        + _dropped(profile)
    )


def _dropped(profile: Profile) -> str:
    """Values that were not kept, and what computing them again has cost."""
    dropped = profile.memory.dropped if profile.memory is not None else []
    rows = [[op, size, nodes, where] for size, nodes, _, op, where in dropped_rows(dropped)]
    hint = f'<p class="facts">{html.escape(profile.again_hint)}</p>' if profile.again_hint else ""
    return _table("Values that were dropped", ["largest value", "size", "nodes", "where"], rows) + hint


# ---- tables ---------------------------------------------------------------------------------------------------------


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    return f'<h2>{title}</h2><div class="wide">{html_table(head, rows)}</div>'


def _summary(profile: Profile) -> str:
    total = sum(row.seconds for row in profile)
    nodes = sum(row.nodes for row in profile if row.way == "forward")
    calls = sum(row.calls for row in profile if row.way == "forward")
    facts = [f"{time_text(total)} in operations", f"{nodes:,} nodes forward in {calls:,} calls"]
    facts += [f"{time_text(seconds)} {name}" for name, seconds in profile.beside().items()]
    facts += [profile.outside_text()] if profile.elapsed else []
    if profile.schedules or profile.reused:
        facts.append(f"{profile.schedules:,} schedules made, {profile.reused:,} used again")
    if profile.dropped:
        facts.append(f"the last {profile.dropped:,} entries did not fit into the timeline")
    return '<p class="facts">' + " · ".join(facts) + "</p>"


def _scopes(profile: Profile) -> str:
    rows = [
        [x.scope, time_text(x.seconds), time_text(x.forward), time_text(x.backward), f"{x.nodes:,}"]
        for x in profile.scopes
    ]
    return _table("Scopes", ["scope", "time", "forward", "backward", "nodes"], rows)


def _ops(profile: Profile) -> str:
    total = sum(row.seconds for row in profile) or 1.0
    rows = [
        [
            f"{row.way} {row.op}",
            time_text(row.seconds),
            f"{row.seconds / total:.1%}",
            f"{row.nodes:,}",
            f"{row.calls:,}",
            f"{row.nodes / row.calls:.1f}",
            row.alone_because if row.nodes > 1 else "",
        ]
        for row in profile
    ]
    return _table("All operations", ["operation", "time", "share", "nodes", "calls", "per call", "never batches"], rows)


def _requests(profile: Profile) -> str:
    rows = [
        [
            f"{shown_file(row.file)}:{row.line} in {row.function}" if row.file else "no line of the program",
            time_text(row.seconds),
            f"{row.passes:,}",
            f"{row.values:,}",
            f"{row.nodes:,}",
            profile._advice(row),
        ]
        for row in profile.requests
    ]
    return _table("Values that were asked for", ["line", "time", "passes", "values", "nodes", "hint"], rows)


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root{--paper:#fff;--ink:#1b1f24;--faint:#59636e;--line:#d1d9e0;--used:#4a90d9;--held:#d9822b}
@media (prefers-color-scheme:dark){:root{--paper:#15191e;--ink:#e6e9ed;--faint:#9aa4af;--line:#343b44}}
body{background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,"Segoe UI",Roboto,sans-serif;margin:0 auto;
max-width:1100px;padding:1.2rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.8rem 0 .5rem}.facts,p{color:var(--faint);margin:.4rem 0}
table{border-collapse:collapse;font-size:.86rem}th{text-align:left;color:var(--faint);font-weight:500}
td,th{padding:.16rem .8rem .16rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:not(:first-child){font-variant-numeric:tabular-nums;white-space:nowrap}td:first-child{overflow-wrap:anywhere;
min-width:11rem}td:last-child{white-space:normal;min-width:6rem}.wide{overflow-x:auto}
.flame{position:relative;overflow:hidden;font:12px/20px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.flame div{position:absolute;height:20px;box-sizing:border-box;border:1px solid var(--paper);border-radius:3px;
overflow:hidden;white-space:nowrap;text-overflow:ellipsis;padding:0 4px;color:#1b1f24;cursor:pointer}
.memory{width:100%;min-width:560px;height:auto;display:block}
.memory text{font:11px system-ui,sans-serif;fill:var(--faint)}
path.used{fill:var(--used);fill-opacity:.55;stroke:none}path.held{fill:none;stroke:var(--held);stroke-width:1.6}
path.grid{stroke:var(--line);fill:none}
.key{display:inline-block;width:.8em;height:.8em;border-radius:3px;margin-right:.4em}.key.used{background:var(--used)}
.key.held{background:var(--held)}
</style>
<script>
function flame(place, all) {
  // A part is [name, milliseconds, note, parts]; a click on one makes it as wide as the page, one on "all" goes back.
  function colour(name) {
    let h = 7;
    for (const c of name.replace(" (gradient)", "")) h = (h * 31 + c.codePointAt(0)) % 360;
    return `hsl(${h} 68% ${name.includes("(gradient)") || name == "backward" ? 72 : 82}%)`;
  }
  function depth(part) { return 1 + Math.max(0, ...part[3].map(depth)); }
  function text(ms) { return ms >= 1000 ? (ms / 1000).toPrecision(3) + " s" : Number(ms.toPrecision(3)) + " ms"; }
  function draw(path) {
    const focus = path[path.length - 1];
    place.textContent = "";
    place.style.height = 21 * (path.length - 1 + depth(focus)) + "px";
    function box(part, left, width, row, to) {
      const div = document.createElement("div");
      div.style.cssText = `left:${100 * left}%;width:${100 * width}%;top:${21 * row}px;background:${colour(part[0])}`;
      div.textContent = part[0];
      const share = (100 * part[1] / all[1]).toPrecision(3) + " %";
      div.title = [part[0], text(part[1]) + ", " + share + " of all", part[2]].filter(Boolean).join("\\n");
      div.onclick = () => draw(to);
      place.append(div);
    }
    function parts(part, left, width, row, to) {
      box(part, left, width, row, to);
      for (const one of part[3]) {
        const own = part[1] ? width * one[1] / part[1] : 0;
        if (own > .0008) parts(one, left, own, row + 1, to.concat([one]));
        left += own;
      }
    }
    path.slice(0, -1).forEach((part, row) => box(part, 0, 1, row, path.slice(0, row + 1)));
    parts(focus, 0, 1, path.length - 1, path);
  }
  draw([all]);
}
</script></head><body>
<h1>TITLE</h1>
BODY
</body></html>
"""
