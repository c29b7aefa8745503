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

# Seconds between looks at the workers; ends of workers and signals are noticed at once.
TICK = 0.2

# Seconds that workers have to end after they were asked to, before they are killed.
GRACE = 2.0
GRACE_AFTER_INTERRUPT = 5.0

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "DYNET_CY_THREADS")


def hash_seed() -> str:
    """What `PYTHONHASHSEED` is in all workers of a job, and in all its starts: what is set, or a new one."""
    return os.environ.get("PYTHONHASHSEED", str(int.from_bytes(os.urandom(4), "big")))


def environment(processes: int) -> dict[str, str]:
    """The environment of workers, `processes` of them on this machine; what is set already stays.

    Threads are shared among the processes. Sets and dictionaries of strings have the same order in all of them, so
    that vocabularies are equal. Lines are written when they end, and crashes show where.
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
        self.noticed = False  # whether the job has looked at how it ended
        self.raised: float | None = None  # when it was seen that its program had
        self.error: Stream | None = None

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def ended(self) -> bool:
        """Whether it has ended. What it leaves running is ended too."""
        if self.code is None:
            # While it is not waited for, no other group can have its number.
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
        """Seconds that it and its children have used of all cores; None where that is not to be found out."""
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                # state, parent, group, session, ...; from the 12th on times, those of ended children too
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    total += sum(map(int, fields[11:15]))
        return total / os.sysconf("SC_CLK_TCK") if total else None

    def show_where(self) -> None:
        """Let it write the tracebacks of its threads and end."""
        with contextlib.suppress(Exception):  # not everywhere
            import resource

            resource.prlimit(self.process.pid, resource.RLIMIT_CORE, (0, 0))
        # Its children have nothing to show.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGABRT)
            os.kill(self.process.pid, signal.SIGCONT)

    def last_words(self) -> str:
        """The last line that it has written to its stderr, after a colon: that of a traceback says what was raised."""
        last = self.error.last.decode(errors="replace").strip() if self.error else ""
        return f": {last}" if last else ""

    def outcome(self) -> str:
        """How it ended, in words."""
        assert self.code is not None
        if self.code >= 0:
            return f"ended with exit code {self.code}{self.last_words()}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = "no name"
        return f"was killed by signal {-self.code} ({name})"
