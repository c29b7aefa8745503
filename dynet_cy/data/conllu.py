"""Treebanks in CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from dynet_cy.data.files import FileName, numbered_lines

__all__ = ["CONLLU_COLUMNS", "ConlluSentence", "read_conllu"]

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")

Heads = list[Optional[int]]

_NAMES = tuple(column.lower() for column in CONLLU_COLUMNS[1:])
_HEAD = CONLLU_COLUMNS.index("HEAD")
_MULTIWORD = re.compile(r"([1-9]\d*)-([1-9]\d*)", re.ASCII)
_EMPTY_NODE = re.compile(r"(0|[1-9]\d*)\.[1-9]\d*", re.ASCII)
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
        for name in _NAMES:
            values = getattr(self, name)
            if not values:
                setattr(self, name, [None if name == "head" else "_"] * len(self.form))
            elif len(values) != len(self.form):
                raise ValueError(f"ConlluSentence: {len(self.form)} words, but {len(values)} items in {name}")

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
        lines = []
        others = list(self.other_lines)
        for number in range(len(self) + 1):
            if number:
                cells = [self.column(name)[number - 1] for name in _NAMES]
                lines.append("\t".join([str(number), *("_" if cell is None else str(cell) for cell in cells)]))
            lines += [line for before, line in others if before == number]
        return "".join(f"{line}\n" for line in [*self.comments, *lines])


def read_conllu(path: FileName, required: Iterable[str] = ()) -> list[ConlluSentence]:
    """Read the sentences of a treebank in CoNLL-U.

    Multiword tokens and empty nodes are not words, so they are not in the columns; they are kept in `other_lines`.

    Args:
        path: name of the file, UTF-8; gzipped if it ends in ".gz"
        required: columns that no word may lack ("_"), such as ``["UPOS", "HEAD"]``. With "HEAD" the heads of each
            sentence must also form a tree with one root.

    Returns:
        list[ConlluSentence]: at least one sentence

    Raises:
        OSError: the file cannot be read
        ValueError: a line has not 10 columns, ids are not 1, 2, 3..., a head is not a word of the sentence, a required
            column is empty, the text is not UTF-8, or there is no sentence. The message names the file and the line.

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
        raise ValueError(f"read_conllu: argument required: {unknown[0]!r:.80} is none of {', '.join(CONLLU_COLUMNS)}")
    reader = _Reader([CONLLU_COLUMNS.index(name) for name in columns])
    number = 0
    for number, line in numbered_lines(path):
        try:
            reader.read(number, line)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}, line {reader.at}: {error}") from None
    try:
        reader.end(number)  # the last blank line may be missing
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}, line {reader.at}: {error}") from None
    if not reader.sentences:
        raise ValueError(f"{os.fspath(path)}: no sentence in {number} lines")
    return reader.sentences


class _Reader:
    """Collects lines into sentences; raises `ValueError` without the place, whose line is `at`."""

    def __init__(self, required: list[int]) -> None:
        self.sentences: list[ConlluSentence] = []
        self.at = 0
        self._required = required
        self._clear()

    def _clear(self) -> None:
        self._rows: list[list[str]] = []
        self._numbers: list[int] = []  # of the lines of the words
        self._comments: list[str] = []
        self._others: list[tuple[int, str]] = []
        self._multiword_end = 0

    def read(self, number: int, line: str) -> None:
        self.at = number
        if not line.strip():
            self.end(number)
        elif line.startswith("#"):
            self._comments.append(line)
        else:
            self._token(number, line)

    def _token(self, number: int, line: str) -> None:
        cells = line.split("\t")
        if len(cells) != len(CONLLU_COLUMNS):
            raise ValueError(f"{len(cells)} columns separated by tabs, CoNLL-U has {len(CONLLU_COLUMNS)}")
        if cells[0] == str(len(self._rows) + 1):
            for column in self._required:
                if cells[column] in ("", "_"):
                    raise ValueError(f"no {CONLLU_COLUMNS[column]} for the word {cells[1]!r:.80}")
            self._rows.append(cells)
            self._numbers.append(number)
        elif not self._is_other(cells[0]):
            place = f"word {len(self._rows) + 1} of the sentence"
            raise ValueError(f"{place} has the id {cells[0]!r:.80} (is a blank line missing?)")
        else:
            self._others.append((len(self._rows), line))

    def _is_other(self, name: str) -> bool:
        """Whether an id is that of a multiword token, or of an empty node, that can come next."""
        if multiword := _MULTIWORD.fullmatch(name):
            self._multiword_end = int(multiword[2])
            return len(self._rows) + 1 == int(multiword[1]) <= self._multiword_end
        node = _EMPTY_NODE.fullmatch(name)
        return node is not None and int(node[1]) == len(self._rows)

    def end(self, number: int) -> None:
        """End the sentence, if one has begun."""
        if self._rows:
            self.sentences.append(self._sentence(number))
        self._clear()

    def _sentence(self, number: int) -> ConlluSentence:
        heads = [self._head(i) for i in range(len(self._rows))]
        self.at = number
        if self._multiword_end > len(self._rows):
            raise ValueError(f"a multiword token goes on to word {self._multiword_end}, there are {len(self._rows)}")
        columns: list[Any] = [list(column) for column in zip(*self._rows)]
        columns[_HEAD] = heads
        named = dict(zip(_NAMES, columns[1:]))
        sentence = ConlluSentence(**named, comments=self._comments, other_lines=self._others)
        if _HEAD in self._required and not sentence.is_tree():
            self.at = self._numbers[0]
            raise ValueError("the sentence that begins here must have one root and no cycle")
        return sentence

    def _head(self, word: int) -> int | None:
        self.at = self._numbers[word]
        text = self._rows[word][_HEAD]
        if text in ("", "_"):
            return None
        if not _NUMBER.fullmatch(text) or int(text) > len(self._rows):
            raise ValueError(f"HEAD {text!r:.80} is not a word of the sentence, which has {len(self._rows)}")
        return int(text)
