"""`dy.data`'s readers and the layouts in which data of their tasks are published: read, or an error with a way on."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import (
    Vocabulary,
    lines,
    parse_tree,
    read_conllu,
    read_entities,
    read_inflections,
    read_labelled,
    read_parallel,
    read_text,
    read_trees,
    read_tsv,
    read_vectors,
)

WORD = "1\tdogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n2\tbark\tbark\tVERB\tVBP\t_\t0\troot\t_\t_\n\n"

# A reader, the text of a file that it reads, and a part of what it returns.
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "read_conllu": (lambda path: [s.form for s in read_conllu(path)], WORD + WORD.replace("dogs", "çats")),
    "read_tsv": (lambda path: read_tsv(path, ["x", "y"]), "a\tb\nç\td\n"),
    "read_labelled": (read_labelled, "good\ta film\nbad\tçe film\n"),
    "read_parallel": (read_parallel, "a b\tc d\nç\td\n"),
    "read_parallel-two": (lambda path: read_parallel(path, path), "a b\nç\n"),
    "read_entities": (read_entities, "Ann B-PER\nsees O\n\nçiçek O\n\n"),
    "read_entities-separator": (lambda path: read_entities(path, "|"), "Ann|B-PER sees|O\nçiçek|O\n"),
    "read_inflections": (read_inflections, "go\twent\tV;PST\nça\tças\tN;PL\n"),
    "read_trees": (read_trees, "(S (NP the dog) (VP barks))\n(S ç)\n"),
    "read_vectors": (lambda path: (read_vectors(path).words, read_vectors(path).array.tolist()), "a 1 2\nç 3 4\n"),
    "read_vectors-header": (lambda path: read_vectors(path).words, "2 2\na 1 2\nç 3 4\n"),
    "read_text": (read_text, "a\nç\n"),
    "lines": (lambda path: list(lines(path)), "a\nç\n"),
    "Vocabulary.load": (
        lambda path: Vocabulary.load(path).words,
        '{"format": "dynet_cy vocabulary", "version": 1, "unknown": null,\n "special": [], "words": {"ç": 1}}\n',
    ),
    "input_lines": (lambda path: list(commandline.input_lines(path)), "a\nç\n"),
    "FromFileInitializer": (
        lambda path: dy.ParameterCollection().add_parameters(2, init=dy.FromFileInitializer(path)).as_array().tolist(),
        "1\n2\n",
    ),
    "clusters": (
        lambda path: dy.ClassFactoredSoftmaxBuilder(2, path, {"a": 0, "ç": 1}, dy.ParameterCollection())._clusters,
        "one a\none ç\n",
    ),
}

WAYS_TO_STORE: dict[str, Callable[[bytes], bytes]] = {
    "mark": lambda data: b"\xef\xbb\xbf" + data,
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
    "mark-and-crlf": lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    "cr": lambda data: data.replace(b"\n", b"\r"),
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "utf-16-be": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    "utf-32": lambda data: data.decode().encode("utf-32"),
    "gzip": gzip.compress,
    "gzip-with-mark": lambda data: gzip.compress(b"\xef\xbb\xbf" + data),
    "no-end": lambda data: data.rstrip(b"\n"),
    "empty-lines-at-the-end": lambda data: data + b"\n\n",
}


@pytest.mark.parametrize("way", WAYS_TO_STORE)
@pytest.mark.parametrize("name", READERS)
def test_one_way_to_open(name: str, way: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    wanted = read(path)
    stored = tmp_path / "stored"
    stored.write_bytes(WAYS_TO_STORE[way](text.encode()))
    found = read(stored)
    if way == "no-end" and name == "read_text":
        wanted = wanted.rstrip("\n")
    if way == "empty-lines-at-the-end" and name in ("read_text", "lines", "input_lines", "read_parallel-two"):
        found = [x for x in found if x not in ("", ([], []))] if name != "read_text" else found.rstrip("\n") + "\n"
        found = [[x for x in found[0] if x]] if name == "input_lines" else found
    assert found == wanted


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("start", "message"),
    [(b"BZh91AY", "bunzip2"), (b"\xfd7zXZ\0", "unxz"), (b"PK\x03\x04", "unzip"), (b"\x28\xb5\x2f\xfd\0", "unzstd")],
)
def test_other_ways_to_compress(name: str, start: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(start + bytes(range(256)))
    with pytest.raises(ValueError, match=message):
        READERS[name][0](tmp_path / "file")


WITH_ENCODING = ["read_conllu", "read_tsv", "read_labelled", "read_parallel", "read_entities", "read_inflections"]


@pytest.mark.parametrize("name", [*WITH_ENCODING, "read_trees", "read_text", "lines"])
def test_other_encodings(name: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(text.encode())
    other.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="'utf-8' codec can't decode .*; encoding= is for other text"):
        read(other)
    function = getattr(dy.data, name)
    columns = (["x", "y"],) if name == "read_tsv" else ()
    found, wanted = function(other, *columns, encoding="latin-1"), function(one, *columns)
    assert list(map(str, found)) == list(map(str, wanted))


BAD = {
    "read_conllu": "1\tx\n\n",
    "read_tsv": "a\tb\tc\n",
    "read_labelled": "\ttext\n",
    "read_parallel": "one\n",
    "read_entities": "word\nother O\n\n",
    "read_inflections": "go\tV;PST\n",
    "read_trees": "(S (NP the dog)\n",
    "read_vectors": "b 1\n",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("bad", ["line", "bytes"])
def test_bad_items_are_left_out_and_counted(name: str, bad: str, tmp_path: Path) -> None:
    text = READERS[name][1]
    columns = (["x", "y"],) if name == "read_tsv" else ()
    function = getattr(dy.data, name)
    good, mixed = tmp_path / "good", tmp_path / "mixed"
    good.write_bytes(text.encode())
    middle = BAD[name].encode() if bad == "line" else b"\xff" + text.encode().split(b"\n\n")[0].split(b"\nb")[0]
    end = b"\n\n" if bad == "bytes" and name in ("read_conllu", "read_entities") else b""
    if bad == "bytes" and not end:
        middle = middle.split(b"\n")[0] + b"\n"
    mixed.write_bytes(text.encode() + middle + end + text.encode().replace(b"a 1 2", b"d 5 6"))
    with pytest.raises(ValueError, match=r"mixed(, line \d+|: word \d+).*errors="):
        function(mixed, *columns)
    with pytest.warns(UserWarning, match=r"mixed: 1 (of \d+ \w+s are|bad line) left out; the first") as caught:
        found = function(mixed, *columns, errors="skip")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    wanted = function(good, *columns)
    if name == "read_vectors":
        assert found.words == [*wanted.words, "d"]
    else:
        assert list(map(str, found)) == list(map(str, wanted)) * 2
    with pytest.raises((ValueError, LookupError), match=r"argument errors: expected 'strict' or 'skip'|xx|errors="):
        function(mixed, *columns, errors="xx")


@pytest.mark.parametrize("name", BAD)
def test_cut_gzip_files(name: str, tmp_path: Path) -> None:
    columns = (["x", "y"],) if name == "read_tsv" else ()
    rng = np.random.default_rng(0)
    text = READERS[name][1]
    many = "".join(text.replace("ç", f"ç{rng.integers(1 << 60)}") for _ in range(500))
    many = re.sub("^a ", lambda _: f"a{rng.integers(1 << 60)} ", many, flags=re.MULTILINE)
    path = tmp_path / "cut.gz"
    packed = gzip.compress(many.encode())
    path.write_bytes(packed[: len(packed) // 2])
    function = getattr(dy.data, name)
    with pytest.raises(ValueError, match="not a whole gzip file"):
        function(path, *columns)
    with pytest.warns(UserWarning, match="left out; the first.*not a whole gzip file"):
        found = function(path, *columns, errors="skip")
    assert 100 < len(found) < 1000


def test_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a\nb\n")
    with pytest.raises(ValueError, match="t: no row in 2 lines; the first is line 1: expected x and y"):
        read_tsv(tmp_path / "t", ["x", "y"], errors="skip")


# ---- entities

FINE = [(["Ann", "Lee", "sees", "Rome"], ["B-PER", "I-PER", "O", "B-LOC"]), (["Yes"], ["O"])]
ENTITIES: dict[str, tuple[str, dict[str, Any]]] = {
    "CoNLL-2003": (
        "-DOCSTART- -X- -X- O\n\nAnn NNP I-NP I-PER\nLee NNP I-NP I-PER\nsees VBZ I-VP O\nRome NNP I-NP I-LOC\n\n"
        "Yes UH I-NP O\n",
        {},
    ),
    "no empty line behind the mark": (
        "-DOCSTART- O\nAnn B-PER\nLee I-PER\nsees O\nRome B-LOC\n-DOCSTART- O\nYes O\n",
        {},
    ),
    "German": (
        "Ann Ann NE I-NP B-PER\nLee Lee NE I-NP I-PER\nsees s V I-VP O\nRome Rome NE I-NP B-LOC\n\nYes y I I O\n",
        {},
    ),
    "WNUT": ("Ann\tB-PER\nLee\tI-PER\nsees\tO\nRome\tB-LOC\n\t\nYes\tO\n", {}),
    "blanks at ends": ("Ann B-PER \nLee I-PER \nsees O \nRome B-LOC \n \nYes O \n", {}),
    "MultiCoNER": (
        "# id a domain=en\nAnn _ _ B-PER\nLee _ _ I-PER\nsees _ _ O\nRome _ _ B-LOC\n\n# id b domain=en\nYes _ _ O\n",
        {},
    ),
    "GermEval": (
        "#\thttp://x [2009]\n1\tAnn\tB-PER\tO\n2\tLee\tI-PER\tO\n3\tsees\tO\tO\n4\tRome\tB-LOC\tO\n\n1\tYes\tO\tO\n",
        {"word": 1, "tag": 2},
    ),
    "Universal NER": (
        "# text = Ann Lee sees Rome\n"
        "1\tAnn\tB-PER\t-\tx\n2\tLee\tI-PER\t-\tx\n3\tsees\tO\t-\tx\n4\tRome\tB-LOC\t-\tx\n\n"
        "1\tYes\tO\t-\tx\n",
        {"word": 1, "tag": 2},
    ),
    "CoNLL-2012": (
        "#begin document (a); part 000\n"
        "a 0 0 Ann NNP (S* - - - s (PER* *  -\na 0 1 Lee NNP * - - - s *) * -\na 0 2 sees V * - - - s * * -\n"
        "a 0 3 Rome NNP *) - - - s (LOC) * (1)\n\na 0 0 Yes UH * - - - s * * -\n\n#end document\n",
        {"word": 3, "tag": 10},
    ),
    "the tag first": ("B-PER\tAnn\nI-PER\tLee\nO\tsees\nB-LOC\tRome\n\nO\tYes\n", {"word": 1, "tag": 0}),
    "WikiNER": ("Ann|NNP|I-PER Lee|NNP|I-PER sees|VBZ|O Rome|NNP|I-LOC\n\nYes|UH|O\n", {"separator": "|"}),
    "two fields": ("Ann|I-PER Lee|I-PER sees|O Rome|I-LOC\nYes|O\n", {"separator": "|"}),
    "slashes": ("Ann/B-PER Lee/I-PER sees/O Rome/B-LOC \nYes/O\n", {"separator": "/"}),
}


@pytest.mark.parametrize("name", ENTITIES)
def test_layouts_of_entities(name: str, tmp_path: Path) -> None:
    text, options = ENTITIES[name]
    (tmp_path / "t").write_text(text)
    assert read_entities(tmp_path / "t", **options) == FINE


@pytest.mark.parametrize(
    ("text", "options", "wanted"),
    [
        ("# O\n#tag O\nC# O\n", {}, ["#", "#tag", "C#"]),
        ("New York\tB-LOC\n\u00a0\tO\n", {}, ["New York", "\u00a0"]),
        ("a|b|X|O c|Y|O |||X|O\n", {"separator": "|"}, ["a|b", "c", "||"]),
        ("a|b|O c|O d|O\n", {"separator": "|"}, ["a|b", "c", "d"]),
        ("1 O\n2 O\n", {"word": 0}, ["1", "2"]),
    ],
)
def test_odd_words(text: str, options: dict[str, Any], wanted: list[str], tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    assert [words for words, _ in read_entities(tmp_path / "t", **options)] == [wanted]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("1 Ann B-PER\n2 sees O\n\n1 Yes O\n", {}, "the first column numbers the words; word="),
        ("1\tAnn\tB-PER\tO\tx\n", {}, "line 1: no tag .* column 4 of 5 has 'x'; word= and tag= choose columns"),
        ("Ann|NNP|I-PER sees|V|O\n", {}, "line 1: no tag .*at 'Ann.NNP.I-PER'"),
        ("Ann|NNP|I-PER\n", {}, "one column; separator= is for lines such as"),
        ("Ann B-PER\nsees V O\nRome B-LOC\n", {}, "line 2: no tag .*: 3 columns, where most words have 2"),
        ("Ann|N|B-PER sees|O Rome|N|B-LOC\n", {"separator": "|"}, "2 columns, where most words have 3"),
        ("Token,Tag\nAnn,B-PER\n", {}, "line 1: no tag"),
        ("word tag\nAnn B-PER\n", {}, "line 1: no tag .* has 'tag'"),
        ("Ann PER\n", {}, "has 'PER'"),
        ("\tO\nAnn\tO\n", {}, "line 1: no word at the tag 'O'"),
        ("Ann B-PER\n", {"tag": 2}, "argument tag: there are 2 columns, and no column 2"),
        ("Ann B-PER\n", {"word": -3}, "argument word: there are 2 columns, and no column -3"),
        ("# a\n\n# b\n", {}, "no sentence in 3 lines"),
    ],
)
def test_entities_of_other_layouts(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_entities(tmp_path / "t", **options)


# ---- tables

TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "label first": ('good\tA film, no "plot"\nbad\tIt is bad\n', {}),
    "label last": ('A film, no "plot"\tgood\nIt is bad\tbad\n', {"label_last": True}),
    "SST-2": ('sentence\tlabel\nA film, no "plot"\tgood\nIt is bad\tbad\n', {"columns": ("label", "sentence")}),
    "names in capitals": (
        'Sentence\tLabel\nA film, no "plot"\tgood\nIt is bad\tbad\n',
        {"columns": ("label", "sentence")},
    ),
    "CoLA": ('gj04\tgood\t\tA film, no "plot"\nks08\tbad\t*\tIt is bad\n', {"columns": (1, 3)}),
    "QNLI": (
        'index\tquestion\tsentence\tlabel\n0\tq\tA film, no "plot"\tgood\n1\tq\tIt is bad\tbad\n',
        {"columns": ("label", "sentence")},
    ),
    "IMDB": (
        'review,sentiment\n"A film, no ""plot""",good\nIt is bad,bad\n',
        {"columns": ("sentiment", "review"), "separator": ","},
    ),
    "AG News": ('"good","A film, no ""plot"""\n"bad","It is bad"\n', {"separator": ","}),
    "semicolons": ('good;"A film, no ""plot"""\nbad;It is bad\n', {"separator": ";"}),
    "quoted, with tabs": ('good\t"A film, no ""plot"""\nbad\t"It is bad"\n', {"quotes": True}),
    "fastText": ('__label__good A film, no "plot"\n__label__bad It is bad\n', {}),
    "another header": ('class;words\ngood;"A film, no ""plot"""\nbad;It is bad\n', {"separator": ";", "header": True}),
    "numbers and a header": (
        'x,y\n"A film, no ""plot""",good\nIt is bad,bad\n',
        {"separator": ",", "header": True, "columns": (1, 0)},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_layouts_of_labelled_texts(name: str, tmp_path: Path) -> None:
    text, options = TABLES[name]
    (tmp_path / "t").write_text(text)
    assert read_labelled(tmp_path / "t", **options) == [
        (["A", "film,", "no", '"plot"'], "good"),
        (["It", "is", "bad"], "bad"),
    ]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("sentence\tlabel\nA film\tgood\n", {}, "line 1: sentence, label look like the names of columns; header=True"),
        (
            "sentence\tlabel\nA film\tgood\n",
            {"header": True},
            "the columns are sentence, label; wanted are label, text",
        ),
        (
            "A film\tgood\nNo plot\tbad\n",
            {},
            "labels such as 'A film' and texts such as 'good' look exchanged: label_last",
        ),
        ("good\tA film\nbad\tNo plot\n", {"label_last": True}, "look exchanged: label_last=False"),
        ("映画\t1\n本\t0\n花\t1\n犬\t1\n", {}, "look exchanged"),
        ("gj04\t1\t\tA film\n", {}, r"line 1: expected label and text, .* \(4 columns; separator=, columns="),
        ("good\tA film\nbad\tno\tplot\n", {}, "3 columns; line 1 was taken for a row; separator="),
        ('good,"A film"\n', {}, "1 column; separator="),
        ('good\t"A film"\nbad\t"No plot"\n', {}, "each row has a cell in quotes; quotes=True"),
        ('good,"A film\nbad,No plot\n', {"separator": ","}, "line 1: not a row in quotes"),
        ("__label__a __label__b A film\n", {}, "line 1: several labels"),
        ("DESC:manner How did it go\n", {}, "1 column"),
        ("good\tA film\n", {"separator": "||", "quotes": True}, "argument separator: expected one character"),
    ],
)
def test_labelled_texts_of_other_layouts(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_labelled(tmp_path / "t", **options)


def test_what_looks_like_another_layout_can_be_meant(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("A film\tgood\nNo plot\tbad\n")
    assert read_labelled(tmp_path / "t", columns=(0, 1))[0] == (["good"], "A film")
    (tmp_path / "t").write_text("label\ttext\n")
    assert read_labelled(tmp_path / "t", header=False) == [(["text"], "label")]
    (tmp_path / "t").write_text('good\t"A film"\n')
    assert read_labelled(tmp_path / "t", quotes=False) == [(['"A', 'film"'], "good")]


def test_tables_with_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('no,form,"lemma",tags\n7,"went\nhome",go,"V,PST"\n8,oxen,ox,N\n')
    assert read_tsv(path, ["lemma", "form"], separator=",") == [("go", "went\nhome"), ("ox", "oxen")]
    assert read_tsv(path, [2, -1], separator=",", header=True) == [("go", "V,PST"), ("ox", "N")]
    with pytest.raises(ValueError, match="t.csv, line 1: expected a and b, separated by ',', not 'no,form"):
        read_tsv(path, ["a", "b"], separator=",")
    with pytest.raises(ValueError, match=r"wanted are a, form; columns= chooses some"):
        read_tsv(path, ["a", "form"], separator=",", header=True)
    path.write_text("id,form\n7,\n")
    with pytest.raises(
        ValueError, match="line 2: expected form, .*2 columns; line 1 was taken for the names of the columns"
    ):
        read_tsv(path, ["form"], separator=",")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("das Haus\tthe house\n", {}),
        ("das Haus ||| the house\n", {"separator": "|||"}),
        ("1\tdas Haus\t2\tthe house\n", {"columns": (1, 3)}),
        ("the house\tdas Haus\tCC-BY 2.0\n", {"columns": (1, 0)}),
        ("source\ttarget\ndas Haus\tthe house\n", {"columns": ("source", "target")}),
        ("source\ttarget\ndas Haus\tthe house\n", {"header": True}),
        ('"das Haus","the house"\n', {"separator": ","}),
    ],
)
def test_layouts_of_parallel_text(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    assert read_parallel(tmp_path / "t", **options) == [(["das", "Haus"], ["the", "house"])]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("go\twent\tV;PST\nDIY\tDIYs\tV;3;SG;PRS\n", {}),  # 2017 to 2020, UniMorph
        ("go\tV;PST\twent\nDIY\tV;3;SG;PRS\tDIYs\n", {}),  # from 2021 on
        ("go\tpos=V,tense=PST\twent\nDIY\tpos=V,per=3,num=SG,tense=PRS\tDIYs\n", {}),  # 2016
        ("go\tV;PST\twent\tx\nDIY\tV;3;SG;PRS\tDIYs\ty\n", {"columns": (0, 2, 1)}),
        ("go\twent\tV;PST\n\nDIY\tDIYs\tV;3;SG;PRS\n", {}),
        ("go\twent\tV;PST\nDIY\tDIY\tV;NFIN\n", {}),
        ("go\tGO\tV;PST\nDIY\tDIY\tV;NFIN\n", {}),
    ],
)
def test_layouts_of_inflections(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    first, second = read_inflections(tmp_path / "t", **options)
    assert first[0] in (["<V>", "<PST>", "g", "o"], ["<pos=V>", "<tense=PST>", "g", "o"])
    assert "".join(first[1]).lower() in ("went", "go")
    assert "".join(second[1])[:3] == "DIY"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("go\twent\tpast\n", "one column must look like tags .*, alone, not 'went' and 'past'; columns="),
        ("GO\tWENT\tPAST\n", "one column must look like tags .*, alone, not 'WENT' and 'PAST'"),
        ("go\tV;PST\n", "line 1: expected lemma, form and tags, separated by tabs, .*2 columns"),
        ("pos=V\tgo\tpos=V\twent\n", "line 1: expected lemma, form and tags, .*4 columns"),
    ],
)
def test_inflections_of_other_layouts(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_inflections(tmp_path / "t")


# ---- treebanks

X = WORD.replace("_\t_\n", "2\tSBJ\n", 1)
NINE = (
    "1\tdogs\tdog\tdog\tNNS\tNN\tf\tg\t2\t2\tnsubj\tx\t_\t_\tA0\n"
    "2\tbark\tbark\tb\tVBP\tVB\t_\t_\t0\t0\troot\tx\tY\tbark.01\t_\n"
)


def test_other_layouts_of_conll(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(X)
    with pytest.raises(ValueError, match="line 1: DEPS '2' is a head alone, as in CoNLL-X: layout='conllx'"):
        read_conllu(path)
    [sentence] = read_conllu(path, ["HEAD"], layout="conllx")
    assert (sentence.head, sentence.deps, sentence.misc) == ([2, 0], ["_", "_"], ["_", "_"])
    path.write_text(NINE)
    with pytest.raises(ValueError, match="line 1: 15 columns separated by tabs, CoNLL-U has 10; layout="):
        read_conllu(path)
    [sentence] = read_conllu(path, ["HEAD", "XPOS"], layout="conll09")
    assert (sentence.lemma, sentence.xpos, sentence.head) == (["dog", "bark"], ["NNS", "VBP"], [2, 0])
    assert (sentence.deprel, sentence.feats) == (["nsubj", "root"], ["f", "_"])
    path.write_text("# global.columns = ID FORM HEAD MINE\n# text = x\n1-2\tx\t_\tb\n1\tdogs\t2\ta\n2\tbark\t0\tc\n")
    [sentence] = read_conllu(path, ["HEAD"])
    assert (sentence.form, sentence.head, sentence.comments) == (["dogs", "bark"], [2, 0], ["# text = x"])
    path.write_text(str(sentence))
    assert read_conllu(path) == [sentence]
    path.write_text("1\tdogs\tN\n2\tbark\tV\n")
    assert read_conllu(path, layout=["ID", "FORM", "xpos"])[0].xpos == ["N", "V"]
    path.write_text(WORD.replace("\t", " "))
    with pytest.raises(ValueError, match="1 columns separated by tabs"):
        read_conllu(path)
    for layout, message in (("conll", "argument layout: expected one of conllu"), (["FORM"], "no columns ID and FORM")):
        with pytest.raises(ValueError, match=message):
            read_conllu(path, layout=layout)


PENN = """
( (S
    (NP-SBJ-1 (NNP Ms.) (NNP Rivers) )
    (VP (VBZ is)
      (S (-NONE- *T*-1) )
      (PP=2 (-LRB- -LRB-) (PRT|ADVP x)))
    (. .) ))
( (NP (DT A) (NN b) ) (. .))

(NP (DT A))
"""


def test_the_penn_treebank(tmp_path: Path) -> None:
    path = tmp_path / "wsj.mrg"
    path.write_text(PENN)
    first, second, third = read_trees(path)
    assert (first.label, second.label, third.label) == ("S", "", "NP")
    assert first.words()[:3] == ["Ms.", "Rivers", "is"]
    assert str(first.simplified()) == (
        "(S (NP (NNP Ms.) (NNP Rivers)) (VP (VBZ is) (PP (-LRB- -LRB-) (PRT|ADVP x))) (. .))"
    )
    assert [parse_tree(str(tree)) for tree in (first, second, third)] == [first, second, third]
    with pytest.raises(ValueError, match="Tree.simplified: the tree has only traces"):
        parse_tree("(S (NP (-NONE- *)))").simplified()
    path.write_text("(S\n(NP (DT A))\n(VP b)\n)\n(S c)\n")  # without indentation
    assert [str(tree) for tree in read_trees(path)] == ["(S (NP (DT A)) (VP b))", "(S c)"]


def test_a_tree_that_is_not_closed_takes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "trees"
    path.write_text("(S a)\n(S (NP b)\n(S c)\n(S (NP d))\n(S e))\n(S f)\n")
    with pytest.raises(ValueError, match="line 2: expected one whole tree"):
        read_trees(path)
    with pytest.warns(UserWarning, match="2 of 6 trees are left out"):
        assert [str(tree) for tree in read_trees(path, errors="skip")] == ["(S a)", "(S c)", "(S (NP d))", "(S f)"]
    path.write_text("( (S\n  (NP a)\n( (S\n  (NP b) ))\n")
    with pytest.warns(UserWarning, match="1 of 2 trees are left out; the first is line 1"):
        assert [str(tree) for tree in read_trees(path, errors="skip")] == ["(S (NP b))"]


# ---- word vectors


@pytest.mark.parametrize("header", ["", "3 2\n"])
@pytest.mark.parametrize(
    "text",
    [
        "the 1 2\nNew York 3 4\n1995 5 6\n",
        "the\t1 2\nNew York\t3 4\n1995\t5 6\n",
        "the\t1\t2\nNew York\t3\t4\n1995\t5\t6\n",
        "the  1  2\nNew York  3  4\n1995  5  6\n",
        "the 1 2 \r\nNew York 3 4 \r\n1995 5 6 \r\n",
        "New York 1 2\nNew York 3 4\nthe 1 2\n1995 5 6\n",
    ],
)
def test_separators_of_vectors(header: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(((header if text.startswith("the") else "") + text).encode())
    vectors = read_vectors(tmp_path / "t")
    assert set(vectors.words) == {"the", "New York", "1995"}
    assert (vectors["1995"].tolist(), vectors.dim) == ([5, 6], 2)


def test_vectors_with_another_number_of_words(tmp_path: Path) -> None:
    path = tmp_path / "t.vec"
    path.write_text("4 2\na 1 2\nb 3 4\nc 5 6\n")
    with pytest.raises(ValueError, match="3 words, the first line says 4; errors= says what to do"):
        read_vectors(path)
    with pytest.warns(UserWarning, match="1 bad line left out; the first: 3 words, the first line says 4"):
        assert read_vectors(path, errors="skip").words == ["a", "b", "c"]
    path.write_text("4 2\na 1 2\nb 3 4\nc 5 61")  # cut in a number
    with pytest.warns(UserWarning, match="2 bad lines left out; the first: line 4: the file ends in word 3 of 4"):
        assert read_vectors(path, errors="skip").words == ["a", "b"]
    for text, message in [
        (" 1.5 2\n 3 4\n", "line 1: no word before the numbers"),
        ("a 1 2\n 3 4\n", "line 2: no word before the numbers"),
        ("a 1 2\nb 3\n", "line 2: 1 numbers, there should be 2 behind a word; line 1 was taken for a first row"),
        ("a,1,2\n", "neither a header nor a word with numbers"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_vectors(path)


def test_a_cut_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    rows = [word + b" " + np.array([1, 2], np.float32).tobytes() + b"\n" for word in (b"a", b"b", b"c")]
    path.write_bytes(b"3 2\n" + b"".join(rows)[:-4])
    with pytest.raises(ValueError, match="the file is not whole; errors="):
        read_vectors(path)
    with pytest.warns(UserWarning, match="2 bad lines left out; the first: 29 bytes for 3 words of 2 numbers"):
        assert read_vectors(path, errors="skip").words == ["a", "b"]


def test_clusters_of_other_layouts(tmp_path: Path) -> None:
    def clusters(text: str) -> list[list[int]]:
        (tmp_path / "c").write_text(text)
        words = {"ice": 0, "ice cream": 1, "dog": 2}
        return dy.ClassFactoredSoftmaxBuilder(2, str(tmp_path / "c"), words, dy.ParameterCollection())._clusters

    assert clusters("00\tice cream\t17\n\n01\tdog\t3\n00\tice\t2\n") == [[1, 0], [2]]  # as Brown's program writes them
    for text in ("00 ice cream\n", "00\n", "00 ice 3 4\n"):
        with pytest.raises(ValueError, match="line 1: a cluster and a word are needed"):
            clusters(text)


def test_a_model_file_that_an_editor_or_gzip_has_changed(tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    W = model.add_parameters(2, init=3, name="W")
    model.save(str(tmp_path / "m"))
    data = (tmp_path / "m").read_bytes()
    for way in ("mark", "crlf", "mark-and-crlf", "gzip", "gzip-with-mark"):
        (tmp_path / "n").write_bytes(WAYS_TO_STORE[way](data))
        W.zero()
        model.populate(str(tmp_path / "n"))
        assert W.as_array().tolist() == [3, 3]
    (tmp_path / "n").write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(dy.ModelFileError, match="not a whole gzip file"):
        model.populate(str(tmp_path / "n"))
