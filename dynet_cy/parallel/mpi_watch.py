"""Ends an MPI job when a rank would otherwise wait forever for one that has exited, failed or hangs."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from dynet_cy.parallel.communicator import Communicator

__all__ = ["Watch", "forget_names"]

LONGEST_SLEEP = 1e-3
FORWARDING = 0.3  # seconds that MPI's launcher gets to forward output before all ranks are ended
LOOKING = 0.25  # seconds between two checks of which ranks wait
GRACE = 2.0  # seconds after which a waiting rank reports to rank 0
BEAT = 5.0  # most seconds between two checks whether a rank is computing
WORKING = 0.05  # a rank is computing if it uses more than this share of a core
PATIENCE = 10  # others wait this many times longer for a rank that is computing


def forget_names() -> None:
    """Remove the names of MPICH's shared memory, once all processes of this host have mapped it.

    MPICH leaves it behind when a job is aborted or killed; memory without a name is freed with the last process.
    """
    with contextlib.suppress(OSError):
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            names = {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line and "(deleted)" not in line}
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)


class Watch:
    """Ends the job when a rank would otherwise wait forever for one that has exited, failed or hangs.

    A rank that raises aborts the job with `MPI_Abort`, and MPI itself ends the job when a rank is killed. For all other
    cases each rank has a thread that reports to rank 0 that its program has exited, what it is waiting for, or that it
    is computing. If rank 0 finds that others wait for a rank that has exited or is idle, it aborts the
    job. The thread needs an MPI library that allows calls from several threads.
    """

    ENDED, WAITS, WORKS, SHOW = range(4)

    def __init__(self, mpi: Any, world: Any, timeout: float) -> None:
        self.mpi = mpi
        self.control = world.Dup()
        self.rank: int = world.rank
        self.size: int = world.size
        self.timeout = timeout
        self.sent: list[Any] = []
        self.ended: set[int] = set()
        self.waiting: dict[int, tuple[str, float]] = {}  # rank 0: what ranks wait for, and since when
        self.worked: dict[int, float] = {}  # rank 0: when ranks were last computing
        self.over = threading.Event()
        self.is_child = False  # whether this process was forked from the rank
        sys.excepthook = self.raised
        atexit.register(self.ends)

    def look_after(self, inside: Communicator, members: list[int]) -> None:
        """Start to watch this rank; the first rank of a host also watches those that wait in its shared memory.

        Args:
            inside: the communicator of the host.
            members: the ranks of the host.
        """
        board = getattr(inside, "board", None) if members[0] == self.rank else None
        if self.mpi.Query_thread() == self.mpi.THREAD_MULTIPLE:
            name = "dynet_cy.parallel.mpi_watch"
            threading.Thread(target=self.look, args=(board, members), daemon=True, name=name).start()

    def look(self, board: Any, members: list[int]) -> None:
        reported: dict[int, str] = {}
        beat, used = time.monotonic(), time.process_time()
        pause = min(BEAT, self.timeout / 8) if self.timeout else BEAT
        while not self.over.wait(LOOKING):
            now = time.monotonic()
            if now - beat > pause:
                if time.process_time() - used > WORKING * (now - beat):
                    self.send(self.WORKS, None)
                beat, used = now, time.process_time()
            if board is not None:
                long = board.waiting()
                waits: dict[int, str] = {}
                if long is not None and long[0] > GRACE:
                    waits = {rank: long[1] for i, rank in enumerate(members) if i not in long[2]}
                changed = {rank: waits.get(rank, "") for rank in members if waits.get(rank) != reported.get(rank)}
                if changed:
                    self.send(self.WAITS, changed)
                reported = waits
            self.listen()
            if self.rank == 0:
                self.judge()

    def wait(self, requests: Sequence[Any], what: str, asking: float) -> None:
        """Wait until all requests are done; after `asking` seconds, sleep between polls."""
        test = self.mpi.Request.Testall
        begun = time.perf_counter()
        pause = 2e-5
        reported = False
        while not test(requests):
            elapsed = time.perf_counter() - begun
            if elapsed < asking:
                os.sched_yield()
                continue
            if elapsed > GRACE and not reported:
                self.send(self.WAITS, {self.rank: what})
                reported = True
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)
        if reported:
            self.send(self.WAITS, {self.rank: ""})

    def send(self, tag: int, what: Any, to: int = 0) -> None:
        """Send a note, without waiting until it is read."""
        if self.rank == to:
            self.note(to, tag, what)
        else:
            self.sent = [request for request in self.sent if not request.Test()]
            self.sent.append(self.control.isend(what, to, tag))

    def note(self, rank: int, tag: int, what: Any) -> None:
        if tag == self.ENDED:
            self.ended.add(rank)
        elif tag == self.WORKS:
            self.worked[rank] = time.monotonic()
        elif tag == self.SHOW:
            faulthandler.dump_traceback()
        else:
            for who, words in what.items():
                if words:
                    self.waiting[who] = words, time.monotonic() - GRACE
                else:
                    self.waiting.pop(who, None)

    def listen(self) -> None:
        """Read the notes that have arrived."""
        while True:
            message = self.control.improbe(tag=self.mpi.ANY_TAG, status=(status := self.mpi.Status()))
            if message is None:
                return
            self.note(status.source, status.tag, message.recv())

    def judge(self) -> None:
        """On rank 0: abort the job if ranks wait for one that hangs or has exited."""
        stuck = {rank: wait for rank, wait in self.waiting.copy().items() if rank not in self.ended}
        if not stuck:
            return
        first = min(stuck, key=lambda rank: stuck[rank][1])
        what, since = stuck[first]
        if self.ended:
            ended = ", ".join(map(str, sorted(self.ended)))
            self.abort(f"rank {first} waits in {what!r}, but rank {ended} has ended without taking part in it")
        now = time.monotonic()
        late = set(range(self.size)) - stuck.keys()
        hanging = sorted(
            rank
            for rank in late
            if now - max(since, self.worked.get(rank, since)) > self.timeout or now - since > PATIENCE * self.timeout
        )
        if not self.timeout or not hanging:
            return
        for rank in hanging:
            self.send(self.SHOW, None, rank)
        time.sleep(1)
        names = ", ".join(map(str, hanging))
        self.abort(f"rank {names} hangs: others have waited {now - since:.0f} s for it in {what!r}")

    def ends(self) -> None:
        """Called when the program of this rank has ended."""
        if self.mpi.Is_finalized():
            return
        if self.is_child:
            # The exit handlers that follow would finalize MPI, for the rank and so for all.
            self.abort("a child of this rank has ended like a rank; let it end by os._exit, as multiprocessing does")
        self.send(self.ENDED, None)
        # MPI_Finalize waits without sleeping, so no rank should enter it long before the last one has finished.
        done = self.control.Ibarrier()
        while not done.Test():
            time.sleep(LONGEST_SLEEP)
        self.over.set()

    def raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The hook that Python calls for an uncaught exception."""
        text = "".join(traceback.format_exception(kind, error, trace))
        if self.is_child:
            # In one piece, since MPI merges the output of its ranks even in the middle of a line.
            sys.stderr.write(text)
            return
        where = f"rank {self.rank} on {socket.gethostname()} has failed"
        self.abort(f"{where}\n{text}", 130 if kind is KeyboardInterrupt else 1)

    def abort(self, message: str, code: int = 1) -> NoReturn:
        """Write the message to stderr in one piece, and end all ranks; in a child of a rank, end only the child."""
        sys.stdout.flush()
        lines = "".join(f"[{self.rank}] {line}\n" for line in message.rstrip().splitlines())
        what = "this process ends" if self.is_child else "the job is aborted"
        sys.stderr.write(f"dynet_cy: {what}\n{lines}")
        sys.stderr.flush()
        if self.is_child:
            os._exit(code)
        time.sleep(FORWARDING)
        forget_names()
        self.mpi.COMM_WORLD.Abort(code)
        os._exit(code)
