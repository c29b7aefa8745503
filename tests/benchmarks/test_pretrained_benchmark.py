"""benchmarks/pretrained.py runs its programs with tiny models, and makes a table of what it measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("tqdm", reason="the benchmark shows its progress by tqdm")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import pretrained  # noqa: E402


def test_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tiny", "--sentences", "40", "--encoded", "20", "--rounds", "1", "--threads", "1"]
    file = tmp_path / "found.json"
    monkeypatch.setattr(
        "sys.argv", ["pretrained.py", *options, "--programs", "encode", "generate", "--json", str(file)]
    )
    pretrained.main()
    found = json.loads(file.read_text())["threads"]["1"]
    forms = {one["form"] for one in found["encode"]}
    assert {"alone 1", "mixed 32", "sorted 16"} <= forms
    assert all(one["seconds"] > 0 and one["memory"] > 0 for one in found["encode"] + found["generate"])
    printed = capsys.readouterr().out
    assert "| encoding, the best form | CPU ms/sentence |" in printed
    assert "| generation, 16 prompts | CPU s |" in printed
    assert "fine-tuning" not in printed


def test_results_that_differ_are_an_error() -> None:
    same = {("dynet_cy", "mixed"): [{"loss": 2.0}], ("torch", "mixed"): [{"loss": 2.0001}]}
    pretrained.same_results("finetune", {**same, ("dynet_cy", "mixed bf16"): [{"loss": 3.0}]})
    with pytest.raises(RuntimeError, match="finetune: results differ"):
        pretrained.same_results("finetune", {**same, ("torch", "mixed"): [{"loss": 2.1}]})
