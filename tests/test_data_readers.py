"""`dy.data`'s readers of files: CoNLL-U, tables, texts with labels, parallel text, word vectors."""

from __future__ import annotations

import gzip
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.data import (
    ConlluSentence,
    parse_tree,
    read_conllu,
    read_entities,
    read_labelled,
    read_parallel,
    read_trees,
    read_tsv,
)

# A sentence with a multiword token, empty nodes before, within and behind its words, and comments; and a bare one.
FIRST = """# sent_id = 1
# text = vámonos al mar
0.1\tnode\t_\t_\t_\t_\t_\t_\t_\t_
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tvamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP1\t_\t1\tobj\t1:obj\t_
2.1\tempty\t_\t_\t_\t_\t_\t_\t1:x\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tend\t_\t_\t_\t_\t_\t_\t_\t_
"""
SECOND = "1\tno\u00a0break\t_\t_\t_\t_\t_\t_\t_\t_\n"


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["t.conllu", "t.conllu.gz"])
def test_conllu_is_read_and_written(tmp_path: Path, name: str) -> None:
    text = f"{FIRST}\n{SECOND}\n"
    first, second = sentences = read_conllu(str(write(tmp_path / name, text)))
    assert first.form == ["vamos", "nos", "a", "el", "mar"]
    assert first.upos == ["VERB", "PRON", "ADP", "DET", "NOUN"]
    assert first.head == [0, 1, 5, 5, 1]
    assert first.xpos[1], first.feats[0] == ("P1", "Mood=Imp")
    assert first.is_tree()
    assert [before for before, _ in first.other_lines] == [0, 0, 2, 2, 5]
    assert second.form == ["no\u00a0break"]
    assert second.head == [None]
    assert not second.is_tree()
    assert "".join(f"{sentence}\n" for sentence in sentences) == text


@pytest.mark.parametrize("ending", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_conllu_ends_and_begins_in_several_ways(tmp_path: Path, ending: str, newline: str, mark: str) -> None:
    text = (mark + FIRST.rstrip("\n") + ending).replace("\n", newline)
    (sentence,) = read_conllu(write(tmp_path / "t", text))
    assert str(sentence) == FIRST


def word(number: object, head: object = 0, upos: str = "NOUN", form: str = "dog") -> str:
    return f"{number}\t{form}\t_\t{upos}\t_\t_\t{head}\troot\t_\t_\n"


NODE = "\tx\t_\t_\t_\t_\t_\t_\t_\t_\n"
BLANK = "(is a blank line missing?)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (word(1) + "2\tsees\tVERB\n", "line 2: 3 columns separated by tabs, CoNLL-U has 10"),
        (word(1) + "2-3\tx\n", "line 2: 2 columns separated by tabs, CoNLL-U has 10"),
        (word(1).replace("\n", "\t_\n"), "line 1: 11 columns"),
        (word(1) + word(1), f"line 2: word 2 of the sentence has the id '1' {BLANK}"),
        (word(1) + word(3), f"line 2: word 2 of the sentence has the id '3' {BLANK}"),
        (word(2), f"line 1: word 1 of the sentence has the id '2' {BLANK}"),
        (word("１"), "line 1: word 1 of the sentence has the id '１'"),
        (word(1) + "1-2" + NODE, "line 2: word 2 of the sentence has the id '1-2'"),
        (word(1) + "3-2" + NODE, "line 2: word 2 of the sentence has the id '3-2'"),
        (word(1) + "2.1" + NODE, "line 2: word 2 of the sentence has the id '2.1'"),
        ("1-3" + NODE + word(1) + word(2, 1) + "\n", "line 3: a multiword token goes on to word 3, there are 2"),
        ("\n" + word(1) + word(2, 3), "line 3: HEAD '3' is not a word of the sentence, which has 2"),
        (word(1, -1), "line 1: HEAD '-1' is not a word"),
        (word(1, "x"), "line 1: HEAD 'x' is not a word"),
        (word(1, "9" * 5000), "line 1: HEAD '999"),
        (word(1, "01"), "line 1: HEAD '01' is not a word"),
        (word(1, upos="_"), "line 1: no UPOS for the word 'dog'"),
        (word(1, "_"), "line 1: no HEAD for the word 'dog'"),
        ("# a\n" + word(1, 2) + word(2, 1), "line 2: the sentence that begins here must have one root and no cycle"),
        (word(1, 0) + word(2, 0), "line 1: the sentence that begins here must have one root and no cycle"),
        (word(1, 1), "line 1: the sentence that begins here must have one root and no cycle"),
        ("", "no sentence in 0 lines"),
        ("# nothing\n\n", "no sentence in 2 lines"),
    ],
)
def test_conllu_errors(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "bad.conllu", text)
    with pytest.raises(ValueError, match="bad") as caught:
        read_conllu(path, ["upos", "HEAD"])
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_conllu_arguments(tmp_path: Path) -> None:
    path = write(tmp_path / "t", FIRST)
    with pytest.raises(ValueError, match="required: expected names from ID, FORM"):
        read_conllu(path, ["POS"])
    sentence = read_conllu(path)[0]
    assert sentence.column("UPOS") is sentence.upos
    with pytest.raises(ValueError, match="'comments' is none of FORM"):
        sentence.column("comments")
    with pytest.raises(ValueError, match="2 words, but 1 items in head"):
        ConlluSentence(["a", "b"], head=[0])
    assert pickle.loads(pickle.dumps(sentence)) == sentence


