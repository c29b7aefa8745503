"""Processes that MPI has started, on one host or many; and the end of their job when one would wait forever.

Just run `mpirun -n 16 python train.py`: the first use of `dynet_cy.parallel` finds MPI in the environment
and connects through `mpi4py`. Sums are computed in two steps: through shared memory among the processes of a host, then
over MPI among the first processes of all hosts.

A long wait does not occupy a core: after polling for a short time, the process sleeps between polls. If a process ends
early or raises, the job ends: see `Watch`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import io
import os
import socket
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dynet_cy.kernels import pool
from dynet_cy.parallel.collective import allreduce, overlapped
from dynet_cy.parallel.communicator import (
    LEFT,
    PATIENCE,
    WORKING,
    Communicator,
    Floats,
    LocalCommunicator,
    ParallelError,
    check_floats,
    on_devices,
    only_some,
)
from dynet_cy.parallel.shared import SharedCommunicator, sum_of_rows
from dynet_cy.parallel.shared_memory import Board, anonymous_memory
from dynet_cy.parallel.start import cpus
from dynet_cy.train import Trainer
from dynet_cy.train.interfaces import Reducer

HOST = "DYNET_CY_HOST"
"""Variable that names this host: processes with the same name share memory. By default MPI decides."""

TIMEOUT = "DYNET_CY_TIMEOUT"
"""Variable with the seconds that others may wait for an idle process, if the launcher does not set it; 60 by default,
0: no limit."""

OVERLAP = "DYNET_CY_OVERLAP"
"""Variable; "0" means that sums of gradients begin only after backward."""

# Seconds of polling before a wait sleeps. The first step of a collective operation may wait long for a late rank. In
# later steps all ranks have arrived, and MPI transfers data only while it is being called.
ARRIVAL = 2e-4
TRANSFER = 0.25

LONGEST_SLEEP = 1e-3
FORWARDING = 0.3  # seconds that MPI's launcher gets to forward output before all ranks are ended
LOOKING = 0.25  # seconds between two checks of which ranks wait
GRACE = 2.0  # seconds after which a waiting rank reports to rank 0
BEAT = 5.0  # most seconds between two checks whether a rank is computing

Rows = NDArray[np.uint32]


def connect(words: dict[str, str]) -> Communicator:
    """The communicator of a process that MPI has started.

    Args:
        words: the settings from `dynet_cy.launch`: "mode".

    Raises:
        ParallelError: mpi4py or MPI is missing, or asynchronous training is requested with several hosts.
    """
    try:
        mpi: Any = importlib.import_module("mpi4py.MPI")
    except ImportError as error:
        raise ParallelError(
            "this process was started by MPI, or is to use it, and that needs mpi4py with an MPI library: "
            f"pip install 'dynet_cy[mpi]' ({error})"
        ) from error
    if isinstance(sys.stdout, io.TextIOWrapper):
        # MPI's launcher merges the output of the processes, even in the middle of a line.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    world = mpi.COMM_WORLD.Dup()
    watch = Watch(mpi, world, float(words.get("timeout") or os.environ.get(TIMEOUT) or 60))
    name = os.environ.get(HOST)
    names = world.allgather(name)
    if any(names):
        local = world.Split(names.index(name), world.rank)
    else:
        local = world.Split_type(mpi.COMM_TYPE_SHARED, world.rank)
    pool.share_cpus(_sharers(local))
    mode = words.get("mode", "sync")
    if mode == "async" and local.size < world.size:
        raise ParallelError(
            f"asynchronous training needs one memory that all processes share, and these {world.size} are on "
            "several hosts: train with --mode sync, or on one host"
        )
    if local.size == 1:
        inside: Communicator = LocalCommunicator()
    else:
        inside = share(local, mode)
    if world.size == 1:
        return _Alone()
    watch.look_after(inside, local.allgather(world.rank))
    return MPICommunicator(mpi, world, inside, local.rank, watch)


def share(local: Any, mode: str) -> SharedCommunicator:
    """The communicator of the processes of a communicator, which must be on one host.

    Unlike workers of the launcher, they do not inherit a descriptor. The first of them makes the memory, which has no
    name, and the others open it through its descriptor under ``/proc``. So no file remains, however they end.

    Raises:
        ParallelError: a process cannot open it.
    """
    fd, place, why = -1, None, ""
    if local.rank == 0:
        fd = anonymous_memory()
        board = Board(fd, local.size, 0, os.getppid(), create=True)
        place = f"/proc/{os.getpid()}/fd/{fd}", _identity(fd)
    name, identity = local.bcast(place)
    if local.rank:
        try:
            fd = os.open(name, os.O_RDWR | os.O_NONBLOCK)  # on another host, the name may belong to anything
            if _identity(fd) != identity:
                raise OSError(f"{name} is something else here")
            board = Board(fd, local.size, local.rank, os.getppid())
        except OSError as error:
            why = str(error)
    for failure in filter(None, local.allgather(why)):
        raise ParallelError(
            f"cannot get the shared memory from a process of the same host ({failure}); give each host, or each "
            "container, a name of its own in DYNET_CY_HOST"
        )
    return SharedCommunicator(board, mode)


def _identity(fd: int) -> tuple[int, ...]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size


def _sharers(local: Any) -> int:
    """The number of processes of this host on the CPUs of this process; MPI may have bound each to some of them."""
    own = cpus()
    return sum(not own.isdisjoint(others) for others in local.allgather(own))


class _Closed:
    """Replaces the MPI communicators when MPI may no longer be called: every use raises an error."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise ParallelError(self._why)


