"""A job on one machine: starts its workers, watches them, and ends all of them when one fails."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dynet_cy.parallel.board import Board, anonymous_memory
from dynet_cy.parallel.output import Output, Pump, Stream
from dynet_cy.parallel.runtime import RESTARTS
from dynet_cy.parallel.stalls import Stalls
from dynet_cy.parallel.supervise import Ending, Start, say
from dynet_cy.parallel.worker import GRACE, GRACE_AFTER_INTERRUPT, TICK, Worker

__all__ = ["Job"]

# Seconds within which a worker has to end after its program has raised.
GRACE_AFTER_RAISING = 5.0

# Seconds that a hanging worker gets to write its traceback.
GRACE_FOR_TRACEBACK = 1.0


class Job:
    """Processes on one machine that train together, started once.

    Args:
        command: arguments for Python: the program and its arguments.
        variables: the environment of the workers: see `environment`.
        start: the number of this start, and what belongs to it.
        processes: how many processes.
        mode: "sync" or "async".
        timeout: seconds that others may wait for an idle process; ten times as long for one that is computing. 0: no
            limit.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        start: Start,
        processes: int,
        mode: str = "sync",
        timeout: float = 60.0,
    ) -> None:
        self.command = list(command)
        self.variables = {**variables, RESTARTS: str(start.number)}
        self.start = start
        self.size = processes
        self.mode = mode
        self.workers: list[Worker] = []
        self._pump = Pump(start.signals.wake)
        self._failure = ""
        self._code = 0
        self._kill_at: float | None = None
        self._stalls = Stalls(self.workers, timeout)
        # The time to report that some ranks run on although others have ended, which nothing else detects.
        self._patience = timeout
        self._tell_at: float | None = None

    def run(self) -> Ending:
        """Start the processes, and wait for their end.

        Returns:
            How the job ended. The exit code of the job is 0 if all processes ended with exit code 0. Otherwise it is
            that of the first one that failed, 128 plus the number of the signal that killed it or that the launcher
            got, or 1.
        """
        fd = anonymous_memory()
        try:
            self.board = Board(fd, self.size, create=True)
            with self._guarded():
                try:
                    self._start(fd)
                    self._watch()
                finally:
                    self._end_all()
        finally:
            self._pump.close()
            os.close(fd)
        return Ending(self._code, self._failure, final=bool(self._pump.failure))

    # ---- starting ----

    def _start(self, fd: int) -> None:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        start = str(Path(__file__).with_name("start.py"))
        variables, logs = dict(self.variables), self.start.logs
        outputs = [Output(sys.stdout.fileno()), Output(sys.stderr.fileno())]
        for rank in range(self.size):
            words = {"rank": rank, "size": self.size, "mode": self.mode, "backend": "shared"}
            words.update(self.start.words, parent=os.getpid(), fd=fd)
            variables["DYNET_CY_LAUNCH"] = " ".join(f"{name}={value}" for name, value in words.items())
            # Rank 0 writes to the terminal directly, so that its progress bars work.
            own = rank == 0 and logs is None
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", start, str(os.getpid()), "KILL", sys.executable, *flags, *self.command],
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=None if own and sys.stdout.isatty() else subprocess.PIPE,
                stderr=None if own and sys.stderr.isatty() else subprocess.PIPE,
                env=variables,
                pass_fds=[fd],
                start_new_session=True,
            )
            worker = Worker(rank, process)
            self.workers.append(worker)
            self._notify_guard("+", worker)
            for source, output, suffix in zip((process.stdout, process.stderr), outputs, ("out", "err")):
                if source is None:
                    continue
                log = None if logs is None else logs.file(self.start.number, f"rank-{rank}", suffix)
                stream = Stream(source, output, f"[rank {rank}] ".encode(), log)
                if source is process.stderr:
                    worker.error = stream
                self._pump.add(stream)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """A guard process that ends the workers and their children if this process is killed."""
        start = str(Path(__file__).with_name("guard.py"))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", start], stdin=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        try:
            yield
        finally:
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()

    def _notify_guard(self, sign: str, worker: Worker) -> None:
        """Tell the guard that a worker has begun ("+") or ended ("-")."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard has been killed
            self._guard.stdin.write(f"{sign}{worker.process.pid}\n".encode())

    # ---- watching ----

    def _watch(self) -> None:
        """Watch the workers until all of them have ended."""
        running = True
        while running:
            self._pass_on(TICK)
            self._obey_signals()
            running = False
            for worker in self.workers:
                if not worker.ended():
                    running = True
                    self._look_for_raised(worker)
                elif not worker.noticed:
                    worker.noticed = True
                    self._notify_guard("-", worker)
                    within = self.board.ended(worker.rank)
                    assert worker.code is not None
                    if worker.code:
                        code = worker.code if worker.code > 0 else 128 - worker.code
                        self._fail(f"rank {worker.rank} {worker.outcome()}", code)
                    elif within is not None:
                        self._fail(f"rank {worker.rank} has ended in the middle of {within}", 1)
            if self._kill_at is None:
                self._look_for_hanging()
                self._report_missing_ranks()
            elif time.monotonic() >= self._kill_at:
                for worker in self.workers:
                    worker.signal(signal.SIGKILL)

    def _pass_on(self, seconds: float) -> None:
        """Wait for something to happen, and pass on what workers have written."""
        self._pump.pass_on(seconds)
        if self._pump.failure:
            self._fail(self._pump.failure, 1)

    def _obey_signals(self) -> None:
        """Pass signals on to the workers; at the second signal, kill them."""
        while self.start.signals.pending:
            number = self.start.signals.pending.pop(0)
            if self._kill_at is None:
                self._stop(number, GRACE_AFTER_INTERRUPT, "", 128 + number)
            else:
                self._kill_at = time.monotonic()

    def _fail(self, why: str, code: int) -> None:
        """Note the first failure, and ask all workers to end."""
        if self._kill_at is None:
            self._stop(signal.SIGTERM, GRACE, why, code)

    def _stop(self, number: int, grace: float, why: str, code: int) -> None:
        self._failure = why
        self._code = code
        self._kill_at = time.monotonic() + grace
        for worker in self.workers:
            worker.signal(number)

    def _look_for_raised(self, worker: Worker) -> None:
        """Fail if the program of a worker has raised, but something, such as a thread, keeps the process running."""
        if worker.raised is None and self.board.has_raised(worker.rank):
            worker.raised = time.monotonic()
        elif worker.raised is not None and time.monotonic() - worker.raised > GRACE_AFTER_RAISING:
            self._fail(f"rank {worker.rank} has raised and does not end{worker.last_words()}", 1)

    def _report_missing_ranks(self) -> None:
        """Say once which ranks run on, when others ended long ago; they may have work to do, and are not ended."""
        ended = [worker.rank for worker in self.workers if worker.noticed]
        if not ended or not self._patience:
            return
        if self._tell_at is None:
            self._tell_at = time.monotonic() + self._patience
        elif time.monotonic() >= self._tell_at and len(ended) < self.size:
            self._tell_at = math.inf
            late = [str(worker.rank) for worker in self.workers if not worker.noticed]
            who = f"rank {late[0]} still runs" if len(late) == 1 else f"ranks {', '.join(late)} still run"
            say(f"{who}, {self._patience:g} s after rank {ended[0]} has ended")

    def _look_for_hanging(self) -> None:
        """Fail if workers wait for one that hangs."""
        waiting = self.board.waiting()
        if waiting is None:
            self._stalls.nobody_waits()
            return
        seconds, what, late = waiting
        gone = [rank for rank in late if self.workers[rank].code is not None]
        if gone:
            self._fail(f"rank {gone[0]} has ended, and others wait for it in {what}", 1)
            return
        hanging = self._stalls.hanging(seconds, what, late)
        if not hanging:
            return
        for rank in hanging:
            self.workers[rank].show_where()
        until = time.monotonic() + GRACE_FOR_TRACEBACK
        while time.monotonic() < until and not all(self.workers[rank].ended() for rank in hanging):
            self._pass_on(TICK)
        names = ", ".join(map(str, hanging))
        self._fail(f"rank {names} hangs: others have waited {seconds:.0f} s for it in {what}", 1)

    # ---- ending ----

    def _end_all(self) -> None:
        """Leave nothing behind: no process, no temporary file."""
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        until = time.monotonic() + GRACE
        while not all(worker.ended() for worker in self.workers) and time.monotonic() < until:
            self._pass_on(TICK)
        # Pass on the rest of the output; no process writes any more.
        signals = self.start.signals
        while before := self._pump.open:
            self._pass_on(0.05)
            if self._pump.is_blocked:
                # The reader of the launcher's output is slow, or has stopped reading.
                if signals.have_come():
                    self._code = self._code or 128 + signals.first
                    break
                until = time.monotonic() + GRACE
            elif self._pump.open == before and time.monotonic() > until:
                break
        for worker in self.workers:
            name = self.board.file_of(worker.rank)
            if name and worker.code is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)
