"""Every example works if it is copied: it needs only dynet_cy, the standard library, NumPy, tqdm and its data."""

from __future__ import annotations

import ast
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from programs import EXAMPLES

# custom_op is a package, which tests/ops/test_outside_package.py builds and runs.
PROGRAMS = sorted(path for path in EXAMPLES.rglob("*.py") if "custom_op" not in path.parts)
LIBRARIES = {"dynet_cy", "numpy", "tqdm"}
DATA = {"sklearn", "gymnasium"}  # of lemminflect and turkish-treebanks, only files are read
SERVICE = {"starlette", "uvicorn"}
NETWORKS = [path for path in PROGRAMS if path.name != "client.py"]  # the client of the service has no network


def name(path: Path) -> str:
    return path.relative_to(EXAMPLES).with_suffix("").as_posix()


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
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
        assert found - set(known) <= LIBRARIES | (SERVICE if path.name == "service.py" else DATA)
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    uses = any(alias.name == "dynet_cy" and alias.asname == "dy" for node in imports for alias in node.names)
    assert uses == (path in NETWORKS)


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_help(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm", reason="the examples need tqdm")
    if path.name == "service.py":
        for library in sorted(SERVICE):
            pytest.importorskip(library, reason="the web service needs the extra [serve]")
    shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(path.name, run_name="__main__")
    assert not done.value.code
    assert ("--dynet-gpu" in capsys.readouterr().out) == (path in NETWORKS)
