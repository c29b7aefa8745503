"""The interface of all loggers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from dynet_cy.files.reading import FileName, wanted
from dynet_cy.parallel.runtime import rank

Self = TypeVar("Self", bound="Logger")


class Logger:
    """The interface of all loggers: numbers, texts and files of a training.

    A context manager that closes the logger. With several processes, only rank 0 writes; the other ranks may make the
    same calls. A logger of one's own overrides `record_numbers`, and what else it can do: `record_text`,
    `record_artefact`, `end`. These are called on rank 0 only.

    Example:
        >>> class Printer(loggers.Logger):
        ...     def record_numbers(self, numbers, step):
        ...         print(step, numbers)
        >>> with Printer() as printer:
        ...     printer.log({"loss": 0.5}, 1)
        1 {'loss': 0.5}
    """

    _open = True

    @property
    def writes(self) -> bool:
        """Whether this process writes: rank 0 does, until the logger closes.

        Example:
            >>> loggers.Logger().writes
            True
        """
        return self._open and rank() == 0

    def log(self, numbers: Mapping[str, float], step: float) -> None:
        """Record the numbers of one step.

        Args:
            numbers: by their names, such as ``{"loss": 0.5}``
            step: the position on the x axis: an epoch, an update, words seen

        Raises:
            OSError: the file cannot be written
            TypeError, ValueError: a value is not a number

        Example:
            >>> from pathlib import Path
            >>> with loggers.CSV("run.csv") as log:
            ...     log.log({"loss": 0.5, "accuracy": 0.75}, 1)
            >>> print(Path("run.csv").read_text())
            step,loss,accuracy
            1,0.5,0.75
        """
        if self.writes:
            self.record_numbers({name: float(value) for name, value in numbers.items()}, step)

    def log_text(self, name: str, text: str, step: float) -> None:
        """Record a text, such as an output of the model.

        Args:
            name: what the text is, as for a number
            text: the text
            step: the position on the x axis

        Raises:
            OSError: the file cannot be written

        Example:
            >>> from pathlib import Path
            >>> with loggers.JSONL("run.jsonl") as log:
            ...     log.log_text("sample", "a cat sat", 1)
            >>> print(Path("run.jsonl").read_text())
            {"step": 1, "sample": "a cat sat"}
        """
        if self.writes:
            self.record_text(name, text, step)

    def log_artefact(self, path: FileName) -> None:
        """Record a file, such as the one of a model. Services upload it; other loggers note where it is.

        Args:
            path: the file

        Raises:
            FileNotFoundError: there is no such file

        Example:
            >>> from pathlib import Path
            >>> dy.save_safetensors("model.safetensors", model)
            >>> with loggers.JSONL("run.jsonl") as log:
            ...     log.log_artefact("model.safetensors")
            >>> print(Path("run.jsonl").read_text())
            {"artefact": "model.safetensors"}
        """
        if self.writes:
            with wanted(path, "an artefact to record"):
                os.stat(path)
            self.record_artefact(os.fspath(path))

    def close(self) -> None:
        """End the log; a second call does nothing.

        Raises:
            OSError: the file cannot be written

        Example:
            >>> loggers.Curves().close()
        """
        self._close("FINISHED")

    def _close(self, status: str) -> None:
        if self.writes:
            self._open = False
            self.end(status)

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        """Write numbers. To be overridden.

        Args:
            numbers: by their names
            step: the position on the x axis

        Example:
            >>> loggers.Curves().record_numbers({"loss": 0.5}, 1)
        """
        raise NotImplementedError(f"{type(self).__name__} has no method record_numbers(numbers, step)")

    def record_text(self, name: str, text: str, step: float) -> None:
        """Write a text. To be overridden; otherwise texts are dropped.

        Args:
            name: what the text is
            text: the text
            step: the position on the x axis

        Example:
            >>> loggers.Logger().record_text("sample", "a cat sat", 1)
        """

    def record_artefact(self, path: str) -> None:
        """Write a file, or where it is. To be overridden; otherwise files are not mentioned.

        Args:
            path: the file, which exists

        Example:
            >>> loggers.Logger().record_artefact("model.safetensors")
        """

    def end(self, status: str) -> None:
        """Write what is left. To be overridden.

        Args:
            status: "FINISHED"; "FAILED" if the block ended by an exception; "KILLED" by Ctrl-C, or if the loop over the
                epochs of a `Training` was left before its end

        Example:
            >>> loggers.Logger().end("FINISHED")
        """

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        left = kind is not None and issubclass(kind, (GeneratorExit, KeyboardInterrupt))
        self._close("FINISHED" if kind is None else "KILLED" if left else "FAILED")


def needed(package: str, user: str, extra: str) -> Any:
    """A package that is an extra; where it is not installed, the error says how to install it."""
    try:
        found: ModuleType = importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{user} needs the package {package}: pip install 'dynet_cy[{extra}]' ({error})") from None
    return found
