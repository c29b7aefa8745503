"""Treebanks in CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from dynet_cy.files.reading import FileName, Line, LineError, TextFile, blocks

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")

Heads = list[Optional[int]]

_NAMES = tuple(column.lower() for column in CONLLU_COLUMNS[1:])
_HEAD, _DEPS = CONLLU_COLUMNS.index("HEAD"), CONLLU_COLUMNS.index("DEPS")
_LAYOUTS: dict[str, tuple[str, ...]] = {
    "conllu": CONLLU_COLUMNS,
    "conllx": (*CONLLU_COLUMNS[:-2], "", ""),
    "conll09": ("ID", "FORM", "LEMMA", "", "XPOS", "", "FEATS", "", "HEAD", "", "DEPREL", "", "", ""),  # and more
}
_GLOBAL = "# global.columns = "
_MULTIWORD = re.compile(r"([1-9]\d*)-([1-9]\d*)", re.ASCII)
_EMPTY_NODE = re.compile(r"(0|[1-9]\d*)\.[1-9]\d*", re.ASCII)
_UNWRITABLE = re.compile("[\r\n\ud800-\udfff]")
_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)


@dataclass
class ConlluSentence:
    """A sentence of a treebank: a list for each column of CoNLL-U, with an item for each word.

    ``str(sentence)`` is the sentence in CoNLL-U, with an empty line at its end; ``len(sentence)`` its number of words.
    A new sentence needs only `form`; columns that are not given are empty ("_").

    Attributes:
        form: the words
        lemma, upos, xpos, feats, deprel, deps, misc: the other columns, as text; "_" where there is nothing
        head: the number of the word above, from 1 on; 0 for the root; None where there is nothing
        comments: the lines before the words, each with its "#"
        other_lines: multiword tokens (ids such as 3-4) and empty nodes (3.1), which are not words: for each the number
            of words before it, and the line

    Raises:
        ValueError: the columns have different lengths, or there is no such column

    Example:
        >>> sentence = dy.data.ConlluSentence(["dogs", "bark"], upos=["NOUN", "VERB"], head=[2, 0])
        >>> len(sentence), sentence.upos
        (2, ['NOUN', 'VERB'])
        >>> print(str(sentence).replace("\\t", " "))
        1 dogs _ NOUN _ _ 2 _ _ _
        2 bark _ VERB _ _ 0 _ _ _
        <BLANKLINE>
    """

    form: list[str]
    lemma: list[str] = field(default_factory=list)
    upos: list[str] = field(default_factory=list)
    xpos: list[str] = field(default_factory=list)
    feats: list[str] = field(default_factory=list)
    head: Heads = field(default_factory=list)
    deprel: list[str] = field(default_factory=list)
    deps: list[str] = field(default_factory=list)
    misc: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    other_lines: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.form = _as_list(self.form, "form")
        for name in _NAMES[1:]:
            values = _as_list(getattr(self, name), name)
            if values and len(values) != len(self.form):
                raise ValueError(f"ConlluSentence: {len(self.form)} words, but {len(values)} items in {name}")
            setattr(self, name, values or [None if name == "head" else "_"] * len(self.form))
        self.head = [_whole(head) for head in self.head]

    def column(self, name: str) -> list[Any]:
        """A column by its name.

        Args:
            name: one of `CONLLU_COLUMNS` but ID, in upper or lower case

        Example:
            >>> dy.data.ConlluSentence(["dogs", "bark"], upos=["NOUN", "VERB"]).column("UPOS")
            ['NOUN', 'VERB']
        """
        if name.lower() not in _NAMES:
            raise ValueError(f"ConlluSentence.column: {name!r:.80} is none of {', '.join(CONLLU_COLUMNS[1:])}")
        found: list[Any] = getattr(self, name.lower())
        return found

    def is_tree(self) -> bool:
        """Whether one word has the head 0, and all other words are below it.

        Example:
            >>> dy.data.ConlluSentence(["dogs", "bark"], head=[2, 0]).is_tree()
            True
            >>> dy.data.ConlluSentence(["dogs", "bark"], head=[2, 1]).is_tree()
            False
        """
        reached = {0}
        for word in range(1, len(self) + 1):
            path: dict[int, None] = {}
            while word not in reached:
                head = self.head[word - 1]
                if word in path or head is None or not 0 <= head <= len(self):
                    return False
                path[word] = None
                word = head
            reached.update(path)
        return self.head.count(0) == 1

    def __len__(self) -> int:
        return len(self.form)

    def __str__(self) -> str:
        """The sentence in CoNLL-U, which `read_conllu` reads.

        Raises:
            TypeError: an item of a column but HEAD is no text
            ValueError: an item is empty, or has a tab or a line end; a head is not a word of the sentence; a comment
                does not begin with "#"
        """
        rows = [self._row(number) for number in range(len(self))]
        lines = [*self.comments, *(line for before, line in self.other_lines if before == 0)]
        for number, row in enumerate(rows, 1):
            lines += [row, *(line for before, line in self.other_lines if before == number)]
        for line in lines:
            if not line or _UNWRITABLE.search(line):
                raise ValueError(f"ConlluSentence: a line cannot be written: {line!r:.80}")
        for comment in self.comments:
            if not comment.startswith("#") or comment.startswith(_GLOBAL):
                raise ValueError(f"ConlluSentence: a comment must begin with '#', not {comment!r:.80}")
        for before, line in self.other_lines:
            name, *cells = line.split("\t")
            if before > len(self) or len(cells) != len(_NAMES) or not _comes_after(name, before):
                raise ValueError(f"ConlluSentence: no line to stand behind word {before}: {line!r:.80}")
        if (end := _last_word(self.other_lines)) > len(self):
            raise ValueError(f"ConlluSentence: a multiword token goes on to word {end}, there are {len(self)}")
        return "".join(f"{line}\n" for line in lines)

    def _row(self, number: int) -> str:
        cells = [str(number + 1)]
        for name in _NAMES:
            values = getattr(self, name)
            if len(values) != len(self):
                raise ValueError(f"ConlluSentence: {len(self)} words, but {len(values)} items in {name}")
            value = values[number]
            if name == "head":
                head = _whole(value)
                if head is not None and not 0 <= head <= len(self):
                    raise ValueError(f"ConlluSentence: head {head} is not a word of the sentence, of {len(self)}")
                value = head if head is None else str(head)
            cells.append("_" if value is None else _cell(value, name, number))
        return "\t".join(cells)


def _as_list(values: Any, name: str) -> list[Any]:
    """A column as a list: of an array, with numbers of Python."""
    if isinstance(values, str):
        raise TypeError(f"ConlluSentence: {name} must be a list with an item for each word, not text ({values!r:.80})")
    found: list[Any] = values if isinstance(values, list) else list(getattr(values, "tolist", lambda: values)())
    return found


def _whole(head: Any) -> int | None:
    """A head as a number of Python; floats must be whole."""
    if head is None:
        return None
    try:
        number = int(head)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != head:
        raise ValueError(f"ConlluSentence: a head must be a whole number or None, not {head!r:.80}")
    return number


def _cell(value: Any, name: str, number: int) -> str:
    place = f"ConlluSentence: {name} of word {number + 1}"
    if not isinstance(value, str):
        raise TypeError(f"{place} must be text, not {type(value).__name__} ({value!r:.80})")
    if not value or "\t" in value or _UNWRITABLE.search(value):
        raise ValueError(f"{place} is empty, or has a tab or a line end, which a column cannot hold: {value!r:.80}")
    if name == "deps" and value.isdigit():
        raise ValueError(f"{place} must be pairs of a head and a relation, such as 2:nsubj, not {value!r:.80}")
    return value


def read_conllu(
    path: FileName,
    required: Iterable[str] = (),
    *,
    layout: str | Sequence[str] = "conllu",
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[ConlluSentence]:
    """Read the sentences of a treebank in CoNLL-U, or in another layout of CoNLL's tasks.

    Multiword tokens and empty nodes are not words, so they are not in the columns; they are kept in `other_lines`.

    Args:
        path: name of the file, plain or gzipped; "-" for the standard input
        required: columns that no word may lack ("_"), such as ``["UPOS", "HEAD"]``. With "HEAD" the heads of each
            sentence must also form a tree with one root.
        layout: "conllu"; "conllx" (tasks of 2006 and 2007: the two columns behind DEPREL are left out); "conll09"
            (2009: the columns without a P that have a counterpart, the part of speech as XPOS); or the names of the
            columns of the file, as in `CONLLU_COLUMNS`, with "" for those to leave out. A first line
            "# global.columns = ..." of CoNLL-U Plus says them, too.
        encoding: the encoding of the text
        errors: "strict" for an error at the first bad sentence; "skip" to leave bad sentences out, with a warning that
            says how many there are

    Returns:
        list[ConlluSentence]: at least one sentence

    Raises:
        OSError: the file cannot be read
        ValueError: a line has not 10 columns (or those of the layout), ids are not 1, 2, 3..., a head is not a word of
            the sentence, a required column is empty, DEPS are those of another layout, the text is not in the encoding,
            or there is no sentence. The message names the file and the line.

    Example:
        >>> from pathlib import Path
        >>> rows = ["1 Dogs dog NOUN _ _ 2 nsubj _ _", "2 bark bark VERB _ _ 0 root _ _"]
        >>> _ = Path("tiny.conllu").write_text("# text = Dogs bark\\n" + "\\n".join(rows).replace(" ", "\\t") + "\\n")
        >>> sentence = dy.data.read_conllu("tiny.conllu", required=["UPOS", "HEAD"])[0]
        >>> sentence.form, sentence.upos, sentence.head
        (['Dogs', 'bark'], ['NOUN', 'VERB'], [2, 0])
        >>> sentence.comments
        ['# text = Dogs bark']
    """
    columns = [name.upper() for name in required]
    unknown = [name for name in columns if name not in CONLLU_COLUMNS]
    if unknown:
        expected = f"expected names from {', '.join(CONLLU_COLUMNS)}"
        raise ValueError(f"read_conllu: argument required: {expected}, got {unknown[0]!r:.80}")
    if isinstance(layout, str) and layout not in _LAYOUTS:
        raise ValueError(f"read_conllu: argument layout: expected one of {', '.join(_LAYOUTS)}, got {layout!r:.80}")
    source = TextFile(path, "a treebank", encoding, errors)
    reader = _Reader(
        [CONLLU_COLUMNS.index(name) for name in columns], _LAYOUTS[layout] if isinstance(layout, str) else layout
    )
    return source.items(reader.sentences(source), reader.sentence, "sentence")


class _Reader:
    """Makes sentences of lines.

    Args:
        required: the places of required columns in CoNLL-U
        layout: the names of the columns of the file
    """

    def __init__(self, required: Sequence[int], layout: Sequence[str]) -> None:
        self._required = required
        self._set_layout(layout)

    def _set_layout(self, layout: Sequence[str]) -> None:
        names = [name.upper() for name in layout]
        if "ID" not in names or "FORM" not in names:
            raise ValueError(f"read_conllu: argument layout: no columns ID and FORM in {', '.join(names)!r:.200}")
        self._width, self._grows = len(names), tuple(layout) == _LAYOUTS["conll09"]
        self._places = [names.index(name) if name in names else None for name in CONLLU_COLUMNS]

    def sentences(self, lines: Iterable[Line]) -> Iterator[list[Line]]:
        """The lines of each sentence."""
        for block in blocks(lines):
            number, first = block[0]
            if number == 1 and first.startswith(_GLOBAL):
                self._set_layout(first[len(_GLOBAL) :].split())
                del block[0]
            if not all(line.startswith("#") for _, line in block):
                yield block

    def sentence(self, lines: Sequence[Line]) -> ConlluSentence:
        """The sentence of some lines."""
        comments: list[str] = []
        rows: list[list[str]] = []
        numbers: list[int] = []
        others: list[tuple[int, str]] = []
        for number, line in lines:
            if line.startswith("#"):
                comments.append(line)
                continue
            cells = self._cells(number, line)
            if cells[0] == str(len(rows) + 1):
                rows.append(cells)
                numbers.append(number)
            elif _comes_after(cells[0], len(rows)):
                others.append((len(rows), "\t".join(cells)))
            else:
                place = f"word {len(rows) + 1} of the sentence"
                raise LineError(number, f"{place} has the id {cells[0]!r:.80} (is a blank line missing?)")
        if (end := _last_word(others)) > len(rows):
            raise LineError(number, f"a multiword token goes on to word {end}, there are {len(rows)}")
        for number, cells in zip(numbers, rows):
            self._check(number, cells)
        columns: list[Any] = [list(column) for column in zip(*rows)]
        columns[_HEAD] = [_head(number, cells, len(rows)) for number, cells in zip(numbers, rows)]
        sentence = ConlluSentence(**dict(zip(_NAMES, columns[1:])), comments=comments, other_lines=others)
        if _HEAD in self._required and not sentence.is_tree():
            raise LineError(numbers[0], "the sentence that begins here must have one root and no cycle")
        return sentence

    def _cells(self, number: int, line: str) -> list[str]:
        """The ten columns of a line, those of CoNLL-U."""
        cells = line.split("\t")
        if len(cells) != self._width and not (self._grows and len(cells) > self._width):
            has = "CoNLL-U has 10" if self._width == len(CONLLU_COLUMNS) else f"the layout has {self._width}"
            raise LineError(number, f"{len(cells)} columns separated by tabs, {has}; layout= is for other files")
        return ["_" if place is None else cells[place] for place in self._places]

    def _check(self, number: int, cells: Sequence[str]) -> None:
        for column in self._required:
            if cells[column] in ("", "_"):
                raise LineError(number, f"no {CONLLU_COLUMNS[column]} for the word {cells[1]!r:.80}")
        if cells[_DEPS].isdigit():
            raise LineError(number, f"DEPS {cells[_DEPS]!r:.80} is a head alone, as in CoNLL-X: layout='conllx'")


def _comes_after(name: str, words: int) -> bool:
    """Whether an id is that of a multiword token, or of an empty node, that can come after so many words."""
    if multiword := _MULTIWORD.fullmatch(name):
        return words + 1 == int(multiword[1]) <= int(multiword[2])
    node = _EMPTY_NODE.fullmatch(name)
    return node is not None and int(node[1]) == words


def _last_word(others: Iterable[tuple[int, str]]) -> int:
    """The last word of the multiword tokens among lines; 0 if there are none."""
    found = [_MULTIWORD.match(line) for _, line in others]
    return max((int(multiword[2]) for multiword in found if multiword), default=0)


def _head(number: int, cells: Sequence[str], words: int) -> int | None:
    text = cells[_HEAD]
    if text in ("", "_"):
        return None
    if not _NUMBER.fullmatch(text) or int(text) > words:
        raise LineError(number, f"HEAD {text!r:.80} is not a word of the sentence, which has {words}")
    return int(text)
