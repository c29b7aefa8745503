"""How tests start programs: alike whatever way the tests themselves were started, and with an end to each wait.

`conftest` calls `install`, so all of this holds for each use of `subprocess`.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Exceptions that Python would ignore: pytest turns them into warnings, which are errors here; in processes that tests
# start, sitecustomize.py in this folder ends the process with an error.
_IGNORED = str(Path(__file__).parent / "ignored_exceptions")
# The source tree, which has no compiled modules if the package is installed: Python would import it in place of that.
_SOURCE = Path(__file__).parent.parent
# In the background of a script and in services some of these are ignored, and children inherit that. SIGHUP is not
# among them: that `nohup` ignores it is a part of what is tested.
SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)
# Seconds: for a program whose caller sets no limit, and for a test, in which a thread or a forked process may hang.
LONGEST_PROGRAM, LONGEST_TEST = 1800.0, 3600.0

_start, _wait, _communicate = subprocess.Popen.__init__, subprocess.Popen.wait, subprocess.Popen.communicate


def restore_signals() -> None:
    """Let signals do what they usually do."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _checking(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python finds sitecustomize.py."""
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    return {**environment, "PYTHONPATH": os.pathsep.join([_IGNORED, *(p for p in path if p and p != _IGNORED)])}


@functools.wraps(_start)
def _started(self: Any, *args: Any, env: Mapping[str, str] | None = None, **named: Any) -> None:
    """Start a program with the check, also if the caller passes an environment; not in the source tree by default."""
    if named.get("cwd") is None and Path.cwd() == _SOURCE:
        named["cwd"] = sys.prefix
    # Python itself ignores SIGPIPE, and undoes that for children. Code runs in a child only where it has to.
    if any(signal.getsignal(number) == signal.SIG_IGN for number in SIGNALS if number != signal.SIGPIPE):
        named.setdefault("preexec_fn", restore_signals)
    _start(self, *args, env=None if env is None else _checking(env), **named)


@functools.wraps(_wait)
def _waited(self: Any, timeout: float | None = None) -> int:
    if timeout is not None:
        return _wait(self, timeout)
    try:
        return _wait(self, LONGEST_PROGRAM)
    except subprocess.TimeoutExpired:
        self.kill()
        raise


@functools.wraps(_communicate)
def _communicated(self: Any, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
    if timeout is not None:
        return _communicate(self, input, timeout)
    try:
        return _communicate(self, input, LONGEST_PROGRAM)
    except subprocess.TimeoutExpired:
        self.kill()
        raise


def install() -> None:
    """Make `subprocess` start programs in this way."""
    os.environ.update(_checking(os.environ))
    popen: Any = subprocess.Popen
    popen.__init__, popen.wait, popen.communicate = _started, _waited, _communicated
