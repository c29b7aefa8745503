"""The other examples, at small sizes, run as users run them."""

from __future__ import annotations

import gzip
import random
import re
from importlib import metadata
from pathlib import Path

import pytest
from programs import numbers, output, refused, run

pytest.importorskip("tqdm", reason="the examples need tqdm")


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
    """Sentences of a small grammar in which verbs agree with a subject some words before."""
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
    # A sentence chooses among 2 endings and 4 counts of "old": perplexity 8 ** (1 / 5.5 words).
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
    assert len(found["auto"]) == 5  # two for each epoch, and the best
    assert found["auto"] == pytest.approx(found["manual"], rel=1e-2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no words"),
        (b"\xff\n", "line 1: 'utf-8' codec can't decode byte 0xff"),
        (b"one\n", "at least 2 items are needed, not 1"),
    ],
)
def test_rnnlm_bad_text(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    said = refused("rnnlm.py", "--train", path, cwd=tmp_path)
    assert said.startswith("rnnlm.py: ")
    assert str(path) in said
    assert message in said


# -- seq2seq -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inflector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a language with three letters: the plural doubles the first letter, the past ends in -d."""
    folder = tmp_path_factory.mktemp("inflector")
    rng = random.Random(1)
    lines = []
    for _ in range(400):
        lemma = "".join(rng.choices("abc", k=rng.randint(1, 4)))
        form, tags = rng.choice([(lemma[0] + lemma, "N;PL"), (lemma + "d", "V;PST")])
        lines.append(f"{lemma}\t{form}\t{tags}\n")
    (folder / "train.tsv").write_text("".join(lines), encoding="utf-8")
    sizes = ["--dim", 16, "--hidden", 24, "--attention", 16, "--epochs", 8, "--dropout", 0, "--learning-rate", 0.02]
    found = output("seq2seq.py", "--train", "train.tsv", "--model", "model", *sizes, cwd=folder)
    assert "360 training and 40 dev pairs" in found
    assert max(numbers(r"^epoch \d: .*dev accuracy ([\d.]+)%$", found)) > 80
    assert numbers(r"^best model, beam of 5: dev accuracy ([\d.]+)%", found)[0] > 80
    return folder


@pytest.mark.parametrize("beam", [1, 3])
def test_seq2seq_inflects(inflector: Path, beam: int) -> None:
    args = ["inflect", "--model", "model", "--beam", beam]
    done = run("seq2seq.py", *args, cwd=inflector, stdin="abc N;PL\nbca V;PST\ncab N;PL\n")
    assert done.returncode == 0, done.stderr
    right = [a == b for a, b in zip(done.stdout.split(), ["aabc", "bcad", "ccab"])]
    assert sum(right) >= 2
    assert len(right) == 3


def test_seq2seq_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("think\tthought\tV;PST\nthink\tthought\n", encoding="utf-8")
    said = refused("seq2seq.py", "--train", path, cwd=tmp_path)
    assert said.startswith(f"seq2seq.py: {path}, line 2: expected lemma, form and tags")


def test_seq2seq_on_lemminflect(tmp_path: Path) -> None:
    try:
        metadata.distribution("lemminflect")
    except metadata.PackageNotFoundError:
        pytest.skip("the default words come with the extra [examples]: lemminflect")
    found = output("seq2seq.py", "--pairs", 300, "--epochs", 1, "--beam", 2, cwd=tmp_path)
    assert "300 training and 30 dev pairs" in found
    assert found.count(" -> ") == 5


# -- vae and early_exit --------------------------------------------------------------------------


def test_vae(digits: Path) -> None:
    args = [
        "--data",
        ".",
        "--epochs",
        40,
        "--batch",
        16,
        "--hidden",
        32,
        "--code",
        4,
        "--learning-rate",
        0.01,
        "--draw",
        3,
    ]
    found = output("vae.py", *args, cwd=digits)
    elbos = numbers(r"^epoch \d+: .*, ELBO ([-\d.]+)$", found)
    assert len(elbos) == 40
    # In the fixture, 88 pixels are about 0.12 and 8 about 0.85: 35 nats, and 2.3 for the digit.  Without a code: 47.
    assert elbos[0] < -46
    assert -42 < elbos[-1] < -36
    parts = re.findall(r"^epoch .*test pixels ([\d.]+), KL ([\d.]+), ELBO ([-\d.]+)$", found, re.M)
    assert all(float(c) == pytest.approx(-float(a) - float(b), abs=0.02) for a, b, c in parts)
    assert float(parts[-1][1]) > 1  # the code carries information about the image
    drawn = found.splitlines()[-12:]
    assert {len(line) for line in drawn} == {3 * 2 * 8 + 2 * 2}


def test_early_exit(digits: Path) -> None:
    args = ["--data", ".", "--epochs", 8, "--layers", 4, "--hidden", 32, "--learning-rate", 0.01]
    found = output("early_exit.py", *args, cwd=digits)
    pattern = r"^threshold ([\d.]+): ([\d.]+) layers an image, accuracy ([\d.]+)%, left after each layer: ([\d ]+)$"
    rows = re.findall(pattern, found, re.M)
    depths = [float(depth) for _, depth, _, _ in rows]
    assert len(rows) == 7
    assert depths == sorted(depths)
    assert depths[0] < 2
    assert depths[-1] == 4
    assert all(sum(map(int, counts.split())) == 40 for *_, counts in rows)
    assert float(rows[3][2]) > 90


# -- reinforce and dqn ---------------------------------------------------------------------------


def test_reinforce(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="needs the environments of gymnasium")
    found = output("reinforce.py", "--episodes", 120, "--report", 40, cwd=tmp_path)
    means = numbers(r"^episode \d+: mean return of the last \d+ ([\d.]+), ", found)
    assert len(means) == 3
    assert means[0] < means[-1]  # a random policy balances the pole for 22 steps
    assert numbers(r"^best actions, 20 new episodes: mean return ([\d.]+),", found)[0] > 40


def test_dqn(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="needs the environments of gymnasium")
    args = ["--steps", 2000, "--warm-up", 200, "--report", 1000, "--every", 1, "--explore", 0.2]
    found = output("dqn.py", *args, cwd=tmp_path)
    assert len(numbers(r"^step \d+: \d+ episodes, mean return of the last \d+ ([\d.]+), of ", found)) == 2
    assert numbers(r"^best actions, 20 new episodes: mean return ([\d.]+),", found)[0] > 40


@pytest.mark.parametrize("script", ["reinforce.py", "dqn.py"])
def test_environments_that_do_not_fit(tmp_path: Path, script: str) -> None:
    pytest.importorskip("gymnasium", reason="needs the environments of gymnasium")
    for name, message in [("Pendulum-v1", "actions must be discrete"), ("None-v0", "None")]:
        said = refused(script, "--env", name, cwd=tmp_path)
        assert said.splitlines()[-1].startswith(f"{script}: {name}: ")
        assert message in said


def test_without_gymnasium(tmp_path: Path) -> None:
    done = run("dqn.py", cwd=tmp_path, prelude="sys.modules['gymnasium'] = None")
    assert done.returncode == 1
    assert done.stderr == "dqn.py: no environments: pip install gymnasium\n"
