"""Runs the examples as users do: as separate programs, but in this process what they refuse at once."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

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


def refused(script: str, *args: object, cwd: Path, stdin: str = "") -> str:
    """What an example says that ends with exit code 1."""
    before = sys.argv, sys.stdin, Path.cwd()
    sys.argv, sys.stdin = [str(EXAMPLES / script), *map(str, args)], io.TextIOWrapper(io.BytesIO(stdin.encode()))
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            with pytest.raises(SystemExit) as end:
                runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.argv, sys.stdin = before[:2]
        os.chdir(before[2])
    assert isinstance(end.value.code, str)  # which Python prints
    return f"{said.getvalue()}{end.value.code}\n"


def output(script: str, *args: object, cwd: Path) -> str:
    """Run an example that must succeed; return what it prints."""
    done = run(script, *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers in the group of `pattern`, from all matches."""
    return [float(x) for x in re.findall(pattern, text, re.M)]
