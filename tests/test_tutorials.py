"""The tutorials of docs/learn: each is a program that runs by itself when it is copied."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

LEARN = Path(__file__).resolve().parent.parent / "docs" / "learn"
TUTORIALS = sorted(LEARN.glob("[0-9]*_*.py"), key=lambda path: int(path.stem.partition("_")[0]))
IMPORTED = {"dynet_cy", "numpy", "safetensors", "matplotlib"}  # besides the standard library


def modules(program: str) -> set[str]:
    """The top-level modules that a program imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).partition(".")[0])
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment for programs that plot: fonts are found beforehand, so that matplotlib prints nothing about it."""
    found = {**os.environ, "MPLBACKEND": "agg", "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib"))}
    if importlib.util.find_spec("matplotlib") is not None:
        subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], env=found, cwd="/", check=True)
    return found


def with_marks(path: Path) -> Any:
    """A tutorial as a parameter of a test, marked if it uses fibers."""
    uses = "batched_map" in path.read_text(encoding="utf-8")
    return pytest.param(path, id=path.stem, marks=[pytest.mark.fibers] if uses else [])


def need(program: str) -> None:
    """Skip if a package that the program needs, from the extra `docs`, is missing."""
    for module in sorted(modules(program) & IMPORTED):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    if "dy.pretrained" in program:
        pytest.importorskip("tokenizers", reason="encoders need the extra [pretrained]")
    for package in re.findall(r'metadata\.files\("(.+?)"\)', program):
        try:
            metadata.distribution(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"needs {package}")


@pytest.mark.slow
@pytest.mark.parametrize("path", [with_marks(path) for path in TUTORIALS])
def test_runs_alone(path: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    need(path.read_text(encoding="utf-8"))
    shutil.copy(path, tmp_path)
    done = subprocess.run(
        [sys.executable, path.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_can_be_read_and_copied(path: Path) -> None:
    program = path.read_text(encoding="utf-8")
    standard = getattr(sys, "stdlib_module_names", None)  # from Python 3.10 on
    if standard is not None:
        assert modules(program) <= IMPORTED | standard
    number, _, name = path.stem.partition("_")
    assert re.match(rf'"""\n{number}\. .+\n=+\n', program), f"{name} begins with its number and title"


def test_tutorials_are_numbered_and_listed() -> None:
    assert TUTORIALS
    assert [path.stem.partition("_")[0] for path in TUTORIALS] == [str(n) for n in range(1, len(TUTORIALS) + 1)]
    listed = re.findall(r"<(\d+_\w+)>", (LEARN / "GALLERY_HEADER.rst").read_text(encoding="utf-8"))
    assert listed == [path.stem for path in TUTORIALS]
