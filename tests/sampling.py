"""A part of the cases of long tests: with DYNET_CY_ONE_IN=N, one case in N of each test that has more than 200 / N.

Tests of a file that have the same cases, as the properties of each row of a table of ops, run different ones: of N such
tests, one runs a case. CI takes a part where it is slow, and all where it is fast.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter

import pytest

ONE_IN = int(os.environ.get("DYNET_CY_ONE_IN", "1"))


def part_of(tests: list[str], n: int) -> set[str]:
    """Those of these names, `file::test[case]`, that run."""
    functions = [name.partition("[")[0] for name in tests]
    cases, number, seen = Counter(functions), {}, Counter()
    for function in dict.fromkeys(functions):  # numbers a file's tests
        file = function.partition("::")[0]
        number[function] = seen[file]
        seen[file] += 1
    return {
        name
        for name, function in zip(tests, functions)
        if cases[function] <= 200 // n or (zlib.crc32(name.partition("[")[2].encode()) + number[function]) % n == 0
    }


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ONE_IN > 1:
        run = part_of([item.nodeid for item in items], ONE_IN)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in run])
        items[:] = [item for item in items if item.nodeid in run]
