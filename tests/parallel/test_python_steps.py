"""Several processes that train by steps in Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from jobs import PROGRAMS, arrays, launch


def test_two_processes_are_one(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    subprocess.run([sys.executable, PROGRAMS / "python_steps.py", tmp_path / "alone"], check=True, timeout=600)
    result = launch(tmp_path, "python_steps.py", tmp_path)
    assert result.code == 0, result.err
    alone, first, second = (arrays(tmp_path / name) for name in ("alone/0.npz", "0.npz", "1.npz"))
    for name, value in alone.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], value, rtol=1e-4, atol=1e-5)


def test_not_asynchronously(tmp_path: Path) -> None:
    result = launch(tmp_path, "python_steps.py", tmp_path, options=["--mode", "async"])
    assert result.code == 0, result.err
    assert "Adam computes its steps in Python" in (tmp_path / "0.txt").read_text(encoding="utf-8")
