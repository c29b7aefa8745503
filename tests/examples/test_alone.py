"""Every example can be copied alone: it needs dynet_cy, the standard library, NumPy, tqdm and its data."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import EXAMPLES

PROGRAMS = sorted(EXAMPLES.glob("*.py"))
DATA = {"sklearn", "gymnasium"}  # beside lemminflect and turkish-treebanks, whose files are read


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_imports(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    known = getattr(sys, "stdlib_module_names", None)  # from Python 3.10 on
    own = {other.stem for other in PROGRAMS}
    assert not found & own
    if known is not None:
        assert found - set(known) <= {"dynet_cy", "numpy", "tqdm"} | DATA
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    assert any(alias.name == "dynet_cy" and alias.asname == "dy" for node in imports for alias in node.names)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("tqdm", reason="the examples show their progress with tqdm")
    shutil.copy(path, tmp_path)
    command = [sys.executable, path.name, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "--dynet-gpu" in done.stdout
