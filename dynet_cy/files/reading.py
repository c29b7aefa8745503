"""Reading of files: one way to open them, to say that one is missing, and to treat bad lines.

A file may be compressed by gzip, whatever its name; a byte order mark is left out, and may say that the text is UTF-16
or UTF-32; lines end in a line feed, after a carriage return or not, or in carriage returns alone.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar, Union, cast

FileName = Union[str, "os.PathLike[str]"]
Path = Union[FileName, bytes, "os.PathLike[bytes]"]
Line = tuple[int, str]
T = TypeVar("T")

_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_UNDECODED = re.compile("[\udc80-\udcff]")
_OTHERS = {
    b"BZh": "it is compressed by bzip2; uncompress it first (bunzip2)",
    b"\xfd7zXZ": "it is compressed by xz; uncompress it first (unxz)",
    b"\x28\xb5\x2f\xfd": "it is compressed by zstd; uncompress it first (unzstd)",
    b"PK\x03\x04": "it is a zip archive; unpack it first (unzip)",
}


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


class LineError(ValueError):
    """A mistake in one line of an item."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def not_whole() -> tuple[type[Exception], ...]:
    """The exceptions of reading a truncated or damaged gzip file."""
    import zlib  # with the library, it would add 1 ms to `import dynet_cy`
    from gzip import BadGzipFile

    return EOFError, zlib.error, BadGzipFile


def other_format(start: bytes) -> str:
    """The compression of a file with this beginning, and advice; "" if it is not known."""
    return next((f": {what}" for mark, what in _OTHERS.items() if start.startswith(mark)), "")


def unpacked(path: Path, what: str) -> io.BufferedReader:
    """An open file of bytes, which are uncompressed if they are those of gzip.

    Args:
        path: the file.
        what: the kind of file that is wanted, with an article.

    Raises:
        OSError: the file cannot be read.
    """
    file = cast("io.BufferedReader", opened(path, what, buffering=_BLOCK))
    if file.peek(2).startswith(_GZIP):
        return io.BufferedReader(_Unpacked(file), _BLOCK)
    return file


class _Unpacked(io.RawIOBase):
    """The bytes in a gzip file, as many as there are before the place where it is cut off."""

    def __init__(self, file: io.BufferedReader) -> None:
        from gzip import GzipFile

        self._file, self._packed = file, GzipFile(fileobj=file, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._packed.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._packed.close()
        self._file.close()
        super().close()


def is_plain(file: object) -> bool:
    """Whether an open file gives the bytes of a file on disk, by their positions."""
    return isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO) and file.seekable()


def text_bytes(path: FileName, what: str, encoding: str = "utf-8") -> tuple[io.BufferedIOBase, str]:
    """An open file whose lines end in a line feed, without a byte order mark, and the encoding of its bytes.

    Args:
        path, what: see `unpacked`.
        encoding: the encoding of the text. For "utf-8", a byte order mark may say another one.

    Raises:
        OSError: the file cannot be read.
        LookupError: there is no such encoding.
        ValueError: it is compressed in another way, or it is not whole, or not text in UTF-16 or UTF-32.
    """
    encoding = codecs.lookup(encoding).name.replace("utf-8-sig", "utf-8")
    with contextlib.ExitStack() as closing:
        file = closing.enter_context(unpacked(path, what))
        try:
            start = file.peek()
            if other := other_format(start):
                raise ValueError(other[2:])
            mark = next((mark for mark in _MARKS if start.startswith(mark)), b"") if encoding == "utf-8" else b""
            encoding = _MARKS.get(mark, encoding)
            if encoding.startswith(("utf-16", "utf-32")):  # a line feed is no single byte
                text = file.read().decode(encoding).lstrip("\ufeff")
                content, encoding = text.encode("utf-8", "surrogatepass"), "utf-8"
            else:
                file.read(len(mark))
                if b"\r" not in start or b"\n" in start:
                    closing.pop_all()
                    return file, encoding
                content = file.read()
        except not_whole() as error:
            raise ValueError(f"{os.fspath(path)}: not a whole gzip file: {error}") from error
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error
    return io.BytesIO(content if b"\n" in content else content.replace(b"\r", b"\n")), encoding


