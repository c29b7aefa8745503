"""Processes that MPI has started, on one host or many.

`mpirun -n 16 python train.py` is all there is to do: the first use of `dynet_cy.parallel` finds MPI in the environment
and connects through `mpi4py`. Sums are made in two steps: through shared memory among the processes of a host, then
over MPI among the first processes of all hosts.

Nothing here holds a core while it waits long: after a short time of asking, the process sleeps between questions. A
process that ends early, or that raises, ends the job: see `_Watch`.
"""

from __future__ import annotations

import atexit
import importlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dynet_cy.parallel.exchange import Exchange, Floats, LocalExchange, ParallelError

if TYPE_CHECKING:
    from dynet_cy.train.trainers import Stepper, Trainer

__all__ = ["MPIExchange", "connect", "sum_of_rows"]

HOST = "DYNET_CY_HOST"
"""Variable with a name for this host: processes with the same name share memory. By default MPI tells."""

ASKING = 2e-4  # seconds for which a wait keeps asking
LONGEST_SLEEP = 1e-3
FORWARDING = 0.3  # seconds in which MPI's launcher can pass on what has been written, before it ends all ranks
GRACE = 2.0  # seconds after which rank 0 is told what a rank waits for

Rows = NDArray[np.uint32]


def connect(words: dict[str, str]) -> Exchange:
    """The exchange of a process that MPI has started.

    Args:
        words: what `dynet_cy.launch` has told: "mode".

    Raises:
        ParallelError: mpi4py or MPI is missing, or asynchronous training is asked for with several hosts.
    """
    try:
        mpi: Any = importlib.import_module("mpi4py.MPI")
    except ImportError as error:
        raise ParallelError(
            "this process was started by MPI, or is to use it, and that needs mpi4py with an MPI library: "
            f"pip install 'dynet_cy[mpi]' ({error})"
        ) from error
    world = mpi.COMM_WORLD.Dup()
    watch = _Watch(mpi, world)
    name = os.environ.get(HOST)
    names = world.allgather(name)
    if any(names):
        local = world.Split(names.index(name), world.rank)
    else:
        local = world.Split_type(mpi.COMM_TYPE_SHARED, world.rank)
    mode = words.get("mode", "sync")
    if mode == "async" and local.size < world.size:
        raise ParallelError(
            f"asynchronous training needs one memory that all processes share, and these {world.size} are on "
            "several hosts: train with --mode sync, or on one host"
        )
    if local.size == 1:
        inside: Exchange = LocalExchange()
    else:
        from dynet_cy.parallel.hosts import share

        inside = share(local, mode)
    if world.size == 1:
        return _Alone()
    return MPIExchange(mpi, world, inside, local.rank, watch)


class _Alone(LocalExchange):
    """One process, started by MPI."""

    backend = "mpi"
    launched = True


class MPIExchange(Exchange):
    """See `Exchange`; made by `connect`.

    Args:
        mpi: the module mpi4py.MPI.
        world: a communicator of all ranks, for this exchange alone.
        inside: the exchange of the processes of this host, in the order of their ranks.
        local_rank: number of this process among them.
        watch: sees to it that nobody waits for a process that has ended.
    """

    backend = "mpi"
    launched = True

    def __init__(self, mpi: Any, world: Any, inside: Exchange, local_rank: int, watch: _Watch) -> None:
        self.mpi = mpi
        self.world = world
        self.inside = inside
        self.rank, self.size = world.rank, world.size
        self.local_rank, self.local_size = local_rank, inside.size
        self.mode = inside.mode
        self.leaders = world.Split(0 if local_rank == 0 else mpi.UNDEFINED, world.rank)
        self.hosts: int = world.bcast(self.leaders.size if self.rank == 0 else None)
        self.watch = watch

    def wait(self, requests: Sequence[Any], what: str) -> None:
        """Wait until all is done, asleep when it takes long."""
        self.watch.wait(requests, what)

    def barrier(self, what: str = "barrier") -> None:
        """See `Exchange`."""
        self.wait([self.world.Ibarrier()], what)

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        """See `Exchange`."""
        return self._gather_bytes(self.world, data, what)

    def _gather_bytes(self, comm: Any, data: bytes, what: str) -> list[bytes]:
        lengths = np.empty(comm.size, np.int64)
        self.wait([comm.Iallgather(np.array([len(data)], np.int64), lengths)], what)
        whole = bytearray(int(lengths.sum()))
        self.wait([comm.Iallgatherv([data, self.mpi.BYTE], [whole, lengths.tolist(), self.mpi.BYTE])], what)
        ends = np.cumsum(lengths)
        return [bytes(whole[end - length : end]) for end, length in zip(ends.tolist(), lengths.tolist())]

    def broadcast_floats(self, floats: Floats, root: int = 0) -> None:
        """See `Exchange`."""
        self.wait([self.world.Ibcast(floats, root)], "broadcast")

    def sum_floats(self, floats: Floats) -> None:
        """See `Exchange`."""
        if self.local_size > 1:
            self.inside.sum_floats(floats)
        if self.hosts == 1:
            return
        if self.local_rank == 0:
            self.wait([self.leaders.Iallreduce(self.mpi.IN_PLACE, floats)], "sum of gradients")
        if self.local_size > 1:
            self.inside.broadcast_floats(floats)

    def sum_rows(self, rows: Rows, values: Floats, n_rows: int) -> tuple[Rows, Floats]:
        """See `Exchange`."""
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
        self.wait([comm.Iallgather(np.array([len(rows)], np.int64), counts)], what)
        total = int(counts.sum())
        # What a host receives: all rows of the others, or twice the table in a sum.
        if total * (4 + 4 * width) >= 2 * n_rows * 4 * width:
            table = np.zeros((n_rows, width), np.float32)
            used = np.zeros(n_rows, np.float32)
            table[rows], used[rows] = values, 1
            self.wait([comm.Iallreduce(self.mpi.IN_PLACE, x) for x in (table, used)], what)
            found = np.flatnonzero(used).astype(np.uint32)
            return found, table[found]
        all_rows = np.empty(total, np.uint32)
        all_values = np.empty((total, width), np.float32)
        numbers = counts.tolist()
        floats = [n * width for n in numbers]
        self.wait(
            [
                comm.Iallgatherv(np.ascontiguousarray(rows), [all_rows, numbers, self.mpi.UINT32_T]),
                comm.Iallgatherv(np.ascontiguousarray(values), [all_values, floats, self.mpi.FLOAT]),
            ],
            what,
        )
        return sum_of_rows(all_rows, all_values)

    def abort(self, message: str, code: int = 1) -> None:
        """See `Exchange`."""
        self.watch.abort(message, code)

    def close(self) -> None:
        """See `Exchange`."""
        self.inside.close()


