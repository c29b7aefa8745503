"""A job: starts its processes, forwards what they write, watches them, ends all when one fails, and restarts it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from dynet_cy.parallel.communicator import PATIENCE, WORKING
from dynet_cy.parallel.shared_memory import Board, anonymous_memory
from dynet_cy.parallel.start import PROGRAM as START

# Seconds between checks of the workers; ends of workers and signals are noticed at once.
TICK = 0.2

# Seconds that workers have to end after they were asked to, before they are killed.
GRACE = 2.0
GRACE_AFTER_INTERRUPT = 5.0

# Seconds within which a worker has to end after its program has raised.
GRACE_AFTER_RAISING = 5.0

# Seconds that a hanging worker gets to write its traceback.
GRACE_FOR_TRACEBACK = 1.0

# After this many seconds without a check, the launcher cannot tell whether workers were idle.
BLIND = 2.0

# Waits of less than this share of the timeout are not worth a look at all processes.
SHORT = 1 / 20

# The beginning of a very long line in the output of crashed programs.
NOISE = b"Extension modules: "

# The greatest number of seconds between the end of a job and its next start.
LONGEST_PAUSE = 60.0


def say(text: str) -> None:
    """Write a line of the launcher to standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"dynet_cy.launch: {text}\n")
    sys.stderr.flush()


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
        self._token = os.urandom(16).hex()
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


@dataclass
class Program:
    """What the processes of a job run, and how they train.

    Attributes:
        words: arguments for Python: the program, or "-m" and a module, and its arguments.
        hash_seed: the value of `PYTHONHASHSEED` where it is not set. If it is a number, sets of strings have the same
            order in all processes and all starts, so that vocabularies are equal.
        processes: how many processes; None: MPI's launcher decides, for example one for each Slurm task.
        mode: "sync" or "async".
        timeout: seconds that others may wait for an idle process; ten times as long for one that is computing. 0: no
            limit.
        launcher: MPI's launcher with its options, as you would type them, such as "mpiexec --hostfile hosts" or "srun
            --mpi=pmix"; None: `mpiexec`, from the folder of this Python if it has one.
    """

    words: Sequence[str]
    hash_seed: str
    processes: int | None = None
    mode: str = "sync"
    timeout: float = 60.0
    launcher: str | None = None

    def of_rank(self, settings: Mapping[str, object], restarts: int) -> list[str]:
        """The command of one process, with the launcher's settings."""
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        text = " ".join(f"{name}={value}" for name, value in settings.items())
        return [*START, "rank", text, str(restarts), self.hash_seed, sys.executable, *flags, *self.words]

    def over_mpi(self, settings: Mapping[str, str] = {}, restarts: int = 0) -> list[str]:
        """The command that makes MPI run all processes, with these settings and those of MPI.

        Raises:
            FileNotFoundError: there is no such launcher.
        """
        if self.launcher is None:
            own = Path(sys.executable).with_name("mpiexec")
            starter = [str(own) if own.exists() else "mpiexec"]
        else:
            starter = shlex.split(self.launcher)
        if not starter or shutil.which(starter[0]) is None:
            raise FileNotFoundError(
                f"there is no program {starter[0] if starter else ''!r} to start processes by MPI: install an MPI "
                "library (pip install 'dynet_cy[mpi]' mpich), or name its launcher, such as --mpi 'srun --mpi=pmix'"
            )
        count = [] if self.processes is None else ["-n", str(self.processes)]
        settings = {"backend": "mpi", "mode": self.mode, "timeout": f"{self.timeout:g}", **settings}
        return [*starter, *prefix_of(starter[0]), *count, *self.of_rank(settings, restarts)]


def prefix_of(launcher: str) -> list[str]:
    """The option that makes the launcher prefix each line of output with the rank."""
    if Path(launcher).name == "srun":
        return ["--label"]
    done = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    about = done.stdout + done.stderr
    if "Open MPI" in about:
        return ["--tag-output"] if ") 4." in about or ") 3." in about else ["--output", "tag"]
    if "HYDRA" in about or "Intel(R) MPI" in about:
        return ["-prepend-rank"]
    return []


