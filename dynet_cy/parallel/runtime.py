"""The communicator of this process, created at first use, and functions that call it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from dynet_cy.kernels import kernels
from dynet_cy.parallel.communicator import Communicator, LocalCommunicator, ParallelError
from dynet_cy.parallel.start import LAUNCH, RESTARTS, memory_of_launcher, settings_in
from dynet_cy.train.trainer import note_updates_in
from dynet_cy.watch.timeline import span

# Variables for rank and size, set by Open MPI, MPICH and its derivatives, MVAPICH, and PMIx servers (such as Slurm's).
VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
)
# Variables for the rank among the processes of one host.
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
OWNER = "DYNET_CY_MPI_PROCESS"

T = TypeVar("T")

_communicator: Communicator | None = None


def started_by_mpi() -> bool:
    """Whether MPI has started this process together with others; False for a child of such a process."""
    for rank, size in VARIABLES:
        if rank in os.environ and os.environ.get(size) != "1":
            return os.environ.setdefault(OWNER, str(os.getpid())) == str(os.getpid())
    return False


def local_rank_by_mpi() -> int:
    """The rank of this process among those of its host, from the environment alone; 0 if it is not set."""
    ranks = (os.environ.get(name, "") for name in (*LOCAL_RANKS, *(rank for rank, _ in VARIABLES)))
    return next((int(rank) for rank in ranks if rank.isdigit()), 0)


def _note_owner() -> None:
    """Note in this newly forked process that MPI started its parent, not this process."""
    if any(rank in os.environ for rank, _ in VARIABLES):
        os.environ.setdefault(OWNER, str(os.getppid()))


os.register_at_fork(after_in_child=_note_owner)


def settings_from_launcher() -> dict[str, str]:
    """The launcher's settings for this process; empty if the launcher did not start it, as for a child of a worker."""
    words = settings_in(os.environ.get(LAUNCH, ""))
    return words if words.get("pid") == str(os.getpid()) else {}


def current() -> Communicator:
    """The communicator of this process."""
    global _communicator
    if _communicator is None:
        words = settings_from_launcher() or ({"backend": "mpi"} if started_by_mpi() else {})
        if words:
            _communicator = importlib.import_module(f"dynet_cy.parallel.{words['backend']}").connect(words)
        else:
            _communicator = LocalCommunicator()
        assert _communicator is not None
        kernels.set_rank(_communicator.rank)
    return _communicator


def in_a_job() -> bool:
    """Whether this process was started together with others; does not connect to them."""
    return started_by_mpi() if _communicator is None else _communicator.size > 1


def own_part(gpus: Sequence[T]) -> list[T]:
    """The part of the requested GPUs that this process uses.

    All of them, if it trains alone. In a job each process uses one, chosen by its number among the processes of its
    machine, modulo the number of GPUs.
    """
    if not gpus or not in_a_job():
        return list(gpus)
    rank = local_rank_by_mpi() if _communicator is None else _communicator.local_rank
    return [gpus[rank % len(gpus)]]


def use(communicator: Communicator | None) -> Communicator | None:
    """Set the communicator of this process; with None it is determined again at the next use.

    Returns:
        The previous communicator, or None.
    """
    global _communicator
    before, _communicator = _communicator, communicator
    if communicator is not None:
        kernels.set_rank(communicator.rank)
    return before


def rank() -> int:
    """The number of this process among those that train together, from 0; 0 for a process alone."""
    return current().rank


def size() -> int:
    """The number of processes that train together; 1 without the launcher."""
    return current().size


def mode() -> str:
    """The mode of training: "sync" (all make the same updates) or "async" (each changes the shared parameters)."""
    return current().mode


def share_parameters() -> None:
    """Make this job train asynchronously: the setting ``shared_parameters`` of DyNet.

    Raises:
        RuntimeError: the process was not started by the launcher, or trains over MPI.
        ParallelError: a trainer has been wrapped for synchronous training.
    """
    communicator = current()
    if communicator.backend != "shared":
        raise RuntimeError(
            "shared_parameters: processes that share parameters are those of one machine that the launcher starts: "
            "python -m dynet_cy.launch -n N --mode async PROGRAM.py"
        )
    if communicator.mode != "async" and communicator.wrapped:
        raise ParallelError("shared_parameters: set it before you wrap the first trainer")
    communicator.mode = "async"


def launched() -> bool:
    """Whether this process was started by the launcher, or by MPI."""
    return current().launched


def restart_count() -> int:
    """The number of restarts of this job by the launcher: 0 at the first start, and without the launcher.

    It is the number in the environment variable ``DYNET_CY_RESTART_COUNT``, which may also be set by hand if another
    program restarts jobs. See ``python -m dynet_cy.launch --max-restarts`` in docs/parallel.md.

        if dy.parallel.restart_count() and dy.parallel.rank() == 0:
            print("started again")

    Raises:
        ValueError: the variable is not a number.
    """
    text = os.environ.get(RESTARTS, "0")
    if not text.isdecimal():
        raise ValueError(f"{RESTARTS}={text!r}: the number of restarts must be a number, such as 0")
    return int(text)


def barrier() -> None:
    """Wait for all ranks."""
    with span("barrier"):
        current().barrier()


def gather(value: Any) -> list[Any]:
    """The values of all ranks, in the order of ranks, on every rank. They are pickled, so they should be small."""
    with span("gather"):
        return current().gather(value)


def broadcast(value: Any, root: int = 0) -> Any:
    """The value passed by rank `root`; the arguments of the others are ignored."""
    with span("broadcast"):
        return current().broadcast(value, root)


def average(value: float | Sequence[float], weight: float = 1.0) -> Any:
    """The mean over ranks of a number, such as a loss, or of several; the same on all ranks.

    Args:
        value: a number, or numbers.
        weight: the weight of this rank, such as its number of examples; 0 if it has none.

    Returns:
        A float for a number, else a float64 array; nan if all weights are 0.
    """
    own = np.atleast_1d(np.asarray(value, np.float64)) * weight if weight else np.zeros(np.size(value))
    everyone = gather((weight, own))
    total = sum(w for w, _ in everyone)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sum(numbers for _, numbers in everyone) / np.float64(total)
    return float(mean[0]) if np.ndim(value) == 0 else mean


def _report_progress() -> None:
    """Make the trainers of this process, but not of its children, report their progress to the launcher."""
    memory = memory_of_launcher(settings_from_launcher())
    if memory is not None:
        note_updates_in(memory)
        os.register_at_fork(after_in_child=lambda: note_updates_in(None))


_report_progress()
# A worker on one machine connects at once, since its random numbers and files depend on that; over MPI, when needed.
if settings_from_launcher().get("backend") == "shared":
    current()
