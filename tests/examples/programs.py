"""Runs the examples as users do: as separate programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS = os.environ.get("EXAMPLES_OPTIONS", "").split()  # for all of them, such as --dynet-gpu


def run(script: str, *args: object, cwd: Path, stdin: str = "", prelude: str = "") -> subprocess.CompletedProcess[str]:
    """Run an example; `prelude` is Python code that runs before it in the same process."""
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
        timeout=600,
    )


def output(script: str, *args: object, cwd: Path) -> str:
    """Run an example that must succeed; return what it prints."""
    done = run(script, *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers in the group of `pattern`, from all matches."""
    return [float(x) for x in re.findall(pattern, text, re.M)]
