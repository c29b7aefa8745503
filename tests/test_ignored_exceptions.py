"""In programs that tests start, exceptions that Python would only print as "Exception ignored" are errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
class Loud:
    def __del__(self):
        raise ValueError("bad luck")
loud = Loud()
del loud
print("went on")
"""


@pytest.mark.parametrize(
    "environment",
    [None, {}, {"PYTHONPATH": ""}, {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}, dict(os.environ)],
    ids=["inherited", "empty", "no-path", "own-path", "copied"],
)
def test_ends_with_an_error(environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 70
    assert "Exception ignored" in done.stderr
    assert "went on" not in done.stdout


def test_in_a_program_of_a_program(tmp_path):
    inner = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {PROGRAM!r}]).returncode)"
    done = subprocess.run([sys.executable, "-c", inner], env={}, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 70
