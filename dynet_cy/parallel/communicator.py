"""Communication of processes that train together: the interface, and a communicator for a single process.

A `Communicator` connects `size` processes with the numbers `rank` from 0 on. Every method but `abort` and `close` is
collective: all ranks call the same methods in the same order, and each returns when the data it needs have arrived.
There are `dynet_cy.parallel.shared.SharedCommunicator` for one machine, and communicators over MPI.

A new communicator implements the abstract methods. These methods are enough for trainers: by default, `reducer` returns
one that sums gradients with them. A communicator that can do better, such as one that sees the memory of the other
ranks, returns its own reducer.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynet_cy.train import PythonTrainer, Trainer
from dynet_cy.train.interfaces import Reducer

Floats = NDArray[np.float32]

# A process that others wait for is computing, not hanging, if it uses more than WORKING of a core; then the others wait
# PATIENCE times longer.
WORKING = 0.05
PATIENCE = 10

LEFT = (
    "%s has left what all ranks do together, by an exception: the ranks may have made different updates, and cannot go "
    "on together; end the job, and let it go on from its last checkpoint"
)
"""The error message of collective calls after one rank has failed; the name of that rank has to be filled in."""


def only_some(rank: int, there: str, own: int, here: str) -> ParallelError:
    """The error of rank `own`, which is in the collective call `here`, while a rank is in another one, or in none.

    Args:
        rank: the other rank.
        there: the call that it is in; "" if that is not known.
        own: this rank.
        here: the call that it is in.
    """
    advice = "what needs all ranks must be called by all of them, in one order"
    if "checkpoint" in (there, here):
        advice += (
            "; ask for a number that is the same on all ranks, with `if run.every(20):` of a `dy.Training` or "
            "`if trainer.updates % 20 == 0:`, as counts of items or batches may differ"
        )
    return ParallelError(f"rank {rank} is in {there or 'something else'} while rank {own} is in {here}; {advice}")


class ParallelError(RuntimeError):
    """Processes that train together cannot continue: their models differ, or one of them has failed."""


class Communicator(abc.ABC):
    """The connection of the processes that train together.

    Attributes:
        rank: number of this process, from 0 to size - 1.
        size: how many processes there are.
        local_rank: number of this process among those on its machine.
        local_size: how many processes there are on its machine.
        mode: "sync" or "async".
        backend: "none", "shared" or "mpi".
        launched: whether `dynet_cy.launch` or MPI has started the process.
        wrapped: how many trainers have been wrapped.
        broken_off: whether this rank has called `break_off`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    mode: str = "sync"
    backend: str = "none"
    launched: bool = False
    wrapped: int = 0
    broken_off: bool = False

    @abc.abstractmethod
    def barrier(self, what: str = "barrier") -> None:
        """Wait for all ranks.

        Args:
            what: what this rank waits in, for messages about ranks that do not arrive.
        """

    @abc.abstractmethod
    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        """The bytes of all ranks, in the order of ranks, on every rank. Their lengths may differ."""

    @abc.abstractmethod
    def broadcast_floats(self, floats: Floats, root: int = 0) -> None:
        """Replace the numbers on all ranks by those of `root`.

        Args:
            floats: a contiguous array with one axis, of the same length on all ranks; changed in place.

        Raises:
            TypeError: it is not a float32 array.
            ValueError: the array has several axes, or is not contiguous or not writable.
        """

    @abc.abstractmethod
    def sum_floats(self, floats: Floats) -> None:
        """Replace the numbers on all ranks by their sums over all ranks, equal to the last bit on all of them.

        Args:
            floats: a contiguous array with one axis, of the same length on all ranks; changed in place.

        Raises:
            TypeError: it is not a float32 array.
            ValueError: the array has several axes, or is not contiguous or not writable.
        """

    @abc.abstractmethod
    def sum_rows(self, rows: NDArray[np.uint32], values: Floats, n_rows: int) -> tuple[NDArray[np.uint32], Floats]:
        """Sum rows of a table, of which each rank has a few.

        Args:
            rows: numbers of this rank's rows, without duplicates.
            values: these rows, of shape (len(rows), n); n is the same on all ranks.
            n_rows: rows of the whole table. A communicator may send the whole table if that is less data.

        Returns:
            The numbers of the rows that any rank has, ascending, and their sums over all ranks, equal to the last bit
            on all ranks.
        """

    def break_off(self) -> None:
        """Note that this rank has failed in a collective call: from now on all collective calls raise errors."""
        self.broken_off = True

    @abc.abstractmethod
    def abort(self, message: str, code: int = 1) -> None:
        """Make the whole job fail: write the reason to stderr, and end all ranks."""

    def gather(self, value: Any, what: str = "gather") -> list[Any]:
        """The values of all ranks, small Python objects, in the order of ranks, on every rank. They are pickled."""
        import pickle

        return [pickle.loads(data) for data in self.gather_bytes(pickle.dumps(value), what)]

    def broadcast(self, value: Any, root: int = 0) -> Any:
        """The Python object of rank `root`; the arguments of the others are ignored."""
        return self.gather(value if self.rank == root else None, "broadcast")[root]

    def reducer(self, trainer: Trainer, reduction: str) -> Reducer | None:
        """The reducer for gradients of all ranks; None: sums by this communicator.

        Collective, since it may make shared memory. The models have been compared before.
        """
        return None

    def close(self) -> None:  # noqa: B027 - there may be nothing to free
        """Free the resources of the communicator; it is not used afterwards."""


def check_floats(floats: Floats, method: str) -> None:
    """Check what a method of a communicator is to change in place.

    Raises:
        TypeError: it is not a float32 array.
        ValueError: the array has several axes, or is not contiguous or not writable.
    """
    if not isinstance(floats, np.ndarray) or floats.dtype != np.float32:
        found = getattr(floats, "dtype", type(floats).__name__)
        raise TypeError(f"{method}: a float32 array is needed, not {found}")
    if floats.ndim != 1 or not (floats.flags.c_contiguous and floats.flags.writeable):
        raise ValueError(
            f"{method}: a contiguous, writable array with one axis is needed, not one of shape {floats.shape} and "
            f"strides {floats.strides}{'' if floats.flags.writeable else ' that is read-only'}"
        )


def on_devices(trainer: Trainer) -> bool:
    """Whether some of its parameters live outside the memory of the host."""
    storage = trainer.collection.storage
    return bool(storage.device or storage.other_devices)


def steps_in_python(trainer: Trainer) -> bool:
    """Whether it computes the steps of whole parameters, in Python."""
    return isinstance(trainer, PythonTrainer)


class LocalCommunicator(Communicator):
    """The communicator of a process that trains alone: rank 0 of 1."""

    def barrier(self, what: str = "barrier") -> None:
        """Do nothing: there is no other process to wait for."""

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        """The given bytes, in a list."""
        return [data]

    def broadcast_floats(self, floats: Floats, root: int = 0) -> None:
        """Do nothing: the numbers are already those of rank 0."""
        check_floats(floats, "broadcast_floats")

    def sum_floats(self, floats: Floats) -> None:
        """Do nothing: the numbers of one process are their own sums."""
        check_floats(floats, "sum_floats")

    def sum_rows(self, rows: NDArray[np.uint32], values: Floats, n_rows: int) -> tuple[NDArray[np.uint32], Floats]:
        """The rows in ascending order."""
        order = np.argsort(rows)
        return rows[order], values[order]

    def abort(self, message: str, code: int = 1) -> None:
        """End the process."""
        import sys

        sys.stderr.write(f"dynet_cy: {message}\n")
        raise SystemExit(code)
