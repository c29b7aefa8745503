"""Missing files: errors that name the file and its purpose."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import IO, Any, Union

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

__all__ = ["MissingFileError", "opened", "wanted"]


class MissingFileError(FileNotFoundError):
    """A FileNotFoundError, with its `errno` and `filename`, whose text is a sentence."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


@contextlib.contextmanager
def wanted(path: Path, what: str) -> Iterator[None]:
    """Around the opening of a file: where there is none, say so, and what was wanted.

    Args:
        path: the file.
        what: the kind of file, with an article, such as "a text model file".

    Raises:
        MissingFileError: the block has raised a FileNotFoundError.
    """
    try:
        yield
    except FileNotFoundError:
        name = os.fsdecode(path)
        folder = os.path.dirname(name)
        lacking = f"folder {folder!r}" if folder and not os.path.isdir(folder) else f"file {name!r}"
        within = f" for {name!r}" if lacking.startswith("folder") else ""
        raise MissingFileError(errno.ENOENT, f"there is no {lacking}{within}; wanted is {what}", name) from None


def opened(path: Path, what: str, mode: str = "rb", **options: Any) -> IO[Any]:
    """An open file; where there is none, the error is that of `wanted`."""
    with wanted(path, what):
        return open(path, mode, **options)
