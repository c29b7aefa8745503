"""Text for training: tables, texts with labels, and translations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable, TypeVar, overload

from dynet_cy.data.files import FileName, numbered_lines
from dynet_cy.data.metrics import is_bio, to_bio

__all__ = ["read_entities", "read_labelled", "read_parallel", "read_tsv"]

T = TypeVar("T")


def read_tsv(path: FileName, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Read a table: rows are lines, and tabs separate the columns. Nothing is quoted, and no cell may be empty.

    Args:
        path: name of the file, UTF-8; gzipped if it ends in ".gz"
        columns: what the columns are; only their number counts, and the message of an error names them

    Returns:
        A tuple for each line, with a text for each column; at least one.

    Raises:
        OSError: the file cannot be read
        ValueError: a line has another number of columns or an empty one, the text is not UTF-8, or the file is empty.
            The message names the file and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("forms.tsv").write_text("go\\twent\\tV;PST\\nox\\toxen\\tN;PL\\n")
        >>> dy.data.read_tsv("forms.tsv", ["lemma", "form", "tags"])
        [('go', 'went', 'V;PST'), ('ox', 'oxen', 'N;PL')]
    """
    *most, last = columns
    expected = f"{', '.join(most)} and {last}, separated by tabs" if most else last
    rows = []
    for number, line in numbered_lines(path):
        cells = tuple(line.split("\t"))
        if len(cells) != len(columns) or not all(cells):
            raise _unexpected(path, number, expected, line)
        rows.append(cells)
    return _some(rows, path)


@overload
def read_labelled(path: FileName, *, label_last: bool = ..., tokenize: None = ...) -> list[tuple[list[str], str]]: ...


@overload
def read_labelled(path: FileName, *, label_last: bool = ..., tokenize: Callable[[str], T]) -> list[tuple[T, str]]: ...


def read_labelled(
    path: FileName, *, label_last: bool = False, tokenize: Callable[[str], Any] | None = None
) -> list[tuple[Any, str]]:
    """Read texts with labels, such as reviews and stars: on each line a label, a tab and a text.

    Args:
        path: name of the file, UTF-8; gzipped if it ends in ".gz"
        label_last: whether the text comes first, and the label behind the last tab
        tokenize: a function that splits a text into words; by default at blanks and tabs, as `str.split` does

    Returns:
        The words and the label of each line; at least one. A text may be empty.

    Raises:
        OSError: the file cannot be read
        ValueError: a line has no tab or no label, the text is not UTF-8, or the file is empty. The message names the
            file and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("reviews.tsv").write_text("good\\tWhat a film\\nbad\\tNo plot at all\\n")
        >>> dy.data.read_labelled("reviews.tsv")
        [(['What', 'a', 'film'], 'good'), (['No', 'plot', 'at', 'all'], 'bad')]
        >>> dy.data.read_labelled("reviews.tsv", tokenize=str.lower)
        [('what a film', 'good'), ('no plot at all', 'bad')]
    """
    split = tokenize or str.split
    expected = "a text, a tab and a label are needed" if label_last else "a label, a tab and a text are needed"
    found = []
    for number, line in numbered_lines(path):
        first, tab, second = line.rpartition("\t") if label_last else line.partition("\t")
        text, label = (first, second) if label_last else (second, first)
        if not tab or not label:
            raise ValueError(f"{os.fspath(path)}, line {number}: {expected}, not {line!r:.80}")
        found.append((split(text), label))
    return _some(found, path)


@overload
def read_parallel(
    source: FileName, target: FileName | None = ..., *, tokenize: None = ...
) -> list[tuple[list[str], list[str]]]: ...


@overload
def read_parallel(
    source: FileName, target: FileName | None = ..., *, tokenize: Callable[[str], T]
) -> list[tuple[T, T]]: ...