def sum_of_rows(rows: Rows, values: Floats) -> tuple[Rows, Floats]:
    """Add up rows of equal number, in the order in which they come.

    Returns:
        The numbers, ascending, each once, and the sums.
    """
    if not len(rows):
        return rows, values
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    first = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])
    return ascending[first], np.add.reduceat(values[order], first, axis=0)


class _Watch:
    """Sees to it that no rank waits for ever for one that has ended or failed.

    A rank that raises, or exits with an error, aborts the job by `MPI_Abort`; MPI itself ends the job when a rank is
    killed. A rank that ends without an error tells rank 0, and one that has waited for a while tells rank 0 what it
    waits for. When rank 0 hears that one has ended that others wait for, it aborts the job.
    """

    ENDED, WAITS = 1, 2

    def __init__(self, mpi: Any, world: Any) -> None:
        self.mpi = mpi
        self.control = world.Dup()
        self.rank: int = world.rank
        self.size: int = world.size
        self.sent: list[Any] = []
        self.ended: set[int] = set()
        self.waiting: dict[int, str] = {}
        self.told = False  # rank 0: that this rank waits
        self.hook = sys.excepthook
        sys.excepthook = self.raised
        atexit.register(self.ends)

    def wait(self, requests: Sequence[Any], what: str) -> None:
        test = self.mpi.Request.Testall
        begun = time.perf_counter()
        pause = 2e-5
        while not test(requests):
            elapsed = time.perf_counter() - begun
            if elapsed < ASKING:
                os.sched_yield()
                continue
            if elapsed > GRACE and not self.told:
                self.tell(self.WAITS, what)
                self.told = True
            if self.rank == 0:
                self.listen()
                if self.ended:
                    self.give_up(f"rank 0 waits in {what!r}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)
        if self.told:
            self.tell(self.WAITS, "")
            self.told = False

    def tell(self, tag: int, what: str) -> None:
        """Send rank 0 a note, without waiting for it to be read."""
        if self.rank:
            self.sent.append(self.control.isend(what, 0, tag))

    def listen(self) -> None:
        """Rank 0: read the notes that have come."""
        status = self.mpi.Status()
        while self.control.iprobe(tag=self.mpi.ANY_TAG, status=status):
            what = self.control.recv(source=status.source, tag=status.tag)
            if status.tag == self.ENDED:
                self.ended.add(status.source)
            elif what:
                self.waiting[status.source] = what
            else:
                self.waiting.pop(status.source, None)

    def give_up(self, who: str) -> NoReturn:
        ended = ", ".join(map(str, sorted(self.ended)))
        self.abort(f"{who}, but rank {ended} has ended without taking part in it")

    def ends(self) -> None:
        """The program of this rank has ended."""
        if self.mpi.Is_finalized():
            return
        self.tell(self.ENDED, "")
        if self.rank == 0:
            pause = 2e-5
            while True:
                self.listen()
                stuck = sorted(self.waiting.keys() - self.ended)
                if stuck:
                    self.ended.add(0)
                    self.give_up(f"rank {stuck[0]} waits in {self.waiting[stuck[0]]!r}")
                if len(self.ended) == self.size - 1:
                    break
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
        # The others must not reach MPI_Finalize, which does not sleep, long before the last rank is through.
        done = self.control.Ibarrier()
        while not done.Test():
            time.sleep(LONGEST_SLEEP)

    def raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """What Python calls for an exception that nobody has caught."""
        text = "".join(traceback.format_exception(kind, error, trace))
        self.abort(f"rank {self.rank} on {socket.gethostname()} has failed\n{text}", 130 if kind is KeyboardInterrupt else 1)

    def abort(self, message: str, code: int = 1) -> NoReturn:
        """Write the message to stderr in one piece, and end all ranks."""
        sys.stdout.flush()
        lines = "".join(f"[{self.rank}] {line}\n" for line in message.rstrip().splitlines())
        sys.stderr.write(f"dynet_cy: the job is aborted\n{lines}")
        sys.stderr.flush()
        time.sleep(FORWARDING)
        self.mpi.COMM_WORLD.Abort(code)
        os._exit(code)
