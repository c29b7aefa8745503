"""A job whose processes MPI starts.  The launcher watches it, to restart it or to write its output to files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dynet_cy.parallel import mpirun
from dynet_cy.parallel.output import Output, Pump, Stream
from dynet_cy.parallel.supervise import Ending, Start
from dynet_cy.parallel.worker import GRACE, GRACE_AFTER_INTERRUPT, TICK, Worker, hash_seed

__all__ = ["MPIJob"]


class MPIJob:
    """Processes that MPI starts and ends.

    Args:
        program: arguments for Python: the program and its arguments.
        processes: how many; None: MPI's launcher decides.
        mode: "sync" or "async".
        timeout: seconds that others may wait for an idle process; 0: no limit.
        launcher: MPI's launcher and its options; None: mpiexec.
    """

    def __init__(
        self, program: Sequence[str], processes: int | None, mode: str, timeout: float, launcher: str | None
    ) -> None:
        self.arguments = program, processes, mode, timeout, launcher
        self.hash_seed = hash_seed()

    def command(self, start: Start) -> list[str]:
        """The command that starts the job.

        Raises:
            FileNotFoundError: there is no such launcher.
        """
        return mpirun.command(*self.arguments, hash_seed=self.hash_seed, restarts=start.number, words=start.words)

    def run(self, start: Start) -> Ending:
        """Run the job until it ends, or until a signal to this process ends it."""
        words = self.command(start)
        logs = start.logs
        pipe = None if logs is None else subprocess.PIPE
        process = subprocess.Popen(
            # MPI's launcher ends its processes properly on SIGTERM, so that is what it gets if this process is killed.
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("start.py")), str(os.getpid()), "TERM", *words],
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        worker = Worker(0, process)
        pump = Pump(start.signals.wake)
        try:
            if logs is not None:
                for source, to, suffix in ((process.stdout, sys.stdout, "out"), (process.stderr, sys.stderr, "err")):
                    assert source is not None
                    pump.add(Stream(source, Output(to.fileno()), b"", logs.file(start.number, "mpi", suffix)))
            code = self._watch(worker, pump, start)
            until = time.monotonic() + GRACE
            while pump.open and time.monotonic() < until and not start.signals.pending:
                pump.pass_on(TICK)
        finally:
            worker.signal(signal.SIGKILL)
            process.wait()
            pump.close()
        if pump.failure:
            return Ending(1, pump.failure, final=True)
        if start.signals.have_come():
            return Ending(128 + start.signals.first)
        return Ending(code, f"{Path(words[0]).name} {worker.outcome()}" if code else "")

    @staticmethod
    def _watch(worker: Worker, pump: Pump, start: Start) -> int:
        """Wait until MPI's launcher has ended; returns its exit code as a shell would."""
        ways: list[int] = []  # signals that end it, each sent if the one before has not helped, or if asked for again
        next_at = float("inf")
        while not worker.ended():
            pump.pass_on(TICK)
            if pump.failure and not ways:
                ways, next_at = [signal.SIGTERM, signal.SIGKILL], 0.0
            while start.signals.pending:
                number = start.signals.pending.pop(0)
                ways = ways or [number, signal.SIGTERM, signal.SIGKILL]
                next_at = 0.0
            if ways and time.monotonic() >= next_at:
                os.kill(worker.process.pid, ways[0])
                ways = ways[1:] or ways
                next_at = time.monotonic() + GRACE_AFTER_INTERRUPT
        assert worker.code is not None
        return worker.code if worker.code >= 0 else 128 - worker.code
