"""The types that users see: uses of each kind, and three programs of newcomers, which run too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynet_cy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = {"student": ["trees.conllu"], "researcher": [], "engineer": []}
FILES = [str(HERE / f"{name}.py") for name in ("uses", *PROGRAMS)]
TREES = """1\tdogs\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\tbark\t_\tVERB\t_\t_\t0\troot\t_\t_

1\tcats\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\tsee\t_\tVERB\t_\t_\t0\troot\t_\t_
3\tdogs\t_\tNOUN\t_\t_\t2\tobj\t_\t_

"""


def checked(folder: Path, *command: str, **environment: str) -> None:
    """Run a type checker over all files, from another folder than that of the package."""
    done = subprocess.run(
        [sys.executable, "-m", *command, *FILES],
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k != "MYPYPATH"}, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    of_clone = Path(dynet_cy.__file__).parent == ROOT / "dynet_cy"
    path = {"MYPYPATH": str(ROOT)} if of_clone else {}
    checked(tmp_path, "mypy", "--config-file=", "--strict", "--cache-dir", str(tmp_path / "cache"), **path)


@pytest.mark.slow
def test_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{Path(dynet_cy.__file__).parent.parent}"]}}')
    checked(tmp_path, "pyright", "--pythonpath", sys.executable)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "trees.conllu").write_text(TREES, encoding="utf-8")
    command = [sys.executable, str(HERE / f"{name}.py"), *PROGRAMS[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said, number = done.stdout.splitlines()[-1].split()
    assert float(number) < 1 if said == "loss" else float(number) > 0.8, done.stdout
