"""What the launcher's children run first, without dynet_cy: ``start.py KIND ARGS...``.

- ``rank WORDS RESTARTS HASH_SEED PYTHON ARGS...`` begins a process of the job, with the launcher's settings in its
  environment: MPI need not pass variables from host to host.
- ``tied PARENT SIGNAL COMMAND...`` runs a command that gets this signal when its parent ends.
- ``guard`` ends the workers when the launcher is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Callable, Mapping

# The launcher's settings for its workers, "name=value" separated by spaces: see `dynet_cy.launch`.
LAUNCH = "DYNET_CY_LAUNCH"

# How often the launcher has restarted the job; for workers and their children.
RESTARTS = "DYNET_CY_RESTART_COUNT"

# The command of this program.
PROGRAM = [sys.executable, "-I", "-S", __file__]

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "DYNET_CY_THREADS")
NUMBERS = 16  # bytes of the launcher's memory before the token: see `dynet_cy.parallel.job.Progress`
PR_SET_PDEATHSIG = 1


def cpus() -> set[int]:
    """The CPUs that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores() -> int:
    """How many cores this process may use."""
    return len(cpus())


def settings_in(words: str) -> dict[str, str]:
    """The settings in a text of the launcher."""
    return dict(word.split("=", 1) for word in words.split())


def memory_of_launcher(settings: Mapping[str, str]) -> mmap.mmap | None:
    """The memory in which the launcher reads the progress of the job; None if it does not ask, or is on another host.

    There the name may belong to anything, so the file is opened without blocking, and its token is compared.
    """
    with contextlib.suppress(OSError, KeyError):
        fd = os.open(settings["progress"], os.O_RDWR | os.O_NONBLOCK)
        try:
            if os.pread(fd, 1 << 10, NUMBERS) == settings["token"].encode():
                return mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    return None


def tie(parent: str, name: str) -> None:
    """Have this process get a signal (KILL, TERM) when its parent ends, on Linux, and react to Ctrl-C."""
    import signal  # it would add 0.5 ms to `import dynet_cy`

    if sys.platform.startswith("linux"):
        # `guard` ends the children of workers, and workers on other systems.
        with contextlib.suppress(ImportError):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.Signals[f"SIG{name}"]), 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tied(parent: str, name: str, *command: str) -> None:
    """Run a command that ends with its parent."""
    tie(parent, name)
    os.execvp(command[0], command)


def rank(words: str, restarts: str, hash_seed: str, *command: str) -> None:
    """Begin a process of the job; variables that are set already stay.

    Processes of a host divide its cores. Sets of strings have the same order in all processes, so that vocabularies are
    equal. Output is written line by line, and crashes print a traceback.
    """
    settings = settings_in(words)
    memory = memory_of_launcher(settings)
    if memory is not None:
        memory[8:16] = (1).to_bytes(8, sys.byteorder)  # this process is able to report its progress
    defaults = {"PYTHONHASHSEED": hash_seed, "PYTHONFAULTHANDLER": "1"}
    if "parent" in settings:
        tie(settings["parent"], "KILL")
        defaults["PYTHONUNBUFFERED"] = "1"
    known = (settings.get("size"), *map(os.environ.get, LOCAL_SIZE))
    counts = [int(text) for text in known if text and text.isdigit()]
    if counts:
        defaults.update(dict.fromkeys(THREADS, str(max(1, cores() // counts[0]))))
    environment = {**defaults, **os.environ, RESTARTS: restarts, LAUNCH: f"{words} pid={os.getpid()}"}
    os.execvpe(command[0], command, environment)


def guard() -> None:
    """End the groups of all workers that have not ended, when the launcher is killed.

    The launcher writes a line to the input for each worker that begins or ends: "+" or "-" and its process id, which is
    also that of its process group. Before the launcher ends, it kills this process. So the input ends only if the
    launcher was killed.
    """
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    from signal import SIGKILL

    for number in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(number, SIGKILL)


KINDS: Mapping[str, Callable[..., None]] = {"rank": rank, "tied": tied, "guard": guard}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
