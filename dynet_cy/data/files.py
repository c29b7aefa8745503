"""The lines of text files."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from dynet_cy.files.reading import FileName, is_plain, not_whole, text_bytes


def read_text(path: FileName, encoding: str = "utf-8") -> str:
    """The whole text of a file, plain or gzipped, without a byte order mark, with line feeds at the ends of lines.

    Args:
        path: name of the file
        encoding: the encoding of the text

    Raises:
        OSError: the file cannot be read
        ValueError: it is not text in that encoding, or a gzip file is not whole

    Example:
        >>> from pathlib import Path
        >>> _ = Path("text.txt").write_text("to be or not\\n")
        >>> dy.data.read_text("text.txt")
        'to be or not\\n'
    """
    name = os.fspath(path)
    file, encoding = text_bytes(name, "a text", encoding)
    try:
        with file:
            return file.read().decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {error}; encoding= is for other text") from error
    except not_whole() as error:
        raise ValueError(f"{name}: not a whole gzip file: {error}") from error


class Lines(Sequence[str]):
    """The lines of a text file, by their numbers from 0 on; made by `lines`.

    Only the positions of the lines are held in memory, 8 bytes each. Several threads may read at once.

    Example:
        >>> with open("numbers.txt", "w") as file:
        ...     _ = file.write("one\\ntwo\\n")
        >>> text = dy.data.lines("numbers.txt")
        >>> text[-1], text[:1]
        ('two', ['one'])
    """

    def __init__(self, path: FileName, encoding: str) -> None:
        self._path = os.fspath(path)
        self._given = encoding
        file, self._encoding = text_bytes(self._path, "a text file", encoding)
        self._file, self._content, begin = -1, b"", 0
        with file:
            if is_plain(file):
                begin, self._file = file.tell(), os.dup(file.fileno())
                weakref.finalize(self, os.close, self._file)
                self._size = os.fstat(self._file).st_size
            else:
                try:
                    self._content = file.read()
                except not_whole() as error:
                    raise ValueError(f"lines: {self._path}: not a whole gzip file: {error}") from error
                self._size = len(self._content)
        found = [np.array([begin], np.int64)]
        for start in range(begin, self._size, _BLOCK):
            block = self._read(start, min(start + _BLOCK, self._size))
            found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")).astype(np.int64) + start + 1)
        ends = np.concatenate(found)
        self._places = ends if ends[-1] == self._size else np.append(ends, self._size)

    def _read(self, begin: int, end: int) -> bytes:
        if self._file < 0:
            return self._content[begin:end]
        parts = []
        while begin < end:
            part = os.pread(self._file, end - begin, begin)
            if not part:
                raise ValueError(f"lines: {self._path} has become shorter since it was opened")
            parts.append(part)
            begin += len(part)
        return b"".join(parts)

    def __len__(self) -> int:
        return len(self._places) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> list[str]: ...

    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        i = operator.index(number)
        i += len(self) if i < 0 else 0
        if not 0 <= i < len(self):
            raise IndexError(f"lines: {self._path} has {len(self)} lines, and no line {number}")
        line = self._read(int(self._places[i]), int(self._places[i + 1]))
        try:
            return line.decode(self._encoding).rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"lines: {self._path}, line {i + 1}: {error}; encoding= is for other text") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._given)

    def __repr__(self) -> str:
        return f"<Lines of {self._path}: {len(self)}>"


_BLOCK = 1 << 20


def lines(path: FileName, encoding: str = "utf-8") -> Lines:
    """The lines of a text file as data for `batches`: a sequence of text without the ends of the lines.

    The file is read once to find the lines, and each line is read when it is needed; so all of them can be shuffled.
    A file that is compressed by gzip is unpacked into memory, and so is one in UTF-16, or with carriage returns alone.
    A byte order mark is left out.

    Args:
        path: name of the file
        encoding: the encoding of the text

    Raises:
        OSError: the file cannot be read
        ValueError: a gzip file is not whole; or, when a line is read: it is not text in that encoding, or the file has
            been truncated since

    Example:
        >>> from pathlib import Path
        >>> _ = Path("numbers.txt").write_text("one\\ntwo\\nthree\\n")
        >>> text = dy.data.lines("numbers.txt")
        >>> len(text), text[2]
        (3, 'three')
        >>> list(dy.data.batches(text, 2))
        [['one', 'two'], ['three']]
    """
    return Lines(path, encoding)


def installed(package: str, name: str) -> Path:
    """Find a data file in an installed package, such as a treebank of "turkish-treebanks".

    Args:
        package: the name by which pip installs it
        name: the name of the file, without its folders

    Raises:
        FileNotFoundError: the package is not installed, or has no such file

    Example:
        >>> dy.data.installed("numpy", "METADATA").name
        'METADATA'
    """
    from importlib import metadata  # with what it imports, it would add 13 ms to `import dynet_cy`

    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(f"no {name}: pip install {package}") from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the package {package} has no file {name}")
