"""The exchange of processes on one machine, over shared memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dynet_cy import textfile
from dynet_cy.parallel.board import Board
from dynet_cy.parallel.exchange import Exchange, Floats

if TYPE_CHECKING:
    from dynet_cy.train.trainers import Stepper, Trainer

__all__ = ["SharedExchange", "connect", "sum_of_rows"]


def sum_of_rows(everyone: list[tuple[NDArray[np.uint32], Floats]]) -> tuple[NDArray[np.uint32], Floats]:
    """Sums of the rows that ranks have, given (numbers of rows, rows) of each, added in the order of ranks."""
    union = np.unique(np.concatenate([rows for rows, _ in everyone]))
    total = np.zeros((len(union), everyone[0][1].shape[1]), np.float32)
    for rows, values in everyone:
        total[np.searchsorted(union, rows)] += values
    return union, total


class SharedExchange(Exchange):
    """Processes on one machine, which see each other's gradients in shared memory.

    Args:
        board: the shared memory that the launcher has made.
        mode: "sync" or "async".
    """

    backend = "shared"
    launched = True

    def __init__(self, board: Board, mode: str = "sync") -> None:
        self.board = board
        self.rank = self.local_rank = board.rank
        self.size = self.local_size = board.size
        self.mode = mode

    def barrier(self, what: str = "barrier") -> None:
        """Wait for all ranks."""
        self.board.barrier(what)

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        """The bytes of all ranks."""
        return self.board.gather(data, what)

    def broadcast_floats(self, floats: Floats, root: int = 0) -> None:
        """Make the numbers on all ranks those of `root`."""
        told = self.gather_bytes(floats.tobytes() if self.rank == root else b"", "broadcast")
        floats[:] = np.frombuffer(told[root], np.float32)

    def sum_floats(self, floats: Floats) -> None:
        """Make the numbers on all ranks their sums, added in the order of ranks."""
        everyone = [np.frombuffer(data, np.float32) for data in self.gather_bytes(floats.tobytes(), "sum")]
        floats[:] = everyone[0]
        for one in everyone[1:]:
            floats += one

    def sum_rows(self, rows: NDArray[np.uint32], values: Floats, n_rows: int) -> tuple[NDArray[np.uint32], Floats]:
        """Sums of rows of a table, added in the order of ranks."""
        n = values.shape[1]
        everyone = [np.frombuffer(data, np.uint32) for data in self.gather_bytes(rows.tobytes(), "sum of rows")]
        sent = [np.frombuffer(data, np.float32) for data in self.gather_bytes(values.tobytes(), "sum of rows")]
        return sum_of_rows([(numbers, one.reshape(-1, n)) for numbers, one in zip(everyone, sent)])

    def abort(self, message: str, code: int = 1) -> None:
        """Say why, and end the process; the launcher ends the others."""
        sys.stdout.flush()
        sys.stderr.write(f"dynet_cy: rank {self.rank}: {message}\n")
        sys.stderr.flush()
        os._exit(code)

    def stepper(self, trainer: Trainer, reduction: str) -> Stepper:
        """Updates in shared memory: synchronous ones in which each rank does its part, or without locks."""
        from dynet_cy.parallel import shared_steps

        if self.mode == "async":
            return shared_steps.hogwild(self, trainer)
        return shared_steps.together(self, trainer, reduction)


def connect(told: Mapping[str, str]) -> SharedExchange:
    """The exchange of a worker, from what the launcher told it."""
    board = Board(int(told["fd"]), int(told["size"]), int(told["rank"]), int(told["parent"]))
    textfile.note_temporary = board.note_file
    return SharedExchange(board, told["mode"])
