"""How MPI starts processes: whether it has started this one, and the command that lets it start some.

    python -m dynet_cy.parallel.mpirun --mode sync train.py ARGS

is what `dynet_cy.launch --backend mpi` lets MPI start: it tells the program what the launcher was told, then runs it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["command", "started_by_mpi"]

# Rank and size, as Open MPI, MPICH and those that follow it, MVAPICH, and any PMIx server (such as Slurm's) tell them.
VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
)
OWNER = "DYNET_CY_MPI_PROCESS"


def started_by_mpi() -> bool:
    """Whether MPI has started this process together with others; False for a child of such a process."""
    for rank, size in VARIABLES:
        if rank in os.environ and os.environ.get(size) != "1":
            return os.environ.setdefault(OWNER, str(os.getpid())) == str(os.getpid())
    return False


def launcher_of(text: str | None) -> list[str]:
    """The words of the launcher's command; by default `mpiexec`, from beside this Python if there is one.

    Raises:
        FileNotFoundError: there is no such program.
    """
    if text is None:
        beside = Path(sys.executable).with_name("mpiexec")
        words = [str(beside) if beside.exists() else "mpiexec"]
    else:
        words = shlex.split(text)
    if not words or shutil.which(words[0]) is None:
        raise FileNotFoundError(
            f"there is no program {words[0] if words else text!r} to start processes by MPI: install an MPI library "
            "(pip install 'dynet_cy[mpi]' mpich), or name its launcher, such as --mpi 'srun --mpi=pmix'"
        )
    return words


def prefix_of(launcher: str) -> list[str]:
    """The option by which the launcher puts the rank before each line of output."""
    if Path(launcher).name == "srun":
        return ["--label"]
    done = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    about = done.stdout + done.stderr
    if "Open MPI" in about:
        return ["--tag-output"] if ") 4." in about or ") 3." in about else ["--output", "tag"]
    if "HYDRA" in about or "Intel(R) MPI" in about:
        return ["-prepend-rank"]
    return []


def command(program: Sequence[str], n: int | None, mode: str = "sync", launcher: str | None = None) -> list[str]:
    """The command that lets MPI run a Python program.

    Args:
        program: name of the script and its arguments; or "-m", name of a module, and arguments.
        n: how many processes; None: as many as the launcher sees fit, such as one for each task that Slurm gives.
        mode: "sync" or "async".
        launcher: MPI's launcher with options of its own, as one would type them, such as "mpiexec --hostfile hosts"
            or "srun --mpi=pmix"; by default `mpiexec`.

    Raises:
        FileNotFoundError: there is no such launcher.
    """
    words = launcher_of(launcher)
    count = [] if n is None else ["-n", str(n)]
    worker = [sys.executable, "-m", "dynet_cy.parallel.mpirun", "--mode", mode, *program]
    return [*words, *prefix_of(words[0]), *count, *worker]


def main(argv: Sequence[str] | None = None) -> None:
    """Run a program as one of those that MPI has started."""
    from dynet_cy.parallel.runtime import VARIABLE, current

    parser = argparse.ArgumentParser(prog="dynet_cy.parallel.mpirun")
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    os.environ[VARIABLE] = f"pid={os.getpid()} backend=mpi mode={args.mode}"
    sys.argv = [args.program, *args.arguments]
    try:
        if args.module:
            sys.path[0] = os.getcwd()
            runpy.run_module(args.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(args.program).resolve().parent)
            runpy.run_path(args.program, run_name="__main__")
    except SystemExit as exit:
        if exit.code not in (None, 0):
            said = "" if isinstance(exit.code, int) else f": {exit.code}"
            code = exit.code if isinstance(exit.code, int) else 1
            current().abort(f"rank {current().rank} has exited with code {code}{said}", code)
        raise


if __name__ == "__main__":
    main()
