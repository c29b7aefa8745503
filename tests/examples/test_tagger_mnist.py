"""The tagger and the digit classifier, at small sizes, run as users run them."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from programs import EXAMPLES, refused, run

import dynet_cy as dy

pytest.importorskip("tqdm", reason="the examples need tqdm")


# -- tagger --------------------------------------------------------------------------------------

SMALL = ["--word-dim", 16, "--letter-dim", 8, "--letter-hidden", 8, "--hidden", 16, "--learning-rate", 0.02]


def train_tagger(treebank: Path, model: Path, *more: object, prelude: str = "") -> subprocess.CompletedProcess[str]:
    files = ["--train", treebank / "train.conllu.gz", "--dev", treebank / "dev.conllu"]
    args = [*files, "--model", model, "--epochs", 6, "--batch", 8, *SMALL, *more]
    return run("tagger.py", *args, cwd=treebank, prelude=prelude)


@pytest.fixture(scope="module")
def model(treebank: Path) -> Path:
    done = train_tagger(treebank, treebank / "model.safetensors")
    assert done.returncode == 0, done.stderr
    assert "60 training and 12 dev sentences" in done.stdout
    accuracies = [float(x) for x in re.findall(r"^epoch \d+: .*dev accuracy ([\d.]+)%$", done.stdout, re.M)]
    assert accuracies
    assert max(accuracies) > 95
    assert re.search(r"^\w+/DET \w+/NOUN \w+/VERB \w+/DET \w+/NOUN [.!]/PUNCT$", done.stdout, re.M)
    return treebank / "model.safetensors"


def tag(model: Path, text: str, *files: object) -> str:
    done = run("tagger.py", "tag", "--model", model, *files, cwd=model.parent, stdin=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tagger_tags_the_standard_input(model: Path) -> None:
    text = "every dog likes the çiçek .\n\na cat finds the dog !\n"
    assert tag(model, text).split("\n") == [
        "every/DET dog/NOUN likes/VERB the/DET çiçek/NOUN ./PUNCT",
        "",
        "a/DET cat/NOUN finds/VERB the/DET dog/NOUN !/PUNCT",
        "",
    ]


def test_tagger_tags_a_file_with_unknown_words_and_letters(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the 犬 sees the tree .\n", encoding="utf-8")
    assert re.fullmatch(
        r"the/DET 犬/[A-Z]+ sees/[A-Z]+ the/DET tree/NOUN \./PUNCT\n", tag(model, "", tmp_path / "text")
    )


def test_tagger_in_another_program(model: Path, tmp_path: Path) -> None:
    """The ONNX file gives the same tags, for a batch of sentences with frequent, rare and unknown words."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    sentences = [
        ["every", "dog", "likes", "the", "çiçek", "."],
        ["the", "犬", "sees"],
        ["a", "cat", "finds", "the", "tree"],
    ]
    text = "".join(" ".join(words) + "\n" for words in sentences)
    (tmp_path / "text").write_text(text, encoding="utf-8")
    expected = tag(model, "", tmp_path / "text", "--onnx", tmp_path / "tagger.onnx").splitlines()
    tagger = dy.load_network(model, runpy.run_path(str(EXAMPLES / "tagger.py"))["Tagger"])
    session = runtime.InferenceSession(str(tmp_path / "tagger.onnx"))
    (scores,) = session.run(None, tagger.arrays(sentences))
    for words, line, of in zip(sentences, expected, scores):
        tags = tagger.tags.decode(of[: len(words)].argmax(1))
        assert line == " ".join(f"{word}/{tag}" for word, tag in zip(words, tags))


def test_tagger_same_seed_same_training(treebank: Path, tmp_path: Path) -> None:
    found = [train_tagger(treebank, tmp_path / name, "--epochs", 2).stdout for name in "ab"]
    losses = [re.findall(r"loss ([\d.]+)", text) for text in found]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


def test_tagger_stops_early(treebank: Path, tmp_path: Path) -> None:
    done = train_tagger(treebank, tmp_path / "model", "--epochs", 50, "--patience", 2)
    assert done.returncode == 0, done.stderr
    assert "no better for 2 epochs: stopping" in done.stdout
    assert done.stdout.count("dev accuracy") < 50


def test_tagger_interrupted_while_saving_leaves_the_old_model(treebank: Path, model: Path) -> None:
    """The process dies just before the new file is renamed."""
    text = "every dog likes the çiçek .\n"
    before, content = tag(model, text), model.read_bytes()
    prelude = "import os; os.rename = os.replace = lambda *a, **k: os._exit(9)"
    done = train_tagger(treebank, model, "--seed", 7, prelude=prelude)
    assert done.returncode == 9, done.stderr
    assert model.read_bytes() == content
    assert tag(model, text) == before


