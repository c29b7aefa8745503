"""The table of all ops: one row for each use of an op.

The rows, lists named CASES, mirror the source: those of `dynet_cy/ops/reduce.pyx` are in `tests/ops/cases_reduce.py`,
those of `dynet_cy/functions/norms.py` in `tests/functions/cases_function_norms.py`. `test_ops.py` checks every row.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from case import Case


def rows() -> list[Case]:
    """The rows of all files."""
    found = []
    for path in sorted(Path(__file__).parents[1].glob("*/cases_*.py")):
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        found += importlib.import_module(path.stem).CASES
    return found


def unique(cases: list[Case]) -> list[Case]:
    """The cases, with a number after an id that occurs several times."""
    seen: dict[str, int] = {}
    for case in cases:
        seen[case.id] = seen.get(case.id, 0) + 1
        if seen[case.id] > 1:
            object.__setattr__(case, "id", f"{case.id}#{seen[case.id]}")
    return cases


def first_rows(cases: list[Case], n: int = 1) -> set[str]:
    """The ids of the first rows of each op: for costly tests, of what depends on the op more than on its use."""
    found: dict[str, list[str]] = {}
    for case in cases:
        found.setdefault(case.id.partition("-")[0], []).append(case.id)
    return {name for names in found.values() for name in names[:n]}


CASES = unique(rows())
