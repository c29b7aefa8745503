"""Files that are replaced whole or not at all.

A new file is written beside the old one, under a name of its own, forced to disk, and renamed. The process that writes
it holds a lock on it (`flock`), which ends with the process: so the next save tells what a killed one has left behind
from what another process is still writing, and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Union

if TYPE_CHECKING:
    Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]

__all__ = ["Replacement", "replacing"]

_BLOCK = 1 << 20
_LONGEST = 100  # characters of the file's name in that of its temporary file

# Called with the name of each temporary file before it is made, and with "" when there is none any more.
note_temporary: Callable[[str], None] | None = None
_noted: list[str] = []


class Replacement:
    """A new file that is to take the place of `path`.

    A context manager: what has not been moved when the block ends is removed. Permissions of an old file are kept, and
    a symbolic link keeps pointing to the file. What is not a regular file (a pipe, a device) is written directly.

    Attributes:
        file: the new file, to be written.
        target: where it goes: `path` without symbolic links.

    Raises:
        OSError: the file cannot be made. It names `path`.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fsdecode(path)
        self.target = os.path.realpath(self._path)
        self._temporary = ""
        self._mode: int | None = None
        self._kept = False
        with self._named():
            with contextlib.suppress(FileNotFoundError):
                self._mode = os.stat(self._path).st_mode
            if self._mode is not None and not stat.S_ISREG(self._mode):
                self.file: IO[bytes] = open(self._path, "wb")  # noqa: SIM115
                return
            self._remove_left()
            self.file = self._made()
            if self._mode is not None:
                os.fchmod(self.file.fileno(), stat.S_IMODE(self._mode))

    @property
    def is_regular(self) -> bool:
        """Whether there is a temporary file, and not a pipe or a device that is written directly."""
        return bool(self._temporary)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the file that the user has named."""
        try:
            yield
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, self._path) from None

    def _names(self) -> tuple[str, re.Pattern[str]]:
        """The prefix and the pattern of the names of temporary files."""
        start = f".{os.path.basename(self.target)[:_LONGEST]}."
        return start, re.compile(re.escape(start) + r"[0-9a-f]{16}\.tmp")

    def _remove_left(self) -> None:
        """Remove what saves of the same file that were killed have left."""
        folder = os.path.dirname(self.target)
        _, pattern = self._names()
        with os.scandir(folder) as entries:
            left = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
        for path in left:
            with contextlib.suppress(OSError):  # it is another one's, is gone, or files cannot be locked here
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(descriptor)

    def _made(self) -> IO[bytes]:
        start, _ = self._names()
        while True:
            self._temporary = os.path.join(os.path.dirname(self.target), f"{start}{secrets.token_hex(8)}.tmp")
            self._note(True)
            try:
                descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except BaseException:
                self._note(False)
                raise
            file = os.fdopen(descriptor, "r+b")
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                # Another save may have taken it for one that was left behind, before it was locked.
                if os.path.samestat(os.stat(self._temporary), os.fstat(descriptor)):
                    return file
            except FileNotFoundError:
                pass
            file.close()
            self._note(False)

    def _note(self, there: bool) -> None:
        if there:
            _noted.append(self._temporary)
        elif self._temporary in _noted:
            _noted.remove(self._temporary)
        if note_temporary is not None:
            note_temporary(_noted[-1] if _noted else "")

    def finish(self) -> None:
        """Flush the written data to disk."""
        with self._named():
            self.file.flush()
            if self._temporary:
                os.fsync(self.file.fileno())

    def move(self, path: str | None = None) -> None:
        """Give the file its name, `target` if no other one is given.

        After another one it can be moved once more.
        """
        if not self._temporary:
            return
        path = self.target if path is None else path
        with self._named():
            os.replace(self._temporary, path)
        self._note(False)
        self._temporary = "" if path == self.target else path
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def keep(self) -> None:
        """Keep it where it has been moved to when the block ends."""
        self._kept = True

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temporary:
            if not self._kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._temporary)
            self._note(False)
        try:
            self.file.close()
        except OSError:  # what is still to be written finds no room: if so, there is an error already
            if error is None:
                raise


@contextlib.contextmanager
def replacing(path: Path, append: bool = False) -> Iterator[IO[bytes]]:
    """A binary file for writing that takes the place of `path` when the block ends without an exception.

    Until then, and after an exception, `path` is the whole old file. See `Replacement`.

    Args:
        path: the file.
        append: begin with what `path` holds.

    Raises:
        OSError: the file cannot be made, written or renamed. It names `path`.
    """
    with Replacement(path) as new:
        if append and new.is_regular:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as source:
                shutil.copyfileobj(source, new.file, _BLOCK)
                if source.tell() and (source.seek(-1, os.SEEK_END), source.read())[1] != b"\n":
                    new.file.write(b"\n")
        try:
            yield new.file
        except OSError as error:
            if error.errno == errno.ENOSPC and error.filename is None:
                raise OSError(error.errno, error.strerror, os.fsdecode(path)) from None
            raise
        new.finish()
        new.move()