def read_parallel(
    source: FileName, target: FileName | None = None, *, tokenize: Callable[[str], Any] | None = None
) -> list[tuple[Any, Any]]:
    """Read parallel text: sentences and their translations.

    Args:
        source: name of the file with the sentences, one on each line, UTF-8; gzipped if it ends in ".gz"
        target: name of the file with their translations, on the same lines. None: each line of `source` is a sentence,
            a tab and its translation.
        tokenize: a function that splits a sentence into words; by default at blanks, as `str.split` does

    Returns:
        The words of each sentence and of its translation; at least one pair. An empty line is an empty list.

    Raises:
        OSError: a file cannot be read
        ValueError: the files have different numbers of lines, a line of a single file has not two columns, the text is
            not UTF-8, or there are no lines. The message names the file and, where one is wrong, the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("train.de").write_text("das Haus\\nguten Tag\\n")
        >>> _ = Path("train.en").write_text("the house\\ngood day\\n")
        >>> dy.data.read_parallel("train.de", "train.en")
        [(['das', 'Haus'], ['the', 'house']), (['guten', 'Tag'], ['good', 'day'])]
        >>> _ = Path("train.tsv").write_text("das Haus\\tthe house\\n")
        >>> dy.data.read_parallel("train.tsv", tokenize=list)[0][1][:3]
        ['t', 'h', 'e']
    """
    split = tokenize or str.split
    if target is None:
        pairs = []
        for number, line in numbered_lines(source):
            if line.count("\t") != 1:
                raise _unexpected(source, number, "a sentence, a tab and its translation", line)
            first, _, second = line.partition("\t")
            pairs.append((split(first), split(second)))
        return _some(pairs, source)
    sides = [[split(line) for _, line in numbered_lines(path)] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        have = f"{os.fspath(source)} has {len(sides[0])} lines, {os.fspath(target)} has {len(sides[1])}"
        raise ValueError(f"{have}: the sentences and their translations must be on the same lines")
    return _some(list(zip(*sides)), source)


def read_entities(path: FileName, separator: str | None = None) -> list[tuple[list[str], list[str]]]:
    """Read sentences with named entities, tagged as IOB1 or BIO: I-PER or B-PER begins one of the kind PER.

    Args:
        path: name of the file, UTF-8; gzipped if it ends in ".gz"
        separator: None: a line for each word, with columns of which the first is the word and the last its tag, and an
            empty line behind each sentence, as in CoNLL-2003; lines that begin with "-DOCSTART-" are left out.
            Otherwise a line for each sentence, with words and tags such as ``Paris|I-LOC``, as in WikiNER, for "|".

    Returns:
        The words and the tags of each sentence, the tags as BIO; at least one.

    Raises:
        OSError: the file cannot be read
        ValueError: a word has no such tag, the text is not UTF-8, or there is no sentence. The message names the file
            and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("train.conll").write_text("Alice NNP I-PER\\nsees VBZ O\\nParis NNP I-LOC\\n\\n")
        >>> dy.data.read_entities("train.conll")
        [(['Alice', 'sees', 'Paris'], ['B-PER', 'O', 'B-LOC'])]
        >>> _ = Path("train.txt").write_text("Alice|I-PER sees|O Paris|I-LOC\\n")
        >>> dy.data.read_entities("train.txt", "|")
        [(['Alice', 'sees', 'Paris'], ['B-PER', 'O', 'B-LOC'])]
    """
    sentences: list[list[list[str]]] = [[]]
    number = 0
    for number, line in numbered_lines(path):
        fields = [field for field in line.replace("\t", " ").split(" ") if field]  # a word may have a no-break space
        if separator is not None:
            pairs = [field.rsplit(separator, 1) for field in fields]
        elif fields and fields[0] != "-DOCSTART-":
            pairs = [[fields[0], *fields[1:][-1:]]]
        else:
            pairs = []
        for pair in pairs:
            if len(pair) < 2 or not is_bio(pair[1]):
                raise ValueError(f"{os.fspath(path)}, line {number}: no tag (O, B-... or I-...) at {pair[0]!r:.80}")
        sentences[-1] += pairs
        if sentences[-1] and (separator is not None or not fields):  # the sentence ends
            sentences.append([])
    if not any(sentences):
        raise ValueError(f"{os.fspath(path)}: no sentence in {number} lines")
    return [([word for word, _ in pairs], to_bio([tag for _, tag in pairs])) for pairs in sentences if pairs]


def _unexpected(path: FileName, number: int, expected: str, line: str) -> ValueError:
    return ValueError(f"{os.fspath(path)}, line {number}: expected {expected}, not {line!r:.80}")


def _some(found: list[T], path: FileName) -> list[T]:
    """The items of a file, which must not be empty."""
    if not found:
        raise ValueError(f"{os.fspath(path)}: the file is empty")
    return found
