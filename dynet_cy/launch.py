"""Start several processes that train together.

    python -m dynet_cy.launch -n 4 train.py ARGS

Also installed as the command ``dynet-cy-launch``. See docs/parallel.md.

The variable ``DYNET_CY_LAUNCH`` passes settings to the workers, as words ``name=value``:

- ``pid``: the worker's own process, so that its children do not mistake themselves for it
- ``rank``, ``size``, ``mode`` ("sync" or "async"), ``backend`` ("shared" or "mpi")
- ``parent``: the launcher's process
- ``fd``: descriptor of the shared memory (backend "shared")
- ``progress``, ``token``: where to record updates, if the job may be restarted

``DYNET_CY_RESTART_COUNT`` has the number of restarts of the job.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from dynet_cy import config
from dynet_cy.parallel.job import LocalJob, Logs, MPIJob, Program, supervise
from dynet_cy.parallel.start import cores

__all__ = ["main"]


def _at_least(kind: Callable[[str], float], least: float, message: str) -> Callable[[str], float]:
    """A function that reads a number of an option."""

    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(message)
        return value

    return number


_processes = _at_least(int, 1, "at least 1 process is needed")
_restarts = _at_least(int, 0, "the number of restarts must be at least 0")
_seconds = _at_least(float, 0, "seconds must be at least 0")


def parser() -> argparse.ArgumentParser:
    """The parser of the launcher's own arguments; the program's follow them."""
    made = argparse.ArgumentParser(
        prog="python -m dynet_cy.launch",
        description="Start several processes of a program that train together.",
        usage="%(prog)s [-n N] [options] (PROGRAM.py | -m MODULE) [ARGS ...]",
    )
    made.add_argument("-n", "--processes", type=_processes, help="default: as many as there are cores")
    made.add_argument(
        "--mode",
        choices=("sync", "async"),
        default="sync",
        help="sync (default): all make the same updates; async: each changes one copy of the parameters, without locks",
    )
    made.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="end the job when others have waited this long for a process that is idle, or ten times as long for "
        "one that is computing; 0: never; default 60",
    )
    _add_restarts(made)
    made.add_argument(
        "--log-dir",
        metavar="FOLDER",
        help="also write the output of each process, for each start, to files below FOLDER",
    )
    made.add_argument(
        "--backend",
        choices=("shared", "mpi"),
        default="shared",
        help="shared (default): processes on this machine; mpi: processes on any hosts, started by MPI's own launcher",
    )
    made.add_argument(
        "--mpi",
        metavar="COMMAND",
        help="with --backend mpi: MPI's launcher and its options, such as 'mpiexec --hostfile hosts' or 'srun'; "
        "default mpiexec. Without -n it decides how many processes there are",
    )
    made.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="MODULE",
        help="run a module with the arguments that follow, as python -m does",
    )
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="ARGS", help="the program and its arguments")
    return made


def _add_restarts(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--max-restarts",
        type=_restarts,
        default=0,
        metavar="N",
        help="restart the job when a process fails or is killed, at most N times, but not when it fails again at "
        "the same place; the program resumes from its last checkpoint if it loads that; default 0",
    )
    made.add_argument(
        "--restart-delay",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="how long to wait before the first restart; doubled for each later one, up to 60; default 1",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the launcher.

    Args:
        argv: its arguments; those of the command line when None.

    Returns:
        The exit code: 0 if all processes have ended with 0.
    """
    parse = parser()
    options = parse.parse_args(argv)
    config.set(profiling=0)  # an option of the workers, which follows in sys.argv
    command = ["-m", *options.module] if options.module else options.command
    if not command:
        parse.error("which program?")
    logs = Logs(options.log_dir) if options.log_dir is not None else None
    # Sets of strings have the same order in all processes and all starts.
    hash_seed = os.environ.get("PYTHONHASHSEED", str(int.from_bytes(os.urandom(4), "big")))
    over_mpi = options.backend == "mpi"
    processes = options.processes or (None if over_mpi else cores())
    program = Program(command, hash_seed, processes, options.mode, options.timeout, options.mpi)
    if over_mpi:
        try:
            words = program.over_mpi()
        except FileNotFoundError as error:
            parse.error(str(error))
        sys.stdout.flush()
        if not options.max_restarts and logs is None:
            os.execvp(words[0], words)
    elif options.mpi is not None:
        parse.error("--mpi is for --backend mpi")
    kind = MPIJob if over_mpi else LocalJob
    return supervise(
        lambda start: kind(start, program).run(), options.max_restarts, options.restart_delay, logs, anywhere=over_mpi
    )


if __name__ == "__main__":
    sys.exit(main())
