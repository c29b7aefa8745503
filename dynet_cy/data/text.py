"""Text for training: tables, texts with labels, and translations."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, TypeVar, Union, overload

from dynet_cy.files.reading import FileName, Line, LineError, TextFile, single_lines

T = TypeVar("T")
Column = Union[str, int]

# Names of columns in published tables. A first line with these alone is no example.
_NAMES = """
id idx index guid label labels class category sentiment polarity target rating stars score gold_label
quality is_duplicate entailment_judgment text sentence sentence1 sentence2 question question1 question2 qid1
qid2 premise hypothesis review tweet comment title headline description body source translation src tgt trg
lemma form tags word words tag
"""
_USUAL = frozenset(_NAMES.split())
_XML = re.compile(r"\s*<(\?xml|!doctype|srcset|refset|tstset|mteval|dataset|tmx|doc|url|seg)\b", re.IGNORECASE)


class Table:
    """The rows of a text file that is a table: how its lines are divided, and which columns are wanted.

    Args:
        source: the file.
        columns: the wanted columns: names, or numbers from 0 on. Without a header, names only describe the columns,
            which are these in this order.
        separator: what stands between columns. Blanks around it belong to it if it is longer than a character.
        quotes: whether cells may be quoted as in CSV. None: unless the separator is a tab.
        header: whether the first line has the names of the columns. None: if it has all names that are wanted.

    Raises:
        ValueError: the first line does not fit these settings.
    """

    def __init__(
        self,
        source: TextFile,
        columns: Sequence[Column],
        separator: str = "\t",
        quotes: bool | None = None,
        header: bool | None = None,
    ) -> None:
        if quotes and len(separator) != 1:
            raise ValueError(f"argument separator: expected one character, as quotes=True, got {separator!r:.80}")
        self._separator = separator
        self._may_be_quoted = quotes is None and separator == "\t"
        self._quotes = (separator != "\t" and len(separator) == 1) if quotes is None else quotes
        self._wanted = list(columns)
        self._places = [column if isinstance(column, int) else place for place, column in enumerate(columns)]
        by_name = all(isinstance(column, str) for column in columns)
        self._count = len(self._places) if by_name else None  # of columns; None: as many as the first row has
        self._quoted: bool | None = None  # whether each row so far has a cell in quotes that are a part of it
        self._number, self._first = 0, "a row"
        self.rows: Iterator[list[Line]] = iter(self._records(source) if self._quotes else single_lines(source))
        for first in itertools.islice(self.rows, 1):
            self._number = first[0][0]
            try:
                cells = self._cells(first)
            except LineError:  # counted with the rows
                cells = []
            if self._is_header(cells, header, source.name):
                self._first, self._count = "the names of the columns", len(cells)
            else:
                self.rows = itertools.chain([first], self.rows)

    def _is_header(self, cells: list[str], header: bool | None, name: str) -> bool:
        """Decide what the first line is; of a header, find the places of the columns in it."""
        names = [cell.strip().strip('"').casefold() for cell in cells]
        wanted = [column for column in self._wanted if isinstance(column, str)]
        known = [column.casefold() in names for column in wanted]
        if header is None and wanted and all(known):
            header = True
        if header is None and len(cells) > 1 and _USUAL.issuperset(names):
            raise ValueError(
                f"{name}, line {self._number}: {', '.join(cells)} look like the names of columns; header=True takes "
                "them for names, by which columns= can choose, header=False for a row"
            )
        if not header:
            return False
        if all(known):
            self._places = [c if isinstance(c, int) else names.index(c.casefold()) for c in self._wanted]
        elif any(known) or len(wanted) != len(cells):
            raise ValueError(
                f"{name}, line {self._number}: the columns are {', '.join(cells)}; wanted are {', '.join(wanted)}; "
                "columns= chooses some"
            )
        return True

    @staticmethod
    def _records(lines: Iterable[Line]) -> Iterator[list[Line]]:
        """The lines of each row; a cell in quotes may have several."""
        record: list[Line] = []
        quotes = 0
        for line in lines:
            if record or line[1].strip(" "):
                record.append(line)
                quotes += line[1].count('"')
                if quotes % 2 == 0:
                    yield record
                    record, quotes = [], 0
        if record:
            yield record

    def _cells(self, lines: Sequence[Line]) -> list[str]:
        text = "\n".join(line for _, line in lines)
        if self._quotes:
            try:
                return next(csv.reader([text], delimiter=self._separator, strict=True))
            except csv.Error as error:
                raise LineError(lines[0][0], f"not a row in quotes: {error}") from None
        cells = text.split(self._separator)
        return cells if len(self._separator) == 1 else [cell.strip(" ") for cell in cells]

    def cells(self, lines: Sequence[Line]) -> tuple[str, ...]:
        """The wanted cells of a row.

        Raises:
            ValueError: it has another number of columns than it should have.
        """
        cells = self._cells(lines)
        if self._count is None:
            self._count = len(cells)
        if len(cells) != self._count or not all(-len(cells) <= place < len(cells) for place in self._places):
            raise self.unexpected(lines)
        if self._may_be_quoted and self._quoted is not False:
            self._quoted = any(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)
        return tuple(cells[place] for place in self._places)

    def full_cells(self, lines: Sequence[Line]) -> tuple[str, ...]:
        """The wanted cells of a row, none of which may be empty.

        Raises:
            ValueError: one is, or the row has another number of columns than it should have.
        """
        cells = self.cells(lines)
        if not all(cells):
            raise self.unexpected(lines)
        return cells

    def unexpected(self, lines: Sequence[Line]) -> ValueError:
        """An error for a row that does not have what is wanted."""
        *most, last = (f"column {column}" if isinstance(column, int) else column for column in self._wanted)
        named = f"{', '.join(most)} and {last}" if most else last
        between = {"\t": "tabs"}.get(self._separator, repr(self._separator))
        cells = self._cells(lines)
        counts = f"{len(cells)} column{'s' * (len(cells) != 1)}"
        ways = "separator=, columns= and header= are for other tables"
        taken = f"line {self._number} was taken for {self._first}; " if lines[0][0] > self._number else ""
        line = lines[0][1]
        return ValueError(f"expected {named}, separated by {between}, not {line!r:.80} ({counts}; {taken}{ways})")

    def check_quotes(self, name: str) -> None:
        """Raise a `ValueError` if each row has a cell in quotes, which have been taken for a part of it."""
        if self._quoted:
            raise ValueError(
                f"{name}: each row has a cell in quotes; quotes=True takes them off, quotes=False does not"
            )


def read_tsv(
    path: FileName,
    columns: Sequence[Column],
    *,
    separator: str = "\t",
    quotes: bool | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[tuple[str, ...]]:
    """Read a table with a row in each line and tabs between columns; empty lines are skipped.

    Args:
        path: name of the file, plain or gzipped
        columns: the wanted columns, whose cells may not be empty. Names: if the first line has them all, it is a
            header, and the columns with these names are returned; otherwise the file has these columns alone, in this
            order. Or numbers from 0 on, which may leave some columns out.
        separator: what stands between columns, such as "," for CSV
        quotes: whether cells may stand in quotes, which are taken off, and have separators and line ends in them, as in
            CSV. None: if the separator is not a tab
        header: whether the first line has the names of columns. None: if it has all that are wanted; a line with other
            names that are usual is an error
        encoding: the encoding of the text
        errors: "strict" for an error at the first bad row; "skip" to leave bad rows out, with a warning that says how
            many there are

    Returns:
        A tuple for each row, with a text for each column; at least one.

    Raises:
        OSError: the file cannot be read
        ValueError: a line has another number of columns or an empty one, is not text in the encoding, or there is no
            row. The message names the file and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("forms.tsv").write_text("go\\twent\\tV;PST\\nox\\toxen\\tN;PL\\n")
        >>> dy.data.read_tsv("forms.tsv", ["lemma", "form", "tags"])
        [('go', 'went', 'V;PST'), ('ox', 'oxen', 'N;PL')]
        >>> _ = Path("forms.csv").write_text('form,"lemma"\\n"oxen",ox\\n')
        >>> dy.data.read_tsv("forms.csv", ["lemma", "form"], separator=",")
        [('ox', 'oxen')]
    """
    source = TextFile(path, "a table", encoding, errors)
    table = Table(source, columns, separator, quotes, header)
    found = source.items(table.rows, table.full_cells, "row")
    table.check_quotes(source.name)
    return found


@overload
def read_labelled(
    path: FileName,
    *,
    label_last: bool = ...,
    tokenize: None = ...,
    columns: tuple[Column, Column] | None = ...,
    separator: str = ...,
    quotes: bool | None = ...,
    header: bool | None = ...,
    encoding: str = ...,
    errors: str = ...,
) -> list[tuple[list[str], str]]: ...


@overload
def read_labelled(
    path: FileName,
    *,
    label_last: bool = ...,
    tokenize: Callable[[str], T],
    columns: tuple[Column, Column] | None = ...,
    separator: str = ...,
    quotes: bool | None = ...,
    header: bool | None = ...,
    encoding: str = ...,
    errors: str = ...,
) -> list[tuple[T, str]]: ...


def read_labelled(
    path: FileName,
    *,
    label_last: bool = False,
    tokenize: Callable[[str], Any] | None = None,
    columns: tuple[Column, Column] | None = None,
    separator: str = "\t",
    quotes: bool | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[tuple[Any, str]]:
    """Read texts with labels, such as reviews and stars: on each line a label, a tab and a text.

    In a file of fastText, whose lines begin with ``__label__good``, a blank stands behind the label, too.

    Args:
        path: name of the file, plain or gzipped
        label_last: whether the text comes first
        tokenize: a function that splits a text into words; by default at blanks and tabs, as `str.split` does
        columns: the columns of the label and of the text, for tables with more columns: numbers from 0 on, or the names
            that the first line has. None: there are two; an error where their contents look exchanged
        separator, quotes, header, encoding, errors: see `read_tsv`

    Returns:
        The words and the label of each line; at least one. A text may be empty.

    Raises:
        OSError: the file cannot be read
        ValueError: a line has no label or another number of columns, is not text in the encoding, or there is none. The
            message names the file and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("reviews.tsv").write_text("good\\tWhat a film\\nbad\\tNo plot at all\\n")
        >>> dy.data.read_labelled("reviews.tsv")
        [(['What', 'a', 'film'], 'good'), (['No', 'plot', 'at', 'all'], 'bad')]
        >>> dy.data.read_labelled("reviews.tsv", tokenize=str.lower)
        [('what a film', 'good'), ('no plot at all', 'bad')]
        >>> _ = Path("reviews.csv").write_text('id,review,stars\\n1,"Long, dull",2\\n')
        >>> dy.data.read_labelled("reviews.csv", columns=("stars", "review"), separator=",")
        [(['Long,', 'dull'], '2')]
    """
    split = tokenize or str.split
    source = TextFile(path, "a file of texts with labels", encoding, errors)
    wanted: Sequence[Column] = columns or (("text", "label") if label_last else ("label", "text"))
    back = label_last and columns is None
    table = Table(source, wanted, separator, quotes, header)
    pairs: list[tuple[str, str]] = []

    def labelled(lines: Sequence[Line]) -> tuple[Any, str]:
        if lines[0][1].startswith(_FASTTEXT):
            label, text = _of_fasttext(lines[0][1])
        else:
            label, text = table.cells(lines)[:: -1 if back else 1]
            if not label:
                raise table.unexpected(lines)
        pairs.append((label, text))
        return split(text), label

    found = source.items(table.rows, labelled, "text")
    table.check_quotes(source.name)
    if columns is None and _are_exchanged(pairs):
        ways = "label_last=False" if label_last else "label_last=True"
        order = "(1, 0)" if label_last else "(0, 1)"
        raise ValueError(
            f"{source.name}: labels such as {pairs[0][0]!r:.40} and texts such as {pairs[0][1]!r:.40} look exchanged: "
            f"{ways} is for the other order, columns={order} for this one"
        )
    return found


_FASTTEXT = "__label__"


def _of_fasttext(line: str) -> tuple[str, str]:
    label, *rest = line.split(None, 1)
    text = rest[0] if rest else ""
    if text.startswith(_FASTTEXT):
        raise ValueError(f"several labels, where one is expected: {line!r:.80}")
    return label[len(_FASTTEXT) :], text


def _are_exchanged(pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether all labels have several words, and no text has; or all labels differ, and texts are repeated often."""
    labels, texts = {label for label, _ in pairs}, {text for _, text in pairs}
    several = all(" " in label for label in labels) and not any(" " in text for text in texts)
    return len(pairs) > 1 and (several or (len(labels) == len(pairs) > 3 and len(texts) <= len(pairs) // 2))


@overload
def read_parallel(
    source: FileName,
    target: FileName | None = ...,
    *,
    tokenize: None = ...,
    columns: tuple[Column, Column] | None = ...,
    separator: str = ...,
    quotes: bool | None = ...,
    header: bool | None = ...,
    encoding: str = ...,
    errors: str = ...,
) -> list[tuple[list[str], list[str]]]: ...


@overload
def read_parallel(
    source: FileName,
    target: FileName | None = ...,
    *,
    tokenize: Callable[[str], T],
    columns: tuple[Column, Column] | None = ...,
    separator: str = ...,
    quotes: bool | None = ...,
    header: bool | None = ...,
    encoding: str = ...,
    errors: str = ...,
) -> list[tuple[T, T]]: ...


def read_parallel(
    source: FileName,
    target: FileName | None = None,
    *,
    tokenize: Callable[[str], Any] | None = None,
    columns: tuple[Column, Column] | None = None,
    separator: str = "\t",
    quotes: bool | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[tuple[Any, Any]]:
    """Read parallel text: sentences and their translations.

    Args:
        source: name of the file with the sentences, one on each line, plain or gzipped
        target: name of the file with their translations, on the same lines. None: each line of `source` is a sentence,
            a tab and its translation.
        tokenize: a function that splits a sentence into words; by default at blanks, as `str.split` does
        columns: of a single file, the columns of the sentence and of its translation, if there are more
        separator, quotes, header: of a single file, see `read_tsv`; "|||" is the separator of aligners
        encoding: the encoding of the text
        errors: "skip" leaves out bad lines, see `read_tsv`, of two files with those of the same numbers

    Returns:
        The words of each sentence and of its translation; at least one pair. An empty line is an empty list.

    Raises:
        OSError: a file cannot be read
        ValueError: the files have different numbers of lines, but for empty ones at the end; a line of a single file
            has not two columns, is not text in the encoding, a file is XML, or there are no lines. The message names
            the file and, where one is wrong, the line.

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
    file = TextFile(source, "a file of sentences", encoding, errors)
    if target is None:
        table = Table(file, columns or ("sentence", "translation"), separator, quotes, header)

        def pair(lines: Sequence[Line]) -> tuple[Any, Any]:
            first, second = table.cells(lines)
            return split(first), split(second)

        found = file.items(table.rows, pair, "pair")
        table.check_quotes(file.name)
        return found
    other = TextFile(target, "a file of translations", encoding, errors)
    sides = [list(file), list(other)]
    fewer, more = sorted(sides, key=len)
    while len(more) > len(fewer) and not more[-1][1].strip():
        more.pop()
    if len(more) != len(fewer):
        have = f"{file.name} has {len(sides[0])} lines, {other.name} has {len(sides[1])}"
        raise ValueError(f"{have}: the sentences and their translations must be on the same lines")

    def both(lines: Sequence[Line]) -> tuple[Any, Any]:
        number, first = lines[0]
        second = sides[1][number - 1]
        try:
            other.check(second)
        except LineError as error:
            raise LineError(number, f"of {other.name}: {error}") from None
        for one in (first, second[1]):
            if _XML.match(one):
                raise LineError(number, f"{one!r:.80} is XML; a sentence on each line is needed")
        return split(first), split(second[1])

    return file.items(([line] for line in sides[0]), both, "pair")
