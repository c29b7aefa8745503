"""The examples that begin from a pretrained encoder, with a small random one, run as users run them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from made_data import LEXICON, write_encoder
from programs import numbers, output, refused, run
from test_text_classifier import BAD, GOOD, OTHERS, write_texts

import dynet_cy as dy

pytest.importorskip("tqdm", reason="the examples need tqdm")
pytest.importorskip("tokenizers", reason="encoders need the extra [pretrained]")

WORDS = [*(word for group in LEXICON.values() for word in group), *GOOD, *BAD, *OTHERS]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), WORDS)


def test_tagger(encoder: Path, treebank: Path, tmp_path: Path) -> None:
    data = ["--train", treebank / "train.conllu.gz", "--dev", treebank / "dev.conllu"]
    rates = ["--learning-rate", 0.01, "--head-rate", 0.02, "--decay", 0.95, "--batch", 8]
    text = output(
        "finetune_tagger.py", "--encoder", encoder, *data, *rates, "--epochs", 4, "--pool", "mean", cwd=tmp_path
    )
    assert "60 training and 12 dev sentences, 4 tags, <Bert (2 layers of 24" in text
    assert max(numbers(r"^epoch \d: .* words/s, dev accuracy ([\d.]+)%$", text)) > 97
    done = run("finetune_tagger.py", "tag", cwd=tmp_path, stdin="every dog likes the çiçek .\n\nthe cat\n")
    assert done.stdout == "every/DET dog/NOUN likes/VERB the/DET çiçek/NOUN ./PUNCT\n\nthe/DET cat/NOUN\n", done.stderr


def test_parser(encoder: Path, treebank: Path, tmp_path: Path) -> None:
    data = ["--train", treebank / "train.conllu.gz", "--dev", treebank / "dev.conllu"]
    sizes = ["--hidden", 16, "--layers", 1, "--arc-dim", 16, "--label-dim", 16, "--tag-dim", 8, "--batch", 8]
    rates = ["--learning-rate", 0.02, "--encoder-rate", 0.005, "--dropout", 0.1, "--epochs", 4]
    text = output("biaffine_parser.py", "--encoder", encoder, *data, *sizes, *rates, cwd=tmp_path)
    assert max(numbers(r"^epoch \d: .*, LAS ([\d.]+)%$", text)) > 90
    line = "{}\t{}\t_\tDET\t_\t_\t_\t_\t_\t_\n"
    (tmp_path / "text.conllu").write_text(line.format(1, "the") + line.format(2, "unheard-of") + "\n")
    found = output("biaffine_parser.py", "parse", "text.conllu", cwd=tmp_path).splitlines()
    assert sorted(line.split("\t")[6] for line in found if line) in (["0", "1"], ["0", "2"])


def test_classifier(encoder: Path, tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{name}.tsv", n, n, slice(0, 3)) for name, n in [("train", 80), ("dev", 20)]]
    rates = [
        "--learning-rate",
        0.02,
        "--encoder-rate",
        0.01,
        "--dropout",
        0.1,
        "--epochs",
        10,
        "--patience",
        9,
        "--batch",
        8,
    ]
    options = ["--encoder", encoder, "--train", files[0], "--dev", files[1], *rates]
    text = output("text_classifier.py", *options, cwd=tmp_path)
    assert max(numbers(r"dev accuracy ([\d.]+)%", text)) >= 95
    done = run("text_classifier.py", "classify", cwd=tmp_path, stdin="a great film\n\nwas bad\n")
    first, empty, second = done.stdout.splitlines()
    assert (first, second) == ("good\ta great film", "bad\twas bad")
    assert empty in ("good\t", "bad\t")


SENTENCES = ["the film was good", "a cat likes the tree", "every bird finds a story .", "dreadful"]


@pytest.mark.fibers
def test_search(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("".join(f"{sentence}\n\n" for sentence in SENTENCES))
    script = ["semantic_search.py", "--encoder", encoder, "sentences.txt", "--nearest", 2]
    done = run(*script, cwd=tmp_path, stdin=f"{SENTENCES[2]}\nboring\n")
    assert done.returncode == 0, done.stderr
    head, query, best, _, other, *rest = done.stdout.splitlines()
    assert (head, query, best) == ("4 sentences, embeddings of 24 numbers", SENTENCES[2], f" 1.000  {SENTENCES[2]}")
    assert (other, len(rest)) == ("boring", 2)


def transformers_embeddings(folder: Path, texts: list[str]) -> np.ndarray:
    """What sentence-transformers computes: the means of the states of padded texts, divided by their norms."""
    import torch
    from transformers import AutoModel, BertTokenizerFast

    tokenizer = BertTokenizerFast(vocab_file=str(folder / "vocab.txt"))
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()


@pytest.mark.fibers
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_embeddings(encoder: Path, example) -> None:
    bert = dy.pretrained.load(encoder, dy.ParameterCollection())
    search = example("semantic_search").Search(bert)
    with dy.Server(search.embed) as server:
        search.add(server, SENTENCES[:1])
        search.add(server, SENTENCES[1:])
    dy.renew_cg(forward_only=True)
    means = [bert(bert.tokenize(sentence)).npvalue().mean(1) for sentence in SENTENCES]
    expected = np.stack([mean / np.linalg.norm(mean) for mean in means])
    np.testing.assert_allclose(search.vectors, expected, atol=1e-5)
    assert [sentence for _, sentence in search.nearest(expected[2], 4)][0] == SENTENCES[2]
    if all(map(importlib.util.find_spec, ("torch", "transformers"))):
        np.testing.assert_allclose(search.vectors, transformers_embeddings(encoder, SENTENCES), atol=1e-5)


def test_errors(encoder: Path, treebank: Path, tmp_path: Path) -> None:
    data = ["--train", treebank / "train.conllu.gz"]
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "folder").mkdir()
    for script, arguments, message in [
        ("finetune_tagger.py", data, "--encoder FOLDER is needed"),
        ("finetune_tagger.py", [*data, "--encoder", "none"], "there is no file or folder 'none'"),
        ("biaffine_parser.py", [*data, "--encoder", "folder"], "model.safetensors"),
        ("semantic_search.py", ["empty.txt", "--encoder", encoder], "empty.txt: there is no sentence"),
    ]:
        said = refused(script, *arguments, cwd=tmp_path)
        assert said.startswith(f"{script}: ")
        assert message in said