def test_other_heads_than_those_of_a_file() -> None:
    deep = ConlluSentence(["x"] * 5000, head=[*range(5000)])
    assert deep.is_tree()
    deep.head[0] = 5000
    assert not deep.is_tree()
    assert not ConlluSentence(["x"], head=[-1]).is_tree()
    assert not ConlluSentence(["x", "y"], head=[0, 7]).is_tree()
    assert not ConlluSentence([]).is_tree()


@pytest.mark.parametrize("read", [read_conllu, read_labelled, read_parallel, lambda path: read_tsv(path, ["x", "y"])])
def test_damaged_files(tmp_path: Path, read) -> None:
    good = word(1, 0) if read is read_conllu else "a\tb\n"
    path = write(tmp_path / "latin", good.encode() + "\xff\n".encode("latin-1"))
    with pytest.raises(ValueError, match="latin, line 2: 'utf-8' codec can't decode byte 0xff"):
        read(path)
    packed = write(tmp_path / "t.gz", good * 2000 if read is not read_conllu else f"{good}\n" * 2000)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"t\.gz, after line \d+: not a whole gzip file"):
        read(packed)
    (tmp_path / "plain.gz").write_text(good)  # browsers uncompress what they store
    assert len(read(tmp_path / "plain.gz")) == 1
    with pytest.raises(OSError, match="none"):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match=r"empty: no \w+ in 0 lines"):
        read(write(tmp_path / "empty", ""))


def test_lines_of_a_damaged_gzip_file(tmp_path: Path) -> None:
    packed = write(tmp_path / "t.gz", "a\n")
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"t\.gz: not a whole gzip file"):
        dy.data.lines(packed)


