"""Loggers that write a line for each step: CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from typing import Any

from dynet_cy.files.replacing import naming, write_file
from dynet_cy.loggers.logger import FileName, Logger

__all__ = ["CSV", "JSONL"]

Row = dict[str, Any]


class Lines(Logger):
    """A file with a line for each record, which is complete after each call: a process that is killed loses nothing.

    A file that is there already is continued, as after a restart from a checkpoint.
    """

    def __init__(self, path: FileName) -> None:
        self._path = os.fspath(path)
        if self.writes:
            with naming(self._path):
                os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
                self._append("")

    def _append(self, text: str) -> None:
        with naming(self._path), open(self._path, "a", encoding="utf-8", newline="") as file:
            file.write(text)

    def _write(self, row: Row) -> None:
        raise NotImplementedError

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        self._write({"step": step, **numbers})

    def record_text(self, name: str, text: str, step: float) -> None:
        self._write({"step": step, name: text})

    def record_artefact(self, path: str) -> None:
        self._write({"artefact": path})


class JSONL(Lines):
    """A file with an object of JSON in each line: the step, and numbers or a text by name; or the path of an artefact.

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
    """A table in a CSV file with a column for each name, and one for the step: `pandas.read_csv` reads it.

    A name that is new adds a column: the file is then written again. A file that is there already is continued.

    Args:
        path: the file; its folder is made if there is none

    Raises:
        OSError: the file cannot be written
        ValueError: there is such a file, whose first column is not "step"

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

    def _rows(self) -> list[list[str]]:
        with open(self._path, encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def _write(self, row: Row) -> None:
        new = [name for name in ("step", *row) if name not in self._columns]
        if new:
            old = self._rows()[1:]
            self._columns = [*self._columns, *dict.fromkeys(new)]
            padded = [[*cells, *[""] * (len(self._columns) - len(cells))] for cells in old]
            write_file(self._path, _text([self._columns, *padded]).encode())
        self._append(_text([[row.get(name, "") for name in self._columns]]))


def _text(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
