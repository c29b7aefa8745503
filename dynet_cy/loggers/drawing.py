"""Curves as SVG within HTML, without other packages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 320, 180  # of one curve, in pixels
_MOST_POINTS = 1000
_MOST_TEXTS = 20

Points = Sequence[tuple[float, float]]


def drawn(values: Mapping[str, Points], texts: Sequence[tuple[float, str, str]], artefacts: Sequence[str]) -> str:
    """HTML with a curve for each name, the last texts, and links to the files."""
    parts = [_curve(name, points) for name, points in list(values.items())]
    shown = [f"<dt>{escape(name)}, {step:g}</dt><dd>{escape(text)}</dd>" for step, name, text in texts[-_MOST_TEXTS:]]
    if shown:
        parts.append(f"<dl>{''.join(shown)}</dl>")
    if artefacts:
        links = (f'<li><a href="{escape(path)}">{escape(path)}</a></li>' for path in artefacts)
        parts.append(f"<ul>{''.join(links)}</ul>")
    return f'<div style="font: 13px sans-serif">{"".join(parts) or "no numbers yet"}</div>'


def _curve(name: str, points: Points) -> str:
    shown = [*points[:: -(-len(points) // _MOST_POINTS)], points[-1]]
    finite = [(x, y) for x, y in shown if math.isfinite(y)]
    head = f"<b>{escape(name)}</b> {points[-1][1]:.6g} at {points[-1][0]:g}"
    if not finite:
        return f'<figure style="display: inline-block; margin: 8px">{head}</figure>'
    left, right = shown[0][0], shown[-1][0]
    low, high = min(y for _, y in finite), max(y for _, y in finite)

    def place(x: float, y: float) -> str:
        across = (x - left) / (right - left) if right > left else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return f"{across * _WIDTH:.1f},{(1 - up) * _HEIGHT:.1f}"

    lines = "".join(
        f'<polyline points="{" ".join(place(*point) for point in run)}"/>'
        if len(run) > 1
        else '<circle cx="{}" cy="{}" r="2"/>'.format(*place(*run[0]).split(","))
        for run in _runs(shown)
    )
    return (
        f'<figure style="display: inline-block; margin: 8px">{head}<br>'
        f'<svg width="{_WIDTH + 80}" height="{_HEIGHT + 40}" viewBox="-66 -10 {_WIDTH + 80} {_HEIGHT + 40}"'
        ' font-size="11" fill="currentColor">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="currentColor" opacity="0.3"/>'
        f'<g fill="none" stroke="#2a7ab9" stroke-width="1.5">{lines}</g>'
        f'<g text-anchor="end"><text x="-4" y="10">{high:.4g}</text><text x="-4" y="{_HEIGHT}">{low:.4g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}">{right:g}</text></g><text y="{_HEIGHT + 16}">{left:g}</text>'
        "</svg></figure>"
    )


def _runs(points: Points) -> Iterator[list[tuple[float, float]]]:
    """The points between those that are not finite, which leave gaps."""
    run: list[tuple[float, float]] = []
    for x, y in [*points, (0.0, math.nan)]:
        if math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
