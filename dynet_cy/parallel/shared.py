"""The communicator of processes on one machine, over shared memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from dynet_cy.files import replacing
from dynet_cy.parallel.communicator import Communicator, Floats, check_floats, on_devices, steps_in_python
from dynet_cy.parallel.shared_memory import Board, lock_free, shared
from dynet_cy.train import Trainer
from dynet_cy.train.interfaces import Reducer


def sum_of_rows(everyone: list[tuple[NDArray[np.uint32], Floats]]) -> tuple[NDArray[np.uint32], Floats]:
    """Sum the rows of all ranks, given (numbers of rows, rows) for each; added in the order of ranks."""
    union = np.unique(np.concatenate([rows for rows, _ in everyone]))
    total = np.zeros((len(union), everyone[0][1].shape[1]), np.float32)
    for rows, values in everyone:
        total[np.searchsorted(union, rows)] += values
    return union, total


class SharedCommunicator(Communicator):
    """Processes on one machine, which see each other's gradients in shared memory.

    Args:
        board: the shared memory that the launcher has made.
        mode: "sync" or "async".
    """

    backend = "shared"
    launched = True
    _floats: Floats | None = None

    def __init__(self, board: Board, mode: str = "sync") -> None:
        self.board = board
        self.rank = self.local_rank = board.rank
        self.size = self.local_size = board.size
        self.mode = mode

    def break_off(self) -> None:
        """See `Communicator`; the other ranks are notified."""
        super().break_off()
        self.board.leave()

    def barrier(self, what: str = "barrier") -> None:
        """Wait for all ranks."""
        self.board.barrier(what)

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        """The bytes of all ranks."""
        return self.board.gather(data, what)

    def broadcast_floats(self, floats: Floats, root: int = 0) -> None:
        """Replace the numbers on all ranks by those of `root`."""
        check_floats(floats, "broadcast_floats")
        what = f"broadcast of {len(floats):,} numbers"  # ranks compare it
        gathered = self.gather_bytes(floats.tobytes() if self.rank == root else b"", what)
        floats[:] = np.frombuffer(gathered[root], np.float32)

    def shared_floats(self, n: int) -> Floats:
        """Shared memory for n floats of each process, and n more for the sums; n is the same on all ranks."""
        if self._floats is None or self._floats.shape[1] < n:
            region = self.board.region((self.size + 1) * max(n, 1) * 4)
            self._floats = np.frombuffer(memoryview(region), np.float32, (self.size + 1) * n).reshape(self.size + 1, n)
        return self._floats[:, :n]

    def sum_floats(self, floats: Floats) -> None:
        """Replace the numbers on all ranks by their sums, added in the order of ranks."""
        floats[:] = self.sum_in_place(floats)

    def sum_in_place(self, floats: Floats) -> Floats:
        """The sums, in shared memory, where all processes can read them until the next call of this method.

        Each process computes a part of them.
        """
        check_floats(floats, "sum_floats")
        n = len(floats)
        what = f"sum of {n:,} numbers"  # ranks compare it
        shared = self.shared_floats(n)
        shared[self.rank] = floats
        self.barrier(what)
        part = slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)
        total = shared[self.size, part]
        total[:] = shared[0, part]
        for r in range(1, self.size):
            total += shared[r, part]
        self.barrier(what)
        sums: Floats = shared[self.size]
        return sums

    def sum_rows(self, rows: NDArray[np.uint32], values: Floats, n_rows: int) -> tuple[NDArray[np.uint32], Floats]:
        """Sums of rows of a table, added in the order of ranks."""
        width = values.shape[1]
        everyone = [np.frombuffer(data, np.uint32) for data in self.gather_bytes(rows.tobytes(), "sum of rows")]
        shared = self.shared_floats(max(len(numbers) for numbers in everyone) * width)
        shared[self.rank, : values.size] = values.reshape(-1)
        self.barrier("sum of rows")
        sent = [shared[r, : len(numbers) * width].reshape(-1, width) for r, numbers in enumerate(everyone)]
        found = sum_of_rows(list(zip(everyone, sent)))
        self.barrier("sum of rows")
        return found

    def abort(self, message: str, code: int = 1) -> None:
        """Write the reason to stderr, and end the process; the launcher ends the others."""
        sys.stdout.flush()
        sys.stderr.write(f"dynet_cy: rank {self.rank}: {message}\n")
        sys.stderr.flush()
        os._exit(code)

    def reducer(self, trainer: Trainer, reduction: str) -> Reducer | None:
        """Updates in shared memory: synchronous, with each rank updating its part, or asynchronous, without locks.

        If parameters live on devices, or the trainer computes steps in Python, each rank updates all parameters.
        """
        if self.mode == "async":
            return lock_free(self, trainer)
        if on_devices(trainer) or steps_in_python(trainer):
            return super().reducer(trainer, reduction)
        return shared(self, trainer, reduction)


def _report_exceptions(board: Board) -> None:
    """Tell the launcher when the program raises, since threads of the program may keep the process running."""
    show = sys.excepthook

    def show_and_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        board.note_raised()

    sys.excepthook = show_and_report


def connect(settings: Mapping[str, str]) -> SharedCommunicator:
    """The communicator of a worker, from the launcher's settings."""
    board = Board(int(settings["fd"]), int(settings["size"]), int(settings["rank"]), int(settings["parent"]))
    replacing.note_temporary = board.note_file
    if not (sys.flags.inspect or sys.flags.interactive):
        _report_exceptions(board)
    return SharedCommunicator(board, settings["mode"])
