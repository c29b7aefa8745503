"""Files that are replaced whole or not at all.

A new file is written to the folder of the old one under a temporary name, flushed to disk, and renamed. The process
that writes it holds a lock on it (`flock`), which ends with the process. So the next save can tell files that a killed
process left behind from those that another process is still writing, and removes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING

from dynet_cy.files.reading import MissingFileError, Path

if TYPE_CHECKING:
    from typing_extensions import Buffer


_BLOCK = 1 << 20
_EFFECTIVE = os.access in os.supports_effective_ids
_LONGEST = 100  # characters of the file's name in that of its temporary file

# Called with the name of each temporary file before it is made, and with "" after it was removed.
note_temporary: Callable[[str], None] | None = None
_noted: list[str] = []


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Make errors name the file that the user named: those of a full disk name none, others the temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        folder = os.path.dirname(path)
        if error.errno == errno.ENOENT and folder and not os.path.isdir(folder):
            raise MissingFileError(error.errno, f"there is no folder {folder!r} for {path!r}", path) from None
        raise OSError(error.errno, error.strerror, path) from None


class _NamedFile(io.FileIO):
    """An open file whose errors name the file that the user named."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "r+")
        self.path = path

    def write(self, data: Buffer, /) -> int:
        with naming(self.path):
            return super().write(data)


class Replacement:
    """A new file that will replace `path`.

    A context manager: a file that has not been moved when the block ends is removed. The permissions of an old file are
    kept, and a symbolic link still points to the file. Files that are not regular (a pipe, a device) are written
    directly. A write-protected file is not changed, even if its folder is writable.

    Attributes:
        file: the new file, to be written.
        target: where it goes: `path` without symbolic links.

    Raises:
        OSError: the file cannot be made. It names `path`.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fsdecode(path)
        self.target = os.path.realpath(self._path)
        self._start = f".{os.path.basename(self.target)[:_LONGEST]}."  # of the names of temporary files
        self._temporary = ""
        self._mode: int | None = None
        self._kept = False
        with naming(self._path):
            with contextlib.suppress(FileNotFoundError):
                self._mode = os.stat(self._path).st_mode
            if self._mode is not None and not stat.S_ISREG(self._mode):
                self.file: IO[bytes] = open(self._path, "wb")  # noqa: SIM115
                return
            if self._mode is not None and not os.access(self._path, os.W_OK, effective_ids=_EFFECTIVE):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._path)
            self._remove_left()
            self.file = self._made()
            if self._mode is not None:
                os.fchmod(self.file.fileno(), stat.S_IMODE(self._mode))

    @property
    def is_regular(self) -> bool:
        """Whether there is a temporary file, and not a pipe or a device that is written directly."""
        return bool(self._temporary)

    def _remove_left(self) -> None:
        """Remove temporary files left by killed saves of the same file."""
        pattern = re.compile(re.escape(self._start) + r"[0-9a-f]{16}\.tmp")
        with os.scandir(os.path.dirname(self.target)) as entries:
            left = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
        for path in left:
            # another process holds the lock, the file was removed, or this file system has no locks
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(descriptor)

    def _made(self) -> IO[bytes]:
        while True:
            self._temporary = os.path.join(os.path.dirname(self.target), f"{self._start}{os.urandom(8).hex()}.tmp")
            self._note(True)
            try:
                descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except BaseException as error:
                self._note(False)
                if isinstance(error, PermissionError) and self._mode is not None:
                    why = "a new file is written beside it, so its folder must be writable"
                    raise PermissionError(error.errno, f"{error.strerror} ({why})", self._path) from None
                raise
            file = io.BufferedRandom(_NamedFile(descriptor, self._path))
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                # Another save may have removed the file before it was locked.
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
        with naming(self._path):
            self.file.flush()
            if self._temporary:
                os.fsync(self.file.fileno())

    def move(self, path: str | None = None) -> None:
        """Give the file its final name, `target` by default.

        The file can be renamed again later.
        """
        if not self._temporary:
            return
        path = self.target if path is None else path
        with naming(self._path):
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
        """Keep the file where it has been moved to, when the block ends."""
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
        except OSError:  # the buffer cannot be flushed, such as to a full disk; an earlier error comes first
            if error is None:
                raise


@contextlib.contextmanager
def replacing(path: Path, append: bool = False) -> Iterator[IO[bytes]]:
    """A binary file for writing that replaces `path` when the block ends without an exception.

    Until then, and after an exception, `path` is still the complete old file. See `Replacement`.

    Args:
        path: the file.
        append: whether to begin with the content of `path`.

    Raises:
        OSError: the file cannot be created, written or renamed. The error names `path`.
    """
    with Replacement(path) as new:
        if append and new.is_regular:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as source:
                while block := source.read(_BLOCK):
                    new.file.write(block)
                if source.tell() and (source.seek(-1, os.SEEK_END), source.read())[1] != b"\n":
                    new.file.write(b"\n")
        yield new.file
        new.finish()
        new.move()


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole, or leave the old one: see `replacing`."""
    with replacing(path) as file:
        file.write(data)


def ready(path: Path) -> None:
    """Raise the error now that writing a file later would raise.

    Raises:
        OSError: the file or its folder cannot be written.
    """
    with Replacement(path):
        pass


@contextlib.contextmanager
def locked(file: str, shared: bool = False) -> Iterator[None]:
    """Hold a lock on the folder of a file, for renaming several files as one step.

    It waits until no other process or thread holds the lock. There is no lock if folders cannot be locked.

    Args:
        file: the file.
        shared: whether others may hold the lock at the same time if theirs is shared too.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(os.path.dirname(os.path.realpath(file)), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a forked process may hold the descriptor too
        yield
