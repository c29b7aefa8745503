"""Runs the examples as their users would: as programs of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS = os.environ.get("EXAMPLES_OPTIONS", "").split()  # for all of them, such as --dynet-gpu


def run(script: str, *args: object, cwd: Path, stdin: str = "", prelude: str = "") -> subprocess.CompletedProcess[str]:
    """Run an example; `prelude` is Python to run in the same process before."""
    start = f"import runpy, sys; {prelude}; runpy.run_path(sys.argv[0], run_name='__main__')"
    path = EXAMPLES / script
    code = f"import sys; sys.argv = sys.argv[1:]; sys.path.insert(0, {str(EXAMPLES)!r}); {start}"
    command = [sys.executable, "-c", code, str(path)] if prelude else [sys.executable, str(path)]
    return subprocess.run(
        [*command, *map(str, args), *OPTIONS],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=300,
    )


def output(script: str, *args: object, cwd: Path) -> str:
    """Run an example that must succeed; return what it prints."""
    done = run(script, *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers that stand where `pattern` has a group, in all places that match."""
    return [float(x) for x in re.findall(pattern, text, re.M)]
