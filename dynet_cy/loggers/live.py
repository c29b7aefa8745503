"""Live curves: on a page and in a notebook, while a model trains."""

from __future__ import annotations

import os
import time
from html import escape
from typing import Any

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import write_file
from dynet_cy.loggers.curves import Kept
from dynet_cy.loggers.logger import needed

# Drawing may take this share of the time: epochs are shown at once, of numbers of each update only some.
_SHARE = 0.02


class _Live(Kept):
    """Curves that are shown again when there are new ones, as often as the time allows, and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._begun, self._spent = time.perf_counter(), 0.0

    def _show(self, last: bool) -> None:
        raise NotImplementedError

    def _show_in_time(self) -> None:
        now = time.perf_counter()
        if self._spent <= _SHARE * (now - self._begun):
            self._show(last=False)
            self._spent += time.perf_counter() - now

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        self._show_in_time()

    def record_text(self, name: str, text: str, step: float) -> None:
        self._show_in_time()

    def record_artefact(self, path: str) -> None:
        self._show_in_time()

    def end(self, status: str) -> None:
        self._show(last=True)


class Page(_Live):
    """Writes a page with the curves so far; a browser reloads it until the training ends.

    It is one file without scripts that needs no server and no other package. At most 2 % of the time goes into drawing.

    Args:
        path: the file, such as "curves.html"
        title: the title of the page; None: the name of the file
        seconds: after how many seconds the browser loads it again

    Attributes:
        values: for each name a list of pairs of a step and a number
        texts: the texts, each with its step and its name
        artefacts: the paths of the files

    Raises:
        OSError: the file cannot be written

    Example:
        >>> from pathlib import Path
        >>> with loggers.Page("curves.html") as page:
        ...     for epoch in range(3):
        ...         page.log({"loss": 1 / (epoch + 1)}, epoch)
        >>> "<svg" in Path("curves.html").read_text()
        True
    """

    def __init__(self, path: FileName, title: str | None = None, seconds: int = 5) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._title = os.path.basename(self._path) if title is None else title
        self._seconds = seconds
        if self.writes:
            self._show(last=False)

    def _show(self, last: bool) -> None:
        again = "" if last else f'<meta http-equiv="refresh" content="{self._seconds}">'
        page = (
            f'<!DOCTYPE html><html lang="en"><meta charset="utf-8">{again}<title>{escape(self._title)}</title>'
            f"<h1>{escape(self._title)}</h1>{self._repr_html_()}</html>\n"
        )
        write_file(self._path, page.encode())


class Notebook(_Live):
    """Draws curves below a notebook cell while it runs, in at most 2 % of the time.

    It needs IPython, which runs notebooks: ``pip install 'dynet_cy[notebook]'``.

    Attributes:
        values: for each name a list of pairs of a step and a number
        texts: the texts, each with its step and its name
        artefacts: the paths of the files

    Raises:
        ImportError: IPython is not installed

    Example:
        >>> def training(watched):                       # with loggers.Notebook() as watched
        ...     watched.log({"loss": 0.5}, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self._display: Any = needed("IPython.display", "Notebook", "notebook")
        self._handle: Any = None

    def _show(self, last: bool) -> None:
        if self._handle is None:
            self._handle = self._display.display(self, display_id=True)
        else:
            self._handle.update(self)
