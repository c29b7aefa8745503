"""Runs programs in other processes, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
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