class Output:
    """The launcher's stdout or stderr; several streams write to it.

    Attributes:
        is_writing: whether a stream waits until the descriptor accepts its text.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_writing = False
        self._lock = threading.Lock()

    def write(self, text: bytes) -> None:
        """Write all of the text."""
        with self._lock:
            self.is_writing = True
            try:
                while text:
                    try:
                        text = text[os.write(self.descriptor, text) :]
                    except BlockingIOError:
                        select.select([], [self.descriptor], [])
            finally:
                self.is_writing = False


class Stream(threading.Thread):
    """The output of a worker: each line with a prefix, such as the worker's rank.

    Args:
        source: the pipe from the worker.
        output: where it goes.
        prefix: before each line.
        log: a file that gets the same lines without the prefix.
    """

    def __init__(self, source: IO[bytes], output: Output, prefix: bytes, log: IO[bytes] | None = None) -> None:
        super().__init__(daemon=True)  # it does not keep the launcher, whose output nobody may read
        self.source = source
        self.output = output
        self.ended = False
        self.failure = ""  # why the output could not be forwarded
        self.prefix = prefix
        self.log = log
        self.last = b""  # the last line without indent: it has the name of an error, even if its message has more lines
        self._rest: list[bytes] = []  # pieces of a line that has not ended
        self._returned = False  # whether the last line ended with "\r": a "\n" that follows belongs to it

    def run(self) -> None:
        """Forward all that is written."""
        try:
            while not self.ended:
                self.forward()
        except OSError as error:  # the reader of the output has ended, or a disk is full
            self.failure = f"cannot write what workers write: {error}"

    def close(self) -> None:
        """Close the pipe and the file, unless a process that has left the job still writes to them."""
        if not self.is_alive():
            self.source.close()
            if self.log is not None:
                self.log.close()

    def forward(self) -> None:
        """Forward what has been written, once there is something."""
        data = os.read(self.source.fileno(), 1 << 16)
        self.ended = not data
        if self.log is not None:
            self.log.write(data)
        text = data[1:] if self._returned and data.startswith(b"\n") else data
        self._returned = data.endswith(b"\r")
        begun, *lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest.append(begun)
        if lines or not data:
            lines.insert(0, b"".join(self._rest))
            self._rest = [lines.pop()]
            if not data and self._rest[0]:
                lines.append(self._rest[0])
        lines = [line for line in lines if not line.startswith(NOISE)]
        self.last = next((line for line in reversed(lines) if line.strip() and not line[:1].isspace()), self.last)
        self.output.write(b"".join(self.prefix + line + b"\n" for line in lines))


class Worker:
    """A process that the launcher has started."""

    process: subprocess.Popen[bytes]

    def __init__(self, name: str, files: str, rank: int = 0, prefix: bytes = b"") -> None:
        self.name = name  # in messages
        self.files = files  # the name of the files with its output
        self.rank = rank
        self.prefix = prefix  # before each line of its output; b"" if it is that of several processes
        self.code: int | None = None  # as Popen has it: negative for a signal
        self.noticed = False  # whether the job has handled its end
        self.raised = math.inf  # when the job noticed that its program had raised
        self.streams: list[Stream] = []

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
            elif self.process.poll() is None:
                return False
            self.signal(signal.SIGKILL)
            self.code = self.process.wait()
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
        errors = (s.last for s in self.streams if s.source is self.process.stderr and self.prefix)
        last = next(errors, b"").decode(errors="replace").strip()
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


@dataclass
class Job:
    """Processes that train together, started once.

    Attributes:
        start: the number of this start, and what belongs to it.
        program: what they run.
    """

    start: Start
    program: Program

    # The signals that end the workers after the first one, each sent if the one before has not helped within so many
    # seconds, or if the user asks again.
    further: ClassVar[list[int]] = [signal.SIGKILL]
    grace: ClassVar[float] = GRACE

    def __post_init__(self) -> None:
        self.workers: list[Worker] = []
        self._outputs = [Output(file.fileno()) for file in (sys.stdout, sys.stderr)]
        self._failure = ""
        self._code = 0
        self._output_failed = False
        self._ways: list[int] = []  # signals that have not been sent; empty: nothing ends the job
        self._next_at = math.inf

    def run(self) -> Ending:
        """Start the processes, and wait for their end.

        Returns:
            How the job ended. The exit code of the job is 0 if all processes ended with exit code 0. Otherwise it is
            that of the first one that failed, 128 plus the number of the signal that killed it or that the launcher
            got, or 1.
        """
        try:
            self._begin()
            self._watch()
        finally:
            self._end_all()
        return Ending(self._code, self._failure, final=self._output_failed)

    def _begin(self) -> None:
        """Start the workers."""
        raise NotImplementedError

    def _notice_end(self, worker: Worker) -> None:
        """Called when a worker has ended."""
        if worker.code:
            for stream in worker.streams:
                stream.join(GRACE_FOR_TRACEBACK)
            self._fail(f"{worker.name} {worker.outcome()}", worker.code if worker.code > 0 else 128 - worker.code)

    def _look(self) -> None:
        """Called at every check while nothing has gone wrong."""

    def _add(
        self, worker: Worker, command: Sequence[str], direct: Sequence[bool], stdin: int | None, *fds: int
    ) -> None:
        """Start a worker.

        Args:
            worker: not started yet.
            command: its command.
            direct: whether its stdout and its stderr are those of the launcher.
            stdin: as for Popen.
            fds: descriptors that it inherits.
        """
        pipes = [None if is_direct else subprocess.PIPE for is_direct in direct]
        worker.process = process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=pipes[0],
            stderr=pipes[1],
            pass_fds=fds,
            start_new_session=True,
        )
        self.workers.append(worker)
        for source, output, suffix in zip((process.stdout, process.stderr), self._outputs, ("out", "err")):
            if source is not None:
                logs = self.start.logs
                log = None if logs is None else logs.file(self.start.number, worker.files, suffix)
                worker.streams.append(Stream(source, output, worker.prefix, log))
                worker.streams[-1].start()

    def _watch(self) -> None:
        """Watch the workers until all of them have ended."""
        while not all(worker.noticed for worker in self.workers):
            self._wait(TICK)
            self._obey_signals()
            for worker in self.workers:
                if not worker.noticed and worker.ended():
                    worker.noticed = True
                    self._notice_end(worker)
            if not self._ways:
                self._look()
            elif time.monotonic() >= self._next_at:
                for worker in self.workers:
                    self._send(worker, self._ways[0])
                self._ways = self._ways[1:] or self._ways
                self._next_at = time.monotonic() + GRACE_AFTER_INTERRUPT

    def _send(self, worker: Worker, number: int) -> None:
        worker.signal(number)

    def _streams(self) -> list[Stream]:
        return [stream for worker in self.workers for stream in worker.streams]

    def _wait(self, seconds: float) -> None:
        """Wait for something to happen; fail if output cannot be written."""
        self.start.signals.wait(seconds)
        for stream in self._streams():
            if stream.failure:
                self._output_failed = True
                self._fail(stream.failure, 1)

    def _obey_signals(self) -> None:
        """Pass signals on to the workers; at the second signal, use the next way to end them."""
        while self.start.signals.pending:
            number = self.start.signals.pending.pop(0)
            if self._ways:
                self._next_at = 0.0
            else:
                self._stop(number, GRACE_AFTER_INTERRUPT, "", 128 + number)

    def _fail(self, why: str, code: int) -> None:
        """Note the first failure, and ask all workers to end."""
        if not self._ways:
            self._stop(signal.SIGTERM, self.grace, why, code)

    def _stop(self, number: int, grace: float, why: str, code: int) -> None:
        self._failure = why
        self._code = code
        self._ways = self.further
        self._next_at = time.monotonic() + grace
        for worker in self.workers:
            self._send(worker, number)

    def _end_all(self) -> None:
        """Leave no process behind, and forward the rest of the output; no process writes any more."""
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
        until = time.monotonic() + GRACE
        while not all(worker.ended() for worker in self.workers) and time.monotonic() < until:
            self._wait(TICK)
        until = time.monotonic() + GRACE
        signals = self.start.signals
        while left := [stream for stream in self._streams() if stream.is_alive()]:
            left[0].join(0.05)
            if any(output.is_writing for output in self._outputs):
                # The reader of the launcher's output is slow, or has stopped reading.
                if signals.have_come():
                    self._code = self._code or 128 + signals.first
                    break
                until = time.monotonic() + GRACE
            elif time.monotonic() > until:
                break
        self._wait(0)
        for stream in self._streams():
            stream.close()


class MPIJob(Job):
    """Processes that MPI starts and ends, wherever they are."""

    further: ClassVar[list[int]] = [signal.SIGTERM, signal.SIGKILL]
    grace: ClassVar[float] = GRACE_AFTER_INTERRUPT

    def _begin(self) -> None:
        words = self.program.over_mpi(self.start.words, self.start.number)
        # MPI's launcher ends its processes properly on SIGTERM, so that is what it gets if this process is killed.
        command = [*START, "tied", str(os.getpid()), "TERM", *words]
        stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
        self._add(Worker(Path(words[0]).name, "mpi"), command, [self.start.logs is None] * 2, stdin)

    def _send(self, worker: Worker, number: int) -> None:
        """Send a signal to MPI's launcher alone, which ends its processes."""
        if worker.code is None:
            os.kill(worker.process.pid, number)


