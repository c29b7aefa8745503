"""Common functions of derive.py: parsing of parentheses, wrapping of lines, generated regions of files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120


class Mistake(Exception):
    """Something in a source that cannot be read; the message says where."""


def closing(text: str, at: int) -> int:
    """The index of the parenthesis that closes the one at an index."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise Mistake(f"a parenthesis is not closed: {text[at : at + 60]!r}")


def split(text: str) -> list[str]:
    """The parts of a text between commas that are not inside parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def wrapped(text: str, indent: str, further: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def with_region(text: str, name: str, lines: Iterator[str]) -> str:
    """A text with the lines between the one with `derived: NAME` and the one with `end of NAME` replaced."""
    match = re.search(rf"^(.*\bderived: {name}\b.*\n)((?:.*\n)*?)(.*\bend of {name}\b.*)$", text, re.MULTILINE)
    if match is None:
        raise Mistake(f"there are no lines with derived: {name} and end of {name}")
    return text[: match.end(1)] + "\n".join([*lines, ""]) + text[match.start(3) :]


def with_regions(path: Path, **regions: Iterator[str]) -> tuple[Path, str]:
    text = path.read_text(encoding="utf-8")
    for name, lines in regions.items():
        try:
            text = with_region(text, name, lines)
        except Mistake as mistake:
            raise Mistake(f"{path}: {mistake}") from None
    return path, text


def imported(module: str, names: Sequence[str]) -> Iterator[str]:
    """An import statement as ruff would format it: constants, classes, functions, private names, regardless of case."""
    names = sorted(names, key=lambda n: (n.startswith("_"), not n.isupper(), n[0].islower(), n.lower()))
    line = f"from {module} import {', '.join(names)}"
    yield from [line] if len(line) <= WIDTH else [f"from {module} import (", *(f"    {n}," for n in names), ")"]
