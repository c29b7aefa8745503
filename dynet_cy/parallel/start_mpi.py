"""What MPI runs in place of a program: ``start_mpi.py WORDS HASH_SEED PYTHON ARGS...``; a file without dynet_cy.

It passes on what the launcher was told, shares the cores of the host among its processes, and begins Python anew with
ARGS. MPI need not carry variables of the environment from host to host for that.
"""

import os
import sys

LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "DYNET_CY_THREADS")


def main() -> None:
    """Prepare the process and begin the program."""
    words, hash_seed, python, *args = sys.argv[1:]
    counts = [os.environ[name] for name in LOCAL_SIZE if os.environ.get(name, "").isdigit()]
    if counts:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = str(max(1, cores // int(counts[0])))
        for name in THREADS:
            os.environ.setdefault(name, threads)
    os.environ.setdefault("PYTHONHASHSEED", hash_seed)
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    os.environ["DYNET_CY_LAUNCH"] = f"{words} pid={os.getpid()}"
    os.execv(python, [python, *args])


if __name__ == "__main__":
    main()
