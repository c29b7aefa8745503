"""Restarts a job when it fails: ``python -m dynet_cy.launch --max-restarts N``."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from dynet_cy.parallel.board import anonymous_memory

__all__ = ["Ending", "Logs", "Progress", "Signals", "Start", "say", "supervise"]

# The greatest number of seconds between the end of a job and its next start.
LONGEST_PAUSE = 60.0


class Ending(NamedTuple):
    """The end of a job.

    Attributes:
        code: the launcher's exit code for it; 0 is success.
        why: what went wrong, in words; "" if nothing did, or if the user knows.
        final: whether a restart would be useless, since the launcher itself has failed.
    """

    code: int
    why: str = ""
    final: bool = False


class Logs:
    """Files with the output of workers: ``FOLDER/JOB/start-0/rank-1.err``, where JOB is a time and a process id."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"

    def file(self, start: int, who: str, suffix: str) -> IO[bytes]:
        """A new file."""
        folder = self.folder / f"start-{start}"
        folder.mkdir(parents=True, exist_ok=True)
        return open(folder / f"{who}.{suffix}", "xb", buffering=0)


class Progress:
    """The progress of a job, which workers report: a few numbers in anonymous memory.

    The workers open it through the launcher's descriptor under ``/proc``: see `memory_of_launcher` in `start`. This
    works for the launcher's own workers and for processes that MPI starts on the same host, and leaves no file behind.
    The numbers are two int64, the updates that have been made and whether that is known, and a token follows them.
    """

    def __init__(self) -> None:
        self._fd = anonymous_memory()
        self._token = secrets.token_hex(16)
        os.pwrite(self._fd, struct.pack("qq", 0, 0) + self._token.encode(), 0)

    @property
    def words(self) -> dict[str, str]:
        """The settings by which workers find it."""
        return {"progress": f"/proc/{os.getpid()}/fd/{self._fd}", "token": self._token}

    def reset(self, known: bool) -> None:
        """Prepare for a start of the job: no updates.  The result is `known` if all workers are able to find the
        memory."""
        os.pwrite(self._fd, struct.pack("qq", 0, known), 0)

    @property
    def updates(self) -> int | None:
        """The number of updates of the last active trainer, including those before its checkpoint.

        None if no worker has found the memory.
        """
        updates, known = struct.unpack("qq", os.pread(self._fd, 16, 0))
        return updates if known else None

    def close(self) -> None:
        """Free the memory."""
        os.close(self._fd)


@dataclass
class Start:
    """One start of a job.

    Attributes:
        number: 0 for the first.
        signals: the signals that end the launcher.
        words: further settings for the workers.
        logs: files for their output.
    """

    signals: Signals
    number: int = 0
    words: Mapping[str, str] = field(default_factory=dict)
    logs: Logs | None = None


class Signals:
    """Ctrl-C, SIGTERM and SIGHUP to the launcher, noticed while a job runs and between its starts.

    Attributes:
        pending: signals that have arrived and have not been handled.
        first: the first signal that arrived; 0: none.
    """

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.first = 0

    def __enter__(self) -> Signals:
        self._wake, self._writing = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._writing, False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        self._before: dict[signal.Signals, Any] = {n: signal.getsignal(n) for n in numbers}
        self._woken_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in numbers:
            if (number, self._before[number]) != (signal.SIGHUP, signal.SIG_IGN):  # nohup
                signal.signal(number, self._note)
        return self

    def have_come(self) -> bool:
        """Whether a signal has asked the launcher to end."""
        return self.first > 0

    def _note(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self.pending.append(number)
            self.first = self.first or number

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._wake)
        os.close(self._writing)

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until a signal arrives or a child ends."""
        select.select([self._wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 1 << 10)

    def pause(self, seconds: float) -> None:
        """Wait for so many seconds, or until a signal arrives."""
        until = time.monotonic() + seconds
        while not self.first and (left := until - time.monotonic()) > 0:
            self.wait(left)


def supervise(
    run: Callable[[Start], Ending],
    restarts: int = 0,
    delay: float = 1.0,
    logs: Logs | None = None,
    *,
    anywhere: bool = False,
) -> int:
    """Run a job, and restart it when it fails.

    It is not restarted if a signal has told the launcher to end, or if it fails at the same place as before:
    after as many updates, with the same exit code.

    Args:
        run: runs the job once.
        restarts: how often it may be restarted.
        delay: seconds before the first restart, doubled for each later one, up to 60.
        logs: files for the workers' output.
        anywhere: whether workers may be on other hosts, from which they cannot report their progress.

    Returns:
        The exit code of the last start.
    """
    progress = Progress()
    places = set()
    try:
        with Signals() as signals:
            for number in range(restarts + 1):
                progress.reset(known=not anywhere)
                ending = _run(run, Start(signals, number, progress.words if restarts else {}, logs))
                if not ending.code or ending.final or signals.have_come() or not restarts:
                    break
                updates = progress.updates
                place = updates, ending.code
                after = "" if updates is None else f" after {updates} update{'s' * (updates != 1)}"
                if updates is not None and place in places:
                    say(f"not started again: the job has failed at the same place before,{after}")
                    break
                if number == restarts:
                    say(f"not started again: that was restart {number} of {restarts}")
                    break
                places.add(place)
                pause = min(delay * 2**number, LONGEST_PAUSE)
                say(f"{ending.why}{',' * bool(after)}{after}; restart {number + 1} of {restarts} in {pause:g} s")
                signals.pause(pause)
                if signals.have_come():
                    return 128 + signals.first
    finally:
        progress.close()
    if ending.why:
        say(ending.why)
    return ending.code


def _run(run: Callable[[Start], Ending], start: Start) -> Ending:
    """One start; an error of the system, such as a folder for logs that cannot be made, ends the job."""
    try:
        return run(start)
    except OSError as error:
        return Ending(1, f"the processes cannot be started: {error}", final=True)


def say(text: str) -> None:
    """Write a line of the launcher to standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"dynet_cy.launch: {text}\n")
    sys.stderr.flush()
