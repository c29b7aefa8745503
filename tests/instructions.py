"""Counts the instructions of functions, under valgrind: the same number on a busy machine, so that tests can compare.

Only what runs inside `count(function)` is collected: valgrind begins and ends where ctypes calls back into Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_BEGIN = """
import ctypes, os, subprocess
def count(function, begun=[]):
    if not begun:  # what comes before, such as imports, is not even looked at: a quarter of the time
        command = ["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"]
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        while begun[0].poll() is None: pass
        assert begun[0].returncode == 0
    ctypes.CFUNCTYPE(None)(function)()
"""


def counted(folder: Path, code: str, timeout: int = 900) -> list[int]:
    """Run code that calls `count(function)`, in an empty folder: the instructions of each call, in order."""
    options = ["--instr-atstart=no", "--collect-atstart=no", "--toggle-collect=ffi_call", "--dump-after=ffi_call"]
    out = folder / "out"
    # Threads of OpenBLAS wait in loops, which would be counted.
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, sys.executable, "-c", _BEGIN + code],
        cwd=folder,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    files = sorted(folder.glob("out.*"), key=lambda path: int(path.suffix[1:]))
    return [int(re.search(r"^summary: (\d+)", path.read_text(), re.MULTILINE)[1]) for path in files]  # type: ignore[index]
