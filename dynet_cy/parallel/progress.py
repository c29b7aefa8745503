"""Reports the progress of a job to the launcher, which may restart it: a few numbers in anonymous memory.

The workers open it through the launcher's descriptor under ``/proc``. This works for the launcher's own workers and for
processes that MPI starts on the same host, and leaves no file behind. On other hosts, or without ``/proc``, workers
cannot open it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
from collections.abc import Mapping

import numpy as np

from dynet_cy.parallel.board import anonymous_memory
from dynet_cy.train.trainer import note_updates_in

__all__ = ["Progress", "connect"]

NUMBERS = 16  # bytes of two int64: the updates that have been made, and whether that is known
TOKEN = 32  # bytes after them, by which workers recognize the memory
SIZE = NUMBERS + TOKEN


class Progress:
    """The launcher's side."""

    def __init__(self) -> None:
        self._fd = anonymous_memory()
        os.ftruncate(self._fd, SIZE)
        self._token = secrets.token_hex(TOKEN // 2)
        os.pwrite(self._fd, self._token.encode(), NUMBERS)
        self._numbers = np.frombuffer(mmap.mmap(self._fd, SIZE), np.int64, 2)

    @property
    def words(self) -> dict[str, str]:
        """The settings by which workers find it."""
        return {"progress": f"/proc/{os.getpid()}/fd/{self._fd}", "token": self._token}

    def reset(self, known: bool) -> None:
        """Prepare for a start of the job: no updates.  The result is `known` if all workers are able to find the
        memory."""
        self._numbers[:] = 0, known

    @property
    def updates(self) -> int | None:
        """The number of updates of the last active trainer, including those before its checkpoint.

        None if no worker has found the memory.
        """
        updates, known = self._numbers.tolist()
        return updates if known else None

    def close(self) -> None:
        """Free the memory."""
        os.close(self._fd)


def connect(settings: Mapping[str, str]) -> None:
    """Make the trainers of this process, but not of its children, report their progress to the launcher.

    Args:
        settings: the launcher's settings for this process.
    """
    if "progress" not in settings:
        return
    with contextlib.suppress(OSError):  # the launcher is on another host
        # Do not block, and check size and token: on another host the name may belong to anything.
        fd = os.open(settings["progress"], os.O_RDWR | os.O_NONBLOCK)
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_size != SIZE:
                return
            if os.pread(fd, TOKEN, NUMBERS) != settings["token"].encode():
                return
            memory = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        note_updates_in(memory)
        os.register_at_fork(after_in_child=lambda: note_updates_in(None))
