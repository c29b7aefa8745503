"""The types that users see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynet_cy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@pytest.mark.slow
def test_uses(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    environment = {k: v for k, v in os.environ.items() if k != "MYPYPATH"}
    if Path(dynet_cy.__file__).parent == ROOT / "dynet_cy":
        environment["MYPYPATH"] = str(ROOT)
    options = ["--config-file=", "--strict", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(HERE / "uses.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
