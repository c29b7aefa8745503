"""What is written is read back, or refused when it is written: names, texts, numbers and sizes at their limits."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import loggers
from dynet_cy.data import ConlluSentence, Tree, Vocabulary, parse_tree, read_conllu, read_trees
from dynet_cy.files import checkpoint
from dynet_cy.files.textfile import read_text_model

TEXTS = [
    "a b",
    "\u00a0",
    "\u2028x",
    "\x0b",
    "a\x85b",
    "#",
    "_",
    "-",
    "(",
    ")",
    '"',
    "'",
    ",",
    "\\",
    "é",
    "\U0001f600",
    "0",
    "1-2",
]
TEXTS += [
    "a\tb",
    "a\nb",
    "a\rb",
    "\r",
    "\ufeff",
    "",
    "\ud800",
    "\x00",
    " ",
    " a",
    "a ",
    "NA",
    "nan",
    "-LRB-",
    "x" * 70_000,
]


def refusal(write: Callable[[], object]) -> str:
    """The error of writing, "" if there is none."""
    try:
        write()
    except ValueError as error:
        return str(error)
    return ""


# ---- treebanks


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize(
    "column", ["form", "lemma", "upos", "xpos", "feats", "deprel", "deps", "misc", "comments", "other"]
)
def test_sentences(column: str, text: str, tmp_path: Path) -> None:
    sentence = ConlluSentence(["a", "b"], head=[2, 0])
    if column == "comments":
        sentence.comments = [text]
    elif column == "other":
        sentence.other_lines = [(1, f"1.1\t{text}\t_\t_\t_\t_\t_\t_\t_\t_")]
    else:
        setattr(sentence, column, ["_", text])
    if refused := refusal(lambda: str(sentence)):
        assert "ConlluSentence: " in refused
        return
    written = str(sentence)
    (tmp_path / "t").write_bytes(f"{written}\n".encode())
    assert read_conllu(tmp_path / "t") == [sentence]


@pytest.mark.parametrize(
    "heads",
    [
        [2, 0],
        (2, 0),
        np.array([2, 0]),
        np.array([2, 0], np.uint8),
        [np.int64(2), np.float32(0)],
        [2.0, 0.0],
        np.array([2.0, 0]),
    ],
)
def test_heads(heads: Any, tmp_path: Path) -> None:
    sentence = ConlluSentence(["a", "b"], head=heads)
    assert sentence.head == [2, 0]
    assert all(type(head) is int for head in sentence.head)
    assert sentence.is_tree()
    replaced = dataclasses.replace(ConlluSentence(["a", "b"]), head=heads)
    changed = ConlluSentence(np.array(["a", "b"]))
    changed.head = heads
    for one in (sentence, replaced, changed):
        (tmp_path / "t").write_text(f"{one}\n")
        assert read_conllu(tmp_path / "t", ["HEAD"]) == [sentence]


@pytest.mark.parametrize("head", [1.5, float("nan"), math.inf, "x", np.array([1, 2]), object()])
def test_heads_that_are_none(head: Any) -> None:
    with pytest.raises(ValueError, match="ConlluSentence: a head must be a whole number or None, not "):
        ConlluSentence(["a"], head=[head])
    sentence = ConlluSentence(["a"])
    sentence.head = [head]
    with pytest.raises(ValueError, match="ConlluSentence: a head must be a whole number"):
        str(sentence)


@pytest.mark.parametrize("head", [-1, 3, np.int64(7)])
def test_heads_of_no_word(head: Any) -> None:
    with pytest.raises(ValueError, match=f"head {head} is not a word of the sentence, of 2"):
        str(ConlluSentence(["a", "b"], head=[head, 0]))


def test_sentences_of_other_types() -> None:
    for column, message in ((["NOUN", 3], "upos of word 2 must be text, not int"), ("NV", "upos must be a list")):
        with pytest.raises(TypeError, match=message):
            str(ConlluSentence(["a", "b"], upos=column))
    sentence = ConlluSentence(["a", "b"])
    sentence.upos = ["X"]
    with pytest.raises(ValueError, match="2 words, but 1 items in upos"):
        str(sentence)
    assert str(ConlluSentence(["a"], upos=[None])) == "1\ta\t_\t_\t_\t_\t_\t_\t_\t_\n"


@pytest.mark.parametrize(
    "line", [(3, "3.1"), (1, "2.1"), (1, "1-2"), (0, "1-3"), (1, "3"), (0, "2-1"), (1, "1.1\t_"), (1, "1.1\n")]
)
def test_other_lines_that_do_not_belong_there(line: tuple[int, str]) -> None:
    sentence = ConlluSentence(["a", "b"], other_lines=[(line[0], line[1] + 9 * "\t_")])
    with pytest.raises(ValueError, match="ConlluSentence: "):
        str(sentence)
    with pytest.raises(ValueError, match="a comment must begin with '#', not '# global.columns = ID"):
        str(ConlluSentence(["a"], comments=["# global.columns = ID FORM"]))


# ---- trees


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize("place", ["label", "word", "inner"])
def test_trees(place: str, text: str, tmp_path: Path) -> None:
    inner = Tree(text if place == "inner" else "B", (text if place == "word" else "b",))
    tree = Tree(text if place == "label" else "A", ("a", inner))
    if refused := refusal(lambda: str(tree)):
        assert "brackets in words are written -LRB- and -RRB-" in refused
        assert not text or set(text) & set("() \t\r\n\ud800")
        return
    written = str(tree)
    (tmp_path / "t").write_bytes(f"{written}\n".encode())
    assert read_trees(tmp_path / "t") == [tree] == [parse_tree(written)]


@pytest.mark.parametrize(
    "tree", [Tree("S", ()), Tree("", ("a",)), Tree("", (Tree("A", ("a",)),)), Tree("S", (Tree("", ("a", "b")),))]
)
def test_trees_that_cannot_be_written(tree: Tree) -> None:
    with pytest.raises(ValueError, match="Tree: "):
        str(tree)


# ---- models


@pytest.mark.parametrize("extra", [
    {0: "a"}, {"labels": {0: "good"}}, {"a": [{"b": {None: 1}}]}, {"a": ({True: 1},)}, {1: "a", "1": "b"}, {1.5: 2},
    {"a": {1, 2}}, {"a": np.arange(2)}, {"a": 10**500}, {"a": 10**5000}, {"a": b"x"},
])  # fmt: skip
def test_extra_that_json_would_change(extra: dict[Any, Any], tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    model.add_parameters(2)
    trainer = dy.AdamTrainer(model)
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    for save in (
        lambda: dy.save_safetensors(path, model, extra=extra),
        lambda: dy.parallel.save_checkpoint(path, model, trainer, extra=extra),
        lambda: dy.EarlyStopping(model, path=path).report(0.5, extra=extra),
    ):
        with pytest.raises(TypeError, match="cannot be kept: "):
            save()
    assert path.read_bytes() == b"old"


def test_an_extra_that_is_nested_too_deep(tmp_path: Path) -> None:
    extra: dict[str, Any] = {}
    for _ in range(100_000):
        extra = {"a": extra}
    with pytest.raises(TypeError, match="cannot be kept: "):
        dy.save_safetensors(tmp_path / "m", dy.ParameterCollection(), extra=extra)


@pytest.mark.parametrize("extra", [
    {}, {"": ""}, {text: text for text in TEXTS}, {"a": math.inf, "b": -0.0, "c": 5e-324, "d": 2**63},
    {"a": [[], {}, None, True]},
    {np.str_("a"): np.float64(0.1)},
])  # fmt: skip
def test_extra_that_is_read_back(extra: dict[str, Any], tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    model.add_parameters(2)
    dy.save_safetensors(tmp_path / "m", model, extra=extra)
    assert dy.read_extra(tmp_path / "m") == extra
    assert dy.load_safetensors(tmp_path / "m", model) == extra


@pytest.mark.parametrize(
    "name", [*TEXTS, "y" * 65_000, "z" * 65_535, "{2}", "W {2} 17 ZERO_GRAD", "é" * 40_000], ids=ascii
)
@pytest.mark.parametrize("way", ["text", "safetensors", "pair"])
def test_names_of_parameters(way: str, name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "m")

    def save(model: dy.ParameterCollection, p: dy.Parameters) -> None:
        if way == "pair":
            dy.save(path, [p])
        elif way == "text":
            model.save(path)
        else:
            dy.save_safetensors(path, model)

    model, other = dy.ParameterCollection(), dy.ParameterCollection()
    try:
        p = model.add_parameters(2, name=name, init=3)
        q = other.add_parameters(2, name=name, init=0)
    except (ValueError, UnicodeEncodeError):
        return
    if refused := refusal(lambda: save(model, p)):
        assert "codec" not in refused or "name" in refused
        assert not Path(path).exists()
        return
    if way == "pair":
        (q,) = dy.load(path, dy.ParameterCollection())
    elif way == "text":
        other.populate(path)
        assert other.populate_by_name(path).unexpected == []
    else:
        dy.load_safetensors(path, other)
    assert q.as_array().tolist() == [3, 3]


@pytest.mark.parametrize("grads", [False, True])
def test_nothing_is_appended_to_a_part_of_a_model(grads: bool, tmp_path: Path) -> None:
    model, other, path = dy.ParameterCollection(), dy.ParameterCollection(), tmp_path / "m"
    for name in ("W", "V"):
        p = model.add_parameters((2, 3), name=name)
        if grads:
            dy.renew_cg()
            dy.sum_elems(p).backward()
    other.add_parameters(2, name="b")
    model.save(str(path))
    content = path.read_bytes()
    whole = content.index(b"#Parameter# /V")
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        refused = refusal(lambda: other.save(str(path), append=True))
        if refused:
            assert path.read_bytes() == content[:size]
            assert str(path) in refused
        else:
            ends = (whole, len(content))  # of entries, whose last blank and line end may be missing
            assert size == 0 or any(end - 2 <= size <= end for end in ends)
            assert len(list(read_text_model(path))) == 1 + sum(size >= end - 2 for end in ends)
    path.write_bytes(gzip.compress(content))
    with pytest.raises(dy.ModelFileError, match="compressed by gzip; nothing can be appended"):
        other.save(str(path), append=True)


def test_a_header_that_no_program_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_LARGEST_HEADER", 5_000)
    model = dy.ParameterCollection()
    dy.save_safetensors(tmp_path / "m", model, extra={"a": "x" * 1_000})
    with pytest.raises(ValueError, match="and a safetensors file may have 5000; keep large data"):
        dy.save_safetensors(tmp_path / "m", model, extra={"a": "x" * 5_000})
    assert dy.read_extra(tmp_path / "m") == {"a": "x" * 1_000}


# ---- vocabularies


@pytest.mark.parametrize("word", TEXTS, ids=ascii)
def test_words(word: str, tmp_path: Path) -> None:
    for vocabulary in (Vocabulary([word, "a"]), Vocabulary(["a"], unknown=word), Vocabulary(special=[word])):
        refused = refusal(lambda: vocabulary.save(tmp_path / "v"))  # noqa: B023 - called at once
        if word == "\ud800":
            assert "a word cannot be written" in refused
        else:
            assert Vocabulary.load(tmp_path / "v") == vocabulary


def test_counts(tmp_path: Path) -> None:
    vocabulary = Vocabulary({"a": 2**63 - 1, "b": 0}, min_count=0)
    vocabulary.save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v") == vocabulary
    with pytest.raises(ValueError, match=r"Vocabulary.save: .*words\.a is 9223372036854775808"):
        Vocabulary({"a": 2**63}).save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v") == vocabulary


# ---- loggers


def rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
@pytest.mark.parametrize("kind", [loggers.CSV, loggers.JSONL])
def test_texts_and_names_of_values(kind: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{kind.__name__.lower()}"
    refused = ("", "\ud800", *("\0" if kind is loggers.CSV else ""))
    with kind(path) as log:
        log.log({"loss": 0.5}, 1)
        for write in (lambda: log.log_text("sample", text, 2), lambda: log.log({text: 0.25}, 3)):
            try:
                write()
            except ValueError:
                assert text in refused
        log.log({"loss": 0.125}, 4)
    with kind(path) as log:
        log.log({"loss": 0.0625}, 5)
    found = rows(path)
    assert [float(row["loss"]) for row in found if row.get("loss")] == [0.5, 0.125, 0.0625]
    if text not in refused:
        assert [row["sample"] for row in found if row.get("sample")] == [text]
        assert [float(row[text]) for row in found if row.get(text)] == [0.25]


@pytest.mark.parametrize("kind", [loggers.CSV, loggers.JSONL])
def test_names_that_are_taken(kind: Any, tmp_path: Path) -> None:
    with kind(tmp_path / "run") as log:
        for name in ("step", "artefact", ""):
            with pytest.raises(ValueError, match="cannot be the name of a value"):
                log.log({name: 1}, 1)
        with pytest.raises(TypeError, match="a name must be text, not int"):
            log.log({1: 1}, 1)


@pytest.mark.parametrize("artefacts", [1, 2])
def test_artefacts_stand_in_the_rows_of_their_steps(artefacts: int, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    (tmp_path / "model").write_text("")
    with loggers.CSV(path) as log:
        log.log({"loss": 0.5}, 1)
        for _ in range(artefacts):
            log.log_artefact(tmp_path / "model")
        log.log({"loss": 0.25}, 2)
    found = rows(path)
    assert [row["step"] for row in found] == ["1"] * artefacts + ["2"]
    assert [row["artefact"] for row in found] == [str(tmp_path / "model")] * artefacts + [""]
    pandas = pytest.importorskip("pandas")
    assert pandas.read_csv(path)["step"].tolist() == [1] * artefacts + [2]


def test_an_artefact_before_all_steps(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with loggers.CSV(tmp_path / "run.csv") as log:
        log.log_artefact(tmp_path / "model")
        log.log({"loss": 0.5}, 1)
    assert [(row["step"], row["loss"]) for row in rows(tmp_path / "run.csv")] == [("0", ""), ("1", "0.5")]


@pytest.mark.parametrize("kind", [loggers.CSV, loggers.JSONL])
def test_a_file_that_an_earlier_run_left_half_written(kind: Any, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / f"run.{kind.__name__.lower()}"
    with kind(whole) as log:
        log.log({"loss": 0.5}, 1)
        log.log_text("sample", 'two\n"lines", 3', 2)
        log.log({"loss": 0.25}, 3)
    content = whole.read_bytes()
    ends = [i + 1 for i in range(len(content)) if content[i : i + 1] == b"\n" and content.count(b'"', 0, i) % 2 == 0]
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        if size and size not in ends:
            with pytest.warns(UserWarning, match="its last line is not whole, and is left out: ") as caught:
                log = kind(path)
            assert len(caught) == 1
        else:
            log = kind(path)
        log.log({"loss": 0.125}, 4)
        found = rows(path)
        assert (float(found[-1]["step"]), float(found[-1]["loss"])) == (4, 0.125)
        assert len(found) <= 4
        for row in found[:-1]:
            assert float(row["loss"] or 0) in (0, 0.5, 0.25) if row.get("loss") else row["sample"] == 'two\n"lines", 3'
