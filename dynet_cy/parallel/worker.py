"""A worker: one process of a job on one machine, and the environment that it starts with."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from dynet_cy.parallel.board import cores
from dynet_cy.parallel.output import Stream

__all__ = ["Worker", "environment", "hash_seed"]

# Seconds between checks of the workers; ends of workers and signals are noticed at once.
TICK = 0.2

# Seconds that workers have to end after they were asked to, before they are killed.
GRACE = 2.0
GRACE_AFTER_INTERRUPT = 5.0

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "DYNET_CY_THREADS")


def hash_seed() -> str:
    """The value of `PYTHONHASHSEED` in all workers and all starts of a job: that of the environment, or a new one."""
    return os.environ.get("PYTHONHASHSEED", str(int.from_bytes(os.urandom(4), "big")))


def environment(processes: int) -> dict[str, str]:
    """The environment of workers, with `processes` of them on this machine; variables that are already set stay.

    Threads are divided among the processes. Sets of strings have the same order in all of them, so that vocabularies
    are equal. Output is written line by line, and crashes print a traceback.
    """
    made = dict(os.environ)
    threads = str(max(1, cores() // processes))
    for name in THREADS:
        made.setdefault(name, threads)
    made["PYTHONHASHSEED"] = hash_seed()
    made.setdefault("PYTHONUNBUFFERED", "1")
    made["PYTHONFAULTHANDLER"] = "1"
    return made


class Worker:
    """One process of a job."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.code: int | None = None  # as Popen has it: negative for a signal
        self.noticed = False  # whether the job has handled its end
        self.raised: float | None = None  # when the job noticed that its program had raised
        self.error: Stream | None = None

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def ended(self) -> bool:
        """Whether it has ended; if so, end the processes that it has left running."""
        if self.code is None:
            # Until it is waited for, no other process group can get its number.
            if hasattr(os, "waitid"):
                if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return False
                self.signal(signal.SIGKILL)
                self.code = self.process.wait()
            else:
                code = self.process.poll()
                if code is None:
                    return False
                self.signal(signal.SIGKILL)
                self.code = code
        return True

    def processor_seconds(self) -> float | None:
        """CPU seconds used by it and its children; None if the system does not tell."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                # state, parent, group, session, ...; from the 12th on times, those of ended children too
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    total += sum(map(int, fields[11:15]))
        return total / os.sysconf("SC_CLK_TCK") if total else None

    def show_where(self) -> None:
        """Make it write the tracebacks of its threads and end."""
        with contextlib.suppress(Exception):  # not everywhere
            import resource

            resource.prlimit(self.process.pid, resource.RLIMIT_CORE, (0, 0))
        # Only the process itself: its children have no traceback to show.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGABRT)
            os.kill(self.process.pid, signal.SIGCONT)

    def last_words(self) -> str:
        """A colon and the last line that it wrote to stderr: in a traceback, this line says what was raised."""
        last = self.error.last.decode(errors="replace").strip() if self.error else ""
        return f": {last}" if last else ""

    def outcome(self) -> str:
        """The end of the process, in words."""
        assert self.code is not None
        if self.code >= 0:
            return f"ended with exit code {self.code}{self.last_words()}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = "no name"
        return f"was killed by signal {-self.code} ({name})"
