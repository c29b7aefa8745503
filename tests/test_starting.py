"""Programs that tests start: the same in whatever way the tests were started, and none runs forever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import starting

TESTS = Path(__file__).parent
NAMES = """
import signal, sys
kept = [n.name for n in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)
        if signal.getsignal(n) == signal.SIG_IGN]
print(kept, flush=True)
"""


@pytest.fixture
def ignored():
    """Signals are ignored, as in the background of a script and under nohup."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in starting.SIGNALS]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("ignored")
def test_programs_react_to_signals(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, cwd=tmp_path).stdout
    assert found == "['SIGPIPE']\n"  # as always in Python
    job = subprocess.Popen([sys.executable, "-c", f"{NAMES}\nsys.stdin.read()"], stdin=-1, stdout=-1, cwd=tmp_path)
    with job:
        assert job.stdout is not None
        job.stdout.readline()
        job.send_signal(signal.SIGINT)
        assert job.wait() == -signal.SIGINT


@pytest.mark.parametrize("start", [subprocess.check_call, subprocess.check_output, subprocess.run])
def test_programs_end(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "LONGEST_PROGRAM", 0.5)
    with pytest.raises(subprocess.TimeoutExpired, match="import time; time.sleep"):
        start([sys.executable, "-c", "import time; time.sleep(1000)"])


HANGS = """
import threading
def test_first():
    pass
def test_hangs():
    threading.Event().wait()
"""


def test_tests_end(tmp_path: Path) -> None:
    """A test that hangs ends the tests, with the line."""
    shutil.copy(TESTS / "starting.py", tmp_path)
    (tmp_path / "conftest.py").write_text(
        "import starting\nstarting.LONGEST_TEST = 2.0\nfrom limiting import *\n", encoding="utf-8"
    )
    shutil.copy(TESTS / "limiting.py", tmp_path)
    (tmp_path / "test_it.py").write_text(HANGS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in test_hangs" in done.stderr