class _Alone(LocalCommunicator):
    """One process, started by MPI."""

    backend = "mpi"
    launched = True


class MPICommunicator(Communicator):
    """See `Communicator`; made by `connect`.

    Args:
        mpi: the module mpi4py.MPI.
        world: an MPI communicator of all ranks, which nothing else uses.
        inside: the communicator of the processes of this host, in the order of their ranks.
        local_rank: number of this process among them.
        watch: ends the job when a process would wait forever.
    """

    backend = "mpi"
    launched = True

    def __init__(self, mpi: Any, world: Any, inside: Communicator, local_rank: int, watch: Watch) -> None:
        self.mpi = mpi
        self.world = world
        self.inside = inside
        self.rank, self.size = world.rank, world.size
        self.local_rank, self.local_size = local_rank, inside.size
        self.mode = inside.mode
        self.leaders = world.Split(0 if local_rank == 0 else mpi.UNDEFINED, world.rank)
        self.hosts: int = world.bcast(self.leaders.size if self.rank == 0 else None)
        self.watch = watch
        self.flow = world.Dup()  # for sums that run in the background
        # Pending requests; the memory that MPI reads and writes until they are done, kept alive even if a signal has
        # interrupted the wait for them; and whether they run in the background.
        self.under_way: list[tuple[Any, tuple[Any, ...], bool]] = []
        world.Barrier()
        forget_names()
        os.register_at_fork(after_in_child=self.leave)

    def leave(self) -> None:
        """Close the communicators in a process forked from the rank, which must not call MPI."""
        self.close_communicators(
            f"this is a child of rank {self.rank}, not the process that MPI has started; only that one can do what "
            "needs all ranks"
        )
        self.watch.is_child = True

    def close_communicators(self, why: str) -> None:
        """Make every call that needs other ranks an error from now on."""
        self.world = self.leaders = self.flow = _Closed(why)

    def start(self, call: Any, *buffers: Any, overlaps: bool = False) -> Any:
        """Begin a nonblocking operation; `wait` for the result."""
        request = call(*buffers)
        self.under_way.append((request, buffers, overlaps))
        return request

    def finish(self, what: str, call: Any, *buffers: Any, asking: float = TRANSFER) -> None:
        """Do a nonblocking operation, and wait until it is done."""
        self.wait([self.start(call, *buffers)], what, asking)

    def wait(self, requests: Sequence[Any], what: str, asking: float = TRANSFER) -> None:
        """Wait until all requests are done; after `asking` seconds, sleep between polls unless background sums run."""
        self.under_way = [x for x in self.under_way if not x[0].Test()]
        try:
            self.watch.wait(requests, what, TRANSFER if any(overlaps for *_, overlaps in self.under_way) else asking)
        except BaseException:
            self.break_off()
            raise

    def break_off(self) -> None:
        """See `Communicator`; the other ranks of this host are notified."""
        super().break_off()
        self.close_communicators(LEFT % "this rank")
        self.inside.break_off()

    def barrier(self, what: str = "barrier") -> None:
        """See `Communicator`."""
        if self.hosts == 1:
            self.inside.barrier(what)
        else:
            self.finish(what, self.world.Ibarrier, asking=ARRIVAL)

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        """See `Communicator`."""
        if self.hosts == 1:
            return self.inside.gather_bytes(data, what)
        comm = self.world
        announced = np.empty((comm.size, 2), np.int64)
        own = np.array([len(data), zlib.crc32(what.encode())], np.int64)
        self.finish(what, comm.Iallgather, own, announced, asking=ARRIVAL)
        lengths = announced[:, 0]
        for rank in np.flatnonzero(announced[:, 1] != announced[self.rank, 1]).tolist():
            raise only_some(rank, "", self.rank, what)
        whole = bytearray(int(lengths.sum()))
        self.finish(what, comm.Iallgatherv, [data, self.mpi.BYTE], [whole, lengths.tolist(), self.mpi.BYTE])
        ends = np.cumsum(lengths)
        return [bytes(whole[end - length : end]) for end, length in zip(ends.tolist(), lengths.tolist())]

    def broadcast_floats(self, floats: Floats, root: int = 0) -> None:
        """See `Communicator`."""
        if self.hosts == 1:
            self.inside.broadcast_floats(floats, root)
        else:
            check_floats(floats, "broadcast_floats")
            self.finish("broadcast", self.world.Ibcast, floats, root)

    def sum_floats(self, floats: Floats) -> None:
        """See `Communicator`."""
        what = "sum of gradients"
        if isinstance(self.inside, SharedCommunicator):
            shared = self.inside.sum_in_place(floats)
            if self.hosts > 1:
                if self.local_rank == 0:
                    self.finish(what, self.leaders.Iallreduce, self.mpi.IN_PLACE, shared)
                self.inside.barrier(what)
            floats[:] = shared
        else:
            check_floats(floats, "sum_floats")
            self.finish(what, self.leaders.Iallreduce, self.mpi.IN_PLACE, floats)

    def sum_rows(self, rows: Rows, values: Floats, n_rows: int) -> tuple[Rows, Floats]:
        """See `Communicator`."""
        rows, values = self.inside.sum_rows(rows, values, n_rows)
        if self.hosts == 1:
            return rows, values
        width = values.shape[1]
        if self.local_rank == 0:
            rows, values = self._sum_rows(rows, values, n_rows)
        if self.local_size > 1:
            mine = self.local_rank == 0
            data = self.inside.gather_bytes(rows.tobytes() + values.tobytes() if mine else b"", "sum of rows")[0]
            n = len(data) // (4 + 4 * width)
            rows = np.frombuffer(data, np.uint32, n)
            values = np.frombuffer(data, np.float32, n * width, 4 * n).reshape(n, width)
        return rows, values

    def _sum_rows(self, rows: Rows, values: Floats, n_rows: int) -> tuple[Rows, Floats]:
        """`sum_rows` of the leaders."""
        what, comm, width = "sum of rows", self.leaders, values.shape[1]
        counts = np.empty(comm.size, np.int64)
        self.finish(what, comm.Iallgather, np.array([len(rows)], np.int64), counts)
        total = int(counts.sum())
        # Compare the bytes that a host receives: all rows of the others, or twice the table for a sum.
        if total * (4 + 4 * width) >= 2 * n_rows * 4 * width:
            table = np.zeros((n_rows, width), np.float32)
            used = np.zeros(n_rows, np.float32)
            table[rows], used[rows] = values, 1
            self.wait([self.start(comm.Iallreduce, self.mpi.IN_PLACE, x) for x in (table, used)], what)
            found = np.flatnonzero(used).astype(np.uint32)
            return found, table[found]
        all_rows = np.empty(total, np.uint32)
        all_values = np.empty((total, width), np.float32)
        numbers = counts.tolist()
        floats = [n * width for n in numbers]
        parts = (rows, [all_rows, numbers, self.mpi.UINT32_T]), (values, [all_values, floats, self.mpi.FLOAT])
        self.wait([self.start(comm.Iallgatherv, np.ascontiguousarray(x), y) for x, y in parts], what)
        ends = np.cumsum(counts)[:-1].tolist()
        return sum_of_rows(list(zip(np.split(all_rows, ends), np.split(all_values, ends))))

    def abort(self, message: str, code: int = 1) -> None:
        """See `Communicator`."""
        self.watch.abort(message, code)

    def reducer(self, trainer: Trainer, reduction: str) -> Reducer | None:
        """See `Communicator`."""
        if self.hosts == 1:
            return self.inside.reducer(trainer, reduction) or allreduce(self.inside, trainer, reduction)
        if os.environ.get(OVERLAP) == "0" or on_devices(trainer):
            return super().reducer(trainer, reduction)
        return overlapped(self, trainer, reduction)

    # ---- for overlap -------------------------------------------------------------

    def start_sum(self, send: Floats, receive: Floats) -> Any:
        """Start a sum over all ranks; `wait` for the result."""
        return self.start(self.flow.Iallreduce, send, receive, overlaps=True)

    def start_any(self, flag: Floats) -> Any:
        """Start to sum one number over all ranks, in place."""
        return self.start(self.flow.Iallreduce, self.mpi.IN_PLACE, flag)

    def progress(self, requests: Sequence[Any]) -> None:
        """Let MPI transfer data, which it does only while it is being called."""
        self.mpi.Request.Testall(requests)


# ---- what ends the job


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
            name = "dynet_cy.parallel.mpi"
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
