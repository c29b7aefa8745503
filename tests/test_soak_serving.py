"""A sample of the soak test of servers, tools/soak_serving.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parent.parent / "tools" / "soak_serving.py"

pytestmark = pytest.mark.fibers


def run(tmp_path: Path, *, spoil: str = "") -> subprocess.CompletedProcess[str]:
    start = f"import runpy, sys; sys.argv = ['soak', '--minutes', '0.05', '--seed', '4']; {spoil}"
    program = f"{start}\nrunpy.run_path({str(FILE)!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )


def test_none_lost_and_none_wrong(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls, 0 lost, 0 wrong, 0 threads hang" in done.stdout


def test_wrong_answers_are_found(tmp_path: Path) -> None:
    spoil = (
        "import dynet_cy as dy, itertools; right, n = dy.Server.__call__, itertools.count();"
        "dy.Server.__call__ = lambda *a, **k: right(*a, **k)[:-1] if next(n) % 9 == 5 else right(*a, **k)"
    )
    done = run(tmp_path, spoil=spoil)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " of sentence " in done.stdout