class TextFile:
    """A text file that is read item by item; each iteration goes through its numbered lines.

    Bytes that are not text in the encoding are surrogates, which `check` finds.

    Args:
        path: the file; "-" for the standard input.
        what: the kind of file, with an article.
        encoding: see `text_bytes`.
        errors: "strict" for an error at the first bad item; "skip" to leave bad items out, with one warning that says
            how many there are.

    Raises:
        ValueError: `errors` is something else.
    """

    def __init__(self, path: FileName, what: str, encoding: str = "utf-8", errors: str = "strict") -> None:
        if errors not in ("strict", "skip"):
            raise ValueError(f"argument errors: expected 'strict' or 'skip', got {errors!r:.80}")
        self._path = os.fspath(path)
        self.name = "the standard input" if self._path == "-" else self._path
        self._skips = errors == "skip"
        self._what, self._encoding = what, encoding
        self.number = 0
        self._bad: list[str] = []

    def __iter__(self) -> Iterator[Line]:
        whole: contextlib.AbstractContextManager[Iterable[bytes]]
        if self._path == "-":
            whole, encoding = contextlib.nullcontext(sys.stdin.buffer), self._encoding
        else:
            whole, encoding = text_bytes(self._path, self._what, self._encoding)
        self._encoding = encoding
        self.number = 0
        with whole as file:
            try:
                for self.number, line in enumerate(file, 1):
                    yield self.number, line.decode(encoding, "surrogateescape").rstrip("\r\n")
            except not_whole() as error:
                self.bad(f"after line {self.number}: not a whole gzip file: {error}")

    def check(self, line: Line, advice: str = "; encoding= is for other text") -> None:
        """Raise a `LineError` if a line has bytes that are not text."""
        if not line[1].isascii() and _UNDECODED.search(line[1]):
            try:
                line[1].encode(self._encoding, "surrogateescape").decode(self._encoding)
            except UnicodeDecodeError as error:
                raise LineError(line[0], f"{error}{advice}") from None

    def bad(self, message: str) -> None:
        """Something is bad: an error, or one more to be counted."""
        if not self._skips:
            raise ValueError(f"{self.name}, {message}; errors='skip' skips bad lines") from None
        self._bad.append(message)

    def items(self, units: Iterable[Sequence[Line]], parse: Callable[[Sequence[Line]], T], noun: str) -> list[T]:
        """All items of the file.

        Args:
            units: the lines of each item.
            parse: makes an item of its lines; it raises `LineError`, or `ValueError` for the first line.
            noun: what an item is, such as "sentence".

        Raises:
            ValueError: an item is bad, or there is none. The message names the file and the line.
        """
        found = []
        for unit in units:
            try:
                for line in unit:
                    self.check(line)
                found.append(parse(unit))
            except ValueError as error:
                self.bad(f"line {getattr(error, 'number', unit[0][0])}: {error}")
        first = f"; the first is {self._bad[0]}" if self._bad else ""
        if not found:
            raise ValueError(f"{self.name}: no {noun} in {self.number} lines{first}")
        if self._bad:
            all_of_them = f"{len(self._bad)} of {len(found) + len(self._bad)} {noun}s are left out"
            warnings.warn(f"{self.name}: {all_of_them}{first}", stacklevel=3)
        return found


def numbered_lines(path: FileName, what: str, encoding: str = "utf-8") -> Iterator[Line]:
    """The lines of a text file without their ends, each with its number, from 1 on.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not text in that encoding, or a gzip file is not whole; it names the file and the line.
    """
    file = TextFile(path, what, encoding)
    for line in file:
        try:
            file.check(line, "")
        except LineError as error:
            raise ValueError(f"{file.name}, line {line[0]}: {error}") from None
        yield line


def single_lines(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Each line that is not empty, as an item."""
    return ([line] for line in lines if line[1].strip(" "))


def blocks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines between empty ones, as items."""
    block: list[Line] = []
    for line in lines:
        if line[1].strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block
