"""Print the contents of a model file: its kind, its parameters with their shapes and ranges, the state of a trainer.

Nothing in the file is executed.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from dynet_cy.commands.files import PAIR, SAFETENSORS, TEXT, entries, kind_of, objects
from dynet_cy.files.checkpoint import stored_state
from dynet_cy.files.textfile import LOOKUP, Entry

_NAMES = {
    TEXT: "text model file (pc.save, pc.populate)",
    PAIR: "pair of files (dy.save, dy.load)",
    SAFETENSORS: "safetensors file (dy.save_safetensors, dy.load_safetensors)",
}
_LONGEST = 300  # characters of a spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file."""
    parser.add_argument(
        "file", help="a text file, a safetensors file, or a pair of dy.save: its .meta, its .data or their base name"
    )


def run(args: argparse.Namespace) -> None:
    """Print the kind of the file, then its parameters as a table, then what else it holds."""
    kind = kind_of(args.file)
    print(f"{args.file}: {_NAMES[kind]}")
    rows = [_row(entry) for entry in entries(args.file)]
    _table([("parameter", "shape", "numbers", "least", "greatest", "not finite"), *rows])
    print(f"{len(rows)} parameters, {sum(int(row[2].replace(',', '')) for row in rows):,} numbers")
    if kind == PAIR:
        print("objects, in the order in which dy.load returns them:")
        for found in objects(args.file):
            spec = found.spec if len(found.spec) <= _LONGEST else found.spec[:_LONGEST] + "..."
            print(f"  {found.kind} {found.name}" + (f", spec {spec}" if spec else ""))
    elif kind == SAFETENSORS:
        _print_state(stored_state(args.file))


def _row(entry: Entry) -> tuple[str, ...]:
    finite = entry.values[np.isfinite(entry.values)]
    least, greatest = (f"{finite.min():.4g}", f"{finite.max():.4g}") if finite.size else ("", "")
    shape = (
        f"{entry.dim[-1]} rows of {_braces(entry.dim[:-1])}"
        if entry.kind == LOOKUP and entry.dim
        else _braces(entry.dim)
    )
    strange = entry.values.size - finite.size
    return entry.name, shape, f"{entry.values.size:,}", least, greatest, f"{strange:,}" if strange else ""


def _braces(dim: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, dim)) + "}"


def _table(rows: list[tuple[str, ...]]) -> None:
    """Print aligned columns, names and shapes to the left, numbers to the right; empty columns are left out."""
    columns = [k for k in range(len(rows[0])) if k < 3 or any(row[k] for row in rows[1:])]
    widths = {k: max(len(row[k]) for row in rows) for k in columns}
    for row in rows:
        print("  ".join(f"{row[k]:<{widths[k]}}" if k < 2 else f"{row[k]:>{widths[k]}}" for k in columns).rstrip())


def _print_state(state: dict[str, Any]) -> None:
    if not state:
        print("not written by dynet_cy: no state of a trainer")
        return
    print(f"written by dynet_cy {state.get('version', 'of an unknown version')}")
    trainer = state.get("trainer")
    if trainer is not None:
        print(f"trainer: {trainer['class']}")
        for name, value in sorted(trainer["settings"].items()):
            print(f"  {name.lstrip('_')}: {json.dumps(value)}")
    if state.get("extra"):
        print(f"extra: {json.dumps(state['extra'])[:_LONGEST]}")
