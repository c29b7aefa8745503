"""The text classifier, at a small size, run as users run it."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
from programs import refused, run

pytest.importorskip("tqdm", reason="the examples need tqdm")

SMALL = ["--filters", 8, "--dim", 8, "--widths", 2, 3, "--dropout", 0.1, "--learning-rate", 0.02, "--batch", 8]
GOOD, BAD = ["good", "great", "fine", "superb", "lovely"], ["bad", "awful", "poor", "dreadful", "boring"]
OTHERS = ["the", "a", "film", "story", "was", "is", "rather", "quite"]


def write_texts(path: Path, count: int, seed: int, words: slice) -> Path:
    """Texts of one to eight words; one word shows whether the text is good or bad."""
    rng = random.Random(seed)
    lines = []
    for i in range(count):
        label, telling = [("good", GOOD[words]), ("bad", BAD[words])][i % 2]
        text = [rng.choice(OTHERS) for _ in range(rng.randrange(8))]
        text.insert(rng.randrange(len(text) + 1), rng.choice(telling))
        lines.append(f"{label}\t{' '.join(text)}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training texts, and texts in which other words have the same meaning."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder / "train.tsv", 80, 1, slice(0, 3))
    write_texts(folder / "same.tsv", 20, 2, slice(0, 3))
    write_texts(folder / "dev.tsv", 20, 2, slice(3, 5))
    rng = random.Random(5)
    rows = []
    for side, words in [(1, GOOD), (-1, BAD), (0, OTHERS)]:
        rows += [f"{word} " + " ".join(f"{side + rng.uniform(-0.2, 0.2):.3f}" for _ in range(4)) for word in words]
    (folder / "tiny.vec").write_text(f"{len(rows)} 4\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def train(texts: Path, model: Path, dev: str, *more: object) -> subprocess.CompletedProcess[str]:
    files = ["--train", texts / "train.tsv", "--dev", texts / dev]
    return run("text_classifier.py", *files, "--model", model, "--epochs", 8, *SMALL, *more, cwd=texts)


def best(done: subprocess.CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stderr
    return float(re.findall(r"^best dev accuracy ([\d.]+)%", done.stdout, re.M)[0])


def test_random_vectors(texts: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    assert best(train(texts, model, "same.tsv")) == 100
    done = run("text_classifier.py", "classify", "--model", model, cwd=tmp_path, stdin="a great film\n\nwas bad\n")
    assert done.returncode == 0, done.stderr
    first, empty, second, _ = done.stdout.split("\n")
    assert (first, second) == ("good\ta great film", "bad\twas bad")
    assert re.fullmatch(r"(good|bad)\t", empty)


@pytest.mark.parametrize("more", [[], ["--tune"]])
def test_vectors_know_words_that_no_text_has(more: list[str], texts: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    done = train(texts, model, "dev.tsv", "--vectors", texts / "tiny.vec", *more)
    assert "100% have vectors" in done.stdout
    assert best(done) >= 95
    done = run("text_classifier.py", "classify", "--model", model, cwd=tmp_path, stdin="the story is dreadful\n")
    assert done.stdout == "bad\tthe story is dreadful\n"


def test_errors(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "text.tsv").write_text("good\tfine\nno label here\n")
    for args, message in [
        (["--train", tmp_path / "text.tsv"], "line 2: expected label and text, separated by tabs"),
        (["classify", "--model", tmp_path / "none"], "none"),
        (["--train", texts / "train.tsv", "--vectors", tmp_path / "text.tsv"], "text.tsv"),
    ]:
        said = refused("text_classifier.py", *args, cwd=tmp_path)
        assert said.startswith("text_classifier.py: ")
        assert message in said
