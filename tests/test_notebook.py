"""The notebook for Colab and Kaggle: its cells run, and the one that installs tells how far it is."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dynet_cy as dy

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebooks" / "first_steps.ipynb"


def code() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(set(cell) >= {"id", "metadata", "source"} for cell in cells)
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in code()[1:]:
        exec(cell, names)  # what a notebook does
    assert capsys.readouterr().out.rstrip().endswith("of 1000 deeper trees right")
    assert isinstance(names["drawing"], dy.Drawing)
    dy.renew_cg()


LINE = "dynet_cy: 1 of 80 compiled, 3 s: dynet_cy/ops/select.pyx"


class Pip:
    """A pip that prints what it prints with -v, and fails if the file is broken."""

    def __init__(self, command: list[str], **_: Any) -> None:
        assert command[1:5] == ["-m", "pip", "install", "-v"]
        self.returncode = int("broken" in command[5])
        self.stdout = io.StringIO(f"  cc -c x.c\n  {LINE}\nthe last line\n")

    def __enter__(self) -> Pip:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def test_installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install = code()[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Pip)
    exec(install, {})
    assert capsys.readouterr().out == "dynet_cy is installed already\n"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="upload one"):
        exec(install, {})
    (tmp_path / "dynet_cy-0.1.0.tar.gz").touch()
    exec(install, {})
    assert capsys.readouterr().out == f"installing dynet_cy-0.1.0.tar.gz\n{LINE}\n"
    (tmp_path / "dynet_cy-broken.whl").touch()  # a wheel comes first
    with pytest.raises(RuntimeError, match="could not install"):
        exec(install, {})
    assert capsys.readouterr().out.rstrip().endswith("the last line")
