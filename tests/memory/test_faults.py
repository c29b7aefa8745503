"""Allocations of the engine fail one at a time: tools/faults/run.py, which without options takes each of them."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "faults" / "run.py"


def run(*arguments: str) -> None:
    if platform.libc_ver()[0] != "glibc" or shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None:
        pytest.skip("needs glibc and a C compiler")
    if os.environ.get("LD_PRELOAD"):
        pytest.skip("another library replaces malloc")
    done = subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-10_000:]
    assert "allocations" in done.stdout


def test_one_in_seven_allocations_fails() -> None:
    run("--every", "7")