def test_a_text_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffeins\r\nzwölf".encode())
    (tmp_path / "text.gz").write_bytes(gzip.compress("zwölf\n".encode()))
    assert dy.data.read_text(tmp_path / "text") == "eins\nzwölf"
    assert dy.data.read_text(tmp_path / "text.gz") == "zwölf\n"
    for name, content, message in [("a", b"\xfa", "'utf-8' codec"), ("b", b"\x1f\x8bno", "not a whole gzip file")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            dy.data.read_text(tmp_path / name)


def test_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv.gz", 'a\t"b c\td\r\n\u00e9\t \t\u2028\n')
    assert read_tsv(path, ["x", "y", "z"]) == [("a", '"b c', "d"), ("\u00e9", " ", "\u2028")]
    for text in ("a\tb\n", "a\tb\tc\td\n", "a\t\tc\n", "\t\n"):
        with pytest.raises(ValueError, match=r"t, line 2: expected x, y and z, separated by tabs, not '"):
            read_tsv(write(tmp_path / "t", f"a\tb\tc\n{text}"), ["x", "y", "z"])


def test_texts_with_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "good\ta  b c\nbad\t\n\n")
    assert read_labelled(path) == [(["a", "b", "c"], "good"), ([], "bad")]
    assert read_labelled(path, tokenize=lambda text: text) == [("a  b c", "good"), ("", "bad")]
    path = write(tmp_path / "t", "a b c\tgood\n")
    assert read_labelled(path, label_last=True) == [(["a", "b", "c"], "good")]
    for text, last, message in [
        (
            "good\n",
            False,
            "expected label and text, separated by tabs, not 'good' .1 column; line 1 was taken for a row",
        ),
        ("\ttext\n", False, "expected label and text, separated by tabs"),
        ("good\ttext\tid\n", False, "expected label and text, separated by tabs, .* .3 columns"),
        ("text\t\n", True, "expected text and label, separated by tabs"),
        ("text\n", True, "expected text and label, separated by tabs"),
    ]:
        with pytest.raises(ValueError, match="bad, line 2: " + message):
            read_labelled(write(tmp_path / "bad", "a\tb\n" + text), label_last=last)


def test_parallel_text(tmp_path: Path) -> None:
    one, other = write(tmp_path / "de.gz", "das Haus\n\n"), write(tmp_path / "en", "the house\nempty")
    want = [(["das", "Haus"], ["the", "house"]), ([], ["empty"])]
    assert read_parallel(one, other) == want
    assert read_parallel(write(tmp_path / "both", "das Haus\tthe house\n\tempty\n")) == want
    write(tmp_path / "en", "the house\nempty\n\n\n")  # empty lines at the end of one
    assert read_parallel(one, other) == want
    write(one, "das Haus\nleer\n")
    write(tmp_path / "en", "the house\n")
    with pytest.raises(ValueError, match=r"de\.gz has 2 lines, .*en has 1: the sentences"):
        read_parallel(one, other)
    write(tmp_path / "en", b"\xe9\nempty\n")
    with pytest.raises(ValueError, match=r"de\.gz, line 1: of .*en: 'utf-8' codec"):
        read_parallel(one, other)
    with pytest.warns(UserWarning, match=r"de\.gz: 1 of 2 pairs are left out; the first is line 1: of"):
        assert read_parallel(one, other, errors="skip") == [(["leer"], ["empty"])]
    write(tmp_path / "en", '<?xml version="1.0"?>\n<seg id="1">the house</seg>\n')
    with pytest.raises(ValueError, match=r"line 1: '<\?xml .* is XML; a sentence on each line"):
        read_parallel(one, other)
    for text in ("das Haus\n", "a\tb\tc\n"):
        with pytest.raises(
            ValueError, match="both, line 2: expected sentence and translation, separated by tabs, not '"
        ):
            read_parallel(write(tmp_path / "both", "a\tb\n" + text))


@pytest.mark.parametrize("header", ["", "2 3\n"])
def test_word_vectors_as_lookup_parameters(tmp_path: Path, header: str) -> None:
    vectors = dy.data.read_vectors(write(tmp_path / "t.vec", f"{header}the 1 2 3\ndog 4 5 6\n"))
    assert vectors.words == ["the", "dog"]
    assert vectors.array.dtype == np.float32
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters(vectors.array.shape, init=vectors.array)
    assert table[1].npvalue().tolist() == [4, 5, 6]
    vocabulary = dy.data.Vocabulary(["a", "Dog"])
    table = vectors.embedding(model, vocabulary.words).table
    assert table[vocabulary["Dog"]].npvalue().tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a 1 2\nb 3\n", "line 2"), ("2 2\na 1 2\n", "1 words, the first line says 2"), ("", "line 1: neither a header")],
)
def test_word_vectors_of_different_lengths(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"t\.vec.*" + message):
        dy.data.read_vectors(write(tmp_path / "t.vec", text))


