"""The tables of sizes of 0, and of sizes and indices at and beyond the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_process import SANITIZED
from sampling import ONE_IN
from sweep import failures


def report(found: tuple[int, list[str]], least: int) -> None:
    """Fail if calls have failed, or if there were too few."""
    n, failed = found
    assert not failed, f"{len(failed)} of {n} calls:\n" + "\n".join(text[:600] for text in failed[:30])
    assert n >= least


@pytest.mark.parametrize(("part", "least"), [("rows", 15_000), ("fused", 140), ("functions", 10_000), ("others", 100)])
def test_sizes_of_0(tmp_path: Path, part: str, least: int) -> None:
    """In memory that holds NaN where nothing has been written."""
    memory = {"DYNET_CY_POISON": "1", "DYNET_CY_DROP_SMALL": "1"}
    report(failures(tmp_path, "empty_sizes", part, one_in=ONE_IN, **memory), least)


@pytest.mark.skipif(SANITIZED, reason="limits of memory end processes with sanitizers")
@pytest.mark.parametrize(("part", "least"), [("sizes", 18_000), ("numbers", 1_600)])
def test_sizes_and_indices_at_the_limit(tmp_path: Path, part: str, least: int) -> None:
    report(failures(tmp_path, "big_sizes", part, one_in=ONE_IN), least)


CRASHING = """
import os
from sweep import Call
def fails(): assert 1 == 2, "one is not two"
def calls():
    yield "right", lambda: None
    yield "wrong", fails
    yield "crash", lambda: os.abort()
    yield "right again", lambda: None
    yield "end", lambda: os._exit(0)
"""


def test_a_crash_is_a_failed_call(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    n, failed = failures(tmp_path, "crashing")
    assert n == 5
    wrong, crash, end = failed
    assert wrong == "wrong: AssertionError: one is not two"
    assert crash.startswith("crash: the process ended with status -6: Fatal Python error: Aborted")
    assert end.startswith("end: the process ended with status 0")
