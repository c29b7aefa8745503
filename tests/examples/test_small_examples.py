"""The other examples, at a small size, each run as its user would run it."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest
from programs import numbers, output, run

pytest.importorskip("tqdm", reason="the examples show their progress with tqdm")


def test_xor(tmp_path: Path) -> None:
    text = output("xor.py", cwd=tmp_path)
    outputs = numbers(r"^\d xor \d = ([\d.]+) ", text)
    assert [round(x) for x in outputs] == [0, 1, 1, 0]
    assert numbers(r"^step 2000: mean loss ([\d.]+)$", text)[0] < 0.1


# -- rnnlm ---------------------------------------------------------------------------------------

DRY = ["--dropout", 0, "--samples", 0]
SMALL_LM = ["--dim", 16, "--hidden", 32, "--batch", 8, "--learning-rate", 0.02]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of a small grammar, whose verbs agree with their subjects some words before."""
    rng = random.Random(1)
    lines = []
    for _ in range(160):
        ending = rng.choice(["", "s"])
        lines.append(f"the {'old ' * rng.randrange(4)}dog{ending} bark{'' if ending else 's'}")
    path = tmp_path_factory.mktemp("text") / "text.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


@pytest.mark.parametrize("unit", ["word", "letter"])
def test_rnnlm(text: Path, tmp_path: Path, unit: str) -> None:
    found = output(
        "rnnlm.py", "--train", text, "--unit", unit, "--epochs", 4, "--dropout", 0.1, *SMALL_LM, cwd=tmp_path
    )
    perplexities = numbers(r"^epoch \d: .*, \d+ \w+/s, dev perplexity ([\d.]+)$", found)
    assert len(perplexities) == 4
    # The entropy of a sentence is that of 2 endings and 4 numbers of "old": 8 ** (1 / 5.5 words).
    assert perplexities[-1] < (1.8 if unit == "word" else 1.4)
    samples = re.findall(r"^sample: (.*)$", found, re.M)
    assert len(samples) == 3
    if unit == "word":
        assert all(re.fullmatch(r"the( old){0,5} dogs? barks?", sample) for sample in samples)


def test_rnnlm_ways_to_batch_agree(text: Path, tmp_path: Path) -> None:
    found = {}
    for batching in ("auto", "manual"):
        args = ["--train", text, "--dev", text, "--limit", 100, "--epochs", 2, *SMALL_LM, *DRY]
        printed = output("rnnlm.py", *args, "--batching", batching, cwd=tmp_path)
        found[batching] = numbers(r"(?:loss|dev perplexity) ([\d.]+)", printed)
    assert len(found["auto"]) == 5  # two of each epoch, and the best
    assert found["auto"] == pytest.approx(found["manual"], rel=1e-2)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no words"), (b"\xff\n", "not UTF-8"), (b"one\n", "one sentence only")],
)
def test_rnnlm_bad_text(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    done = run("rnnlm.py", "--train", path, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"rnnlm.py: {path}: ")
    assert message in done.stderr
