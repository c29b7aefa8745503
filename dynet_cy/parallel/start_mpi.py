"""The program that MPI starts: ``start_mpi.py WORDS RESTARTS HASH_SEED PYTHON ARGS...``; without dynet_cy.

It passes on the launcher's settings, divides the cores of the host among its processes, and starts Python again with
ARGS. So MPI need not pass environment variables from host to host.
"""

import contextlib
import os
import sys

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "DYNET_CY_THREADS")


def notify_launcher(words: str) -> None:
    """Tell the launcher that this process is able to report its progress; see progress.py."""
    settings = dict(word.split("=", 1) for word in words.split())
    with contextlib.suppress(OSError, KeyError):  # the launcher is on another host, or does not ask
        fd = os.open(settings["progress"], os.O_RDWR | os.O_NONBLOCK)
        if os.pread(fd, len(settings["token"]), 16) == settings["token"].encode():
            os.pwrite(fd, (1).to_bytes(8, sys.byteorder), 8)
        os.close(fd)


def main() -> None:
    """Prepare the process and begin the program."""
    words, restarts, hash_seed, python, *args = sys.argv[1:]
    notify_launcher(words)
    counts = [os.environ[name] for name in LOCAL_SIZE if os.environ.get(name, "").isdigit()]
    if counts:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = str(max(1, cores // int(counts[0])))
        for name in THREADS:
            os.environ.setdefault(name, threads)
    os.environ.setdefault("PYTHONHASHSEED", hash_seed)
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    os.environ["DYNET_CY_RESTART_COUNT"] = restarts
    os.environ["DYNET_CY_LAUNCH"] = f"{words} pid={os.getpid()}"
    os.execv(python, [python, *args])


if __name__ == "__main__":
    main()
