"""Sentences with named entities, in the layouts of shared tasks and corpora."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dynet_cy.data.metrics import is_tag, to_bio
from dynet_cy.files.reading import FileName, Line, LineError, TextFile, blocks, single_lines

_COMMENTS = ("# ", "#\t", "#begin ", "#end ")  # the last two are of OntoNotes


def read_entities(
    path: FileName,
    separator: str | None = None,
    *,
    word: int | None = None,
    tag: int = -1,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[tuple[list[str], list[str]]]:
    """Read sentences with named entities or chunks: I-PER or B-PER begins one of the kind PER.

    All words must have as many columns as most have.

    Args:
        path: name of the file, plain or gzipped
        separator: None: a line for each word, with columns, and an empty line behind each sentence, as in CoNLL-2000,
            2002, 2003, 2012 and WNUT. Columns are separated by tabs if a line has one, otherwise by blanks. Lines that
            begin with "-DOCSTART-" are left out, and so are comments, which begin with "#" and are no word with a tag.
            Otherwise a line for each sentence, with words and tags such as ``Paris|I-LOC`` or ``Paris|NNP|I-LOC``, as
            in WikiNER, for "|".
        word: the number of the column of words, from 0 on. None: the first, and an error if it numbers the words
        tag: the number of the column of tags; -1 for the last. CoNLL-2012, for instance, has ``word=3, tag=10``.
        encoding: the encoding of the text: CoNLL-2002 and the German part of CoNLL-2003 have "latin-1"
        errors: "strict" for an error at the first bad sentence; "skip" to leave bad sentences out, with a warning that
            says how many there are

    Returns:
        The words and the tags of each sentence, the tags as BIO, see `metrics.to_bio`; at least one.

    Raises:
        OSError: the file cannot be read
        ValueError: a word has no tag or another number of columns, the words are numbers, a line is not text in the
            encoding, or there is no sentence. The message names the file and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("train.conll").write_text("Alice NNP I-PER\\nsees VBZ O\\nParis NNP I-LOC\\n\\n")
        >>> dy.data.read_entities("train.conll")
        [(['Alice', 'sees', 'Paris'], ['B-PER', 'O', 'B-LOC'])]
        >>> _ = Path("train.txt").write_text("Alice|I-PER sees|O Paris|I-LOC\\n")
        >>> dy.data.read_entities("train.txt", "|")
        [(['Alice', 'sees', 'Paris'], ['B-PER', 'O', 'B-LOC'])]
    """
    source = TextFile(path, "a file of words with tags", encoding, errors)
    sentences = list(single_lines(source) if separator else _sentences(source))
    # A word may contain the separator, so most words say how many columns there are.
    counts = Counter(len(cells) for lines in sentences for _, cells in _rows(lines, separator))
    count = max(counts, key=lambda columns: (columns > 1, counts[columns], -columns), default=0)
    for name, column in (("word", word or 0), ("tag", tag)):
        if counts and not -count <= column < count:
            raise ValueError(f"{source.name}: argument {name}: there are {count} columns, and no column {column}")

    def sentence(lines: Sequence[Line]) -> tuple[list[str], list[str]]:
        words, tags = [], []
        for number, cells in _rows(lines, separator, count):
            if not len(cells) == count > 1 or not is_tag(cells[tag]):
                raise LineError(number, _no_tag(cells, count, tag))
            words.append(cells[word or 0])
            tags.append(cells[tag])
            if not words[-1]:
                raise LineError(number, f"no word at the tag {tags[-1]!r:.80}")
        return words, to_bio(tags)

    kept = sentences if separator else [lines for block in sentences if (lines := _without_comments(block, count, tag))]
    found = source.items(kept, sentence, "sentence")
    if word is None and _are_numbers([words for words, _ in found]):
        raise ValueError(f"{source.name}: the first column numbers the words; word= says which one has them, and tag=")
    return found


def _sentences(lines: Iterable[Line]) -> Iterator[list[Line]]:
    return blocks((number, "" if line.startswith("-DOCSTART-") else line) for number, line in lines)


def _rows(lines: Sequence[Line], separator: str | None, count: int = 0) -> Iterator[tuple[int, list[str]]]:
    """The columns of each word: at most `count`, of which the first may contain the separator; 0 for all."""
    for number, line in lines:
        if separator is None:
            yield number, _cells(line)
        else:
            for token in line.replace("\t", " ").split(" "):  # a word may have a no-break space
                if token:
                    yield number, token.rsplit(separator, count - 1)


def _cells(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def _without_comments(lines: list[Line], count: int, tag: int) -> list[Line]:
    """The lines behind the comments with which a sentence may begin; a word may be "#", too."""
    for place, (_, line) in enumerate(lines):
        cells = _cells(line)
        if not line.startswith(_COMMENTS) or (len(cells) == count and is_tag(cells[tag])):
            return lines[place:]
    return []


def _no_tag(cells: list[str], count: int, tag: int) -> str:
    message = f"no tag (O, B-... or I-...) at {cells[0]!r:.80}"
    if len(cells) != count:
        return f"{message}: {len(cells)} columns, where most words have {count}"
    if count == 1:
        return f"{message}: one column; separator= is for lines such as Paris|I-LOC"
    return f"{message}: column {tag % count} of {count} has {cells[tag]!r:.80}; word= and tag= choose columns"


def _are_numbers(sentences: list[list[str]]) -> bool:
    several = any(len(words) > 1 for words in sentences)
    return several and all(words == [str(i + 1) for i in range(len(words))] for words in sentences)