def test_entities_in_columns_and_lines(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(
        "-DOCSTART- -X- O\n\nBob NNP I-PER\nsees VBZ O\nMad NNP I-PER\nMax NNP B-PER\n\n"
        "Paris NNP I-LOC\nBob NNP I-PER\n"
    )
    (tmp_path / "a.txt").write_text("Bob|I-PER sees|O Mad|I-PER Max|B-PER\nParis|I-LOC Bob|I-PER\n")
    wanted = [
        (["Bob", "sees", "Mad", "Max"], ["B-PER", "O", "B-PER", "B-PER"]),
        (["Paris", "Bob"], ["B-LOC", "B-PER"]),
    ]
    assert read_entities(tmp_path / "a.conll") == wanted
    assert read_entities(tmp_path / "a.txt", "|") == wanted


def test_bad_entities(tmp_path: Path) -> None:
    for name, content, message in [
        ("a.txt", "Bob|I-PER\nsees\n", ", line 2: no tag (O, B-... or I-...) at 'sees'"),
        ("a.txt", "a|b|NOUN\n", ", line 1: no tag (O, B-... or I-...) at 'a': column 2 of 3 has 'NOUN'"),
        ("a.conll", "Bob I-PER\nsees\n", ", line 2: no tag (O, B-... or I-...) at 'sees'"),
        ("a.conll", "\n\n", ": no sentence in 2 lines"),
    ]:
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=re.escape(name + message)):
            read_entities(tmp_path / name, None if name.endswith(".conll") else "|")


GOOD_TREE = "(3 (2 a) (4 (3 very) (3 good\u00a0one)))"


def test_trees(tmp_path: Path) -> None:
    path = write(tmp_path / "trees.txt.gz", f"{GOOD_TREE}\n\n{GOOD_TREE}\n")
    trees = read_trees(path, labels="01234", binary=True)
    assert [str(tree) for tree in trees] == [GOOD_TREE] * 2
    tree = parse_tree("(S (NP the (A big)\tdog) (VP barks))")
    assert tree.words() == ["the", "big", "dog", "barks"]
    assert list(tree.spans()) == [("A", 1, 2), ("NP", 0, 3), ("VP", 3, 4), ("S", 0, 4)]
    assert [node.label for node in tree.nodes()] == ["A", "NP", "VP", "S"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("(3 (2 a) (4 b)", "expected one whole tree"),
        ("(3 (2 a) (4 b)))", "a closing bracket without an opening one"),
        ("(3 a) (3 b)", "expected one whole tree"),
        ("word", "expected one whole tree"),
        ("(5 a)", "the label '5' is none of 0 1 2 3 4"),
        ("()", "expected a label after '(', not ')'"),
        ("((2 a) 3)", "the label '' is none of 0 1 2 3 4"),
        ("(3 ((2 a)))", "expected a label after '(', not '('"),
        ("(3)", "the constituent 3 is empty"),
        ("(3 a (2 b))", "a node of 2 parts; it must hold one word, or two nodes"),
        ("(3 (2 a) (2 b) (2 c))", "a node of 3 parts"),
        ("(3 (2 a))", "a node of 1 parts"),
    ],
)
def test_bad_trees(tmp_path: Path, bad: str, message: str) -> None:
    path = write(tmp_path / "trees.txt", f"{GOOD_TREE}\n{bad}\n")
    with pytest.raises(ValueError, match=re.escape(f"trees.txt, line 2: {message}")):
        read_trees(path, labels="01234", binary=True)
    with pytest.raises(ValueError, match="no tree in 1 lines"):
        read_trees(write(path, "\n"))


def test_other_labels() -> None:
    tree = dy.data.parse_tree("(S (NP the dog) (VP barks))")
    assert str(tree.relabelled("xyz")) == "(z (x the dog) (y barks))"
    for labels in ("xy", "xyzu"):
        with pytest.raises(ValueError, match=f"Tree.relabelled: {len(labels)} labels for 3 nodes"):
            tree.relabelled(labels)


