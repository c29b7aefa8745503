"""The Transformer tagger, at a small size, run as users run it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from programs import refused, run

pytest.importorskip("tqdm", reason="the examples need tqdm")

SMALL = ["--dim", 16, "--letter-dim", 8, "--hidden", 32, "--heads", 2, "--learning-rate", 0.01, "--dropout", 0.1]


def train(treebank: Path, model: Path, *more: object) -> subprocess.CompletedProcess[str]:
    files = ["--train", treebank / "train.conllu.gz", "--dev", treebank / "dev.conllu"]
    args = [*files, "--model", model, "--epochs", 6, "--batch", 8, *SMALL, *more]
    return run("transformer_tagger.py", *args, cwd=treebank)


def test_trains_and_tags(treebank: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    done = train(treebank, model)
    assert done.returncode == 0, done.stderr
    accuracies = [float(x) for x in re.findall(r"^epoch \d+: .*dev accuracy ([\d.]+)%$", done.stdout, re.M)]
    assert len(accuracies) == 6
    assert max(accuracies) > 95
    text = "every dog likes the çiçek .\n\na 犬 finds the dog !\n"
    done = run("transformer_tagger.py", "tag", "--model", model, cwd=tmp_path, stdin=text)
    assert done.returncode == 0, done.stderr
    first, empty, second, _ = done.stdout.split("\n")
    assert first == "every/DET dog/NOUN likes/VERB the/DET çiçek/NOUN ./PUNCT"
    assert empty == ""
    assert re.fullmatch(r"a/\w+ 犬/\w+ finds/VERB the/DET dog/NOUN !/PUNCT", second)


def test_errors(tmp_path: Path) -> None:
    said = refused("transformer_tagger.py", "tag", "--model", tmp_path / "none", cwd=tmp_path)
    assert said.startswith("transformer_tagger.py: ")
