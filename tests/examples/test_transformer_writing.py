"""The Transformers that write (a language model and an inflector), at small sizes, run as users run them."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import EXAMPLES, numbers, output, refused, run

pytest.importorskip("tqdm", reason="the examples need tqdm")

TINY_LM = ["--dim", 16, "--heads", 2, "--hidden", 32, "--layers", 1, "--context", 24, "--batch", 8]
TINY_INFLECTOR = ["--dim", 32, "--heads", 2, "--hidden", 64, "--layers", 1]
VERBS = ["wa" + a + b for a in "bdgklmnprst" for b in ("lk", "rt", "sh", "nd", "st", "x")]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Regular verbs, with a pattern that a tiny network can learn."""
    folder = tmp_path_factory.mktemp("pairs")
    endings = {"V;PST": "ed", "V;V.PTCP;PRS": "ing"}
    lines = [f"{verb}\t{verb}{ending}\t{tags}\n" for verb in VERBS for tags, ending in endings.items()]
    (folder / "dev.tsv").write_text("".join(lines[::11]), encoding="utf-8")
    kept = [line for i, line in enumerate(lines) if i % 11]
    (folder / "train.tsv.gz").write_bytes(gzip.compress("".join(kept).encode()))
    return folder


def test_language_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. the dog sat on the log. " * 60, encoding="utf-8")
    model = tmp_path / "model.safetensors"
    args = ["--train", text, "--model", model, "--epochs", 2, "--steps", 30, "--learning-rate", 0.02, "--dropout", 0]
    printed = output("transformer_lm.py", *args, *TINY_LM, cwd=tmp_path)
    first, second = numbers(r"^epoch .*dev bits a character ([\d.]+)$", printed)[:2]
    assert second < first
    assert second < 1.5
    write = ["write", "the ca", "--model", model, "--length", 30, "--texts", 2]
    written = output("transformer_lm.py", *write, cwd=tmp_path).splitlines()
    assert len(written) == 2
    assert all(line.startswith("the ca") and len(line) == 36 for line in written)
    assert output("transformer_lm.py", *write, cwd=tmp_path).splitlines() == written


def test_language_model_learns_from_what_python_ships(tmp_path: Path) -> None:
    args = ["--epochs", 2, "--steps", 1, "--context", 400, "--batch", 1, *TINY_LM[:8]]
    printed = output("transformer_lm.py", *args, cwd=tmp_path)
    assert numbers(r"^(\d+) characters to learn from", printed)[0] > 100_000
    assert "epoch 1: " in printed


def test_writing_is_what_the_whole_text_gives(tmp_path: Path) -> None:
    """At a temperature near 0, the cache gives the same best characters as computing from the whole text."""
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven. " * 40, encoding="utf-8")
    check = """
import sys, runpy
program = runpy.run_path(sys.argv[1])
import numpy as np
import dynet_cy as dy
model = dy.load_network("model", program["LanguageModel"]).eval()
(written,) = model.write("one tw", 1, 25, 1e-4)
for end in range(6, 31):
    dy.renew_cg()
    scores = model.out(model.layers(model.vectors(model.encode(written[:end])), causal=True)).npvalue()[:, -1]
    scores[0] = -np.inf
    assert written[end] == model.sizes["characters"][int(scores.argmax()) - 1], (end, written)
print("same")
"""
    args = ["--train", text, "--model", tmp_path / "model", "--epochs", 1, "--steps", 30, "--learning-rate", 0.02]
    output("transformer_lm.py", *args, *TINY_LM, cwd=tmp_path)
    (tmp_path / "check.py").write_text(check, encoding="utf-8")
    command = [sys.executable, "check.py", str(EXAMPLES / "transformer_lm.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "same\n", done.stderr


def test_inflects(pairs: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    args = ["--train", pairs / "train.tsv.gz", "--dev", pairs / "dev.tsv", "--model", model, "--epochs", 30]
    more = ["--batch", 8, "--learning-rate", 0.005, "--dropout", 0, *TINY_INFLECTOR]
    printed = output("transformer_inflection.py", *args, *more, cwd=tmp_path)
    accuracies = numbers(r"^epoch \d+: .*dev accuracy ([\d.]+)%$", printed)
    assert len(accuracies) == 30
    assert max(accuracies) > 80
    assert re.search(r"^best model, beam of 5: dev accuracy [\d.]+% in", printed, re.M)
    done = run("transformer_inflection.py", "inflect", "--model", model, cwd=tmp_path, stdin="wadish V;PST\n")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\w+\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transformer_lm.py", "write", "--model", "none"], "write needs a beginning"),
        (["transformer_lm.py", "write", "a", "--model", "none"], "none"),
        (["transformer_lm.py", "--train", "short.txt"], "short.txt: 10 characters, which is too short"),
        (["transformer_lm.py", "--train", "bytes.txt"], "bytes.txt: 'utf-8' codec can't decode"),
        (["transformer_lm.py", "--train", "bytes.txt.gz"], "bytes.txt.gz: not a whole gzip file"),
        (["transformer_inflection.py", "--train", "short.txt"], "short.txt, line 1: expected lemma, form and tags"),
        (["transformer_inflection.py", "inflect", "--model", "none"], "none"),
    ],
)
def test_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("ten signs.", encoding="utf-8")
    (tmp_path / "bytes.txt").write_bytes(b"\xfd\xfe" * 10)
    (tmp_path / "bytes.txt.gz").write_bytes(b"\x1f\x8b\xfd" * 10)
    said = refused(*arguments, cwd=tmp_path)
    assert said.startswith(f"{arguments[0]}: ")
    assert message in said
