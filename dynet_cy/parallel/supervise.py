"""Restarts a job when it fails: ``python -m dynet_cy.launch --max-restarts N``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from dynet_cy.parallel.progress import Progress

__all__ = ["Ending", "Logs", "Signals", "Start", "say", "supervise"]

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
        wake: a descriptor that becomes readable when a signal has arrived or a child has ended.
        pending: signals that have arrived and have not been handled.
        first: the first signal that arrived; 0: none.
    """

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.first = 0

    def __enter__(self) -> Signals:
        self.wake, self._writing = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._writing, False)
        numbers = [int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)]
        self._before: Mapping[int, Any] = {n: signal.getsignal(n) for n in (*numbers, int(signal.SIGCHLD))}
        self._woken_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in numbers:
            if number == signal.SIGHUP and self._before[number] == signal.SIG_IGN:
                continue  # nohup
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, lambda n, frame: None)
        return self

    def have_come(self) -> bool:
        """Whether a signal has asked the launcher to end."""
        return self.first > 0

    def _note(self, number: int, frame: object) -> None:
        self.pending.append(number)
        if not self.first:
            self.first = number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self.wake)
        os.close(self._writing)

    def pause(self, seconds: float) -> None:
        """Wait for so many seconds, or until a signal arrives."""
        until = time.monotonic() + seconds
        while not self.first and (left := until - time.monotonic()) > 0:
            select.select([self.wake], [], [], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 1 << 10)


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
