"""Results of a program of DyNet's: `import dynet` gives dynet_cy there, which follows DyNet's rules."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from own_process import environment

_PROGRAM = """
import importlib, pickle, sys
import dynet_cy.compat
dynet_cy.compat.install()
module, function, calls = pickle.load(sys.stdin.buffer)
results = [getattr(importlib.import_module(module), function)(*call) for call in calls]
sys.stdout.buffer.write(pickle.dumps(results))
"""


def results_in_compat(module: str, function: str, calls: list[tuple]) -> list[Any]:
    """What a function of a file in this folder returns for each tuple of arguments, in a process of its own."""
    given = pickle.dumps((module, function, calls))
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=folder, env=environment(), input=given, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)
