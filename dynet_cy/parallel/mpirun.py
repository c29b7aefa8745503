"""Starting processes by MPI: the command, and whether MPI started this process."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynet_cy.parallel.start import PROGRAM

__all__ = ["command", "local_rank_by_mpi", "rank_command", "started_by_mpi"]

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


def launcher_of(text: str | None) -> list[str]:
    """The words of the launcher's command; by default `mpiexec`, from the folder of this Python if it has one.

    Raises:
        FileNotFoundError: there is no such program.
    """
    if text is None:
        own = Path(sys.executable).with_name("mpiexec")
        words = [str(own) if own.exists() else "mpiexec"]
    else:
        words = shlex.split(text)
    if not words or shutil.which(words[0]) is None:
        raise FileNotFoundError(
            f"there is no program {words[0] if words else ''!r} to start processes by MPI: install an MPI library "
            "(pip install 'dynet_cy[mpi]' mpich), or name its launcher, such as --mpi 'srun --mpi=pmix'"
        )
    return words


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


def rank_command(program: Sequence[str], words: Mapping[str, object], restarts: int, hash_seed: str) -> list[str]:
    """The command that runs a Python program as a process of a job; the arguments are those of `command`."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    settings = " ".join(f"{name}={value}" for name, value in words.items())
    return [*PROGRAM, "rank", settings, str(restarts), hash_seed, sys.executable, *flags, *program]


def command(
    program: Sequence[str],
    n: int | None = None,
    mode: str = "sync",
    timeout: float = 60.0,
    launcher: str | None = None,
    *,
    hash_seed: str,
    restarts: int = 0,
    words: Mapping[str, str] | None = None,
) -> list[str]:
    """The command that makes MPI run a Python program.

    Args:
        program: arguments for Python: the program, or "-m" and a module, and its arguments.
        n: how many processes; None: the launcher decides, for example one for each Slurm task.
        mode: "sync" or "async".
        timeout: seconds that others may wait for an idle process; 0: no limit.
        launcher: MPI's launcher with its options, as you would type them, such as "mpiexec --hostfile hosts"
            or "srun --mpi=pmix"; by default `mpiexec`.
        hash_seed: the value of `PYTHONHASHSEED` where it is not set. If it is a number, sets of strings have the same
            order in all processes, so that vocabularies are equal.
        restarts: how often the job has been restarted.
        words: further settings for the processes.

    Raises:
        FileNotFoundError: there is no such launcher.
    """
    starter = launcher_of(launcher)
    count = [] if n is None else ["-n", str(n)]
    settings = {"backend": "mpi", "mode": mode, "timeout": f"{timeout:g}", **(words or {})}
    return [*starter, *prefix_of(starter[0]), *count, *rank_command(program, settings, restarts, hash_seed)]
