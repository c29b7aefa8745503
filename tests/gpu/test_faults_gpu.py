"""Allocations of the engine fail while a device is used: tools/faults/run.py."""

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


def test_some_allocations_fail(device: str) -> None:
    if platform.libc_ver()[0] != "glibc" or shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None:
        pytest.skip("needs glibc and a C compiler")
    if os.environ.get("LD_PRELOAD"):
        pytest.skip("another library replaces malloc")
    command = [sys.executable, str(TOOL), "--every", "101", "on_devices"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-10_000:]
    assert "on_devices: " in done.stdout
