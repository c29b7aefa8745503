"""`dy.data.Vocabulary`."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dynet_cy.data import Vocabulary

WORDS = ["b", "a", "b", "c", "a", "b", "d"]


def test_numbers() -> None:
    vocabulary = Vocabulary(iter(WORDS), special=["<s>", "</s>"])
    assert vocabulary.words == ("<unk>", "<s>", "</s>", "b", "a", "c", "d")
    assert list(vocabulary) == list(vocabulary.words)
    assert len(vocabulary) == 7
    assert vocabulary.counts == {"b": 3, "a": 2, "c": 1, "d": 1}
    assert [vocabulary[word] for word in vocabulary] == list(range(7))
    assert vocabulary["x"] == vocabulary["<unk>"] == 0
    assert "x" not in vocabulary
    assert "<unk>" in vocabulary
    assert vocabulary.encode(["a", "x", "</s>"]) == [4, 0, 2]
    assert vocabulary.decode(np.array([4, 0, 2])) == ["a", "<unk>", "</s>"]
    assert "7 words, unknown '<unk>'" in repr(vocabulary)


def test_without_an_unknown_word() -> None:
    labels = Vocabulary(["bad", "good"], unknown=None)
    assert labels.encode(["good", "bad"]) == [1, 0]
    with pytest.raises(KeyError, match="'x' is not in the vocabulary"):
        labels["x"]
    with pytest.raises(ValueError, match="there is no unknown word"):
        labels.word_dropout("good", 0.5)
    assert "x" not in labels


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"min_count": 2}, ["b", "a"]),
        ({"min_count": 4}, []),
        ({"max_size": 1}, ["b"]),
        ({"max_size": 3}, ["b", "a", "c"]),  # of equally frequent ones the first
        ({"max_size": 0}, []),
        ({"max_size": 9}, ["b", "a", "c", "d"]),
        ({"max_size": 1, "min_count": 4}, []),
        ({"special": ["a"], "max_size": 2}, ["b", "c"]),  # special words are not counted
        ({"unknown": "b"}, ["a", "c", "d"]),
    ],
)
def test_sizes(options: dict, want: list[str]) -> None:
    for words in (WORDS, Counter(WORDS)):
        assert list(Vocabulary(words, **options).counts) == want


def test_the_most_frequent_words_keep_the_order_of_the_data() -> None:
    assert Vocabulary(["a", "b", "b"], max_size=2).words == ("<unk>", "a", "b")
    assert Vocabulary(dict(Counter(["a", "b", "b"]).most_common())).words == ("<unk>", "b", "a")


def test_word_dropout() -> None:
    vocabulary = Vocabulary({"often": 99, "once": 1})
    rng = random.Random(0)
    share = {w: sum(vocabulary.word_dropout(w, 1.0, rng) for _ in range(5000)) / 5000 for w in ("often", "once", "no")}
    assert share == pytest.approx({"often": 0.01, "once": 0.5, "no": 1}, abs=0.02)
    assert not any(vocabulary.word_dropout("no", 0, rng) for _ in range(100))
    random.seed(4)
    first = [vocabulary.word_dropout("once", 1) for _ in range(50)]
    random.seed(4)
    assert [vocabulary.word_dropout("once", 1) for _ in range(50)] == first
    with pytest.raises(ValueError, match="the rate is -1"):
        vocabulary.word_dropout("once", -1)


def test_words_are_encoded_with_dropout() -> None:
    vocabulary = Vocabulary({"the": 3, "dog": 1})
    words = ["the", "dog", "new"] * 200
    one, two = random.Random(1), random.Random(1)
    want = [0 if vocabulary.word_dropout(word, 0.5, one) else vocabulary[word] for word in words]
    assert vocabulary.encode(words, 0.5, two) == want
    assert want != vocabulary.encode(words) == [1, 2, 0] * 200
    with pytest.raises(ValueError, match="there is no unknown word"):
        Vocabulary(["the"], unknown=None).encode(["the"], 0.5)


ODD = ["tab\there", "new\nline", "\u2028", '"', "\\", "", " ", "犬", "\U0001f415", "\0", "é", "e\u0301", "<unk>"]


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary(WORDS),
        Vocabulary(),
        Vocabulary(ODD, special=["<s>"]),
        Vocabulary(WORDS, unknown=None, special=["b", "z"]),
        Vocabulary({"zero": 0, "many": 10**15}, min_count=0),
        Vocabulary(WORDS, min_count=2, max_size=1, unknown="a"),
    ],
)
def test_saved_and_loaded(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "v")
    for again in (Vocabulary.load(tmp_path / "v"), pickle.loads(pickle.dumps(vocabulary))):
        assert again == vocabulary
        assert again.words == vocabulary.words
        assert list(again.counts.items()) == list(vocabulary.counts.items())
        assert again.encode(ODD[:2]) == vocabulary.encode(ODD[:2]) if vocabulary.unknown else True


def test_comparison() -> None:
    base = Vocabulary(WORDS)
    assert base == Vocabulary(Counter(WORDS))
    assert base != Vocabulary(reversed(WORDS))
    assert base != Vocabulary([*WORDS, "a"])
    assert base != Vocabulary(WORDS, unknown="?")
    assert Vocabulary(["b", "a"], unknown=None) != Vocabulary(["b"], unknown=None, special=["a"])
    assert base != WORDS
    with pytest.raises(TypeError, match="unhashable"):
        hash(base)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v"
    Vocabulary(["a"]).save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="v: a word cannot be written: 'utf-8' codec can't encode"):
        Vocabulary(["\ud800"]).save(path)
    assert path.read_bytes() == before

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        Vocabulary(["b"]).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["v"]


def saved(**changes: object) -> bytes:
    data = {"format": "dynet_cy vocabulary", "version": 1, "unknown": "<unk>", "special": [], "words": {"a": 1}}
    return json.dumps({**data, **changes}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "v, line 1: not a vocabulary: Expecting value"),
        (b'{\n "format":,\n}', "v, line 2: not a vocabulary: Expecting value"),
        (b'{\n\n "\xff": 1}', "line 3: 'utf-8' codec can't decode"),
        (b"[]", "v: not a vocabulary: the vocabulary is a list of 0, not a dictionary"),
        (b'{"words": {"a": 1, "a": 2}}', "v: not a vocabulary: 'a' is there twice"),
        (b"[" * 100000, "v: not a vocabulary: "),
        (b"{}", "the vocabulary has no format"),
        (saved(format="x"), "the vocabulary.format is 'x'"),
        (saved(version=2), "the vocabulary.version is 2, not one of 1"),
        (saved(unknown=3), "the vocabulary.unknown is 3, not text or null"),
        (saved(special="ab"), "the vocabulary.special is 'ab', not a list"),
        (saved(special=["<unk>"]), "the special word '<unk>' is given twice"),
        (saved(words={"a": -1}), "the vocabulary.words.a is -1, not a whole number"),
        (saved(words={"a": True}), "the vocabulary.words.a is True"),
        (saved(words=["a"]), "the vocabulary.words is a list of 1"),
    ],
)
def test_damaged_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(ValueError, match="not a vocabulary") as caught:
        Vocabulary.load(tmp_path / "v")
    assert str(caught.value).startswith(str(tmp_path / "v"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Vocabulary("text"),
            TypeError,
            r"words must be an iterable of words, not str; for letters: list\(text\)",
        ),
        (lambda: Vocabulary([["a", "sentence"]]), TypeError, "words must be strings: unhashable type"),
        (lambda: Vocabulary([("a", "b")]), TypeError, "words must be strings, not tuple"),
        (lambda: Vocabulary([1]), TypeError, r"words must be strings, not int \(1\)"),
        (lambda: Vocabulary({"a": 1.5}), TypeError, "float"),
        (lambda: Vocabulary({"a": -1}), ValueError, "the count of 'a' is -1"),
        (lambda: Vocabulary(["a"], min_count=-1), ValueError, "min_count must be at least 0, not -1"),
        (lambda: Vocabulary(["a"], max_size=-1), ValueError, "max_size must be at least 0, not -1"),
        (lambda: Vocabulary(["a"], special="<s>"), TypeError, "special must be an iterable of words"),
        (lambda: Vocabulary(["a"], special=["x", "x"]), ValueError, "the special word 'x' is given twice"),
        (lambda: Vocabulary(["a"], unknown=0), TypeError, "words must be strings, not int"),
        (lambda: Vocabulary(["a"])[1], TypeError, "words must be strings, not int"),
        (lambda: Vocabulary(["a"]).encode("text"), TypeError, "words must be an iterable of words, not str"),
        (lambda: Vocabulary(["a"]).decode([2]), IndexError, "2 is no word, there are 2"),
        (lambda: Vocabulary(["a"]).decode([-1]), IndexError, "-1 is no word"),
        (lambda: Vocabulary(["a"]).decode([0.5]), TypeError, "float"),
    ],
)
def test_wrong_arguments(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
