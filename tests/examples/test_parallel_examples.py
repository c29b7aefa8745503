"""The examples that train with several processes, at small sizes, started in every way."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_data import write_treebank
from programs import EXAMPLES, refused

BESIDE = Path(sys.executable).with_name("mpiexec")
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and (BESIDE.exists() or shutil.which("mpiexec") is not None)
LAUNCH = [sys.executable, "-m", "dynet_cy.launch", "-n", "2"]
STARTERS = {
    "alone": [sys.executable],
    "sync": LAUNCH,
    "async": [*LAUNCH, "--mode", "async"],
    "mpi": [*LAUNCH, "--backend", "mpi"],
}
WAYS = [
    pytest.param(way, marks=pytest.mark.skipif(way == "mpi" and not HAS_MPI, reason="needs mpi4py and an MPI library"))
    for way in STARTERS
]


def train(way: str, script: str, *args: object, cwd: Path) -> str:
    done = subprocess.run(
        [*STARTERS[way], str(EXAMPLES / "parallel" / script), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def best(text: str) -> float:
    found = re.search(r"best dev accuracy ([\d.]+)% after epoch \d+, model saved", text)
    assert found, text
    return float(found[1])


@pytest.fixture
def treebank(tmp_path: Path) -> list[object]:
    write_treebank(tmp_path / "train.conllu.gz", 61, seed=1)
    write_treebank(tmp_path / "dev.conllu", 13, seed=2)
    sizes = ["--word-dim", 16, "--letter-dim", 8, "--letter-hidden", 8, "--hidden", 16, "--learning-rate", 0.02]
    return ["--train", "train.conllu.gz", "--dev", "dev.conllu", *sizes]


@pytest.mark.parametrize("way", WAYS)
def test_tagger(tmp_path: Path, treebank: list[object], way: str) -> None:
    batch = 4 if way in ("sync", "mpi") else 8
    text = train(way, "train_tagger.py", *treebank, "--epochs", 6, "--batch", batch, cwd=tmp_path)
    assert text.count("best dev accuracy") == 1
    assert best(text) > 90
    assert len(re.findall(r"epoch \d+: loss [\d.]+, [\d.]+ s, \d+ words/s, dev accuracy", text)) <= 6
    tagged = subprocess.run(
        [sys.executable, str(EXAMPLES / "tagger.py"), "tag", "--model", "runs/tagger.safetensors"],
        cwd=tmp_path,
        input="the dog sees a cat .",
        capture_output=True,
        text=True,
        check=True,
    )
    assert tagged.stdout == "the/DET dog/NOUN sees/VERB a/DET cat/NOUN ./PUNCT\n"


@pytest.mark.parametrize("way", WAYS)
def test_tree_lstm(tmp_path: Path, way: str) -> None:
    batch = 10 if way in ("sync", "mpi") else 20
    options = ["--limit", 1000, "--word-dim", 16, "--hidden", 24, "--learning-rate", 0.02, "--epochs", 4]
    text = train(way, "train_tree_lstm.py", *options, "--batch", batch, cwd=tmp_path)
    assert best(text) > 60  # of 5 labels
    (tmp_path / "trees").write_text("(0 (0 very) (0 good))\n", encoding="utf-8")
    labelled = subprocess.run(
        [sys.executable, str(EXAMPLES / "tree_lstm.py"), "label", "trees", "--model", "runs/tree_lstm.safetensors"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"\(\d \(2 very\) \(3 good\)\)\n", labelled.stdout)


@pytest.mark.parametrize("every", [4, 1000])
def test_going_on(tmp_path: Path, treebank: list[object], every: int) -> None:
    """A run that was killed continues, also with another number of processes, and if no epoch has `every` updates."""
    more = ["--batch", 5, "--checkpoint", "new/point", "--every", every, "--patience", 100, "--epochs", 50]
    command = [*STARTERS["sync"], str(EXAMPLES / "parallel" / "train_tagger.py"), *map(str, [*treebank, *more])]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        found = next(line for line in job.stdout if "epoch 3:" in line)
        job.kill()
    assert found
    text = train("alone", "train_tagger.py", *treebank, *more[:-1], 6, cwd=tmp_path)
    resumed = re.search(r"resuming from new/point: epoch (\d)", text)
    assert resumed, text
    assert int(resumed[1]) >= 3
    assert re.findall(r"^epoch (\d): ", text, re.M)[0] == resumed[1]


WORD = "\ta\ta\tNOUN\t_\t_\t0\troot\t_\t_"  # the columns after the id


@pytest.mark.parametrize(
    ("script", "text", "message"),
    [
        ("train_tagger.py", "1\tthe\tthe\tDET", "line 1: 4 columns separated by tabs, CoNLL-U has 10"),
        ("train_tagger.py", "1" + WORD + "\n3" + WORD, "line 2: word 2 of the sentence has the id '3'"),
        ("train_tagger.py", "1" + WORD, "at least 2 items are needed, not 1; give --dev FILE too"),
        ("train_tree_lstm.py", "(3 (2 very) (3 good))\n(3 (2 very) (3 good)", "line 2: expected one whole tree"),
        ("train_tree_lstm.py", "(3 good) (2 long)", "line 1: expected one whole tree"),
        ("train_tree_lstm.py", "(3 good))", "line 1: a closing bracket without an opening one"),
        ("train_tree_lstm.py", "(7 good)", "line 1: the label '7' is none of"),
        ("train_tree_lstm.py", "(3 (2 a) good)", "line 1: a node of 2 parts"),
    ],
)
def test_bad_files(tmp_path: Path, script: str, text: str, message: str) -> None:
    (tmp_path / "data").write_text(text, encoding="utf-8")
    said = refused(f"parallel/{script}", "--train", "data", cwd=tmp_path)
    assert said.startswith(f"{script}: ")
    assert message in said