def test_toy_trees_have_the_labels_of_their_rules() -> None:
    trees = dy.data.toy_sentiment(300, seed=1)
    assert trees == dy.data.toy_sentiment(300, seed=1) != dy.data.toy_sentiment(300, seed=2)
    assert {node.label for tree in trees for node in tree.nodes()} == set("01234")
    for tree in trees:
        for node in tree.nodes():
            first, last = node.parts[0], node.parts[-1]
            if isinstance(first, str):
                continue
            word, value = first.parts[0], int(last.label) - 2
            sign = (value > 0) - (value < 0)
            if word == "very":
                assert int(node.label) - 2 == max(-2, min(2, value + sign))
            elif word in ("not", "hardly"):
                assert int(node.label) - 2 == -sign
    for sentence in dy.data.toy_constituents(300, seed=1):
        noun_phrase, verb_phrase = sentence.parts
        assert (sentence.label, noun_phrase.label, verb_phrase.label) == ("S", "NP", "VP")


def test_a_file_of_an_installed_package() -> None:
    assert dy.data.installed("numpy", "METADATA").exists()
    with pytest.raises(FileNotFoundError, match="the package numpy has no file none.txt"):
        dy.data.installed("numpy", "none.txt")
    with pytest.raises(FileNotFoundError, match="no a.conllu: pip install no-such-package"):
        dy.data.installed("no-such-package", "a.conllu")


def test_digits(tmp_path: Path) -> None:
    def idx(name: str, shape: tuple[int, ...], values: bytes) -> None:
        write(tmp_path / name, bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values)

    for part, count in (("train", 2), ("t10k", 1)):
        idx(f"{part}-images-idx3-ubyte.gz", (count, 2, 3), bytes(range(6 * count)))
        idx(f"{part}-labels-idx1-ubyte", (count,), bytes([7] * count))
    training, test = dy.data.read_digits(tmp_path)
    assert (len(training), len(test)) == (2, 1)
    image, label = training[1]
    np.testing.assert_array_equal(image, np.arange(6, 12, dtype=np.float32).reshape(2, 3) / 255)
    assert (image.dtype, label) == (np.float32, 7)
    idx("t10k-labels-idx1-ubyte", (1,), bytes([11]))
    with pytest.raises(ValueError, match="t10k has the label 11, digits go up to 9"):
        dy.data.read_digits(tmp_path)
    idx("t10k-labels-idx1-ubyte", (2,), bytes([1, 2]))
    with pytest.raises(ValueError, match=r"t10k has images \(1, 2, 3\) but labels \(2,\)"):
        dy.data.read_digits(tmp_path)


# -- inflections ---------------------------------------------------------------------------------


def test_inflections(tmp_path: Path) -> None:
    path = tmp_path / "forms"
    path.write_text("swim\tswam\tV;PST\nox\toxen\tN;PL\n", encoding="utf-8")
    assert dy.data.read_inflections(path) == [
        (["<V>", "<PST>", *"swim"], list("swam")),
        (["<N>", "<PL>", *"ox"], list("oxen")),
    ]
    path.write_text("swim\tswam\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: expected lemma, form and tags, separated by tabs"):
        dy.data.read_inflections(path)


def test_english_inflections_hold_out_lemmas(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(40)]
    table = [line for word in words for line in (f"{word},noun,{word}s/{word}es", f"{word},verb,{word}ed,,{word}ing,")]
    monkeypatch.setattr("dynet_cy.data.inflections.lines", lambda path: table)
    monkeypatch.setattr("dynet_cy.data.inflections.installed", lambda package, name: name)
    training, dev = dy.data.english_inflections(100)
    assert (len(training), len(dev)) == (100, 10)
    lemmas = [{"".join(x for x in source if len(x) == 1) for source, _ in part} for part in (training, dev)]
    assert not lemmas[0] & lemmas[1]
    assert all("".join(form).startswith("w") and "/" not in form for _, form in training)
    assert dy.data.english_inflections(100) == (training, dev)