class LocalJob(Job):
    """Processes on this machine."""

    def run(self) -> Ending:
        """See `Job`; a guard process ends the workers and their children if this process is killed."""
        assert self.program.processes is not None
        # The wait being watched: its purpose and the ranks that have not arrived, the time of the last check, and the
        # CPU seconds that these ranks had used by then.
        self._watched: tuple[tuple[str, list[int]], float, dict[int, float | None]] | None = None
        self._looked = time.monotonic()
        # The time to report that some ranks run on although others have ended, which nothing else detects.
        self._tell_at: float | None = None
        self._fd = anonymous_memory()
        try:
            self.board = Board(self._fd, self.program.processes, create=True)
            guard = [*START, "guard"]
            with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True, bufsize=0) as self._guard:
                try:
                    return super().run()
                finally:
                    self._guard.kill()
        finally:
            os.close(self._fd)

    def _begin(self) -> None:
        for rank in range(self.board.size):
            words = {"rank": rank, "size": self.board.size, "mode": self.program.mode, "backend": "shared"}
            words.update(self.start.words, parent=os.getpid(), fd=self._fd)
            command = self.program.of_rank(words, self.start.number)
            # Rank 0 writes to the terminal directly, so that its progress bars work.
            direct = [not rank and self.start.logs is None and file.isatty() for file in (sys.stdout, sys.stderr)]
            worker = Worker(f"rank {rank}", f"rank-{rank}", rank, f"[rank {rank}] ".encode())
            self._add(worker, command, direct, subprocess.DEVNULL if rank else None, self._fd)
            self._notify_guard("+", worker)

    def _notify_guard(self, sign: str, worker: Worker) -> None:
        """Tell the guard that a worker has begun ("+") or ended ("-")."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard has been killed
            self._guard.stdin.write(f"{sign}{worker.process.pid}\n".encode())

    def _notice_end(self, worker: Worker) -> None:
        self._notify_guard("-", worker)
        within = self.board.ended(worker.rank)
        super()._notice_end(worker)
        if not worker.code and within is not None:
            self._fail(f"{worker.name} has ended in the middle of {within}", 1)

    def _look(self) -> None:
        self._look_for_raised()
        self._look_for_hanging()
        self._report_missing_ranks()

    def _look_for_raised(self) -> None:
        """Fail if the program of a worker has raised, but something, such as a thread, keeps the process running."""
        for worker in self.workers:
            if not worker.noticed and self.board.has_raised(worker.rank):
                worker.raised = min(worker.raised, time.monotonic())
                if time.monotonic() - worker.raised > GRACE_AFTER_RAISING:
                    self._fail(f"{worker.name} has raised and does not end{worker.last_words()}", 1)

    def _report_missing_ranks(self) -> None:
        """Say once which ranks run on, when others ended long ago; they may have work to do, and are not ended."""
        ended = [worker.rank for worker in self.workers if worker.noticed]
        if not ended or not self.program.timeout:
            return
        if self._tell_at is None:
            self._tell_at = time.monotonic() + self.program.timeout
        elif time.monotonic() >= self._tell_at and len(ended) < len(self.workers):
            self._tell_at = math.inf
            late = [str(worker.rank) for worker in self.workers if not worker.noticed]
            who = f"rank {late[0]} still runs" if len(late) == 1 else f"ranks {', '.join(late)} still run"
            say(f"{who}, {self.program.timeout:g} s after rank {ended[0]} has ended")

    def _look_for_hanging(self) -> None:
        """Fail if workers wait for one that hangs."""
        waiting = self.board.waiting()
        if waiting is None:
            self._watched, self._looked = None, time.monotonic()
            return
        seconds, what, late = waiting
        gone = [rank for rank in late if self.workers[rank].code is not None]
        if gone:
            self._fail(f"rank {gone[0]} has ended, and others wait for it in {what}", 1)
            return
        hanging = self._hanging(seconds, what, late) if self.program.timeout else []
        if not hanging:
            return
        for rank in hanging:
            self.workers[rank].show_where()
        until = time.monotonic() + GRACE_FOR_TRACEBACK
        while time.monotonic() < until and not all(self.workers[rank].ended() for rank in hanging):
            self._wait(TICK)
        names = ", ".join(map(str, hanging))
        self._fail(f"rank {names} hangs: others have waited {seconds:.0f} s for it in {what}", 1)

    def _hanging(self, seconds: float, what: str, late: list[int]) -> list[int]:
        """The ranks that hang, of those that are `late` to what others have waited in for so many seconds."""
        now = time.monotonic()
        blind, self._looked = now - self._looked > BLIND, now
        wait = what, late
        if blind:
            # This process was stopped, or its output was not read, so that workers could not write either.
            self._watched = wait, now, self._used(late)
            return []
        if self._watched is None or self._watched[0] != wait or now - self._watched[1] > seconds + TICK:
            if seconds > self.program.timeout * SHORT:
                self._watched = wait, now - seconds, self._used(late)
            return []
        _, since, before = self._watched
        if now - since < self.program.timeout:
            return []
        used = self._used(late)
        idle = [rank for rank in late if not self._has_worked(before.get(rank), used[rank], now - since)]
        hanging = late if seconds > PATIENCE * self.program.timeout else idle
        if not hanging:
            self._watched = wait, now, used
        return hanging

    def _used(self, ranks: list[int]) -> dict[int, float | None]:
        return {rank: self.workers[rank].processor_seconds() for rank in ranks}

    @staticmethod
    def _has_worked(before: float | None, after: float | None, seconds: float) -> bool:
        """Whether a worker was computing in the meantime, as far as that is known."""
        return before is None or after is None or after - before > WORKING * seconds

    def _end_all(self) -> None:
        """Leave nothing behind: no process, no temporary file."""
        super()._end_all()
        for worker in self.workers:
            name = self.board.file_of(worker.rank)
            if name and worker.code is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)


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
