"""Runs programs in other processes, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Whether this process runs under a sanitizer, which reserves the whole address space: limits of memory end it.
SANITIZED = any(name in os.environ.get("LD_PRELOAD", "") for name in ("libasan", "libtsan"))


def environment(**variables: str) -> dict[str, str]:
    """The environment of this process, with its module path and further variables."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **variables}


def run_python(folder: Path, code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code with options and environment variables.

    Args:
        folder: where it runs; not the source tree, which has no compiled modules if the package is installed
    """
    return subprocess.run(
        [sys.executable, "-c", code, *options],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
    )


_EACH = """
import os, sys, traceback
{begin}
for i, program in enumerate({programs!r}):
    child = os.fork()
    if not child:
        code = 0
        for fd, name in ((1, "out"), (2, "error")):
            os.dup2(os.open(name + str(i), os.O_CREAT | os.O_WRONLY), fd)
        try:
            exec(compile(program, "<string>", "exec"))
        except BaseException:
            code = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run_each(
    folder: Path, begin: str, programs: Sequence[str], *options: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run each program in a process of its own, all of them forked from one that has run the beginning."""
    done = subprocess.run(
        [sys.executable, *options, "-c", _EACH.format(begin=begin, programs=list(programs))],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )

    def written(name: str, i: int) -> str:
        return (folder / f"{name}{i}").read_text(encoding="utf-8")

    return [
        subprocess.CompletedProcess(program, int(code), written("out", i), written("error", i))
        for i, (program, code) in enumerate(zip(programs, done.stdout.split()))
    ]
