"""Loggers that write a line for each step: CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import warnings
from collections.abc import Iterable
from typing import Any

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import naming, write_file
from dynet_cy.loggers.logger import Logger

Row = dict[str, Any]


class Lines(Logger):
    """A file with a line for each record, which is complete after each call: a process that is killed loses nothing.

    A file that is there already is continued, as after a restart from a checkpoint. A last line that has no end was
    only written in part: it is left out, with a warning.
    """

    def __init__(self, path: FileName) -> None:
        self._path = os.fspath(path)
        if self.writes:
            with naming(self._path):
                os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
                if os.path.isfile(self._path):
                    self._remove_part()
                self._append("")

    def _remove_part(self) -> None:
        """Remove a line without an end, of which the process that wrote it was killed."""
        with open(self._path, "r+b") as file:
            content = file.read()
            whole = self._whole(content)
            if whole < len(content):
                part = content[whole:].decode("utf-8", "replace")
                warnings.warn(f"{self._path}: its last line is not whole, and is left out: {part!r:.100}", stacklevel=5)
                file.truncate(whole)

    def _whole(self, content: bytes) -> int:
        """The number of bytes up to the end of the last whole line."""
        return content.rfind(b"\n") + 1

    def _append(self, text: str) -> None:
        with naming(self._path), open(self._path, "ab") as file:
            file.write(text.encode())

    def _write(self, row: Row) -> None:
        raise NotImplementedError

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        self._write({"step": step, **self._named(numbers)})

    def record_text(self, name: str, text: str, step: float) -> None:
        self._write({"step": step, **self._named({name: text})})

    def record_artefact(self, path: str) -> None:
        self._write({"artefact": path})

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values, by names that a column may have.

        Raises:
            TypeError: a name is no text.
            ValueError: it is "step", or empty.
        """
        for name in values:
            if not isinstance(name, str):
                raise TypeError(f"{type(self).__name__}: a name must be text, not {type(name).__name__} ({name!r:.80})")
            if name in ("", "step", "artefact"):
                raise ValueError(f"{type(self).__name__}: {name!r} cannot be the name of a value")
        return values


class JSONL(Lines):
    """Writes a JSON object in each line: the step, and numbers or a text by name, or the path of an artefact.

    A number that is not finite is null. A file that is there already is continued.

    Args:
        path: the file; its folder is made if there is none

    Raises:
        OSError: the file cannot be written

    Example:
        >>> from pathlib import Path
        >>> with loggers.JSONL("run.jsonl") as log:
        ...     log.log({"loss": 0.5}, 1)
        ...     log.log({"loss": float("nan")}, 2)
        >>> print(Path("run.jsonl").read_text())
        {"step": 1, "loss": 0.5}
        {"step": 2, "loss": null}
    """

    def _write(self, row: Row) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._append(json.dumps(finite, ensure_ascii=False) + "\n")


class CSV(Lines):
    """Writes a CSV file with a column for each name and one for the step; `pandas.read_csv` reads it.

    A name that is new adds a column: the file is then written again. An artefact stands in the row of the last step. A
    file that is there already is continued.

    Args:
        path: the file; its folder is made if there is none

    Raises:
        OSError: the file cannot be written
        ValueError: there is such a file, whose first column is not "step"; or, later, a name is "step" or
            empty, or a name or text has the character NUL

    Example:
        >>> from pathlib import Path
        >>> with loggers.CSV("run.csv") as log:
        ...     log.log({"loss": 0.5}, 1)
        ...     log.log({"loss": 0.25, "accuracy": 0.75}, 2)
        >>> print(Path("run.csv").read_text())
        step,loss,accuracy
        1,0.5,
        2,0.25,0.75
    """

    def __init__(self, path: FileName) -> None:
        super().__init__(path)
        self._columns: list[str] = []
        if self.writes:
            self._columns = next(iter(self._rows()), [])
            if self._columns and self._columns[0] != "step":
                raise ValueError(f"CSV: {self._path} is a file of another kind: its first column is not 'step'")

    def _whole(self, content: bytes) -> int:
        """The number of bytes up to the last end of a line outside quotes."""
        end = super()._whole(content)
        while end and content.count(b'"', 0, end) % 2:
            end = super()._whole(content[: end - 1])
        return end

    def _rows(self) -> list[list[str]]:
        with open(self._path, encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def _write(self, row: Row) -> None:
        if any("\0" in x for x in (*row, *row.values()) if isinstance(x, str)):  # csv reads it from Python 3.11 on
            raise ValueError(f"CSV: {self._path} cannot hold the character NUL")
        columns = [*self._columns, *(name for name in ("step", *row) if name not in self._columns)]
        if columns != self._columns:
            self._write_all(dict.fromkeys(columns), self._rows()[1:])
        self._append(_text([[row.get(name, "") for name in self._columns]]))

    def record_artefact(self, path: str) -> None:
        # In the row of the last step: a row of its own would have no step, and no numbers.
        rows = self._rows()[1:] or [["0"]]
        columns = dict.fromkeys(["step", *self._columns, "artefact"])
        place = list(columns).index("artefact")
        last = [*rows[-1], *[""] * (len(columns) - len(rows[-1]))]
        if last[place]:  # of the same step
            rows.append([last[0]])
            last = [last[0], *[""] * (len(columns) - 1)]
        rows[-1] = [*last[:place], path, *last[place + 1 :]]
        self._write_all(columns, rows)

    def _write_all(self, columns: Iterable[str], rows: list[list[str]]) -> None:
        names = list(columns)
        padded = [[*cells, *[""] * (len(names) - len(cells))] for cells in rows]
        write_file(self._path, _text([names, *padded]).encode())
        self._columns = names


def _text(rows: list[list[Any]]) -> str:
    lines = []
    for row in rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\r\n").writerow(row)  # so that cells with either end of a line are quoted
        lines.append(text.getvalue()[:-2])
    return "".join(f"{line}\n" for line in lines)
