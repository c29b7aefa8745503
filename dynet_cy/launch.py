"""Start several processes that train together.

    python -m dynet_cy.launch -n 4 train.py ARGS

Also installed as the command ``dynet-cy-launch``. See docs/parallel.md.

What workers are told stands in the variable ``DYNET_CY_LAUNCH``, as words ``name=value``:

- ``pid``: the worker's own process, so that its children do not take themselves for it
- ``rank``, ``size``, ``mode`` ("sync" or "async"), ``backend`` ("shared" or "mpi")
- ``parent``: the launcher's process
- ``fd``: descriptor of the shared memory (backend "shared")
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from dynet_cy import config
from dynet_cy.parallel import mpirun
from dynet_cy.parallel.board import cores
from dynet_cy.parallel.workers import Job

__all__ = ["main"]


def _processes(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 process is needed")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds >= 0:
        raise argparse.ArgumentTypeError("seconds must be at least 0")
    return seconds


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
        help="end the job when others have waited so long for a process that does nothing, or ten times as long for "
        "one that computes; 0: never; default 60",
    )
    made.add_argument(
        "--backend",
        choices=("shared", "mpi"),
        default="shared",
        help="shared (default): processes of this machine; mpi: of any hosts, started by MPI's own launcher",
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
    if options.backend == "mpi":
        try:
            words = mpirun.command(command, options.processes, options.mode, options.timeout, options.mpi)
        except FileNotFoundError as error:
            parse.error(str(error))
        sys.stdout.flush()
        os.execvp(words[0], words)
    if options.mpi is not None:
        parse.error("--mpi is for --backend mpi")
    return Job(command, options.processes or cores(), options.mode, options.timeout).run()


if __name__ == "__main__":
    sys.exit(main())
