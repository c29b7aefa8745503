"""The programs of docs/custom-op.md do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "custom-op.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_in_python(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(blocks("python")[0], encoding="utf-8")
    printed = run(tmp_path, "program.py").strip()
    assert [float(number) for number in printed.strip("[]").split()] == pytest.approx([np.exp(-2.5)] * 5)


@pytest.mark.slow
def test_compiled(tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    (tmp_path / "fourths.pyx").write_text("".join(blocks("cython")), encoding="utf-8")
    (tmp_path / "setup.py").write_text(blocks("python")[-1], encoding="utf-8")
    run(tmp_path, "setup.py", "build_ext", "--inplace")
    program = "import dynet_cy as dy, fourths; print(fourths.fourth(dy.inputVector([1, 2, 3])).vec_value())"
    assert run(tmp_path, "-c", program).strip() == "[1.0, 16.0, 81.0]"