def test_tagger_notices_a_damaged_file(treebank: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    assert train_tagger(treebank, model, "--epochs", 1).returncode == 0
    with model.open("ab") as file:
        file.write(b"1 2 3\n")
    said = refused("tagger.py", "tag", "--model", model, cwd=tmp_path, stdin="a dog\n")
    assert re.fullmatch(r"tagger\.py: .*not a safetensors file.*\n", said.splitlines(True)[-1])


def test_tagger_draws_its_curves(treebank: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="curves are drawn by matplotlib")
    done = train_tagger(treebank, tmp_path / "model.safetensors", "--epochs", 2, "--curves", tmp_path / "curves.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.svg").read_text(encoding="utf-8").count('<g id="axes_') == 2


GOOD = "1\tdog\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.encode() + b"2\tsees\tVERB\n", "line 2: 3 columns separated by tabs, CoNLL-U has 10"),
        (GOOD.encode() * 2, "line 2: word 2 of the sentence has the id '1' (is a blank line missing?)"),
        (GOOD.replace("NOUN", "_").encode(), "line 1: no UPOS for the word 'dog'"),
        (GOOD.encode() + b"\n" + GOOD.encode("utf-16-le"), "line 3: "),
        (GOOD.replace("dog", "\xff").encode("latin-1"), "line 1: 'utf-8' codec can't decode byte 0xff"),
        (b"# nothing\n", "no sentence in 1 lines"),
        (GOOD.encode(), "at least 2 items are needed, not 1; give --dev FILE too"),
        (b"", "no sentence in 0 lines"),
    ],
)
def test_tagger_bad_treebank(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.conllu"
    path.write_bytes(content)
    said = refused("tagger.py", "--train", path, cwd=tmp_path)
    assert said.startswith(f"tagger.py: {path}")
    assert message in said
    assert said.count("\n") == 1  # a message, not a traceback
    assert not (tmp_path / "runs").exists()


def test_tagger_cut_gzip(treebank: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.conllu.gz"
    path.write_bytes((treebank / "train.conllu.gz").read_bytes()[:-20])
    said = refused("tagger.py", "--train", path, cwd=tmp_path)
    assert f"{path}, after line " in said
    assert "not a whole gzip file" in said


def test_tagger_missing_files(tmp_path: Path) -> None:
    said = refused("tagger.py", "--train", tmp_path / "none.conllu", cwd=tmp_path)
    assert "none.conllu" in said
    said = refused("tagger.py", "tag", "--model", tmp_path / "none", cwd=tmp_path)
    assert "none" in said


def test_tagger_default_treebank(tmp_path: Path) -> None:
    try:
        metadata.distribution("turkish-treebanks")
    except metadata.PackageNotFoundError:
        pytest.skip("needs turkish-treebanks")
    done = run("tagger.py", "--epochs", 1, *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^epoch 1: .*dev accuracy \d", done.stdout, re.M)
    assert (tmp_path / "runs" / "tagger.safetensors").exists()


# -- mnist ---------------------------------------------------------------------------------------


def accuracies_in(done: subprocess.CompletedProcess[str]) -> list[float]:
    return [float(x) for x in re.findall(r"^epoch \d+: .*test accuracy ([\d.]+)%$", done.stdout, re.M)]


@pytest.mark.parametrize("batching", ["auto", "manual"])
@pytest.mark.parametrize(("model", "epochs"), [("mlp", 8), ("cnn", 3)])
def test_mnist(digits: Path, model: str, epochs: int, batching: str) -> None:
    args = ["--data", digits, "--model", model, "--batching", batching, "--epochs", epochs, "--batch", 16]
    done = run("mnist.py", *args, cwd=digits)
    assert done.returncode == 0, done.stderr
    accuracies = accuracies_in(done)
    assert len(accuracies) == epochs
    assert accuracies[-1] > 90


def test_mnist_on_the_digits_of_sklearn(tmp_path: Path) -> None:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("needs scikit-learn")
    done = run("mnist.py", "--epochs", 3, "--batch", 16, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert accuracies_in(done)[-1] > 80


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("t10k-labels-idx1-ubyte", lambda data: data[:-1], "39 values after the header, which says (40,)"),
        ("t10k-labels-idx1-ubyte", lambda data: b"PNG" + data, "not an IDX file of bytes"),
        ("t10k-labels-idx1-ubyte", lambda data: data[:-1] + b"\x0b", "t10k has the label 11"),
        ("train-images-idx3-ubyte.gz", lambda data: data[:-9], "not a whole gzip file"),
    ],
)
def test_mnist_bad_files(digits: Path, name: str, change: Callable[[bytes], bytes], message: str) -> None:
    path = digits / name
    path.write_bytes(change(path.read_bytes()))
    said = refused("mnist.py", "--data", digits, cwd=digits)
    assert said.startswith("mnist.py: ")
    assert message in said


def test_mnist_missing_files(tmp_path: Path) -> None:
    said = refused("mnist.py", "--data", tmp_path, cwd=tmp_path)
    assert "train-images-idx3-ubyte" in said
